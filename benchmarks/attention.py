"""How fast is each path of attention, and how does it grow? Forward and backward, S = T, against the reference
path and against torch.nn.MultiheadAttention, all in one run.

    python benchmarks/attention.py                    # CPU, one thread
    python benchmarks/attention.py --device cuda      # bf16 and float32

`kept` is what the forward pass keeps for the way back, in MiB: the memory that attention costs in training.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table

WIDTH, HEADS = 512, 8


class Torch(nn.Module):
    """torch.nn.MultiheadAttention under our calling convention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = self.inner(query, keys, keys, need_weights=False)[0]
        return context


class Ours(nn.Module):
    """One of our attentions, with or without its weights."""

    def __init__(self, inner: nn.Module, *, weights: bool = False) -> None:
        super().__init__()
        self.inner, self.weights = inner, weights

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = self.inner(query, keys, weights=self.weights)[0]
        return context


def contenders() -> dict[str, nn.Module]:
    def heads(score: str) -> nn.Module:
        return regard.Attention(WIDTH, WIDTH, score=score, heads=HEADS)

    return {
        "torch MultiheadAttention": Torch(),
        "MultiHeadAttention, fused": Ours(regard.MultiHeadAttention(WIDTH, HEADS)),
        "MultiHeadAttention, reference": Ours(regard.MultiHeadAttention(WIDTH, HEADS), weights=True),
        "dot, fused": Ours(heads("dot")),
        "scaled_dot, fused": Ours(heads("scaled_dot")),
        "general, fused": Ours(heads("general")),
        "cosine, fused": Ours(heads("cosine")),
        "projected, fused": Ours(heads("projected")),
        "additive, chunked": Ours(heads("additive")),
    }


def kept(model: nn.Module, query: Tensor, keys: Tensor) -> float:
    """MiB that the forward pass keeps for the way back, each storage counted once, parameters not."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(query, keys)
    del output
    return sum(storages.values()) / 2**20


def milliseconds(run: Callable[[], None], device: torch.device, budget: float) -> float:
    """The least of several tries: a busy machine can only make them slower."""
    run()
    best, spent = float("inf"), 0.0
    while spent < budget:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begun
        best, spent = min(best, took), spent + took
    return best * 1e3


def measure(
    name: str, length: int, rows: int, device: torch.device, dtype: torch.dtype, budget: float
) -> tuple[float, float]:
    torch.manual_seed(0)
    model = contenders()[name].to(device, dtype)
    query = torch.randn(rows, length, WIDTH, device=device, dtype=dtype, requires_grad=True)
    keys = torch.randn(rows, length, WIDTH, device=device, dtype=dtype, requires_grad=True)

    def run() -> None:
        model(query, keys).sum().backward()

    return milliseconds(run, device, budget), kept(model, query, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, help="sequences in a batch; by default 1 on a CPU, 16 on CUDA")
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each measurement")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    rows = given.rows or (16 if device.type == "cuda" else 1)
    kinds = [torch.float32, torch.bfloat16] if device.type == "cuda" else [torch.float32]
    for dtype in kinds:
        where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {given.threads} thread(s)"
        print(f"\n{where}, {dtype}, batch {rows}, width {WIDTH}, {HEADS} heads; ms forward + backward (kept MiB)")
        results: dict[str, list[tuple[float, float]]] = {}
        for name in contenders():
            results[name] = []
            for length in given.lengths:
                results[name].append(measure(name, length, rows, device, dtype, given.budget))
        header = ["S = T", *map(str, given.lengths), "growth", "vs torch"]
        print(
            table(header, [_row(name, found, results["torch MultiheadAttention"]) for name, found in results.items()])
        )
    print("\ngrowth: the time of the longest over that of half its length; 4 is O(S·T), 2 is O(S + T).")
    print("vs torch: torch's time over ours, the geometric mean over the lengths; above 1 is faster than torch.")


def _row(name: str, found: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> list[str]:
    cells = [f"{time_:.2f} ({memory:.0f})" for time_, memory in found]
    cells += ["–"] * (len(theirs) - len(found))
    growth = found[-1][0] / found[-2][0] if len(found) > 1 else float("nan")
    ratio = 1.0
    for (ours, _), (peer, _) in zip(found, theirs, strict=False):
        ratio *= (peer / ours) ** (1 / len(found))
    return [name, *cells, f"{growth:.1f}", f"{ratio:.2f}"]


if __name__ == "__main__":
    main()
