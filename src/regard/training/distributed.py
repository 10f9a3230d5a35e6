"""Training with several processes, called ranks: which rows each rank computes, and how their results are combined.

`torchrun` starts the ranks, each with its number in the environment, and `regard train --devices N` does the same on
one machine. The number of ranks changes neither the settings nor what a step computes, except for rounding and for the
random numbers of dropout: a step uses the same rows, and the loss is summed over all ranks and divided by the number of
target tokens of all ranks. Rank 0 alone locks and writes the run folder, and prints.
"""

import hashlib
import logging
import math
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard import version
from regard.arguments import check_device
from regard.errors import ConfigError, Interrupted, RankError, RegardError
from regard.formatting import shorten
from regard.regular_files import read_regular
from regard.training.optim import gradient_of
from regard.training.ranks import read_launch
from regard.training.roster import Roster, describe_rank, join_ranks

T = TypeVar("T")

_BUCKET_BYTES = 1 << 25
"""Gradients are summed in buckets of about this size: one is copied while another is transferred."""

_MAX_VALUE = 300
"""The maximum number of characters of a value in a message."""


class Share(NamedTuple):
    """Some rows of a batch: every `parts`-th one, from row `part`."""

    batch: int
    """The number of the batch in the step, less than `training.accumulate`."""
    part: int
    parts: int

    def select(self, rows: Sequence[int]) -> Sequence[int]:
        # Rows are sorted by length, so that all parts of a batch have about the same number of tokens.
        return rows[self.part :: self.parts]


def assign_shares(rank: int, ranks: int, accumulate: int, micro_batches: int = 1) -> list[Share]:
    """Return the micro-batches of a rank in a step of `accumulate` batches.

    The ranks are divided into as many teams as possible that process the same number of complete batches. Each rank
    of a team processes the same number of parts of each batch, `micro_batches`.
    """
    teams = math.gcd(ranks, accumulate)
    members = ranks // teams
    return [
        Share(batch, part, members * micro_batches)
        for batch in range(rank % teams, accumulate, teams)
        for part in range(rank // teams, members * micro_batches, members)
    ]


@final
@dataclass(frozen=True)
class Group:
    """The ranks of a run. By default, this process is the only one, and all methods return at once."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The number of this rank among those on its machine."""
    gradients: Any = None
    """The process group that sums gradients: NCCL if each rank has its own GPU, else gloo."""
    shards: bool = False
    """Whether the parameters are divided among the ranks (FSDP2)."""
    roster: Roster | None = None
    """Which of the ranks respond; None for a single rank."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which locks and writes the run folder, and prints."""
        return self.rank == 0

    def choose_device(self, name: str) -> torch.device:
        """Return the device of this rank. With `auto` and `cuda`, the ranks of a machine use its GPUs in turn."""
        device = check_device(name, "training.device")
        if self.size == 1 or device.type != "cuda":
            return device
        if device.index is None:
            device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def on(self, device: torch.device) -> "Group":
        """Return the group with the process group that suits the devices of all ranks."""
        if self.size == 1 or device.type != "cuda":
            return self
        places = self.gather((socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid)))
        shared = len(set(places)) < len(places)  # NCCL needs a GPU for each rank
        if shared or self.roster is None:
            return self
        with self.roster.watch():
            nccl = dist.new_group(backend="nccl", timeout=timedelta(seconds=self.roster.timeout))
        return replace(self, gradients=nccl)

    def describe(self, device: torch.device) -> str:
        if self.size == 1:
            return ""
        shared = " (on a shared GPU, through gloo)" if device.type == "cuda" and self.gradients is None else ""
        return f", with {self.size} ranks{shared}"

    def wait(self) -> None:
        """Wait until all ranks have come this far, however long one of them takes."""
        if self.roster is not None:
            self.roster.synchronize()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Raise RankError if training fails because a rank is lost. Sharded modules communicate when they compute."""
        try:
            with nullcontext() if self.roster is None else self.roster.watch(only_collectives=False):
                yield
        except RankError as error:
            raise RankError(f"{error} Run the same command to resume.") from None

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        if self.roster is None:
            return value
        values = [value]
        self.wait()
        with self.roster.watch():
            dist.broadcast_object_list(values)
        return values[0]

    def receive(self) -> Any:
        """Return what rank 0 passes to `broadcast` at the same time."""
        return self.broadcast(None)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks."""
        values = [value] * self.size
        if self.roster is not None:
            self.wait()
            with self.roster.watch():
                dist.all_gather_object(values, value)
        return values

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the element-wise maximum over all ranks."""
        if self.roster is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int32)
        with self.roster.watch():
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        highest: list[int] = tensor.tolist()
        return highest

    def check_equal(self, values: Mapping[str, str], error: type[RegardError], remedy: str) -> None:
        """Raise an error on all ranks if a value of one rank differs from that of rank 0."""
        (_, first), *others = self.gather((describe_rank(self.rank), dict(values)))
        for name, found in others:
            for key in {**first, **found}:
                if found.get(key) != first.get(key):
                    here, there = (shorten(entry.get(key, "none"), _MAX_VALUE) for entry in (found, first))
                    raise error(f"{name} differs from rank 0 in {key}: {here} instead of {there}. {remedy}")

    def shard(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        """Divide the parameters of modules, and from now on their gradients, among the ranks (FSDP2).

        The full values of the parameters of a module exist only while it computes. Gradients are summed in the backward
        pass. The last module contains the others.
        """
        # These imports take a second.
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        if device.type == "cuda" and self.gradients is None:
            raise ConfigError(
                "training.shard: ranks that share a GPU cannot divide a model. Start one rank for each GPU, or set "
                "training.shard=false."
            )
        process_group = self.gradients or dist.group.WORLD
        assert process_group is not None
        mesh = DeviceMesh.from_group(process_group, device.type)
        for module in modules:
            sharded = fully_shard(module, mesh=mesh)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def combine_norms(self, norm: Tensor) -> Tensor:
        """Return the norm of the gradient, given that of its part on this rank if it is sharded."""
        if not self.shards or self.roster is None:
            return norm
        squared = norm.square()
        with self.roster.watch():
            dist.all_reduce(squared, group=self.gradients)
        return squared.sqrt()

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor | None) -> Tensor | None:
        """Add up the gradients and the losses of all ranks. Return None if a rank has no loss: it ran out of memory."""
        if self.roster is None:
            return loss
        if self.shards:
            assert loss is not None
            with self.roster.watch():
                dist.all_reduce(loss, group=self.gradients)  # the gradients were summed in the backward pass
            return loss
        failed, *used = self.maximum([loss is None, *(parameter.grad is not None for parameter in parameters)])
        if failed or loss is None:
            return None
        total = loss.detach().clone().view(1)
        # A parameter that no rank has used keeps no gradient, so that the optimizer ignores it.
        gradients = [gradient_of(parameter) for parameter, is_used in zip(parameters, used, strict=True) if is_used]
        with self.roster.watch():
            self._sum(_fill_buckets([total, *gradients]))
        return total[0]

    def _sum(self, buckets: Iterable[list[Tensor]]) -> None:
        """Replace the tensors by their sums over all ranks."""

        def start(bucket: list[Tensor]) -> tuple[list[Tensor], Tensor, Any]:
            flat = torch.cat([tensor.view(-1) for tensor in bucket])
            return bucket, flat, dist.all_reduce(flat, group=self.gradients, async_op=True)

        # Start only the next bucket before waiting for this one, so that few buckets are in memory at a time.
        for started, _ in pairwise(chain(map(start, buckets), [None])):
            assert started is not None
            bucket, flat, work = started
            work.wait()
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            torch._foreach_copy_(bucket, [part.view_as(tensor) for part, tensor in zip(parts, bucket, strict=True)])

    @torch.no_grad()
    def average_changes(self, buffers: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """Average the changes of buffers, such as running means, over the ranks. `before` are their earlier values."""
        if self.roster is None:
            return
        for buffer, earlier in zip(buffers, before, strict=True):
            change = buffer - earlier
            with self.roster.watch():
                dist.all_reduce(change, group=self.gradients)
            buffer.copy_(earlier + change / self.size)  # exact for a buffer that no rank has changed

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of rank 0."""
        if self.roster is None:
            return
        with self.roster.watch():
            for tensor in tensors:
                dist.broadcast(tensor, 0, group=self.gradients if tensor.is_cuda else None)

    def broadcast_training(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor] | None
    ) -> None:
        """Copy the weights, their moving average and the state of the optimizer of rank 0."""
        if self.size == 1:
            return
        self.wait()
        self.broadcast_tensors(model.state_dict().values())
        self.broadcast_tensors((average or {}).values())
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kinds = self.broadcast([_describe_tensors(optimizer.state.get(parameter, {})) for parameter in parameters])
        for parameter, kind in zip(parameters, kinds, strict=True):
            if not self.is_first and kind:
                optimizer.state[parameter] = {
                    name: torch.empty(shape, dtype=dtype, device=parameter.device if on_gpu else "cpu")
                    for name, (shape, dtype, on_gpu) in kind.items()
                }
            self.broadcast_tensors(optimizer.state[parameter].values() if kind else ())


ALONE = Group()


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor, which is the same on all ranks, divided among them as a parameter of its shape is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def unshard(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return the full values of sharded tensors, in main memory. All ranks take part, but not all keep the values."""
    from torch.distributed.tensor import DTensor

    kept = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            kept[name] = full.cpu()
    return kept


def _describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
    return {name: (tensor.shape, tensor.dtype, tensor.is_cuda) for name, tensor in tensors.items()}


def _fill_buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Divide tensors, in order, into buckets of one dtype and of about `_BUCKET_BYTES` bytes."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size >= _BUCKET_BYTES or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets


_open: Group | None = None
"""The group that this process has joined."""


@contextmanager
def open_group() -> Iterator[Group]:
    """Join the ranks that torchrun started, and leave them at the end of the context. A nested context changes nothing.

    A single rank needs no process group.
    """
    global _open
    launched = read_launch()
    if launched is None or _open is not None:
        yield _open or ALONE
        return
    with join_ranks(launched) as (roster, store):
        with roster.watch():
            timeout = timedelta(seconds=roster.timeout)
            dist.init_process_group("gloo", store=store, rank=launched.rank, world_size=launched.size, timeout=timeout)
        _open = Group(launched.rank, launched.size, launched.local_rank, roster=roster)
        try:
            _open.check_equal(_describe_program(), ConfigError, "Start the same command with the same software.")
            yield _open
        finally:
            _open = None
            dist.destroy_process_group()


def _describe_program() -> dict[str, str]:
    """Return what must be the same on all ranks: the versions, the source code, and the command."""
    digest, package = hashlib.sha256(), Path(version.__file__).parent
    for path in sorted((*package.rglob("*.py"), *package.rglob("*.yaml"))):
        digest.update(f"{path.relative_to(package)}\n".encode() + read_regular(path))
    return {
        "the version of regard": version.__version__,
        "the source code of regard (SHA-256)": digest.hexdigest(),
        "the version of torch": torch.__version__,
        **{f"argument {number} of the command": word for number, word in enumerate(sys.argv[1:], 1)},
    }


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run `regard` with these arguments in several processes on this machine, as torchrun does. Return the exit code.

    If a rank fails, the others are stopped.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("agent.server.api", "multiprocessing.api"):
        logger = logging.getLogger(f"torch.distributed.elastic.{name}")
        logger.setLevel(logging.CRITICAL)  # the ranks print their own errors
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "regard", *arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException:
        return Interrupted.exit_code
    return 0
