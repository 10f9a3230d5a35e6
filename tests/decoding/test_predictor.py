"""Text in, text out, through a trained model."""

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.data.batching import pad
from regard.data.tokens.tokenizers import END, START
from regard.ops.reference_mode import full_precision
from regard.runs.folder import RunFolder

TEXTS = ["3 mai 2009", "", "Sunday, May 3, 2009", "2009年5月3日", "\ufffd ☃", "x"]


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def logits_of(model: regard.Model, source: list[int], target: list[int]) -> Tensor:
    """The logits (T × V) after START and after each token of the target, computed on the device of the model."""
    device = model.predictor.device
    with full_precision():
        logits_BTV: Tensor = model.network(
            pad([source]).to(device), torch.tensor([[START, *target]], device=device)
        ).logits_BTV
    return logits_BTV[0]


def test_a_list_gives_a_list_in_order(model: regard.Model) -> None:
    together = model.predict(TEXTS)
    assert [prediction.source for prediction in together] == TEXTS
    for text, prediction in zip(TEXTS, together, strict=True):
        alone = model.predict(text)
        assert alone.text == prediction.text
        assert alone.score == pytest.approx(prediction.score, abs=1e-5)


@pytest.mark.parametrize("text", ["", "   ", " \t\u3000"])
def test_an_empty_text_has_an_empty_answer(model: regard.Model, text: str) -> None:
    for options in ({}, {"beam": 3}, {"sample": True}):
        empty = model.predict(text, **options)
        assert (empty.source, empty.text, empty.tokens, empty.truncated) == (text, "", [], False)
        assert empty.attention.shape == (0, 0)
    assert model.score(text, "2009") == model.score("", "2009")


def test_several_predictions_widen_the_beam(model: regard.Model) -> None:
    best = model.predict("3 mai 2009", nbest=3)
    assert len(best.alternatives) == 2
    assert best.text == model.predict("3 mai 2009", nbest=3, beam=3).text


def test_attention_has_a_row_for_each_token_and_a_column_for_each_source_token(model: regard.Model) -> None:
    for prediction in model.predict(TEXTS[2:]):
        assert prediction.attention.shape == (len(prediction.tokens), len(prediction.source_tokens))
        np.testing.assert_allclose(prediction.attention.sum(-1), 1.0, rtol=1e-5)
        assert "".join(prediction.tokens) == prediction.text
        assert "".join(prediction.source_tokens) == prediction.source


def test_the_attention_shown_is_the_one_used(model: regard.Model) -> None:
    """Recorded while searching, step by step, it is that of the second pass."""
    text = "3 mai 2009"
    shown = model.predict(text).attention
    with regard.record(model.network) as trace:
        model.predictor.translate([text])
    np.testing.assert_allclose(trace.weights["decoder.attention"][0, : len(shown)].cpu().numpy(), shown, atol=1e-6)


def test_the_score_is_the_log_probability_of_the_answer(model: regard.Model) -> None:
    for prediction in model.predict(TEXTS[2:]):
        tokenizers = model.predictor.tokenizers
        [source], [target] = tokenizers.source.ids([prediction.source]), tokenizers.target.ids([prediction.text])
        with torch.no_grad():
            logits = logits_of(model, source, target)
        said = target if prediction.truncated else [*target, END]
        expected = sum(float(logits[step].log_softmax(-1)[token]) for step, token in enumerate(said))
        assert prediction.score == pytest.approx(expected, abs=1e-4)
        if not prediction.truncated:
            assert prediction.score == pytest.approx(model.score(prediction.source, prediction.text), abs=1e-4)


def test_scoring_a_pair_is_the_sum_over_its_tokens(model: regard.Model) -> None:
    tokenizers = model.predictor.tokenizers
    [source], [target] = tokenizers.source.ids(["3 mai 2009"]), tokenizers.target.ids(["2009-05-03"])
    with torch.no_grad():
        log_p = logits_of(model, source, target).log_softmax(-1)
    expected = sum(float(log_p[step, token]) for step, token in enumerate([*target, END]))
    assert model.score("3 mai 2009", "2009-05-03") == pytest.approx(expected, abs=1e-4)
    several = model.score(["3 mai 2009", "x"], ["2009-05-03", "2009"])
    assert several == pytest.approx([expected, model.score("x", "2009")], abs=1e-4)
    with pytest.raises(regard.ConfigError, match="2 sources and 1 targets"):
        model.score(["a", "b"], ["c"])


def test_predicting_leaves_a_model_in_training_as_it_was(model: regard.Model) -> None:
    model.network.train()
    model.predict("3 mai 2009")
    assert model.network.training
    model.network.eval()


def test_a_source_that_is_too_long_is_cut_and_said(model: regard.Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        prediction = model.predict("3 mai 2009 " * 200)
    assert len(prediction.source_tokens) == 1000
    assert "Truncated 1 source to 1,000 tokens" in caplog.text


def test_half_a_character_is_replaced(model: regard.Model) -> None:
    assert model.predict("\ud800 3 mai 2009").text == model.predict("? 3 mai 2009").text


def test_no_gradient_is_kept(model: regard.Model) -> None:
    model.predict("3 mai 2009")
    assert all(parameter.grad is None for parameter in model.network.parameters())
    assert torch.is_grad_enabled()


def test_a_beam_of_one_is_greedy_search(model: regard.Model) -> None:
    greedy = model.predict(TEXTS)
    assert [p.text for p in model.predict(TEXTS, beam=1, length_penalty=2.0)] == [p.text for p in greedy]


def test_nbest_are_alternatives_sorted_distinct_and_scored_as_the_model_scores_them(
    model: regard.Model,
) -> None:
    for text, best in zip(TEXTS, model.predict(TEXTS, beam=4, nbest=4, length_penalty=0.0), strict=True):
        answers = [best, *best.alternatives]
        assert len(answers) == (4 if text else 1)
        assert len({answer.text for answer in answers}) == len(answers)
        whole = [answer for answer in answers if text and not answer.truncated]
        assert [a.score for a in whole] == sorted((a.score for a in whole), reverse=True)
        for answer in whole:
            assert answer.score == pytest.approx(model.score(text, answer.text), abs=1e-3)
            assert answer.attention.shape == (len(answer.tokens), len(answer.source_tokens))


def test_wishes_are_granted_by_every_strategy(model: regard.Model) -> None:
    for search in ({}, {"beam": 3}, {"sample": True}):
        begun = model.predict("3 mai 2009", prefix="19", **search)
        assert begun.text.startswith("19")
        said = model.predict(["3 mai 2009", "x"], must_say=[["777", "-4"], []], **search)
        assert "777" in said[0].text
        assert "-4" in said[0].text
        without = model.predict(TEXTS, banned=["0", "1-"], **search)
        assert not any("0" in answer.text or "1-" in answer.text for answer in without)


def test_drawing_is_decided_by_its_seed(model: regard.Model) -> None:
    once, again, other = (
        [p.text for p in model.predict(TEXTS, sample=True, temperature=3.0, seed=seed)] for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other
    several = model.predict("3 mai 2009", sample=True, temperature=3.0, nbest=4)
    assert len(several.alternatives) == 3


def test_minimum_risk_takes_the_answer_most_like_the_others(model: regard.Model) -> None:
    found = model.predict("3 mai 2009", mbr_samples=8, temperature=1.5, nbest=2)
    assert found.text
    assert found.text == model.predict("3 mai 2009", mbr_samples=8, temperature=1.5).text


def test_a_coverage_penalty_ranks_by_what_was_looked_at(model: regard.Model) -> None:
    plain = model.predict(TEXTS[2], beam=6, nbest=6)
    covering = model.predict(TEXTS[2], beam=6, nbest=6, coverage_penalty=50.0)

    def covered(answer: regard.Prediction) -> float:
        return float(np.log(np.clip(answer.attention.sum(0), 1e-9, 1.0)).sum())

    assert {a.text for a in (plain, *plain.alternatives)} == {a.text for a in (covering, *covering.alternatives)}
    whole = [a for a in (covering, *covering.alternatives) if not a.truncated]
    assert covered(whole[0]) >= covered(whole[-1])


def test_a_beam_that_nobody_speaks_of_has_room_for_the_answers(model: regard.Model) -> None:
    for search in ({"nbest": 3}, {"nbest": 4, "groups": 2}):
        ours, wide = model.predict(TEXTS[2], **search), model.predict(TEXTS[2], **search, beam=search["nbest"])
        assert [found.text for found in ours.alternatives] == [found.text for found in wide.alternatives]
        assert len(ours.alternatives) == search["nbest"] - 1


def test_search_settings_that_do_not_fit_are_refused(model: regard.Model) -> None:
    with pytest.raises(regard.ConfigError, match="has no 3 answers"):
        model.predict("x", beam=2, nbest=3)
    with pytest.raises(regard.ConfigError, match="Did you mean 'beam'"):
        model.predict("x", baem=2)
    with pytest.raises(regard.ConfigError, match="must divide the beam"):
        model.predict("x", beam=4, groups=3)
    with pytest.raises(regard.ConfigError, match="give one for each"):
        model.predict(["x", "y"], prefix=["1"])
