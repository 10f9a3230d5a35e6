"""Figures of attention weights as SVG, PNG or PDF, in fonts that contain the characters of the tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import ConfigError
from regard.inspection.fonts import fonts_for
from regard.inspection.heatmap import label
from regard.inspection.prediction import Prediction
from regard.inspection.trace import Trace, caption

FORMATS = (".svg", ".png", ".pdf")

_CELL = 0.28
"""Width and height of a cell in inches; a line of text fits into it."""

_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.14, 2.5, 0.15
"""Size of the color bar in inches; it is never taller than the heat map."""


def check_extension(path: Path) -> None:
    """Raise ConfigError if the extension of a file is not a known format."""
    known = (*FORMATS, ".html", ".json")
    if path.suffix.lower() not in known:
        raise ConfigError(f"{path}: the extension selects the format, and must be one of {', '.join(known)}.")


def save(prediction: Prediction, path: Path) -> None:
    """Write the attention weights in the format that the file's extension selects."""
    check_extension(path)
    if path.suffix.lower() in FORMATS:
        draw(prediction, path)
    else:
        Trace(prediction).save(path)


def draw(prediction: Prediction, path: Path) -> None:
    """Draw a heat map with a row for each token of the output and a column for each token of the source."""
    from matplotlib import rc_context

    text = "".join(map(label, [*prediction.slot_labels, *prediction.tokens]))
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "regard", "text.parse_math": False}
    with rc_context(settings), fonts_for(text):
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        build_figure(prediction).savefig(path, dpi=160, bbox_inches="tight", pad_inches=0.1, metadata=metadata)


def build_figure(prediction: Prediction) -> Any:
    """Draw the heat map as a matplotlib figure of its exact size. Labels and color bar are outside the figure, so save
    it with `bbox_inches="tight"`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, rows = ([label(token) for token in tokens] for tokens in (prediction.slot_labels, prediction.tokens))
    width, height = (_CELL * max(1, len(tokens)) for tokens in (columns, rows))
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    weights_TS = prediction.attention if prediction.attention.size else np.zeros((1, 1))
    image = axes.imshow(weights_TS, cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_yticks(range(len(rows)), rows)
    _set_column_labels(axes, columns)
    axes.set_xlabel("source")
    axes.set_ylabel("output")
    axes.set_title(caption(prediction), loc="left", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar_height = min(height, _BAR_HEIGHT)
    bar = figure.add_axes((1 + _BAR_GAP / width, 1 - bar_height / height, _BAR_WIDTH / width, bar_height / height))
    ticks, name = ([0, 0.5, 1], "attention weight") if bar_height > 1.2 else ([0, 1], "weight")
    figure.colorbar(image, cax=bar, ticks=ticks, label=name)
    return figure


def _set_column_labels(axes: Any, labels: Sequence[str]) -> None:
    """Put labels above the columns, slanted if one is wider than its column."""
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    texts = axes.set_xticks(range(len(labels)), labels)
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    widest = max((tick.label2.get_window_extent(renderer).width for tick in texts), default=0)
    if widest > 0.9 * _CELL * figure.dpi:
        axes.tick_params(axis="x", labelrotation=45)
        for tick in texts:
            tick.label2.set(horizontalalignment="left", verticalalignment="baseline", rotation_mode="anchor")
