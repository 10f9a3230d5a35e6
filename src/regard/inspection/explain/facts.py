"""Facts that distinguish the attention mechanisms, as their parts declare them."""

from dataclasses import dataclass
from typing import Final, Literal

from regard.attention.attention import Attention
from regard.attention.mechanisms import Mechanism
from regard.attention.selections import Gradient
from regard.inspection.explain.cost import describe_growth
from regard.ops.cost import S, T

WIDTH = 8
"""A width that is divisible by the number of heads of every mechanism. The facts do not depend on it."""

HEADERS: Final = ("position", "visible weights", "gradient", "needs past", "self-attention")
"""The headers of a table of facts."""


@dataclass(frozen=True)
class Facts:
    """The facts of a mechanism.

    Attributes:
        position: Whether the weights depend on the positions of the slots: `none`, by a `fixed` rule, or with
            `learned` parameters.
        visible: How the number of visible weights grows with the source length S and the target length T.
        gradient: How the gradient of the scores is computed in training.
        needs_past: Whether a step needs the weights of previous steps, so that steps run one by one.
        self_attention: Whether it can attend to its own sequence: `no`, in an `encoder` only, or `yes`, also in a
            decoder, whose memory grows with each step.
    """

    position: Literal["none", "fixed", "learned"]
    visible: str
    gradient: Gradient
    needs_past: bool
    self_attention: Literal["no", "encoder", "yes"]

    def row(self) -> list[str]:
        """Return the row of a table with the columns `HEADERS`."""
        needs_past = "yes" if self.needs_past else "no"
        return [self.position, self.visible, self.gradient, needs_past, self.self_attention]


def find_facts(mechanism: Mechanism) -> Facts:
    """Return the facts that the parts of a mechanism declare."""
    attention = Attention.named(mechanism.name, WIDTH, WIDTH)
    score, scope, select = attention.score, attention.scope, attention.select
    is_restricted = select.restricts_slots or not scope.is_global
    # A marginalization and a reward need the output distribution, which only the decoder computes.
    needs_output = select.marginal or select.gradient == "REINFORCE"
    return Facts(
        "learned" if score.learns_positions or scope.learned else "fixed" if is_restricted else "none",
        describe_growth(scope.visible_weights(T, S)),
        select.gradient,
        attention.stepwise,
        "no" if attention.stepwise or needs_output else "encoder" if scope.uses_length else "yes",
    )
