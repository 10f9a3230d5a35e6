"""Metrics as settings: written as a label, as a mapping or with dotted keys."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import resolve
from regard.errors import ConfigError
from regard.evaluation.settings import metric_names, parse_metric, parse_metrics
from regard.runs.settings import RunSettings, TrainingSettings


@given(
    st.fixed_dictionaries(
        {"kind": st.just("bleu")},
        optional={
            "tokenize": st.sampled_from(["13a", "none", "intl", "char", "zh", "coco"]),
            "max_order": st.integers(1, 4),
            "lowercase": st.booleans(),
            "smooth": st.sampled_from(["exp", "floor", "add-k", "none"]),
            "references": st.sampled_from(["by_line", "by_source", "auto"]),
        },
    )
)
def test_a_label_is_parsed_back_to_the_same_metric(options: dict[str, Any]) -> None:
    metric = parse_metric(options)
    assert metric.model_dump().items() >= options.items()
    assert parse_metric(metric.label) == metric


def test_options_can_be_written_in_a_label_a_mapping_or_dotted_keys() -> None:
    expected = parse_metric({"kind": "bleu", "tokenize": "none", "lowercase": True})
    assert expected.model_dump().items() >= {"kind": "bleu", "tokenize": "none", "lowercase": True}.items()
    assert parse_metric("bleu:tokenize=none,lowercase=true") == expected
    assert parse_metric(expected) is expected
    dotted = {"training.metric": "bleu", "training.metric.tokenize": "none", "training.metric.lowercase": True}
    assert resolve(RunSettings, "dates", dotted).training.metric == expected
    assert expected.label == "bleu:tokenize=none,lowercase=true"
    assert parse_metric("bleu").label == "bleu"


def test_the_label_of_a_metric_without_options_is_its_kind() -> None:
    assert [parse_metric(kind).label for kind in metric_names()] == metric_names()
    higher = {kind for kind in metric_names() if parse_metric(kind).higher_is_better}
    assert higher == {"accuracy", "bleu", "chrf", "rouge_l", "cider"}
    assert {kind for kind in metric_names() if not parse_metric(kind).needs_predictions} == {"loss", "perplexity"}


def test_values_are_formatted_with_their_units() -> None:
    values = {"loss": "0.5000", "perplexity": "0.50", "accuracy": "50.00%", "ser": "0.50%", "bleu": "0.50"}
    assert {kind: parse_metric(kind).format(0.5) for kind in values} == values


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("blue", "Did you mean 'bleu'?"),
        ("bleu:tokenise=none", "Did you mean 'tokenize'?"),
        ("bleu:tokenize=13", "Did you mean '13a'?"),
        ("bleu:tokenize", "Write key=value"),
        ("wer:tokenize=none", "unknown setting 'metric.tokenize'"),
        ("", "Available: loss, perplexity"),
        (7, "metric = 7"),
    ],
)
def test_an_unknown_metric_is_rejected_with_the_nearest_name(choice: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_metric(choice)
    assert message in str(error.value)


def test_metrics_are_computed_once_and_always_include_the_loss() -> None:
    training = TrainingSettings.model_validate({"metric": "accuracy", "extra_metrics": ["accuracy", "bleu"]})
    assert [metric.label for metric in training.metrics] == ["accuracy", "bleu", "loss"]
    assert parse_metrics(["bleu", "bleu:tokenize=13a", {"kind": "bleu"}]) == [parse_metric("bleu")]
    assert TrainingSettings.model_validate({"extra_metrics": "bleu"}).extra_metrics == (parse_metric("bleu"),)


def test_an_error_in_a_list_of_metrics_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: dates\ntraining:\n  extra_metrics: [chrf, {kind: bleu, tokenise: none}]\n")
    with pytest.raises(ConfigError) as error:
        resolve(RunSettings, path, {})
    message = "mine.yaml:3: unknown setting 'training.extra_metrics.1.tokenise'. Did you mean 'tokenize'?"
    assert message in str(error.value)
