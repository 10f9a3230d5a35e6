"""Each cell against its equations, computed with Python floats; and the meaning of the LSTM switches."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.scores import Additive, Location
from regard.config import resolve
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, LSTMNCell, RNNCell
from regard.recurrent.settings import VARIANTS, LSTMVariant, RecurrentSettings

Vector = list[float]
Matrix = list[list[float]]
ODYSSEY = ["vanilla", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR", "simplified"]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def times(matrix: Matrix, x: Vector) -> Vector:
    return [sum(weight * value for weight, value in zip(row, x, strict=True)) for row in matrix]


def add(*vectors: Vector) -> Vector:
    return [sum(values) for values in zip(*vectors, strict=True)]


def numbers(tensor: Tensor) -> list[list[float]]:
    values: list[list[float]] = tensor.detach().tolist()
    return values


def blocks(tensor: Tensor, size: int, names: list[str]) -> dict[str, list[list[float]]]:
    """Split the rows of a matrix by gate."""
    return {name: numbers(rows) for name, rows in zip(names, tensor.split(size), strict=True)}  # type: ignore[no-untyped-call]


def odyssey(
    variant: str, cell: LSTMCell, xs: list[Vector], y: Vector, c: Vector, gates: dict[str, Vector]
) -> list[Vector]:
    """Compute the outputs of a variant from the paper's equations, using only the weights of the cell."""
    size = cell.hidden_size
    names = [name for name in "ifo" if name not in {"NIG": "i", "NFG": "f", "NOG": "o"}.get(variant, "")]
    if variant in {"CIFG", "simplified"}:
        names.remove("f")
    W, R = (blocks(weights, size, [*names, "z"]) for weights in (cell.weight_input, cell.weight_state))
    b = blocks(cell.bias_input.unsqueeze(1), size, [*names, "z"])
    p = {} if cell.peepholes is None else dict(zip(names, numbers(cell.peepholes), strict=True))
    outputs = []

    def preactivation(name: str, x: Vector) -> Vector:
        total = add(times(W[name], x), times(R[name], y), [row[0] for row in b[name]])
        if variant == "FGR" and name != "z":
            assert cell.weight_gates is not None
            rows = cell.weight_gates.split(size)[names.index(name)]  # type: ignore[no-untyped-call]
            for source, matrix in zip(names, rows.split(size, dim=1), strict=True):
                total = add(total, times(numbers(matrix), gates[source]))
        return total

    def add_peephole(name: str, total: Vector, state: Vector) -> Vector:
        return add(total, [weight * value for weight, value in zip(p[name], state, strict=True)]) if p else total

    for x in xs:
        total = {name: preactivation(name, x) for name in [*names, "z"]}
        z = total["z"] if variant == "NIAF" else [math.tanh(value) for value in total["z"]]
        i = [1.0] * size if variant == "NIG" else [sigmoid(value) for value in add_peephole("i", total["i"], c)]
        if variant == "NFG":
            f = [1.0] * size
        elif variant in {"CIFG", "simplified"}:
            f = [1 - value for value in i]
        else:
            f = [sigmoid(value) for value in add_peephole("f", total["f"], c)]
        c = [z[u] * i[u] + c[u] * f[u] for u in range(size)]
        o = [1.0] * size if variant == "NOG" else [sigmoid(value) for value in add_peephole("o", total["o"], c)]
        y = [(c[u] if variant == "NOAF" else math.tanh(c[u])) * o[u] for u in range(size)]
        gates = {"i": i, "f": f, "o": o}
        outputs.append(y)
    return outputs


def run(cell: Cell, x_BTD: Tensor, state: tuple[Tensor, ...]) -> Tensor:
    outputs = []
    for gates_BG in cell.normalize_projection(cell.project(x_BTD)).unbind(1):
        state = cell.step(gates_BG, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("variant", ODYSSEY)
def test_each_variant_equals_its_equations(variant: str) -> None:
    torch.manual_seed(0)
    size = 3
    cell = LSTMCell(2, size, VARIANTS[variant]).double()
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    state = tuple(torch.rand(1, width, dtype=torch.float64) for width in cell.state_sizes)
    gates = dict(zip("ifo", numbers(state[2].view(3, size)), strict=True)) if variant == "FGR" else {}
    expected = odyssey(variant, cell, numbers(x[0]), numbers(state[0])[0], numbers(state[1])[0], gates)
    torch.testing.assert_close(
        run(cell, x, state)[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_the_standard_lstm_is_vanilla_without_peepholes() -> None:
    assert VARIANTS["NP"] == LSTMVariant()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rnn_equals_its_equation(activation: Literal["tanh", "relu"]) -> None:
    cell = RNNCell(2, 3, activation).double()
    x, h = torch.randn(1, 1, 2, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    total = add(
        times(numbers(cell.weight_input), numbers(x[0])[0]),
        times(numbers(cell.weight_state), numbers(h)[0]),
        cell.bias_input.tolist(),
    )
    expected = [math.tanh(value) if activation == "tanh" else max(0.0, value) for value in total]
    torch.testing.assert_close(run(cell, x, (h,))[0, 0], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("reset", ["before", "after"])
def test_gru_equals_its_equations(reset: Literal["before", "after"]) -> None:
    torch.manual_seed(0)
    cell = GRUCell(2, 3, reset).double()
    x, h = torch.randn(1, 1, 2, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    W, R = (blocks(weights, 3, ["r", "z", "n"]) for weights in (cell.weight_input, cell.weight_state))
    bias = cell.bias_input.view(3, 3).tolist()
    bias_state = [[0.0] * 3] * 3 if cell.bias_state is None else cell.bias_state.view(3, 3).tolist()
    h_before, x_0 = numbers(h)[0], numbers(x[0])[0]
    r = [sigmoid(v) for v in add(times(W["r"], x_0), bias[0], times(R["r"], h_before), bias_state[0])]
    z = [sigmoid(v) for v in add(times(W["z"], x_0), bias[1], times(R["z"], h_before), bias_state[1])]
    if reset == "after":
        recurrent = [gate * v for gate, v in zip(r, add(times(R["n"], h_before), bias_state[2]), strict=True)]
    else:
        recurrent = times(R["n"], [gate * v for gate, v in zip(r, h_before, strict=True)])
    n = [math.tanh(v) for v in add(times(W["n"], x_0), bias[2], recurrent)]
    expected = [z[u] * h_before[u] + (1 - z[u]) * n[u] for u in range(3)]
    torch.testing.assert_close(run(cell, x, (h,))[0, 0], torch.tensor(expected, dtype=torch.float64))


def lstmn(cell: LSTMNCell, xs: list[Vector]) -> list[Vector]:
    """Compute the outputs from the equations of Cheng et al. (2016), using only the weights of the cell."""
    score = cell.attention.score
    assert isinstance(score, Additive)
    names = ["i", "f", "o", "c", "q"]
    W, R = (blocks(weights, cell.hidden_size, names) for weights in (cell.weight_input, cell.weight_state))
    b = {name: [row[0] for row in rows] for name, rows in blocks(cell.bias_input.unsqueeze(1), 3, names).items()}
    W_q, W_h, v = numbers(score.query.weight[0]), numbers(score.key.weight[0]), score.v[0].tolist()
    hs: list[Vector] = []
    cs: list[Vector] = []
    read_h, read_c = [0.0] * 3, [0.0] * 3
    for x in xs:
        if hs:
            query = times(W_q, add(times(W["q"], x), times(R["q"], read_h), b["q"]))
            scores = [sum(v_k * math.tanh(u) for v_k, u in zip(v, add(times(W_h, h), query), strict=True)) for h in hs]
            total = sum(math.exp(score) for score in scores)
            weights = [math.exp(score) / total for score in scores]
            read_h, read_c = (
                [sum(a * part[u] for a, part in zip(weights, tape, strict=True)) for u in range(3)] for tape in (hs, cs)
            )
        gate = {name: add(times(W[name], x), times(R[name], read_h), b[name]) for name in "ifoc"}
        cs.append(
            [sigmoid(gate["f"][u]) * read_c[u] + sigmoid(gate["i"][u]) * math.tanh(gate["c"][u]) for u in range(3)]
        )
        hs.append([sigmoid(gate["o"][u]) * math.tanh(cs[-1][u]) for u in range(3)])
    return hs


def test_lstmn_equals_the_equations_of_the_paper() -> None:
    torch.manual_seed(0)
    cell = LSTMNCell(2, 3).double()
    x = torch.randn(1, 6, 2, dtype=torch.float64)
    expected = torch.tensor(lstmn(cell, numbers(x[0])), dtype=torch.float64)
    torch.testing.assert_close(run(cell, x, cell.init_state(1, x))[0], expected, rtol=1e-12, atol=1e-12)


def test_lstmn_that_reads_only_the_last_state_is_a_standard_lstm() -> None:
    """With weights that grow with the slot, softmax selects the last state on the tape."""
    torch.manual_seed(0)
    cell, lstm = LSTMNCell(2, 3, score={"kind": "location", "slots": 9}).double(), LSTMCell(2, 3).double()
    score = cell.attention.score
    assert isinstance(score, Location)
    with torch.no_grad():
        for name in ("weight_input", "weight_state", "bias_input"):
            getattr(lstm, name).copy_(getattr(cell, name)[:12])
        cell.weight_input[12:], cell.weight_state[12:], cell.bias_input[12:] = 0.0, 0.0, 1.0
        score.positions.weight.copy_(50.0 * torch.arange(9.0).view(1, 9, 1).expand(1, 9, 3))
    x, start = torch.randn(2, 6, 2, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    expected = run(lstm, x, lstm.init_state_from(start))
    torch.testing.assert_close(run(cell, x, cell.init_state_from(start)), expected)


@pytest.mark.parametrize(
    ("score", "message"), [("location_aware", "stays the same"), ("projected", "projects the values")]
)
def test_lstmn_rejects_scores_that_its_tape_does_not_support(score: str, message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        LSTMNCell(2, 3, score=score)


def saturate_gate(cell: LSTMCell, gate: str, value: float) -> None:
    """Set the weights of a gate so that it has a constant preactivation."""
    index = cell.variant.gates.index(gate)
    rows = slice(index * cell.hidden_size, (index + 1) * cell.hidden_size)
    assert cell.peepholes is not None
    cell.weight_input[rows], cell.weight_state[rows], cell.peepholes[index] = 0.0, 0.0, 0.0
    cell.bias_input[rows] = value


def shared_rows(cell: LSTMCell, variant: LSTMVariant) -> Tensor:
    """Return the rows of the cell's matrices whose gates the variant has, too."""
    names = (*cell.variant.gates, "z")
    size = cell.hidden_size
    shared = [index for index, name in enumerate(names) if name in (*variant.gates, "z")]
    return torch.cat([torch.arange(index * size, (index + 1) * size) for index in shared])


def copy_to_variant(vanilla: LSTMCell, variant: LSTMVariant) -> LSTMCell:
    """Build a cell of another variant with the weights of vanilla that it shares."""
    cell = LSTMCell(vanilla.input_size, vanilla.hidden_size, variant).double()
    rows = shared_rows(vanilla, variant)
    with torch.no_grad():
        for name in ("weight_input", "weight_state", "bias_input"):
            getattr(cell, name).copy_(getattr(vanilla, name)[rows])
        if cell.peepholes is not None and vanilla.peepholes is not None:
            cell.peepholes.copy_(vanilla.peepholes[[vanilla.variant.gates.index(gate) for gate in variant.gates]])
    return cell


@pytest.mark.parametrize("gate", ["input", "forget", "output"])
def test_a_cell_without_a_gate_equals_vanilla_with_the_gate_saturated(gate: str) -> None:
    torch.manual_seed(0)
    vanilla = LSTMCell(2, 3, VARIANTS["vanilla"]).double()
    with torch.no_grad():
        saturate_gate(vanilla, gate, 1e3)
    variant = copy_to_variant(vanilla, VARIANTS[{"input": "NIG", "forget": "NFG", "output": "NOG"}[gate]])
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(run(variant, x, variant.init_state(2, x)), run(vanilla, x, vanilla.init_state(2, x)))


def test_no_peepholes_equals_vanilla_with_zero_peepholes() -> None:
    vanilla = LSTMCell(2, 3, VARIANTS["vanilla"]).double()
    assert vanilla.peepholes is not None
    torch.nn.init.zeros_(vanilla.peepholes)
    variant = copy_to_variant(vanilla, VARIANTS["NP"])
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(run(variant, x, variant.init_state(2, x)), run(vanilla, x, vanilla.init_state(2, x)))


def test_coupled_gates_equal_vanilla_with_a_forget_gate_of_negated_weights() -> None:
    """σ(−x) = 1 − σ(x): a forget gate with the input gate's weights, all negated."""
    torch.manual_seed(0)
    vanilla = LSTMCell(2, 3, VARIANTS["vanilla"]).double()
    assert vanilla.peepholes is not None
    with torch.no_grad():
        for weights in (vanilla.weight_input, vanilla.weight_state, vanilla.bias_input):
            weights[3:6] = -weights[:3]
        vanilla.peepholes[1] = -vanilla.peepholes[0]
    variant = copy_to_variant(vanilla, VARIANTS["CIFG"])
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(run(variant, x, variant.init_state(2, x)), run(vanilla, x, vanilla.init_state(2, x)))


@pytest.mark.parametrize("variant", ["NIAF", "NOAF"])
def test_an_identity_activation_equals_tanh_for_small_inputs_only(variant: str) -> None:
    """Tanh is close to the identity near zero."""
    torch.manual_seed(0)
    vanilla = LSTMCell(2, 3, VARIANTS["vanilla"]).double()
    cell = copy_to_variant(vanilla, VARIANTS[variant])
    with torch.no_grad():
        vanilla.bias_input[9:] = 0.0
        cell.bias_input[9:] = 0.0
    tiny, large = 1e-5 * torch.randn(2, 5, 2, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    start = vanilla.init_state(2, tiny)
    torch.testing.assert_close(run(cell, tiny, start), run(vanilla, tiny, start), rtol=1e-6, atol=1e-12)
    assert (run(cell, 3 * large, start) - run(vanilla, 3 * large, start)).abs().max() > 0.01


def test_full_gate_recurrence_has_nine_more_matrices_and_uses_the_previous_gates() -> None:
    torch.manual_seed(0)
    count = {name: sum(p.numel() for p in LSTMCell(2, 5, VARIANTS[name]).parameters()) for name in ("vanilla", "FGR")}
    assert count["FGR"] - count["vanilla"] == 9 * 5 * 5
    cell = LSTMCell(2, 5, VARIANTS["FGR"]).double()
    vanilla = copy_to_variant(cell, VARIANTS["vanilla"])
    x = torch.randn(1, 2, 2, dtype=torch.float64)
    recurrent, plain = run(cell, x, cell.init_state(1, x)), run(vanilla, x, vanilla.init_state(1, x))
    # The initial gates are zero, so the matrices have an effect only from the second step on.
    torch.testing.assert_close(recurrent[:, 0], plain[:, 0])
    assert not torch.allclose(recurrent[:, 1], plain[:, 1])


@pytest.mark.parametrize("name", ["coupled", "peepholes", "gate_recurrence"])
def test_contradictory_switches_are_rejected(name: str) -> None:
    no_gates = {"input_gate": False, "forget_gate": False, "output_gate": False}
    with pytest.raises(regard.ConfigError, match="the LSTM settings contradict each other"):
        regard.LSTM(2, 3, **{**no_gates, name: True})  # type: ignore[arg-type]


def test_coupled_gates_and_no_forget_gate_contradict_each_other() -> None:
    with pytest.raises(regard.ConfigError, match="set only one of the two"):
        regard.LSTM(2, 3, variant="NFG", coupled=True)


def test_switches_combine_with_a_variant_and_with_each_other() -> None:
    settings = resolve(RecurrentSettings, {"cell": {"kind": "lstm", "peepholes": False}, "variant": "CIFG"}, {})
    assert settings.lstm_variant == VARIANTS["simplified"]
    again = resolve(RecurrentSettings, settings.model_dump(mode="json"), {"variant": "NOG"})
    assert again.lstm_variant == VARIANTS["NOG"]._replace(peepholes=False)
    cell = regard.LSTM(2, 3, variant="simplified").stack.cells[0]
    assert isinstance(cell, LSTMCell)
    assert cell.variant == VARIANTS["simplified"]


def test_the_forget_gate_starts_open() -> None:
    cell = LSTMCell(2, 3)
    assert (cell.bias_input[3:6] == 1).all()
    assert (cell.bias_input[:3] != 1).all()
    nig = LSTMCell(2, 3, VARIANTS["NIG"], forget_bias=2.0)
    assert (nig.bias_input[:3] == 2).all()


def test_layer_normalization_equals_the_equations_of_the_paper() -> None:
    """LN(W x) ⊙ α₁ + LN(R h) ⊙ α₂ + b, over all gates; and c normalized before h."""
    torch.manual_seed(0)
    cell = LSTMCell(2, 3, layer_norm=True).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(2, 2, dtype=torch.float64)
    h, c = torch.randn(2, 2, 3, dtype=torch.float64)

    def normalize(values: Tensor) -> Tensor:
        centered = values - values.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    assert cell.gain_input is not None
    assert cell.gain_state is not None
    assert cell.gain_cell is not None
    assert cell.bias_cell is not None
    total = (
        normalize(x @ cell.weight_input.t()) * cell.gain_input
        + normalize(h @ cell.weight_state.t()) * cell.gain_state
        + cell.bias_input
    )
    i, f, o, z = total.chunk(4, dim=-1)
    cell_state = i.sigmoid() * z.tanh() + f.sigmoid() * c
    output = o.sigmoid() * torch.tanh(normalize(cell_state) * cell.gain_cell + cell.bias_cell)
    actual = cell.step(cell.normalize_projection(cell.project(x)), (h, c))
    torch.testing.assert_close(actual, (output, cell_state))
