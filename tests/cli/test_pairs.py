"""Runs on data files: a run stores the columns and paths of its files; the options are the same for every verb."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.config import resolve
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.training.resume import check_data_unchanged
from tests_shared import SMALL

Run = Callable[..., subprocess.CompletedProcess[str]]

TINY = {
    **{key: value for key, value in SMALL.items() if not key.startswith("data.")},
    "training.steps": 4,
    "training.validate_every": 4,
    "training.save_every": 2,
    "training.validation_pairs": 10,
}
OVERRIDES = [*(f"{key}={value}" for key, value in TINY.items()), "training.device=cpu"]
STEMS = [f"{a}{b}{c}" for a in "bfhjlmprtw" for b in "aeiou" for c in ("lk", "mp", "nd", "rk", "rn")]
FORMS = [f"{stem}\t{stem}{end}\t{tag}\n" for stem in STEMS for end, tag in (("ed", "PST"), ("s", "SG"))] * 2


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, trained there on a file with a relative path, a header and three columns."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "forms.tsv").write_text("lemma\tform\ttags\n" + "".join(FORMS))
    (folder / "test.tsv").write_text("lemma\tform\ttags\nbelk\tbelks\tSG\nfump\tfumped\tPST\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = {"kind": "files", "train": {"path": "forms.tsv", "columns": ["1+3", 2]}}
        regard.train("pairs", {"data": data, "tokenizer.tags": True, **TINY}, out="runs/forms")
    return folder


def evaluate(cli: Run, project: Path, *arguments: str) -> tuple[int, str]:
    """Return the number of evaluated pairs and the loss, which depends on the references."""
    done = cli("evaluate", "runs/forms", "--metric", "loss", "--json", *arguments, cwd=project)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report["pairs"], f"{report['values']['loss']:.6f}"


def test_a_run_stores_its_columns(cli: Run, project: Path) -> None:
    default = evaluate(cli, project, "--pairs", "test.tsv")
    assert default == evaluate(cli, project, "--pairs", "test.tsv", "--columns", "1+3", "2")
    assert default != evaluate(cli, project, "--pairs", "test.tsv", "--columns", "1", "2")
    assert default[0] == 2
    assert evaluate(cli, project, "--pairs", "test.tsv", "--no-header")[0] == 3


def test_a_run_stores_whether_there_is_a_header_and_reads_stdin(cli: Run, project: Path) -> None:
    odd = "eins\tzwei\tdrei\nbelk\tbelks\tSG\nfump\tfumped\tPST\n"
    command = ["evaluate", "runs/forms", "--metric", "loss", "--json", "--pairs"]
    results = [cli(*command, path, stdin=odd, cwd=project) for path in ("-", "/dev/stdin")]
    assert [json.loads(done.stdout)["pairs"] for done in results] == [2, 2]


def test_a_run_is_evaluated_on_held_out_pairs(cli: Run, project: Path) -> None:
    pairs, _ = evaluate(cli, project)
    assert 20 < pairs < 90
    settings = RunFolder(project / "runs" / "forms").settings()
    corpus = regard.data.corpora.load_corpus(settings.data)
    assert len(list(corpus.test or [])) == pairs


def test_a_run_is_resumed_and_evaluated_from_another_folder(
    cli: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(project / "runs" / "forms", folder)
    shutil.rmtree(folder / "checkpoints" / "step-4")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = cli("train", folder, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "from step 2" in done.stderr
    assert cli("evaluate", folder, "--metric", "loss", cwd=elsewhere).returncode == 0
    monkeypatch.chdir(project)
    data = {"kind": "files", "train": {"path": "forms.tsv", "columns": ["1+3", 2]}}
    regard.train("pairs", {"data": data, "tokenizer.tags": True, **TINY}, out=folder)


def test_a_moved_data_file_can_be_given_by_its_new_path(cli: Run, project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(project / "runs" / "forms", folder)
    shutil.rmtree(folder / "checkpoints" / "step-4")
    (tmp_path / "there.tsv").write_bytes((project / "forms.tsv").read_bytes())
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace(str(project), "/nowhere"))
    done = cli("train", folder)
    assert done.returncode == 3
    assert "no file /nowhere/forms.tsv. Check the path, or set another one: data.train.path=FILE." in done.stderr
    done = cli("train", folder, "data.train.path=there.tsv")
    assert done.returncode == 0, done.stderr
    assert "from step 2" in done.stderr
    assert cli("evaluate", folder, "--metric", "loss").returncode == 0
    (tmp_path / "there.tsv").write_text("lemma\tform\ttags\n" + "".join(FORMS[1:]))
    done = cli("train", folder, "data.train.path=there.tsv")
    assert done.returncode == 3
    assert "the data has changed" in done.stderr


def test_files_may_have_new_names_on_resume_but_not_a_new_order() -> None:
    run, saved = RunFolder(Path("run")), {"train.tsv": "1", "dev.tsv": "2"}
    check_data_unchanged(run, saved, {"moved/train.tsv": "1", "moved/dev.tsv": "2"})
    with pytest.raises(regard.DataError, match=r"dev\.tsv and train\.tsv: the data has changed"):
        check_data_unchanged(run, saved, {"dev.tsv": "2", "train.tsv": "1"})


def test_a_test_set_of_files_that_changed_is_rejected(cli: Run, project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(project / "runs" / "forms", folder)
    (tmp_path / "forms.tsv").write_text("lemma\tform\ttags\n" + "".join(FORMS[1:]))
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace(str(project), str(tmp_path)))
    done = cli("evaluate", folder, "--metric", "loss")
    assert done.returncode == 3
    assert "changed since" in done.stderr
    assert "--pairs" in done.stderr


def test_teachers_are_found_from_another_folder(
    cli: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    regard.train("runs/forms", {"training.teachers": ["runs/forms"], "training.steps": 2}, out=tmp_path / "student")
    done = cli("train", tmp_path / "student", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_path_in_settings_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "data": {"kind": "pronounce", "path": "words.dict"},
        "tokenizer": {"source": {"kind": "sentencepiece", "path": "letters.model"}, "target": "word"},
        "training": {"init_from": "runs/a", "teachers": ["runs/b", "/elsewhere/c"]},
    }
    resolved = resolve(RunSettings, settings, {}).absolute().model_dump(mode="json")
    assert resolved["data"]["path"] == str(tmp_path / "words.dict")
    assert resolved["tokenizer"]["source"]["path"] == str(tmp_path / "letters.model")
    assert resolved["training"]["init_from"] == str(tmp_path / "runs" / "a")
    assert resolved["training"]["teachers"]["runs"] == [str(tmp_path / "runs" / "b"), "/elsewhere/c"]


def test_the_message_without_a_test_set_names_the_option_that_gives_one(
    cli: Run, project: Path, tmp_path: Path
) -> None:
    regard.train(project / "runs" / "forms", {"data.test_split": False}, out=tmp_path / "run")
    done = cli("evaluate", tmp_path / "run")
    assert done.returncode == 3
    assert "was trained without a test set. Give one with --pairs" in done.stderr


def test_train_accepts_a_test_file_and_column_names_and_can_be_repeated(cli: Run, tmp_path: Path) -> None:
    pairs = "".join(f"{stem}\t{stem.upper()}\n" for stem in STEMS)
    (tmp_path / "words.tsv").write_text("en\tde\n" + pairs)
    (tmp_path / "test.jsonl").write_text(json.dumps({"en": "belk", "de": "BELK"}) + "\n")
    command = ["train", "--pairs", "words.tsv", "--test", "test.jsonl", "--columns", "de", "en"]
    done = cli(*command, "--out", "run", *OVERRIDES)
    assert done.returncode == 0, done.stderr
    settings = resolve(RunSettings, tmp_path / "run" / "config.yaml", {})
    assert settings.data.model_dump()["test"]["columns"] == ("de", "en")
    assert cli(*command, "--out", "run", *OVERRIDES).returncode == 0
    assert json.loads(cli("evaluate", "run", "--json").stdout)["pairs"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tb\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8 x.tsv > x.utf8.tsv"),
        (
            "x.tsv",
            "é\tb\n".encode("latin-1") * 9,
            "x.tsv:1: byte 0 is not UTF-8 (0xe9); in total, 9 lines contain no pair.",
        ),
        ("x.txt", b"a;b\n" * 9, "`sed 's/;/\\t/' x.txt > x.tsv`"),
        ("x.jsonl", b'{"a": "1", "b": "2", "c": "3"}\n', "--columns a b"),
        ("x.tsv", b"source\ttarget\n", "the file has no data lines"),
    ],
)
def test_train_reports_why_a_file_has_no_pairs(
    cli: Run, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = cli("train", "--pairs", name)
    assert done.returncode == 3
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_pairs_on_stdin_are_checked_and_counted(cli: Run, path: str) -> None:
    text = "".join(f"Satz Nummer {n}\tsentence number {n}\n" for n in range(100, 150))
    done = cli("data", "check", path, stdin=text)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "No problems found."), done.stderr
    report = cli("data", "check", path, "--columns", "translation.de", "translation.en", "--json", stdin="".join(
        json.dumps({"translation": {"en": f"sentence {n}", "de": ""}}) + "\n" for n in range(9)
    ))  # fmt: skip
    (problem,) = (entry for entry in json.loads(report.stdout)["problems"] if entry["kind"] == "empty")
    assert problem["examples"][0]["location"] == ("stdin:1" if path == "-" else "/dev/stdin:1")
    assert json.loads(cli("data", "stats", path, "--json", stdin=text).stdout)["splits"][0]["pairs"] == 50
    assert cli("data", "check", path).returncode == 3


@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_training_pairs_on_stdin_are_rejected(cli: Run, path: str) -> None:
    done = cli("train", "--pairs", path, stdin="ja\tyes\n")
    assert done.returncode == 3
    assert "training pairs are read several times. Write them to a file first." in done.stderr


def test_a_detected_header_is_reported_and_can_be_overridden(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("en;de\n" + "".join(f"sentence number {n};Satz {n}\n" for n in range(30)))
    for verb in ("check", "stats"):
        done = cli("data", verb, "x.csv")
        assert "x.csv: line 1 is treated as a header: en, de. Use --no-header if it is a pair." in done.stderr
    counts = [
        json.loads(cli("data", "check", "x.csv", *more, "--json").stdout)["pairs"]["x.csv"]
        for more in ([], ["--no-header"], ["--header"], ["--columns", "de", "en"])
    ]
    assert counts == [30, 31, 30, 30]
