"""Loops of greedy search: which repetitions are loops, and that they are removed."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import regard
from regard.cli.predict import command
from regard.decoding.search import Hypothesis, remove_loops
from regard.runs.folder import RunFolder

TEXTS = ["3 mai 2009", "2009年5月3日", "Sunday, May 3, 2009"]


def hypothesis(text: str, *, truncated: bool = False) -> Hypothesis:
    return Hypothesis(list(map(ord, text)), -1.0, truncated)


@pytest.mark.parametrize(
    ("text", "truncated", "source", "without"),
    [
        ("crist" + "i" * 16, False, "cristy", "cristi"),
        ("ha" * 8, False, "x", "ha"),
        ("start " + "a man " * 4, False, "x", "start a man "),  # a cycle of 6 tokens
        ("a" + "b" * 16 + "c", False, "x", "abc"),  # a loop need not be at the end
        ("a" * 16 + "-" + "xy" * 9 + "!", False, "x", "a-xy!"),
        ("1" + "0" * 15, False, "one quadrillion", None),
        ("abcdefgh" * 3, False, "x", None),
        ("la la la", False, "x", None),
        ("crist" + "i" * 8, True, "cristy", "cristi"),  # truncated in the loop
        ("cris" + "ti" * 5 + "t", True, "cristy", "cristi"),
        ("crist" + "i" * 8 + "an", True, "cristy", None),
        ("crist" + "i" * 8, False, "cristy", None),
        ("-" * 40, False, "-" * 40, None),  # the source repeats, too
        ("na" * 20, True, "ba" * 20, None),
        ("", False, "", None),
    ],
)
def test_a_loop_is_a_long_repetition_that_the_source_does_not_have(
    text: str, truncated: bool, source: str, without: str | None
) -> None:
    found = remove_loops(hypothesis(text, truncated=truncated), list(source))
    assert (found and "".join(map(chr, found))) == without


@pytest.fixture(scope="module")
def looping_run(small_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that predicts the same token again and again."""
    path = tmp_path_factory.mktemp("looping") / "run"
    shutil.copytree(small_run.path, path)
    zero = regard.load(path).predictor.tokenizer.ids(["0"])[0][-1]
    for checkpoint in (path / "checkpoints").iterdir():
        tensors = load_file(checkpoint / "model.safetensors")
        tensors["decoder.readout.output.bias"][zero] += 20
        save_file(tensors, checkpoint / "model.safetensors")
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        content = (checkpoint / "model.safetensors").read_bytes()
        manifest["files"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture(scope="module")
def looping(looping_run: Path) -> regard.Model:
    return regard.load(looping_run)


def test_a_greedy_loop_is_removed(looping: regard.Model) -> None:
    endless = looping.predict("3 mai 2009", loop_guard=False)
    assert (set(endless.text), endless.truncated, endless.looped) == ({"0"}, True, False)
    guarded = looping.predict("3 mai 2009")
    assert (guarded.text, guarded.truncated, guarded.looped) == ("0", False, True)
    assert guarded.score == pytest.approx(looping.score("3 mai 2009", "0"), abs=1e-4)
    assert guarded.attention.shape == (1, len(guarded.source_tokens))
    np.testing.assert_allclose(guarded.attention, looping.force(["3 mai 2009"], ["0"])[0].attention, atol=1e-5)
    assert looping.trace("3 mai 2009").prediction.looped


def test_a_guarded_prediction_does_not_depend_on_the_batch(looping: regard.Model) -> None:
    batched = looping.predict([*TEXTS, ""], batch_size=2)
    single = [looping.predict(text) for text in (*TEXTS, "")]
    assert [(p.text, p.looped) for p in batched] == [(p.text, p.looped) for p in single]
    assert [p.looped for p in batched] == [True, True, True, False]


def test_constraints_are_satisfied_even_if_they_repeat(looping: regard.Model) -> None:
    assert looping.predict("3 mai 2009", prefix="0" * 20).text.startswith("0" * 20)
    assert "0" * 20 in looping.predict("3 mai 2009", must_contain=["0" * 20]).text
    assert len(looping.predict("3 mai 2009", min_length=9).tokens) >= 9


def test_beams_samples_and_scores_are_not_guarded(looping: regard.Model) -> None:
    assert not looping.predict("3 mai 2009", beam=2).looped
    assert not looping.predict("3 mai 2009", sample=True).looped
    assert looping.force(["x"], ["0" * 20])[0].text == "0" * 20


def test_predictions_without_a_loop_do_not_change(small_run: RunFolder) -> None:
    model = regard.load(small_run.path, device="cpu")
    guarded, unguarded = model.predict(TEXTS), model.predict(TEXTS, loop_guard=False)
    assert [(p.text, p.score) for p in guarded if not p.looped] == [
        (other.text, other.score) for p, other in zip(guarded, unguarded, strict=True) if not p.looped
    ]
    assert not all(p.looped for p in guarded)


def test_predict_prints_how_many_predictions_looped(looping_run: Path) -> None:
    done = CliRunner().invoke(command, [str(looping_run), "--json", *TEXTS])
    assert [json.loads(line)["looped"] for line in done.stdout.splitlines()] == [True, True, True]
    assert "note: 3 predictions repeated a few tokens in a loop" in done.stderr
