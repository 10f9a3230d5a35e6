"""How many lines per second does `regard predict` translate, how much of its time is the search, and how long does one
sentence take?

    python benchmarks/prediction.py runs/multi30k-transformer train.en
    python benchmarks/prediction.py runs/multi30k-transformer train.en --beam 5 --batch-size 64 --profile

The search alone is measured on tokenized lines, twice: on a GPU, the first time captures CUDA graphs for each shape.
The command is measured in this process, from reading the lines to writing the predictions, with a model that has
captured no graphs; the time of the same command for one line, which loads the model, is subtracted. With --profile,
the functions and the kernels that take most of the time are printed.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

import regard
from regard.cli.predict import command
from regard.decoding.settings import SearchSettings


def measure_search(model: regard.Model, lines: list[str], search: SearchSettings, batch_size: int | None) -> float:
    """Return the seconds of the search for all lines, after tokenization."""
    items = model.predictor.reader.read(lines)
    start = time.perf_counter()
    model.predictor.predict(items, search, batch_size=batch_size)
    return time.perf_counter() - start


def measure_command(path: Path, lines: list[str], options: list[str]) -> float:
    """Return the seconds of `regard predict` in this process."""
    content = "\n".join(lines).encode()
    start = time.perf_counter()
    done = CliRunner().invoke(command, [str(path), *options], input=content, catch_exceptions=False)
    seconds = time.perf_counter() - start
    assert len(done.stdout.splitlines()) == len(lines)
    return seconds


def measure_latency(model: regard.Model, lines: list[str], search: dict[str, Any]) -> float:
    """Return the median of the seconds that one sentence takes."""
    times = []
    for line in lines:
        start = time.perf_counter()
        model.predict(line, attention=False, **search)
        times.append(time.perf_counter() - start)
    return statistics.median(times[len(times) // 5 :])


def print_profile(
    model: regard.Model, path: Path, lines: list[str], search: SearchSettings, options: list[str]
) -> None:
    """Print the functions that take most of the time of the command, and the kernels of the search."""
    profile = cProfile.Profile()
    profile.runcall(measure_command, path, lines, options)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if model.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        measure_search(model, lines[:2_000], search, None)
    table = recorded.key_averages().table(sort_by=f"self_{model.device.type}_time_total", row_limit=25)
    print(table, flush=True)


def report(path: Path, lines: list[str], beam: int, batch_size: int | None = None) -> None:
    """Print the rates of the search and of the command, and the time of one sentence."""
    model = regard.load(path)
    search = SearchSettings(beam=beam)
    options = ["--beam", str(beam), *([] if batch_size is None else ["--batch-size", str(batch_size)])]
    first, alone = (measure_search(model, lines, search, batch_size) for _ in range(2))
    loading = min(measure_command(path, lines[:1], options) for _ in range(2))
    whole = measure_command(path, lines, options) - loading
    latency = measure_latency(model, lines[:50], {"beam": beam})
    print(
        f"beam {beam}, batch size {batch_size or 'default'}: search {len(lines) / first:,.0f} lines/s, again "
        f"{len(lines) / alone:,.0f}; command {len(lines) / whole:,.0f} lines/s ({first / whole:.0%} of the search); "
        f"one sentence {1000 * latency:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run folder")
    parser.add_argument("file", type=Path, help="a text file, one source per line")
    parser.add_argument("--lines", type=int, help="use the first N lines; by default all")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    lines = args.file.read_text("utf-8").splitlines()[: args.lines]
    for beam in args.beam:
        report(args.model, lines, beam, args.batch_size)
        if args.profile:
            print_profile(regard.load(args.model), args.model, lines, SearchSettings(beam=beam), ["--beam", str(beam)])


if __name__ == "__main__":
    main()
