"""Fine-tuning: a run starts with the weights, tokenizers and model of another run."""

import json
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.data.cache import sha256
from regard.inspection.views.curves import read_panels
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from tests_shared import SMALL, stop_at, to_arguments

Run = Callable[..., subprocess.CompletedProcess[str]]

OTHER_DATES = {**{key: value for key, value in SMALL.items() if key.startswith("data.")}, "data.seed": 1, "data.dev": 8}
SHORT = {"training.steps": 4, "training.validate_every": 2, "training.save_every": 2, "training.batch_size": 8}
FROZEN = {**SHORT, "training.learning_rate": 1e-30, "training.weight_decay": 0.0}


def fine_tune(init_from: Path, out: Path, **settings: object) -> RunFolder:
    overrides = {"training.init_from": str(init_from), **OTHER_DATES, **SHORT, **settings}
    regard.train("dates", overrides, out=out)
    return RunFolder(out)


def hash_last_weights(folder: RunFolder) -> str:
    return sha256(folder.all_checkpoints()[0].path / "model.safetensors")


def test_a_fine_tuned_run_starts_with_the_best_weights_tokenizers_and_model_of_its_initial_run(
    small_run: RunFolder, tmp_path: Path
) -> None:
    tuned = fine_tune(small_run.path, tmp_path / "tuned", **FROZEN)
    assert tuned.best().weights_hash == small_run.best().weights_hash
    assert (tuned.path / "tokenizer.json").read_bytes() == (small_run.path / "tokenizer.json").read_bytes()
    settings, before = tuned.settings(), small_run.settings()
    assert (settings.model, settings.tokenizer) == (before.model, before.tokenizer)
    assert settings.training.steps == 4
    name = f"initial weights of {small_run.path}"
    assert json.loads((tuned.best().path / "state.json").read_text())["data"][name] == small_run.best().weights_hash


def test_a_fine_tuned_run_resumes_bit_identically_without_its_initial_run(
    small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small_run.path, tmp_path / "initial")
    uninterrupted = fine_tune(tmp_path / "initial", tmp_path / "one")
    with stop_at(3, monkeypatch):
        fine_tune(tmp_path / "initial", tmp_path / "other")
    shutil.rmtree(tmp_path / "initial")
    regard.train(tmp_path / "other")
    assert hash_last_weights(RunFolder(tmp_path / "other")) == hash_last_weights(uninterrupted)


def test_initial_weights_are_validated_and_stay_the_best_if_training_does_not_improve_them(
    small_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same_dates = {"data.seed": 0, "data.dev": SMALL["data.dev"]}
    tuned = fine_tune(small_run.path, tmp_path / "tuned", **same_dates, **{"training.learning_rate": 100.0})
    validations = [event for event in read_events(tuned.events) if event["event"] == "validation"]
    assert [(event["step"], event["best"]) for event in validations] == [(0, True), (2, False), (4, False)]
    before = regard.load(small_run.path).scores
    assert before is not None
    assert validations[0]["accuracy"] == before["accuracy"]
    assert validations[0]["loss"] == pytest.approx(before.loss)
    assert tuned.best().path.name == "step-0"
    assert tuned.best().weights_hash == small_run.best().weights_hash
    assert "Best model: the initial weights (step 0)" in capsys.readouterr().err
    [loss] = [panel for panel in read_panels([tuned]) if panel.name == "loss"]
    [curve] = [curve for curve in loss.curves if curve.validated]
    assert (curve.steps, curve.best_step) == ([0, 2, 4], 0)
    assert regard.load(tuned.path).scores == before


def test_a_run_that_is_killed_after_the_validation_of_its_initial_weights_resumes_bit_identically(
    small_run: RunFolder, tmp_path: Path
) -> None:
    class KilledError(Exception):
        """Stops the training like a kill: nothing is saved afterwards."""

    class Killer(regard.Callback):
        def __init__(self, *, saved: bool) -> None:
            self.saved = saved

        def on_validation(self, info: regard.ValidationInfo) -> None:
            if info.step == 0 and not self.saved:
                raise KilledError

        def on_step(self, info: regard.StepInfo) -> None:
            if info.step == 1:
                raise KilledError

    uninterrupted = fine_tune(small_run.path, tmp_path / "one")
    overrides = {"training.init_from": str(small_run.path), **OTHER_DATES, **SHORT}
    for saved in (False, True):
        with pytest.raises(KilledError):
            regard.train("dates", overrides, out=tmp_path / "other", callbacks=Killer(saved=saved))
    resumed = fine_tune(small_run.path, tmp_path / "other")
    assert hash_last_weights(resumed) == hash_last_weights(uninterrupted)
    events = [
        [(event["event"], event["step"], event.get("loss")) for event in read_events(run.events)]
        for run in (resumed, uninterrupted)
    ]
    assert events[0] == events[1]


def test_changed_initial_weights_are_reported_on_resume(
    small_run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(small_run.path, tmp_path / "initial")
    fine_tune(tmp_path / "initial", tmp_path / "tuned", **FROZEN)
    with caplog.at_level(logging.WARNING):
        regard.train(tmp_path / "tuned")
        assert "has changed" not in caplog.text
        shutil.rmtree(tmp_path / "initial")
        regard.train("dates", {**SMALL, **SHORT}, out=tmp_path / "initial")
        regard.train(tmp_path / "tuned")
    assert f"{tmp_path / 'initial'} has changed since this run started from it" in caplog.text


def test_weights_of_another_shape_are_rejected_with_the_settings_that_differ(
    small_run: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(regard.ConfigError, match=r"do not fit this model: model.embedding is 16 there and 17 here"):
        fine_tune(small_run.path, tmp_path / "tuned", **{"model.embedding": 17})
    with pytest.raises(regard.ConfigError, match=r"was trained with a different tokenizer.lowercase"):
        fine_tune(small_run.path, tmp_path / "tuned", **{"tokenizer.lowercase": True})
    assert not RunFolder(tmp_path / "tuned").exists()


@pytest.mark.parametrize("value", [1, True, 1.5, [1], {"a": 1}])
@pytest.mark.parametrize("config", ["dates", None], ids=["preset", "pairs"])
def test_an_initial_run_that_is_not_a_path_is_a_wrong_setting(
    tmp_path: Path, value: object, config: str | None
) -> None:
    pairs = None if config else [(f"a{number}", f"b{number}") for number in range(9)]
    with pytest.raises(regard.ConfigError, match=r"training\.init_from = .*: input should be a valid string"):
        regard.train(config, {"training.init_from": value}, pairs=pairs, out=tmp_path / "run")


def test_settings_that_do_not_affect_shapes_may_differ(small_run: RunFolder, tmp_path: Path) -> None:
    tuned = fine_tune(small_run.path, tmp_path / "tuned", **{"model.dropout": 0.4})
    assert tuned.settings().model.embedding_dropout == 0.4


def test_a_model_with_soft_attention_can_be_trained_further_with_hard_attention(
    small_run: RunFolder, tmp_path: Path
) -> None:
    hard = {"model.attention": {"score": "additive", "select": "hard"}}
    tuned = fine_tune(small_run.path, tmp_path / "tuned", **{**FROZEN, **hard})
    prediction, before = (regard.load(run.path).predict("3 mai 2009") for run in (tuned, small_run))
    assert (prediction.attention.max(-1) == 1).all()
    assert (prediction.attention[0] > 0).argmax() == before.attention[0].argmax()


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "may.tsv"
    lines = (f"{day}. mai {year} §\t{year}-05-{day:02d}\n" for day in range(1, 29) for year in range(1990, 2000))
    path.write_text("".join(lines))
    return path


def test_for_pairs_in_files_only_the_schedule_is_chosen(cli: Run, small_run: RunFolder, pairs: Path) -> None:
    done = cli("train", "--from", small_run.path, "--pairs", pairs, *to_arguments(SHORT), "--out", "tuned")
    assert done.returncode == 0, done.stderr
    assert "Data: 280 pairs of " in done.stderr
    assert f"Tokenizer, model and initial weights: from {small_run.path}." in done.stderr
    assert "the learning rate is 0.000667, a third of that of a new model" in done.stderr
    assert "The model has no token for '§' (in " in done.stderr
    tuned = RunFolder(pairs.parent / "tuned")
    settings = tuned.settings()
    assert settings.model.model_copy(update={"dropout": 0.0}) == small_run.settings().model
    assert settings.tokenizer == small_run.settings().tokenizer
    assert settings.training.learning_rate == 0.000667
    weights = hash_last_weights(tuned)
    again = cli("train", "--from", small_run.path, "--pairs", pairs, *to_arguments(SHORT), "--out", "tuned")
    assert again.returncode == 0, again.stderr
    assert hash_last_weights(tuned) == weights


def test_without_data_the_settings_of_the_initial_run_are_used(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    done = cli("train", "--from", small_run.path, *to_arguments(FROZEN), "--out", "tuned")
    assert done.returncode == 0, done.stderr
    tuned = RunFolder(tmp_path / "tuned")
    assert tuned.settings().data == small_run.settings().data
    assert tuned.best().weights_hash == small_run.best().weights_hash


def test_an_unusable_initial_run_is_reported(cli: Run, small_run: RunFolder) -> None:
    missing = cli("train", "dates", "--from", "nowhere")
    assert missing.returncode == 4
    assert "training.init_from: There is no model at nowhere" in missing.stderr
    for options in ([], ["dates", "--out", small_run.path]):
        same = cli("train", *options, "--from", small_run.path)
        assert same.returncode == 2
        assert "a fine-tuned run needs its own folder. Choose one with --out." in same.stderr
