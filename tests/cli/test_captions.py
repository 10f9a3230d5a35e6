"""A captioner of pictures that is defined outside the package (`plugins/toy_captions.py`) works in every verb."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_captions import CELL, write_pictures

import regard
from tests_command import Result, run_preloaded
from tests_svg import read_labels

PLUGIN = Path(__file__).parents[1] / "plugins" / "toy_captions.py"
CONFIG = """
data: {kind: toy_captions, folder: pictures}
tokenizer: word
model:
  embedding: 16
  encoder: toy_pictures
  decoder: {hidden: 48, order: luong}
  attention: bahdanau
  dropout: 0
training:
  steps: 250
  batch_size: 32
  learning_rate: 0.01
  warmup: 20
  validate_every: 125
  word_dropout: 0.02
"""
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 600 pictures, their captions, and a config."""
    folder = tmp_path_factory.mktemp("captions")
    (folder / "pictures").mkdir()
    write_pictures(folder / "pictures", 600)
    (folder / "captions.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def run(project: Path) -> Path:
    """A trained captioner."""
    done = run_preloaded(["train", "captions.yaml", "--import", str(PLUGIN), "--out", "run"], b"", project, 240)
    assert done.returncode == 0, done.stderr
    return project / "run"


def regard_command(cli: Run, project: Path, *words: str | Path) -> Result:
    return cli(*words, "--import", PLUGIN, cwd=project)


@pytest.mark.slow
def test_a_captioner_learns_to_describe_new_pictures(cli: Run, project: Path, run: Path) -> None:
    """Of 16 captions, chance finds one."""
    done = regard_command(cli, project, "evaluate", run, "--beam", "3", "--min", "accuracy=0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 50 pairs" in done.stdout
    assert not (run / "tokenizer.target.json").exists()  # the sources have no tokenizer


def test_pictures_are_captioned_with_a_beam(cli: Run, project: Path, run: Path) -> None:
    expected = [line.split("\t")[1] for line in (project / "pictures/captions.tsv").read_text().splitlines()]
    names = [f"pictures/{number}.npy" for number in range(20)]
    done = regard_command(cli, project, "predict", run, "--beam", "3", "--nbest", "2", *names)
    assert done.returncode == 0, done.stderr
    predicted = [line.split("\t")[2] for line in done.stdout.splitlines()]
    assert len(predicted) == 40
    assert sum(caption == best for caption, best in zip(expected, predicted[::2], strict=False)) >= 16
    piped = cli("predict", run, "--import", PLUGIN, cwd=project, stdin="\n".join(names))
    assert len(piped.stdout.splitlines()) == 20


@pytest.mark.slow
def test_each_word_attends_to_its_shape_in_the_grid(cli: Run, project: Path, run: Path) -> None:
    hits = []
    for number in range(20):
        picture = np.load(project / f"pictures/{number}.npy", allow_pickle=False)
        done = regard_command(cli, project, "look", run, f"pictures/{number}.npy", "-o", "trace.json")
        assert done.returncode == 0, done.stderr
        trace = regard.Trace.load(project / "trace.json")
        assert trace.prediction.source == f"{number}.npy"
        assert trace.prediction.layout == regard.Grid(3, 3)
        weights_TS = trace.prediction.attention
        assert weights_TS.shape == (2, 9)
        np.testing.assert_allclose(weights_TS.sum(-1), 1, atol=1e-3)  # of weights in half precision
        cells = picture.reshape(3, CELL, 3, CELL).any((1, 3)).flatten().nonzero()[0]
        hits += (weights_TS.argmax(-1) == cells).tolist()
    assert np.mean(hits) > 0.7  # chance: one in nine


@pytest.mark.slow
def test_look_draws_the_weights_of_each_word_over_the_picture(cli: Run, project: Path, run: Path) -> None:
    predicted = regard_command(cli, project, "predict", run, "pictures/0.npy").stdout.split()
    shown = regard_command(cli, project, "look", run, "pictures/0.npy")
    assert shown.returncode == 0, shown.stderr
    title, _, words, *grid = shown.stdout.splitlines()
    assert title.startswith(f"0.npy → {' '.join(predicted)} ")
    assert words.split()[::2] == predicted
    assert [len(line.split()) for line in grid] == [2, 2, 2]  # three rows of cells for each of two words
    assert any("█" in line for line in grid)
    formats = ("svg", "png", "pdf", "html")
    files = [word for extension in formats for word in ("-o", f"sheet.{extension}")]
    drawn = regard_command(cli, project, "look", run, "pictures/0.npy", "--style", "grid", *files)
    assert drawn.returncode == 0, drawn.stderr
    labels = read_labels(project / "sheet.svg")
    assert {"0.npy", " ".join(predicted), *predicted} <= set(labels)
    page = (project / "sheet.html").read_text()
    assert page.count("<svg") == 3
    assert "image-rendering:pixelated" in page
    assert "://" not in page  # no address, and base64 contains no colon
    wrong = regard_command(cli, project, "look", run, "pictures/0.npy", "--style", "mosaic")
    assert wrong.returncode == 2
    assert "'smooth', 'grid'" in wrong.stderr


def test_arrays_and_file_names_have_the_same_captions(project: Path, run: Path) -> None:
    model = regard.load(run)
    names = [str(project / f"pictures/{number}.npy") for number in range(4)]
    arrays = [np.load(name, allow_pickle=False) for name in names]
    by_name, by_array = model.predict(names, beam=3), model.predict(arrays, beam=3)
    assert [prediction.text for prediction in by_name] == [prediction.text for prediction in by_array]
    assert by_array[0].source == "picture"
    assert model.predict(arrays[0]).text == model.predict(names[0]).text
    assert "target tokens" in repr(model)
    assert "source tokens" not in repr(model)
    assert "3 × 3 slots" in repr(model.trace(arrays[0]))
    scores = model.score(arrays, [prediction.text for prediction in by_array])
    assert scores == pytest.approx([prediction.score for prediction in by_array], abs=1e-4)
    # An array that occurs twice is one source with two references.
    twice = model.evaluate([arrays[0], arrays[0]], ["ring ring", by_array[0].text], metrics=["accuracy"])
    assert twice["accuracy"] == 1.0
    mixed: Any = [arrays[0], 3]
    with pytest.raises(regard.ArgumentTypeError, match=r"source\[1\] must be a picture \(file name or array\)"):
        model.predict(mixed)


def test_captioners_form_an_ensemble_unless_they_preprocess_differently(cli: Run, project: Path, run: Path) -> None:
    short = ("training.steps=2", "training.validate_every=2")
    for name, *options in (("other",), ("inverted", "model.encoder.invert=true")):
        done = regard_command(cli, project, "train", "captions.yaml", *short, *options, "--out", name)
        assert done.returncode == 0, done.stderr
    both = regard_command(cli, project, "predict", run, "--with", "other", "pictures/0.npy")
    assert both.returncode == 0, both.stderr
    mixed = regard_command(cli, project, "predict", run, "--with", "inverted", "pictures/0.npy")
    assert mixed.returncode == 4
    assert "preprocesses sources differently" in mixed.stderr
    student = ("training.teachers=inverted", "--out", "student")
    distilled = regard_command(cli, project, "train", "captions.yaml", *short, *student)
    assert distilled.returncode == 2
    assert "reads another kind of source, or preprocesses sources differently" in distilled.stderr


@pytest.mark.parametrize(
    "model",
    [
        "{kind: transformer, size: 48, heads: 4, layers: 1, feedforward: 16, encoder: toy_pictures}",
        "{kind: fixed, encoder: toy_pictures, decoder: {hidden: 16}}",
        "{encoder: toy_pictures, decoder: {hidden: 48}, attention: hard-monotonic}",
    ],
    ids=["transformer", "fixed", "marginal"],
)
def test_every_decoder_reads_pictures(cli: Run, project: Path, tmp_path: Path, model: str) -> None:
    settings = (f"model={model}", "training.consistency=r-drop", "training.steps=2", "training.validate_every=2")
    done = regard_command(cli, project, "train", "captions.yaml", *settings, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    predicted = regard_command(cli, project, "predict", tmp_path / "run", "--beam", "2", "pictures/0.npy")
    assert predicted.returncode == 0, predicted.stderr


def test_a_stopped_run_resumes_unless_a_picture_has_changed(cli: Run, project: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(project, tmp_path / "project", ignore=shutil.ignore_patterns("run")))
    words = ("train", "captions.yaml", "training.decay=none", "training.validate_every=2", "--out", "run")
    for steps, start in ((2, ""), (4, "from step 2")):
        done = regard_command(cli, folder, *words, f"training.steps={steps}")
        assert done.returncode == 0, done.stderr
        assert start in done.stderr
    np.save(folder / "pictures/300.npy", np.ones((12, 12), np.float32))
    changed = regard_command(cli, folder, *words, "training.steps=6")
    assert changed.returncode == 3
    assert "training pairs: the data has changed" in changed.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "model.encoder=recurrent",
            "'recurrent' reads sources of the kind 'text', but the sources of data.kind=toy_captions",
        ),
        ("tokenizer.shared=false", "the run has one tokenizer, for the targets"),
        ("model.tied=all", "ties all embeddings (model.tied=all), which requires text"),
    ],
)
def test_settings_that_do_not_match_the_sources_are_rejected(
    cli: Run, project: Path, setting: str, message: str
) -> None:
    done = regard_command(cli, project, "train", "captions.yaml", setting, "--out", "rejected")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (project / "rejected").exists()


def test_a_file_that_is_not_a_picture_is_reported_by_name(cli: Run, project: Path, run: Path) -> None:
    (project / "text.npy").write_text("text")
    for name in ("text.npy", "missing.npy"):
        done = regard_command(cli, project, "predict", run, name)
        assert done.returncode == 3
        assert f"{name} is not a picture" in done.stderr
