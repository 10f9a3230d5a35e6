"""Figures of attention weights as SVG, PNG, PDF or HTML, in fonts that contain the characters of the tokens."""

import html as markup
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import ConfigError, check_output_folder
from regard.formatting import to_json
from regard.inspection.prediction import Prediction
from regard.inspection.trace.document import Document, write_prediction
from regard.inspection.views.fonts import FORMATS, drawing_settings, save_figure
from regard.inspection.views.heatmap import POLICY, AttentionView

_LARGE = 20.0
"""Size in inches above which a figure has a lower resolution."""

_ALL_FORMATS = (*FORMATS, ".html", ".json")


class Figure(NamedTuple):
    """A prediction, the view of its attention weights that is drawn, and the document of its trace for a .json file."""

    prediction: Prediction
    view: AttentionView
    document: Document | None = None


def check_extension(path: Path) -> None:
    """Raise ConfigError if the extension of a file is not a known format, or if its folder does not exist."""
    if path.suffix.lower() not in _ALL_FORMATS:
        raise ConfigError(f"{path}: the extension selects the format, and must be one of {', '.join(_ALL_FORMATS)}.")
    check_output_folder(path)


def save(prediction: Prediction, path: str | Path, view: AttentionView | None = None) -> None:
    """Write the attention weights of a prediction in the format that the file's extension selects.

    Args:
        prediction: The prediction.
        path: A .svg, .png, .pdf or .html file for a figure, or a .json file for all weights, as a trace.
        view: The view that is drawn. By default `prediction.view()`.

    Raises:
        ConfigError: The path has another extension, or its folder does not exist.

    >>> figures.save(prediction, "heads.pdf", prediction.view(kind="grid"))
    """
    save_all([Figure(prediction, prediction.view() if view is None else view)], path)


def save_all(figures: Sequence[Figure], path: str | Path) -> list[Path]:
    """Write the figures of several predictions, and return the files.

    A .pdf file has a page for each, and an .html file contains all. For the other formats, each figure is written to a
    file of its own: `figure-1.svg`, `figure-2.svg`, ….

    >>> figures.save_all([Figure(prediction, prediction.view()) for prediction in predictions], "figures.pdf")
    """
    path = Path(path)
    check_extension(path)
    extension = path.suffix.lower()
    if extension == ".html":
        path.write_text(to_page(figures), "utf-8")
        return [path]
    if extension == ".pdf":
        _draw_pages([figure.view for figure in figures], path)
        return [path]
    paths = [path] if len(figures) == 1 else [path.with_stem(f"{path.stem}-{n + 1}") for n in range(len(figures))]
    for figure, file in zip(figures, paths, strict=True):
        if extension == ".json":
            document = figure.document or write_prediction(figure.prediction)
            file.write_text(to_json(document, ensure_ascii=False), "utf-8")
        else:
            draw(figure.view, file)
    return paths


def draw(view: AttentionView, path: Path) -> None:
    """Draw attention weights to a file. Text stays text in SVG and PDF."""
    with drawing_settings(view.characters):
        figure = view.build_figure()
        save_figure(figure, path, dpi=_choose_dpi(figure), bbox_inches="tight", pad_inches=0.1)


def _draw_pages(views: Sequence[AttentionView], path: Path) -> None:
    """Draw each view on a page of a PDF file."""
    from matplotlib.backends.backend_pdf import PdfPages

    with drawing_settings("".join(view.characters for view in views)), PdfPages(path) as pages:
        for view in views:
            figure = view.build_figure()
            pages.savefig(figure, dpi=_choose_dpi(figure), bbox_inches="tight", pad_inches=0.1)


def _choose_dpi(figure: Any) -> int:
    """Return the resolution of a PNG file, and of the cells in an SVG or PDF file: lower for very large figures, and a
    multiple of 100, so that a cell is a whole number of pixels.
    """
    return 200 if max(figure.get_size_inches()) <= _LARGE else 100


def to_page(figures: Sequence[Figure]) -> str:
    """Return an HTML page that works offline, with the figures below each other."""
    body = "".join(
        f'<h1 style="font-size:1.2em;margin:1.5em 0 0.5em">{markup.escape(figure.prediction.heading)}</h1>'
        f"{figure.view.to_html()}"
        for figure in figures
    )
    return (
        '<!doctype html><html><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>regard</title></head>'
        f'<body style="font-family:sans-serif;margin:2em">{body}</body></html>\n'
    )
