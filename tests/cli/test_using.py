"""Predicting, looking: N lines in, N lines out, and models that cannot be used."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import regard
from regard.data.batching import pad
from regard.data.cache import sha256
from regard.data.tokens.tokenizers import START
from regard.runs.folder import RunFolder
from tests_command import fresh

Run = Callable[..., subprocess.CompletedProcess[str]]
BIAS = "decoder.bridge.bias"


def test_lines_come_out_as_they_went_in(cli: Run, small_run: RunFolder) -> None:
    lines = ["3 mai 2009", "", "a\u2028b\u0085c\x0bd", "Sunday, May 3, 2009", "", "2009年5月3日"]
    done = cli("predict", small_run.path, stdin="\n".join(lines) + "\n")
    answers = done.stdout.removesuffix("\n").split("\n")
    assert done.returncode == 0
    assert len(answers) == len(lines)
    assert [answer == "" for answer in answers] == [line == "" for line in lines]
    for line, answer in zip(lines, answers, strict=True):
        if line:
            assert cli("predict", small_run.path, line).stdout == answer + "\n"
            break


def test_many_lines_keep_their_order_whatever_the_batch(cli: Run, small_run: RunFolder) -> None:
    text = "".join(f"{'x' * (n % 17)}{n}\n" for n in range(300))
    one = cli("predict", small_run.path, "--batch-size", "7", stdin=text)
    other = cli("predict", small_run.path, "-", "--batch-size", "64", stdin=text)
    assert one.stdout == other.stdout
    assert one.stdout.count("\n") == 300


def test_json_holds_text_score_and_tokens(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--json", "--attention", "3 mai 2009")
    record = json.loads(done.stdout)
    assert record["source_tokens"] == list("3 mai 2009")
    assert len(record["attention"]) == len(record["tokens"])
    assert record["score"] < 0


def test_what_the_model_has_no_token_for_is_told(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--json", stdin="3 mai 2009\n3 §ai§ 2009\n\n¶ and §\n")
    assert [json.loads(line)["unknown"] for line in done.stdout.splitlines()] == [[], ["§"], [], ["¶", "§"]]
    assert "note: the model has no token for '§', '¶' (in 2 of the texts)." in done.stderr
    assert "no token" not in cli("predict", small_run.path, "3 mai 2009").stderr


def test_a_beam_gives_its_best_answers_in_lines_or_as_json(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--beam", "3", "--nbest", "2", "3 mai 2009", "May 3, 2009")
    assert done.returncode == 0, done.stderr
    scores = [line.split("\t") for line in done.stdout.splitlines()]
    assert [len(columns) for columns in scores] == [2, 2, 2, 2]
    assert all(float(score) <= 0 for score, _ in scores)
    lines = cli("predict", small_run.path, "--beam", "3", "--nbest", "2", "--json", "3 mai 2009").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [text for _, text in scores[:2]]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--nbest", "3"], 3),
        (["--set", "nbest=3"], 3),
        (["--nbest", "3", "--set", "groups=2"], 3),
        (["--set", "groups=2"], 1),
    ],
)
def test_without_a_beam_it_is_as_wide_as_the_predictions_need(
    cli: Run, small_run: RunFolder, options: list[str], count: int
) -> None:
    done = cli("predict", small_run.path, *options, "3 mai 2009")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == count
    assert all(("\t" in line) == (count > 1) for line in lines)


def test_a_line_of_spaces_is_an_empty_line(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, stdin="   \n3 mai 2009\n \t\u3000\n")
    assert [bool(line) for line in done.stdout.split("\n")] == [False, True, False, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--beam", "1", "--nbest", "2"], "Widen the beam"),
        (["--set", "temprature=2"], "Did you mean 'temperature'"),
        (["--beam", "4", "--set", "sample=true"], "exclude each other"),
    ],
)
def test_settings_of_the_search_are_checked_before_the_model_is_loaded(
    cli: Run, small_run: RunFolder, options: list[str], words: str
) -> None:
    done = cli("predict", small_run.path, *options, "3 mai 2009")
    assert done.returncode == 2
    assert words in done.stderr


def test_answers_begin_with_and_contain_what_is_wished_for(cli: Run, small_run: RunFolder) -> None:
    wishes = ["--prefix", "20", "--must-say=-05-", "--must-say", "777", "--banned", "9"]
    for options in ([], ["--beam", "4"]):
        done = cli("predict", small_run.path, *options, *wishes, stdin="3 mai 2009\n\nMay 3, 2009\n")
        assert done.returncode == 0, done.stderr
        first, empty, second = done.stdout.splitlines()
        assert empty == ""
        for answer in (first, second):
            assert answer.startswith("20")
            assert "-05-" in answer
            assert "777" in answer
            assert "9" not in answer
    done = cli("predict", small_run.path, "--must-say", "2009年", "3 mai 2009")
    assert done.returncode == 2
    assert "must_say: the model's vocabulary lacks part of '2009年'" in done.stderr


def test_models_answer_together(cli: Run, small_run: RunFolder, second_run: RunFolder) -> None:
    texts = ["3 mai 2009", "May 3, 2009"]
    command = ["predict", small_run.path, "--beam", "3", "--json"]
    together = cli(*command, "--with", second_run.path, *texts)
    assert together.returncode == 0, together.stderr
    model = regard.load(small_run.path, second_run.path)
    one, other = regard.load(small_run.path), regard.load(second_run.path)
    for text, line in zip(texts, together.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert found["text"] == model.predict(text, beam=3).text
        if found["truncated"]:
            continue
        assert found["score"] == pytest.approx(model.score(text, found["text"]), abs=1e-3)
    alone, twice = (cli(*command, *more, *texts).stdout for more in ([], ["--with", small_run.path]))
    assert [json.loads(line)["text"] for line in twice.splitlines()] == [one.predict(t, beam=3).text for t in texts]
    assert [json.loads(line)["text"] for line in alone.splitlines()] == [one.predict(t, beam=3).text for t in texts]
    # The first character of an answer is as likely as the two say in the mean.
    mean = (_first(one, texts[0]) + _first(other, texts[0])) / 2
    np.testing.assert_allclose(_first(model, texts[0]), mean, rtol=1e-4)


def _first(model: regard.Model, text: str) -> NDArray[np.float32]:
    tokenizers, device = model.predictor.tokenizers, model.predictor.device
    with torch.no_grad():
        source = pad(tokenizers.source.ids([text])).to(device)
        logits = model.network(source, torch.tensor([[START]], device=device)).logits_BTV
    return logits[0, 0].softmax(-1).cpu().numpy()


def test_models_with_other_tokens_do_not_answer_together(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(small_run.path, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    path.write_text(path.read_text().replace('"a"', '"ä"', 1))
    for manifest in (tmp_path / "other" / "checkpoints").glob("*/manifest.json"):
        told = json.loads(manifest.read_text())
        told["tokenizers"]["tokenizer.json"] = sha256(path)
        manifest.write_text(json.dumps(told))
    for verb, *texts in (("predict", "3 mai 2009"), ("evaluate",)):
        done = cli(verb, small_run.path, "--with", tmp_path / "other", *texts)
        assert done.returncode == 4
        assert "must have the same tokenizers" in done.stderr
        assert cli(verb, small_run.path, "--with", "nowhere", *texts).returncode == 4


def test_endless_answers_are_cut_and_said(cli: Run, small_run: RunFolder) -> None:
    record = json.loads(cli("predict", small_run.path, "--json", "3 mai 2009").stdout)
    assert len(record["tokens"]) <= 2 * len("3 mai 2009") + 20
    assert isinstance(record["truncated"], bool)


def test_bytes_that_are_not_utf8_are_placed_or_replaced(cli: Run, small_run: RunFolder) -> None:
    bad = b"3 mai 2009\nab\xffcd\n"
    done = cli("predict", small_run.path, stdin=bad)
    assert done.returncode == 3
    assert done.stdout == cli("predict", small_run.path, "3 mai 2009").stdout
    assert "stdin, line 2: byte 2 is not UTF-8 (0xff)" in done.stderr
    done = cli("predict", small_run.path, "--replace-invalid", stdin=bad)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2
    assert "1 line had bytes that are not UTF-8" in done.stderr
    assert cli("predict", small_run.path, stdin=b"a\0b\n").returncode == 3


def test_windows_line_ends_are_left_out_with_a_notice(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, stdin=b"\xef\xbb\xbf3 mai 2009\r\n")
    assert done.stdout == cli("predict", small_run.path, "3 mai 2009").stdout
    assert "byte order mark" in done.stderr
    assert "CRLF" in done.stderr


@pytest.mark.parametrize("where", ["> /dev/full", ">&-", "| true"])
@pytest.mark.parametrize("verb", ["predict", "evaluate", "data check"])
def test_an_output_that_is_full_or_closed_is_no_traceback(small_run: RunFolder, verb: str, where: str) -> None:
    lines = "yes '3 mai 2009' | head -3000 | " if verb == "predict" else ""
    command = f"set -o pipefail; {lines}{sys.executable} -m regard {verb} {small_run.path} {where}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if where == "| true" else 7)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_an_input_that_is_closed_is_told(small_run: RunFolder) -> None:
    command = f"{sys.executable} -m regard predict {small_run.path} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Standard input is closed" in done.stderr


@pytest.fixture
def broken(small_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of a run with its one newest checkpoint, to be spoilt."""
    shutil.copytree(small_run.path, tmp_path / "model")
    folder = RunFolder(tmp_path / "model")
    for checkpoint in folder.all_checkpoints()[1:]:
        shutil.rmtree(checkpoint.path)
    return folder


def truncate(folder: RunFolder) -> str:
    path = folder.all_checkpoints()[0].path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    return "model.safetensors is damaged"


def lose_tokenizer(folder: RunFolder) -> str:
    (folder.path / "tokenizer.json").unlink()
    return "tokenizer.json is missing"


def change_tokenizer(folder: RunFolder) -> str:
    """One letter for another, in a file that reads well."""
    path = folder.path / "tokenizer.json"
    text = path.read_text("utf-8")
    assert text.count('"m": ') == text.count('"ǂ": ') + 1 == 1
    path.write_text(text.replace('"m": ', '"ǂ": '), "utf-8")
    return "tokenizer.json is missing, damaged or of another run"


def spoil_tokenizer(folder: RunFolder) -> str:
    (folder.path / "tokenizer.json").write_text("{")
    return "tokenizer.json is missing, damaged or of another run"


def lose_model(folder: RunFolder) -> str:
    (folder.all_checkpoints()[0].path / "model.safetensors").unlink()
    return "model.safetensors is missing"


def lose_checkpoints(folder: RunFolder) -> str:
    shutil.rmtree(folder.checkpoints)
    return "it has no checkpoint yet"


def come_from_the_future(folder: RunFolder) -> str:
    path = folder.all_checkpoints()[0].path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    return "written by a newer version"


def lose_config(folder: RunFolder) -> str:
    folder.config.unlink()
    return "there is no config.yaml in it"


def spoil_manifest(folder: RunFolder) -> str:
    (folder.all_checkpoints()[0].path / "manifest.json").write_text("{")
    return "manifest.json is damaged"


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        lose_tokenizer,
        spoil_tokenizer,
        change_tokenizer,
        lose_model,
        lose_checkpoints,
        come_from_the_future,
        lose_config,
        spoil_manifest,
    ],
)
def test_a_model_that_cannot_be_used_is_told_in_under_a_second(
    cli: Run, broken: RunFolder, spoil: Callable[[RunFolder], str]
) -> None:
    told_in_under_a_second(cli, broken, spoil(broken))


def told_in_under_a_second(cli: Run, folder: RunFolder, message: str) -> None:
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        done = cli("predict", folder.path, "3 mai 2009", start=fresh)
        times.append(time.perf_counter() - begun)
        assert done.returncode == 4
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        if times[-1] < 1.0:
            break
    assert min(times) < 1.0


Change = Callable[[dict[str, torch.Tensor]], object]
CHANGES: list[tuple[Change, str, str]] = [
    (lambda t: t.update({BIAS: t[BIAS][:-1].clone()}), f"tensor {BIAS} has the shape (15,)", f"tensor {BIAS} has the"),
    (lambda t: t.pop(BIAS), f"tensor {BIAS} is missing", f"has no tensor {BIAS}"),
    (lambda t: t.update({"more": t[BIAS].clone()}), "tensor more has the shape", "config.yaml does not know: more"),
]
"""What is done to the tensors, how it is told at once, and how by a model that was saved without their shapes."""


def agree(folder: RunFolder, **changes: object) -> None:
    """Make the manifest agree with what is there, as a careless tool might."""
    path = folder.all_checkpoints()[0].path
    manifest = {**json.loads((path / "manifest.json").read_text()), **changes}
    manifest["files"]["model.safetensors"] = sha256(path / "model.safetensors")
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("change", "message", "later"), CHANGES, ids=["shape", "missing", "extra"])
def test_a_tensor_that_does_not_fit_is_named(
    cli: Run, broken: RunFolder, change: Change, message: str, later: str
) -> None:
    path = broken.all_checkpoints()[0].path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    agree(broken)
    told_in_under_a_second(cli, broken, message)
    agree(broken, shapes={name: list(tensor.shape) for name, tensor in tensors.items()})
    with pytest.raises(regard.ModelError, match=later):
        regard.load(broken.path)


def test_tensors_that_overlap_are_refused(cli: Run, broken: RunFolder) -> None:
    path = broken.all_checkpoints()[0].path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    agree(broken)
    told_in_under_a_second(cli, broken, "model.safetensors is damaged")


def test_a_pickle_is_refused(cli: Run, tmp_path: Path) -> None:
    import pickle

    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "disguised.safetensors").write_bytes(pickle.dumps({"weights": 1}))
    for name in ("model.pt", "disguised.safetensors"):
        done = cli("predict", name, "x")
        assert done.returncode == 4
        assert "looks like a pickle" in done.stderr
    assert cli("predict", "nowhere", "x").returncode == 4


def test_look_draws_in_the_terminal_and_as_figures(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    done = cli("look", small_run.path, "3 mai 2009")
    assert done.returncode == 0
    assert done.stdout.startswith("3 mai 2009 → ")
    assert "3 ␣ m a i ␣ 2 0 0 9" in done.stdout
    outputs = ["a.svg", "a.png", "a.pdf", "a.html", "a.json"]
    done = cli("look", small_run.path, "3 mai 2009", *(word for name in outputs for word in ("-o", name)))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["source"]["text"] == "3 mai 2009"
    wrong = cli("look", small_run.path, "3 mai 2009", "-o", "a.gif")
    assert wrong.returncode == 2
    assert ".svg, .png, .pdf, .html, .json" in wrong.stderr
