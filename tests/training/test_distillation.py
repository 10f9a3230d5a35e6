"""Knowledge distillation: its loss, computed by hand, and runs with teachers."""

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.config import resolve
from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import losses
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, Teachers
from regard.training import objective as objective_module
from regard.training.objective import Objective
from regard.training.step import compute_gradients
from tests_shared import SMALL, make_distillation, make_short_batch, stop_at

V = 11
STEPS = {"training.steps": 6, "training.validate_every": 3, "training.save_every": 3}
STUDENT = {**SMALL, **STEPS, "model.embedding": 6, "model.dropout": 0.2, "training.word_dropout": 0.1, "seed": 5}


def make_model(seed: int, **overrides: object) -> Seq2Seq:
    torch.manual_seed(seed)
    overrides["model.dropout"] = overrides.pop("model.dropout", 0.0)  # last, so that a preset does not replace it
    settings = resolve(RunSettings, "dates", {"tokenizer.shared": True, **overrides})
    return build_model(settings.model, V, V).double()


def make_batch() -> Batch:
    return make_short_batch(0, 1, 2)


def compute_all(model: Seq2Seq, objective: Objective) -> list[torch.Tensor]:
    """Compute the loss and the gradients of all parameters."""
    torch.manual_seed(0)
    loss = compute_gradients(model, objective, [make_batch()])
    return [loss, *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]


def test_the_loss_is_the_weighted_divergence_from_the_average_of_the_teachers() -> None:
    student, *teachers = make_model(0), make_model(1), make_model(2)
    batch = make_batch()
    q, *teacher_p = (
        model(batch.source, batch.decoder_inputs).logits_BTV.softmax(-1)[batch.target.valid_BT]
        for model in (student, *teachers)
    )
    p = (teacher_p[0] + teacher_p[1]) / 2
    divergence = (p * (p.log() - q.log())).sum()
    expected = 0.7 * Objective(0.1)(student, batch) + 0.3 * divergence
    assert divergence > 0.01
    loss = Objective(0.1, distillation=make_distillation(*teachers, weight=0.3))(student, batch)
    torch.testing.assert_close(loss, expected.float(), rtol=1e-5, atol=1e-5)


def test_the_divergence_from_an_equal_teacher_is_zero() -> None:
    student = make_model(0)
    loss = Objective(distillation=make_distillation(make_model(0), weight=0.5))(student, make_batch())
    torch.testing.assert_close(loss, 0.5 * Objective()(student, make_batch()))


def test_teachers_get_no_gradients() -> None:
    student, teacher = make_model(0), make_model(1)
    compute_gradients(student, Objective(distillation=make_distillation(teacher)), [make_batch()])
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert any(parameter.grad is not None for parameter in student.parameters())


def test_a_chunked_loss_has_the_same_value_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    student = make_model(0, **{"model.dropout": 0.2})
    objective = Objective(
        0.1, 0.3, distillation=make_distillation(make_model(1), make_model(2, model="transformer-tiny"))
    )
    expected = compute_all(student, objective)
    monkeypatch.setitem(losses.MAX_LOGITS, "cpu", 2 * V)
    for result, reference in zip(compute_all(student, objective), expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_ignored_padding_gives_the_same_loss_and_gradients_as_removed_padding(
    bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU padding is ignored (`ignore_index`); on a CPU it is removed. The distributions of student and teacher
    differ at padding.
    """
    student = make_model(0).float()
    objective = Objective(0.1, bfloat16=bfloat16, distillation=make_distillation(make_model(1).float()))
    expected = compute_all(student, objective)
    monkeypatch.setattr(objective_module, "select_tokens", objective_module.flatten_with_ignore_index)
    for result, reference in zip(compute_all(student, objective), expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-2 if bfloat16 else 1e-5, atol=1e-3 if bfloat16 else 1e-6)


def test_words_are_dropped_for_the_student_but_not_for_teachers() -> None:
    student, teacher = make_model(0), make_model(1)
    inputs: list[torch.Tensor] = []
    teacher.register_forward_pre_hook(lambda _, args: inputs.extend([args[0].tensors[0], args[1]]))
    Objective(word_dropout=0.9, distillation=make_distillation(teacher))(student, make_batch())
    source, decoder_inputs = inputs
    assert torch.equal(source, make_batch().source.tensors[0])
    assert torch.equal(decoder_inputs, make_batch().decoder_inputs)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs with different models and the same tokenizers."""
    folder = tmp_path_factory.mktemp("teachers")
    models: list[dict[str, object]] = [{}, {"model.attention": "luong-general"}]
    for name, model in zip("ab", models, strict=True):
        regard.train("dates", {**SMALL, **STEPS, **model}, out=folder / name)
    return [str(folder / "a"), str(folder / "b")]


def train_student(teachers: list[str], out: Path, **overrides: object) -> RunFolder:
    regard.train("dates", {**STUDENT, "training.teachers": teachers, **overrides}, out=out)
    return RunFolder(out)


def hash_weights(run: RunFolder) -> str:
    return run.all_checkpoints()[0].weights_hash


@pytest.fixture(scope="module")
def student(teachers: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_student(teachers, tmp_path_factory.mktemp("student") / "run")


def test_a_student_uses_the_tokenizers_of_its_teachers_and_learns_from_them(
    student: RunFolder, teachers: list[str], tmp_path: Path
) -> None:
    assert student.settings().training.teachers == Teachers(runs=tuple(teachers))
    for name in ("tokenizer.json", "tokenizer.target.json"):
        assert (student.path / name).read_bytes() == (Path(teachers[0]) / name).read_bytes()
    assert hash_weights(student) != hash_weights(train_student(teachers[:1], tmp_path / "one-teacher"))
    regard.train("dates", dict(STUDENT), out=tmp_path / "no-teacher")
    assert hash_weights(student) != hash_weights(RunFolder(tmp_path / "no-teacher"))


def test_a_student_can_be_used_without_its_teachers(student: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(student.path, tmp_path / "moved")
    config = (tmp_path / "moved" / "config.yaml").read_text("utf-8")
    for run in student.settings().training.teachers.runs:  # type: ignore[union-attr]
        config = config.replace(run, "runs/deleted")
    (tmp_path / "moved" / "config.yaml").write_text(config, "utf-8")
    score, moved_score = (
        regard.load(path).score("8 MAY 2001", "2001-05-08") for path in (student.path, tmp_path / "moved")
    )
    assert moved_score == score


def test_a_stopped_student_ends_with_identical_weights(
    student: RunFolder, teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stop_at(4, monkeypatch):
        train_student(teachers, tmp_path / "run")
    assert hash_weights(train_student(teachers, tmp_path / "run")) == hash_weights(student)


def test_a_changed_teacher_is_reported_on_resume(
    teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = str(tmp_path / "a")
    shutil.copytree(teachers[0], teacher)
    with stop_at(4, monkeypatch):
        train_student([teacher], tmp_path / "run")
    shutil.rmtree(teacher)
    shutil.copytree(teachers[1], teacher)
    with pytest.raises(regard.DataError, match=rf"teacher {teacher}: the weights have changed since .*run was started"):
        train_student([teacher], tmp_path / "run")


@pytest.mark.parametrize("average", [1, 2])
def test_a_finished_student_does_not_need_its_teachers(teachers: list[str], tmp_path: Path, average: int) -> None:
    teacher = str(tmp_path / "a")
    shutil.copytree(teachers[0], teacher)
    overrides = {"training.average_checkpoints": average, "training.metric": "accuracy"}
    finished = train_student([teacher], tmp_path / "run", **overrides)
    before = hash_weights(finished)
    shutil.rmtree(teacher)
    assert hash_weights(train_student([teacher], tmp_path / "run", **overrides)) == before
    assert regard.train(finished.path).steps == 6
    assert regard.load(finished.path).evaluate([("8 MAY 2001", "2001-05-08")])["accuracy"] <= 1


def test_an_unfinished_student_needs_its_teachers(
    teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = str(tmp_path / "a")
    shutil.copytree(teachers[0], teacher)
    with stop_at(4, monkeypatch):
        train_student([teacher], tmp_path / "run")
    shutil.rmtree(teacher)
    with pytest.raises(regard.ModelError, match=rf"training\.teachers: There is no model at {teacher}"):
        regard.train(tmp_path / "run")


@pytest.mark.parametrize("runs", [["a"], "a", ["a", "b"]], ids=str)
def test_teachers_and_their_weight_can_be_separate_settings(runs: str | list[str]) -> None:
    settings = resolve(RunSettings, "dates", {"training.teachers": runs, "training.teachers.weight": 0.7})
    assert settings.training.teachers == Teachers(runs=tuple(runs), weight=0.7)


def test_a_student_with_other_pairs_uses_the_tokenizers_of_its_teachers(teachers: list[str], tmp_path: Path) -> None:
    run = train_student(teachers, tmp_path / "run", **{"data.train": 300})
    assert (run.path / "tokenizer.json").read_bytes() == (Path(teachers[0]) / "tokenizer.json").read_bytes()


def test_teachers_are_listed_with_their_steps_and_a_warning_if_they_are_unfinished(
    teachers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch, stop_at(4, patch):
        regard.train("dates", {**SMALL, **STEPS}, out=tmp_path / "unfinished")
    unfinished = tmp_path / "unfinished"
    train_student([teachers[0], str(unfinished)], tmp_path / "run")
    listed = [f"{run} (step {RunFolder(Path(run)).best().step})" for run in (teachers[0], unfinished)]
    assert f", with the teachers {listed[0]} and {listed[1]}." in capsys.readouterr().err
    assert [record.getMessage() for record in caplog.records if "teacher" in record.getMessage()] == [
        f"The teacher {unfinished} is not finished: it is at step 3 of 6. If you continue its training, this run "
        "cannot be resumed."
    ]


@pytest.mark.parametrize(
    "value", ["runs/a", Path("runs/a"), ["runs/a"], [Path("runs/a")], {"runs": "runs/a"}], ids=repr
)
def test_teachers_can_be_a_path_or_a_list_of_paths(value: object) -> None:
    settings = resolve(RunSettings, "dates", {"training.teachers": value})
    assert settings.training.teachers == Teachers(runs=("runs/a",))


def test_a_student_may_sample_segmentations_differently(tmp_path: Path) -> None:
    bpe = {"tokenizer": {"kind": "bpe", "vocabulary": 470, "shared": True}}
    regard.train("dates", {**SMALL, **STEPS, **bpe}, out=tmp_path / "teacher")
    train_student([str(tmp_path / "teacher")], tmp_path / "run", **bpe, **{"tokenizer.dropout": 0.1})
    with pytest.raises(regard.ConfigError, match=r"with a different tokenizer\.vocabulary, so"):
        train_student([str(tmp_path / "teacher")], tmp_path / "other", **bpe, **{"tokenizer.vocabulary": 480})


def test_unusable_teachers_are_rejected(teachers: list[str], tmp_path: Path) -> None:
    with pytest.raises(
        regard.ConfigError, match=r"teachers: .*a was trained with a different tokenizer\.shared, tokenizer\.kind"
    ):
        train_student(teachers, tmp_path / "run", tokenizer="word")
    with pytest.raises(regard.ModelError, match=r"training\.teachers: There is no model at .*/runs/nowhere"):
        train_student(["runs/nowhere"], tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"consistency loss cannot be combined\. Set training\.consistency"):
        train_student(teachers, tmp_path / "run", **{"training.consistency": "r-drop"})
    with pytest.raises(regard.ConfigError, match="teachers"):
        train_student([], tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
