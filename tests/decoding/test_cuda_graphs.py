"""States with room, and recorded steps on a GPU: the same answers as steps taken one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.config import resolve
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding import beam as beam_module
from regard.decoding.beam import BeamOptions, beam
from regard.decoding.cuda_graphs import GraphedDecoder
from regard.decoding.search import Hypothesis, SearchBatch, Symbols, greedy
from regard.models.contracts import Decoded, Decoder, Memory, Padded, map_state, preallocated
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.runs.settings import RunSettings

V = 40
SYMBOLS = Symbols(START, END, (PAD, UNKNOWN, START))
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="steps are recorded on a GPU")

MODELS: dict[str, dict[str, object]] = {
    "sinusoidal": {"model": "transformer-tiny"},
    "rotary": {"model": "transformer-tiny", "model.positions": "rotary", "model.norm": "pre"},
    "learned": {"model": "transformer-tiny", "model.positions": "learned"},
    "additive": {"model": "transformer-tiny", "model.self_score": "additive"},
    "gru": {},
    "lstm": {"model.decoder.cell": "lstm", "model.decoder.order": "luong"},
    "chorowski": {"model.attention": "chorowski"},
    "hard-monotonic": {"model.attention": "hard-monotonic"},
    "fixed": {"model": "fixed"},
}


def model(name: str, device: str) -> Seq2Seq:
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", {"tokenizer.shared": True, **MODELS[name], "model.dropout": 0.0}).model
    return build_model(settings, V, V).eval().to(device)


def source(device: str) -> Padded:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, V, (6, 9), generator=generator)
    return Padded(tokens, torch.tensor([9, 7, 7, 5, 3, 1])).to(torch.device(device))


class WithRoom(Decoder):
    """A decoder that makes room before each step, as a search on a GPU does."""

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self.inner = inner

    def begin(self, memory: Memory) -> tuple[Any, Any]:
        keys, state = self.inner.begin(memory)
        return keys, (0, state)

    def step(self, token_B: Tensor, state: Any, keys: Any) -> tuple[Tensor, Any]:
        taken, inner = state
        logits, inner = self.inner.step(token_B, preallocated(inner, taken + 1), keys)
        return logits, (taken + 1, inner)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        return self.inner(tokens_BT, memory)


def answers(decoder: Decoder, encoder: Any, width: int, device: str) -> list[list[Hypothesis]]:
    limits = torch.tensor([45, 40, 30, 20, 40, 9], device=device)
    with torch.inference_mode():
        memory = encoder(source(device))
        if width == 1:
            return [[found] for found in greedy(decoder, memory, SYMBOLS, limits)]
        return beam(decoder, memory, SYMBOLS, limits, BeamOptions(width, nbest=2))


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[answer.tokens for answer in one] for one in found] == [
        [answer.tokens for answer in one] for one in expected
    ]
    scores = [answer.score for one in found for answer in one]
    assert scores == pytest.approx([answer.score for one in expected for answer in one], rel=1e-4)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "learned", "additive", "gru"])
def test_room_changes_no_answer(name: str, width: int) -> None:
    """Longer than the room that there is at first, and with sentences that leave."""
    net = model(name, "cpu")
    plain = answers(net.decoder, net.encoder, width, "cpu")
    assert max(len(answer.tokens) for one in plain for answer in one) > 33
    assert_same(answers(WithRoom(net.decoder), net.encoder, width, "cpu"), plain)


def test_with_room_the_shapes_stay_the_same() -> None:
    net = model("sinusoidal", "cpu")
    with torch.inference_mode():
        keys, state = net.decoder.begin(net.encoder(source("cpu")))
        token = torch.full((6,), START)
        shapes = []
        for taken in range(6):
            state = preallocated(state, taken + 1)
            shapes.append([part.shape for store in state.layers.cache.stores for part in store])
            logits, state = net.decoder.step(token, state, keys)
            token = logits.argmax(-1)
    assert shapes[1:] == [shapes[1]] * 5
    assert shapes[1]


@pytest.mark.parametrize("name", ["sinusoidal", "gru"])
def test_steps_taken_ahead_change_no_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, which takes the next step while the host notes the last; sentences leave meanwhile."""
    net = model(name, "cpu")
    steps: list[int] = []

    def counted(*given: Any) -> tuple[Tensor, Any]:
        steps[-1] += 1
        return type(net.decoder).step(net.decoder, *given)

    def found() -> list[list[Hypothesis]]:
        steps.append(0)
        return answers(net.decoder, net.encoder, 3, "cpu")

    monkeypatch.setattr(net.decoder, "step", counted)
    plain = found()
    monkeypatch.setattr(beam_module, "works_by_itself", lambda _: True)
    assert_same(found(), plain)
    assert steps[0] <= steps[1] <= min(steps[0] + 1, 45)  # one for nothing at most, and none beyond the longest limit


class Again:
    """Stands in for a GPU: what is recorded is worked out again, into the tensors that it gave the first time."""

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        inputs = [
            cell.cell_contents for cell in work.__closure__ or () if not isinstance(cell.cell_contents, GraphedDecoder)
        ]
        before = [(tensor, tensor.clone()) for tensor in tensors_of(inputs)]
        given = work()
        for tensor, values in before:  # a recording works nothing out
            tensor.copy_(values)

        def replay() -> None:
            for kept, new in zip(tensors_of(given), tensors_of(work()), strict=True):
                kept.copy_(new)

        return replay, given


def tensors_of(state: Any) -> list[Tensor]:
    found: list[Any] = []
    map_state(state, found.append)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_recorded_steps_give_the_same_answers(
    name: str, width: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        monkeypatch.setattr(cuda_graphs, "recorder", lambda _: Again())
    net = ensemble([model("gru", device), model("sinusoidal", device)]) if name == "ensemble" else model(name, device)
    begin = SearchBatch.begin.__func__  # type: ignore[attr-defined]
    replays = 0

    def counted(replay: Callable[[], None]) -> Callable[[], None]:
        def played() -> None:
            nonlocal replays
            replays += 1
            replay()

        return played

    def searched(make: Callable[[Decoder], GraphedDecoder | None]) -> list[list[Hypothesis]]:
        def begun(*given: Any) -> SearchBatch:
            batch: SearchBatch = begin(*given)
            batch.playback = make(batch.decoder)
            return batch

        with monkeypatch.context() as patch:
            patch.setattr(SearchBatch, "begin", classmethod(begun))
            return answers(net.decoder, net.encoder, width, device)

    recorded = cuda_graphs.Recording
    monkeypatch.setattr(cuda_graphs, "Recording", lambda replay, *rest: recorded(counted(replay), *rest))
    assert_same(searched(GraphedDecoder), searched(lambda _: None))
    # All but learned positions, which a step must know, and scores that are no dot product.
    assert (replays > 10) == (name not in {"learned", "additive"})
