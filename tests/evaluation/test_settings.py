"""The names of the measures: a word, a mapping or a key of a file, and the same measure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.errors import ConfigError
from regard.evaluation.settings import KINDS, Accuracy, Bleu, Loss, parse_metric, parse_metrics
from regard.runs.settings import RunSettings, TrainingSettings


@given(
    st.builds(
        Bleu,
        tokenize=st.sampled_from(["13a", "none", "intl", "char", "zh"]),
        lowercase=st.booleans(),
        smooth=st.sampled_from(["exp", "floor", "add-k", "none"]),
        references=st.sampled_from(["by_line", "by_source", "auto"]),
    )
)
def test_a_label_is_read_back_as_the_measure_it_names(measure: Bleu) -> None:
    assert parse_metric(measure.label) == measure


def test_options_can_be_written_in_a_word_a_mapping_or_dotted_keys() -> None:
    expected = Bleu(tokenize="none", lowercase=True)
    assert parse_metric("bleu:tokenize=none,lowercase=true") == expected
    assert parse_metric({"kind": "bleu", "tokenize": "none", "lowercase": True}) == expected
    assert parse_metric(expected) is expected
    dotted = {"training.metric": "bleu", "training.metric.tokenize": "none", "training.metric.lowercase": True}
    assert resolve(RunSettings, "dates", dotted).training.metric == expected
    assert expected.label == "bleu:tokenize=none,lowercase=true"
    assert Bleu().label == "bleu"


def test_every_kind_has_a_name_that_is_its_label() -> None:
    assert [parse_metric(kind).label for kind in KINDS] == list(KINDS)
    assert {kind for kind in KINDS if parse_metric(kind).higher_is_better} == {"accuracy", "bleu", "chrf"}
    assert {kind for kind in KINDS if not parse_metric(kind).of_answers} == {"loss", "perplexity"}


def test_values_read_as_is_customary() -> None:
    values = {"loss": "0.5000", "perplexity": "0.50", "accuracy": "50.00%", "wer": "0.50%", "bleu": "0.50"}
    assert {kind: parse_metric(kind).told(0.5) for kind in values} == values


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("blue", "Did you mean 'bleu'?"),
        ("bleu:tokenize=none", "Did you mean 'tokenize'?"),
        ("bleu:tokenize=13", "Did you mean '13a'?"),
        ("bleu:tokenize", "write key=value"),
        ("wer:tokenize=none", "there is no setting 'metric.tokenize'"),
        ("", "Known: loss, perplexity"),
        (7, "metric = 7"),
    ],
)
def test_a_measure_that_is_none_is_told_with_the_nearest(choice: object, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_metric(choice)
    assert words in str(told.value)


def test_measures_are_worked_out_once_and_the_loss_always() -> None:
    training = TrainingSettings.model_validate({"metric": "accuracy", "extra_metrics": ["accuracy", "bleu"]})
    assert training.metrics == [Accuracy(), Bleu(), Loss()]
    assert parse_metrics(["bleu", "bleu:tokenize=13a", {"kind": "bleu"}]) == [Bleu()]
    assert TrainingSettings.model_validate({"extra_metrics": "bleu"}).extra_metrics == (Bleu(),)


def test_a_mistake_in_a_list_of_measures_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: dates\ntraining:\n  also: [chrf, {kind: bleu, tokenize: none}]\n")
    with pytest.raises(ConfigError) as told:
        resolve(RunSettings, path, {})
    assert "mine.yaml:3: there is no setting 'training.extra_metrics.1.tokenize'. Did you mean 'tokenize'?" in str(
        told.value
    )
