"""Figures: an alignment as SVG, PNG or PDF, in fonts that have its characters."""

import logging
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.inspection.heatmap import label
from regard.inspection.prediction import Prediction
from regard.inspection.trace import Trace

log = logging.getLogger(__name__)

FORMATS = (".svg", ".png", ".pdf")


def check_ending(path: Path) -> None:
    """Refuse a file whose ending names no format."""
    known = (*FORMATS, ".html", ".json")
    if path.suffix.lower() not in known:
        raise ConfigError(f"{path}: the ending says how to draw, and it must be one of {', '.join(known)}.")


def save(prediction: Prediction, path: Path) -> None:
    """Write the alignment in the format that the file's ending names."""
    check_ending(path)
    if path.suffix.lower() in FORMATS:
        draw(prediction, path)
    else:
        Trace.of(prediction).save(path)


def draw(prediction: Prediction, path: Path) -> None:
    """A heat map: a row for each token of the answer, a column for each token of the source."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [label(token) for token in prediction.source_tokens]
    rows = [label(token) for token in prediction.tokens]
    fonts = _fonts("".join(columns + rows))
    with (
        rc_context({"font.family": fonts, "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        # What no installed font has is shown as a box, and said once by `_fonts`.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(1.6 + 0.28 * len(columns), 1.2 + 0.28 * len(rows)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        image = axes.imshow(prediction.attention, cmap="viridis", vmin=0.0, vmax=1.0, aspect="equal")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="attention weight", fraction=0.05, pad=0.02)
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def _fonts(text: str) -> list[str]:
    """Families that together have every character of the text, matplotlib's own first."""
    missing = frozenset(text) - _characters("DejaVu Sans")
    families = ["DejaVu Sans"]
    for family in _installed() if missing else ():
        if found := missing & _characters(family):
            families.append(family)
            missing -= found
        if not missing:
            break
    if missing:
        shown = " ".join(sorted(missing))
        log.warning("No installed font has %s; install one that does (the Noto fonts have most scripts).", shown)
    return families


@cache
def _installed() -> list[str]:
    from matplotlib import font_manager

    names: Iterable[str] = {font.name for font in font_manager.fontManager.ttflist}
    # Sans-serif Noto fonts first: they are made to stand beside each other.
    return sorted(names, key=lambda name: (not name.startswith("Noto Sans"), name))


@cache
def _characters(family: str) -> frozenset[str]:
    from matplotlib import font_manager, ft2font

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = font_manager.findfont(family, fallback_to_default=True)
        return frozenset(map(chr, ft2font.FT2Font(path).get_charmap()))
