"""How fast is each cell? Forward and backward over complete sequences, compared with torch.nn and with a Python loop
over the cell's equations, input product included.

    python benchmarks/recurrent.py                                        # CPU, one thread, small
    python benchmarks/recurrent.py --device cuda                          # B 16, T 1024, H 768
    python benchmarks/recurrent.py --device cuda --dtype bfloat16

`loop ÷ ours` is the speedup over the loop, `torch ÷ ours` that over torch.nn.RNN, GRU or LSTM. On a CPU with one
thread, processor time is measured, because load on the machine hardly changes it. There, torch.nn runs with and without
oneDNN, and the faster of the two counts.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table
from regard.ops.reference_mode import full_precision
from regard.recurrent import dispatch
from regard.recurrent.cells import Cell
from regard.recurrent.settings import VARIANTS

Networks = dict[str, Callable[[int], regard.RNN | regard.GRU | regard.LSTM]]
PEERS: dict[type[nn.Module], Callable[..., nn.Module]] = {regard.RNN: nn.RNN, regard.GRU: nn.GRU, regard.LSTM: nn.LSTM}


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
    clock = time.process_time if not x_BTD.is_cuda and torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    for _ in range(repeats + 1):  # one for warm-up
        x_BTD.grad = None
        _synchronize(x_BTD)
        start = clock()
        run(x_BTD).sum().backward()  # type: ignore[no-untyped-call]
        _synchronize(x_BTD)
        best = min(best, clock() - start)
    return best * 1000


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def peer_milliseconds(peer: nn.Module, x_BTD: Tensor, repeats: int) -> float:
    """Return the minimum time of a network of torch.nn, on a CPU with and without oneDNN."""
    times = []
    for onednn in (True,) if x_BTD.is_cuda else (True, False):
        torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
        times.append(milliseconds(partial(forward, peer), x_BTD, repeats))
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    return min(times)


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
    peers = {}
    for kind, build_peer in PEERS.items():
        peer = build_peer(hidden, hidden, batch_first=True).to(args.device, dtype)
        peers[kind] = peer_milliseconds(peer, x_BTD, args.repeats)
    lines = []
    with full_precision(dtype) if args.device == "cpu" else nullcontext():  # as in training and prediction
        for name, build in network_builders().items():
            network = build(hidden).to(args.device, dtype)
            cell = network.stack.cells[0]
            assert isinstance(cell, Cell)
            path = dispatch.dispatch_layer(cell, args.device, dtype, rows=batch_size).path
            ours = milliseconds(partial(forward, network), x_BTD, args.repeats)
            looped = milliseconds(partial(loop, cell), x_BTD, max(1, args.repeats // 3))
            theirs = peers[type(network)]
            ratios = [f"{looped / ours:.1f}", f"{theirs / ours:.2f}"]
            lines.append([name, path, f"{ours:.1f}", f"{looped:.1f}", f"{theirs:.1f}", *ratios])
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"{device}, {args.dtype}, B {batch_size}, T {length}, H {hidden}")
    print(table(["cell", "path", "ours, ms", "loop, ms", "torch, ms", "loop ÷ ours", "torch ÷ ours"], lines))


if __name__ == "__main__":
    main()
