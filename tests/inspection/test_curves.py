"""Learning curves: what is drawn is what was written, in the terminal and as a figure."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import ConfigError, ModelError
from regard.inspection import curves, terminal_plot
from regard.runs.folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]


def run_of(path: Path, *events: dict[str, object]) -> RunFolder:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("data: dates\n")
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return RunFolder(path)


def straight(path: Path, top: float = 1.0) -> RunFolder:
    """Validated six times, along a straight line, with the best at the end but one."""
    losses = [(step, 3.0 - step / 100) for step in range(10, 131, 10)]
    return run_of(
        path,
        *({"event": "train", "step": step, "loss": loss, "learning_rate": 1e-3} for step, loss in losses),
        *(
            {"event": "validation", "step": 20 * n, "best": n < 6, "pairs": 9, "bleu": top * n / 6, "loss": 2.0}
            for n in range(1, 7)
        ),
    )


def test_each_number_has_its_panel_and_training_shares_that_of_the_loss(tmp_path: Path) -> None:
    shown = curves.panels([straight(tmp_path / "one")])
    assert [panel.name for panel in shown] == ["loss", "bleu", "learning_rate"]
    validated, trained = shown[0].curves
    assert (validated.validated, trained.validated) == (True, False)
    assert trained.steps == list(range(10, 131, 10))
    bleu = shown[1].curves[0]
    assert bleu.values == [n / 6 for n in range(1, 7)]
    assert (bleu.best, bleu.kept) == (100, 5 / 6)


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    event = {"event": "validation", "step": 1, "loss": float("nan"), "signature": "x", "accuracy": 0.5, "best": True}
    assert [panel.name for panel in curves.panels([run_of(tmp_path / "one", event)])] == ["accuracy"]


@pytest.mark.parametrize(("smallest", "logarithmic"), [(0.01, True), (0.5, False), (-0.1, False)])
def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_scale(
    tmp_path: Path, smallest: float, logarithmic: bool
) -> None:
    events = [{"event": "train", "step": step, "loss": loss} for step, loss in ((1, 2.0), (2, smallest))]
    panel = curves.panels([run_of(tmp_path / "one", *events)])[0]
    assert panel.logarithmic is logarithmic


def test_a_straight_line_climbs_from_the_lower_left_to_the_upper_right(tmp_path: Path) -> None:
    lines = terminal_plot.plot(curves.panels([straight(tmp_path / "one")]), width=49).plain.split("\n")
    assert lines[0] == "one   kept: step 100, loss 2, bleu 0.833"
    start = lines.index("bleu")
    rows = [line[9:] for line in lines[start + 1 : start + 9]]
    assert [line[:9] for line in lines[start + 1 : start + 9 : 7]] == ["      1 ┤", "  0.167 ┤"]
    # Steps 20, 40 … 120 of 130 on 80 dots across, two a character; heights 0, 1/5 … 1 on 32 dots, four a character.
    found = {(row, place) for row, text in enumerate(rows) for place, sign in enumerate(text) if sign in "o◆"}
    assert found == {(7, 6), (6, 12), (4, 18), (3, 24), (1, 30), (0, 36)}
    assert rows[1][30] == "◆"
    assert lines[start + 10] == " " * 9 + "0" + "step".center(36) + "130"


def test_no_line_is_wider_than_asked_and_a_constant_is_drawn(tmp_path: Path) -> None:
    many = [{"event": "train", "step": step, "loss": 1.0} for step in range(1, 5000)]
    drawn = terminal_plot.plot(curves.panels([run_of(tmp_path / "one", *many)]), width=60).plain
    assert max(map(len, drawn.split("\n"))) <= 60
    assert sum("\u2800" <= sign <= "\u28ff" for sign in drawn) == 51  # one row of dots, all across


def test_several_runs_are_told_apart_by_letters(tmp_path: Path) -> None:
    folders = [straight(tmp_path / "one"), straight(tmp_path / "two", top=-1.0)]
    drawn = terminal_plot.plot(curves.panels(folders), width=60).plain
    assert drawn.startswith(
        "a  one   kept: step 100, loss 2, bleu 0.833\nb  two   kept: step 100, loss 2, bleu -0.833\n"
    )
    panel = drawn.partition("bleu\n")[2].partition("└")[0]
    assert {sign: panel.count(sign) for sign in "aAbB"} == {"a": 5, "A": 1, "b": 5, "B": 1}


def test_runs_of_the_same_name_are_named_by_their_paths(tmp_path: Path) -> None:
    folders = [straight(tmp_path / "x" / "run"), straight(tmp_path / "y" / "run")]
    assert curves.runs_of(curves.panels(folders)) == [str(folder.path) for folder in folders]


def test_a_figure_holds_the_points_and_is_the_same_each_time(tmp_path: Path) -> None:
    shown = curves.panels([straight(tmp_path / "one"), straight(tmp_path / "two")])
    for name in ("1.svg", "2.svg", "1.png", "1.pdf"):
        curves.draw(shown, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    drawn = (tmp_path / "1.svg").read_text()
    assert drawn == (tmp_path / "2.svg").read_text()
    for text in ("one", "two", "training", "validation", "the model kept", "loss", "bleu", "learning rate", "step"):
        assert re.search(f">{text}<", drawn), text


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing is written"):
        curves.panels([run_of(tmp_path / "empty")])
    with pytest.raises(ConfigError, match=r"drawn as one of \.svg, \.png, \.pdf"):
        curves.draw(curves.panels([straight(tmp_path / "one")]), tmp_path / "curves.html")


def test_look_draws_curves_where_no_text_is_given(cli: Run, tmp_path: Path) -> None:
    straight(tmp_path / "one")
    straight(tmp_path / "two")
    done = cli("look", "one")
    assert done.returncode == 0
    assert "bleu" in done.stdout
    assert "◆" in done.stdout
    done = cli("look", "one", "two", "-o", "curves.svg")
    assert (done.stdout, done.stderr) == ("", "wrote curves.svg\n")
    assert "two" in (tmp_path / "curves.svg").read_text()
    assert cli("look", "none").returncode == 4
    done = cli("look", "one", "two", "three")
    assert done.returncode == 2
    assert "'three' is no run" in done.stderr
