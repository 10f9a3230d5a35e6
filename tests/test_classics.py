"""The classic experiments: their settings are valid, and a verdict follows from sentences and seeds."""

import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import bahdanau2015
import cheng2016
import classics
import luong2015
import vaswani2017
from classics import Contrast, Experiment, Results
from regard.config import resolve
from regard.runs.settings import RunSettings

EXPERIMENTS = [module.EXPERIMENT for module in (bahdanau2015, cheng2016, luong2015, vaswani2017)]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_systems_have_valid_settings_and_contrasts_name_systems(experiment: Experiment) -> None:
    args = Namespace(data=Path("data"), set=["training.steps=7"], seeds=3, only=None, out=Path("runs"))
    jobs = classics.list_jobs(experiment, args)
    assert len({job.folder for job in jobs}) == 3 * len(experiment.systems)
    settings = [resolve(RunSettings, job.settings, job.overrides) for job in jobs]
    assert {each.training.steps for each in settings} == {7}
    # All systems of an experiment have the same width.
    assert (
        len({str(each.model.model_dump().get("embedding", each.model.model_dump().get("size"))) for each in settings})
        == 1
    )
    for contrast in experiment.contrasts:
        assert {contrast.baseline, contrast.system} <= experiment.systems.keys()


def make_results(error_rates: dict[str, tuple[float, float]]) -> Results:
    """Return outputs in which words are wrong at random, with a rate for short and one for long sources."""
    generator = random.Random(0)
    lengths = [generator.choice([6, 8, 10, 16, 18]) for _ in range(150)]
    sources = [" ".join(f"w{generator.randrange(50)}" for _ in range(length)) for length in lengths]
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for system, rates in error_rates.items():
        for seed in range(3):
            outputs = []
            for source in sources:
                rate = rates[len(source.split()) > 10] + generator.uniform(0, 0.01)
                outputs.append(" ".join("?" if generator.random() < rate else word for word in source.split()))
            run = {"predictions": outputs, "losses": [[1.0, 2.0]] * 150, "seconds": 1.0, "parameters": 9}
            runs.setdefault(system, {})[seed] = run
    return Results(sources, sources, runs)


RESULTS = make_results({"good": (0.05, 0.05), "bad": (0.1, 0.5), "same": (0.05, 0.05)})


def judge(*contrasts: Contrast) -> list[str]:
    experiment = Experiment("test", {"good": {}, "bad": {}, "same": {}}, contrasts)
    return [outcome.verdict for outcome in classics.compare_systems(experiment, RESULTS)]


def test_a_clear_difference_holds_in_one_direction_only() -> None:
    assert judge(Contrast("bad", "good", "higher", "")) == ["holds"]
    assert judge(Contrast("bad", "good", "lower", "")) == ["does not hold"]
    assert judge(Contrast("same", "good", "higher", "")) == ["not significant"]


def test_equal_systems_are_equal_within_a_margin() -> None:
    assert judge(Contrast("same", "good", "equal", "", margin=20.0)) == ["holds"]
    assert judge(Contrast("same", "good", "equal", "", margin=0.01)) == ["not significant"]
    assert judge(Contrast("bad", "good", "equal", "", margin=20.0)) == ["does not hold"]


def test_a_gap_that_grows_with_length_is_found() -> None:
    assert judge(Contrast("bad", "good", "higher", "", "BLEU, long − short")) == ["holds"]
    assert judge(Contrast("same", "good", "higher", "", "BLEU, long − short")) == ["not significant"]


def test_a_metric_of_long_sources_ignores_short_ones() -> None:
    sources = ["short", "long " * 25 + "w", "longer " * 29 + "w"]
    run = {"predictions": ["x", sources[1], sources[2]]}
    (bleu,) = Results(sources, sources, {"a": {0: run}}).statistics("a", "BLEU, > 25 words").values()
    assert bleu.value == pytest.approx(100)
    run["predictions"] = [sources[0], "x", "x"]
    (bleu,) = Results(sources, sources, {"a": {0: run}}).statistics("a", "BLEU, > 25 words").values()
    assert bleu.value < 1


def test_one_seed_is_never_significant() -> None:
    one = Results(RESULTS.sources, RESULTS.references, {name: {0: runs[0]} for name, runs in RESULTS.runs.items()})
    experiment = Experiment("test", {"good": {}, "bad": {}}, [Contrast("bad", "good", "higher", "")])
    (outcome,) = classics.compare_systems(experiment, one)
    assert outcome.sentences.p_value < 0.01
    assert outcome.verdict == "not significant"


def test_results_are_written_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RESULTS.write(tmp_path / "results.json")
    read = Results.read(tmp_path / "results.json")
    assert read == RESULTS
    experiment = Experiment("test", {"good": {}, "bad": {}}, [Contrast("bad", "good", "higher", "Table 1")])
    classics.report(experiment, read, tmp_path / "figure.png")
    printed = capsys.readouterr().out
    assert "good − bad" in printed
    assert " holds " in printed
    assert (tmp_path / "figure.png").stat().st_size > 10_000
