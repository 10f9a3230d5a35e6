"""Parts that are registered outside the package work in every verb, like built-in parts."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.yaml_reader import read_yaml
from tests_command import Result, run_fresh, run_preloaded

PLUGIN = Path(__file__).parents[1] / "plugins" / "example_parts.py"
CONFIG = """
data: shifted
model:
  embedding: 16
  encoder: {kind: convolutional, channels: 32}
  decoder: {cell: mgu, hidden: 32}
  attention: {score: manhattan, scope: {kind: wait_k, k: 4}, select: {kind: top_k, k: 2}}
training:
  steps: 40
  validate_every: 20
  metric: accuracy
  extra_metrics: [length_error]
"""
Run = Callable[..., Result]


def write_project(folder: Path) -> Path:
    """Write a config and the plugin, as a user has them."""
    (folder / "all.yaml").write_text(CONFIG)
    shutil.copy(PLUGIN, folder / "my_parts.py")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps, next to its config and its plugin."""
    folder = write_project(tmp_path_factory.mktemp("project"))
    words = ["train", "all.yaml", "training.steps=20", "training.decay=none", "--import", "my_parts", "--out", "run"]
    done = run_preloaded(words, b"", folder, 120)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_registered_parts_train_resume_predict_and_are_shown(cli: Run, project: Path, trained: Path) -> None:
    assert read_yaml(trained / "config.yaml")[0]["imports"] == ["my_parts"]
    trained = Path(shutil.copytree(trained, project / "run"))
    resumed = cli("train", trained, "training.steps=40", "--import", "my_parts")
    assert resumed.returncode == 0, resumed.stderr
    assert "from step 20" in resumed.stderr
    assert "length_error" in resumed.stderr
    assert "characters" in resumed.stderr
    predicted = cli("predict", trained, "abc", "--beam", "3", "--import", "my_parts.py")
    assert predicted.returncode == 0, predicted.stderr
    assert set(predicted.stdout.strip()) <= set("abcdefghi")
    looked = cli("look", trained, "abc", "--import", "my_parts")
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.splitlines()[2].split() == ["a", "b", "c"]
    explained = cli("explain", trained, "--import", "my_parts")
    assert explained.returncode == 0, explained.stderr
    assert "decoder.attention: Manhattan × WaitK × TopK, 1 head\n  e = −γ ‖q − k‖₁" in explained.stdout
    assert "decoder.layers: MGU, 1 layer" in explained.stdout
    (project / "test.tsv").write_text("abc\tbcd\nhgf\tihg\n")
    scored = cli(
        "evaluate", trained, "--pairs", "test.tsv", "--metric", "length_error", "accuracy", "--import", "my_parts"
    )
    assert scored.returncode == 0, scored.stderr
    assert "length_error" in scored.stdout


def test_a_registered_decoder_trains_with_a_registered_encoder(cli: Run, project: Path) -> None:
    model = ["model=plain", "model.encoder=convolutional", "model.hidden=24", "data=shifted"]
    done = cli("train", "sequences", *model, "training.steps=10", "--import", "my_parts", "--out", "run")
    assert done.returncode == 0, done.stderr
    weights = cli("look", project / "run", "abc", "--import", "my_parts")
    assert weights.returncode == 0, weights.stderr


def test_mechanisms_lists_registered_parts(cli: Run, project: Path) -> None:
    assert project.exists()
    listed = cli("mechanisms", "--import", "my_parts")
    assert [line.split()[0] for line in listed.stdout.splitlines()[-3:]] == ["manhattan", "wait_k", "top_k"]
    assert "manhattan" not in cli("mechanisms").stdout


@pytest.mark.parametrize(
    "words",
    [["predict", "run", "abc"], ["look", "run", "abc"], ["train", "run"], ["explain", "run"]],
    ids=lambda w: w[0],
)
def test_a_model_whose_plugin_is_not_imported_is_rejected_with_the_flag(
    cli: Run, trained: Path, words: list[str]
) -> None:
    """The folder never imports code by itself, even if the plugin is in the working directory."""
    done = cli(*words, cwd=trained.parent)
    assert done.returncode == 4
    assert "the data 'shifted' belongs to a plugin that is not imported. Pass --import my_parts" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_installed_plugin_needs_no_flag(cli: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = project / "site"
    (site / "my_parts-1.0.dist-info").mkdir(parents=True)
    (site / "my_parts-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (site / "my_parts-1.0.dist-info" / "entry_points.txt").write_text("[regard.plugins]\nparts = my_parts\n")
    (project / "my_parts.py").rename(site / "my_parts.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    explained = cli("explain", "all.yaml", start=run_fresh)
    assert explained.returncode == 0, explained.stderr
    assert "Manhattan × WaitK × TopK" in explained.stdout
    listed = cli("mechanisms", start=run_fresh)
    assert "manhattan" in listed.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "There is no module 'missing' to import."),
        ("missing.py", None, "There is no file missing.py to import."),
        ("broken", "1 / 0", "The plugin broken could not be imported: ZeroDivisionError: division by zero."),
        ("broken.py", "import nothing_like_it", "The plugin broken.py could not be imported: ModuleNotFoundError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_reported(
    cli: Run, project: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (project / f"{name.removesuffix('.py')}.py").write_text(content)
    done = cli("mechanisms", "--import", name)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_options_of_registered_parts_are_validated(cli: Run, project: Path) -> None:
    assert project.exists()
    typo = cli("explain", "all.yaml", "model.attention.select.kk=3", "--import", "my_parts")
    assert typo.returncode == 2
    assert "unknown setting 'model.attention.select.kk'" in typo.stderr
    assert "Available: kind, k." in typo.stderr
    invalid = cli("explain", "all.yaml", "model.attention.scope.k=0", "--import", "my_parts")
    assert invalid.returncode == 2
    assert "model.attention.scope.k = 0: input should be greater than 0" in invalid.stderr
