"""The history of a beam search: the continuations that each step considered, and their outcomes."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

Outcome = Literal["kept", "finished", "pruned"]


class BeamCandidate(NamedTuple):
    """A continuation of a hypothesis that a step of beam search considered, and its outcome."""

    token: int
    parent: int
    """The index of the continued hypothesis in the beam before the step."""
    group: int
    outcome: Outcome
    slot: int | None
    """The index in the beam after the step, if it was kept."""
    score: float
    """The log-probability of the continued hypothesis, adjusted by the rules."""
    log_prob: float
    """The same as the model computes it."""


class BeamStep(NamedTuple):
    """The hypotheses in the beam after a step: their sentences, last tokens, parents in the beam before, and scores;
    and all candidates of the step, best first.
    """

    sentences: list[int]
    tokens_BK: list[list[int]]
    parents_BK: list[list[int]]
    scores_BK: list[list[float]]
    candidates_B: list[list[BeamCandidate]]


def describe_candidates(parts_GC: Sequence[Tensor], end: int, width: int) -> list[BeamCandidate]:
    """Return the candidates of a sentence with their outcomes, which follow from their order and the end token.

    `parts_GC` are their tokens, parents, adjusted scores and log-probabilities, C candidates in each of G groups. In
    each group, the first `width` that do not end are kept, and those that end are finished if they are among the first
    `width` of all.
    """
    described = []
    for group, columns in enumerate(zip(*(part.tolist() for part in parts_GC), strict=True)):
        kept = 0
        for rank, (token, parent, score, log_prob) in enumerate(zip(*columns, strict=True)):
            if score == -math.inf:
                continue
            outcome: Outcome = "finished" if token == end and rank < width else "pruned"
            slot = None
            if token != end and kept < width:
                outcome, slot = "kept", group * width + kept
                kept += 1
            described.append(BeamCandidate(token, parent, group, outcome, slot, score, log_prob))
    return described
