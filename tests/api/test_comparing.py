"""`regard.compare`: runs and outputs on the same sentences, and clear errors if they are not comparable."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.api.comparing import name_paths
from regard.errors import ArgumentTypeError, ConfigError, DataError, ModelError
from regard.runs.folder import RunFolder

PAIRS = [("3 mai 2009", "2009-05-03"), ("May 3, 2009", "2009-05-03"), ("14 juillet 1789", "1789-07-14")]
REFERENCES = [target for _, target in PAIRS]


def test_runs_are_compared_on_their_test_set(small_run: RunFolder, second_run: RunFolder) -> None:
    comparison = regard.compare(small_run.path, second_run.path, resamples=50)
    assert comparison.sentences == 40
    assert [system.name for system in comparison.systems] == ["small", "second"]
    assert [metric.label for metric in comparison.numbers.metrics] == ["accuracy", "chrf"]
    for system, folder in zip(comparison.systems, (small_run, second_run), strict=True):
        model = regard.load(folder.path)
        expected = model.evaluate(*_read_test(folder), metrics=["chrf"])
        assert system.predictions == expected.predictions
        assert system.statistics[comparison.numbers.metrics[1]].value == expected["chrf"]
        assert system.parameters == sum(parameter.numel() for parameter in model.network.parameters())
        weights = (folder.best().path / "model.safetensors").stat().st_size
        assert weights < (system.disk_bytes or 0) < weights + 50_000
        assert system.tokens_per_second is not None
        assert system.tokens_per_second > 0
        assert 0 < (system.attention_entropy or 0) < 1
    text = comparison.to_text()
    assert "with batches of 64 on" in text
    assert "sentences/s" in text
    report = comparison.to_html()
    assert "<h2>Learning curves</h2>" in report
    assert "model.decoder.order" in report


def _read_test(folder: RunFolder) -> tuple[list[str], list[str]]:
    from regard.runs.pairs import read_test_set

    test = read_test_set(folder, folder.best())
    return test.sources, test.targets


def test_runs_and_outputs_are_compared(small_run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "theirs.txt"
    path.write_text("".join(f"{reference}\n" for reference in REFERENCES))
    comparison = regard.compare(
        small_run.path, outputs={"theirs": path, "ours": ["a", "b", "c"]}, pairs=PAIRS, baseline="theirs", beam=2
    )
    assert comparison.numbers.baseline.name == "theirs"
    accuracy = comparison.numbers.metrics[0]
    assert [system.statistics[accuracy].value for system in comparison.systems[1:]] == [1.0, 0.0]
    assert comparison.numbers.differences["ours", accuracy].difference.value == -1.0
    assert comparison.systems[0].search is not None
    assert comparison.systems[0].search.beam == 2
    assert comparison.systems[1].parameters is None


@pytest.mark.parametrize(("folder", "name"), [("small-seed{}", "small"), ("dates/seed-{}", "dates")])
def test_runs_with_other_seeds_are_grouped(small_run: RunFolder, tmp_path: Path, folder: str, name: str) -> None:
    paths = [tmp_path / folder.format(seed) for seed in range(2)]
    for seed, path in enumerate(paths):
        shutil.copytree(small_run.path, path)
        config = path / "config.yaml"
        config.write_text(config.read_text().replace("\nseed: 0\n", f"\nseed: {seed}\n", 1))
    (group,) = regard.compare(*paths, pairs=PAIRS, metrics=["cer"], resamples=20).numbers.seed_groups
    assert group.name == name
    assert [system.seed for system in group.systems] == [0, 1]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "other/b"], ["a", "b"]),
        (["runs/a/seed-0", "runs/b/seed-0", "runs/b/seed-1"], ["a/seed-0", "b/seed-0", "b/seed-1"]),
        (["out/ours.txt", "theirs.txt"], ["ours", "theirs"]),
        (["runs/a", "runs/a"], ["runs/a", "runs/a"]),
        ([], []),
    ],
)
def test_systems_are_named_by_the_parts_that_distinguish_them(paths: list[str], names: list[str]) -> None:
    assert name_paths(paths) == names


def test_what_train_returned_can_be_compared(small_run: RunFolder) -> None:
    run = regard.Run(small_run.path, None, 30)
    comparison = regard.compare(run, outputs={"other": REFERENCES}, pairs=PAIRS, resamples=20, metrics="cer")
    assert comparison.systems[0].path == str(small_run.path)


def test_without_runs_the_metrics_are_those_of_translation() -> None:
    comparison = regard.compare(outputs={"a": REFERENCES, "b": REFERENCES}, references=[[r, "x"] for r in REFERENCES])
    assert [metric.label for metric in comparison.numbers.metrics] == ["bleu", "chrf"]
    assert comparison.device is None
    assert "tokens/s" not in comparison.to_text()


def test_runs_with_different_test_sets_are_rejected(
    small_run: RunFolder, second_run: RunFolder, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(second_run.path, other)
    (other / "config.yaml").write_text((other / "config.yaml").read_text().replace("test: 40", "test: 30"))
    with pytest.raises(DataError, match=r"different test sets \(40 pairs and 30 pairs\).*--pairs"):
        regard.compare(small_run.path, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": {"a": REFERENCES}, "references": REFERENCES}, "There is one system to compare"),
        ({"outputs": {}, "references": REFERENCES}, "There is nothing to compare"),
        ({"outputs": {"a": REFERENCES, "b": REFERENCES}}, "Outputs need references"),
        ({"pairs": PAIRS, "references": REFERENCES}, "not both"),
        ({"sources": REFERENCES}, "sources need references"),
        ({"references": REFERENCES, "baseline": "c"}, "The baseline 'c' is not one of the systems: a, b"),
        (
            {"references": REFERENCES, "test": "bootstap"},
            "test must be one of bootstrap, randomization, not 'bootstap'. Did you mean 'bootstrap'",
        ),
        (
            {"references": REFERENCES, "correction": "holms"},
            "correction must be one of holm, bh, none, not 'holms'. Did you mean 'holm'",
        ),
        ({"references": REFERENCES, "metrics": ["loss"]}, "loss needs a model"),
        ({"references": REFERENCES, "resamples": 3}, "resamples must be an integer of at least 10"),
        ({"references": REFERENCES, "bean": 3}, "no search setting 'bean'. Did you mean 'beam'"),
    ],
)
def test_invalid_arguments_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        regard.compare(**{"outputs": {"a": REFERENCES, "b": REFERENCES}, **options})


def test_missing_outputs_are_reported() -> None:
    with pytest.raises(DataError, match="b has 2 lines, but there are 3 references"):
        regard.compare(outputs={"a": REFERENCES, "b": REFERENCES[:2]}, references=REFERENCES)
    with pytest.raises(DataError, match="no sentences to compare"):
        regard.compare(outputs={"a": [], "b": []}, references=[])


def test_runs_need_sources_and_a_model(small_run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs sources to predict from"):
        regard.compare(small_run.path, outputs={"a": REFERENCES}, references=REFERENCES)
    with pytest.raises(ModelError, match="There is no model at"):
        regard.compare(small_run.path, tmp_path / "missing")
    with pytest.raises(ArgumentTypeError, match="runs must be paths of run folders, not int"):
        regard.compare(small_run.path, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Two systems are called 'small'"):
        regard.compare(small_run.path, outputs={"small": REFERENCES}, pairs=PAIRS)
    with pytest.raises(ArgumentTypeError, match="outputs must be a dictionary"):
        regard.compare(outputs=["a.txt", "b.txt"], references=REFERENCES)  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentTypeError, match=r"pairs must be a path or a list of pairs \(source, reference\), not int"
    ):
        regard.compare(outputs={"a": REFERENCES}, pairs=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"outputs\['a'\]\[1\] must be a text"):
        regard.compare(outputs={"a": ["x", 1], "b": ["x", "y"]}, references=["x", "y"])  # type: ignore[list-item]


def test_the_alignment_error_rate_is_that_of_align(small_run: RunFolder, second_run: RunFolder, tmp_path: Path) -> None:
    """The gold alignments are those of the first run, so only the second makes errors."""
    pairs = [("3 mai 2009", "2009 05 03"), ("May 3, 2009", "2009 05 03")]
    gold = tmp_path / "gold.links"
    gold.write_text("".join(f"{alignment}\n" for alignment in regard.load(small_run.path).align(pairs)))
    comparison = regard.compare(
        small_run.path, second_run.path, outputs={"x": ["a", "b"]}, pairs=pairs, alignments=gold, resamples=20
    )
    first, second, third = (system.alignment_error_rate for system in comparison.systems)
    assert first == 0.0
    assert second is not None
    assert third is None
    assert "AER" in comparison.to_text()
    gold.write_text("0-0\n")
    with pytest.raises(DataError, match="has 1 line, but there are 2 pairs"):
        regard.compare(small_run.path, second_run.path, pairs=pairs, alignments=gold)
    with pytest.raises(ConfigError, match="need sources that are text"):
        regard.compare(outputs={"a": ["x"], "b": ["y"]}, references=["x"], alignments=gold)


@pytest.mark.slow
def test_runs_that_read_images_are_compared(tmp_path: Path) -> None:
    """Their sources are arrays. The metrics by length use the length of the reference."""
    sizes = {"data.train": 8, "data.dev": 4, "data.test": 6, "model.decoder.hidden": 16, "model.embedding": 8}
    settings = {**sizes, "model.encoder.channels": [4, 4], "training.steps": 1, "training.validate_every": 1}
    for seed in range(2):
        regard.train("scenes", {**settings, "seed": seed}, out=tmp_path / f"seed-{seed}", quiet=True)
    comparison = regard.compare(tmp_path / "seed-0", tmp_path / "seed-1", metrics=["rouge_l"], resamples=20)
    assert comparison.sentences == 6
    assert comparison.numbers.lengths.title == "reference length in words"
    assert comparison.to_html()
