"""Fit settings to the available time: the number of steps, the sizes of batches and model, dropout."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from regard.config import flatten, resolve
from regard.data.settings import BPETokenizer
from regard.formatting import quantity
from regard.models.settings import RecurrentEncoderSettings, RecurrentModel
from regard.runs.folder import INIT_FROM
from regard.runs.settings import RunSettings
from regard.training.planning.autoconfig import (
    MIN_STEPS,
    VOCABULARIES,
    ChosenSettings,
    describe_gru,
    select_overrides,
)

DEFAULT_MINUTES = 10.0

_FEW_EPOCHS = 5
"""With fewer epochs, the model overfits little and needs less dropout."""

_STEPS_SHARE = 0.85
"""The share of the time that is spent in steps; the rest is spent in validations and checkpoints."""

_VALIDATION_SHARE, _MIN_VALIDATION_PAIRS = 0.1, 20
"""If there is little time, fewer pairs are validated: a validation takes at most this share of the time, but has at
least this number of pairs.
"""

_FEW_UPDATES = 1_000
"""With fewer updates, a model learns more with smaller batches."""

_ENOUGH_EPOCHS = 2
"""With fewer epochs, a note gives the number of minutes that this number of epochs takes."""

_MIN_POSITIONS = 20
"""The minimum length of a schedule. If fewer steps fit the deadline, each step advances the schedule by several
positions.
"""


class TrainingSpeed(NamedTuple):
    """The measured speed of training."""

    seconds_per_step: dict[int, float]
    """Seconds per step, by the number of CPU threads."""
    steps_per_epoch: float
    pairs: int | None = None
    """The number of training pairs, if it is known."""

    @property
    def threads(self) -> int:
        """The number of threads with the fastest steps."""
        return min(self.seconds_per_step, key=lambda count: self.seconds_per_step[count])

    @property
    def min_seconds_per_step(self) -> float:
        return self.seconds_per_step[self.threads]

    def with_batches(self, factor: float) -> "TrainingSpeed":
        """Estimate the speed if the batch size is multiplied by a factor: the time of a step is proportional to it."""
        seconds = {threads: factor * duration for threads, duration in self.seconds_per_step.items()}
        return self._replace(seconds_per_step=seconds, steps_per_epoch=self.steps_per_epoch / factor)

    def count_validation_pairs(self, seconds: float) -> int | None:
        """Return the number of pairs that can be validated in this time; None if the number of pairs is not known.

        A validation is assumed to take as long as training on the same pairs.
        """
        if self.pairs is None:
            return None
        return int(seconds * self.pairs / (self.steps_per_epoch * self.min_seconds_per_step))


_SMALL_BATCH = 512
"""The number of tokens in a smaller batch."""

_FEW_TOKENS = 300_000
"""With fewer tokens (steps × tokens per batch), a smaller model learns more, with still smaller batches and a higher
learning rate.
"""

_MONOTONIC_PAIRS = 10_000
"""With fewer pairs (epochs × pairs of the corpus), a small GRU learns more than hard monotonic attention, which hardly
starts to learn, and replaces it.
"""

_SMALLEST_BATCH, _SMALL_VOCABULARY = 256, 2_000


class _SmallModel(NamedTuple):
    """The sizes of a model that learns from few tokens, and its learning rate."""

    embedding: int
    encoder: int
    decoder: int
    learning_rate: float


_SMALLEST = _SmallModel(embedding=64, encoder=64, decoder=128, learning_rate=0.004)
_SMALL = _SmallModel(embedding=128, encoder=128, decoder=128, learning_rate=0.008)
"""The sizes for hard monotonic attention and for captions. The learning rate is used only for hard monotonic attention,
which starts to learn earlier with it.
"""


def _with_groups(key: str) -> set[str]:
    """Return a setting and the groups it belongs to: a.b.c, a.b and a."""
    return set(accumulate(key.split("."), lambda group, name: f"{group}.{name}"))


def shrink(
    chosen: ChosenSettings, speed: TrainingSpeed, seconds_left: float, overrides: Mapping[str, Any]
) -> ChosenSettings:
    """Choose settings for a short time, in which many updates of a small model learn more than a few of a large one.

    With few updates, batches are smaller. With few tokens, the model is smaller, too, and the learning rate is higher.
    With few pairs, a small GRU replaces hard monotonic attention.
    """
    steps = _count_possible_steps(speed, seconds_left)
    epochs = steps / speed.steps_per_epoch
    settings, overridden = chosen.settings, set(overrides)
    fixed_steps = bool(overridden & {"training.steps", "training"})
    if steps >= _FEW_UPDATES or fixed_steps or not isinstance(settings.model, RecurrentModel):
        return chosen
    is_new = INIT_FROM not in overridden
    own_model = not is_new or bool(select_overrides("model", overrides))
    few_pairs = speed.pairs is not None and epochs * speed.pairs < _MONOTONIC_PAIRS
    smaller: dict[str, Any] = {}
    subject = "the model learns more with"
    if few_pairs and _is_monotonic(settings) and not own_model:
        settings = _replace_monotonic_attention(settings)
        subject = (
            f"a GRU with additive attention (embedding {_SMALLEST.embedding}, encoder {_SMALLEST.encoder}, decoder "
            f"{_SMALLEST.decoder}) learns more than hard monotonic attention. It is chosen instead, with"
        )
        smaller["training.ema_decay"] = 0.0
    smaller |= _choose_smaller(settings, steps, epochs, is_new=is_new)
    before = flatten(settings)
    smaller = {
        key: value for key, value in smaller.items() if value != before.get(key) and not overridden & _with_groups(key)
    }
    if not smaller:
        return chosen
    changes = ", ".join(f"{key}={value}" for key, value in smaller.items())
    reason = (
        f"The time allows about {quantity(steps, 'step')} ({_approximate(epochs, 'epoch')}). In that time, {subject} "
        f"{changes}."
    )
    resolved = resolve(RunSettings, settings.model_dump(mode="json"), smaller)
    return ChosenSettings(resolved, [*chosen.reasons, reason])


def _is_monotonic(settings: RunSettings) -> bool:
    return isinstance(settings.model, RecurrentModel) and settings.model.attention.select.kind == "hard_monotonic"


def _replace_monotonic_attention(settings: RunSettings) -> RunSettings:
    model = describe_gru(_SMALLEST.embedding, _SMALLEST.encoder, _SMALLEST.decoder, settings.model.embedding_dropout)
    return resolve(RunSettings, {**settings.model_dump(mode="json"), "model": model}, {})


def _choose_smaller(settings: RunSettings, steps: int, epochs: float, *, is_new: bool) -> dict[str, Any]:
    """Return settings for few updates. The sizes and the learning rate of a model that is fine-tuned are kept."""
    model, tokenizer, batch = settings.model, settings.tokenizer, settings.training.batch_tokens
    assert isinstance(model, RecurrentModel)
    smaller: dict[str, Any] = {}
    few_tokens = epochs < 1 if batch is None else steps * batch < _FEW_TOKENS
    sizes = _SMALL if _is_monotonic(settings) or batch is None else _SMALLEST
    if batch is not None:
        few_updates = few_tokens or (epochs < 1 and _is_monotonic(settings))
        smaller["training.batch_tokens"] = min(_SMALLEST_BATCH if few_updates else _SMALL_BATCH, batch)
        if few_updates and is_new:
            smaller["training.learning_rate"] = sizes.learning_rate
            if not isinstance(tokenizer, BPETokenizer):
                smaller["training.label_smoothing"] = 0.0
    if few_tokens and is_new:
        smaller["model.embedding"] = min(sizes.embedding, model.embedding)
        if isinstance(model.encoder, RecurrentEncoderSettings):
            smaller["model.encoder.hidden"] = min(sizes.encoder, model.encoder.hidden)
        smaller["model.decoder.hidden"] = min(sizes.decoder, model.decoder.hidden)
        # A vocabulary of any other size was enlarged for a large alphabet, and is kept.
        if isinstance(tokenizer, BPETokenizer) and tokenizer.vocabulary in {size for _, size in VOCABULARIES}:
            smaller["tokenizer.vocabulary"] = min(_SMALL_VOCABULARY, tokenizer.vocabulary)
    return smaller


def _count_possible_steps(speed: TrainingSpeed, seconds_left: float) -> int:
    return max(1, int(_STEPS_SHARE * seconds_left / speed.min_seconds_per_step))


def fit_schedule(
    chosen: ChosenSettings,
    speed: TrainingSpeed,
    minutes: float | None,
    seconds_left: float,
    overrides: Mapping[str, Any],
) -> ChosenSettings:
    """Choose a schedule for the remaining time and the measured speed.

    `minutes` is the deadline set by the user, if any. Without a deadline, training ends after `DEFAULT_MINUTES`, or
    earlier, after `max_epochs`.
    """
    training, overridden = chosen.settings.training, set(overrides)
    possible_steps = _count_possible_steps(speed, seconds_left)
    max_epochs, max_steps = None, possible_steps
    if minutes is None and training.max_epochs is not None:
        max_epochs = max(training.max_epochs, MIN_STEPS / speed.steps_per_epoch)
        max_steps = round(max_epochs * speed.steps_per_epoch)
    fixed_steps = bool(overridden & {"training.steps", "training"})
    expected = training.steps if fixed_steps else min(possible_steps, max_steps)
    steps = expected if fixed_steps else max(_MIN_POSITIONS, expected)
    interval = max(20, -(-steps // 10))
    schedule: dict[str, Any] = {
        "steps": steps,
        "minutes": None if fixed_steps else minutes or DEFAULT_MINUTES,
        "max_epochs": None if fixed_steps else max_epochs,
        "warmup": max(20, steps // 20),
        "validate_every": interval,
        "save_every": interval,
        "threads": speed.threads,
        "patience": 10,
    }
    fitting = speed.count_validation_pairs(_VALIDATION_SHARE * seconds_left)
    if not fixed_steps and fitting is not None and training.validation_pairs is not None:
        schedule["validation_pairs"] = min(training.validation_pairs, max(_MIN_VALIDATION_PAIRS, fitting))
    changes: dict[str, Any] = {f"training.{name}": value for name, value in schedule.items()}
    epochs = expected / speed.steps_per_epoch
    model = chosen.settings.model
    if epochs < _FEW_EPOCHS and "model.dropout" not in overridden:
        changes["model.dropout"] = min(0.1, model.embedding_dropout)
        if isinstance(model, RecurrentModel) and isinstance(model.encoder, RecurrentEncoderSettings):
            changes["model.encoder.dropout"] = min(0.1, model.encoder.dropout)
    changes = {key: value for key, value in changes.items() if not overridden & _with_groups(key)}
    settings = resolve(RunSettings, chosen.settings.model_dump(mode="json"), changes)
    dropout = f" Dropout is {settings.model.embedding_dropout}." if "model.dropout" in changes else ""
    seconds = 60 * minutes if minutes else expected * speed.min_seconds_per_step / _STEPS_SHARE
    reasons = [
        f"Time: {_format_duration(seconds)}, about {quantity(expected, 'step')} of {speed.min_seconds_per_step:.2g} s "
        f"on {quantity(speed.threads, 'thread')} ({_approximate(epochs, 'epoch')}).{dropout}"
    ]
    if epochs < _ENOUGH_EPOCHS and not fixed_steps:
        available = 60 * (minutes or DEFAULT_MINUTES)
        reasons.append(_suggest_minutes(available, available - seconds_left, speed))
    return ChosenSettings(settings, [*chosen.reasons, *reasons])


def _format_duration(seconds: float) -> str:
    return _approximate(seconds / 60, "minute") if seconds >= 90 else quantity(round(seconds), "second")


def _approximate(number: float, noun: str) -> str:
    """Format a number with its noun, with two digits below 10: `0.26 epochs`, `1 epoch`, `120 minutes`."""
    text = f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
    return f"{text} {noun}{'' if text == '1' else 's'}"


def _suggest_minutes(seconds: float, loading: float, speed: TrainingSpeed) -> str:
    """Return a note with the minutes for enough epochs, rounded to one digit, because the measurement was short."""
    training = _ENOUGH_EPOCHS * speed.steps_per_epoch * speed.min_seconds_per_step / _STEPS_SHARE
    minutes = max(1, int(float(f"{(loading + training) / 60:.1g}")))
    return (
        f"Note: {_format_duration(seconds)} allow fewer than two epochs. More time usually gives a better model. Two "
        f"epochs take roughly {quantity(minutes, 'minute')} (--minutes {minutes})."
    )
