"""The effect of each attention head: what changes in a prediction if the output of the head is set to zero."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from regard.attention.attention import Role
from regard.attention.interventions import AblateHead
from regard.data.tokens.tokenizers import END
from regard.decoding.edits import TraceTask
from regard.decoding.predictor import Predictor
from regard.decoding.tracing import describe_mechanisms
from regard.errors import ConfigError


class HeadEffect(NamedTuple):
    """What changes without a head.

    Attributes:
        attention: The name of its attention in the model.
        role: `encoder-self`, `decoder-self` or `cross`.
        layer: The layer, from 0.
        head: The head, from 0.
        change: The log-probability of the output without the head, minus that with it.
        text: The prediction without the head.
    """

    attention: str
    role: Role
    layer: int
    head: int
    change: float
    text: str


@dataclass(frozen=True)
class HeadEffects:
    """The effects of all heads on a prediction. `Model.ablate_heads` returns one; `print` shows them as a table.

    Attributes:
        text: The prediction.
        score: Its log-probability.
        heads: The effect of each head, the largest change first.

    >>> effects = model.ablate_heads("3 mai 2009")
    >>> effects.heads[-1].change  # the smallest change, by absolute value
    """

    text: str
    score: float
    heads: list[HeadEffect]

    @property
    def document(self) -> dict[str, Any]:
        """The effects as values of JSON."""
        return {"text": self.text, "score": self.score, "heads": [each._asdict() for each in self.heads]}

    def __str__(self) -> str:
        rows = [
            f"{each.role:12}  layer {each.layer + 1}  head {each.head + 1}  {each.change:+9.4f}  {each.text}"
            for each in self.heads
        ]
        title = f"{self.text}: log-probability {self.score:.4f}, and its change without each head"
        return "\n".join([title, *rows])


def ablate_heads(predictor: Predictor, task: TraceTask, progress: Callable[[float], object]) -> HeadEffects:
    """Set the output of each head to zero, one at a time: score the prediction of the task again, and predict again.

    Args:
        predictor: The model.
        task: What is predicted, and the interventions that remain in place.
        progress: A function that is called with the share that is done, from 0 to 1. If it raises an exception, the
            computation stops.
    """
    if not task.item.length:
        raise ConfigError("The source is empty, and so is its prediction. Use a source that is not empty.")
    best = task.find_best(predictor)
    target = [*best.tokens, *([] if best.truncated else [END])]
    score = task.score(predictor, target)
    mechanisms = describe_mechanisms(predictor.model, parameters=False)
    heads = [(name, head) for name, mechanism in mechanisms.items() for head in range(mechanism.heads)]
    effects: list[HeadEffect] = []
    for done, (name, head) in enumerate(heads):
        progress(done / len(heads))
        ablated = replace(task, interventions=(*task.interventions, AblateHead(attention=name, head=head)))
        change = ablated.score(predictor, target) - score
        text = predictor.tokenizer.decode(ablated.find_best(predictor).tokens)
        effects.append(HeadEffect(name, mechanisms[name].role, mechanisms[name].layer, head, change, text))
    progress(1.0)
    effects.sort(key=lambda effect: -abs(effect.change))
    return HeadEffects(predictor.tokenizer.decode(best.tokens), score, effects)
