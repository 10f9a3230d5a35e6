"""regard course"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import click

from regard.errors import ConfigError, check_output_folder
from regard.formatting import table
from regard.regular_files import read_regular

EXAMPLES = """\b
Examples:
  regard course
  regard course 3
  regard course 3 --out scores.ipynb"""

FOLDER: Final = Path(__file__).parents[1] / "course"


class Lesson(NamedTuple):
    """A lesson of the course.

    Attributes:
        path: The script of the lesson.
        title: The title of the lesson.
        summary: What a reader learns from it.
    """

    path: Path
    title: str
    summary: str

    @property
    def number(self) -> int:
        return int(self.path.name.split("_")[1])


def list_lessons() -> list[Lesson]:
    """Return the lessons of the course in order."""
    return [read_lesson(path) for path in sorted(FOLDER.glob("lesson_*.py"))]


def read_lesson(path: Path) -> Lesson:
    """Return a lesson with its title, which is its first heading, and its summary, which is its first paragraph."""
    found = re.search(r"^# # (.+)\n#\n((?:# .+\n)+)", read_regular(path).decode("utf-8"), re.MULTILINE)
    assert found is not None, path
    return Lesson(path, found[1], " ".join(line.removeprefix("# ") for line in found[2].splitlines()))


@click.command(epilog=EXAMPLES)
@click.argument("number", metavar="[N]", type=int, required=False)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the notebook to FILE, and do not open it.",
)
def command(number: int | None, out: Path | None) -> None:
    """List the lessons of the course "From a fixed context to the Transformer", or open lesson N in Jupyter.

    The notebook is written to the current folder. If it is already there, it is opened with your changes. Each lesson
    is also a page of the documentation (`make docs`), and a script: python -m regard.course.NAME.
    """
    lessons = {lesson.number: lesson for lesson in list_lessons()}
    if number is None:
        if out is not None:
            raise click.UsageError("--out writes one lesson. Give its number: regard course 3 --out scores.ipynb.")
        click.echo(table(["", "lesson", "about"], [[str(n), each.title, each.summary] for n, each in lessons.items()]))
        return
    if number not in lessons:
        raise click.UsageError(f"There is no lesson {number}. The lessons are 1 to {len(lessons)}.")
    path = lessons[number].path
    if out is not None:
        check_output_folder(out)
        _check_installed(path, "jupytext")
        _write_notebook(path, out)
        click.echo(out)
        return
    _check_installed(path, "jupytext", "jupyterlab")
    notebook = Path(path.with_suffix(".ipynb").name)
    if not notebook.exists():
        _write_notebook(path, notebook)
    done = subprocess.run([sys.executable, "-m", "jupyterlab", str(notebook)], check=False)
    click.get_current_context().exit(done.returncode)


def _check_installed(lesson: Path, *packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"The package {missing[0]} is not installed. Run pip install 'regard[course]'. Without it, read "
            f"course/{lesson.stem}.html of the documentation, or run python -m regard.course.{lesson.stem}."
        )


def _write_notebook(lesson: Path, path: Path) -> None:
    import jupytext

    jupytext.write(jupytext.read(lesson), path)
