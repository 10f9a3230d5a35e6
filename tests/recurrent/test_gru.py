"""The GRU against torch's, against its equations, and its fast paths against the plain scan."""

import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.recurrent import kernels
from regard.recurrent.cells import GRUCell

LENGTHS = torch.tensor([6, 3, 1, 5])


def copied(gru: regard.GRU, layers: int, bidirectional: bool) -> nn.GRU:
    """A torch.nn.GRU with the same weights."""
    cells = list(gru.cells)
    theirs = nn.GRU(5, 7, layers, bidirectional=bidirectional, batch_first=True).double()
    with torch.no_grad():
        for index, cell in enumerate(cells):
            assert isinstance(cell, GRUCell)
            layer, reverse = divmod(index, 2) if bidirectional else (index, 0)
            name = f"l{layer}{'_reverse' if reverse else ''}"
            getattr(theirs, f"weight_ih_{name}").copy_(cell.weight_input)
            getattr(theirs, f"weight_hh_{name}").copy_(cell.weight_state)
            getattr(theirs, f"bias_ih_{name}").copy_(cell.bias_input)
            getattr(theirs, f"bias_hh_{name}").copy_(cell.bias_state)
    return theirs


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_torch_in_outputs_states_and_gradients(layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    ours = regard.GRU(5, 7, layers, bidirectional).double()
    theirs = copied(ours, layers, bidirectional)
    x_ours = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    x_theirs = x_ours.detach().clone().requires_grad_()
    outputs, state = ours(x_ours, LENGTHS)
    packed = nn.utils.rnn.pack_padded_sequence(x_theirs, LENGTHS, batch_first=True, enforce_sorted=False)
    packed_out, final = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(packed_out, batch_first=True, total_length=6)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(torch.stack(state), final)
    weights = torch.randn_like(expected)
    ((outputs * weights).sum() + torch.stack(state).square().sum()).backward()
    ((expected * weights).sum() + final.square().sum()).backward()
    torch.testing.assert_close(x_ours.grad, x_theirs.grad)
    for index, cell in enumerate(ours.cells):
        layer, reverse = divmod(index, 2) if bidirectional else (index, 0)
        name = f"l{layer}{'_reverse' if reverse else ''}"
        assert isinstance(cell, GRUCell)
        torch.testing.assert_close(cell.weight_state.grad, getattr(theirs, f"weight_hh_{name}").grad)
        torch.testing.assert_close(cell.weight_input.grad, getattr(theirs, f"weight_ih_{name}").grad)
        torch.testing.assert_close(cell.bias_state.grad, getattr(theirs, f"bias_hh_{name}").grad)


def test_one_step_worked_by_hand() -> None:
    cell = GRUCell(1, 1).double()
    values = {"weight_input": [0.5, -0.3, 1.0], "weight_state": [0.2, 0.4, -0.7]}
    with torch.no_grad():
        for name, rows in values.items():
            getattr(cell, name).copy_(torch.tensor(rows).unsqueeze(1))
        cell.bias_input.copy_(torch.tensor([0.1, 0.0, 0.2]))
        cell.bias_state.copy_(torch.tensor([0.0, 0.3, -0.1]))
    x, h = 2.0, -1.0
    r = 1 / (1 + math.exp(-(0.5 * x + 0.1 + 0.2 * h)))
    z = 1 / (1 + math.exp(-(-0.3 * x + 0.4 * h + 0.3)))
    n = math.tanh(1.0 * x + 0.2 + r * (-0.7 * h - 0.1))
    expected = z * h + (1 - z) * n
    gates = cell.project(torch.tensor([[x]], dtype=torch.float64))
    state = torch.tensor([[h]], dtype=torch.float64)
    assert cell.step(gates, state).item() == pytest.approx(expected)
    assert kernels.step(cell, gates, state).item() == pytest.approx(expected)


def run_all(path: str, x: Tensor, starts: list[Tensor], cells: list[GRUCell], lengths: Tensor) -> list[Tensor]:
    """States, and the gradient of a weighted sum of them with respect to everything, by one path."""
    lanes = [kernels.Lane(cell, x, start) for cell, start in zip(cells, starts, strict=True)]
    if path == "scan":
        found = [kernels.scan(*lane, lengths) for lane in lanes]
    else:
        states = kernels.analytic_gru(lanes) if path == "analytic" else [kernels.cudnn_gru(*lane) for lane in lanes]
        found = [(s, kernels.last_valid(s, lengths, lane.state_BH)) for s, lane in zip(states, lanes, strict=True)]
    valid = (torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).unsqueeze(-1)
    outputs = [states.masked_fill(~valid, 0.0) for states, _ in found] + [last for _, last in found]
    weights = [torch.arange(output.numel(), device=x.device).view_as(output).sin() for output in outputs]
    loss = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
    parameters = [parameter for cell in cells for parameter in cell.parameters()]
    return [*outputs, *torch.autograd.grad(loss, [x, *starts, *parameters])]  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("path", ["analytic", "cudnn"])
@pytest.mark.parametrize("directions", [1, 2])
def test_fast_paths_equal_the_scan(path: str, directions: int, device: str) -> None:
    torch.manual_seed(0)
    cells = [GRUCell(3, 5).to(device, torch.float64) for _ in range(directions)]
    x = torch.randn(4, 7, 3, dtype=torch.float64, device=device, requires_grad=True)
    starts = [torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True) for _ in cells]
    lengths = torch.tensor([7, 0, 1, 4], device=device)
    expected = run_all("scan", x, starts, cells, lengths)
    for ours, reference in zip(run_all(path, x, starts, cells, lengths), expected, strict=True):
        torch.testing.assert_close(ours, reference)


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    gru = regard.GRU(2, 3, layers=2, bidirectional=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gru(x, torch.tensor([4, 2]))[0], (x,))
    cell = gru.cells[0]
    assert isinstance(cell, GRUCell)
    gates = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, h: kernels.step(cell, a, h), (gates, state))


def test_a_row_of_no_steps_keeps_the_state_it_started_with() -> None:
    gru = regard.GRU(2, 3, bidirectional=True)
    start = tuple(torch.randn(2, 3) for _ in range(2))
    outputs, state = gru(torch.randn(2, 4, 2), torch.tensor([4, 0]), start)
    assert (outputs[1] == 0).all()
    assert torch.equal(state[0][1], start[0][1])
    assert torch.equal(state[1][1], start[1][1])


def test_what_lies_beyond_a_row_cannot_matter() -> None:
    gru = regard.GRU(2, 3, layers=2, bidirectional=True)
    x = torch.randn(2, 5, 2)
    lengths = torch.tensor([5, 2])
    clean, state = gru(x, lengths)
    x[1, 2:] = 1e3
    again, after = gru(x, lengths)
    assert torch.equal(clean, again)
    for before, now in zip(state, after, strict=True):
        assert torch.equal(before, now)


def test_steps_chained_equal_the_whole() -> None:
    torch.manual_seed(0)
    gru = regard.GRU(2, 3, layers=2).double()
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    outputs, final = gru(x)
    state = gru.start(2, x)
    for time in range(5):
        output, state = gru.step(gru.project(x[:, time]), state)
        torch.testing.assert_close(output, outputs[:, time])
    torch.testing.assert_close(state, final)


def test_state_goes_in_and_comes_out() -> None:
    gru = regard.GRU(2, 3).double()
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    whole, _ = gru(x)
    first, state = gru(x[:, :4])
    second, _ = gru(x[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
