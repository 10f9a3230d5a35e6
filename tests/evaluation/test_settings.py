"""The names of the measures: a word, a mapping or a key of a file, and the same measure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.errors import ConfigError
from regard.evaluation.settings import KINDS, Accuracy, Bleu, Loss, read_measure, read_measures
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
    assert read_measure(measure.label) == measure


def test_options_can_be_written_in_a_word_a_mapping_or_dotted_keys() -> None:
    expected = Bleu(tokenize="none", lowercase=True)
    assert read_measure("bleu:tokenize=none,lowercase=true") == expected
    assert read_measure({"kind": "bleu", "tokenize": "none", "lowercase": True}) == expected
    assert read_measure(expected) is expected
    dotted = {"training.metric": "bleu", "training.metric.tokenize": "none", "training.metric.lowercase": True}
    assert resolve(RunSettings, "dates", dotted).training.metric == expected
    assert expected.label == "bleu:tokenize=none,lowercase=true"
    assert Bleu().label == "bleu"


def test_every_kind_has_a_name_that_is_its_label() -> None:
    assert [read_measure(kind).label for kind in KINDS] == list(KINDS)
    assert {kind for kind in KINDS if read_measure(kind).higher_is_better} == {"accuracy", "bleu", "chrf"}
    assert {kind for kind in KINDS if not read_measure(kind).of_answers} == {"loss", "perplexity"}


def test_values_read_as_is_customary() -> None:
    values = {"loss": "0.5000", "perplexity": "0.50", "accuracy": "50.00%", "wer": "0.50%", "bleu": "0.50"}
    assert {kind: read_measure(kind).told(0.5) for kind in values} == values


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("blue", "Did you mean 'bleu'?"),
        ("bleu:tokenise=none", "Did you mean 'tokenize'?"),
        ("bleu:tokenize=13", "Did you mean '13a'?"),
        ("bleu:tokenize", "write key=value"),
        ("wer:tokenize=none", "there is no setting 'metric.tokenize'"),
        ("", "Known: loss, perplexity"),
        (7, "metric = 7"),
    ],
)
def test_a_measure_that_is_none_is_told_with_the_nearest(choice: object, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        read_measure(choice)
    assert words in str(told.value)


def test_measures_are_worked_out_once_and_the_loss_always() -> None:
    training = TrainingSettings.model_validate({"metric": "accuracy", "also": ["accuracy", "bleu"]})
    assert training.measures == [Accuracy(), Bleu(), Loss()]
    assert read_measures(["bleu", "bleu:tokenize=13a", {"kind": "bleu"}]) == [Bleu()]
    assert TrainingSettings.model_validate({"also": "bleu"}).also == (Bleu(),)


def test_a_mistake_in_a_list_of_measures_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: dates\ntraining:\n  also: [chrf, {kind: bleu, tokenise: none}]\n")
    with pytest.raises(ConfigError) as told:
        resolve(RunSettings, path, {})
    assert "mine.yaml:3: there is no setting 'training.also.1.tokenise'. Did you mean 'tokenize'?" in str(told.value)
