"""How fast is each attention path, and how does its time grow with the length? Forward and backward, S = T, compared
with the reference path and with torch.nn.MultiheadAttention in one run.

    python benchmarks/attention.py                    # CPU, one thread
    python benchmarks/attention.py --device cuda      # bf16 and float32

`saved` is the memory that the forward pass saves for the backward pass, in MiB. The additive score is bound by tanh:
the last line compares its rate, two for each hidden value, with that of a kernel that computes nothing else.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table

WIDTH, HEADS = 512, 8


class TorchAttention(nn.Module):
    """torch.nn.MultiheadAttention with the signature of RegardAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = self.inner(query, keys, keys, need_weights=False)[0]
        return context


class RegardAttention(nn.Module):
    """An attention module of regard, with or without returning its weights."""

    def __init__(self, inner: nn.Module, *, weights: bool = False) -> None:
        super().__init__()
        self.inner, self.weights = inner, weights

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = self.inner(query, keys, weights=self.weights)[0]
        return context


def build_modules() -> dict[str, nn.Module]:
    def heads(score: str) -> nn.Module:
        return regard.Attention(WIDTH, WIDTH, score=score, heads=HEADS)

    return {
        "torch MultiheadAttention": TorchAttention(),
        "MultiHeadAttention, fused": RegardAttention(regard.MultiHeadAttention(WIDTH, HEADS)),
        "MultiHeadAttention, reference": RegardAttention(regard.MultiHeadAttention(WIDTH, HEADS), weights=True),
        "dot, fused": RegardAttention(heads("dot")),
        "scaled_dot, fused": RegardAttention(heads("scaled_dot")),
        "general, fused": RegardAttention(heads("general")),
        "cosine, fused": RegardAttention(heads("cosine")),
        "projected, fused": RegardAttention(heads("projected")),
        "additive, chunked": RegardAttention(heads("additive")),
    }


def tanh_per_second(device: torch.device, dtype: torch.dtype, budget: float) -> float:
    """Return the rate of tanh on values that stay in registers (CUDA) or in the cache (CPU)."""
    if device.type == "cpu":
        x = torch.randn(1 << 16)
        return len(x) / milliseconds(lambda: torch.tanh(x), device, budget) * 1e3
    from tanh_rate import BLOCK, evaluate_tanh

    x, repeats = torch.randn(2048 * BLOCK, device=device), 4096
    work = partial(evaluate_tanh, x, repeats, approximate=dtype != torch.float32)
    return len(x) * repeats / milliseconds(work, device, budget) * 1e3


def saved_mebibytes(model: nn.Module, query: Tensor, keys: Tensor) -> float:
    """Return the MiB saved for the backward pass. Count each storage once, and no parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(query, keys)
    del output
    return sum(storages.values()) / 2**20


def milliseconds(run: Callable[[], object], device: torch.device, budget: float) -> float:
    """Return the minimum of repeated runs: load on the machine can only make them slower."""
    run()
    best, total = float("inf"), 0.0
    while total < budget:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        best, total = min(best, elapsed), total + elapsed
    return best * 1e3


def benchmark(
    name: str, length: int, batch_size: int, device: torch.device, dtype: torch.dtype, budget: float
) -> tuple[float, float]:
    torch.manual_seed(0)
    model = build_modules()[name].to(device, dtype)
    query = torch.randn(batch_size, length, WIDTH, device=device, dtype=dtype, requires_grad=True)
    keys = torch.randn(batch_size, length, WIDTH, device=device, dtype=dtype, requires_grad=True)

    def run() -> None:
        model(query, keys).sum().backward()

    return milliseconds(run, device, budget), saved_mebibytes(model, query, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, help="default: 1 on a CPU, 16 on CUDA")
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each measurement")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    batch_size = args.batch_size or (16 if device.type == "cuda" else 1)
    dtypes = [torch.float32, torch.bfloat16] if device.type == "cuda" else [torch.float32]
    for dtype in dtypes:
        device_name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {args.threads} thread(s)"
        sizes = f"batch {batch_size}, width {WIDTH}, {HEADS} heads"
        print(f"\n{device_name}, {dtype}, {sizes}; ms forward + backward (saved MiB)")
        results: dict[str, list[tuple[float, float]]] = {}
        for name in build_modules():
            results[name] = []
            for length in args.lengths:
                results[name].append(benchmark(name, length, batch_size, device, dtype, args.budget))
        header = ["S = T", *map(str, args.lengths), "growth", "vs torch"]
        print(
            table(header, [_row(name, times, results["torch MultiheadAttention"]) for name, times in results.items()])
        )
        rate, (time_, _) = tanh_per_second(device, dtype, args.budget), results["additive, chunked"][-1]
        share = 2 * batch_size * args.lengths[-1] ** 2 * WIDTH / time_ * 1e3 / rate
        print(f"additive: {share:.0%} of the rate of tanh, {rate / 1e9:,.2f} billion per second")
    print("\ngrowth: time at the largest length over time at half of it; 4 is O(S·T), 2 is O(S + T).")
    print("vs torch: torch's time over ours, geometric mean over the lengths; above 1 is faster than torch.")


def _row(name: str, ours: list[tuple[float, float]], peer: list[tuple[float, float]]) -> list[str]:
    cells = [f"{time_:.2f} ({memory:.0f})" for time_, memory in ours]
    cells += ["–"] * (len(peer) - len(ours))
    growth = ours[-1][0] / ours[-2][0] if len(ours) > 1 else float("nan")
    ratio = 1.0
    for (our_time, _), (peer_time, _) in zip(ours, peer, strict=False):
        ratio *= (peer_time / our_time) ** (1 / len(ours))
    return [name, *cells, f"{growth:.1f}", f"{ratio:.2f}"]


if __name__ == "__main__":
    main()
