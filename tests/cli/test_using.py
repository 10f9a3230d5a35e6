"""`regard predict` and `regard look`: N lines in, N lines out; ensembles; unusable models."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import regard
from regard.data.cache import sha256
from regard.data.tokens.tokenizers import START
from regard.runs.folder import RunFolder
from tests_command import find_imports, run_fresh

Run = Callable[..., subprocess.CompletedProcess[str]]
BIAS = "decoder.bridge.bias"


def test_lines_stay_in_order_and_empty_lines_stay_empty(cli: Run, small_run: RunFolder) -> None:
    lines = ["3 mai 2009", "", "a\u2028b\u0085c\x0bd", "Sunday, May 3, 2009", "", "2009年5月3日"]
    done = cli("predict", small_run.path, stdin="\n".join(lines) + "\n")
    predictions = done.stdout.removesuffix("\n").split("\n")
    assert done.returncode == 0
    assert len(predictions) == len(lines)
    assert [prediction == "" for prediction in predictions] == [line == "" for line in lines]
    assert cli("predict", small_run.path, lines[0]).stdout == predictions[0] + "\n"


def test_the_order_of_lines_does_not_depend_on_the_batch_size(cli: Run, small_run: RunFolder) -> None:
    text = "".join(f"{'x' * (n % 17)}{n}\n" for n in range(300))
    one = cli("predict", small_run.path, "--batch-size", "7", stdin=text)
    other = cli("predict", small_run.path, "-", "--batch-size", "64", stdin=text)
    assert one.stdout == other.stdout
    assert one.stdout.count("\n") == 300


def test_json_contains_text_score_and_tokens(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--json", "--attention", "3 mai 2009")
    record = json.loads(done.stdout)
    assert record["source_tokens"] == list("3 mai 2009")
    assert len(record["attention"]) == len(record["tokens"])
    assert record["score"] < 0


def test_unknown_characters_are_reported(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--json", stdin="3 mai 2009\n3 §ai§ 2009\n\n¶ and §\n")
    assert [json.loads(line)["unknown"] for line in done.stdout.splitlines()] == [[], ["§"], [], ["¶", "§"]]
    assert "note: the model has no token for '§', '¶' (in 2 of the texts)." in done.stderr
    assert "no token" not in cli("predict", small_run.path, "3 mai 2009").stderr


def test_nbest_predictions_are_printed_as_lines_or_as_json(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--beam", "3", "--nbest", "2", "3 mai 2009", "May 3, 2009")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [len(columns) for columns in rows] == [3, 3, 3, 3]
    for best, second in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert 0 >= float(best[0]) >= float(second[0])  # sorted by the first column
    lines = cli("predict", small_run.path, "--beam", "3", "--nbest", "2", "--json", "3 mai 2009").stdout.splitlines()
    predicted = [json.loads(line) for line in lines]
    assert [[f"{p['ranking_score']:.4f}", f"{p['score']:.4f}", p["text"]] for p in predicted] == rows[:2]
    for prediction in predicted:  # log p divided by the default length penalty; the length includes the end token
        penalty = ((5 + len(prediction["tokens"]) + (not prediction["truncated"])) / 6) ** 0.6
        assert prediction["ranking_score"] == pytest.approx(prediction["score"] / penalty, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--nbest", "3"], 3),
        (["--set", "nbest=3"], 3),
        (["--nbest", "3", "--set", "groups=2"], 3),
        (["--set", "groups=2"], 1),
    ],
)
def test_the_default_beam_is_as_large_as_nbest_and_groups_need(
    cli: Run, small_run: RunFolder, options: list[str], count: int
) -> None:
    done = cli("predict", small_run.path, *options, "3 mai 2009")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == count
    assert all(("\t" in line) == (count > 1) for line in lines)


def test_a_blank_line_has_an_empty_prediction(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, stdin="   \n3 mai 2009\n \t\u3000\n")
    assert [bool(line) for line in done.stdout.split("\n")] == [False, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "1", "--nbest", "2"], "Use a wider beam"),
        (["--set", "temprature=2"], "Did you mean 'temperature'"),
        (["--beam", "4", "--set", "sample=true"], "cannot be combined"),
    ],
)
def test_search_settings_are_checked_before_the_model_is_loaded(
    cli: Run, small_run: RunFolder, options: list[str], message: str
) -> None:
    done = cli("predict", small_run.path, *options, "3 mai 2009")
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("options", [[], ["--beam", "4"]], ids=["greedy", "beam"])
def test_predictions_satisfy_constraints(cli: Run, small_run: RunFolder, options: list[str]) -> None:
    constraints = ["--prefix", "20", "--must-contain=-05-", "--must-contain", "777", "--banned", "9"]
    done = cli("predict", small_run.path, *options, *constraints, stdin="3 mai 2009\n\nMay 3, 2009\n")
    assert done.returncode == 0, done.stderr
    first, empty, second = done.stdout.splitlines()
    assert empty == ""
    for prediction in (first, second):
        assert prediction.startswith("20")
        assert "-05-" in prediction
        assert "777" in prediction
        assert "9" not in prediction


def test_a_phrase_outside_the_vocabulary_is_rejected(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--must-contain", "2009年", "3 mai 2009")
    assert done.returncode == 2
    assert "must_contain: the model has no token for '年' in '2009年'" in done.stderr


@pytest.mark.slow
def test_ensembles_average_the_probabilities_of_their_models(
    cli: Run, small_run: RunFolder, second_run: RunFolder
) -> None:
    texts = ["3 mai 2009", "May 3, 2009"]
    command = ["predict", small_run.path, "--beam", "3", "--json"]
    ensemble = cli(*command, "--with", second_run.path, *texts)
    assert ensemble.returncode == 0, ensemble.stderr
    model = regard.load(small_run.path, second_run.path)
    one, other = regard.load(small_run.path), regard.load(second_run.path)
    for text, line in zip(texts, ensemble.stdout.splitlines(), strict=True):
        record = json.loads(line)
        assert record["text"] == model.predict(text, beam=3).text
        if record["truncated"]:
            continue
        assert record["score"] == pytest.approx(model.score(text, record["text"]), abs=1e-3)
    single, twice = (cli(*command, *more, *texts).stdout for more in ([], ["--with", small_run.path]))
    assert [json.loads(line)["text"] for line in twice.splitlines()] == [one.predict(t, beam=3).text for t in texts]
    assert [json.loads(line)["text"] for line in single.splitlines()] == [one.predict(t, beam=3).text for t in texts]
    average = (_first_probabilities(one, texts[0]) + _first_probabilities(other, texts[0])) / 2
    np.testing.assert_allclose(_first_probabilities(model, texts[0]), average, rtol=1e-4)


def _first_probabilities(model: regard.Model, text: str) -> NDArray[np.float32]:
    """Return the probabilities of the first target token."""
    reader, device = model.predictor.reader, model.predictor.device
    with torch.no_grad():
        source = reader.collate(reader.read([text])).to(device)
        logits = model.network(source, torch.tensor([[START]], device=device)).logits_BTV
    probabilities: NDArray[np.float32] = logits[0, 0].softmax(-1).cpu().numpy()
    return probabilities


def test_models_with_different_tokenizers_are_rejected_as_an_ensemble(
    cli: Run, small_run: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(small_run.path, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    path.write_text(path.read_text().replace('"a"', '"ä"', 1))
    for manifest in (tmp_path / "other" / "checkpoints").glob("*/manifest.json"):
        content = json.loads(manifest.read_text())
        content["tokenizers"]["tokenizer.json"] = sha256(path)
        manifest.write_text(json.dumps(content))
    for verb, *texts in (("predict", "3 mai 2009"), ("evaluate",)):
        done = cli(verb, small_run.path, "--with", tmp_path / "other", *texts)
        assert done.returncode == 4
        assert "must have the same tokenizers" in done.stderr
        assert cli(verb, small_run.path, "--with", "nowhere", *texts).returncode == 4


def test_predictions_are_truncated_at_the_length_limit(cli: Run, small_run: RunFolder) -> None:
    record = json.loads(cli("predict", small_run.path, "--json", "3 mai 2009").stdout)
    assert len(record["tokens"]) <= 2 * len("3 mai 2009") + 20
    assert isinstance(record["truncated"], bool)


def test_bytes_that_are_not_utf8_are_reported_or_replaced(cli: Run, small_run: RunFolder) -> None:
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


def test_windows_line_endings_are_removed_with_a_note(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, stdin=b"\xef\xbb\xbf3 mai 2009\r\n")
    assert done.stdout == cli("predict", small_run.path, "3 mai 2009").stdout
    assert "byte order mark" in done.stderr
    assert "CRLF" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "| true"])
@pytest.mark.parametrize("verb", ["predict", "evaluate", "data check"])
def test_a_full_or_closed_output_prints_no_traceback(small_run: RunFolder, verb: str, redirection: str) -> None:
    if "/dev/full" in redirection and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    lines = "yes '3 mai 2009' | head -3000 | " if verb == "predict" else ""
    command = f"set -o pipefail; {lines}{sys.executable} -m regard {verb} {small_run.path} {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if redirection == "| true" else 7)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_closed_input_is_reported(small_run: RunFolder) -> None:
    command = f"{sys.executable} -m regard predict {small_run.path} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Standard input is closed" in done.stderr


@pytest.fixture
def broken(small_run: RunFolder, tmp_path: Path) -> RunFolder:
    """Return a copy of a run with only its newest checkpoint, to be damaged."""
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
    """Replace a character in a file that stays valid."""
    path = folder.path / "tokenizer.json"
    text = path.read_text("utf-8")
    assert text.count('"m": ') == text.count('"ǂ": ') + 1 == 1
    path.write_text(text.replace('"m": ', '"ǂ": '), "utf-8")
    return "tokenizer.json has a different model.vocab"


def damage_tokenizer(folder: RunFolder) -> str:
    (folder.path / "tokenizer.json").write_text("{")
    return "tokenizer.json is damaged"


def lose_model(folder: RunFolder) -> str:
    (folder.all_checkpoints()[0].path / "model.safetensors").unlink()
    return "model.safetensors is missing"


def lose_checkpoints(folder: RunFolder) -> str:
    shutil.rmtree(folder.checkpoints)
    return "it has no checkpoint yet"


def raise_format_number(folder: RunFolder) -> str:
    path = folder.all_checkpoints()[0].path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    return "written by a newer version"


def lose_config(folder: RunFolder) -> str:
    folder.config.unlink()
    return "it has no config.yaml"


def damage_manifest(folder: RunFolder) -> str:
    (folder.all_checkpoints()[0].path / "manifest.json").write_text("{")
    return "manifest.json is damaged"


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lose_tokenizer,
        damage_tokenizer,
        change_tokenizer,
        lose_model,
        lose_checkpoints,
        raise_format_number,
        lose_config,
        damage_manifest,
    ],
)
def test_an_unusable_model_is_reported_without_torch(broken: RunFolder, damage: Callable[[RunFolder], str]) -> None:
    check_reported_without_torch(broken, damage(broken))


def check_reported_without_torch(folder: RunFolder, message: str) -> None:
    """Importing torch takes longer than all the rest of the command."""
    done = find_imports("predict", str(folder.path), "3 mai 2009")
    assert done.result.returncode == 4
    assert message in done.result.stderr
    assert "Traceback" not in done.result.stderr
    assert "torch" not in done.modules


Change = Callable[[dict[str, torch.Tensor]], object]
CHANGES: list[tuple[Change, str, str]] = [
    (lambda t: t.update({BIAS: t[BIAS][:-1].clone()}), f"tensor {BIAS} has the shape (15,)", f"tensor {BIAS} has the"),
    (lambda t: t.pop(BIAS), f"tensor {BIAS} is missing", f"has no tensor {BIAS}"),
    (lambda t: t.update({"more": t[BIAS].clone()}), "tensor more has the shape", "config.yaml does not have: more"),
]
"""A change of the tensors, the message from the manifest, and the message if the manifest has the new shapes."""


def update_manifest(folder: RunFolder, **changes: object) -> None:
    """Make the manifest match the changed files."""
    path = folder.all_checkpoints()[0].path
    manifest = {**json.loads((path / "manifest.json").read_text()), **changes}
    manifest["files"]["model.safetensors"] = sha256(path / "model.safetensors")
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("change", "message", "load_message"), CHANGES, ids=["shape", "missing", "extra"])
def test_a_tensor_that_does_not_fit_is_reported_by_name(
    cli: Run, broken: RunFolder, change: Change, message: str, load_message: str
) -> None:
    path = broken.all_checkpoints()[0].path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    update_manifest(broken)
    check_reported_without_torch(broken, message)
    update_manifest(broken, shapes={name: list(tensor.shape) for name, tensor in tensors.items()})
    with pytest.raises(regard.ModelError, match=load_message):
        regard.load(broken.path)


def test_overlapping_tensors_are_rejected(cli: Run, broken: RunFolder) -> None:
    path = broken.all_checkpoints()[0].path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    update_manifest(broken)
    check_reported_without_torch(broken, "model.safetensors is damaged")


def test_a_pickle_is_rejected(cli: Run, tmp_path: Path) -> None:
    import pickle

    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "disguised.safetensors").write_bytes(pickle.dumps({"weights": 1}))
    for name in ("model.pt", "disguised.safetensors"):
        done = cli("predict", name, "x")
        assert done.returncode == 4
        assert "looks like a pickle" in done.stderr
    assert cli("predict", "nowhere", "x").returncode == 4


@pytest.mark.slow
def test_look_draws_in_the_terminal_and_writes_figures(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
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


def test_nbest_writes_n_lines_for_every_line(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "--nbest", "3", stdin="3 mai 2009\n\n4 mai 2009\n")
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 9
    assert all("\t" in line for line in lines)
    assert [line.split("\t")[2] for line in lines[3:6]] == ["", "", ""]
    as_json = cli("predict", small_run.path, "--nbest", "3", "--json", stdin="\n").stdout.split("\n")[:-1]
    assert [json.loads(line)["text"] for line in as_json] == ["", "", ""]


@pytest.mark.slow
def test_an_encoding_without_the_characters_of_the_output_is_reported(
    cli: Run, small_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = cli("predict", small_run.path, "--json", "3 Ω 2009", start=run_fresh)
    assert done.returncode == 7
    assert r"latin-1 has no '\u03a9'. Set the environment variable PYTHONIOENCODING=utf-8." in done.stderr


def test_an_argument_that_is_not_utf_8_is_reported(cli: Run, small_run: RunFolder) -> None:
    done = cli("predict", small_run.path, "3 \udcff 2009", "4 mai 2009", start=run_fresh)
    assert done.returncode == 3
    assert "contains bytes that are not UTF-8 text" in done.stderr
    assert len(done.stdout.split("\n")) == 3
