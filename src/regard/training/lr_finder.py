"""Finders: a learning rate and a batch that suit a model, its data and the machine, tried out in a minute."""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from regard.data.corpora import load_corpus
from regard.data.sampler import TokenBatchSampler
from regard.errors import DataError
from regard.ops import cuda_graphs
from regard.runs.events import ProgressDisplay
from regard.runs.lock import lock_folder
from regard.runs.settings import RunSettings
from regard.training.budget import Pace
from regard.training.machine import usable_threads
from regard.training.optim import clip_gradients, set_rate
from regard.training.schedule import steps_per_epoch
from regard.training.state import TrainingState, start_training
from regard.training.step import compute_gradients, take_step


class Found(NamedTuple):
    """What was tried, with what came of it, and what to take."""

    tried: list[tuple[float, float]]
    suggestion: float


@contextmanager
def _rehearsal(settings: RunSettings) -> Iterator[TrainingState]:
    """A training that leaves nothing behind."""
    with (
        tempfile.TemporaryDirectory(prefix="regard.") as folder,
        lock_folder(Path(folder)) as locked,
        ProgressDisplay() as narrator,
    ):
        state = start_training(settings, locked, load_corpus(settings.data), narrator)
        try:
            yield state
        finally:
            state.release_cuda_graphs()


def find_pace(settings: RunSettings, budget: float = 5.0) -> Pace:
    """Measure the speed of training on one CPU thread and on all that may be used, in about `budget` seconds."""
    before = torch.get_num_threads()
    seconds: dict[int, float] = {}
    with _rehearsal(settings) as state:
        counts = (1,) if state.device.type == "cuda" else dict.fromkeys((1, usable_threads()))
        try:
            for threads in counts:
                torch.set_num_threads(threads)
                seconds[threads] = _seconds_per_step(state, budget / len(counts), min(seconds.values(), default=0))
        finally:
            torch.set_num_threads(before)
        return Pace(seconds, steps_per_epoch(state.sampler, settings.training))


def _seconds_per_step(state: TrainingState, budget: float, known: float, most: int = 100) -> float:
    """The median time of a step, so that steps that compile or capture a CUDA graph do not count.

    If the first step takes much longer than the `known` time on fewer threads, no more are taken: the threads wait for
    cores that another process keeps busy.
    """
    taken: list[float] = []
    ends = time.perf_counter() + budget
    while len(taken) < most and (not taken or time.perf_counter() < ends):
        start = time.perf_counter()
        take_step(state)
        taken.append(time.perf_counter() - start)
        if known and taken[0] > 3 * known:
            break
    return statistics.median(taken[1:] or taken)  # the first one warms up


def find_learning_rate(settings: RunSettings, lowest: float = 1e-6, highest: float = 1.0, steps: int = 100) -> Found:
    """Raise the learning rate from step to step until the loss bursts (Smith 2017).

    The suggestion is where the smoothed loss falls fastest: a rate to peak at after a warm-up.
    """
    tried: list[tuple[float, float]] = []
    smoothed, memory = 0.0, 0.9
    with _rehearsal(settings) as state:
        for step in range(steps):
            rate = lowest * (highest / lowest) ** (step / (steps - 1))
            set_rate(state.optimizer, rate)
            share, _ = compute_gradients(state.model, state.objective, state.batches(step))
            norm = clip_gradients(state.model.parameters(), settings.training.max_grad_norm)
            loss = float(share)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                break
            state.optimizer.step()
            smoothed = memory * smoothed + (1 - memory) * loss
            tried.append((rate, smoothed / (1 - memory ** (step + 1))))
            if tried[-1][1] > 2 * min(loss for _, loss in tried):
                break
    return Found(tried, steepest(tried))


def steepest(tried: list[tuple[float, float]]) -> float:
    """The rate at which the loss falls fastest, before its lowest."""
    if len(tried) < 3:
        raise DataError("The loss was no number from the start: no learning rate can be found. Check the data.")
    rates, losses = np.array(tried).T
    end = max(3, int(losses.argmin()) + 1)
    slopes = np.gradient(losses[:end], np.log(rates[:end]))
    return float(rates[int(slopes.argmin())])


def find_batch(settings: RunSettings, smallest: int = 512, gain: float = 1.1) -> Found:
    """Double the tokens of a batch while that makes training faster, and memory holds it.

    What is tried are batches of the longest pairs, which need the most memory, by tokens a second.
    """
    tried: list[tuple[float, float]] = []
    with _rehearsal(settings) as state:
        lengths_N2 = state.data.train.lengths_N2
        everything = int(lengths_N2.max(1).sum())
        tokens = min(max(smallest, int(lengths_N2.max())), everything)
        while tokens <= everything:
            order = TokenBatchSampler(lengths_N2, tokens, settings.seed, tokens, state.data.train.epoch_lengths)
            try:
                tried.append((tokens, _speed(state, order)))
            except RuntimeError as error:
                if not cuda_graphs.is_out_of_memory(error):
                    raise
                break
            if len(tried) > 1 and tried[-1][1] < gain * tried[-2][1]:
                break
            tokens *= 2
    if not tried:
        raise DataError("Memory does not hold a batch of one pair of the longest. Set training.max_pair_length.")
    return Found(tried, max(tried, key=lambda entry: entry[1])[0])


def _speed(state: TrainingState, order: TokenBatchSampler, repeats: int = 3) -> float:
    """Target tokens a second, after a first batch to warm up."""
    lengths_N2 = order.lengths_at(0)
    places = sorted(range(order.steps_per_epoch), key=lambda place: -int(lengths_N2[order.at(place)].max()))
    seconds, tokens = 0.0, 0
    for number in range(repeats + 1):
        place = places[number % len(places)]
        batch = state.data.train.batch(order.at(place), state.device)
        start = time.perf_counter()
        share, count = compute_gradients(state.model, state.objective, [batch])
        float(share)  # when it is there, the work is done
        if number:
            seconds, tokens = seconds + time.perf_counter() - start, tokens + count
    return tokens / seconds
