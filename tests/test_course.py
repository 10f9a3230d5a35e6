"""The course: every lesson runs, its claims hold, it has a page with its outputs, and `regard course` opens it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_pages import execute, render_lesson, render_markdown
from regard.cli.course import Lesson, list_lessons
from tests_command import Result, run_fresh

Run = Callable[..., Result]

LESSONS = list_lessons()
SECTIONS = ["The idea", "The equation", "In Python", "Experiment", "Questions"]

CLAIMS = {
    1: [r"\n 4 letters:  ?(9\d|100)%\n", r"\n12 letters:   \d%\n", r"\n14 letters:   \d%\n"],
    2: [r"with attention( +\S+){5} +(9\d|100)% ", r"fixed context( +\S+){5} +\d% ", r"context \[\[\[14.25\]\]\]"],
    3: [
        r"by content  (additive|general|cosine) ( +(9\d|100)%){3} ",
        r"by content  location ( +[23]\d%){3} ",
        r"by number   location ( +(9\d|100)%){3} ",
        r"by number   dot ( +[12]\d%){3} ",
        r"scaled_dot .*( +(9\d|100)%){3}\n",
    ],
    4: [
        r"sparsemax     \[0\.  0\.  0\.  0\.  0\.7 0\.3 0\.  0\. \]",
        r"local, D = 1  \[0\.   0\.   0\.   0\.\d+ 0\.\d+ 0\.\d+ 0\.   0\.  \]",
        r"copy    local, D = 2  ( *(9\d|100)%){12}\n",
        r"reverse global        ( *(9\d|100)%){12}\n",
        r"reverse local, D = 2  ( *[0-2]?\d%){5} +\d{2,3}% +\d{2,3}%( *[0-2]?\d%){5}\n",
        r"difference     16,384·S \+ 16,384·T \+ 256·S·T\n",
    ],
}
"""What the lessons print if their claims hold."""

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.path.stem)


def test_the_lessons_are_numbered_in_order() -> None:
    assert [lesson.number for lesson in LESSONS] == list(range(1, len(LESSONS) + 1))
    assert all(lesson.title.startswith(f"Lesson {lesson.number}: ") for lesson in LESSONS)


@each_lesson
def test_each_lesson_has_an_experiment_and_three_questions_with_answers(lesson: Lesson) -> None:
    text = lesson.path.read_text("utf-8")
    assert [name for name in re.findall(r"^# ## (.+)$", text, re.MULTILINE) if name in SECTIONS] == SECTIONS
    assert re.findall(r"<summary>(\d)\.", text) == ["1", "2", "3"]
    assert text.count("# <details>\n") == text.count("# </details>\n") == text.count("<summary>")


@pytest.mark.slow
@each_lesson
def test_each_lesson_runs_and_its_claims_hold(lesson: Lesson, executions: Path) -> None:
    notebook = execute(lesson, executions)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    printed = "".join(output.get("text", "") for output in outputs)
    assert [claim for claim in CLAIMS.get(lesson.number, []) if not re.search(claim, printed)] == []
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@each_lesson
def test_the_page_of_each_lesson_describes_its_figures(lesson: Lesson, executions: Path, tmp_path: Path) -> None:
    page = "\n".join(render_lesson(lesson, tmp_path, executions))
    labels = re.findall(r'role="img" aria-label="(.*?)"', page) + re.findall(r'<iframe [^>]*title="(.*?)"', page)
    assert labels
    assert all(len(label) > 20 for label in labels)
    assert "$" not in re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.DOTALL)


def test_equations_become_mathml_and_code_stays() -> None:
    page = render_markdown("The weight $a_j$ of `$x`:\n\n$$e^2$$\n")
    assert re.search(r'<span><math [^>]*display="inline"><mrow><msub><mi>a</mi><mi>j</mi></msub></mrow></math>', page)
    assert re.search(r'<div class="math"><math [^>]*display="block">', page)
    assert "`$x`" in page


def test_the_command_lists_the_lessons(cli: Run) -> None:
    done = cli("course")
    assert done.returncode == 0
    assert [line.partition("  ")[0] for line in done.stdout.splitlines()[1:]] == [str(each.number) for each in LESSONS]


def test_the_command_writes_a_valid_notebook(cli: Run, tmp_path: Path) -> None:
    done = cli("course", "1", "--out", "first.ipynb")
    assert (done.returncode, done.stdout) == (0, "first.ipynb\n")
    notebook: Any = nbformat.read(tmp_path / "first.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith(f"# {LESSONS[0].title}\n")
    assert {cell.cell_type for cell in notebook.cells} == {"markdown", "code"}


def test_the_command_opens_a_notebook_and_keeps_the_changes_of_the_reader(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "jupyterlab.py").write_text("import sys\nprint('opens', sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "programs"), prepend=os.pathsep)
    notebook = tmp_path / f"{LESSONS[0].path.stem}.ipynb"
    assert cli("course", "1", start=run_fresh).stdout == f"opens {notebook.name}\n"
    nbformat.validate(nbformat.read(notebook, as_version=4))
    notebook.write_text("changed")
    assert cli("course", "1", start=run_fresh).stdout == f"opens {notebook.name}\n"
    assert notebook.read_text() == "changed"


def test_a_missing_package_is_named_with_the_extra(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['jupytext'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = cli("course", "1", "--out", "first.ipynb", start=run_fresh)
    assert done.returncode == 2
    assert "pip install 'regard[course]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"), [(["99"], "There is no lesson 99."), (["--out", "x"], "Give its number")]
)
def test_wrong_arguments_are_rejected(cli: Run, words: list[str], message: str) -> None:
    done = cli("course", *words)
    assert done.returncode == 2
    assert message in done.stderr
