"""Every fast path against the plain scan: outputs, states and gradients, for every cell and every form of LSTM."""

import itertools
from collections.abc import Callable
from typing import Any, final

import pytest
import torch
from torch import Tensor

import regard
from regard.ops.reference_mode import reference_mode
from regard.recurrent import dispatch, scan
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell, masked
from regard.recurrent.fast import cudnn
from regard.recurrent.settings import VARIANTS, LSTMVariant

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FUSED_DEVICE = DEVICES[-1]
"""Without a GPU the Triton kernels are interpreted, on the CPU."""

SMALL: dict[str, Callable[[], Cell]] = {
    "rnn": lambda: RNNCell(3, 5),
    "rnn relu": lambda: RNNCell(3, 5, "relu"),
    "gru": lambda: GRUCell(3, 5),
    "gru before": lambda: GRUCell(3, 5, "before"),
    "lstm": lambda: LSTMCell(3, 5),
    **{name: lambda form=form: LSTMCell(3, 5, form) for name, form in VARIANTS.items()},  # type: ignore[misc]
}


def every_form() -> list[LSTMVariant]:
    """All combinations of the switches that make a cell."""
    switch, activation = (False, True), ("tanh", "identity")
    values = (switch, switch, switch, switch, activation, activation, switch, switch)
    forms = [LSTMVariant(*chosen) for chosen in itertools.product(*values)]  # type: ignore[arg-type]
    return [form for form in forms if form.contradiction() is None]


Path = Callable[[list[scan.Lane], Tensor | None], list[scan.Swept]]


def answers(
    cells: list[Cell],
    x: Tensor,
    starts: list[tuple[Tensor, ...]],
    run: Path,
    lengths: Tensor | None,
    keeps: list[Tensor | None],
) -> list[Tensor]:
    """Outputs, last states, and the gradients of a weighted sum of them with respect to everything."""
    lanes = [scan.Lane(cell, x, s, keep) for cell, s, keep in zip(cells, starts, keeps, strict=True)]
    swept = run(lanes, lengths)
    outputs = [lane.outputs_BTH for lane in swept]
    if lengths is not None:
        beyond = (torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)).unsqueeze(-1)
        outputs = [states.masked_fill(beyond, 0.0) for states in outputs]
    outputs += [part for lane in swept for part in lane.state]
    weights = [torch.arange(output.numel(), device=x.device).view_as(output).sin() for output in outputs]
    loss = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
    given = [x, *(part for start in starts for part in start), *(p for cell in cells for p in cell.parameters())]
    return [*outputs, *torch.autograd.grad(loss, given)]


def reference(lanes: list[scan.Lane], lengths: Tensor | None) -> list[scan.Swept]:
    return [scan.scan(lane, lengths) for lane in lanes]


def compare(
    make: Callable[[], Cell],
    run: Path,
    *,
    device: str = "cpu",
    lengths: list[int] | None = None,
    keep: bool = False,
    lanes: int = 2,
    rows: int = 4,
    steps: int = 7,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> None:
    torch.manual_seed(0)
    cells = [make().to(device, dtype) for _ in range(lanes)]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)

    x = noise(rows, steps, cells[0].input_size)
    # A decoder's start is cut out of what a bridge says of all its parts.
    starts = [noise(rows, sum(cell.parts)).split(cell.parts, dim=1) for cell in cells]
    keeps = [2 * torch.rand(rows, cell.hidden_size).to(x).round() if keep else None for cell in cells]
    ends = None if lengths is None else torch.tensor(lengths, device=device)
    expected = answers(cells, x, starts, reference, ends, keeps)
    found = answers(cells, x, starts, run, ends, keeps)
    for ours, theirs in zip(found, expected, strict=True):
        scale = None if tolerance is None else tolerance * (1 + float(theirs.detach().abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=scale)


def analytic(lanes: list[scan.Lane], lengths: Tensor | None) -> list[scan.Swept]:
    return dispatch.side_by_side(lanes, lengths, fused=False)


def fused(lanes: list[scan.Lane], lengths: Tensor | None) -> list[scan.Swept]:
    return dispatch.side_by_side(lanes, lengths, fused=True)


def by_torch(lanes: list[scan.Lane], lengths: Tensor | None) -> list[scan.Swept]:
    return [cudnn.by_torch(lane, lengths) for lane in lanes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 0, 1, 4]])
@pytest.mark.parametrize("name", SMALL)
def test_the_gradient_worked_out_by_hand_is_right(
    name: str, lengths: list[int] | None, keep: bool, device: str
) -> None:
    compare(SMALL[name], analytic, lengths=lengths, keep=keep, device=device)


def test_it_is_right_for_every_combination_of_switches() -> None:
    forms = every_form()
    assert len(forms) > 100
    for form in forms:
        compare(lambda form=form: LSTMCell(3, 5, form), analytic, lengths=[7, 0, 1, 4])  # type: ignore[misc]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lengths", [None, [7, 0, 1, 4]])
@pytest.mark.parametrize("name", ["rnn", "rnn relu", "gru", "lstm", "NP"])
def test_torchs_own_kernels_agree(name: str, lengths: list[int] | None, dtype: torch.dtype, device: str) -> None:
    """In float32 a CPU takes oneDNN's LSTM; CUDA takes cuDNN's."""
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5 if device == "cpu" else 2e-3}[dtype]
    compare(SMALL[name], by_torch, lengths=lengths, dtype=dtype, device=device, tolerance=tolerance)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_torchs_own_kernels_get_a_start_in_one_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuDNN wants it."""
    kernel_of, given = cudnn._torch_kernel, []

    def watched(cell: Cell) -> Callable[..., Any]:
        def kernel(x: Tensor, start: Any, *rest: Any) -> Any:
            given.extend(start if isinstance(start, list) else [start])
            return kernel_of(cell)(x, start, *rest)

        return kernel

    monkeypatch.setattr(cudnn, "_torch_kernel", watched)
    compare(SMALL[name], by_torch)
    assert given
    assert all(part.is_contiguous() for part in given)


WIDE: dict[str, Callable[[], Cell]] = {
    "gru before": lambda: GRUCell(3, 19, "before"),
    "lstm": lambda: LSTMCell(3, 19),
    **{name: lambda form=form: LSTMCell(3, 19, form) for name, form in VARIANTS.items()},  # type: ignore[misc]
    "bare": lambda: LSTMCell(3, 19, LSTMVariant(False, False, False, False, "identity", "identity")),
    "CIFG FGR": lambda: LSTMCell(3, 19, VARIANTS["FGR"]._replace(coupled=True, output_activation="identity")),
}


@pytest.fixture
def exact() -> None:
    """Products of float32 as float32."""
    before = torch.backends.cudnn.rnn.fp32_precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    yield  # type: ignore[misc]
    torch.backends.cudnn.rnn.fp32_precision = before  # type: ignore[attr-defined]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", WIDE)
def test_the_fused_kernels_agree(name: str, keep: bool) -> None:
    pytest.importorskip("triton")
    compare(
        WIDE[name], fused, keep=keep, lengths=[3, 0, 2], rows=3, steps=3,
        dtype=torch.float32, tolerance=2e-5, device=FUSED_DEVICE,
    )  # fmt: skip


@pytest.mark.skipif(FUSED_DEVICE == "cpu", reason="many programs at once need a GPU")
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("rows", [16, 70, 200])
@pytest.mark.parametrize("name", ["vanilla", "CIFG", "FGR", "gru before"])
def test_the_fused_kernels_agree_when_programs_wait_for_each_other(name: str, rows: int) -> None:
    make: Callable[[], Cell] = lambda: (  # noqa: E731
        GRUCell(64, 400, "before") if name == "gru before" else LSTMCell(64, 400, VARIANTS[name])
    )
    compare(make, fused, rows=rows, steps=40, dtype=torch.float32, tolerance=1e-4, device="cuda")


def test_single_steps_equal_the_cells() -> None:
    torch.manual_seed(0)
    for make in SMALL.values():
        cell = make().double()
        gates = torch.randn(4, cell.width, dtype=torch.float64, requires_grad=True)
        state = tuple(torch.randn(4, width, dtype=torch.float64, requires_grad=True) for width in cell.parts)
        parameters = [weights for name, weights in cell.named_parameters() if not name.endswith("_input")]

        def answer(after: tuple[Tensor, ...], given: list[Tensor]) -> list[Tensor]:
            loss = torch.stack([part.sin().sum() for part in after]).sum()
            return [*after, *torch.autograd.grad(loss, given)]

        given = [gates, *state, *parameters]
        for ours, theirs in zip(
            answer(dispatch.step(cell, gates, state), given), answer(cell.step(gates, state), given), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("rows", "dtype", "tolerance"),
    [(1, torch.float32, 2e-5), (300, torch.float32, 2e-5), (5, torch.float16, 5e-3)],
)
@pytest.mark.parametrize("make", [lambda: GRUCell(3, 7), lambda: LSTMCell(3, 7)], ids=["gru", "lstm"])
def test_fused_steps_equal_the_cells(
    make: Callable[[], Cell], rows: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    cell = make().to(FUSED_DEVICE, dtype)
    kind: dict[str, Any] = {"device": FUSED_DEVICE, "dtype": dtype, "requires_grad": True}
    many = torch.randn(rows, 4, cell.width, **kind)
    state = tuple(torch.randn(rows, width, **kind) for width in cell.parts)
    parameters = [weights for name, weights in cell.named_parameters() if not name.endswith("_input")]

    def answer(step: Callable[..., tuple[Tensor, ...]]) -> list[Tensor]:
        after = step(many[:, 2], state)
        after = step(many[:, 1], after)
        loss = torch.stack([part.sin().sum() for part in after]).sum()
        return [*after, *torch.autograd.grad(loss, [many, *state, *parameters])]

    taken = []
    monkeypatch.setattr(dispatch, "is_usable", lambda gates: taken.append(gates) or True)
    fused_answer = answer(lambda gates, before: dispatch.step(cell, gates, before))
    assert len(taken) == 2
    for ours, theirs in zip(fused_answer, answer(cell.step), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_a_plan_says_why_it_takes_no_faster_path() -> None:
    assert dispatch.dispatch_layer(GRUCell(2, 3), "cpu").path == "analytic"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cpu").path == "torch"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cpu", torch.float64).path == "analytic"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cpu", keep=True).path == "analytic"
    assert dispatch.dispatch_layer(GRUCell(2, 3), "cuda").path == "torch"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cuda", rows=256).path == "torch"
    normalized = dispatch.dispatch_layer(LSTMCell(2, 3, layer_norm=True), "cpu")
    assert normalized.path == "scan"
    assert set(normalized.refused) == {"torch", "fused", "analytic"}
    variant = dispatch.dispatch_layer(LSTMCell(2, 3, VARIANTS["CIFG"]), "cpu")
    assert variant.refused["torch"] == "it knows the usual LSTM only, and this one differs in coupled, peepholes"


def test_with_triton_the_variants_are_fused_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "triton_refusal", lambda: None)
    assert dispatch.dispatch_layer(LSTMCell(2, 3, VARIANTS["FGR"]), "cuda").path == "fused"
    assert dispatch.dispatch_layer(GRUCell(2, 3, "before"), "cuda").path == "fused"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cuda", rows=16).path == "fused"


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([4, 2])
    for build in (
        lambda: regard.RNN(2, 3, 2, True),
        lambda: regard.GRU(2, 3, 2, True),
        lambda: regard.GRU(2, 3, 2, True, reset="before"),
        *(lambda name=name: regard.LSTM(2, 3, variant=name) for name in VARIANTS),
        lambda: regard.LSTM(2, 3, 2, True, layer_norm=True, residual=True),
    ):
        network = build().double()
        x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, network=network: network(x, lengths)[0], (x,))


LINEAR: dict[str, Any] = {"input_activation": "identity", "output_activation": "identity"}
RUNAWAYS: dict[str, Callable[[], Cell]] = {
    "relu": lambda: RNNCell(3, 5, "relu"),
    "linear NOG": lambda: LSTMCell(3, 5, VARIANTS["NOG"]._replace(**LINEAR)),
    "linear NFG": lambda: LSTMCell(3, 5, VARIANTS["NFG"]._replace(**LINEAR)),
}


@pytest.mark.parametrize(
    ("name", "path"), [*((name, "run") for name in RUNAWAYS), ("linear NOG", "fused"), ("linear NFG", "fused")]
)
def test_a_network_that_grows_without_end_stops_at_a_rows_end(name: str, path: str) -> None:
    """In the steps beyond, states would overflow, and 0 · ∞ poison what is learned from the steps before."""
    steps = 400 if path == "run" else 150

    def make() -> Cell:
        cell = RUNAWAYS[name]()
        with torch.no_grad():
            cell.weight_state.copy_(3 * torch.eye(5).repeat(cell.width // 5, 1))
        return cell

    run: Path = (lambda lanes, ends: dispatch.run(lanes, ends)) if path == "run" else fused
    torch.manual_seed(0)
    cell = make().to(FUSED_DEVICE if path == "fused" else "cpu")
    x = torch.rand(2, steps, 3).to(cell.weight_state.device)
    start = cell.start(2, x)
    lengths = torch.tensor([1, 3]).to(x.device)
    [swept] = run([scan.Lane(cell, x, start)], lengths)
    (swept.outputs_BTH[0, :1].sum() + swept.outputs_BTH[1, :3].sum()).backward()
    for parameter in cell.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


def test_second_derivatives_are_refused_but_by_the_plain_scan() -> None:
    x = torch.randn(2, 4, 3, requires_grad=True)
    for network in (regard.GRU(3, 5), regard.RNN(3, 5), regard.LSTM(3, 5, variant="CIFG")):
        with pytest.raises(regard.ConfigError, match="Second derivatives"):
            torch.autograd.grad(network(x)[0].sum(), x, create_graph=True)
        with reference_mode():
            [gradient] = torch.autograd.grad(network(x)[0].sum(), x, create_graph=True)
        gradient.square().sum().backward()
        assert all(parameter.grad is not None for parameter in network.parameters())


@final
class Leaky(Cell):
    """A cell of one's own: h' = h / 2 + W x + R h."""

    def step(self, gates_BG: Tensor, state: tuple[Tensor, ...], keep_BH: Tensor | None = None) -> tuple[Tensor, ...]:
        return (state[0] / 2 + gates_BG + self.recur(masked(state[0], keep_BH)),)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cell_of_ones_own_runs_on_the_plain_scan(device: str) -> None:
    cell = Leaky(3, 5, 5, layer_norm=False)
    plan = dispatch.dispatch_layer(cell, device)
    assert plan.path == "scan"
    assert plan.refused["analytic"] == "none has been worked out for Leaky"
    x = torch.randn(2, 4, 3)
    [swept] = dispatch.run([scan.Lane(cell, x, cell.start(2, x))], None)
    [after] = dispatch.step(cell, cell.project(x[:, 0]), cell.start(2, x))
    torch.testing.assert_close(after, swept.outputs_BTH[:, 0])
