"""Settings that fit the available time: the number of steps, the size of batches and model, dropout."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from regard.config import resolve
from regard.data.settings import BPETokenizer
from regard.formatting import quantity
from regard.models.settings import RecurrentModel
from regard.runs.settings import RunSettings
from regard.training.autoconfig import FEWEST_STEPS, VOCABULARIES, ChosenSettings
from regard.training.finetuning import INIT_FROM

DEFAULT_MINUTES = 10.0

_FEW_PASSES = 5
"""With fewer passes, the model overfits little and needs less dropout."""

_STEPS_SHARE = 0.85
"""Share of the time that steps take; validation and checkpoints take the rest."""

_FEW_UPDATES = 1_000
"""With fewer updates, smaller batches learn more."""

_ENOUGH_PASSES, _MANY_PASSES = 2, 10
"""With fewer passes than the first, a note gives the minutes for both numbers of passes."""


class Pace(NamedTuple):
    """The speed of training, as measured."""

    seconds: dict[int, float]
    """Seconds per step, by the number of CPU threads."""
    steps_per_epoch: float

    @property
    def threads(self) -> int:
        """The number of threads that is fastest."""
        return min(self.seconds, key=lambda count: self.seconds[count])


class _Small(NamedTuple):
    """Settings of a model that learns quickly."""

    hidden: int
    vocabulary: int
    batch_tokens: int
    learning_rate: float


_SMALL = _Small(hidden=128, vocabulary=2_000, batch_tokens=512, learning_rate=0.004)


def _with_groups(key: str) -> set[str]:
    """A setting and the groups it belongs to: a.b.c, a.b and a."""
    return set(accumulate(key.split("."), lambda group, name: f"{group}.{name}"))


def shrink(chosen: ChosenSettings, pace: Pace, left: float, overrides: Mapping[str, Any]) -> ChosenSettings:
    """Choose smaller batches if `left` seconds allow few updates, and also a smaller model if they allow less than one
    pass over the pairs: in a short time, many updates of a small model learn more than a few of a large one.
    """
    steps = _possible_steps(pace, left)
    passes = steps / pace.steps_per_epoch
    settings, given = chosen.settings, set(overrides)
    model, tokenizer, batch = settings.model, settings.tokenizer, settings.training.batch_tokens
    fixed = bool(given & {"training.steps", "training"})
    if steps >= _FEW_UPDATES or fixed or not isinstance(model, RecurrentModel):
        return chosen
    smaller: dict[str, Any] = {}
    if batch is not None:
        smaller["training.batch_tokens"] = min(_SMALL.batch_tokens, batch)
    if passes < 1 and INIT_FROM not in given:
        smaller |= {
            "training.learning_rate": _SMALL.learning_rate,
            "model.embedding": min(_SMALL.hidden, model.embedding),
            "model.encoder.hidden": min(_SMALL.hidden, model.encoder.hidden),
            "model.decoder.hidden": min(_SMALL.hidden, model.decoder.hidden),
        }
        # A vocabulary that is larger than usual has to hold a large alphabet.
        if isinstance(tokenizer, BPETokenizer) and tokenizer.vocabulary in {size for _, size in VOCABULARIES}:
            smaller["tokenizer.vocabulary"] = min(_SMALL.vocabulary, tokenizer.vocabulary)
    smaller = {key: value for key, value in smaller.items() if not given & _with_groups(key)}
    resolved = resolve(RunSettings, settings.model_dump(mode="json"), smaller)
    if resolved == settings:
        return chosen
    changed = ", ".join(f"{key}={value}" for key, value in smaller.items())
    reason = (
        f"The time allows about {steps:,} steps, {passes:.2g} passes over the pairs. In that time, a model "
        f"learns more with {changed}."
    )
    return ChosenSettings(resolved, [*chosen.reasons, reason])


def _possible_steps(pace: Pace, left: float) -> int:
    return max(20, int(_STEPS_SHARE * left / pace.seconds[pace.threads]))


def fit(
    chosen: ChosenSettings, pace: Pace, minutes: float | None, left: float, overrides: Mapping[str, Any]
) -> ChosenSettings:
    """Choose a schedule for the time that is left and the measured speed.

    `minutes` is the deadline set by the user, if any; `left` is the number of seconds that remain. Without a deadline,
    training ends after `DEFAULT_MINUTES`, or earlier, after `max_epochs` passes over the pairs.
    """
    training, given = chosen.settings.training, set(overrides)
    seconds = pace.seconds[pace.threads]
    possible = _possible_steps(pace, left)
    epochs = None
    if minutes is None and training.max_epochs is not None:
        epochs = max(training.max_epochs, FEWEST_STEPS / pace.steps_per_epoch)
    fixed = bool(given & {"training.steps", "training"})
    steps = training.steps if fixed else min(possible, round(epochs * pace.steps_per_epoch) if epochs else possible)
    every = max(20, -(-steps // 10))
    keys: dict[str, Any] = {
        "steps": steps,
        "minutes": None if fixed else minutes or DEFAULT_MINUTES,
        "max_epochs": None if fixed else epochs,
        "warmup": max(20, steps // 20),
        "validate_every": every,
        "save_every": every,
        "threads": pace.threads,
        "patience": 10,
    }
    wanted: dict[str, Any] = {f"training.{name}": value for name, value in keys.items()}
    passes = steps / pace.steps_per_epoch
    model = chosen.settings.model
    if passes < _FEW_PASSES and "model.dropout" not in given:
        wanted["model.dropout"] = min(0.1, model.dropout)
        if isinstance(model, RecurrentModel):
            wanted["model.encoder.dropout"] = min(0.1, model.encoder.dropout)
    wanted = {key: value for key, value in wanted.items() if not given & _with_groups(key)}
    settings = resolve(RunSettings, chosen.settings.model_dump(mode="json"), wanted)
    dropout = f" Dropout is {settings.model.dropout}." if "model.dropout" in wanted else ""
    reasons = [
        f"Time: {_duration(60 * minutes if minutes else steps * seconds / _STEPS_SHARE)}, about {steps:,} steps of "
        f"{seconds:.2g} s on {quantity(pace.threads, 'thread')}. Each pair is seen {passes:.2g} times.{dropout}"
    ]
    if passes < _ENOUGH_PASSES and not fixed:
        reasons.append(_too_short(minutes or DEFAULT_MINUTES, passes))
    return ChosenSettings(settings, [*chosen.reasons, *reasons])


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.2g} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def _too_short(minutes: float, passes: float) -> str:
    enough, many = (max(1, round(minutes * wanted / passes)) for wanted in (_ENOUGH_PASSES, _MANY_PASSES))
    return (
        f"Note: {minutes:g} minutes allow fewer than two passes over the pairs, too few for a good model. "
        f"--minutes {enough} gives about {_ENOUGH_PASSES} passes, --minutes {many} about {_MANY_PASSES}."
    )
