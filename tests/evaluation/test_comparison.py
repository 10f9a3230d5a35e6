"""Comparisons of systems: differences from the baseline, all pairs, groups of seeds, disagreements."""

from typing import Any

import numpy as np
import pytest

from regard.evaluation.comparison import System, SystemComparison, name_group
from regard.evaluation.metrics import EvaluationSet, ModelOutputs, compute_statistics
from regard.evaluation.settings import parse_metrics
from regard.evaluation.significance import CorrectionName, SignificanceTest, compare_pair

METRICS = parse_metrics(["accuracy", "cer"])
COUNT = 60
REFERENCES = [f"reference {number}" for number in range(COUNT)]


def make_system(name: str, errors: int, **details: Any) -> System:
    """Return a system that gets the first sentences wrong."""
    predictions = ["wrong" if line < errors else text for line, text in enumerate(REFERENCES)]
    outputs = ModelOutputs(make_set(), predictions, np.zeros((0, 2)))
    return System(name, predictions, {metric: compute_statistics(metric, outputs) for metric in METRICS}, **details)


def make_set() -> EvaluationSet:
    return EvaluationSet.from_lists([f"source {number}" for number in range(COUNT)], REFERENCES)


def make_comparison(*systems: System, correction: CorrectionName = "holm", baseline: int = 0) -> SystemComparison:
    test = SignificanceTest(resamples=300)
    return SystemComparison(list(systems), make_set(), METRICS, systems[baseline], test, correction)


def test_differences_are_those_of_the_pairs_of_systems() -> None:
    first, second, third = make_system("a", 20), make_system("b", 10), make_system("c", 19)
    numbers = make_comparison(first, second, third)
    assert set(numbers.differences) == {(name, metric) for name in "bc" for metric in METRICS}
    better = numbers.differences["b", METRICS[0]]
    expected = compare_pair(first.statistics[METRICS[0]], second.statistics[METRICS[0]], numbers.test)
    assert better.difference == expected
    assert better.difference.value == pytest.approx(10 / 60)
    assert better.corrected_p_value == pytest.approx(min(1.0, 2 * expected.p_value))  # Holm: the smaller of two
    assert better.significant
    assert not numbers.differences["c", METRICS[0]].significant
    assert numbers.interval(second, METRICS[0]) == second.statistics[METRICS[0]].confidence_interval(resamples=300)


def test_all_pairs_are_corrected_together() -> None:
    numbers = make_comparison(make_system("a", 20), make_system("b", 10), make_system("c", 5))
    pairs = [(first, second) for first, second, metric in numbers.pairwise if metric == METRICS[0]]
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    tested = numbers.pairwise["a", "c", METRICS[0]]
    assert tested.corrected_p_value == pytest.approx(3 * tested.difference.p_value)
    uncorrected = make_comparison(*numbers.systems, correction="none")
    assert uncorrected.pairwise["a", "c", METRICS[0]].corrected_p_value == tested.difference.p_value


def test_few_resamples_cannot_give_small_corrected_p_values() -> None:
    systems = [make_system(name, errors) for name, errors in zip("abc", (20, 10, 5), strict=True)]
    assert make_comparison(*systems).smallest_p_value(30) == pytest.approx(30 / 301)
    assert make_comparison(*systems, correction="bh").smallest_p_value(30) == pytest.approx(1 / 301)


def test_lower_is_better_for_error_rates() -> None:
    numbers = make_comparison(make_system("a", 20), make_system("b", 10))
    difference = numbers.differences["b", METRICS[1]].difference
    assert difference.value < 0
    assert difference.share_better > 0.95


def test_runs_that_differ_only_in_the_seed_are_grouped() -> None:
    runs = [
        make_system(f"{kind}-seed{seed}", errors + seed, settings={"seed": seed, "model": kind, "about": str(seed)})
        for kind, errors in (("gru", 10), ("lstm", 20))
        for seed in (0, 1, 2)
    ]
    numbers = make_comparison(*runs, make_system("other", 5))
    gru, lstm = numbers.seed_groups
    assert (gru.name, lstm.name) == ("gru", "lstm")
    assert gru.mean(METRICS[0]) == pytest.approx(1 - 11 / 60)
    assert gru.deviation(METRICS[0]) == pytest.approx(1 / 60)
    difference, corrected = numbers.seed_differences["lstm", METRICS[0]]
    assert difference.value == pytest.approx(-10 / 60)
    assert difference.test == "paired t-test"
    assert corrected == difference.p_value  # one comparison


def test_a_run_and_its_copy_are_not_two_seeds() -> None:
    settings = {"seed": 0, "model": "gru"}
    numbers = make_comparison(make_system("a", 10, settings=settings), make_system("copy", 10, settings=settings))
    assert numbers.seed_groups == []
    assert numbers.seed_differences == {}


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["dates/seed-0", "dates/seed-1"], "dates"),
        (["gru_s1", "gru_s2"], "gru_s"),
        (["seed-0", "seed-1"], ""),
        (["one"], "one"),
        (["run-10", "run-11"], "run"),
    ],
)
def test_groups_are_named_after_what_their_runs_have_in_common(names: list[str], group: str) -> None:
    assert name_group(names) == group


def test_disagreements_are_the_sentences_that_only_one_system_gets_right() -> None:
    numbers = make_comparison(make_system("a", 20), make_system("b", 18))
    found = numbers.find_disagreements(METRICS[0], 10)
    assert [disagreement.line for disagreement in found] == [18, 19]
    assert found[0].values == {"a": 0.0, "b": 1.0}


def test_among_equal_disagreements_the_largest_errors_come_first() -> None:
    wrong = [REFERENCES[0] + "!", "something else entirely", *REFERENCES[2:]]
    outputs = ModelOutputs(make_set(), wrong, np.zeros((0, 2)))
    statistics = {metric: compute_statistics(metric, outputs) for metric in METRICS}
    numbers = make_comparison(System("a", wrong, statistics), make_system("b", 0))
    assert [disagreement.line for disagreement in numbers.find_disagreements(METRICS[0], 10)] == [1, 0]


def test_lengths_are_broken_down_for_each_system() -> None:
    numbers = make_comparison(make_system("a", 20), make_system("b", 10))
    groups = numbers.break_down_by_length(numbers.systems[1])
    assert sum(group.sentences for group in groups) == COUNT
    assert sum(group.sentences * group.values["accuracy"] for group in groups) == pytest.approx(50)
