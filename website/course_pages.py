"""The lessons of the course as pages: executed, with their outputs, figures and equations. They need no network."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jupytext
import latex2mathml.converter
import nbformat
from filelock import FileLock
from nbclient import NotebookClient

import regard
from regard.cli.course import Lesson, list_lessons
from regard.inspection.trace.page import render_trace

PACKAGES: Final = ("torch", "numpy", "matplotlib")
"""What the outputs of a lesson depend on, besides regard."""

INK: Final = "#010203"
"""The color of text and axes in figures, which pages replace with the color of their text."""

NONE: Final = ("figure.facecolor", "axes.facecolor", "legend.facecolor")
TEXT: Final = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: Final = {"font.size": 12, "svg.fonttype": "none", **dict.fromkeys(NONE, "none"), **dict.fromkeys(TEXT, INK)}

SETUP: Final = f"""\
%config InlineBackend.figure_formats = ["svg"]
%config InlineBackend.rc = {STYLE}
get_ipython().display_formatter.formatters["application/json"].for_type_by_name(
    "regard.inspection.trace.trace", "Trace", lambda trace: trace.document
)
"""
"""A cell that runs before those of a lesson: figures have no background, and traces are shown in the explorer."""


def render_lessons(folder: Path, cache: Path) -> None:
    """Write the pages of all lessons, and a page that lists them, to a folder."""
    folder.mkdir()
    rows = []
    for lesson in list_lessons():
        name = lesson.path.stem
        (folder / f"{name}.md").write_text("\n".join(render_lesson(lesson, folder, cache)), "utf-8")
        jupytext.write(jupytext.read(lesson.path), folder / f"{name}.ipynb")
        rows.append(f"| [{lesson.title}]({name}.md) | {lesson.summary} |")
    index = (Path(__file__).with_name("course.md")).read_text("utf-8")
    (folder / "index.md").write_text("\n".join([index, "| lesson | about |", "|---|---|", *rows, ""]), "utf-8")


def render_lesson(lesson: Lesson, folder: Path, cache: Path) -> Iterator[str]:
    """Yield the blocks of the page of a lesson. The pages of its traces are written to the folder."""
    name = lesson.path.stem
    for index, cell in enumerate(execute(lesson, cache).cells):
        if cell.cell_type == "markdown":
            yield render_markdown(cell.source)
            if not index:
                yield f"[Download the notebook]({name}.ipynb), or open it with `regard course {lesson.number}`.\n"
            continue
        yield f"```python\n{cell.source}\n```\n"
        for output in cell.outputs:
            data = output.get("data", {})
            alt = cell.metadata.get("alt", "")
            if output.output_type == "stream":
                yield f"```{{.text .output}}\n{output.text.rstrip()}\n```\n"
            elif "image/svg+xml" in data:
                yield f'<div class="figure" role="img" aria-label="{alt}">{render_svg(data["image/svg+xml"])}</div>\n'
            elif "application/json" in data:
                page = f"{name}-trace-{index}.html"
                (folder / page).write_text(render_trace(data["application/json"], "smooth"), "utf-8")
                yield f'<iframe class="live" src="{page}" title="{alt}"></iframe>\n'
            else:
                yield f"```{{.text .output}}\n{data['text/plain']}\n```\n"


def execute(lesson: Lesson, cache: Path) -> Any:
    """Return the notebook of a lesson with its outputs. It is executed if the lesson or the package has changed."""
    cache.mkdir(parents=True, exist_ok=True)
    stored = cache / f"{lesson.path.stem}-{fingerprint(lesson)}.ipynb"
    with FileLock(cache / f"{lesson.path.stem}.lock"):
        if not stored.exists():
            nbformat.write(run(jupytext.read(lesson.path)), stored)
        return nbformat.read(stored, as_version=4)


def run(notebook: Any) -> Any:
    """Execute a notebook in an empty folder, on one core, and return it."""
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        quiet = ["--log-level=ERROR"]  # the kernel warns of its local TCP connection
        client = NotebookClient(notebook, timeout=None, coalesce_streams=True, resources=where, extra_arguments=quiet)
        client.execute(env={**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"})
    del notebook.cells[0]
    return notebook


def fingerprint(lesson: Lesson) -> str:
    """Return a hash of what the outputs of a lesson depend on."""
    package = Path(regard.__file__).parent
    files = [
        path for pattern in ("*.py", "*.yaml") for path in package.rglob(pattern) if path.parent != lesson.path.parent
    ]
    digest = hashlib.sha256(" ".join(map(version, PACKAGES)).encode())
    for path in (Path(__file__), lesson.path, *sorted(files)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def render_markdown(text: str) -> str:
    """Return the text of a cell for the site: equations as MathML, and answers with Markdown in them."""
    text = re.sub(r"(```.*?```|`[^`]*`)|\$\$(.+?)\$\$|\$([^$]+)\$", _render_math, text, flags=re.DOTALL)
    return text.replace("<details>", '<details markdown="1">').replace("<summary>", '<summary markdown="span">') + "\n"


def _render_math(found: re.Match[str]) -> str:
    code, block, inline = found.groups()
    if code:
        return str(code)
    math = latex2mathml.converter.convert(" ".join((block or inline).split()), display="block" if block else "inline")
    return f'<div class="math">{math}</div>' if block else f"<span>{math}</span>"


def render_svg(svg: str) -> str:
    """Return a figure as an element of a page, with the colors of its text."""
    element = svg[svg.index("<svg") :]
    return re.sub(r"\n+", "\n", element).replace(INK, "currentColor")
