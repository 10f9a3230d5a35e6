"""Predictions of a trained model, from text to text."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.data.batching import pad
from regard.data.corpora import Pairs
from regard.data.source_readers import TextItem
from regard.data.tokens.tokenizers import END, START
from regard.decoding.predictor import Predictor
from regard.decoding.settings import SearchSettings
from regard.explorer.corpus import CorpusPredictions
from regard.ops.reference_mode import full_precision
from regard.runs.folder import RunFolder
from regard.runs.pairs import HeldOutPairs

TEXTS = ["3 mai 2009", "", "Sunday, May 3, 2009", "2009年5月3日", "\ufffd ☃", "x"]


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def logits_of(model: regard.Model, source: list[int], target: list[int]) -> Tensor:
    """Compute the logits (T × V) after START and after each token of the target, on the device of the model."""
    device = model.predictor.device
    with full_precision(torch.float32):
        logits_BTV: Tensor = model.network(
            pad([source]).to(device), torch.tensor([[START, *target]], device=device)
        ).logits_BTV
    return logits_BTV[0]


def test_predictions_for_a_list_are_in_order_and_equal_those_for_single_texts(model: regard.Model) -> None:
    batched = model.predict(TEXTS)
    assert [prediction.source for prediction in batched] == TEXTS
    for text, prediction in zip(TEXTS, batched, strict=True):
        single = model.predict(text)
        assert single.text == prediction.text
        assert single.score == pytest.approx(prediction.score, abs=1e-5)


def test_batches_are_larger_on_a_gpu_within_the_limits_of_its_memory(
    model: regard.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, tokens = model.predictor, len(model.predictor.tokenizer)
    monkeypatch.setattr(Predictor, "device", torch.device("cpu"))
    assert predictor.limit_batches(SearchSettings()) == (64, None)
    monkeypatch.setattr(Predictor, "device", torch.device("cuda"))
    memory = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    rows, max_tokens = predictor.limit_batches(SearchSettings(beam=5))
    assert rows > 64
    assert rows * 5 * tokens * 4 <= 1 << 28  # bytes of the logits of a step
    assert max_tokens is not None
    memory.total_memory = 8 << 30
    assert 64 <= predictor.limit_batches(SearchSettings(beam=5)).rows < rows
    assert predictor.limit_batches(SearchSettings(beam=5), 7) == (7, None)
    assert predictor.limit_batches(SearchSettings(beam=5), attention=True) == (64, None)


@pytest.mark.parametrize("search", [{}, {"beam": 3}, {"sample": True}])
@pytest.mark.parametrize("text", ["", "   ", " \t\u3000"])
def test_the_prediction_for_an_empty_text_is_empty(model: regard.Model, text: str, search: dict[str, Any]) -> None:
    empty = model.predict(text, **search)
    assert (empty.source, empty.text, empty.tokens, empty.truncated) == (text, "", [], False)
    assert empty.attention.shape == (0, 0)


@pytest.mark.parametrize("text", ["   ", " \t\u3000"])
def test_white_space_is_scored_like_an_empty_text(model: regard.Model, text: str) -> None:
    assert model.score(text, "2009") == model.score("", "2009")


def test_nbest_widens_the_beam(model: regard.Model) -> None:
    best = model.predict("3 mai 2009", nbest=3)
    assert len(best.alternatives) == 2
    assert best.text == model.predict("3 mai 2009", nbest=3, beam=3).text


def test_attention_has_a_row_for_each_token_and_a_column_for_each_source_token(model: regard.Model) -> None:
    for prediction in model.predict(TEXTS[2:]):
        assert prediction.attention.shape == (len(prediction.tokens), len(prediction.source_tokens))
        np.testing.assert_allclose(prediction.attention.sum(-1), 1.0, rtol=1e-5)
        assert "".join(prediction.tokens) == prediction.text
        assert "".join(prediction.source_tokens) == prediction.source


def test_attention_weights_equal_those_of_the_search(model: regard.Model) -> None:
    """The weights of the second pass equal those that are recorded step by step during the search."""
    text = "3 mai 2009"
    weights = model.predict(text).attention
    with regard.record(model.network) as trace:
        model.predictor.predict(model.predictor.reader.read([text]))
    recorded = trace.weights["decoder.attention"][0, : len(weights)].cpu().numpy()
    np.testing.assert_allclose(recorded, weights, atol=1e-6)


def source_ids(model: regard.Model, text: str) -> list[int]:
    """Return the token ids of a source."""
    [item] = model.predictor.reader.read([text])
    assert isinstance(item, TextItem)
    return item.ids


def test_the_score_is_the_log_probability_of_the_prediction(model: regard.Model) -> None:
    for prediction in model.predict(TEXTS[2:]):
        source, [target] = source_ids(model, prediction.source), model.predictor.tokenizer.ids([prediction.text])
        with torch.no_grad():
            logits = logits_of(model, source, target)
        tokens = target if prediction.truncated else [*target, END]
        expected = sum(float(logits[step].log_softmax(-1)[token]) for step, token in enumerate(tokens))
        assert prediction.score == pytest.approx(expected, abs=1e-4)
        if not prediction.truncated:
            assert prediction.score == pytest.approx(model.score(prediction.source, prediction.text), abs=1e-4)


def test_the_score_of_a_pair_is_the_sum_over_its_tokens(model: regard.Model) -> None:
    source, [target] = source_ids(model, "3 mai 2009"), model.predictor.tokenizer.ids(["2009-05-03"])
    with torch.no_grad():
        log_p = logits_of(model, source, target).log_softmax(-1)
    expected = sum(float(log_p[step, token]) for step, token in enumerate([*target, END]))
    assert model.score("3 mai 2009", "2009-05-03") == pytest.approx(expected, abs=1e-4)
    several = model.score(["3 mai 2009", "x"], ["2009-05-03", "2009"])
    assert several == pytest.approx([expected, model.score("x", "2009")], abs=1e-4)
    with pytest.raises(regard.ConfigError, match="2 sources and 1 target"):
        model.score(["a", "b"], ["c"])


def test_prediction_restores_training_mode(model: regard.Model) -> None:
    model.network.train()
    model.predict("3 mai 2009")
    assert model.network.training
    model.network.eval()


def test_a_source_that_is_too_long_is_truncated_with_a_warning(
    model: regard.Model, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        prediction = model.predict("3 mai 2009 " * 200)
    assert len(prediction.source_tokens) == 1000
    assert "Truncated 1 source to 1,000 tokens" in caplog.text


def test_an_unpaired_surrogate_is_replaced(model: regard.Model) -> None:
    assert model.predict("\ud800 3 mai 2009").text == model.predict("? 3 mai 2009").text


def test_prediction_computes_no_gradient(model: regard.Model) -> None:
    model.predict("3 mai 2009")
    assert all(parameter.grad is None for parameter in model.network.parameters())
    assert torch.is_grad_enabled()


def test_a_beam_of_one_is_greedy_search(model: regard.Model) -> None:
    greedy = model.predict(TEXTS)
    assert [p.text for p in model.predict(TEXTS, beam=1, length_penalty=2.0)] == [p.text for p in greedy]


def test_alternatives_are_sorted_distinct_and_scored_by_the_model(model: regard.Model) -> None:
    for text, best in zip(TEXTS, model.predict(TEXTS, beam=4, nbest=4, length_penalty=0.0), strict=True):
        nbest = [best, *best.alternatives]
        assert len(nbest) == (4 if text else 1)
        assert len({prediction.text for prediction in nbest}) == len(nbest)
        ended = [prediction for prediction in nbest if text and not prediction.truncated]
        assert [p.score for p in ended] == sorted((p.score for p in ended), reverse=True)
        for prediction in ended:
            assert prediction.score == pytest.approx(model.score(text, prediction.text), abs=1e-3)
            assert prediction.attention.shape == (len(prediction.tokens), len(prediction.source_tokens))


@pytest.mark.parametrize("search", [{}, {"beam": 3}, {"sample": True}])
def test_every_strategy_satisfies_constraints(model: regard.Model, search: dict[str, Any]) -> None:
    assert model.predict("3 mai 2009", prefix="19", **search).text.startswith("19")
    first, _ = model.predict(["3 mai 2009", "x"], must_contain=[["777", "-4"], []], **search)
    assert "777" in first.text
    assert "-4" in first.text
    predictions = model.predict(TEXTS, banned=["0", "1-"], **search)
    assert not any("0" in prediction.text or "1-" in prediction.text for prediction in predictions)


def test_samples_are_determined_by_the_seed(model: regard.Model) -> None:
    first, second, other = (
        [p.text for p in model.predict(TEXTS, sample=True, temperature=3.0, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other
    several = model.predict("3 mai 2009", sample=True, temperature=3.0, nbest=4)
    assert len(several.alternatives) == 3


@pytest.mark.parametrize("search", [{"sample": True}, {"sample": True, "nbest": 3}, {"mbr_samples": 4, "nbest": 2}])
def test_a_sample_depends_on_the_seed_and_its_index_alone(model: regard.Model, search: dict[str, Any]) -> None:
    def sample(texts: list[str], **options: Any) -> list[list[str]]:
        predictions = model.predict(texts, temperature=3.0, seed=1, attention=False, **search, **options)
        return [[each.text for each in (best, *best.alternatives)] for best in predictions]

    texts = ["3 mai 2009", "x", "12 Sept. 1987, a Saturday", "3 mai 2009"]
    together = sample(texts, batch_size=4)
    assert sample(texts, batch_size=1) == sample(texts, batch_size=3) == together
    assert sample(texts[:2]) == together[:2]
    assert sample(["y" * 30, *texts[1:]])[1:] == together[1:]
    assert sample(texts[2:], first_index=2) == together[2:]
    assert together[0] != together[3]  # the same text at another index


@pytest.mark.parametrize("option", ["prefix", "must_contain"])
def test_a_text_cannot_be_required_and_banned(model: regard.Model, option: str) -> None:
    for required, banned in (("1999", "1999"), ("1999", "99")):
        options: dict[str, Any] = {option: required, "banned": banned}
        with pytest.raises(regard.ConfigError, match=f"{option}: '{required}' contains '{banned}', which is banned"):
            model.predict("3 mai 2009", **options)


def test_more_required_tokens_than_a_text_has_are_rejected(model: regard.Model) -> None:
    with pytest.raises(regard.ConfigError, match=r"the phrases have 1,200 tokens.* at most 1,000 \(tokenizer"):
        model.predict("3 mai 2009", must_contain=["0" * 600, "1" * 600])


def test_the_minimum_bayes_risk_prediction_does_not_depend_on_nbest(model: regard.Model) -> None:
    best = model.predict("3 mai 2009", mbr_samples=8, temperature=1.5, nbest=2)
    assert best.text
    assert best.text == model.predict("3 mai 2009", mbr_samples=8, temperature=1.5).text


def test_a_coverage_penalty_ranks_by_attention_to_the_source(model: regard.Model) -> None:
    default = model.predict(TEXTS[2], beam=6, nbest=6)
    reranked = model.predict(TEXTS[2], beam=6, nbest=6, coverage_penalty=50.0)

    def coverage(prediction: regard.Prediction) -> float:
        return float(np.log(np.clip(prediction.attention.sum(0), 1e-9, 1.0)).sum())

    assert {p.text for p in (default, *default.alternatives)} == {p.text for p in (reranked, *reranked.alternatives)}
    ended = [p for p in (reranked, *reranked.alternatives) if not p.truncated]
    assert coverage(ended[0]) >= coverage(ended[-1])


@pytest.mark.parametrize("search", [{"nbest": 3}, {"nbest": 4, "groups": 2}])
def test_the_default_beam_fits_nbest_and_groups(model: regard.Model, search: dict[str, Any]) -> None:
    default, explicit = model.predict(TEXTS[2], **search), model.predict(TEXTS[2], **search, beam=search["nbest"])
    assert [p.text for p in default.alternatives] == [p.text for p in explicit.alternatives]
    assert len(default.alternatives) == search["nbest"] - 1


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"beam": 2, "nbest": 3}, "cannot return 3 predictions"),
        ({"baem": 2}, "Did you mean 'beam'"),
        ({"beam": 4, "groups": 3}, "not divisible by 3 groups"),
        ({"beam": 4, "sample": True}, "cannot be combined"),
    ],
)
def test_invalid_search_settings_are_rejected(model: regard.Model, search: dict[str, Any], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        model.predict("x", **search)


def test_a_list_of_texts_needs_a_prefix_for_each(model: regard.Model) -> None:
    with pytest.raises(regard.ConfigError, match="prefix has 1 value for 2 texts"):
        model.predict(["x", "y"], prefix=["1"])


def test_the_explorer_samples_a_corpus_like_a_list(model: regard.Model) -> None:
    pairs = Pairs([f"{number} mai 2009" for number in range(1, 20)], [""] * 19)  # more than a batch
    search: dict[str, Any] = {"sample": True, "temperature": 3.0, "seed": 1}
    stream = CorpusPredictions(model, HeldOutPairs("test", pairs, 19)).stream(19, search)
    rows = [row["prediction"] for part in stream for row in part.get("rows", ())]
    assert rows == [prediction.text for prediction in model.predict(pairs.sources, **search)]
