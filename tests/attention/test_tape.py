"""The tape of a recurrent network: reading, growing, preallocated space, and rows that end early."""

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.tape import EARLIER, Tape

SCORES = ["additive", "dot", "general", "cosine", "location"]


def build(score: str) -> regard.Attention:
    torch.manual_seed(0)
    return regard.Attention(3, 3, score=score, scope=EARLIER, role="decoder-self").double()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("score", SCORES)
def test_a_query_reads_the_values_of_earlier_steps(score: str) -> None:
    """Keys are the first columns of the values."""
    attention, values_BSD = build(score), random(2, 5, 4)
    tape = Tape.begin(attention, 4, 2, values_BSD)
    for step, value_BD in enumerate(values_BSD.unbind(1)):
        query_BD = random(2, 3)
        expected = torch.zeros(2, 1, 4, dtype=torch.float64)
        if step:
            earlier_BSD, everywhere = values_BSD[:, :step], regard.Attention(3, 3, score=score).double()
            everywhere.load_state_dict(attention.state_dict())
            expected, _ = everywhere(query_BD.unsqueeze(1), earlier_BSD[..., :3].contiguous(), earlier_BSD)
        torch.testing.assert_close(tape.read(attention, query_BD), expected.squeeze(1))
        tape = tape.write(attention, value_BD)


@pytest.mark.parametrize("score", SCORES)
def test_the_gradients_are_those_of_attention_to_earlier_steps(score: str) -> None:
    """Also past the space that is allocated first, and for two tapes that continue the same one."""
    attention, everywhere = build(score), regard.Attention(3, 3, score=score).double()
    everywhere.load_state_dict(attention.state_dict())
    values_BSD, query_BD = random(2, 36, 4).requires_grad_(), random(2, 3)
    steps = values_BSD.unbind(1)
    tape = Tape.begin(attention, 4, 2, values_BSD)
    loss, expected = values_BSD.sum() * 0.0, values_BSD.sum() * 0.0

    def read_earlier(earlier: list[Tensor]) -> Tensor:
        earlier_BSD = torch.stack(earlier, dim=1)
        context_BTD: Tensor = everywhere(query_BD.unsqueeze(1), earlier_BSD[..., :3].contiguous(), earlier_BSD)[0]
        return context_BTD.square().sum()

    for step, value_BD in enumerate(steps):
        tape, other = tape.write(attention, value_BD), tape.write(attention, steps[0])
        loss = loss + tape.read(attention, query_BD).square().sum() + other.read(attention, query_BD).square().sum()
        expected = expected + read_earlier([*steps[: step + 1]]) + read_earlier([*steps[:step], steps[0]])
    found = torch.autograd.grad(loss, [values_BSD, *attention.parameters()])
    torch.testing.assert_close(found, torch.autograd.grad(expected, [values_BSD, *everywhere.parameters()]))


def test_the_space_for_gradients_grows_with_the_number_of_steps() -> None:
    """And not with its square, as it would if each step stored a copy of the memory."""

    def count_saved_bytes(steps: int) -> int:
        attention = build("general")
        sizes: dict[int, int] = {}
        value_BD = random(2, 64).requires_grad_()
        tape = Tape.begin(attention, 64, 2, value_BD)

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        contexts = []
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            for _ in range(steps):
                tape = tape.write(attention, value_BD)
                contexts.append(tape.read(attention, random(2, 3)))
        return sum(sizes.values())

    assert count_saved_bytes(256) < 3 * count_saved_bytes(128)


@pytest.mark.parametrize("score", SCORES)
def test_a_preallocated_tape_reads_the_same_and_keeps_its_shapes_and_addresses(score: str) -> None:
    attention, values_BSD = build(score), random(2, 40, 4)
    tape = Tape.begin(attention, 4, 2, values_BSD)
    assert tape.preallocate(9).is_preallocated is False  # the first step allocates
    tape = tape.write(attention, values_BSD[:, 0])
    fixed, query_BD = tape.preallocate(9), random(2, 3)
    assert fixed.is_preallocated
    for step, value_BD in enumerate(values_BSD[:, 1:].unbind(1), start=1):
        before, fixed = fixed, fixed.preallocate(step + 1)
        torch.testing.assert_close(fixed.read(attention, query_BD), tape.read(attention, query_BD))
        if step < 32:
            assert fixed is before
            assert fixed.values_BHSD.shape[2] == 32
        address = fixed.values_BHSD.data_ptr()
        tape, fixed = tape.write(attention, value_BD), fixed.write(attention, value_BD)
        assert fixed.values_BHSD.data_ptr() == address


def test_a_row_does_not_read_steps_after_its_end() -> None:
    attention, values_BSD, query_BD = build("additive"), random(2, 3, 4), random(2, 3)
    tape = Tape.begin(attention, 4, 2, values_BSD)
    lengths_B = torch.tensor([3, 1])
    for step, value_BD in enumerate(values_BSD.unbind(1)):
        tape = tape.write(attention, value_BD).hide_last((step < lengths_B).unsqueeze(1))
    short = Tape.begin(attention, 4, 1, values_BSD).write(attention, values_BSD[1:, 0])
    torch.testing.assert_close(tape.read(attention, query_BD)[1:], short.read(attention, query_BD[1:]))
    assert tape.has_steps_B1.tolist() == [[True], [True]]


def test_weights_of_each_step_are_recorded_with_its_own_slot_masked() -> None:
    attention, values_BSD = build("general"), random(1, 3, 4)
    tape = Tape.begin(attention, 4, 1, values_BSD)
    with regard.record(attention, queries=True) as recording:
        for value_BD in values_BSD.unbind(1):
            tape.read(attention, random(1, 3))
            tape = tape.write(attention, value_BD)
    weights_TS = recording.weights[""][0]
    assert weights_TS.shape == (3, 3)
    assert torch.equal(weights_TS.triu(), torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(weights_TS.sum(-1), torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(recording.inputs[""]["key"][-1][:, :2], values_BSD[:, :2, :3])
