"""Teachers: what they add to the loss, worked by hand, and runs that learn from other runs."""

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.config import resolve
from regard.data.batching import Batch
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import chunked_loss
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, Teachers
from regard.training import objective as objective_module
from regard.training.objective import Objective
from regard.training.step import compute_gradients
from tests_shared import SMALL, stopped_at, teaching, three_pairs

V = 11
STEPS = {"training.steps": 6, "training.validate_every": 3, "training.save_every": 3}
STUDENT = {**SMALL, **STEPS, "model.embedding": 6, "model.dropout": 0.2, "training.word_dropout": 0.1, "seed": 5}


def model(seed: int, **wishes: object) -> Seq2Seq:
    torch.manual_seed(seed)
    overrides = {"tokenizer.shared": True, **wishes, "model.dropout": wishes.get("model.dropout", 0.0)}
    return build_model(resolve(RunSettings, "dates", overrides).model, V, V).double()


def batch() -> Batch:
    return three_pairs(0, 1, 2)


def found(net: Seq2Seq, objective: Objective) -> list[torch.Tensor]:
    torch.manual_seed(0)
    loss, _ = compute_gradients(net, objective, [batch()])
    return [loss, *(parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None)]


def test_what_the_mean_of_the_teachers_says_counts_as_far_as_it_shall() -> None:
    student, one, other = model(0), model(1), model(2)
    given = batch()
    p, p_one, p_other = (
        net(given.source, given.decoder_inputs).logits_BTV.softmax(-1)[given.target.valid_BT]
        for net in (student, one, other)
    )
    mean = (p_one + p_other) / 2
    apart = (mean * (mean.log() - p.log())).sum()
    expected = 0.7 * Objective(0.1)(student, given) + 0.3 * apart
    assert apart > 0.01
    torch.testing.assert_close(
        Objective(0.1, distillation=teaching(one, other, weight=0.3))(student, given),
        expected.float(),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_teacher_that_says_what_the_student_says_adds_nothing() -> None:
    student = model(0)
    half = Objective(distillation=teaching(model(0), weight=0.5))(student, batch())
    torch.testing.assert_close(half, 0.5 * Objective()(student, batch()))


def test_teachers_learn_nothing() -> None:
    student, teacher = model(0), model(1)
    compute_gradients(student, Objective(distillation=teaching(teacher)), [batch()])
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert any(parameter.grad is not None for parameter in student.parameters())


def test_few_logits_at_a_time_give_the_same_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    student = model(0, **{"model.dropout": 0.2})
    objective = Objective(0.1, 0.3, distillation=teaching(model(1), model(2, model="transformer-tiny")))
    expected = found(student, objective)
    monkeypatch.setitem(chunked_loss.MAX_LOGITS, "cpu", 2 * V)
    for ours, reference in zip(found(student, objective), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("halved", [False, True])
def test_padding_that_stays_counts_for_nothing(halved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU padding is passed over where on a CPU it is left out; of padding, student and teacher say different
    things.
    """
    student, objective = model(0).float(), Objective(0.1, bfloat16=halved, distillation=teaching(model(1).float()))
    expected = found(student, objective)
    monkeypatch.setattr(objective_module, "select_tokens", objective_module.flatten_with_ignore_index)
    for ours, reference in zip(found(student, objective), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-2 if halved else 1e-5, atol=1e-3 if halved else 1e-6)


def test_teachers_see_the_words_that_are_dropped_for_the_student() -> None:
    student = model(0)
    seen: list[torch.Tensor] = []
    teacher = model(1)
    teacher.register_forward_pre_hook(lambda _, given: seen.extend([given[0].tokens_BT, given[1]]))
    Objective(word_dropout=0.9, distillation=teaching(teacher))(student, batch())
    source, given = seen
    assert torch.equal(source, batch().source.tokens_BT)
    assert torch.equal(given, batch().decoder_inputs)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs of different models with the same tokens."""
    folder = tmp_path_factory.mktemp("teachers")
    models: list[dict[str, object]] = [{}, {"model.attention": "luong-general"}]
    for name, own in zip("ab", models, strict=True):
        regard.train("dates", {**SMALL, **STEPS, **own}, out=folder / name)
    return [str(folder / "a"), str(folder / "b")]


def train(teachers: list[str], out: Path, **own: object) -> RunFolder:
    regard.train("dates", {**STUDENT, "training.teachers": teachers, **own}, out=out)
    return RunFolder(out)


def weights(run: RunFolder) -> str:
    return run.all_checkpoints()[0].weights_hash


@pytest.fixture(scope="module")
def student(teachers: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(teachers, tmp_path_factory.mktemp("student") / "run")


def test_a_run_learns_from_others(student: RunFolder, teachers: list[str], tmp_path: Path) -> None:
    assert student.settings().training.teachers == Teachers(runs=tuple(teachers))
    for name in ("tokenizer.json", "tokenizer.target.json"):
        assert (student.path / name).read_bytes() == (Path(teachers[0]) / name).read_bytes()
    assert weights(student) != weights(train(teachers[:1], tmp_path / "of-one"))
    regard.train("dates", dict(STUDENT), out=tmp_path / "alone")
    assert weights(student) != weights(RunFolder(tmp_path / "alone"))


def test_a_student_is_used_without_its_teachers(student: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(student.path, tmp_path / "moved")
    config = (tmp_path / "moved" / "config.yaml").read_text("utf-8")
    for run in student.settings().training.teachers.runs:  # type: ignore[union-attr]
        config = config.replace(run, "runs/gone")
    (tmp_path / "moved" / "config.yaml").write_text(config, "utf-8")
    here, moved = (regard.load(path).score("8 MAY 2001", "2001-05-08") for path in (student.path, tmp_path / "moved"))
    assert moved == here


def test_a_student_that_was_stopped_ends_the_same(
    student: RunFolder, teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_at(4, monkeypatch):
        train(teachers, tmp_path / "run")
    assert weights(train(teachers, tmp_path / "run")) == weights(student)


def test_a_teacher_that_has_changed_is_told(
    teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(tmp_path / "a")
    shutil.copytree(teachers[0], own)
    with stopped_at(4, monkeypatch):
        train([own], tmp_path / "run")
    shutil.rmtree(own)
    shutil.copytree(teachers[1], own)
    with pytest.raises(regard.DataError, match=rf"teacher {own}: the weights have changed since .*run was started"):
        train([own], tmp_path / "run")


@pytest.mark.parametrize("average", [1, 2])
def test_a_finished_student_needs_no_teachers(teachers: list[str], tmp_path: Path, average: int) -> None:
    own = str(tmp_path / "a")
    shutil.copytree(teachers[0], own)
    more = {"training.average_checkpoints": average, "training.metric": "accuracy"}
    finished = train([own], tmp_path / "run", **more)
    before = weights(finished)
    shutil.rmtree(own)
    assert weights(train([own], tmp_path / "run", **more)) == before
    assert regard.train(finished.path).steps == 6
    assert regard.load(finished.path).evaluate([("8 MAY 2001", "2001-05-08")])["accuracy"] <= 1


def test_a_student_that_is_not_finished_needs_its_teachers(
    teachers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(tmp_path / "a")
    shutil.copytree(teachers[0], own)
    with stopped_at(4, monkeypatch):
        train([own], tmp_path / "run")
    shutil.rmtree(own)
    with pytest.raises(regard.ModelError, match=rf"training\.teachers: There is no model at {own}"):
        regard.train(tmp_path / "run")


def test_teachers_and_their_weight_can_be_set_one_after_the_other() -> None:
    for runs in (["a"], "a", ["a", "b"]):
        settings = resolve(RunSettings, "dates", {"training.teachers": runs, "training.teachers.weight": 0.7})
        assert settings.training.teachers == Teachers(runs=tuple(runs), weight=0.7)


def test_a_student_of_other_pairs_takes_its_teachers_tokens(teachers: list[str], tmp_path: Path) -> None:
    run = train(teachers, tmp_path / "run", **{"data.train": 300})
    assert (run.path / "tokenizer.json").read_bytes() == (Path(teachers[0]) / "tokenizer.json").read_bytes()


def test_teachers_are_named_with_their_steps_and_told_where_they_are_unfinished(
    teachers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch, stopped_at(4, patch):
        regard.train("dates", {**SMALL, **STEPS}, out=tmp_path / "half")
    train([teachers[0], str(tmp_path / "half")], tmp_path / "run")
    told = [f"{run} (step {RunFolder(Path(run)).best().step})" for run in (teachers[0], tmp_path / "half")]
    assert f"with the teachers {told[0]} and {told[1]}." in capsys.readouterr().err
    assert [record.getMessage() for record in caplog.records if "teaches" in record.getMessage()] == [
        f"{tmp_path / 'half'} teaches as it is after 3 of its 6 steps; if it is trained on, its students cannot be."
    ]


def test_runs_are_named_in_whatever_way_is_natural() -> None:
    for given in ("runs/a", Path("runs/a"), ["runs/a"], [Path("runs/a")], {"runs": "runs/a"}):
        settings = resolve(RunSettings, "dates", {"training.teachers": given})
        assert settings.training.teachers == Teachers(runs=("runs/a",))


def test_a_student_may_draw_its_segmentations_otherwise(tmp_path: Path) -> None:
    bpe = {"tokenizer": {"kind": "bpe", "vocabulary": 470, "shared": True}}
    regard.train("dates", {**SMALL, **STEPS, **bpe}, out=tmp_path / "teacher")
    train([str(tmp_path / "teacher")], tmp_path / "run", **bpe, **{"tokenizer.dropout": 0.1})
    with pytest.raises(regard.ConfigError, match=r"with another tokenizer\.vocabulary, and"):
        train([str(tmp_path / "teacher")], tmp_path / "other", **bpe, **{"tokenizer.vocabulary": 480})


def test_what_cannot_teach_is_refused(teachers: list[str], tmp_path: Path) -> None:
    with pytest.raises(
        regard.ConfigError, match=r"teachers: .*a was trained with another tokenizer\.shared, tokenizer\.kind"
    ):
        train(teachers, tmp_path / "run", tokenizer="word")
    with pytest.raises(regard.ModelError, match=r"training\.teachers: There is no model at .*/runs/nowhere"):
        train(["runs/nowhere"], tmp_path / "run")
    with pytest.raises(regard.ConfigError, match=r"consistency loss cannot be combined\. Set training\.consistency"):
        train(teachers, tmp_path / "run", **{"training.consistency": "r-drop"})
    with pytest.raises(regard.ConfigError, match="teachers"):
        train([], tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
