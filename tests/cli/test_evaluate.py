"""`regard evaluate` in a process: values with signatures, limits with exit codes, input and output files."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from sacrebleu.metrics.bleu import BLEU

import regard
from regard.evaluation.settings import Metric, metric_names
from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

SOURCES = ["3 mai 2009", "x", "May 3, 2009", "3 mai 2009"]


@pytest.fixture
def predictions(small_run: RunFolder, tmp_path: Path) -> list[str]:
    """Predict SOURCES, and write files of pairs in which only the prediction for the first source is correct."""
    texts = [prediction.text for prediction in regard.load(small_run.path).predict(SOURCES, attention=False)]
    targets = [texts[0], "never this", "nor this", "or this"]
    lines = [f"{source}\t{target}\n" for source, target in zip(SOURCES, targets, strict=True)]
    (tmp_path / "half.tsv").write_text("".join(lines[:2]))
    (tmp_path / "all.tsv").write_text("".join(lines))
    (tmp_path / "three.tsv").write_text("".join(f"{n}\t{line}" for n, line in enumerate(lines)))
    (tmp_path / "a.txt").write_text("".join(f"{source}\n" for source in SOURCES))
    (tmp_path / "b.txt").write_text("".join(f"{target}\n" for target in targets))
    return texts


def test_without_files_a_model_is_scored_on_its_test_set(cli: Run, small_run: RunFolder) -> None:
    done = cli("evaluate", small_run.path, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["pairs"] == 40
    assert list(scores["values"]) == list(scores["signatures"]) == ["accuracy", "chrf", "loss"]
    assert scores["search"]["beam"] == 1
    assert scores["seconds"] > 0
    assert scores["tokens_per_second"] > 0
    assert scores["step"] == small_run.best().step


def test_the_table_goes_to_stdout_and_everything_else_to_stderr(
    cli: Run, small_run: RunFolder, predictions: list[str]
) -> None:
    done = cli("evaluate", small_run.path, "--pairs", "half.tsv", "--metric", "accuracy", "bleu:tokenize=none")
    header, accuracy, bleu = done.stdout.splitlines()
    assert header.split() == ["metric", "on", "2", "pairs", "signature"]
    assert accuracy.split()[:2] == ["accuracy", "50.00%"]
    assert bleu.startswith("bleu:tokenize=none")
    assert "|tok:none|" in bleu
    assert "greedy search" in done.stderr
    assert "tokens/s" in done.stderr


def test_every_metric_has_a_confidence_interval(cli: Run, small_run: RunFolder, predictions: list[str]) -> None:
    names = [name for name in metric_names() if name not in Metric.registry.plugins]
    command = ["evaluate", small_run.path, "--pairs", "all.tsv", "--metric", *names, "--confidence", "--json"]
    scores = json.loads(cli(*command).stdout)
    assert list(scores["values"]) == names
    assert (scores["pairs"], scores["sources"]) == (4, 3)
    assert scores["values"]["accuracy"] == pytest.approx(1 / 3)
    assert scores["values"]["ser"] == pytest.approx(200 / 3)
    assert all(low <= scores["values"][kind] <= high for kind, (low, high) in scores["confidence"].items())
    assert json.loads(cli(*command).stdout)["confidence"] == scores["confidence"]


def test_limits_set_the_exit_code(cli: Run, small_run: RunFolder, predictions: list[str]) -> None:
    half = ["evaluate", small_run.path, "--pairs", "half.tsv"]
    assert cli(*half, "--min", "accuracy=0.5", "--max", "ser=50").returncode == 0
    violated = cli(*half, "--min", "accuracy=0.6", "chrf=0", "--max", "ser=49.9")
    assert violated.returncode == 1
    assert "accuracy is 0.5000, below 0.6; ser is 50.0000, above 49.9." in violated.stderr
    assert "50.00%" in violated.stdout


def test_a_limit_applies_to_the_requested_metric_of_its_kind(
    cli: Run, small_run: RunFolder, predictions: list[str]
) -> None:
    half = ["evaluate", small_run.path, "--pairs", "half.tsv", "--json"]
    values = json.loads(cli(*half, "--metric", "bleu:tokenize=char", "--min", "bleu=0").stdout)["values"]
    assert list(values) == ["bleu:tokenize=char"]
    values = json.loads(cli(*half, "--metric", "loss", "--min", "bleu:tokenize=char=0").stdout)["values"]
    assert list(values) == ["loss", "bleu:tokenize=char"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min", "acuracy=0.6"], "Did you mean 'accuracy'?"),
        (["--min", "accuracy"], "write METRIC=VALUE"),
        (["--min", "accuracy=high"], "write METRIC=VALUE"),
        (["--min", "accuracy=nan"], "write METRIC=VALUE"),
        (["--min", "=0.6"], "write METRIC=VALUE"),
        (["--min", "ser=20"], "lower ser is better. Use --max ser=20."),
        (["--max", "bleu=20"], "higher bleu is better. Use --min bleu=20."),
        (["--metric", "bleu", "chrff"], "Did you mean 'chrf'?"),
        (["--metric", "bleu:tokenze=none"], "Did you mean 'tokenize'?"),
        (["--set", "bean=5"], "Did you mean 'beam'?"),
        (["--set", "beam"], "Write key=value"),
        (["--beam", "0"], "--beam"),
        (["--source", "a"], "must be used together"),
        (["--pairs", "a", "--source", "a", "--target", "b"], "not both"),
        (["--columns", "1", "2"], "--columns and --header need --pairs"),
        (["--pairs", "a", "--columns", "0", "1"], "columns"),
        (["--out", "nowhere/out.txt"], "there is no folder nowhere"),
        (["--out", "out.txt", "--metric", "loss"], "need no predictions"),
    ],
)
def test_a_usage_error_is_reported_before_the_model_is_loaded(
    cli: Run, small_run: RunFolder, options: list[str], message: str
) -> None:
    done = cli("evaluate", small_run.path, *options)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_predictions_are_written_one_per_line(
    cli: Run, small_run: RunFolder, predictions: list[str], tmp_path: Path
) -> None:
    files = ["--source", "a.txt", "--target", "b.txt"]
    done = cli("evaluate", small_run.path, *files, "--out", "out.txt", "--metric", "bleu", "--json")
    written = (tmp_path / "out.txt").read_text().splitlines()
    assert written == predictions
    references = (tmp_path / "b.txt").read_text().splitlines()
    expected = BLEU().corpus_score(written, [references]).score
    assert json.loads(done.stdout)["values"]["bleu"] == pytest.approx(expected)


def test_columns_and_search_settings_can_be_given(cli: Run, small_run: RunFolder, predictions: list[str]) -> None:
    command = ["evaluate", small_run.path, "--pairs", "three.tsv", "--columns", "2", "3", "--json"]
    scores = json.loads(cli(*command, "--beam", "3", "--set", "length_penalty=0").stdout)
    assert scores["pairs"] == 4
    assert (scores["search"]["beam"], scores["search"]["length_penalty"]) == (3, 0)
    assert cli(*command[:4], "--columns", "2", "9").returncode == 3


def test_an_ensemble_is_scored(
    cli: Run, small_run: RunFolder, second_run: RunFolder, predictions: list[str], tmp_path: Path
) -> None:
    files = ["--source", "a.txt", "--target", "b.txt"]
    search = ["--beam", "3", "--out", "out.txt", "--json"]
    done = cli("evaluate", small_run.path, "--with", second_run.path, *files, *search, "--metric", "chrf", "loss")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["model"], report["step"]) == (str(small_run.path), small_run.best().step)
    assert report["with"] == [{"model": str(second_run.path), "step": second_run.best().step}]
    model = regard.load(small_run.path, second_run.path)
    assert (tmp_path / "out.txt").read_text().splitlines() == [a.text for a in model.predict(SOURCES, beam=3)]
    # −log of the average probability, per token: the characters of a target and its end token.
    targets = (tmp_path / "b.txt").read_text().splitlines()
    tokens = sum(len(target) + 1 for target in targets)
    assert report["values"]["loss"] == pytest.approx(-sum(model.score(SOURCES, targets)) / tokens, rel=1e-5)
    single = [regard.load(run.path).evaluate(SOURCES, targets, metrics=["loss"]) for run in (small_run, second_run)]
    assert report["values"]["loss"] < sum(member["loss"] for member in single) / 2  # −log is convex
    in_python = model.evaluate(SOURCES, targets, metrics=["chrf", "loss"], beam=3)
    assert report["values"] == pytest.approx(in_python.metric_values.values)


def test_metrics_can_come_before_the_model(cli: Run, small_run: RunFolder, predictions: list[str]) -> None:
    done = cli("evaluate", "--json", "--pairs", "half.tsv", "--metric", "bleu", "per", small_run.path)
    assert list(json.loads(done.stdout)["values"]) == ["bleu", "per"]


def test_evaluation_uses_the_metrics_and_search_of_validation(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "model")
    config = yaml.safe_load((tmp_path / "model" / "config.yaml").read_text("utf-8"))
    config["training"] |= {"metric": "ser", "extra_metrics": ["per"], "validation_search": {"beam": 2}}
    (tmp_path / "model" / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    scores = json.loads(cli("evaluate", "model", "--json").stdout)
    assert list(scores["values"]) == ["ser", "per", "accuracy", "chrf", "loss"]
    assert scores["search"]["beam"] == 2
    assert json.loads(cli("evaluate", "model", "--json", "--beam", "1").stdout)["search"]["beam"] == 1


def test_breakdowns_cover_all_sentences_and_the_worst_are_listed(
    cli: Run, small_run: RunFolder, predictions: list[str]
) -> None:
    options = ("--pairs", "all.tsv", "--metric", "accuracy", "cer", "--worst", "2")
    done = cli("evaluate", small_run.path, *options, "--breakdown", "length", "frequency", "unseen", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["breakdown"]) == ["length", "frequency", "unseen"]
    for part in result["breakdown"].values():
        assert sum(group["sentences"] for group in part["groups"]) == 3  # distinct sources
        correct = sum(group["sentences"] * group["values"]["accuracy"] for group in part["groups"])
        assert correct == pytest.approx(3 * result["values"]["accuracy"])
    assert result["breakdown"]["frequency"]["words"]
    worst = result["worst"]
    assert [sentence["accuracy"] for sentence in worst] == [0.0, 0.0]
    assert {sentence["line"] for sentence in worst} == {2, 3}
    assert all(sentence["prediction"] == predictions[sentence["line"] - 1] for sentence in worst)
    text = cli("evaluate", small_run.path, *options, "--breakdown").stdout
    assert "source length in characters" in text
    assert "training frequency of target words" in text
    assert "source words not in the training data" in text
    assert f"  prediction  {worst[0]['prediction']}" in text


def test_words_are_counted_in_another_training_file(
    cli: Run, small_run: RunFolder, predictions: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.tsv").write_text("3 mai 2009\t2009-05-03\n")
    options = ("--pairs", "half.tsv", "--breakdown", "unseen", "--train", "train.tsv", "--json")
    groups = json.loads(cli("evaluate", small_run.path, *options).stdout)["breakdown"]["unseen"]["groups"]
    assert [(group["from"], group["to"], group["sentences"]) for group in groups] == [(0, 0, 1), (1, 1, 1)]


def test_the_worst_sentences_can_be_ranked_by_the_probability_of_the_reference(
    cli: Run, small_run: RunFolder, predictions: list[str]
) -> None:
    options = ("--pairs", "all.tsv", "--metric", "accuracy", "--worst", "4", "--worst-by", "loss", "--json")
    worst = json.loads(cli("evaluate", small_run.path, *options).stdout)["worst"]
    losses = [sentence["loss"] for sentence in worst]
    assert losses == sorted(losses, reverse=True)
    model = regard.load(small_run.path)
    log_p = model.score(worst[0]["source"], worst[0]["references"][0])
    assert losses[0] == pytest.approx(-log_p / (len(worst[0]["references"][0]) + 1), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "all.tsv"), "--train needs --breakdown frequency"),
        (("--worst-by", "loss"), "--worst-by needs --worst"),
        (("--breakdown", "lenght"), "lenght"),
        (("--breakdown", "unseen", "--train", "missing.tsv"), "missing.tsv"),
    ],
)
def test_invalid_breakdowns_are_reported(
    cli: Run, small_run: RunFolder, predictions: list[str], options: tuple[str, ...], message: str
) -> None:
    done = cli("evaluate", small_run.path, "--pairs", "half.tsv", *options)
    assert done.returncode in {2, 3}
    assert message in done.stderr
    assert not done.stdout
