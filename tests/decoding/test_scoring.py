"""Scores of given targets: the same alone and in a batch, in bounded memory, without side effects on the model."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.data.settings import CharTokenizer
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding import predictor as predictor_module
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.folder import RunFolder
from tests_shared import ModelOnly

ALPHABET = "abcdefgh "
TOKENIZERS = TokenizerPair.build(CharTokenizer(shared=True), [ALPHABET], [ALPHABET])
READER = TextReader(TOKENIZERS.source, 100)
GRU = {"kind": "recurrent", "embedding": 8, "encoder": {"hidden": 8}, "decoder": {"hidden": 8}}
TRANSFORMER = {"kind": "transformer", "size": 8, "heads": 2, "layers": 1, "feedforward": 12}
COPY = {**GRU, "decoder": {"hidden": 8, "copy_source": True}}


def build(settings: dict[str, Any]) -> Seq2Seq:
    torch.manual_seed(0)
    vocabulary = len(TOKENIZERS.target)
    return build_model(ModelOnly.model_validate({"model": settings}).model, vocabulary, vocabulary).eval()


MODELS: dict[str, Callable[[], Seq2Seq]] = {
    "gru": lambda: build(GRU),
    "transformer": lambda: build(TRANSFORMER),
    "copy": lambda: build(COPY),
    "marginal": lambda: build({**GRU, "attention": "hard-monotonic"}),
    "ensemble": lambda: ensemble([build(GRU), build(TRANSFORMER)]).eval(),
}


def predictor_of(name: str) -> Predictor:
    return Predictor(MODELS[name](), READER, TOKENIZERS.target, DecodingSettings(), max_length=100)


def random_pairs(count: int, longest: int = 12) -> tuple[list[str], list[str]]:
    generator = random.Random(0)

    def text() -> str:
        return "".join(generator.choices(ALPHABET, k=generator.randint(0, longest)))

    return [text() for _ in range(count)], [text() for _ in range(count)]


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures the number of elements of the largest tensor that is computed, and of the largest logits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = self.logits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
                if tensor.shape[-1:] == (len(TOKENIZERS.target),):  # no layer of the models has this width
                    self.logits = max(self.logits, tensor.numel())
        return output


def largest_tensor(predictor: Predictor, pairs: tuple[list[str], list[str]], batch_size: int) -> LargestTensor:
    largest = LargestTensor()
    with largest:
        predictor.score(*pairs, batch_size=batch_size)
    return largest


@pytest.mark.parametrize("name", MODELS)
def test_a_pair_has_the_same_score_alone_and_in_a_batch(name: str) -> None:
    predictor = predictor_of(name)
    sources, targets = random_pairs(40)
    batched = predictor.score(sources, targets)
    alone = [predictor.score([source], [target])[0] for source, target in zip(sources, targets, strict=True)]
    assert batched == pytest.approx(alone, abs=1e-5)
    assert predictor.score(sources, targets, batch_size=3) == pytest.approx(alone, abs=1e-5)


def test_scores_of_several_windows_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = predictor_of("gru")
    sources, targets = random_pairs(50)
    expected = predictor.score(sources, targets)
    monkeypatch.setattr(predictor_module, "_BATCHES_PER_WINDOW", 2)
    assert predictor.score(sources, targets, batch_size=4) == pytest.approx(expected, abs=1e-5)


def test_pairs_may_come_from_generators() -> None:
    predictor = predictor_of("gru")
    sources, targets = random_pairs(10)
    assert predictor.score(iter(sources), (target for target in targets)) == predictor.score(sources, targets)
    assert predictor.score([], []) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_memory_does_not_grow_with_the_number_of_pairs(name: str) -> None:
    predictor = predictor_of(name)
    few, many = random_pairs(64), random_pairs(640)
    extremes = "a" * 12
    few[0][0] = few[1][0] = extremes  # both have a pair of the maximum length
    assert largest_tensor(predictor, many, 16).elements <= 1.2 * largest_tensor(predictor, few, 16).elements


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy", "ensemble"])
def test_the_logits_of_a_batch_are_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These decoders return the logits of all steps of a batch at once."""
    predictor = predictor_of(name)
    pairs = random_pairs(200, longest=60)
    bound = 10 * len(TOKENIZERS.target) * (60 + 61)
    assert largest_tensor(predictor, pairs, 200).logits > 3 * bound
    monkeypatch.setattr(predictor_module, "MAX_LOGITS", bound)
    assert largest_tensor(predictor, pairs, 200).logits <= 2 * bound  # an ensemble stacks the logits of two models


@pytest.mark.parametrize("training", [True, False])
def test_scoring_restores_the_mode_of_the_model(training: bool) -> None:
    predictor = predictor_of("gru")
    predictor.model.train(training)
    predictor.score(["abc"], ["abc"])
    assert predictor.model.training == training

    def fail(*_: object) -> None:
        raise RuntimeError("stop")

    handle = predictor.model.decoder.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="stop"):
        predictor.score(["abc"], ["abc"])
    assert predictor.model.training == training
    assert all(module.training == training for module in predictor.model.modules())
    handle.remove()
    assert not torch.is_inference_mode_enabled()


def test_unknown_tokens_of_scored_pairs_are_named_once(small_run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    model = regard.load(small_run.path)
    with caplog.at_level("WARNING"):
        model.score(["3 mai 2009", "3 mai § 2009", "x"], ["2009-05-03", "2009-☃", "☃"])
    [record] = caplog.records
    assert "has no token for '§', '☃' (in 2 of the 3 pairs)" in record.getMessage()
    caplog.clear()
    model.score("3 mai 2009", "2009-05-03")
    assert not caplog.records


def test_dropout_does_not_apply_to_scores() -> None:
    settings = {**GRU, "dropout": 0.5}
    predictor = Predictor(build(settings).train(), READER, TOKENIZERS.target, DecodingSettings(), max_length=100)
    assert predictor.score(["abc"], ["abc"]) == predictor.score(["abc"], ["abc"])
    assert predictor.model.training


def test_a_model_scores_with_any_batch_size(small_run: RunFolder) -> None:
    model = regard.load(small_run.path)
    sources, targets = ["3 mai 2009", "x", "May 3"], ["2009-05-03", "1", "2009"]
    assert model.score(sources, targets, batch_size=1) == pytest.approx(model.score(sources, targets), abs=1e-5)
    for pairs in (("x", "1"), (sources, targets)):
        with pytest.raises(regard.ConfigError, match="batch_size"):
            model.score(*pairs, batch_size=0)
