"""How fast does a Transformer train on a GPU, and what does each fast path contribute?

    python benchmarks/transformer_training.py --data corpora/multi30k/tok
    python benchmarks/transformer_training.py --data corpora/multi30k/tok --only all --profile

Prints the target tokens per second of training steps (gradient, clipping, update, moving average) of `transformer-base`
on batches of Multi30k, padding excluded, in bfloat16 with CUDA graphs: with all fast paths, and with one of them left
out at a time. The batches are selected at equal intervals from an epoch that is sorted by length. The time is the
shorter of two repetitions. With `--profile`, the kernels that take the most time are listed, too.
`benchmarks/training.py` measures complete runs.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from regard.attention import multihead
from regard.config import resolve
from regard.data.batching import Batch
from regard.data.corpora import load_corpus
from regard.data.preparation import PreparationRequest, prepare
from regard.data.sampler import TokenBatchSampler
from regard.formatting import table
from regard.models import transformer
from regard.models.seq2seq import build_model
from regard.ops import attention, cuda_graphs, layers
from regard.runs.settings import RunSettings
from regard.training import cuda_graphs as training_graphs
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.objective import Objective
from regard.training.optim import MovingAverage, build_optimizer, clip_gradients, set_learning_rate

DEVICE = torch.device("cuda")
VOCABULARY = 10_000
MODEL = {
    "model": "transformer-base",
    "tokenizer.dropout": 0.0,
    "tokenizer.vocabulary": VOCABULARY,
    "training.consistency": {"kind": "none"},
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """As `regard.ops.layers.linear`, without the kernel."""
    output = nn.functional.linear(x, weight, bias)
    return torch.relu(output) if relu else output


PATHS: dict[str, list[tuple[Any, str, Any]]] = {
    "attention over short sequences": [(attention, "_short_unsupported_reason", lambda *_: "it is left out")],
    "residual, dropout and norm in one kernel": [(layers, "_uses_kernels", lambda _: False)],
    "bias gradients and ReLU in one kernel": [(layers, "linear", linear), (multihead, "linear", linear)],
    "packed gradients": [(multihead, "unpack", lambda packed, count: packed.chunk(count, dim=-1))],
    "masked slots keep their values": [(transformer, "_build_attention", None)],
    "weights cast once": [(training_graphs, "_linear_weights", lambda _: set())],
}
"""The functions that replace those of each fast path."""


@contextmanager
def left_out(paths: list[str]) -> Iterator[None]:
    """Within the block, these fast paths are not used."""
    build_attention = transformer._build_attention

    def build_zeroed(*args: Any) -> multihead.MultiHeadAttention:
        built = build_attention(*args)
        built.attention.finite_memory = False
        return built

    with ExitStack() as stack:
        for owner, name, replacement in (change for path in paths for change in PATHS[path]):
            stack.enter_context(patch.object(owner, name, replacement or build_zeroed))
        yield


def load_batches(settings: RunSettings, tokens: int, count: int) -> list[Batch]:
    """Return batches of different lengths."""
    corpus = load_corpus(settings.data)
    request = PreparationRequest(corpus, corpus.fingerprint(), settings.data, settings.tokenizer, settings.seed)
    train = prepare(request, None, lambda _: None).train
    sampler = TokenBatchSampler(train.lengths_N2, tokens, settings.seed, settings.tokenizer.max_length)
    epoch = sorted(sampler.epoch(0), key=lambda ids: int(train.lengths_N2[ids].max()))
    chosen = np.linspace(0, len(epoch) - 1, 2 * count + 1).astype(int)[1::2]
    return [train.batch(epoch[index].tolist(), DEVICE, bucketed_shapes=True) for index in chosen]


class Training:
    """Training steps on given batches, without files and validation."""

    def __init__(self, settings: RunSettings) -> None:
        torch.manual_seed(0)
        self.model = build_model(settings.model, VOCABULARY, VOCABULARY).to(DEVICE).train()
        self.optimizer = build_optimizer(self.model, settings.training)
        self.average = MovingAverage(self.model, 0.999)
        self.gradient = GraphedGradient(self.model, Objective(label_smoothing=0.1, bfloat16=True))
        self.update, self.steps = GraphedUpdate(self.optimizer), 0

    def step(self, batch: Batch) -> float:
        self.steps += 1
        set_learning_rate(self.optimizer, 5e-4 * min(1.0, self.steps / 100))
        self.gradient.zero_grad()
        loss = self.gradient(batch, 1 / batch.tokens)
        norm = clip_gradients(self.model.parameters(), 1.0)
        value: float = torch.stack([loss, norm]).tolist()[0]
        self.update()
        self.average.update(self.steps)
        return value


def measure_time(work: Callable[[], object]) -> float:
    """Return the seconds of the shorter of two repetitions."""
    times = []
    for _ in range(2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def measure_speed(settings: RunSettings, batches: list[Batch], rounds: int, *, profiled: bool) -> tuple[float, float]:
    """Return the target tokens per second, and the loss at the end."""
    training = Training(settings)

    def run(rounds: int) -> float:
        return [training.step(batch) for _ in range(rounds) for batch in batches][-1]

    run(3)  # eagerly, captured, replayed
    seconds = measure_time(lambda: run(rounds))
    if profiled:
        print_profile(lambda: run(1), len(batches))
    return rounds * sum(batch.tokens for batch in batches) / seconds, run(1)


def print_profile(work: Callable[[], object], steps: int) -> None:
    with profiler(activities=[ProfilerActivity.CUDA]) as profile:
        seconds = measure_time(work)
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    steps *= 2
    total = sum(event.self_device_time_total for event in events) / 1000 / steps
    launches = sum(event.count for event in events) / steps
    print(f"a step: {2000 * seconds / steps:.2f} ms, kernels {total:.2f} ms, {launches:.0f} launches")
    rows = [
        [event.key[:80], f"{event.self_device_time_total / 1000 / steps:.3f}", f"{event.count / steps:.0f}"]
        for event in events[:25]
    ]
    print(table(["kernel", "ms", "launches"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the tokenized Multi30k")
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536, 8192], help="tokens per batch")
    parser.add_argument("--only", nargs="+", choices=["all", "none", *PATHS], help="measure only these")
    parser.add_argument("--profile", action="store_true", help="list the kernels that take the most time")
    args = parser.parse_args()
    settings = resolve(RunSettings, "multi30k-transformer", {**MODEL, "data.folder": args.data})
    alternatives: dict[str, list[str]] = {"all": [], **{path: [path] for path in PATHS}, "none": list(PATHS)}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for tokens in args.tokens:
        batches = load_batches(settings, tokens, 4 if tokens > 16384 else 5)
        rounds = max(2, 5 * 65536 // tokens // len(batches))
        for name in args.only or alternatives:
            with left_out(alternatives[name]):
                speed, loss = measure_speed(settings, batches, rounds, profiled=args.profile)
            label = name if name in {"all", "none"} else f"without: {name}"
            print(f"| {tokens:,} | {label} | {speed:,.0f} | {loss:.3f} |", flush=True)
            gc.collect()
            cuda_graphs.release_graphs(DEVICE)


if __name__ == "__main__":
    main()
