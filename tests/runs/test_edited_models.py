"""An edit of config.yaml or of a tokenizer that changes predictions is reported; other edits are allowed."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

import regard
from regard.config import resolve
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import describe_settings
from tests_command import Result
from tests_shared import SMALL

Run = Callable[..., Result]
Tree = dict[str, Any]
SETTINGS = {
    **SMALL,
    "model.attention.heads": 2,
    "training.steps": 4,
    "training.validate_every": 2,
    "training.save_every": 2,
    "training.average_checkpoints": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edited") / "run"
    regard.train("dates", SETTINGS, out=path)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def edit_config(run: Path, changes: Tree) -> None:
    path = run / "config.yaml"
    tree = yaml.safe_load(path.read_text("utf-8"))
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for name in parents:
            node = node[name]
        assert last in node
        node[last] = value
    path.write_text(yaml.safe_dump(tree), "utf-8")


def edit_tokenizer(run: Path, edit: Callable[[Tree], object], **layout: Any) -> None:
    path = run / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    edit(document)
    path.write_text(json.dumps(document, **layout), "utf-8")


def swap_tokens(document: Tree) -> None:
    vocabulary = document["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.encoder.reverse", True, "model.encoder.reverse was False and is now True"),
        ("model.encoder.summary", "max", "model.encoder.summary was 'last' and is now 'max'"),
        ("model.attention.heads", 4, "model.attention.heads was 2 and is now 4"),
        ("model.attention.scope", "local_m", "model.attention.scope.kind was 'global' and is now 'local_m'"),
        ("model.attention.score.hidden", 99, "model.attention.score.hidden was None and is now 99"),
        ("model.encoder.cell.reset", "before", "model.encoder.cell.reset was 'after' and is now 'before'"),
        ("tokenizer.shared", True, "tokenizer.shared was False and is now True"),
    ],
)
def test_an_edited_setting_is_reported_with_its_key(run: Path, key: str, value: object, message: str) -> None:
    edit_config(run, {key: value})
    with pytest.raises(regard.ModelError, match=f"has been edited since its model was saved: .*{message}"):
        regard.load(run)


def test_an_edited_tokenizer_is_reported_with_its_part(run: Path) -> None:
    edit_tokenizer(run, swap_tokens)
    with pytest.raises(regard.ModelError, match=r"tokenizer\.json has a different model\.vocab"):
        regard.load(run)


@pytest.mark.slow
def test_edits_are_accepted_only_on_request(cli: Run, run: Path) -> None:
    edit_config(run, {"model.encoder.reverse": True})
    edit_tokenizer(run, swap_tokens)
    changes = "model.encoder.reverse was False and is now True; tokenizer.json has a different model.vocab"
    done = cli("predict", run, "3 mai 2009")
    assert (done.returncode, done.stdout) == (4, "")
    assert changes in done.stderr
    assert "--accept-changes" in done.stderr
    done = cli("predict", run, "3 mai 2009", "--accept-changes")
    assert done.returncode == 0
    assert changes in done.stderr
    model = regard.load(run, accept_changes=True)
    assert done.stdout == f"{model.predict('3 mai 2009').text}\n"
    assert model.settings.model.encoder_settings.reverse  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["predict", "evaluate", "look", "align", "compare", "explore", "train"])
def test_every_command_that_uses_a_model_can_accept_edits(name: str) -> None:
    parameters = import_module(f"regard.cli.{name}").command.params
    assert "--accept-changes" in [option for parameter in parameters for option in parameter.opts]


def test_accepting_edits_is_a_flag(run: Path) -> None:
    for use in (regard.load, regard.compare):
        with pytest.raises(regard.ArgumentTypeError, match="accept_changes must be True or False, not 'yes'"):
            use(run, accept_changes=cast("bool", "yes"))


def test_edits_without_an_effect_on_predictions_are_allowed(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = regard.load(run).predict("3 mai 2009").score
    edit_config(
        run,
        {
            "about": "edited",
            "seed": 5,
            "data.train": 300,
            "tokenizer.max_length": 900,
            "model.dropout": 0.7,
            "model.encoder.dropout": 0.7,
            "model.attention.dropout": 0.7,
            "training.learning_rate": 0.5,
            "training.steps": 9,
        },
    )
    path = run / "config.yaml"
    tree = yaml.safe_load(path.read_text("utf-8"))
    path.write_text("# edited\n" + yaml.safe_dump(dict(reversed(tree.items())), sort_keys=False), "utf-8")
    edit_tokenizer(run, lambda document: document.update(sorted(document.items())), indent=7, sort_keys=True)
    assert regard.load(run).predict("3 mai 2009").score == before
    edit_config(run, {"decoding.max_length_extra": 7})
    assert regard.load(run).settings.decoding.max_length_extra == 7
    assert not caplog.text


def test_every_checkpoint_contains_the_settings_that_its_predictions_depend_on(trained: Path) -> None:
    manifests = [json.loads(path.read_text("utf-8")) for path in trained.glob("checkpoints/*/manifest.json")]
    assert len(manifests) > 1
    expected = describe_settings(RunFolder(trained).settings())
    assert {"model.encoder.reverse", "model.attention.scope.kind", "tokenizer.shared"} < set(expected)
    assert not any("dropout" in key or key.startswith("training.") for key in expected)
    assert all(manifest["settings"] == expected for manifest in manifests)


def test_settings_of_nested_parts_are_compared() -> None:
    def describe(window: int) -> object:
        scopes = [{"kind": "local_m", "window": window}, {"kind": "global"}]
        tree = {
            "data": "dates",
            "model": {"kind": "recurrent", "attention": {"scope": {"kind": "all_of", "scopes": scopes}}},
        }
        return describe_settings(resolve(RunSettings, tree, {}))

    assert describe(5) == describe(5)
    assert describe(5) != describe(6)
    assert json.loads(json.dumps(describe(5))) == describe(5)


def test_a_model_of_an_older_version_is_used(run: Path) -> None:
    """Its manifest contains the hash of the tokenizer file, and no settings."""
    for path in run.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text("utf-8"))
        del manifest["settings"], manifest["tokenizer_parts"]
        path.write_text(json.dumps(manifest), "utf-8")
    edit_config(run, {"model.encoder.reverse": True})
    assert regard.load(run).step
    edit_tokenizer(run, swap_tokens)
    with pytest.raises(regard.ModelError, match=r"tokenizer\.json is not the same file"):
        regard.load(run)


def test_a_model_of_an_older_version_without_a_newer_setting_is_used(run: Path) -> None:
    for path in run.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text("utf-8"))
        del manifest["settings"]["model.encoder.summary"]
        path.write_text(json.dumps(manifest), "utf-8")
    assert regard.load(run).step
    edit_config(run, {"model.encoder.summary": "max"})
    with pytest.raises(regard.ModelError, match=r"model\.encoder\.summary was 'last' and is now 'max'"):
        regard.load(run)


@pytest.mark.slow
def test_an_edited_run_is_not_resumed(cli: Run, run: Path) -> None:
    edit_config(run, {"model.encoder.reverse": True})
    done = cli("train", run)
    assert done.returncode == 2, done.stderr
    assert "was started with different settings: model.encoder.reverse was False and is now True" in done.stderr


@pytest.mark.slow
def test_another_run_starts_from_an_edited_run_only_on_request(cli: Run, run: Path, tmp_path: Path) -> None:
    edit_config(run, {"model.encoder.reverse": True})
    with pytest.raises(regard.ModelError, match=r"training\.init_from: .* model\.encoder\.reverse was False"):
        regard.train("dates", {**SETTINGS, "training.init_from": str(run)}, out=tmp_path / "tuned")
    tune = ("train", "--from", run, "training.steps=2", "--out", "tuned")
    assert cli(*tune).returncode == 4
    done = cli(*tune, "--accept-changes")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("model.encoder.reverse was False and is now True. The changes are accepted.") == 1
    assert regard.load(tmp_path / "tuned").settings.model.encoder_settings.reverse  # type: ignore[attr-defined]


def test_an_edited_run_is_a_teacher_only_on_request(run: Path, tmp_path: Path) -> None:
    edit_config(run, {"model.encoder.reverse": True})
    student = {**SETTINGS, "training.teachers": {"runs": [str(run)]}, "training.steps": 2}
    with pytest.raises(regard.ModelError, match=r"training\.teachers: .* model\.encoder\.reverse was False"):
        regard.train("dates", student, out=tmp_path / "student")
    assert regard.train("dates", {**student, "training.accept_changes": True}, out=tmp_path / "student").steps == 2


def test_models_of_an_ensemble_may_have_differently_formatted_tokenizers(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    edit_tokenizer(other, lambda _: None, indent=3)
    assert regard.load(run, other).predict("3 mai 2009")
    edit_tokenizer(other, swap_tokens)
    with pytest.raises(regard.ModelError, match=r"other/tokenizer\.json differs from that of"):
        regard.load(run, other, accept_changes=True)


def test_a_renamed_run_is_used_and_resumed(run: Path, tmp_path: Path) -> None:
    run.rename(tmp_path / "renamed")
    assert regard.load(tmp_path / "renamed", tmp_path / "renamed").predict("3 mai 2009")
    assert regard.train(tmp_path / "renamed").steps == 4
