"""How much faster are the Triton kernels of the cross-entropy and of one step of a cell, on a GPU?

    python benchmarks/kernels.py

Each row compares a forward and backward pass with and without the kernel. Without it, the cross-entropy (label
smoothing 0.1) uses operations of torch, and a step of a cell a few operations with an analytic gradient; 30 steps are
chained. Both run eagerly, and as a CUDA graph, as in training. Each time is the minimum of three medians; measurements
with and without the kernel alternate.
"""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from regard.formatting import table
from regard.ops.losses import cross_entropy
from regard.ops.reference_mode import reference_mode
from regard.recurrent import dispatch
from regard.recurrent.cells import Cell, GRUCell, LSTMCell, State
from regard.recurrent.fast import kernels

DEVICE = torch.device("cuda")
STEPS = 30


def capture(work: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def measure(run: Callable[[], object], repeats: int = 30) -> float:
    """Return the median time in milliseconds."""
    for _ in range(5):
        run()
    times: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def compare(name: str, kernel: Callable[[], object], without: Callable[[], object]) -> list[str]:
    row = [name]
    for prepare in (lambda work: work, capture):
        runs = prepare(kernel), prepare(without)
        pairs = [tuple(map(measure, runs)) for _ in range(3)]
        ours, theirs = (min(times) for times in zip(*pairs, strict=True))
        row += [f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.2f}"]
    return row


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(x).sum(), x)


def compare_cross_entropy(rows: int, vocabulary: int, dtype: torch.dtype) -> list[str]:
    logits = torch.randn(rows, vocabulary, device=DEVICE, dtype=dtype, requires_grad=True)
    tokens = torch.randint(vocabulary, (rows,), device=DEVICE)

    def without(x: Tensor) -> Tensor:
        with reference_mode():
            return cross_entropy(x, tokens, 0.1)

    name = f"cross-entropy, {rows:,} × {vocabulary:,}, {str(dtype).removeprefix('torch.')}"
    return compare(name, gradient(lambda x: cross_entropy(x, tokens, 0.1), logits), gradient(without, logits))


def compare_steps(cell: Cell, rows: int) -> list[str]:
    gates = torch.randn(STEPS, rows, cell.width, device=DEVICE, requires_grad=True)
    initial = cell.init_state(rows, gates)

    def chain(gates: Tensor) -> Tensor:
        state: State = initial
        for gates_BG in gates.unbind(0):
            state = dispatch.step(cell, gates_BG, state)
        output_BH: Tensor = state[0]
        return output_BH

    def without(gates: Tensor) -> Tensor:
        with patch.object(kernels, "is_usable", lambda _: False):
            return chain(gates)

    name = f"{STEPS} steps of {type(cell).__name__}, {rows} × {cell.hidden_size}"
    return compare(name, gradient(chain, gates), gradient(without, gates))


def main() -> None:
    shapes = ((8000, 8000), (8000, 1000), (2000, 32000))
    table_rows = [compare_cross_entropy(*shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]
    for build in (GRUCell, LSTMCell):
        table_rows += [compare_steps(build(512, 512).to(DEVICE), rows) for rows in (64, 256)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; times in ms")
    print(
        table(["", "eager: kernel", "no kernel", "speedup", "CUDA graph: kernel", "no kernel", "speedup"], table_rows)
    )


if __name__ == "__main__":
    main()
