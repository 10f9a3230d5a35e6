"""`regard look`: in a terminal, several texts, the options of a selection, and files."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.cli import look
from regard.runs.folder import RunFolder
from tests_shared import SMALL
from tests_svg import read_labels

Run = Callable[..., subprocess.CompletedProcess[str]]


def look_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return the output of `regard look` on a pseudo-terminal with colors."""
    pty = pytest.importorskip("pty")
    try:
        leader, follower = pty.openpty()
    except OSError:
        pytest.skip("there is no pseudo-terminal: mount devpts on /dev/pts")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(leader, 1 << 12):
                chunks.append(chunk)
        except OSError:  # how Linux reports that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        look.command.main(list(words), standalone_mode=False)
    reader.join()
    os.close(leader)
    return b"".join(chunks).decode()


def test_without_color_the_heat_map_is_drawn_in_shades(
    small_run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(small_run.path), "3 mai 2009")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colored = look_on_a_terminal(monkeypatch, *words)
    assert "\x1b[48;" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    shaded = look_on_a_terminal(monkeypatch, *words)
    assert "\x1b" not in shaded
    look.command.main(list(words), standalone_mode=False)
    assert shaded.replace("\r\n", "\n") == capsys.readouterr().out
    assert "░" in shaded


def test_right_to_left_texts_are_isolated_in_the_terminal(cli: Run, small_run: RunFolder) -> None:
    done = cli("look", small_run.path, "3 مايو 2009")
    assert done.stdout.startswith("\u20683 مايو 2009\u2069 → ")
    assert "3 ␣ \u2068م\u2069 \u2068ا\u2069 " in done.stdout


@pytest.fixture(scope="module")
def transformer_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a small Transformer with two layers and two heads for a few steps."""
    path = tmp_path_factory.mktemp("runs") / "transformer"
    settings = {name: value for name, value in SMALL.items() if not name.startswith("model.")}
    model = {"kind": "transformer", "size": 16, "feedforward": 16, "layers": 2, "heads": 2}
    regard.train("dates", {**settings, "model": model, "training.steps": 10}, out=path, quiet=True)
    return path


@pytest.mark.slow
def test_several_texts_are_drawn_in_one_call(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    done = cli("look", small_run.path, "3 mai 2009", "May 3")
    headings = [line for line in done.stdout.splitlines() if " → " in line]
    assert [line.split(" → ")[0] for line in headings] == ["3 mai 2009", "May 3"]
    outputs = [word for extension in ("svg", "png", "pdf", "html", "json") for word in ("-o", f"a.{extension}")]
    done = cli("look", small_run.path, "3 mai 2009", "--file", "-", *outputs, stdin="May 3\n\n2009\n")
    assert done.returncode == 0, done.stderr
    written = [line.removeprefix("wrote ") for line in done.stderr.splitlines()]
    numbered = [[f"a-{number}.{extension}" for number in (1, 2, 3)] for extension in ("svg", "png", "json")]
    assert written == [*numbered[0], *numbered[1], "a.pdf", "a.html", *numbered[2]]
    assert json.loads((tmp_path / "a-2.json").read_text())["source"]["text"] == "May 3"
    assert {"M", "y"} <= set(read_labels(tmp_path / "a-2.svg"))
    assert (tmp_path / "a.pdf").read_bytes().count(b"/Type /Page ") == 3
    assert (tmp_path / "a.html").read_text().count("<table") == 3


def test_a_selection_is_drawn_and_printed_as_json(cli: Run, transformer_run: Path) -> None:
    done = cli("look", transformer_run, "3 mai 2009", "--layer", "1", "--head", "2", "--words", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["columns"] == ["3", "mai", "2009"]
    assert document["title"] == "Cross-attention, layer 1 of 2, head 2 of 2"
    [selected] = document["maps"]
    assert (selected["layer"], selected["head"]) == (1, 2)
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in selected["weights"])
    grid = json.loads(cli("look", transformer_run, "3 mai 2009", "--view", "grid", "--json").stdout)
    assert [(part["layer"], part["head"]) for part in grid["maps"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "title", "shown"),
    [
        (["--view", "grid"], "Cross-attention", "layer 2, head 1"),
        (["--view", "lines", "--head", "all"], "Cross-attention, layer 2 of 2", r"head 2 ←  \S+ 0\.\d\d"),
        (["--layer", "rollout"], "Attention rollout, average of 2 heads", "3 ␣ m a i ␣ 2 0 0 9"),
        (["--attention", "encoder-self"], "Encoder self-attention, layer 2 of 2, average of 2 heads", " m  "),
        (["--attention", "decoder-self", "--head", "max"], "Decoder self-attention, layer 2 of 2, maximum", "<s>"),
    ],
)
def test_every_selection_has_a_terminal_view_and_figures(
    cli: Run, transformer_run: Path, tmp_path: Path, options: list[str], title: str, shown: str
) -> None:
    done = cli("look", transformer_run, "3 mai 2009", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(title)
    assert re.search(shown, done.stdout)
    outputs = [word for extension in ("svg", "png", "pdf", "html") for word in ("-o", f"a.{extension}")]
    done = cli("look", transformer_run, "3 mai 2009", *options, *outputs, "--title", "My title")
    assert done.returncode == 0, done.stderr
    assert "My title" in read_labels(tmp_path / "a.svg")
    assert "My title" in (tmp_path / "a.html").read_text()


def test_a_json_file_is_the_trace_of_the_model(cli: Run, transformer_run: Path, tmp_path: Path) -> None:
    done = cli("look", transformer_run, "3 mai 2009", "--beam", "2", "-o", "a.json", "-o", "a.svg")
    assert done.returncode == 0, done.stderr
    trace = regard.Trace.load(tmp_path / "a.json")
    assert trace == regard.load(transformer_run).trace("3 mai 2009", beam=2)
    done = cli("look", transformer_run, "3 mai 2009", "--queries", "--states", "-o", "a.json")
    assert done.returncode == 0, done.stderr
    assert regard.Trace.load(tmp_path / "a.json") == regard.load(transformer_run).trace(
        "3 mai 2009", queries=True, states=True
    )
    done = cli("look", transformer_run, "3 mai 2009", "--target", "2009-05-03", "-o", "a.json")
    assert done.returncode == 0, done.stderr
    assert regard.Trace.load(tmp_path / "a.json") == regard.load(transformer_run).trace("3 mai 2009", "2009-05-03")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--layer", "none"], "'none' is not a number from 1, mean, max, rollout or all."),
        (["x", "--head", "7"], "There is no head 7: the attention has 1 head."),
        (["x", "--colors", "blau"], "'blau' is not a color map."),
        (["x", "--json", "-o", "a.svg"], "Use -o FILE.json instead."),
        (["x", "-o", "none/a.svg"], "there is no folder none"),
        (["x", "-o", "a.svg", "--queries"], "add -o FILE.json"),
        (["--file", "-"], "contains no text"),
    ],
)
def test_errors_say_what_to_do(cli: Run, small_run: RunFolder, arguments: list[str], message: str) -> None:
    done = cli("look", small_run.path, *arguments)
    assert done.returncode in {2, 3}
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_weights_of_a_given_target_are_drawn(cli: Run, transformer_run: Path) -> None:
    target = ("--target", "2009-05-03")
    done = cli("look", transformer_run, "3 mai 2009", *target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 mai 2009 → 2009-05-03   (log-probability -")
    assert [line.split()[0] for line in done.stdout.splitlines()[4:]] == list("2009-05-03")
    document = json.loads(cli("look", transformer_run, "3 mai 2009", *target, "--layer", "rollout", "--json").stdout)
    assert len(document["maps"][0]["weights"]) == 10
    wrong = cli("look", transformer_run, "3 mai 2009", "May 3", *target)
    assert wrong.returncode == 2
    assert "Got 2 texts and 1 target. Give a --target for each text." in wrong.stderr


def test_the_default_view_of_several_heads_says_how_to_see_each(
    cli: Run, small_run: RunFolder, transformer_run: Path
) -> None:
    hint = "--view grid shows each head"
    assert hint in cli("look", transformer_run, "3 mai 2009").stdout.splitlines()[1]
    assert hint not in cli("look", transformer_run, "3 mai 2009", "--head", "1").stdout
    assert hint not in cli("look", small_run.path, "3 mai 2009").stdout


def test_a_model_without_attention_says_so(cli: Run, tmp_path: Path) -> None:
    settings = {name: value for name, value in SMALL.items() if not name.startswith("model.")}
    model = {"kind": "fixed", "embedding": 8, "encoder": {"hidden": 8}, "decoder": {"hidden": 8}}
    regard.train("dates", {**settings, "model": model, "training.steps": 10}, out=tmp_path / "fixed", quiet=True)
    done = cli("look", "fixed", "3 mai 2009")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "The model has no cross-attention."
    wrong = cli("look", "fixed", "3 mai 2009", "--head", "2")
    assert wrong.returncode == 2
    assert "The model has no cross-attention. It has no attention." in wrong.stderr


def test_attributions_are_drawn_with_their_agreement(cli: Run, transformer_run: Path, tmp_path: Path) -> None:
    done = cli("look", transformer_run, "3 mai 2009", "--target", "2009-05", "--method", "occlusion")
    assert done.returncode == 0, done.stderr
    assert "\nOcclusion; colors from -" in done.stdout
    assert re.search(
        r"\nSpearman correlation with the attention weights: -?0\.\d\d \(average of 7 steps\)$", done.stdout
    )
    outputs = ("-o", "a.svg", "-o", "a.json")
    done = cli("look", transformer_run, "3 mai 2009", "--method", "integrated_gradients", *outputs)
    assert done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "wrote a.svg",
        "wrote a.json",
        "Spearman correlation with the attention weights",
        "Largest convergence delta",
    ]
    assert "Integrated gradients" in read_labels(tmp_path / "a.svg")
    trace = regard.Trace.load(tmp_path / "a.json")
    assert trace.attributions[0].method == "integrated_gradients"
    assert trace.steps


def test_a_contrast_and_the_compared_head_are_printed_as_json(cli: Run, transformer_run: Path) -> None:
    words = ("3 mai 2009", "--method", "gradient_x_input", "--target", "2009-05", "--contrast", "2009-12", "--json")
    documents = [
        json.loads(cli("look", transformer_run, *words, "--layer", "1", "--head", head).stdout) for head in "12"
    ]
    assert documents[0]["rows"] == ["0 rather than 1"]
    assert documents[0]["columns"] == list("3 mai 2009")
    assert documents[0]["steps"] == [5]
    assert documents[0]["scores"] == documents[1]["scores"]
    assert documents[0]["spearman"] != documents[1]["spearman"]


def test_a_contrast_needs_a_method(cli: Run, small_run: RunFolder) -> None:
    done = cli("look", small_run.path, "3 mai 2009", "--contrast", "1999")
    assert done.returncode == 2
    assert "Add --method integrated_gradients" in done.stderr
    done = cli("look", small_run.path, "3 mai", "4 mai", "--contrast", "1999", "--method", "occlusion")
    assert "Got 2 texts and 1 contrast. Give a --contrast for each text." in done.stderr
