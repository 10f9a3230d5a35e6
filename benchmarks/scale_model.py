"""A model of the cost of large runs: time, bytes and money as functions of the number of pairs and GPUs.

The unit of a quantity is the end of its name: `_s` seconds, `_bytes`, `_tokens`, `_usd` US dollars. A GPU runs one
rank. `benchmarks/scale.py` prints the tables of docs/scale.md with these functions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np


def known(value: float, source: str) -> float:
    """A constant, with where its value is from."""
    constant: float = field(default=value, metadata={"source": source})
    return constant


BUCKET_BYTES = 1 << 25
"""The size of a bucket of gradients (training/distributed.py)."""

PERFORMANCE = "H200, docs/performance.md"
HOST = "16 x86 cores of the machine with the H200"
ARM = "one Neoverse-N1 core"
NCCL_TESTS = "H100, github.com/NVIDIA/nccl-tests/issues/290, 2025-03-03"
NCCL_TUNING = "NCCL, src/graph/tuning.cc, ring, Simple protocol"
SPLIT = "IWSLT 2015, rows of batches of 400k tokens divided among the GPUs"
LLAMA = "419 failures in 54 days of 16,384 GPUs: Llama Team 2024, arXiv:2407.21783, section 3.3.4"


@dataclass(frozen=True)
class Constants:
    """Everything that the model does not compute."""

    parameters: float = known(49.3e6, "transformer-base with 10,000 tokens, tied")
    large_batch_step_s: float = known(0.0524, PERFORMANCE)
    large_batch_tokens_per_s: float = known(1_101_349, PERFORMANCE)
    small_batch_step_s: float = known(0.0094, PERFORMANCE)
    small_batch_tokens_per_s: float = known(807_931, PERFORMANCE)
    predicted_lines_per_s: float = known(8_576, PERFORMANCE + ", beam 5, first search")

    driver_s_per_line: float = known(14.4e-6, ARM + ", IWSLT 2015, English")

    text_bytes_per_pair: float = known(238, "IWSLT 2015, English and Vietnamese")
    target_tokens_per_pair: float = known(27.1, "IWSLT 2015, BPE of 8,000")
    cache_bytes_per_pair: float = known(118, "IWSLT 2015, BPE of 8,000")
    reading_core_s_per_pair: float = known(5.06e-6, HOST + ", IWSLT 2015")
    tokenizing_core_s_per_pair: float = known(23.5e-6, HOST + ", IWSLT 2015")
    cores_per_node: float = known(96, "Amazon p5en.48xlarge, 192 hardware threads")
    rank_bytes_per_pair: float = known(41, "10 million pairs with the lengths of IWSLT 2015, peak")
    slowest_of_8: float = known(1.000, SPLIT)
    slowest_of_64: float = known(1.005, SPLIT)
    slowest_of_512: float = known(1.037, SPLIT)
    epoch_s_per_pair: float = known(0.23e-6, ARM + ", 10 million pairs")
    sha256_bytes_per_s: float = known(1.2e9, HOST)
    checkpoint_bytes_per_parameter: float = known(12, "float32: weights and both moments of Adam")
    checkpoint_bytes_per_s: float = known(244e6, HOST + ", with fsync and SHA-256")
    steps_between_checkpoints: float = known(1_000, "chosen: training.validate_every and save_every")
    validation_pairs: float = known(2_000, "the most that are held out by default")
    gloo_hop_s: float = known(27e-6, HOST + ", 16 processes; more between machines")

    nvlink_bytes_per_s: float = known(476e9, NCCL_TESTS)
    nvlink_hop_s: float = known(3.4e-6, NCCL_TUNING)
    network_bytes_per_s: float = known(47e9, NCCL_TESTS + ", one 400 Gb/s adapter per GPU")
    network_hop_s: float = known(14e-6, NCCL_TUNING)
    gpus_per_node: float = known(8, "HGX H200")
    node_memory_bytes: float = known(2.2e12, "2,048 GiB, Amazon p5en.48xlarge")
    object_store_bytes_per_s: float = known(8.0e9, "S3 to one c5n.18xlarge, github.com/dvassallo/s3-benchmark, 2019-04")
    usd_per_gpu_hour: float = known(5.41, "H200, Amazon EC2 Capacity Blocks, Ohio, 2024-12")
    gpu_hours_per_failure: float = known(16_384 * 54 * 24 / 419, LLAMA)
    restart_s: float = known(120, "assumed: detect the failure, start all ranks again, load the checkpoint")
    critical_batch_tokens: float = known(400e3, "no loss of BLEU up to 402k tokens: Ott et al. 2018, arXiv:1806.00187")

    @classmethod
    def sources(cls) -> dict[str, str]:
        return {constant.name: constant.metadata["source"] for constant in fields(cls)}


class Link(NamedTuple):
    """A connection of a GPU to its neighbor."""

    hop_s: float
    bytes_per_s: float


def ring_s(payload_bytes: float, ranks: int, link: Link) -> float:
    """Return the time of an all-reduce: 2 (n − 1) hops, each with one n-th of the payload."""
    return 2 * (ranks - 1) * (link.hop_s + payload_bytes / ranks / link.bytes_per_s)


def hierarchical_s(payload_bytes: float, nodes: int, gpus: int, inside: Link, between: Link) -> float:
    """Return the time of an all-reduce on several nodes of `gpus` GPUs.

    A reduce-scatter in each node leaves every GPU with a part of the payload, each part is summed in a ring over
    the nodes, and an all-gather in each node distributes the sums.
    """
    return ring_s(payload_bytes, gpus, inside) + ring_s(payload_bytes / gpus, nodes, between)


def ddp_bytes(parameter_bytes: float, ranks: int) -> float:
    """Return what a rank sends in a step: an all-reduce is a reduce-scatter and an all-gather."""
    return 2 * (ranks - 1) / ranks * parameter_bytes


def fsdp_bytes(parameter_bytes: float, ranks: int) -> float:
    """Return what a rank sends in a step: the weights of each layer are gathered twice, and gradients are scattered."""
    return 3 * (ranks - 1) / ranks * parameter_bytes


def replicated_bytes(parameters: float) -> float:
    """Return the memory of float32 weights, gradients, both moments of Adam, and three buckets of the all-reduce."""
    return 16 * parameters + 3 * BUCKET_BYTES


def sharded_bytes(parameters: float, ranks: int, layers: int) -> float:
    """Return the memory of a shard of weights, gradients and moments, and of the weights and gradients of one layer."""
    return (16 / ranks + 8 / layers) * parameters


def exposed_s(communication_s: float, backward_s: float, overlap: float) -> float:
    """Return the communication that computation does not hide. `overlap` is the share of the backward pass in which
    gradients can be sent: 0 if they are sent after it, almost 1 with the buckets of DDP.
    """
    return max(0.0, communication_s - overlap * backward_s)


def expected_maximum(work: Sequence[float], ranks: int) -> float:
    """Return the expected maximum of `ranks` draws from a distribution: Σ x₍ᵢ₎ ((i / n)ᴿ − ((i − 1) / n)ᴿ)."""
    ordered = np.sort(np.asarray(work, dtype=float))
    below = (np.arange(len(ordered) + 1) / len(ordered)) ** ranks
    return float(np.dot(ordered, np.diff(below)))


class StepCost(NamedTuple):
    """The time of a step on one GPU is linear in its tokens."""

    fixed_s: float
    tokens_per_s: float

    @classmethod
    def fit(cls, small: tuple[float, float], large: tuple[float, float]) -> "StepCost":
        """Fit two points (tokens, seconds)."""
        rate = (large[0] - small[0]) / (large[1] - small[1])
        return cls(small[1] - small[0] / rate, rate)

    def seconds(self, tokens: float, max_tokens: float = math.inf) -> float:
        """Return the time of a step, which is split into batches of at most `max_tokens`."""
        return max(1, math.ceil(tokens / max_tokens)) * self.fixed_s + tokens / self.tokens_per_s


def relative_tokens(batch_tokens: float, critical_tokens: float) -> float:
    """Return the tokens until a given loss, relative to a small batch: 1 + B / B_crit (McCandlish et al. 2018)."""
    return 1 + batch_tokens / critical_tokens


def best_save_interval_s(save_s: float, failure_interval_s: float) -> float:
    """Return the interval between checkpoints that loses the least time (Young 1974)."""
    return math.sqrt(2 * save_s * failure_interval_s)


def lost_share(save_s: float, save_interval_s: float, failure_interval_s: float, restart_s: float) -> float:
    """Return the share of time for checkpoints, for repeating half an interval after each failure, and restarting."""
    return save_s / save_interval_s + (save_interval_s / 2 + restart_s) / failure_interval_s


def processes_step_s(
    cost: StepCost, tokens: float, processes: int, cores: int, payload_bytes: float, link: Link
) -> float:
    """Return the time of a step with processes on the CPU of one machine. They share its cores if there are fewer.
    After the backward pass, they sum the gradients, and exchange flags in two all-reduces of a few bytes.
    """
    compute_s = cost.seconds(tokens / processes) * max(1.0, processes / cores)
    return compute_s + ring_s(payload_bytes, processes, link) + 2 * ring_s(0, processes, link)


class Step(NamedTuple):
    """One step of training on several GPUs."""

    gpu_tokens: float
    compute_s: float
    waiting_s: float
    """The time until the GPU with the most padding is ready."""
    reduce_s: float
    """The all-reduce of the gradients, after the backward pass."""
    flags_s: float
    """One all-reduce of a few flags through gloo. A step has two. One of them runs while the GPU computes."""

    @property
    def communication_s(self) -> float:
        """The communication that computation does not hide."""
        computing_s = self.compute_s + self.waiting_s
        return self.reduce_s + self.flags_s + exposed_s(self.flags_s, computing_s, overlap=1)

    @property
    def seconds(self) -> float:
        return self.compute_s + self.waiting_s + self.communication_s


class Run(NamedTuple):
    """The time of one epoch from text to weights, by what it is spent on."""

    tokenizing_s: float
    start_s: float
    """Hashing text and cache, and forming the batches of an epoch."""
    compute_s: float
    waiting_s: float
    communication_s: float
    validation_s: float
    saving_s: float
    failures_s: float

    @property
    def seconds(self) -> float:
        return sum(self)

    @property
    def limit(self) -> str:
        """What takes the most time."""
        return max(self._asdict().items(), key=lambda item: item[1])[0].removesuffix("_s")


@dataclass(frozen=True)
class Model:
    """Predicts runs of `transformer-base` on H200s."""

    constants: Constants = Constants()

    @property
    def step_cost(self) -> StepCost:
        c = self.constants
        small = c.small_batch_step_s * c.small_batch_tokens_per_s, c.small_batch_step_s
        large = self.full_batch_tokens, c.large_batch_step_s
        return StepCost.fit(small, large)

    @property
    def full_batch_tokens(self) -> float:
        """The target tokens of a batch of 64k tokens with padding, the largest that was measured."""
        return self.constants.large_batch_step_s * self.constants.large_batch_tokens_per_s

    def reduce_s(self, payload_bytes: float, gpus: int) -> float:
        c = self.constants
        inside, between = Link(c.nvlink_hop_s, c.nvlink_bytes_per_s), Link(c.network_hop_s, c.network_bytes_per_s)
        per_node = min(gpus, int(c.gpus_per_node))
        return hierarchical_s(payload_bytes, gpus // per_node, per_node, inside, between)

    def slowest(self, gpus: int) -> float:
        """Return the tokens of the slowest GPU with padding, relative to the average."""
        c = self.constants
        return next(
            (value for most, value in ((1, 1.0), (8, c.slowest_of_8), (64, c.slowest_of_64)) if gpus <= most),
            c.slowest_of_512,
        )

    def step(self, batch_tokens: float, gpus: int) -> Step:
        """Predict a step whose batch is divided evenly among the GPUs."""
        c = self.constants
        tokens = batch_tokens / gpus
        return Step(
            tokens,
            self.step_cost.seconds(tokens, self.full_batch_tokens),
            (self.slowest(gpus) - 1) * tokens / self.step_cost.tokens_per_s,
            self.reduce_s(4 * c.parameters, gpus),
            2 * (gpus - 1) * c.gloo_hop_s,
        )

    def efficiency(self, batch_tokens: float, gpus: int) -> float:
        """Return the speed per GPU, relative to one GPU with full batches."""
        full, step = self.step(self.full_batch_tokens, 1), self.step(batch_tokens, gpus)
        return step.gpu_tokens / step.seconds / (full.gpu_tokens / full.seconds)

    def relative_s(self, batch_tokens: float, gpus: int) -> float:
        """Return the time until a given loss, per token of a run with small batches."""
        step_s = self.step(batch_tokens, gpus).seconds
        return relative_tokens(batch_tokens, self.constants.critical_batch_tokens) * step_s / batch_tokens

    def best_batch_tokens(self, gpus: int) -> float:
        """Return the batch with which training reaches a given loss first: 1,000 tokens times a power of two."""
        return min((1_000 * 2.0**power for power in range(20)), key=lambda tokens: self.relative_s(tokens, gpus))

    @property
    def save_s(self) -> float:
        c = self.constants
        return c.parameters * c.checkpoint_bytes_per_parameter / c.checkpoint_bytes_per_s

    @property
    def validation_s(self) -> float:
        return self.constants.validation_pairs / self.constants.predicted_lines_per_s

    def failure_interval_s(self, gpus: int) -> float:
        return 3600 * self.constants.gpu_hours_per_failure / gpus

    def tokenizing_s(self, pairs: float) -> float:
        """Return the time on one machine: one process reads, and workers on all cores tokenize."""
        c = self.constants
        return pairs * max(c.reading_core_s_per_pair, c.tokenizing_core_s_per_pair / c.cores_per_node)

    def hashing_s(self, pairs: float) -> float:
        """Return the time of hashing the text and the cache, which every start does on one core."""
        c = self.constants
        return pairs * (c.text_bytes_per_pair + c.cache_bytes_per_pair) / c.sha256_bytes_per_s

    def node_bytes(self, pairs: float, gpus: int) -> float:
        """Return the memory that the ranks of a node need for their batch samplers."""
        return pairs * min(gpus, self.constants.gpus_per_node) * self.constants.rank_bytes_per_pair

    def run(self, pairs: float, batch_tokens: float, gpus: int) -> Run:
        """Predict one epoch, with an empty cache. Rank 0 validates and saves, and the others wait."""
        c = self.constants
        step = self.step(batch_tokens, gpus)
        steps = max(1.0, pairs * c.target_tokens_per_pair / batch_tokens)
        pauses = math.ceil(steps / c.steps_between_checkpoints)
        interval_s = min(steps, c.steps_between_checkpoints) * step.seconds
        repeated_s = interval_s / 2 + c.restart_s
        start_s = self.hashing_s(pairs) + pairs * c.epoch_s_per_pair
        failures = steps * step.seconds / self.failure_interval_s(gpus)
        return Run(
            tokenizing_s=self.tokenizing_s(pairs),
            start_s=start_s,
            compute_s=steps * step.compute_s,
            waiting_s=steps * step.waiting_s,
            communication_s=steps * step.communication_s,
            validation_s=pauses * self.validation_s,
            saving_s=pauses * self.save_s,
            failures_s=failures * (repeated_s + start_s),
        )

    def lines_per_s(self, gpus: int) -> float:
        """Return the speed of a corpus job: one process reads the lines, sends them to the workers, and writes."""
        c = self.constants
        return min(gpus * c.predicted_lines_per_s, 1 / c.driver_s_per_line)

    def usd(self, seconds: float, gpus: int) -> float:
        return seconds / 3600 * gpus * self.constants.usd_per_gpu_hour
