"""Preallocated states and captured steps: the same hypotheses as with steps that are computed one by one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.config import resolve
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding import beam as beam_module
from regard.decoding import search as search_module
from regard.decoding import steps as steps_module
from regard.decoding.beam import beam_search
from regard.decoding.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram, RepetitionPenalty, Rule
from regard.decoding.search import (
    Hypothesis,
    Sampler,
    SpecialTokens,
    choose_most_likely,
    decode_stepwise,
    rows_to_keep,
)
from regard.decoding.settings import SearchSettings
from regard.decoding.steps import call_before_steps, capture_unsupported_reason, round_up, run_encoder
from regard.models.contracts import Decoded, Decoder, Memory, Tokens, preallocate
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.ops.hooks import use_hooks
from regard.ops.reference_mode import reference_mode
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
    tokens = torch.randint(4, V, (7, 9), generator=generator)
    return Tokens(tokens, torch.tensor([9, 7, 7, 5, 3, 1, 2])).to(torch.device(device))


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


def search(
    decoder: Decoder, encoder: Any, width: int, device: str, rules: Sequence[Rule] = ()
) -> list[list[Hypothesis]]:
    limits = torch.tensor([45, 40, 30, 20, 40, 9, 40], device=device)
    with torch.inference_mode():
        memory = run_encoder(encoder, source(device))
        if width == 1:
            return decode_stepwise(decoder, memory, SPECIAL, limits, choose_most_likely, rules)
        return beam_search(decoder, memory, SPECIAL, limits, SearchSettings(beam=width, nbest=2), rules)


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
        token = torch.full((7,), START)
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


class EagerPool:
    """Replaces a graph pool on a CPU: a replay computes the work."""

    def __init__(self) -> None:
        self.by_module: dict[Decoder, list[Any]] = {}
        self.captures = self.replays = 0
        self.max_kept_bytes = 1 << 30

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay, None


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> EagerPool:
    """Capture steps on a CPU as on a GPU, with one pool of graphs. As on a GPU, the host looks later."""
    pool, gpu = EagerPool(), torch.device("cuda")
    monkeypatch.setattr(cuda_graphs, "graph_pool", lambda _: pool)
    monkeypatch.setattr(beam_module, "runs_asynchronously", lambda _: True)
    monkeypatch.setattr(search_module, "MIN_BUCKET", 1)  # so that finished sentences are removed from small batches
    for module in (beam_module, search_module):
        monkeypatch.setattr(
            module, "capture_unsupported_reason", lambda _, *args, **kw: capture_unsupported_reason(gpu, *args, **kw)
        )
    return pool


CAPTURED = [name for name in MODELS if name not in {"learned", "additive"}]


@contextmanager
def eagerly(model: Seq2Seq) -> Iterator[None]:
    """Within the block, steps are not captured, because a module has a hook."""
    with use_hooks({model: [object()]}):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", [*CAPTURED, "ensemble"])
def test_captured_steps_do_not_change_results_and_are_reused(name: str, width: int, pool: EagerPool) -> None:
    model = ensemble([build("gru", "cpu"), build("sinusoidal", "cpu")]) if name == "ensemble" else build(name, "cpu")
    captured = search(model.decoder, model.encoder, width, "cpu")
    steps = pool.captures
    assert 0 < steps < 7
    assert pool.replays > 30
    # The second search captures its beginning, unless the shapes of the state change at the first step.
    beginnings = int(name not in {"hard-monotonic", "lstmn", "intra-attention"})
    for _ in range(2):
        assert search(model.decoder, model.encoder, width, "cpu") == captured
        assert pool.captures == steps + beginnings
    with eagerly(model):
        assert_same(captured, search(model.decoder, model.encoder, width, "cpu"))


@pytest.mark.slow
@needs_a_gpu
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs_do_not_change_results(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MIN_BUCKET", 1)
    model = build(name, "cuda")
    captured = [search(model.decoder, model.encoder, width, "cuda") for _ in range(3)]
    with eagerly(model):
        expected = search(model.decoder, model.encoder, width, "cuda")
    for actual in captured:
        assert_same(actual, expected)


class PurePool(EagerPool):
    """Replaces a graph pool on a CPU, for work that changes nothing: a replay overwrites the outputs."""

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        outputs = work()

        def write() -> None:
            for static, new in zip(outputs, work(), strict=True):
                if static is not None:
                    static.copy_(new)

        replay, _ = super().capture(write)
        return replay, outputs


@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "gru", "lstm"])
def test_an_encoder_is_captured_when_a_shape_occurs_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of 7 × 9 and of 8 × 12 tokens share a graph."""
    pool, gpu = PurePool(), torch.device("cuda")
    monkeypatch.setattr(cuda_graphs, "graph_pool", lambda _: pool)
    monkeypatch.setattr(
        steps_module, "capture_unsupported_reason", lambda _, module: capture_unsupported_reason(gpu, module)
    )
    model, small = build(name, "cpu"), source("cpu")
    lengths = torch.tensor([12, 11, 9, 8, 6, 5, 3, 1])
    large = Tokens(torch.randint(4, V, (8, 12), generator=torch.Generator().manual_seed(2)), lengths)
    expected: Memory
    with torch.inference_mode():
        for count, given in enumerate([small, large, small, large]):
            memory, expected = run_encoder(model.encoder, given), model.encoder(given)
            slots = expected.allowed_BS.shape[1]
            assert memory.allowed_BS.shape == (len(given.lengths_B), 12)
            assert torch.equal(memory.allowed_BS[:, :slots], expected.allowed_BS)
            assert not memory.allowed_BS[:, slots:].any()
            torch.testing.assert_close(memory.slots_BSD[:, :slots], expected.slots_BSD)
            torch.testing.assert_close(memory.summary_BD, expected.summary_BD)
            assert (pool.captures, pool.replays) == (int(count > 0), count)
        kept, summary_BD = run_encoder(model.encoder, small), model.encoder(small).summary_BD
        run_encoder(model.encoder, large)
        torch.testing.assert_close(kept.summary_BD, summary_BD)  # a later replay does not change it
        with eagerly(model):
            assert run_encoder(model.encoder, small).allowed_BS.shape == small.tokens_BT.shape
        assert pool.replays == 5


def test_a_sentence_can_end_before_the_first_captured_step(pool: EagerPool) -> None:
    """With a limit of 0, it is removed before the first step."""
    model, two_rows = build("gru", "cpu"), source("cpu")
    two_rows = Tokens(two_rows.tokens_BT[:2], two_rows.lengths_B[:2])

    @torch.inference_mode()
    def search_greedily(limits: list[int]) -> list[list[Hypothesis]]:
        memory = model.encoder(two_rows)
        return decode_stepwise(model.decoder, memory, SPECIAL, torch.tensor(limits), choose_most_likely)

    for limits in ([30, 0], [30, 30], [30, 0]) * 3:
        captured = search_greedily(limits)
        with eagerly(model):
            assert_same(captured, search_greedily(limits))
    assert pool.replays > 30


def test_graphs_are_kept_up_to_a_limit_of_memory(pool: EagerPool) -> None:
    pool.max_kept_bytes = 0
    model = build("gru", "cpu")
    captured = search(model.decoder, model.encoder, 3, "cpu")
    assert pool.captures > 1
    assert [len(graphs) for graphs in pool.by_module.values()] == [1]
    with eagerly(model):
        assert_same(captured, search(model.decoder, model.encoder, 3, "cpu"))


def test_without_memory_for_a_graph_steps_are_taken_eagerly(pool: EagerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out_of_memory(_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(pool, "capture", run_out_of_memory)
    model = build("gru", "cpu")
    captured = search(model.decoder, model.encoder, 3, "cpu")
    with eagerly(model):
        assert_same(captured, search(model.decoder, model.encoder, 3, "cpu"))


@pytest.mark.parametrize("name", ["learned", "additive"])
def test_steps_whose_shapes_change_are_not_captured(name: str, pool: EagerPool) -> None:
    """Learned positions depend on the step, and only the cache of a dot-product score can be preallocated."""
    model = build(name, "cpu")
    captured = search(model.decoder, model.encoder, 3, "cpu")
    assert pool.captures == 0
    with eagerly(model):
        assert_same(captured, search(model.decoder, model.encoder, 3, "cpu"))


RULES: list[list[Rule]] = [
    [MinLength(END, 12)],
    [NoRepeatNgram(2), BannedPhrases(((7,), (9, 12)))],
    [RepetitionPenalty(1.7), NoRepeatNgram(1)],
]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rules", RULES, ids=["min_length", "masks", "penalty"])
def test_captured_rules_do_not_change_results(rules: list[Rule], width: int, pool: EagerPool) -> None:
    model = build("gru", "cpu")
    captured = search(model.decoder, model.encoder, width, "cpu", rules)
    assert pool.replays
    with eagerly(model):
        assert_same(captured, search(model.decoder, model.encoder, width, "cpu", rules))


def test_captured_samples_are_the_same(pool: EagerPool) -> None:
    model = build("gru", "cpu")

    def sample() -> list[list[Hypothesis]]:
        sampler = Sampler([np.random.default_rng([3, index]) for index in range(7)], SearchSettings(top_k=9))
        limits = torch.tensor([45, 40, 30, 20, 40, 9, 40])
        with torch.inference_mode():
            return decode_stepwise(model.decoder, model.encoder(source("cpu")), SPECIAL, limits, sampler, hypotheses=4)

    captured = sample()
    assert pool.replays
    with eagerly(model):
        assert_same(captured, sample())


class ShiftingDecoder(Decoder):
    """Predicts the token before the last one plus 1: a part of its state is the previous value of another part."""

    def begin(self, memory: Memory) -> tuple[None, tuple[Tensor, Tensor]]:
        start_B = torch.full((len(memory.allowed_BS),), 3)
        return None, (start_B, start_B + 1)

    def step(self, token_B: Tensor, state: tuple[Tensor, Tensor], keys: None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        del keys
        last_B, before_last_B = state
        return nn.functional.one_hot((before_last_B + 1) % V, V).float(), (token_B, last_B)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        raise NotImplementedError


def test_a_captured_state_may_contain_parts_of_the_previous_state(pool: EagerPool) -> None:
    decoder, limits = ShiftingDecoder(), torch.tensor([20, 15])
    memory = Memory(torch.zeros(2, 1, 1), torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1))
    with torch.inference_mode():
        captured = decode_stepwise(decoder, memory, SPECIAL, limits, choose_most_likely)
        assert pool.replays
        with use_hooks({decoder: [object()]}):
            assert captured == decode_stepwise(decoder, memory, SPECIAL, limits, choose_most_likely)


def test_reasons_why_steps_are_not_captured() -> None:
    def reason(device: str, *rules: Rule, observed: bool = False) -> str:
        return capture_unsupported_reason(torch.device(device), module, rules, observed=observed) or ""

    module = nn.Identity()
    with torch.inference_mode():
        assert reason("cuda", MinLength(END, 3)) == ""
        assert "need a GPU" in reason("cpu")
        assert "recorded" in reason("cuda", observed=True)
        assert "ForcedPrefix" in reason("cuda", ForcedPrefix([[3]]))
        with use_hooks({module: [object()]}):
            assert "hooks" in reason("cuda")
        hook = module.register_forward_hook(lambda *_: None)
        assert "hooks" in reason("cuda")
        hook.remove()
        with reference_mode():
            assert "reference mode" in reason("cuda")
    assert "gradients" in reason("cuda")


def test_a_function_is_called_before_each_captured_step(pool: EagerPool) -> None:
    model, calls = build("gru", "cpu"), 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise InterruptedError

    with call_before_steps(stop), pytest.raises(InterruptedError):
        search(model.decoder, model.encoder, 3, "cpu")
    assert pool.replays == 7  # one step comes before the capture, and the ninth is not taken


def test_sizes_are_rounded_up_to_a_few() -> None:
    assert [round_up(size) for size in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]


def test_finished_sentences_are_removed_several_at_a_time() -> None:
    finished = np.zeros(64, dtype=bool)
    finished[:7] = True
    assert rows_to_keep(finished, bucketed=False) is None
    finished[7] = True
    np.testing.assert_array_equal(rows_to_keep(finished, bucketed=False), range(8, 64))


def test_batches_with_graphs_have_few_sizes() -> None:
    finished = np.zeros(256, dtype=bool)
    finished[:160] = True
    kept = rows_to_keep(finished, bucketed=True)
    assert kept is not None
    assert len(kept) == 96
    finished[:180] = True  # 76 remain; 20 finished ones stay
    kept = rows_to_keep(finished, bucketed=True)
    assert kept is not None
    assert len(kept) == 96
    assert set(range(180, 256)) <= set(kept.tolist())
    finished[:255] = True
    kept = rows_to_keep(finished, bucketed=True)
    assert kept is not None
    assert len(kept) == 64
    assert rows_to_keep(finished[-64:], bucketed=True) is None  # smaller batches are hardly faster
    assert rows_to_keep(np.ones(64, dtype=bool), bucketed=True) is not None
