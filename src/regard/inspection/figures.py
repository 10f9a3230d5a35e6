"""Figures of attention weights as SVG, PNG or PDF, in fonts that contain the characters of the tokens."""

from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.inspection.fonts import fonts_for
from regard.inspection.heatmap import AttentionView
from regard.inspection.pictures import Style
from regard.inspection.prediction import Prediction
from regard.inspection.trace import Trace

FORMATS = (".svg", ".png", ".pdf")


def check_extension(path: Path) -> None:
    """Raise ConfigError if the extension of a file is not a known format."""
    known = (*FORMATS, ".html", ".json")
    if path.suffix.lower() not in known:
        raise ConfigError(f"{path}: the extension selects the format, and must be one of {', '.join(known)}.")


def save(prediction: Prediction, path: Path, style: Style = "smooth") -> None:
    """Write the attention weights in the format that the file's extension selects.

    `style` sets how weights are drawn over a picture.
    """
    check_extension(path)
    if path.suffix.lower() in FORMATS:
        draw(prediction.view(style), path)
    else:
        Trace(prediction, style=style).save(path)


def draw(view: AttentionView, path: Path) -> None:
    """Draw attention weights to a file. Text stays text in SVG and PDF."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "regard", "text.parse_math": False}
    with rc_context(settings), fonts_for(view.characters):
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        view.build_figure().savefig(path, dpi=160, bbox_inches="tight", pad_inches=0.1, metadata=metadata)
