"""The interface of engines. An engine computes the predictions of a model; the reference is `Predictor`, with torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from regard.data.sources import SourceItem
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Precision, SearchSettings

GREEDY = SearchSettings()


class Request(NamedTuple):
    """What is requested of an engine: a search, with or without constraints and attention weights, and a precision."""

    search: SearchSettings
    constrained: bool = False
    attention: bool = False
    precision: Precision = "float32"


class Engine(ABC):
    """Computes the predictions of one model."""

    name: ClassVar[str]

    @abstractmethod
    def find_obstacle(self, request: Request) -> str | None:
        """Return why the engine cannot compute what is requested, with its model; None if it can. Nothing is loaded.

        The text completes the sentence "The engine … cannot be used: ".
        """

    @abstractmethod
    def find_difference(self, request: Request) -> str | None:
        """Return why the hypotheses can differ from those of the reference; None if only rounding differs."""

    @abstractmethod
    def predict(
        self,
        sources: Sequence[SourceItem],
        search: SearchSettings = GREEDY,
        constraints: Constraints = NO_CONSTRAINTS,
        *,
        batch_size: int | None = None,
        attention: bool = False,
        indices: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` hypotheses for each source, best first.

        Samples depend on the seed and on the index of the source, and not on other sources. `indices` are those of
        `sources` in the complete input; by default, they are counted from 0.
        """
