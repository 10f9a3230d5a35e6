"""Read the elements of SVG figures."""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


class Label(NamedTuple):
    rotation: float
    font_size: float


class Line(NamedTuple):
    color: str
    points: list[tuple[float, float]]


def read_labels(path: Path) -> dict[str, Label]:
    """Return the texts of a figure with their rotation and size."""
    labels = {}
    for element in ET.parse(path).getroot().iter(f"{SVG}text"):
        size = re.search(r"font-size: ([\d.]+)px", element.get("style", ""))
        rotation = re.search(r"rotate\((-?[\d.]+)", element.get("transform", ""))
        assert size
        assert rotation
        labels["".join(element.itertext())] = Label(float(rotation[1]), float(size[1]))
    return labels


def read_panels(path: Path) -> list[tuple[str, list[Line]]]:
    """Return the title and the colored lines of each panel; grid lines are gray."""
    panels = []
    for group in ET.parse(path).getroot().iter(f"{SVG}g"):
        if not group.get("id", "").startswith("axes_"):
            continue
        *_, title = ("".join(element.itertext()) for element in group.iter(f"{SVG}text"))
        lines = []
        for path_element in group.iter(f"{SVG}path"):
            stroke = re.search(r"fill: none; stroke: (#[0-9a-f]{6})", path_element.get("style", ""))
            if stroke and stroke[1] not in {"#b0b0b0", "#000000"}:
                points = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path_element.get("d", ""))
                lines.append(Line(stroke[1], [(float(x), float(y)) for x, y in points]))
        panels.append((title, lines))
    return panels
