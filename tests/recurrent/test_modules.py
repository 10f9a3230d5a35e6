"""The public RNN, GRU and LSTM: equal to those of torch.nn, and their additional features."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.recurrent.cells import Cell
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
    **{name: lambda *sizes, name=name, **options: regard.LSTM(*sizes, variant=name, **options) for name in VARIANTS},
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
    """Outputs, states, and the gradients of all weights are equal, to 1e-6."""
    torch.manual_seed(0)
    network_type, torch_type, _, options = KINDS[kind]
    module = torch_type(5, 7, layers, bidirectional=bidirectional, batch_first=True, **options).double()  # type: ignore[arg-type]
    network = network_type.from_torch(module)
    x_torch = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    x = x_torch.detach().clone().requires_grad_()
    outputs, state = network(x, lengths=lengths)
    if lengths is None:
        expected, final = module(x_torch)
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x_torch, lengths, batch_first=True, enforce_sorted=False)
        packed_outputs, final = module(packed)
        expected, _ = nn.utils.rnn.pad_packed_sequence(packed_outputs, batch_first=True, total_length=6)
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-9)
    for part, reference in zip(states(state), states(final), strict=True):
        torch.testing.assert_close(part, reference, rtol=1e-6, atol=1e-9)
    weights = torch.randn_like(expected)
    for results, last in ((outputs, state), (expected, final)):
        ((results * weights).sum() + sum(part.square().sum() for part in states(last))).backward()
    torch.testing.assert_close(x.grad, x_torch.grad, rtol=1e-6, atol=1e-9)
    # Convert the gradients to the layout of torch.nn in the same way as the weights.
    for parameter in network.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    gradients = network.to_torch()
    for name, parameter in module.named_parameters():
        has_one_bias = name.startswith("bias_hh") and not isinstance(network, regard.GRU)
        if not has_one_bias:
            torch.testing.assert_close(getattr(gradients, name).data, parameter.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_convert_to_torch_and_back(kind: str) -> None:
    torch.manual_seed(0)
    network_type, _, options, _ = KINDS[kind]
    network = network_type(5, 7, 2, True, **options)
    module = network.to_torch()
    x = torch.randn(4, 6, 5)
    torch.testing.assert_close(module(x)[0], network(x)[0])
    converted = network_type.from_torch(module)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(converted.get_parameter(name), parameter)


def test_from_torch_accepts_a_network_without_biases_or_batch_first() -> None:
    module = nn.LSTM(5, 7, bias=False)
    x = torch.randn(6, 4, 5)
    torch.testing.assert_close(regard.LSTM.from_torch(module)(x.transpose(0, 1))[0].transpose(0, 1), module(x)[0])


def test_unsupported_conversions_are_rejected() -> None:
    with pytest.raises(regard.ConfigError, match="differs in coupled, peepholes"):
        regard.LSTM(2, 3, variant="CIFG").to_torch()
    with pytest.raises(regard.ConfigError, match=r"torch\.nn resets after"):
        regard.GRU(2, 3, reset="before").to_torch()
    with pytest.raises(regard.ConfigError, match=r"torch\.nn does not support layer_norm, residual"):
        regard.GRU(2, 3, layer_norm=True, residual=True).to_torch()
    with pytest.raises(regard.ArgumentTypeError, match=r"expects a torch\.nn\.LSTM"):
        regard.LSTM.from_torch(nn.GRU(2, 3))
    with pytest.raises(regard.ConfigError, match="proj_size"):
        regard.LSTM.from_torch(nn.LSTM(2, 3, proj_size=2))


def test_invalid_arguments_are_rejected_with_a_clear_message() -> None:
    with pytest.raises(regard.ConfigError, match=r"expects input of shape \(rows, steps, 2\), got \(4, 5, 3\)"):
        regard.GRU(2, 3)(torch.zeros(4, 5, 3))
    with pytest.raises(regard.ConfigError, match="Did you mean 'CIFG'"):
        regard.LSTM(2, 3, variant="CIGF")
    with pytest.raises(regard.ConfigError, match="Did you mean 'peepholes'"):
        regard.LSTM(2, 3, peephole=True)  # type: ignore[call-arg]
    with pytest.raises(regard.ConfigError, match="dropout"):
        regard.GRU(2, 3, dropout=1.5)
    with pytest.raises(regard.ConfigError, match=r"has no option 'num_layers'\. Did you mean 'layers'"):
        regard.LSTM(2, 3, num_layers=2)  # type: ignore[call-arg]
    with pytest.raises(regard.ConfigError, match="has no option 'kind'"):
        regard.LSTM(2, 3, kind="gru")  # type: ignore[call-arg]
    with pytest.raises(regard.ArgumentTypeError, match="bidirectional must be True or False"):
        regard.LSTM(2, 3, 2, 0.5)  # type: ignore[arg-type]
    with pytest.raises(regard.ConfigError, match="input_size"):
        regard.RNN(0, 3)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1.0, 2.0]), "one integer"),
        (torch.tensor([3]), "each of the 2 rows"),
        ([3, 6], "between 0 and the number of steps, 5"),
        ([3, -1], "between 0 and the number of steps, 5"),
    ],
)
def test_invalid_lengths_are_rejected(lengths: Any, message: str, build: Callable[..., Network]) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        build(2, 3)(torch.zeros(2, 5, 2), lengths=lengths)


def test_lengths_may_be_a_list(build: Callable[..., Network]) -> None:
    network, x = build(2, 3), torch.randn(2, 5, 2)
    assert torch.equal(network(x, lengths=[5, 2])[0], network(x, lengths=torch.tensor([5, 2]))[0])


def test_a_state_of_another_shape_is_rejected(build: Callable[..., Network]) -> None:
    network, x = build(2, 3), torch.randn(2, 5, 2)
    parts = states(network(x)[1])
    invalid = [
        tuple(part[:, :1] for part in parts),
        tuple(part[..., :1] for part in parts),
        tuple(part.repeat(2, 1, 1) for part in parts),
        (*parts, parts[0]),
        tuple(part.double() for part in parts),
    ]
    for state in invalid:
        with pytest.raises(regard.ConfigError, match="state"):
            network(x, state=state)


def test_an_empty_batch_gives_empty_outputs(build: Callable[..., Network]) -> None:
    outputs, state = build(2, 3, 2, True)(torch.zeros(0, 5, 2), lengths=[])
    assert outputs.shape == (0, 5, 6)
    assert all(part.shape[1] == 0 for part in states(state))


def test_autocast_runs_forward_and_backward(build: Callable[..., Network]) -> None:
    torch.manual_seed(0)
    network, x = build(4, 8, 2, True), torch.randn(3, 5, 4)
    expected, _ = network(x, lengths=[5, 2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = network(x, lengths=[5, 2, 4])
        network(x, state=state)
    torch.testing.assert_close(outputs.float(), expected, rtol=0.1, atol=0.05)
    outputs.float().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_both_directions_share_the_dropout_between_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = regard.GRU(2, 3, 2, True, dropout=0.5)
    inputs: list[Tensor] = []

    def record_input(project: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        inputs.append(x)
        return project(x)

    for cell in list(network.stack.cells)[2:]:
        assert isinstance(cell, Cell)
        monkeypatch.setattr(cell, "project", partial(record_input, cell.project))
    network(torch.randn(4, 6, 2))
    forward, backward = inputs
    torch.testing.assert_close(forward, backward.flip(0) if forward.shape[0] == 6 else backward.flip(1))


def test_the_repr_shows_the_cell() -> None:
    assert "LSTMCell(2, 3, coupled=True, peepholes=True)" in repr(regard.LSTM(2, 3, variant="CIFG"))
    assert "GRUCell(2, 3, reset=before)" in repr(regard.GRU(2, 3, reset="before"))


def test_the_state_has_the_layout_of_torch() -> None:
    x = torch.randn(4, 6, 5)
    outputs, (h, c) = regard.LSTM(5, 7, 2, True)(x)
    assert (outputs.shape, h.shape, c.shape) == ((4, 6, 14), (4, 4, 7), (4, 4, 7))
    outputs, h = regard.GRU(5, 7, 2)(x)
    assert (outputs.shape, h.shape) == ((4, 6, 7), (2, 4, 7))
    torch.testing.assert_close(outputs[:, -1], h[-1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("options", [{}, {"residual": True}, {"layer_norm": True}, {"learned_initial_state": True}])
def test_padding_has_no_effect(build: Callable[..., Network], options: dict[str, bool], bidirectional: bool) -> None:
    """Not even NaN has an effect on outputs and gradients."""
    torch.manual_seed(0)
    network = build(2, 3, 2, bidirectional, **options)
    x = torch.randn(4, 6, 2)
    poisoned = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        poisoned[row, length:] = float("nan")
    results = []
    for inputs in (x, poisoned):
        network.zero_grad()
        outputs, state = network(inputs, lengths=LENGTHS)
        (outputs.sin().sum() + sum(part.cos().sum() for part in states(state))).backward()
        results.append([outputs, *states(state), *(parameter.grad for parameter in network.parameters())])
    for clean, padded_with_nan in zip(*results, strict=True):
        assert torch.equal(clean, padded_with_nan)
    padding = torch.arange(6) >= LENGTHS.unsqueeze(1)
    assert (results[0][0][padding] == 0).all()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_gives_the_same_result_alone_and_in_a_batch(build: Callable[..., Network], bidirectional: bool) -> None:
    torch.manual_seed(0)
    network = build(2, 3, 2, bidirectional).double()
    x = torch.randn(4, 6, 2, dtype=torch.float64)
    outputs, state = network(x, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone, final = network(x[row : row + 1, :length])
        torch.testing.assert_close(alone[0], outputs[row, :length])
        for part, batched in zip(states(final), states(state), strict=True):
            torch.testing.assert_close(part[:, 0], batched[:, row])


def test_a_row_of_length_0_keeps_its_initial_state(build: Callable[..., Network]) -> None:
    network = build(2, 3, 2, True)
    like = states(network(torch.randn(2, 4, 2))[1])
    initial = tuple(torch.rand_like(part) for part in like)
    outputs, state = network(torch.randn(2, 4, 2), torch.tensor([4, 0]), initial if len(initial) > 1 else initial[0])
    assert (outputs[1] == 0).all()
    for before, after in zip(initial, states(state), strict=True):
        assert torch.equal(after[:, 1], before[:, 1])
        assert not torch.equal(after[:, 0], before[:, 0])


def test_an_input_without_steps_gives_empty_outputs(build: Callable[..., Network]) -> None:
    outputs, state = build(2, 3)(torch.zeros(2, 0, 2))
    assert outputs.shape == (2, 0, 3)
    assert all((part == 0).all() for part in states(state))


@pytest.mark.parametrize("options", [{}, {"residual": True}, {"layer_norm": True}, {"learned_initial_state": True}])
def test_forward_equals_chained_steps(build: Callable[..., Network], options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    network = build(2, 3, 2, **options).double()
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    stack = network.stack
    assert isinstance(stack, Stack)
    outputs, final = stack(x)
    state = stack.init_state(2, x)
    for time in range(5):
        output, state = stack.step(stack.project(x[:, time]), state, stack.sample_masks(2, x))
        torch.testing.assert_close(output, outputs[:, time])
    torch.testing.assert_close(state, final)


def test_a_sequence_can_be_split_and_continued_with_the_state(build: Callable[..., Network]) -> None:
    network = build(2, 3, 2).double()
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    outputs, final = network(x)
    first, state = network(x[:, :4])
    second, last = network(x[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), outputs)
    torch.testing.assert_close(last, final)


def test_residual_layers_add_their_input() -> None:
    torch.manual_seed(0)
    residual = regard.GRU(2, 3, 2, True, residual=True)
    plain = regard.GRU(2, 3, 2, True)
    plain.load_state_dict(residual.state_dict())
    lower = regard.GRU(2, 3, 1, True)
    lower.load_state_dict({key: value for key, value in plain.state_dict().items() if key in lower.state_dict()})
    x = torch.randn(4, 6, 2)
    torch.testing.assert_close(residual(x, LENGTHS)[0], plain(x, LENGTHS)[0] + lower(x, LENGTHS)[0])


def test_a_learned_initial_state_is_used_and_receives_gradients() -> None:
    torch.manual_seed(0)
    network = regard.LSTM(2, 3, 2, True, learned_initial_state=True)
    learned = network.stack.learned_initial_state
    assert learned is not None
    x = torch.randn(4, 6, 2)
    before = network(x)[0]
    torch.nn.init.normal_(learned)
    h, c = learned.detach().view(4, 2, 3).unbind(1)
    state = tuple(part.unsqueeze(1).expand(-1, 4, -1) for part in (h, c))
    after = network(x)[0]
    assert not torch.equal(before, after)
    plain = regard.LSTM(2, 3, 2, True)
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if k != "stack.learned_initial_state"})
    torch.testing.assert_close(after, plain(x, state=state)[0])
    after.sum().backward()
    assert learned.grad is not None
    assert (learned.grad != 0).all()


def test_dropout_is_applied_between_layers_and_only_in_training() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 2)
    deep, shallow = regard.GRU(2, 3, 2, dropout=0.5), regard.GRU(2, 3, 1, dropout=0.5)
    assert not torch.equal(deep(x)[0], deep(x)[0])
    assert torch.equal(shallow(x)[0], shallow(x)[0])
    deep.eval()
    assert torch.equal(deep(x)[0], deep(x)[0])


def test_variational_dropout_uses_one_mask_for_all_steps(build: Callable[..., Network]) -> None:
    """`forward` equals chained steps with the same masks. Unlike ordinary dropout, it applies to a single layer."""
    network = build(2, 8, 2, dropout=0.5, variational=True).double()
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    stack = network.stack
    torch.manual_seed(1)
    outputs, _ = stack(x)
    torch.manual_seed(1)
    masks = stack.sample_masks(3, x)
    state = stack.init_state(3, x)
    for time in range(5):
        output, state = stack.step(stack.project(x[:, time]), state, masks)
        torch.testing.assert_close(output, outputs[:, time])
    for mask in masks:
        assert mask.state_BH is not None
        assert set(mask.state_BH.unique().tolist()) <= {0.0, 2.0}  # type: ignore[no-untyped-call]
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
