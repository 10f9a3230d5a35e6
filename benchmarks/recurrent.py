"""How fast is each cell? Forward and backward over whole sequences, against torch.nn.LSTM and against the plain loop
that anyone would write: the cell's equations, one step after another, input product and all.

    python benchmarks/recurrent.py                                        # CPU, one thread, small
    python benchmarks/recurrent.py --device cuda                          # B 16, T 1024, H 768
    python benchmarks/recurrent.py --device cuda --dtype bfloat16

`loop ÷ ours` is how many times as fast as the loop ours is, `lstm ÷ ours` as torch.nn.LSTM.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table
from regard.recurrent import dispatch
from regard.recurrent.cells import Cell
from regard.recurrent.settings import VARIANTS

Networks = dict[str, Callable[[int], regard.RNN | regard.GRU | regard.LSTM]]


def networks() -> Networks:
    """Every cell by its name, as a network of one layer."""
    found: Networks = {
        "rnn": lambda size: regard.RNN(size, size),
        "rnn, relu": lambda size: regard.RNN(size, size, activation="relu"),
        "gru": lambda size: regard.GRU(size, size),
        "gru, reset before": lambda size: regard.GRU(size, size, reset="before"),
        "lstm": lambda size: regard.LSTM(size, size),
    }
    for variant in VARIANTS:
        found[f"lstm {variant}"] = lambda size, variant=variant: regard.LSTM(size, size, variant=variant)
    found["lstm, layer norm"] = lambda size: regard.LSTM(size, size, layer_norm=True)
    return found


def loop(cell: Cell, x_BTD: Tensor) -> Tensor:
    state = cell.init_state(len(x_BTD), x_BTD)
    outputs = []
    for x_BD in x_BTD.unbind(1):
        state = cell.step(cell.normalize_projection(cell.project(x_BD)), state)
        outputs.append(state[0])
    return torch.stack(outputs, 1)


def milliseconds(run: Callable[[Tensor], Tensor], x_BTD: Tensor, repeats: int) -> float:
    """The fastest of several, forward and backward."""
    best = float("inf")
    for _ in range(repeats + 1):  # one to warm up
        x_BTD.grad = None
        _settle(x_BTD)
        start = time.perf_counter()
        run(x_BTD).sum().backward()
        _settle(x_BTD)
        best = min(best, time.perf_counter() - start)
    return best * 1000


def _settle(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = (16, 1024, 768) if args.device == "cuda" else (16, 100, 128)
    given = (args.rows, args.steps, args.width)
    rows, steps, width = (size or default for size, default in zip(given, sizes, strict=True))
    dtype = getattr(torch, args.dtype)

    def put(module: nn.Module) -> nn.Module:
        return module.to(args.device, dtype)

    torch.manual_seed(0)
    x_BTD = torch.randn(rows, steps, width, device=args.device, dtype=dtype, requires_grad=True)
    peer = put(nn.LSTM(width, width, batch_first=True))
    lstm = milliseconds(lambda x: peer(x)[0], x_BTD, args.repeats)
    lines = []
    for name, build in networks().items():
        network = put(build(width))
        cell = network.stack.cells[0]
        path = dispatch.dispatch_layer(cell, args.device, dtype, rows=rows).path
        ours = milliseconds(lambda x, network=network: network(x)[0], x_BTD, args.repeats)
        plain = milliseconds(lambda x, cell=cell: loop(cell, x), x_BTD, max(1, args.repeats // 3))
        lines.append([name, path, f"{ours:.1f}", f"{plain:.1f}", f"{plain / ours:.1f}", f"{lstm / ours:.2f}"])
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"{device}, {args.dtype}, B {rows}, T {steps}, H {width}; torch.nn.LSTM {lstm:.1f} ms")
    print(table(["cell", "path", "ours, ms", "loop, ms", "loop ÷ ours", "lstm ÷ ours"], lines))


if __name__ == "__main__":
    main()
