"""Preallocated states and captured steps: the same hypotheses as with steps that are computed one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.config import resolve
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding import beam as beam_module
from regard.decoding.beam import beam_search
from regard.decoding.cuda_graphs import GraphedDecoder
from regard.decoding.search import Hypothesis, SearchBatch, SpecialTokens, choose_most_likely, decode_stepwise
from regard.decoding.settings import SearchSettings
from regard.models.contracts import Decoded, Decoder, Memory, Tokens, map_state, preallocate
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.runs.settings import RunSettings

V = 40
SPECIAL = SpecialTokens(START, END, (PAD, UNKNOWN, START))
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

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
    "lstmn": {"model": "lstmn", "model.encoder.hidden": 64, "model.decoder.fusion": "deep"},
    "intra-attention": {"model.decoder.intra_attention": "general", "model.decoder.order": "luong"},
}


def build(name: str, device: str) -> Seq2Seq:
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", {"tokenizer.shared": True, **MODELS[name], "model.dropout": 0.0}).model
    return build_model(settings, V, V).eval().to(device)


def source(device: str) -> Tokens:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, V, (6, 9), generator=generator)
    return Tokens(tokens, torch.tensor([9, 7, 7, 5, 3, 1])).to(torch.device(device))


class PreallocatingDecoder(Decoder):
    """Preallocates the state of a decoder before each step, as a search on a GPU does."""

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self.inner = inner

    def begin(self, memory: Memory) -> tuple[Any, Any]:
        keys, state = self.inner.begin(memory)
        return keys, (0, state)

    def step(self, token_B: Tensor, state: Any, keys: Any) -> tuple[Tensor, Any]:
        steps, inner = state
        logits, inner = self.inner.step(token_B, preallocate(inner, steps + 1), keys)
        return logits, (steps + 1, inner)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        decoded: Decoded = self.inner(tokens_BT, memory)
        return decoded


def search(decoder: Decoder, encoder: Any, width: int, device: str) -> list[list[Hypothesis]]:
    limits = torch.tensor([45, 40, 30, 20, 40, 9], device=device)
    with torch.inference_mode():
        memory = encoder(source(device))
        if width == 1:
            return decode_stepwise(decoder, memory, SPECIAL, limits, choose_most_likely)
        return beam_search(decoder, memory, SPECIAL, limits, SearchSettings(beam=width, nbest=2))


def assert_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in hypotheses] for hypotheses in actual] == [
        [h.tokens for h in hypotheses] for hypotheses in expected
    ]
    scores = [h.score for hypotheses in actual for h in hypotheses]
    assert scores == pytest.approx([h.score for hypotheses in expected for h in hypotheses], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "learned", "additive", "gru"])
def test_preallocation_does_not_change_results(name: str, width: int) -> None:
    """Hypotheses are longer than the first allocation, and finished sentences are removed."""
    model = build(name, "cpu")
    expected = search(model.decoder, model.encoder, width, "cpu")
    assert max(len(h.tokens) for hypotheses in expected for h in hypotheses) > 33
    assert_same(search(PreallocatingDecoder(model.decoder), model.encoder, width, "cpu"), expected)


def test_preallocated_shapes_are_constant() -> None:
    model = build("sinusoidal", "cpu")
    with torch.inference_mode():
        keys, state = model.decoder.begin(model.encoder(source("cpu")))
        token = torch.full((6,), START)
        shapes = []
        for steps in range(6):
            state = preallocate(state, steps + 1)
            shapes.append([part.shape for layer in state.layers.cache.layers for part in layer])
            logits, state = model.decoder.step(token, state, keys)
            token = logits.argmax(-1)
    assert shapes[1:] == [shapes[1]] * 5
    assert shapes[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinusoidal", "gru"])
def test_asynchronous_steps_do_not_change_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, the next step starts before the host has processed the last one; sentences are removed meanwhile."""
    model = build(name, "cpu")
    steps: list[int] = []

    def counted_step(*args: Any) -> tuple[Tensor, Any]:
        steps[-1] += 1
        return type(model.decoder).step(model.decoder, *args)

    def count_and_search() -> list[list[Hypothesis]]:
        steps.append(0)
        return search(model.decoder, model.encoder, 3, "cpu")

    monkeypatch.setattr(model.decoder, "step", counted_step)
    expected = count_and_search()
    monkeypatch.setattr(beam_module, "runs_asynchronously", lambda _: True)
    assert_same(count_and_search(), expected)
    assert steps[0] <= steps[1] <= min(steps[0] + 1, 45)  # at most one step too many, and none beyond the largest limit


class RecomputingPool:
    """Replaces a graph pool on a CPU: a replay computes the work again, into the tensors of the first outputs."""

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        inputs = [
            cell.cell_contents for cell in work.__closure__ or () if not isinstance(cell.cell_contents, GraphedDecoder)
        ]
        saved = [(tensor, tensor.clone()) for tensor in tensors_of(inputs)]
        outputs = work()
        for tensor, values in saved:  # a capture computes nothing
            tensor.copy_(values)

        def replay() -> None:
            for static, new in zip(tensors_of(outputs), tensors_of(work()), strict=True):
                static.copy_(new)

        return replay, outputs


def tensors_of(state: Any) -> list[Tensor]:
    leaves: list[Any] = []
    map_state(state, leaves.append)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_replayed_steps_do_not_change_results(
    name: str, width: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        monkeypatch.setattr(cuda_graphs, "graph_pool", lambda _: RecomputingPool())
    model = ensemble([build("gru", device), build("sinusoidal", device)]) if name == "ensemble" else build(name, device)
    begin = SearchBatch.begin.__func__  # type: ignore[attr-defined]
    replays = 0

    def counted(replay: Callable[[], None]) -> Callable[[], None]:
        def counted_replay() -> None:
            nonlocal replays
            replays += 1
            replay()

        return counted_replay

    def search_with(graph: Callable[[Decoder], GraphedDecoder | None]) -> list[list[Hypothesis]]:
        def begin_graphed(*args: Any) -> SearchBatch:
            batch: SearchBatch = begin(*args)
            batch.graphed = graph(batch.decoder)
            return batch

        with monkeypatch.context() as patch:
            patch.setattr(SearchBatch, "begin", classmethod(begin_graphed))
            return search(model.decoder, model.encoder, width, device)

    captured = cuda_graphs.CapturedGraph
    monkeypatch.setattr(cuda_graphs, "CapturedGraph", lambda replay, *args: captured(counted(replay), *args))
    assert_same(search_with(GraphedDecoder), search_with(lambda _: None))
    # Not replayed: learned positions, which depend on the step, and a score that is not a dot product, whose cache
    # cannot be preallocated.
    assert (replays > 10) == (name not in {"learned", "additive"})
