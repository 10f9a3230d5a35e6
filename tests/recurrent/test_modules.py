"""RNN, GRU and LSTM as users have them: like torch.nn's, and with what torch.nn lacks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.recurrent.layers import Stack
from regard.recurrent.settings import VARIANTS

Network = regard.RNN | regard.GRU | regard.LSTM
LENGTHS = torch.tensor([6, 3, 1, 5])

KINDS: dict[str, tuple[type[Network], type[nn.RNNBase], dict[str, Any], dict[str, Any]]] = {
    "rnn": (regard.RNN, nn.RNN, {}, {}),
    "relu": (regard.RNN, nn.RNN, {"activation": "relu"}, {"nonlinearity": "relu"}),
    "gru": (regard.GRU, nn.GRU, {}, {}),
    "lstm": (regard.LSTM, nn.LSTM, {}, {}),
}

EVERY: dict[str, Callable[..., Network]] = {
    "rnn": regard.RNN,
    "relu": lambda *sizes, **options: regard.RNN(*sizes, activation="relu", **options),
    "gru": regard.GRU,
    "gru before": lambda *sizes, **options: regard.GRU(*sizes, reset="before", **options),
    "lstm": regard.LSTM,
    **{
        name: lambda *sizes, name=name, **options: regard.LSTM(*sizes, variant=name, **options)  # type: ignore[misc]
        for name in VARIANTS
    },
}


@pytest.fixture(params=EVERY)
def build(request: pytest.FixtureRequest) -> Callable[..., Network]:
    return EVERY[request.param]


def states(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def test_every_network_is_public() -> None:
    assert {"RNN", "GRU", "LSTM"} <= set(regard.__all__)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch(kind: str, layers: int, bidirectional: bool, lengths: Tensor | None) -> None:
    """Outputs, states, and the gradient of every weight, to 1e-6 and better."""
    torch.manual_seed(0)
    ours_type, theirs_type, _, options = KINDS[kind]
    theirs = theirs_type(5, 7, layers, bidirectional=bidirectional, batch_first=True, **options).double()  # type: ignore[arg-type]
    ours = ours_type.from_torch(theirs)
    x_theirs = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    x_ours = x_theirs.detach().clone().requires_grad_()
    outputs, state = ours(x_ours, lengths=lengths)
    if lengths is None:
        expected, final = theirs(x_theirs)
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x_theirs, lengths, batch_first=True, enforce_sorted=False)
        packed_outputs, final = theirs(packed)
        expected, _ = nn.utils.rnn.pad_packed_sequence(packed_outputs, batch_first=True, total_length=6)
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-9)
    for part, reference in zip(states(state), states(final), strict=True):
        torch.testing.assert_close(part, reference, rtol=1e-6, atol=1e-9)
    weights = torch.randn_like(expected)
    for found, end in ((outputs, state), (expected, final)):
        ((found * weights).sum() + sum(part.square().sum() for part in states(end))).backward()
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, rtol=1e-6, atol=1e-9)
    # The gradients, put into torch's places the way the weights are.
    for parameter in ours.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    placed = ours.to_torch()
    for name, parameter in theirs.named_parameters():
        ours_bias_is_one = name.startswith("bias_hh") and not isinstance(ours, regard.GRU)
        if not ours_bias_is_one:
            torch.testing.assert_close(getattr(placed, name).data, parameter.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_go_to_torch_and_back(kind: str) -> None:
    torch.manual_seed(0)
    ours_type, _, options, _ = KINDS[kind]
    ours = ours_type(5, 7, 2, True, **options)
    theirs = ours.to_torch()
    x = torch.randn(4, 6, 5)
    torch.testing.assert_close(theirs(x)[0], ours(x)[0])
    back = ours_type.from_torch(theirs)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(back.get_parameter(name), parameter)


def test_a_torch_network_without_biases_or_batch_first_is_taken_too() -> None:
    theirs = nn.LSTM(5, 7, bias=False)
    x = torch.randn(6, 4, 5)
    torch.testing.assert_close(regard.LSTM.from_torch(theirs)(x.transpose(0, 1))[0].transpose(0, 1), theirs(x)[0])


def test_what_torch_cannot_hold_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="differs in coupled, peepholes"):
        regard.LSTM(2, 3, variant="CIFG").to_torch()
    with pytest.raises(regard.ConfigError, match="resets after"):
        regard.GRU(2, 3, reset="before").to_torch()
    with pytest.raises(regard.ConfigError, match="it has no layer_norm, residual"):
        regard.GRU(2, 3, layer_norm=True, residual=True).to_torch()
    with pytest.raises(regard.ConfigError, match=r"takes a torch\.nn\.LSTM"):
        regard.LSTM.from_torch(nn.GRU(2, 3))
    with pytest.raises(regard.ConfigError, match="proj_size"):
        regard.LSTM.from_torch(nn.LSTM(2, 3, proj_size=2))


def test_misuse_is_answered_in_words() -> None:
    with pytest.raises(regard.ConfigError, match=r"\(rows, steps, 2\), and was given \(4, 5, 3\)"):
        regard.GRU(2, 3)(torch.zeros(4, 5, 3))
    with pytest.raises(regard.ConfigError, match="Did you mean 'CIFG'"):
        regard.LSTM(2, 3, variant="CIGF")
    with pytest.raises(regard.ConfigError, match="Did you mean 'peepholes'"):
        regard.LSTM(2, 3, peephole=True)  # type: ignore[call-arg]
    with pytest.raises(regard.ConfigError, match="dropout"):
        regard.GRU(2, 3, dropout=1.5)
    with pytest.raises(regard.ConfigError, match=r"takes no 'num_layers'\. Did you mean 'layers'"):
        regard.LSTM(2, 3, num_layers=2)  # type: ignore[call-arg]
    with pytest.raises(regard.ConfigError, match="takes no 'kind'"):
        regard.LSTM(2, 3, kind="gru")  # type: ignore[call-arg]
    with pytest.raises(regard.ConfigError, match="bidirectional is True or False"):
        regard.LSTM(2, 3, 2, 0.5)  # type: ignore[arg-type]
    with pytest.raises(regard.ConfigError, match="input_size"):
        regard.RNN(0, 3)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (torch.tensor([1.0, 2.0]), "whole number"),
        (torch.tensor([3]), "each of the 2 rows"),
        ([3, 6], "between 0 and the 5 steps"),
        ([3, -1], "between 0 and the 5 steps"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: Any, words: str, build: Callable[..., Network]) -> None:
    with pytest.raises(regard.ConfigError, match=words):
        build(2, 3)(torch.zeros(2, 5, 2), lengths=lengths)


def test_lengths_may_be_a_list(build: Callable[..., Network]) -> None:
    network, x = build(2, 3), torch.randn(2, 5, 2)
    assert torch.equal(network(x, lengths=[5, 2])[0], network(x, lengths=torch.tensor([5, 2]))[0])


def test_a_state_of_another_shape_is_refused(build: Callable[..., Network]) -> None:
    network, x = build(2, 3), torch.randn(2, 5, 2)
    parts = states(network(x)[1])
    wrong = [
        tuple(part[:, :1] for part in parts),
        tuple(part[..., :1] for part in parts),
        tuple(part.repeat(2, 1, 1) for part in parts),
        (*parts, parts[0]),
        tuple(part.double() for part in parts),
    ]
    for given in wrong:
        with pytest.raises(regard.ConfigError, match="state"):
            network(x, state=given)


def test_no_rows_at_all_are_answered_too(build: Callable[..., Network]) -> None:
    outputs, state = build(2, 3, 2, True)(torch.zeros(0, 5, 2), lengths=[])
    assert outputs.shape == (0, 5, 6)
    assert all(part.shape[1] == 0 for part in states(state))


def test_autocast_runs_and_learns(build: Callable[..., Network]) -> None:
    torch.manual_seed(0)
    network, x = build(4, 8, 2, True), torch.randn(3, 5, 4)
    expected, _ = network(x, lengths=[5, 2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = network(x, lengths=[5, 2, 4])
        network(x, state=state)
    torch.testing.assert_close(outputs.float(), expected, rtol=0.1, atol=0.05)
    outputs.float().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_layers_output_is_dropped_once_for_both_directions() -> None:
    torch.manual_seed(0)
    network = regard.GRU(2, 3, 2, True, dropout=0.5)
    seen = []
    for cell in list(network.stack.cells)[2:]:
        project = cell.project
        cell.project = lambda x, project=project: (seen.append(x), project(x))[1]
    network(torch.randn(4, 6, 2))
    forward, backward = seen
    torch.testing.assert_close(forward, backward.flip(0) if forward.shape[0] == 6 else backward.flip(1))


def test_a_network_says_what_it_is() -> None:
    assert "LSTMCell(2, 3, coupled=True, peepholes=True)" in repr(regard.LSTM(2, 3, variant="CIFG"))
    assert "GRUCell(2, 3, reset=before)" in repr(regard.GRU(2, 3, reset="before"))


def test_the_state_is_unpacked_as_torchs_is() -> None:
    x = torch.randn(4, 6, 5)
    outputs, (h, c) = regard.LSTM(5, 7, 2, True)(x)
    assert (outputs.shape, h.shape, c.shape) == ((4, 6, 14), (4, 4, 7), (4, 4, 7))
    outputs, h = regard.GRU(5, 7, 2)(x)
    assert (outputs.shape, h.shape) == ((4, 6, 7), (2, 4, 7))
    torch.testing.assert_close(outputs[:, -1], h[-1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("options", [{}, {"residual": True}, {"layer_norm": True}, {"learned_start": True}])
def test_what_lies_beyond_a_row_cannot_matter(
    build: Callable[..., Network], options: dict[str, bool], bidirectional: bool
) -> None:
    """Not even if it is no number; neither to what comes out nor to what is learned from it."""
    torch.manual_seed(0)
    network = build(2, 3, 2, bidirectional, **options)
    x = torch.randn(4, 6, 2)
    poisoned = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        poisoned[row, length:] = float("nan")
    answers = []
    for given in (x, poisoned):
        network.zero_grad()
        outputs, state = network(given, lengths=LENGTHS)
        (outputs.sin().sum() + sum(part.cos().sum() for part in states(state))).backward()
        answers.append([outputs, *states(state), *(parameter.grad for parameter in network.parameters())])
    for clean, again in zip(*answers, strict=True):
        assert torch.equal(clean, again)
    beyond = torch.arange(6) >= LENGTHS.unsqueeze(1)
    assert (answers[0][0][beyond] == 0).all()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_alone_is_answered_as_in_company(build: Callable[..., Network], bidirectional: bool) -> None:
    torch.manual_seed(0)
    network = build(2, 3, 2, bidirectional).double()
    x = torch.randn(4, 6, 2, dtype=torch.float64)
    outputs, state = network(x, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone, end = network(x[row : row + 1, :length])
        torch.testing.assert_close(alone[0], outputs[row, :length])
        for part, together in zip(states(end), states(state), strict=True):
            torch.testing.assert_close(part[:, 0], together[:, row])


def test_a_row_of_no_steps_keeps_the_state_it_started_with(build: Callable[..., Network]) -> None:
    network = build(2, 3, 2, True)
    like = states(network(torch.randn(2, 4, 2))[1])
    start = tuple(torch.rand_like(part) for part in like)
    given = start if len(start) > 1 else start[0]
    outputs, state = network(torch.randn(2, 4, 2), torch.tensor([4, 0]), given)
    assert (outputs[1] == 0).all()
    for before, after in zip(start, states(state), strict=True):
        assert torch.equal(after[:, 1], before[:, 1])
        assert not torch.equal(after[:, 0], before[:, 0])


def test_no_steps_at_all_are_answered_too(build: Callable[..., Network]) -> None:
    outputs, state = build(2, 3)(torch.zeros(2, 0, 2))
    assert outputs.shape == (2, 0, 3)
    assert all((part == 0).all() for part in states(state))


@pytest.mark.parametrize("options", [{}, {"residual": True}, {"layer_norm": True}, {"learned_start": True}])
def test_steps_chained_equal_the_whole(build: Callable[..., Network], options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    network = build(2, 3, 2, **options).double()
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    stack = network.stack
    assert isinstance(stack, Stack)
    outputs, final = stack(x)
    state = stack.start(2, x)
    for time in range(5):
        output, state = stack.step(stack.project(x[:, time]), state, stack.masks(2, x))
        torch.testing.assert_close(output, outputs[:, time])
    torch.testing.assert_close(state, final)


def test_state_goes_in_and_comes_out(build: Callable[..., Network]) -> None:
    network = build(2, 3, 2).double()
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    whole, end = network(x)
    first, state = network(x[:, :4])
    second, last = network(x[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, end)


def test_residual_layers_add_to_what_they_are_given() -> None:
    torch.manual_seed(0)
    residual = regard.GRU(2, 3, 2, True, residual=True)
    plain = regard.GRU(2, 3, 2, True)
    plain.load_state_dict(residual.state_dict())
    lower = regard.GRU(2, 3, 1, True)
    lower.load_state_dict({key: value for key, value in plain.state_dict().items() if key in lower.state_dict()})
    x = torch.randn(4, 6, 2)
    torch.testing.assert_close(residual(x, LENGTHS)[0], plain(x, LENGTHS)[0] + lower(x, LENGTHS)[0])


def test_a_learned_start_is_learned_and_used() -> None:
    torch.manual_seed(0)
    network = regard.LSTM(2, 3, 2, True, learned_start=True)
    start = network.stack.learned_start
    assert start is not None
    x = torch.randn(4, 6, 2)
    before = network(x)[0]
    torch.nn.init.normal_(start)
    h, c = start.detach().view(4, 2, 3).unbind(1)
    given = tuple(part.unsqueeze(1).expand(-1, 4, -1) for part in (h, c))
    after = network(x)[0]
    assert not torch.equal(before, after)
    plain = regard.LSTM(2, 3, 2, True)
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if k != "stack.learned_start"})
    torch.testing.assert_close(after, plain(x, state=given)[0])
    after.sum().backward()
    assert start.grad is not None
    assert (start.grad != 0).all()


def test_dropout_lies_between_layers_and_sleeps_in_evaluation() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 2)
    deep, shallow = regard.GRU(2, 3, 2, dropout=0.5), regard.GRU(2, 3, 1, dropout=0.5)
    assert not torch.equal(deep(x)[0], deep(x)[0])
    assert torch.equal(shallow(x)[0], shallow(x)[0])
    deep.eval()
    assert torch.equal(deep(x)[0], deep(x)[0])


def test_variational_dropout_has_one_mask_for_all_steps(build: Callable[..., Network]) -> None:
    """The whole equals steps with one drawing of masks; and unlike plain dropout, it reaches a single layer's state."""
    network = build(2, 8, 2, dropout=0.5, variational=True).double()
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    stack = network.stack
    torch.manual_seed(1)
    outputs, _ = stack(x)
    torch.manual_seed(1)
    masks = stack.masks(3, x)
    state = stack.start(3, x)
    for time in range(5):
        output, state = stack.step(stack.project(x[:, time]), state, masks)
        torch.testing.assert_close(output, outputs[:, time])
    for mask in masks:
        assert mask.keep_BH is not None
        assert set(mask.keep_BH.unique().tolist()) <= {0.0, 2.0}
    shallow = build(2, 8, dropout=0.5, variational=True)
    x = torch.randn(3, 5, 2)
    assert not torch.equal(shallow(x)[0], shallow(x)[0])
    shallow.eval()
    assert torch.equal(shallow(x)[0], shallow(x)[0])


def test_half_precision_runs(build: Callable[..., Network]) -> None:
    network = build(4, 8, 2, True).bfloat16()
    x = torch.randn(3, 5, 4)
    exact = build(4, 8, 2, True)
    exact.load_state_dict(network.state_dict())
    outputs, _ = network(x.bfloat16(), torch.tensor([5, 2, 4]))
    outputs.sum().backward()
    torch.testing.assert_close(outputs.float(), exact(x, torch.tensor([5, 2, 4]))[0], rtol=0.1, atol=0.05)
