"""Pointing: whether attention is on an object of an image while the words that mention it are generated.

Y and X rows and columns of the grid of memory slots.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.images.scenes import Box, Scene
from regard.data.tokens.pretokenization import MARK
from regard.decoding.search import AttentionWeights
from regard.errors import ModelError
from regard.formatting import quantity
from regard.inspection.prediction import Prediction

Shares = NDArray[np.float64]


class Pointing(NamedTuple):
    """How well attention points at the objects that captions mention.

    Attributes:
        accuracy: The share of objects whose cell with the largest weight is on the object (the pointing game, Zhang et
            al. 2018). A cell is on an object if its center is in the bounding box; if the box contains no center, the
            cell that contains the center of the box is.
        mass: The weight inside the box, averaged over objects. A cell at the edge counts by its share inside the box.
        objects: The number of objects that the predictions mention.
        missing: The number of objects that they do not mention: their words differ from the correct caption.
    """

    accuracy: float
    mass: float
    objects: int
    missing: int

    def __str__(self) -> str:
        return (
            f"pointing accuracy {self.accuracy:.2%}, mass inside the box {self.mass:.2%} on "
            f"{quantity(self.objects, 'object')}; {self.missing:,} not mentioned"
        )


def score_pointing(predictions: Sequence[Prediction], scenes: Sequence[Scene]) -> Pointing:
    """Compare the attention weights of predictions with the boxes of the objects in their scenes.

    The weights of an object are averaged over the words that mention it. The encoder must read the whole image
    (`resize: squash`), so that the grid covers it.

    >>> score_pointing(model.predict([scene.pixels for scene in scenes]), scenes).accuracy
    """
    hits, masses, missing = [], [], 0
    for prediction, scene in zip(predictions, scenes, strict=True):
        weights_TYX = _arrange_weights(prediction)
        words = dict(enumerate(_find_words(prediction.tokens)))
        expected = scene.caption.split()
        for box in scene.boxes:
            mention = [words.get(index, _Word("", 0, 0)) for index in range(box.first_word, box.end_word)]
            if [word.text for word in mention] != expected[box.first_word : box.end_word]:
                missing += 1
                continue
            weights_YX = weights_TYX[mention[0].start : mention[-1].end].mean(0)
            inside_YX = _measure_overlap(box, scene, weights_YX.shape)
            hits.append(_is_on_object(weights_YX, box, scene))
            masses.append(float((weights_YX * inside_YX).sum()))
    count = len(hits)
    return Pointing(sum(hits) / max(1, count), sum(masses) / max(1, count), count, missing)


class _Word(NamedTuple):
    text: str
    start: int
    end: int


def _find_words(tokens: Sequence[str]) -> Iterator[_Word]:
    """Group the tokens of a prediction into the words of its text, in any vocabulary. Spaces between characters belong
    to no word.
    """
    start = 0
    for index, token in enumerate([*tokens, " "]):
        if index > start and (token.isspace() or token.startswith(MARK)):
            yield _Word("".join(tokens[start:index]).removeprefix(MARK), start, index)
            start = index
        if token.isspace():
            start = index + 1


def _arrange_weights(prediction: Prediction) -> AttentionWeights:
    grid, weights_TS = prediction.layout, prediction.attention
    if grid is None or weights_TS.shape[1] != grid.height * grid.width:
        raise ModelError(
            f"The attention weights for {prediction.source} do not form a grid over the image. Predict with a model "
            "that has cross-attention, and with attention=True."
        )
    return weights_TS.reshape(len(weights_TS), *grid)


def _is_on_object(weights_YX: AttentionWeights, box: Box, scene: Scene) -> bool:
    rows, columns = weights_YX.shape
    height, width = scene.pixels.shape[:2]
    row, column = np.unravel_index(int(weights_YX.argmax()), weights_YX.shape)
    return bool(
        row in _find_cells(box.top / height, box.bottom / height, rows)
        and column in _find_cells(box.left / width, box.right / width, columns)
    )


def _find_cells(start: float, end: float, cells: int) -> list[int]:
    """Return the cells of a line whose centers are in an interval; if there are none, the cell at its center."""
    inside = [cell for cell in range(cells) if start <= (cell + 0.5) / cells <= end]
    return inside or [min(cells - 1, int((start + end) / 2 * cells))]


def _measure_overlap(box: Box, scene: Scene, shape: tuple[int, ...]) -> Shares:
    """Return the share of each cell that is inside a box."""
    height, width = scene.pixels.shape[:2]
    rows = _measure_line(box.top / height, box.bottom / height, shape[0])
    columns = _measure_line(box.left / width, box.right / width, shape[1])
    overlap: Shares = np.outer(rows, columns)
    return overlap


def _measure_line(start: float, end: float, cells: int) -> Shares:
    """Return the share of each cell of a line that is inside an interval."""
    edges = np.arange(cells + 1) / cells
    shares: Shares = (np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)).clip(0) * cells
    return shares
