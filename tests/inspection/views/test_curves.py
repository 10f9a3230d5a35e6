"""Learning curves show the values of the events, in a terminal and as a figure."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import ConfigError, ModelError
from regard.inspection.views import curves, terminal_plot
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.runs.events import find_attention
from regard.runs.folder import RunFolder
from tests_svg import read_labels, read_panels

Run = Callable[..., subprocess.CompletedProcess[str]]


def write_run(path: Path, *events: dict[str, object]) -> RunFolder:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("data: dates\n")
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return RunFolder(path)


def write_linear_run(path: Path, top: float = 1.0) -> RunFolder:
    """Write a run with linear curves and six validations, of which the fifth is the best."""
    losses = [(step, 3.0 - step / 100) for step in range(10, 131, 10)]
    return write_run(
        path,
        *({"event": "train", "step": step, "loss": loss, "learning_rate": 1e-3} for step, loss in losses),
        *(
            {"event": "validation", "step": 20 * n, "best": n < 6, "pairs": 9, "bleu": top * n / 6, "loss": 2.0}
            for n in range(1, 7)
        ),
    )


def test_each_value_has_a_panel_and_both_losses_share_one(tmp_path: Path) -> None:
    panels = curves.read_panels([write_linear_run(tmp_path / "one")])
    assert [panel.name for panel in panels] == ["loss", "bleu", "learning_rate"]
    validation, training = panels[0].curves
    assert (validation.validated, training.validated) == (True, False)
    assert training.steps == list(range(10, 131, 10))
    bleu = panels[1].curves[0]
    assert bleu.values == [n / 6 for n in range(1, 7)]
    assert (bleu.best_step, bleu.best_value) == (100, 5 / 6)


def test_values_that_are_not_finite_numbers_are_ignored(tmp_path: Path) -> None:
    event = {"event": "validation", "step": 1, "loss": float("nan"), "signature": "x", "accuracy": 0.5, "best": True}
    assert [panel.name for panel in curves.read_panels([write_run(tmp_path / "one", event)])] == ["accuracy"]


def test_damaged_lines_are_ignored(tmp_path: Path) -> None:
    folder = write_linear_run(tmp_path / "one")
    expected = curves.read_panels([folder])
    damaged = [
        '{"step": 1}',
        "[]",
        "1",
        '{"event": "train", "step": "x", "loss": 1}',
        '{"event": [], "step": 1}',
        "[" * 5000,
    ]
    damaged += ['{"event": "attention", "step": 120, "attentions": [{"name": "x"}]}']
    folder.events.write_text("\n".join([*damaged, folder.events.read_text(), ""]))
    assert curves.read_panels([folder]) == expected
    assert find_attention(folder.events, 120) is None


@pytest.mark.parametrize(("smallest", "logarithmic"), [(0.01, True), (0.5, False), (-0.1, False)])
def test_a_loss_with_a_wide_range_has_a_logarithmic_scale(tmp_path: Path, smallest: float, logarithmic: bool) -> None:
    events = [{"event": "train", "step": step, "loss": loss} for step, loss in ((1, 2.0), (2, smallest))]
    panel = curves.read_panels([write_run(tmp_path / "one", *events)])[0]
    assert panel.logarithmic is logarithmic


def test_a_linear_curve_rises_from_the_lower_left_to_the_upper_right(tmp_path: Path) -> None:
    panels = curves.read_panels([write_linear_run(tmp_path / "one")])
    lines = terminal_plot.plot(panels, width=49).plain.split("\n")
    assert lines[0] == "one   best: step 100, loss 2, bleu 0.833"
    start = lines.index("bleu")
    rows = [line[9:] for line in lines[start + 1 : start + 9]]
    assert [line[:9] for line in lines[start + 1 : start + 9 : 7]] == ["      1 ┤", "  0.167 ┤"]
    # Steps 20, 40 … 120 of 130 on 80 columns of dots, two a character; heights 0, 1/5 … 1 on 32 rows, four a character.
    markers = {(row, column) for row, text in enumerate(rows) for column, sign in enumerate(text) if sign in "o◆"}
    assert markers == {(7, 6), (6, 12), (4, 18), (3, 24), (1, 30), (0, 36)}
    assert rows[1][30] == "◆"
    assert lines[start + 10] == " " * 9 + "0" + "step".center(36) + "130"


def test_a_constant_curve_fits_the_width(tmp_path: Path) -> None:
    events = [{"event": "train", "step": step, "loss": 1.0} for step in range(1, 5000)]
    plot = terminal_plot.plot(curves.read_panels([write_run(tmp_path / "one", *events)]), width=60).plain
    assert max(map(len, plot.split("\n"))) <= 60
    assert sum("\u2800" <= sign <= "\u28ff" for sign in plot) == 51  # one row of dots over the full width


def test_each_of_several_runs_has_a_letter(tmp_path: Path) -> None:
    folders = [write_linear_run(tmp_path / "one"), write_linear_run(tmp_path / "two", top=-1.0)]
    plot = terminal_plot.plot(curves.read_panels(folders), width=60).plain
    assert plot.split("\n")[:2] == [
        "a  one   best: step 100, loss 2, bleu 0.833",
        "b  two   best: step 100, loss 2, bleu -0.833",
    ]
    panel = plot.partition("bleu\n")[2].partition("└")[0]
    assert {sign: panel.count(sign) for sign in "aAbB"} == {"a": 5, "A": 1, "b": 5, "B": 1}


def test_runs_with_the_same_name_are_named_by_their_paths(tmp_path: Path) -> None:
    folders = [write_linear_run(tmp_path / "x" / "run"), write_linear_run(tmp_path / "y" / "run")]
    assert curves.run_names(curves.read_panels(folders)) == [str(folder.path) for folder in folders]


@pytest.mark.slow
def test_a_figure_contains_a_line_for_each_curve_and_is_reproducible(tmp_path: Path) -> None:
    panels = curves.read_panels([write_linear_run(tmp_path / "one"), write_linear_run(tmp_path / "two", top=-1.0)])
    for name in ("first.svg", "second.svg"):
        curves.draw(panels, tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    drawn = dict(read_panels(tmp_path / "first.svg"))
    first, second = CATEGORY_COLORS[:2]
    assert {title: [(line.color, len(line.points)) for line in lines] for title, lines in drawn.items()} == {
        "loss": [(first, 6), (second, 6), (first, 13), (second, 13)],
        "bleu": [(first, 6), (second, 6)],
        "learning rate": [(first, 13), (second, 13)],
    }
    rising, falling = ([y for _, y in line.points] for line in drawn["bleu"])  # y grows downward
    assert rising == sorted(rising, reverse=True)
    assert falling == sorted(falling)
    assert set(read_labels(tmp_path / "first.svg")) >= {
        "one",
        "two",
        "training",
        "validation",
        "best checkpoint",
        "step",
    }


@pytest.mark.parametrize("extension", [".png", ".pdf"])
def test_the_format_of_a_figure_is_selected_by_the_extension(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"curves{extension}"
    curves.draw(curves.read_panels([write_linear_run(tmp_path / "one")]), path)
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[extension])


def test_a_run_without_values_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="contains no values yet"):
        curves.read_panels([write_run(tmp_path / "empty")])


def test_an_unknown_extension_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drawn as \.svg, \.png, \.pdf"):
        curves.draw(curves.read_panels([write_linear_run(tmp_path / "one")]), tmp_path / "curves.html")


@pytest.mark.slow
def test_look_without_a_text_draws_learning_curves(cli: Run, tmp_path: Path) -> None:
    folders = [write_linear_run(tmp_path / "one"), write_linear_run(tmp_path / "two")]
    done = cli("look", "one")
    assert done.returncode == 0
    plot = terminal_plot.plot(curves.read_panels(folders[:1])).plain
    assert done.stdout.splitlines() == [line.rstrip() for line in plot.split("\n")]
    done = cli("look", "one", "two", "-o", "curves.svg")
    assert (done.stdout, done.stderr) == ("", "wrote curves.svg\n")
    curves.draw(curves.read_panels(folders), tmp_path / "expected.svg")
    assert (tmp_path / "curves.svg").read_bytes() == (tmp_path / "expected.svg").read_bytes()
    assert cli("look", "none").returncode == 4
    done = cli("look", "one", "two", "three")
    assert done.returncode == 2
    assert "'three' is not a run" in done.stderr


def write_diagnosed_run(path: Path, *roles: str, dead: int = 0) -> RunFolder:
    """Write a run with statistics of attention weights."""
    values = {"entropy": 0.5, "redundancy": 0.25, "dead_heads": dead}
    events: list[dict[str, object]] = [{"event": "train", "step": step, "loss": 1.0} for step in (1, 100)]
    for step in (50, 100):
        averages = {f"{role}/{name}": value * step / 100 for role in roles for name, value in values.items()}
        events.append({"event": "attention", "step": step, "pairs": 9, "attentions": [], "time": 1.0, **averages})
    return write_run(path, *events)


def test_each_statistic_of_attention_has_a_panel_with_a_curve_for_each_role(tmp_path: Path) -> None:
    folder = write_diagnosed_run(tmp_path / "one", "encoder-self", "cross", dead=2)
    panels = curves.read_panels([folder])
    names = ["loss", "attention_entropy", "attention_redundancy", "attention_dead_heads"]
    assert [panel.name for panel in panels] == names
    cross, encoder = panels[1].curves
    assert (cross.role, cross.steps, cross.values) == ("cross", [50, 100], [0.25, 0.5])
    assert encoder.role == "encoder-self"
    text = terminal_plot.plot(panels, width=60).plain
    assert "attention entropy   (cross: o, encoder-self: e)" in text
    curves.draw(panels, tmp_path / "curves.svg")
    labels = read_labels(tmp_path / "curves.svg")
    assert {"attention dead heads", "cross-attention", "encoder self-attention"} <= set(labels)


def test_several_runs_are_compared_by_their_cross_attention_and_without_dead_heads(tmp_path: Path) -> None:
    folders = [write_diagnosed_run(tmp_path / name, "cross", "encoder-self") for name in ("one", "two")]
    panels = curves.read_panels([*folders, write_linear_run(tmp_path / "without")])
    by_name = {panel.name: panel for panel in panels}
    assert "attention_dead_heads" not in by_name
    assert [(curve.run, curve.role) for curve in by_name["attention_entropy"].curves] == [
        ("one", "cross"),
        ("two", "cross"),
    ]
    assert terminal_plot.plot(panels, width=60).plain.count("attention entropy\n") == 1
