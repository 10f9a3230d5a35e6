"""Every fast path against the reference scan: outputs, states and gradients, for every cell and LSTM variant."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, final

import pytest
import torch
from torch import Tensor

import regard
from regard.ops import reference_mode as modes
from regard.ops.reference_mode import reference_mode
from regard.recurrent import dispatch, scan
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell, apply_mask
from regard.recurrent.fast import cudnn, kernels
from regard.recurrent.fast.kernels import KERNELS
from regard.recurrent.settings import VARIANTS, LSTMVariant

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FUSED_DEVICE = DEVICES[-1]
"""Without a GPU, the Triton interpreter runs the kernels on the CPU."""

SMALL: dict[str, Callable[[], Cell]] = {
    "rnn": lambda: RNNCell(3, 5),
    "rnn relu": lambda: RNNCell(3, 5, "relu"),
    "gru": lambda: GRUCell(3, 5),
    "gru before": lambda: GRUCell(3, 5, "before"),
    "lstm": lambda: LSTMCell(3, 5),
    **{name: lambda variant=variant: LSTMCell(3, 5, variant) for name, variant in VARIANTS.items()},  # type: ignore[misc]
}


def all_variants() -> list[LSTMVariant]:
    """Return all combinations of switches without a contradiction."""
    switch, activation = (False, True), ("tanh", "identity")
    values = (switch, switch, switch, switch, activation, activation, switch, switch)
    variants = [LSTMVariant(*switches) for switches in itertools.product(*values)]  # type: ignore[arg-type]
    return [variant for variant in variants if variant.find_contradiction() is None]


def describe(variant: LSTMVariant) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.non_default.items()) or "standard"


Path = Callable[[list[scan.CellInput], Tensor | None], list[scan.ScanOutput]]


def outputs_and_gradients(
    cells: list[Cell],
    x: Tensor,
    initial: list[tuple[Tensor, ...]],
    run: Path,
    lengths: Tensor | None,
    masks: list[Tensor | None],
) -> list[Tensor]:
    """Return outputs, final states, and the gradients of a weighted sum of them with respect to all inputs."""
    inputs = [scan.CellInput(cell, x, state, mask) for cell, state, mask in zip(cells, initial, masks, strict=True)]
    scanned = run(inputs, lengths)
    outputs = [output.outputs_BTH for output in scanned]
    if lengths is not None:
        padding = (torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)).unsqueeze(-1)
        outputs = [states.masked_fill(padding, 0.0) for states in outputs]
    outputs += [part for output in scanned for part in output.state]
    weights = [torch.arange(output.numel(), device=x.device).view_as(output).sin() for output in outputs]
    loss = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
    leaves = [x, *(part for state in initial for part in state), *(p for cell in cells for p in cell.parameters())]
    return [*outputs, *torch.autograd.grad(loss, leaves)]


def reference(inputs: list[scan.CellInput], lengths: Tensor | None) -> list[scan.ScanOutput]:
    return [scan.scan(cell_input, lengths) for cell_input in inputs]


def compare(
    make: Callable[[], Cell],
    run: Path,
    *,
    device: str = "cpu",
    lengths: list[int] | None = None,
    state_dropout: bool = False,
    directions: int = 2,
    rows: int = 4,
    steps: int = 7,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> None:
    torch.manual_seed(0)
    cells = [make().to(device, dtype) for _ in range(directions)]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)

    x = noise(rows, steps, cells[0].input_size)
    # Slices of one tensor, like the initial state of a decoder, which is split from the output of the bridge.
    initial = [noise(rows, sum(cell.state_sizes)).split(cell.state_sizes, dim=1) for cell in cells]  # type: ignore[no-untyped-call]
    masks = [2 * torch.rand(rows, cell.hidden_size).to(x).round() if state_dropout else None for cell in cells]
    lengths_B = None if lengths is None else torch.tensor(lengths, device=device)
    references = outputs_and_gradients(cells, x, initial, reference, lengths_B, masks)
    for actual, expected in zip(
        outputs_and_gradients(cells, x, initial, run, lengths_B, masks), references, strict=True
    ):
        atol = None if tolerance is None else tolerance * (1 + float(expected.detach().abs().max()))
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=atol)


def analytic(inputs: list[scan.CellInput], lengths: Tensor | None) -> list[scan.ScanOutput]:
    return dispatch.scan_in_parallel(inputs, lengths, fused=False)


def fused(inputs: list[scan.CellInput], lengths: Tensor | None) -> list[scan.ScanOutput]:
    return dispatch.scan_in_parallel(inputs, lengths, fused=True)


def torch_kernels(inputs: list[scan.CellInput], lengths: Tensor | None) -> list[scan.ScanOutput]:
    return [cudnn.scan_torch(cell_input, lengths) for cell_input in inputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state_dropout", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 0, 1, 4]])
@pytest.mark.parametrize("name", SMALL)
def test_analytic_gradients_equal_autograd(
    name: str, lengths: list[int] | None, state_dropout: bool, device: str
) -> None:
    compare(SMALL[name], analytic, lengths=lengths, state_dropout=state_dropout, device=device)


def test_there_are_many_combinations_of_switches() -> None:
    assert len(all_variants()) > 100


@pytest.mark.parametrize("variant", all_variants(), ids=describe)
def test_analytic_gradients_equal_autograd_for_every_combination_of_switches(variant: LSTMVariant) -> None:
    compare(lambda: LSTMCell(3, 5, variant), analytic, lengths=[7, 0, 1, 4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lengths", [None, [7, 0, 1, 4]])
@pytest.mark.parametrize("name", ["rnn", "rnn relu", "gru", "lstm", "NP"])
def test_torch_kernels_agree(name: str, lengths: list[int] | None, dtype: torch.dtype, device: str) -> None:
    """In float32 a CPU uses the LSTM of oneDNN; CUDA uses cuDNN."""
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5 if device == "cpu" else 2e-3}[dtype]
    compare(SMALL[name], torch_kernels, lengths=lengths, dtype=dtype, device=device, tolerance=tolerance)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_torch_kernels_receive_a_contiguous_initial_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As required by cuDNN."""
    cell_kernels = KERNELS[type(SMALL[name]())]
    torch_kernel, received = cell_kernels.torch_kernel, []

    def recording_kernel(cell: Cell) -> Callable[..., Any]:
        def kernel(x: Tensor, hx: Any, *rest: Any) -> Any:
            received.extend(hx if isinstance(hx, list) else [hx])
            return torch_kernel(cell)(x, hx, *rest)

        return kernel

    monkeypatch.setattr(cell_kernels, "torch_kernel", recording_kernel)
    compare(SMALL[name], torch_kernels)
    assert received
    assert all(part.is_contiguous() for part in received)


WIDE: dict[str, Callable[[], Cell]] = {
    "rnn": lambda: RNNCell(3, 19),
    "rnn relu": lambda: RNNCell(3, 19, "relu"),
    "gru": lambda: GRUCell(3, 19),
    "gru before": lambda: GRUCell(3, 19, "before"),
    "lstm": lambda: LSTMCell(3, 19),
    **{name: lambda variant=variant: LSTMCell(3, 19, variant) for name, variant in VARIANTS.items()},  # type: ignore[misc]
    "bare": lambda: LSTMCell(3, 19, LSTMVariant(False, False, False, False, "identity", "identity")),
    "layer norm": lambda: LSTMCell(3, 19, layer_norm=True),
    "layer norm, CIFG": lambda: LSTMCell(3, 19, VARIANTS["CIFG"], layer_norm=True),
    "layer norm, NOAF": lambda: LSTMCell(3, 19, VARIANTS["NOAF"], layer_norm=True),
    "CIFG FGR": lambda: LSTMCell(3, 19, VARIANTS["FGR"]._replace(coupled=True, output_activation="identity")),
}


@pytest.fixture
def exact() -> Iterator[None]:
    """Compute products of float32 matrices in float32, without TF32."""
    before = torch.backends.cudnn.rnn.fp32_precision  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    yield
    torch.backends.cudnn.rnn.fp32_precision = before  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["rnn", "gru", "gru before", "vanilla", "FGR"])
def test_fused_kernels_agree_if_the_weights_do_not_fit_into_shared_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton_launch = pytest.importorskip("regard.recurrent.fast.triton_launch")
    monkeypatch.setattr(triton_launch, "SHARED_BYTES", 1)
    compare(
        WIDE[name], fused, lengths=[3, 0, 2], rows=3, steps=3,
        dtype=torch.float32, tolerance=2e-5, device=FUSED_DEVICE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("state_dropout", [False, True])
@pytest.mark.parametrize("name", WIDE)
def test_fused_kernels_agree(name: str, state_dropout: bool) -> None:
    pytest.importorskip("triton")
    compare(
        WIDE[name], fused, state_dropout=state_dropout, lengths=[3, 0, 2], rows=3, steps=3,
        dtype=torch.float32, tolerance=2e-5, device=FUSED_DEVICE,
    )  # fmt: skip


CONCURRENT: dict[str, Callable[[], Cell]] = {
    "rnn": lambda: RNNCell(64, 400),
    "gru": lambda: GRUCell(64, 400),
    "gru before": lambda: GRUCell(64, 400, "before"),
    "layer norm": lambda: LSTMCell(64, 400, layer_norm=True),
    **{name: lambda name=name: LSTMCell(64, 400, VARIANTS[name]) for name in ("vanilla", "CIFG", "FGR")},  # type: ignore[misc]
}


@pytest.mark.skipif(FUSED_DEVICE == "cpu", reason="concurrent programs need a GPU")
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("rows", [16, 70, 200])
@pytest.mark.parametrize("name", CONCURRENT)
def test_fused_kernels_agree_when_programs_wait_for_each_other(name: str, rows: int) -> None:
    compare(CONCURRENT[name], fused, rows=rows, steps=40, dtype=torch.float32, tolerance=1e-4, device="cuda")


@pytest.mark.parametrize("name", SMALL)
def test_single_steps_equal_the_cell(name: str) -> None:
    torch.manual_seed(0)
    cell = SMALL[name]().double()
    gates = torch.randn(4, cell.width, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(4, width, dtype=torch.float64, requires_grad=True) for width in cell.state_sizes)
    parameters = [weights for name, weights in cell.named_parameters() if not name.endswith("_input")]

    def state_and_gradients(next_state: tuple[Tensor, ...]) -> list[Tensor]:
        loss = torch.stack([part.sin().sum() for part in next_state]).sum()
        return [*next_state, *torch.autograd.grad(loss, [gates, *state, *parameters])]

    references = state_and_gradients(cell.step(gates, state))
    for actual, expected in zip(state_and_gradients(dispatch.step(cell, gates, state)), references, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("rows", "dtype", "tolerance"),
    [(1, torch.float32, 2e-5), (300, torch.float32, 2e-5), (5, torch.float16, 5e-3)],
)
@pytest.mark.parametrize("make", [lambda: GRUCell(3, 7), lambda: LSTMCell(3, 7)], ids=["gru", "lstm"])
def test_fused_steps_equal_the_cell(
    make: Callable[[], Cell], rows: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    cell = make().to(FUSED_DEVICE, dtype)
    options: dict[str, Any] = {"device": FUSED_DEVICE, "dtype": dtype, "requires_grad": True}
    gates_BTG = torch.randn(rows, 4, cell.width, **options)
    state = tuple(torch.randn(rows, width, **options) for width in cell.state_sizes)
    parameters = [weights for name, weights in cell.named_parameters() if not name.endswith("_input")]

    def state_and_gradients(step: Callable[..., tuple[Tensor, ...]]) -> list[Tensor]:
        next_state = step(gates_BTG[:, 2], state)
        next_state = step(gates_BTG[:, 1], next_state)
        loss = torch.stack([part.sin().sum() for part in next_state]).sum()
        return [*next_state, *torch.autograd.grad(loss, [gates_BTG, *state, *parameters])]

    calls: list[Tensor] = []

    def is_usable(gates: Tensor) -> bool:
        calls.append(gates)
        return True

    monkeypatch.setattr(kernels, "is_usable", is_usable)
    fused_results = state_and_gradients(lambda gates, previous: dispatch.step(cell, gates, previous))
    assert len(calls) == 2
    for actual, expected in zip(fused_results, state_and_gradients(cell.step), strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("onednn", [True, False])
def test_the_standard_lstm_uses_onednn_where_it_is_fast(monkeypatch: pytest.MonkeyPatch, onednn: bool) -> None:
    monkeypatch.setattr(modes, "keeps_onednn", lambda **_: onednn)
    choice = dispatch.dispatch_layer(LSTMCell(2, 3), "cpu")
    assert choice.path == ("torch" if onednn else "analytic")
    assert choice.rejected.get("torch") == (None if onednn else "on this CPU the analytic gradient is faster")


def test_dispatch_reports_why_a_faster_path_is_not_used() -> None:
    assert dispatch.dispatch_layer(GRUCell(2, 3), "cpu").path == "analytic"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cpu", torch.float64).path == "analytic"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cpu", state_dropout=True).path == "analytic"
    assert dispatch.dispatch_layer(LSTMCell(2, 3), "cuda", rows=256).path == "torch"
    normalized = dispatch.dispatch_layer(LSTMCell(2, 3, layer_norm=True), "cpu")
    assert normalized.path == "scan"
    assert set(normalized.rejected) == {"torch", "fused", "analytic"}
    variant = dispatch.dispatch_layer(LSTMCell(2, 3, VARIANTS["CIFG"]), "cpu")
    assert variant.rejected["torch"] == (
        "torch.nn supports only the standard LSTM, and this one differs in coupled, peepholes"
    )


def test_with_triton_cells_use_the_path_that_is_fastest_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "triton_unsupported_reason", lambda: None)
    for cell in (RNNCell(2, 3), GRUCell(2, 3), LSTMCell(2, 3)):
        assert dispatch.dispatch_layer(cell, "cuda", rows=16).path == "fused"
        assert dispatch.dispatch_layer(cell, "cuda", rows=256).path == "torch"
        assert dispatch.dispatch_layer(cell, "cuda", torch.bfloat16, rows=256).path == "fused"
        assert dispatch.dispatch_layer(cell, "cuda", torch.float16, state_dropout=True).path == "fused"
        path = "fused" if isinstance(cell, GRUCell) else "torch"
        assert dispatch.dispatch_layer(cell, "cuda", torch.float16, rows=16).path == path
    assert dispatch.dispatch_layer(RNNCell(2, 2048), "cuda", torch.bfloat16).path == "fused"
    assert dispatch.dispatch_layer(RNNCell(2, 2048), "cuda", torch.float32).path == "torch"
    for cell in (LSTMCell(2, 3, VARIANTS["FGR"]), GRUCell(2, 3, "before"), LSTMCell(2, 3, layer_norm=True)):
        assert dispatch.dispatch_layer(cell, "cuda", torch.float16, rows=256).path == "fused"
    for cell in (GRUCell(2, 3, layer_norm=True), LSTMCell(2, 3, VARIANTS["FGR"], layer_norm=True)):
        assert dispatch.dispatch_layer(cell, "cuda").path == "scan"


NETWORKS: dict[str, Callable[[], regard.RNN | regard.GRU | regard.LSTM]] = {
    "rnn": lambda: regard.RNN(2, 3, 2, True),
    "gru": lambda: regard.GRU(2, 3, 2, True),
    "gru before": lambda: regard.GRU(2, 3, 2, True, reset="before"),
    **{name: lambda name=name: regard.LSTM(2, 3, variant=name) for name in VARIANTS},  # type: ignore[misc]
    "lstm, layer norm": lambda: regard.LSTM(2, 3, 2, True, layer_norm=True, residual=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_equal_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]().double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: network(x, torch.tensor([4, 2]))[0], (x,))


LINEAR: dict[str, Any] = {"input_activation": "identity", "output_activation": "identity"}
UNBOUNDED: dict[str, Callable[[], Cell]] = {
    "relu": lambda: RNNCell(3, 5, "relu"),
    "linear NOG": lambda: LSTMCell(3, 5, VARIANTS["NOG"]._replace(**LINEAR)),
    "linear NFG": lambda: LSTMCell(3, 5, VARIANTS["NFG"]._replace(**LINEAR)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"), [*((name, "dispatch") for name in UNBOUNDED), ("linear NOG", "fused"), ("linear NFG", "fused")]
)
def test_an_unbounded_network_stops_at_the_end_of_a_row(name: str, path: str) -> None:
    """Past the end, states would overflow, and 0 · ∞ would make the gradients of earlier steps NaN."""
    steps = 400 if path == "dispatch" else 150

    def make() -> Cell:
        cell = UNBOUNDED[name]()
        with torch.no_grad():
            cell.weight_state.copy_(3 * torch.eye(5).repeat(cell.width // 5, 1))
        return cell

    run: Path = (lambda inputs, lengths: dispatch.scan_layer(inputs, lengths)) if path == "dispatch" else fused
    torch.manual_seed(0)
    cell = make().to(FUSED_DEVICE if path == "fused" else "cpu")
    x = torch.rand(2, steps, 3).to(cell.weight_state.device)
    lengths = torch.tensor([1, 3]).to(x.device)
    [scanned] = run([scan.CellInput(cell, x, cell.init_state(2, x))], lengths)
    (scanned.outputs_BTH[0, :1].sum() + scanned.outputs_BTH[1, :3].sum()).backward()  # type: ignore[no-untyped-call]
    for parameter in cell.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize(
    "build", [regard.GRU, regard.RNN, lambda *sizes: regard.LSTM(*sizes, variant="CIFG")], ids=["gru", "rnn", "CIFG"]
)
def test_only_the_reference_scan_has_second_derivatives(build: Callable[..., torch.nn.Module]) -> None:
    x, network = torch.randn(2, 4, 3, requires_grad=True), build(3, 5)
    with pytest.raises(regard.ConfigError, match="second derivatives"):
        torch.autograd.grad(network(x)[0].sum(), x, create_graph=True)
    with reference_mode():
        [gradient] = torch.autograd.grad(network(x)[0].sum(), x, create_graph=True)
    gradient.square().sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in network.parameters())


@final
class Leaky(Cell):
    """A custom cell: h' = h / 2 + W x + R h."""

    def step(self, gates_BG: Tensor, state: tuple[Tensor, ...], mask_BH: Tensor | None = None) -> tuple[Tensor, ...]:
        return (state[0] / 2 + gates_BG + self.project_state(apply_mask(state[0], mask_BH)),)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_custom_cell_runs_on_the_reference_scan(device: str) -> None:
    cell = Leaky(3, 5, 5, layer_norm=False)
    choice = dispatch.dispatch_layer(cell, device)
    assert choice.path == "scan"
    assert choice.rejected["analytic"] == "Leaky has no analytic gradient"
    x = torch.randn(2, 4, 3)
    [scanned] = dispatch.scan_layer([scan.CellInput(cell, x, cell.init_state(2, x))], None)
    [output] = dispatch.step(cell, cell.project(x[:, 0]), cell.init_state(2, x))
    torch.testing.assert_close(output, scanned.outputs_BTH[:, 0])


@pytest.mark.parametrize("name", SMALL)
def test_a_cell_with_parametrized_weights_runs_on_the_reference_scan(name: str) -> None:
    torch.manual_seed(0)
    cell = SMALL[name]()
    plain_weight_GH = cell.weight_state.detach().clone()
    torch.nn.utils.parametrizations.weight_norm(cell, "weight_state")
    for device in ("cpu", "cuda"):
        choice = dispatch.dispatch_layer(cell, device)
        assert choice.path == "scan"
        assert set(choice.rejected.values()) == {
            "it does not support parametrized weights, such as those of weight_norm"
        }
    x = torch.randn(2, 4, 3)
    cell_input = scan.CellInput(cell, x, cell.init_state(2, x))
    [scanned] = dispatch.scan_layer([cell_input], torch.tensor([4, 2]))
    [expected] = reference([cell_input], torch.tensor([4, 2]))
    assert torch.equal(scanned.outputs_BTH, expected.outputs_BTH)
    output, *_ = dispatch.step(cell, cell.project(x[:, 0]), cell.init_state(2, x))
    torch.testing.assert_close(output, scanned.outputs_BTH[:, 0])
    torch.testing.assert_close(cell.weight_state, plain_weight_GH)
    gradients = torch.autograd.grad(scanned.outputs_BTH.square().sum(), list(cell.parameters()))
    assert all(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("build", [regard.RNN, regard.GRU, regard.LSTM])
def test_a_network_with_parametrized_weights_converts_to_torch(build: Callable[..., Any]) -> None:
    network, x = build(3, 5, bidirectional=True).eval(), torch.randn(2, 4, 3)
    expected = network(x)[0]
    torch.nn.utils.parametrizations.weight_norm(network.stack.cells[1], "weight_input")
    torch.testing.assert_close(network(x)[0], expected)
    torch.testing.assert_close(network.to_torch()(x)[0], expected)
