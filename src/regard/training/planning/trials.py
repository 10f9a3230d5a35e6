"""Find a learning rate and a batch size, and measure the speed of training, with short trial runs."""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from regard.data.corpora import Corpus, load_corpus
from regard.data.preparation import Report
from regard.data.sampler import TokenBatchSampler
from regard.data.survey.survey import without_warnings
from regard.data.tokens.processes import usable_threads
from regard.errors import DataError
from regard.ops import cuda_graphs
from regard.runs.directory import lock_folder
from regard.runs.settings import RunSettings
from regard.training.optim import clip_gradients, set_learning_rate
from regard.training.planning.budget import TrainingSpeed
from regard.training.schedule import steps_per_epoch
from regard.training.state import TrainingState, start_training
from regard.training.step import compute_gradients, take_step

_MAX_MEASURED = 100
"""The number of steps after which the median duration of a step is known well enough."""


class SearchResult(NamedTuple):
    """The values that were tried, each with its outcome, and the suggested value."""

    trials: list[tuple[float, float]]
    suggestion: float


def _print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def _temporary_training(settings: RunSettings, corpus: Corpus, report: Report) -> Iterator[TrainingState]:
    """Start a training run in a temporary folder, which is deleted at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="regard.") as folder,
        lock_folder(Path(folder)) as locked,
    ):
        state = start_training(settings, locked, corpus, report)
        try:
            yield state
        finally:
            state.release_cuda_graphs()


def measure_speed(
    settings: RunSettings, corpus: Corpus, budget: float = 5.0, report: Report = _print_to_stderr
) -> TrainingSpeed:
    """Measure the speed of training on one CPU thread and on all usable threads, in about `budget` seconds.

    If the corpus is a sample, messages about its preparation do not apply to the run, and are not printed.
    """
    threads_before = torch.get_num_threads()
    seconds_per_step: dict[int, float] = {}
    with ExitStack() as stack:
        if corpus.share < 1:
            stack.enter_context(without_warnings())
            report = lambda _: None  # noqa: E731
        state = stack.enter_context(_temporary_training(settings, corpus, report))
        counts = (1,) if state.device.type == "cuda" else dict.fromkeys((1, usable_threads()))
        try:
            for threads in counts:
                torch.set_num_threads(threads)
                fastest = min(seconds_per_step.values(), default=None)
                seconds_per_step[threads] = _measure_step(state, budget / len(counts), fastest)
        finally:
            torch.set_num_threads(threads_before)
        steps, pairs = steps_per_epoch(state.sampler, settings.training), len(state.data.train)
        return TrainingSpeed(seconds_per_step, steps / corpus.share, round(pairs / corpus.share))


def _measure_step(state: TrainingState, budget: float, fastest: float | None) -> float:
    """Return the median duration of a step, which excludes steps that compile or capture a CUDA graph.

    No more steps are measured than the run has. If the first step takes much longer than a step on fewer threads
    (`fastest`), no other step is measured: the threads wait for cores that another process keeps busy.
    """
    durations: list[float] = []
    max_steps = min(_MAX_MEASURED, state.settings.training.steps)
    end = time.perf_counter() + budget
    while len(durations) < max_steps and (not durations or time.perf_counter() < end):
        start = time.perf_counter()
        take_step(state)
        durations.append(time.perf_counter() - start)
        if fastest is not None and durations[0] > 3 * fastest:
            break
    return statistics.median(durations[1:] or durations)  # the first step warms up


def find_learning_rate(
    settings: RunSettings, min_rate: float = 1e-6, max_rate: float = 1.0, steps: int = 100
) -> SearchResult:
    """Increase the learning rate at each step until the loss diverges (Smith 2017).

    The suggestion is the learning rate at the steepest descent of the smoothed loss. Use it as the peak after a
    warm-up.
    """
    trials: list[tuple[float, float]] = []
    smoothed, smoothing = 0.0, 0.9
    with _temporary_training(settings, load_corpus(settings.data), _print_to_stderr) as state:
        for step in range(steps):
            rate = min_rate * (max_rate / min_rate) ** (step / (steps - 1))
            set_learning_rate(state.optimizer, rate)
            average_loss = compute_gradients(state.model, state.objective, *state.batches(step))
            norm = clip_gradients(state.model.parameters(), settings.training.max_grad_norm)
            loss = float(average_loss)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                break
            state.optimizer.step()
            smoothed = smoothing * smoothed + (1 - smoothing) * loss
            trials.append((rate, smoothed / (1 - smoothing ** (step + 1))))
            if trials[-1][1] > 2 * min(loss for _, loss in trials):
                break
    return SearchResult(trials, find_steepest_descent(trials))


def find_steepest_descent(trials: list[tuple[float, float]]) -> float:
    """Return the learning rate at which the loss decreases fastest, before its minimum."""
    if len(trials) < 3:
        raise DataError("No learning rate can be suggested: the loss is not finite from the start. Check the data.")
    rates, losses = np.array(trials).T
    end = max(3, int(losses.argmin()) + 1)
    slopes = np.gradient(losses[:end], np.log(rates[:end]))
    return float(rates[int(slopes.argmin())])


def find_batch_tokens(settings: RunSettings, min_tokens: int = 512, min_gain: float = 1.1) -> SearchResult:
    """Double the number of tokens in a batch while training becomes faster by `min_gain` and memory suffices.

    Trials use batches of the longest pairs, which need the most memory. Their outcome is the speed in tokens per
    second.
    """
    trials: list[tuple[float, float]] = []
    with _temporary_training(settings, load_corpus(settings.data), _print_to_stderr) as state:
        lengths_N2 = state.data.train.lengths_N2
        total_tokens = int(lengths_N2.max(1).sum())
        tokens = min(max(min_tokens, int(lengths_N2.max())), total_tokens)
        while tokens <= total_tokens:
            sampler = TokenBatchSampler(lengths_N2, tokens, settings.seed, tokens, state.data.train.epoch_lengths)
            try:
                trials.append((tokens, _measure_tokens_per_second(state, sampler)))
            except RuntimeError as error:
                if not cuda_graphs.is_out_of_memory(error):
                    raise
                break
            if len(trials) > 1 and trials[-1][1] < min_gain * trials[-2][1]:
                break
            tokens *= 2
    if not trials:
        raise DataError(
            "Out of memory, even with a batch of one pair (the longest). Set training.max_pair_length to skip long "
            "pairs."
        )
    return SearchResult(trials, max(trials, key=lambda trial: trial[1])[0])


def _measure_tokens_per_second(state: TrainingState, sampler: TokenBatchSampler, repeats: int = 3) -> float:
    """Return the number of target tokens per second, after a first batch to warm up."""
    lengths_N2 = sampler.lengths_at(0)
    batches = sorted(range(sampler.steps_per_epoch), key=lambda index: -int(lengths_N2[sampler.at(index)].max()))
    seconds, tokens = 0.0, 0
    for repeat in range(repeats + 1):
        batch_index = batches[repeat % len(batches)]
        batch = state.data.train.batch(sampler.at(batch_index), state.device)
        start = time.perf_counter()
        loss = compute_gradients(state.model, state.objective, [batch])
        float(loss)  # waits for the GPU
        if repeat:
            seconds, tokens = seconds + time.perf_counter() - start, tokens + batch.tokens
    return tokens / seconds
