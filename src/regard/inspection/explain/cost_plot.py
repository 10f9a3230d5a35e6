"""Measure the time of a forward pass at several lengths, and draw it with the predicted cost."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import torch

from regard.errors import ConfigError, DataError
from regard.formatting import format_count, quantity
from regard.inspection.explain.cost import ModelCost
from regard.inspection.views.appearance import CATEGORY_COLORS
from regard.inspection.views.fonts import FORMATS, drawing_settings, save_figure
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import ModelSettings
from regard.ops.cost import Cost

SHORTEST, LONGEST = 8, 1024
"""The lengths that are measured are powers of 2 in this range."""

MIN_LENGTHS = 5
"""The minimum number of lengths. If fewer powers of 2 can be measured, other lengths are measured, too."""

TOTAL_SECONDS = 6.0
"""No longer length is measured if it would exceed this time."""

_REPEATS = 3


@dataclass(frozen=True)
class Measurement:
    """The time of a forward pass of one pair at several lengths, S = T, on a CPU."""

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    threads: int

    def __str__(self) -> str:
        longest = f"{1000 * self.seconds[-1]:.3g} ms at length {self.lengths[-1]:,}"
        return f"measured up to {longest}, with {quantity(self.threads, 'thread')}"


def measure_times(model: Seq2Seq) -> Measurement:
    """Measure the forward pass of a model in evaluation mode."""
    if model.encoder.example_source(SHORTEST, torch.device("cpu")) is None:
        raise ConfigError(
            f"The time cannot be measured: {type(model.encoder).__name__} has no method example_source, which returns "
            "a source of a given length. Add it to the encoder."
        )
    measured = dict(_measure_lengths(model))
    if len(measured) < MIN_LENGTHS:  # two points do not show how the time grows
        longest = max(measured)
        shortest = min(SHORTEST, longest // 4)
        for length in np.geomspace(shortest, longest, MIN_LENGTHS).round().astype(int).tolist():
            measured.setdefault(length, _measure_length(model, length))
    lengths = sorted(measured)
    return Measurement(tuple(lengths), tuple(measured[length] for length in lengths), torch.get_num_threads())


def _measure_lengths(model: Seq2Seq) -> Iterator[tuple[int, float]]:
    started, length = time.perf_counter(), SHORTEST
    while length <= LONGEST:
        try:
            seconds = _measure_length(model, length)
        except DataError:  # longer than the model supports
            if length == SHORTEST:
                raise
            return
        yield length, seconds
        # The next length takes two to four times as long.
        if time.perf_counter() - started + 3 * (_REPEATS + 1) * seconds > TOTAL_SECONDS:
            return
        length *= 2


def _measure_length(model: Seq2Seq, length: int) -> float:
    """Return the shortest of several times, after a first run that is not measured."""
    device = torch.device("cpu")
    source = model.encoder.example_source(length, device)
    assert source is not None
    tokens_BT = torch.zeros(1, length, dtype=torch.long)
    times = []
    with torch.inference_mode():
        for _ in range(_REPEATS + 1):
            start = time.perf_counter()
            model(source, tokens_BT).logits_BTV  # noqa: B018 - computed when it is read
            times.append(time.perf_counter() - start)
    return min(times[1:])


def draw_cost(settings: ModelSettings, vocabularies: tuple[int, int], cost: ModelCost, path: Path) -> Measurement:
    """Measure a model with random weights, and draw its predicted and measured cost to a file."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: the cost is drawn as {', '.join(FORMATS)}. Use one of these extensions.")
    if not cost.forward.is_known:
        raise ConfigError("The cost of a part of this model is unknown, so it cannot be drawn. See regard explain.")
    measurement = measure_times(build_model(settings, *vocabularies).eval())
    title = settings.architecture
    with drawing_settings(title):
        save_figure(build_figure(cost, title, measurement), path, dpi=160, bbox_inches="tight")
    return measurement


def build_figure(cost: ModelCost, title: str, measurement: Measurement) -> Any:
    """Draw both costs relative to their value at the longest length, so that their shapes can be compared."""
    from matplotlib.figure import Figure

    forward, lengths, longest = cost.forward, measurement.lengths, measurement.lengths[-1]
    total = forward(longest, longest)
    linear = forward - forward.attention_terms
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    label = f"predicted: {format_count(total)} multiply-adds at {longest:,}"
    axes.plot(lengths, _values(forward, lengths, total), color=CATEGORY_COLORS[0], linewidth=2, label=label)
    if forward.attention_terms.terms:
        label, style = "predicted without the terms of degree 2", (0, (4, 3))
        values = _values(linear, lengths, total)
        axes.plot(lengths, values, color=CATEGORY_COLORS[0], linewidth=1.2, linestyle=style, label=label)
    seconds = measurement.seconds
    label = f"measured: {1000 * seconds[-1]:.3g} ms at {longest:,}, {quantity(measurement.threads, 'thread')}"
    relative = [value / seconds[-1] for value in seconds]
    axes.plot(lengths, relative, "o-", color=CATEGORY_COLORS[1], linewidth=1.4, markersize=5, label=label)
    crossover = cost.crossover
    if crossover is not None and lengths[0] <= crossover <= longest:
        axes.axvline(crossover, color="#777777", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"crossover {crossover:,}", (crossover, axes.get_ylim()[0]), (4, 6), textcoords="offset points", fontsize=8
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    fixed = cost.fixed_slots
    axes.set_xlabel(
        "length S = T (tokens)" if fixed is None else f"target length T (tokens); {fixed:,} source positions"
    )
    axes.set_ylabel(f"cost, relative to length {longest:,}")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    axes.set_title("\n".join(wrap(title, 80)), loc="left", fontsize=9)
    return figure


def _values(cost: Cost, lengths: Sequence[int], total: float) -> list[float]:
    return [cost(length, length) / total for length in lengths]
