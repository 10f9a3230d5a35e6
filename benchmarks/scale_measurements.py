"""Measurements for `benchmarks/scale.py`: the constants of this machine, and training with several processes."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from regard.api.line_prediction import LineOptions, PredictionCounts
from regard.cluster.block_predictor import BlockRequest, BlockResponse
from regard.cluster.corpus import find_inputs, predict_corpus
from regard.cluster.pools import Pool, Worker
from regard.config import resolve
from regard.data.batching import EncodedCorpus, EncodedTexts
from regard.data.cache import cache_folder
from regard.data.corpora import load_corpus
from regard.data.preparation import PreparationRequest, prepare
from regard.data.ragged import Ids, Ragged, RaggedFile, compute_offsets, map_ragged
from regard.data.sampler import TokenBatchSampler, round_up_lengths
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.settings import SearchSettings
from regard.formatting import to_json
from regard.models.seq2seq import build_model
from regard.runs import checkpoints
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress, Schedule
from regard.runs.settings import RunSettings
from regard.training.optim import build_optimizer
from scale_model import Link, expected_maximum

MESSAGES = (4, 1 << 14, 1 << 18, 1 << 22, 1 << 25)
"""Sizes of all-reduces, in bytes."""


def best_time(run: Callable[[], object], repeats: int) -> float:
    """Return the time of a function: the fastest of some repetitions, because other processes slow it down."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _reduce(rank: int, ranks: int, store: str, results: "Queue[dict[int, float]]") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    times = {}
    for size in MESSAGES:
        tensor, calls = torch.zeros(size // 4), 2 if size > 1 << 20 else 20

        def reduce(tensor: torch.Tensor = tensor, calls: int = calls) -> None:
            for _ in range(calls):
                dist.all_reduce(tensor)

        times[size] = best_time(reduce, 15) / calls
    if rank == 0:
        results.put(times)
    dist.destroy_process_group()


def measure_all_reduce(ranks: int) -> dict[int, float]:
    """Return the time of an all-reduce through gloo by its size in bytes, with processes on this machine."""
    context = get_context("spawn")
    results: Queue[dict[int, float]] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, f"{folder}/store", results)
        processes = [context.Process(target=_reduce, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        times = results.get(timeout=300)
        for process in processes:
            process.join()
    return times


def fit_link(times: dict[int, float], ranks: int) -> Link:
    """Return the link of a ring with these times: the hop from the smallest message, the rate from the largest."""
    small, large = min(times), max(times)
    hops = 2 * (ranks - 1)
    return Link(times[small] / hops, (large - small) / ranks * hops / (times[large] - times[small]))


class CorpusCost(NamedTuple):
    """What preparing a corpus costs per pair."""

    text_bytes: float
    source_tokens: float
    target_tokens: float
    cache_bytes: float
    reading_core_s: float
    tokenizing_core_s: float


def load_encoded(preset: str, folder: str, **overrides: Any) -> EncodedCorpus:
    """Prepare the training data of a preset, without sampled segmentations."""
    settings = resolve(RunSettings, preset, {"data.folder": folder, "tokenizer.dropout": 0.0, **overrides})
    corpus = load_corpus(settings.data)
    request = PreparationRequest(corpus, corpus.fingerprint(), settings.data, settings.tokenizer, 0)
    return prepare(request, None, lambda _: None).train


def measure_corpus(preset: str, folder: str) -> CorpusCost:
    """Tokenize the corpus of a preset with known subwords, in worker processes on all cores."""
    settings = resolve(RunSettings, preset, {"data.folder": folder, "tokenizer.dropout": 0.0})
    corpus = load_corpus(settings.data)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["REGARD_CACHE"] = cache
        request = PreparationRequest(corpus, corpus.fingerprint(), settings.data, settings.tokenizer, 0)
        tokenizers = prepare(request, None, lambda _: None).tokenizers
        both = _encode_core_s(request, tokenizers, processes=1)
        reading = _encode_core_s(request, tokenizers, processes=2)
        train = prepare(request, tokenizers, lambda _: None).train
        entry = max((cache_folder() / "corpora").iterdir(), key=lambda path: path.stat().st_mtime)
        stored = sum(path.stat().st_size for path in entry.iterdir() if path.name.startswith(("source", "target")))
        del os.environ["REGARD_CACHE"]
    text = sum(len(source.encode()) + len(target.encode()) + 2 for source, target in corpus.train)
    means = train.average_lengths
    return CorpusCost(
        text / len(train), means["source"], means["target"], stored / len(train),
        reading / len(train), (both - reading) / len(train),
    )  # fmt: skip


def _encode_core_s(request: PreparationRequest, tokenizers: TokenizerPair, processes: int) -> float:
    """Return the processor time of this process for tokenizing a corpus, with worker processes if there are several."""
    cut = request.tokenizer.model_copy(update={"max_length": request.tokenizer.max_length - processes})
    with patch.object(os, "cpu_count", lambda: processes):
        start = time.process_time()
        prepare(request._replace(tokenizer=cut), tokenizers, lambda _: None)
        return time.process_time() - start


def _private_bytes() -> int:
    """Return the memory of this process that is not shared with the page cache."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class RankCost(NamedTuple):
    """What the batch sampler of a rank costs per pair."""

    held_bytes: float
    peak_bytes: float
    first_epoch_s: float
    next_epoch_s: float


def measure_rank(lengths_N2: Ids, pairs: int) -> RankCost:
    """Form the batches of three epochs of a corpus with resampled lengths."""
    generator, peak, done = np.random.default_rng(0), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.003):
            peak = max(peak, _private_bytes())

    with tempfile.TemporaryDirectory() as folder:
        for side, name in enumerate(("source", "target")):
            with RaggedFile(Path(folder), name, 1 << 15) as file:
                for start in range(0, pairs, 100_000):
                    lengths = generator.choice(lengths_N2[:, side], min(100_000, pairs - start))
                    offsets = compute_offsets(lengths)
                    file.write(Ragged(np.zeros(offsets[-1], np.uint16), offsets))
        before = _private_bytes()
        threading.Thread(target=watch, daemon=True).start()
        source, target = (EncodedTexts(map_ragged(Path(folder), name)) for name in ("source", "target"))
        corpus = EncodedCorpus(source, target)
        times = [time.perf_counter()]
        sampler = TokenBatchSampler(corpus.lengths_N2, 65_536, 0, 512, corpus.epoch_lengths)
        for epoch in range(3):
            sampler.at(epoch * sampler.steps_per_epoch)
            times.append(time.perf_counter())
        held = _private_bytes()
        done.set()
    return RankCost(
        (held - before) / pairs, (peak - before) / pairs, (times[1] - times[0]) / pairs, (times[3] - times[2]) / pairs
    )


def measure_sha256() -> float:
    """Return the bytes per second of hashing."""
    content = bytes(1 << 26)
    return len(content) / best_time(lambda: hashlib.sha256(content), 5)


def measure_checkpoint(model_name: str = "transformer-base", vocabulary: int = 10_000) -> tuple[int, int, float]:
    """Save a model and its optimizer. Return the number of parameters, the bytes and the seconds."""
    overrides = {"model": model_name, "tokenizer.shared": True, "data.train": "train.tsv"}
    settings = resolve(RunSettings, "pairs", overrides)
    model = build_model(settings.model, vocabulary, vocabulary)
    optimizer = build_optimizer(model, settings.training)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    progress = RunProgress(data={}, schedule=Schedule.of(1, None), step=1)
    with tempfile.TemporaryDirectory() as folder, RunFolder(Path(folder).resolve() / "run").lock() as locked:
        tensors = checkpoints.collect_state(model, optimizer)
        seconds = best_time(lambda: checkpoints.save(locked, settings, tensors, progress), 2)
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return sum(parameter.numel() for parameter in model.parameters()), stored, seconds


def count_padded(lengths_N2: Ids, rows: Ids) -> int:
    """Return the tokens of both sides of a batch, with padding."""
    return len(rows) * int(round_up_lengths(lengths_N2[rows].max(0)).sum())


class _Echo(Pool, Worker):
    """A worker that returns the lines of a block, after it has exchanged them as a process does."""

    size = 1

    def start(self, index: int) -> Worker:
        del index
        return self

    def load(self) -> None: ...

    def predict(self, request: BlockRequest) -> BlockResponse:
        lines = json.loads(to_json(request))["lines"]
        counts = asdict(PredictionCounts(sources=len(lines)))
        response: BlockResponse = {"text": "\n".join([*lines, ""]), "problems": [], "counts": counts, "notes": []}
        echoed: BlockResponse = json.loads(to_json(response))
        return echoed

    def kill(self) -> None: ...

    def close(self) -> None: ...


def measure_driver(lines: Path) -> float:
    """Return the processor time per line of the process that runs a corpus job: reading, exchanging and writing."""
    with gzip.open(lines, "rt", encoding="utf-8") as file:
        count = sum(1 for _ in file)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        options = LineOptions(search=SearchSettings())
        predict_corpus([], find_inputs([str(lines)]), Path(folder).resolve(), options, build_pool=lambda _: _Echo())
        return (time.process_time() - start) / count


def resample(lengths_N2: Ids, pairs: int) -> Ids:
    """Return a corpus with the same distribution of lengths."""
    return lengths_N2[np.random.default_rng(0).integers(len(lengths_N2), size=pairs)]


def measure_dealt(lengths_N2: Ids, batch_tokens: int, ranks: int) -> float:
    """Return the work of the slowest rank relative to the average, if each rank takes a batch of its own."""
    sampler = TokenBatchSampler(lengths_N2, batch_tokens, 0, batch_tokens)
    work = [count_padded(lengths_N2, rows) for rows in sampler.epoch(0)]
    return expected_maximum(work, ranks) / float(np.mean(work))


def measure_split(lengths_N2: Ids, batch_tokens: int, ranks: int) -> float:
    """Return the work of the slowest rank relative to the average, if each rank takes every n-th row of a batch."""
    ratios = []
    for rows in TokenBatchSampler(lengths_N2, batch_tokens, 0, batch_tokens).epoch(0):
        work = [count_padded(lengths_N2, rows[part::ranks]) for part in range(min(ranks, len(rows)))]
        ratios.append(max(work) / (sum(work) / ranks))
    return float(np.mean(ratios))


class Training(NamedTuple):
    """Measured training: target tokens and seconds of a step, and the size of the weights."""

    tokens: float
    seconds: float
    weight_bytes: int


def train(data: str, batch_tokens: int, ranks: int, steps: int) -> Training:
    """Train a small Transformer on Multi30k with several processes of one thread each."""
    settings = {
        "data.folder": data, "model.size": 128, "model.feedforward": 256, "tokenizer.dropout": 0,
        "training.consistency": "none", "training.device": "cpu", "training.threads": 1, "training.metric": "loss",
        "training.batch_tokens": batch_tokens, "training.steps": steps, "training.warmup": 1, "training.log_every": 5,
        "training.validate_every": steps, "training.save_every": steps, "training.validation_pairs": 4,
    }  # fmt: skip
    overrides = [f"{name}={value}" for name, value in settings.items()]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *launcher, "-m", "regard", "train", "multi30k-transformer", *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([*command, "--out", f"{folder}/run"], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        lines = Path(folder, "run", "events.jsonl").read_text().splitlines()
        weight_bytes = Path(folder, "run", "checkpoints", f"step-{steps}", "model.safetensors").stat().st_size
    speeds = [event["tokens_per_second"] for event in map(json.loads, lines) if event["event"] == "train"]
    speed = median(speeds[1:])  # the first steps warm up
    tokens = count_step_tokens(data, batch_tokens, steps)
    return Training(tokens, tokens / speed, weight_bytes)


def count_step_tokens(data: str, batch_tokens: int, steps: int) -> float:
    """Return the average number of target tokens of the first steps."""
    corpus = load_encoded("multi30k-transformer", data)
    sampler = TokenBatchSampler(corpus.lengths_N2, batch_tokens, 0, batch_tokens)
    return float(np.mean([corpus.targets.lengths[sampler.at(step)].sum() for step in range(steps)]))
