"""How fast is each cell? Forward and backward over complete sequences, compared with torch.nn.LSTM and with a Python
loop over the cell's equations, input product included.

    python benchmarks/recurrent.py                                        # CPU, one thread, small
    python benchmarks/recurrent.py --device cuda                          # B 16, T 1024, H 768
    python benchmarks/recurrent.py --device cuda --dtype bfloat16

`loop ÷ ours` is the speedup over the loop, `lstm ÷ ours` that over torch.nn.LSTM.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table
from regard.recurrent import dispatch
from regard.recurrent.cells import Cell
from regard.recurrent.settings import VARIANTS

Networks = dict[str, Callable[[int], regard.RNN | regard.GRU | regard.LSTM]]


def network_builders() -> Networks:
    """Return a function for each cell that builds a network of one layer."""
    builders: Networks = {
        "rnn": lambda size: regard.RNN(size, size),
        "rnn, relu": lambda size: regard.RNN(size, size, activation="relu"),
        "gru": lambda size: regard.GRU(size, size),
        "gru, reset before": lambda size: regard.GRU(size, size, reset="before"),
        "lstm": lambda size: regard.LSTM(size, size),
    }
    for variant in VARIANTS:
        builders[f"lstm {variant}"] = lambda size, variant=variant: regard.LSTM(size, size, variant=variant)  # type: ignore[misc]
    builders["lstm, layer norm"] = lambda size: regard.LSTM(size, size, layer_norm=True)
    return builders


def loop(cell: Cell, x_BTD: Tensor) -> Tensor:
    """Run a cell step by step."""
    state = cell.init_state(len(x_BTD), x_BTD)
    outputs = []
    for x_BD in x_BTD.unbind(1):
        state = cell.step(cell.normalize_projection(cell.project(x_BD)), state)
        outputs.append(state[0])
    return torch.stack(outputs, 1)


def forward(network: nn.Module, x_BTD: Tensor) -> Tensor:
    outputs_BTH: Tensor = network(x_BTD)[0]
    return outputs_BTH


def milliseconds(run: Callable[[Tensor], Tensor], x_BTD: Tensor, repeats: int) -> float:
    """Return the minimum time of forward and backward over several runs."""
    best = float("inf")
    for _ in range(repeats + 1):  # one for warm-up
        x_BTD.grad = None
        _synchronize(x_BTD)
        start = time.perf_counter()
        run(x_BTD).sum().backward()  # type: ignore[no-untyped-call]
        _synchronize(x_BTD)
        best = min(best, time.perf_counter() - start)
    return best * 1000


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = (16, 1024, 768) if args.device == "cuda" else (16, 100, 128)
    requested = (args.batch_size, args.length, args.hidden)
    batch_size, length, hidden = (size or default for size, default in zip(requested, sizes, strict=True))
    dtype = getattr(torch, args.dtype)

    torch.manual_seed(0)
    x_BTD = torch.randn(batch_size, length, hidden, device=args.device, dtype=dtype, requires_grad=True)
    peer = nn.LSTM(hidden, hidden, batch_first=True).to(args.device, dtype)
    lstm = milliseconds(partial(forward, peer), x_BTD, args.repeats)
    lines = []
    for name, build in network_builders().items():
        network = build(hidden).to(args.device, dtype)
        cell = network.stack.cells[0]
        assert isinstance(cell, Cell)
        path = dispatch.dispatch_layer(cell, args.device, dtype, rows=batch_size).path
        ours = milliseconds(partial(forward, network), x_BTD, args.repeats)
        looped = milliseconds(partial(loop, cell), x_BTD, max(1, args.repeats // 3))
        lines.append([name, path, f"{ours:.1f}", f"{looped:.1f}", f"{looped / ours:.1f}", f"{lstm / ours:.2f}"])
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"{device}, {args.dtype}, B {batch_size}, T {length}, H {hidden}; torch.nn.LSTM {lstm:.1f} ms")
    print(table(["cell", "path", "ours, ms", "loop, ms", "loop ÷ ours", "lstm ÷ ours"], lines))


if __name__ == "__main__":
    main()
