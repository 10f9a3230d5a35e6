"""What do several ranks cost, and do they train the same model as one process?

    python benchmarks/distributed.py cost                                    # one rank under torchrun against none
    python benchmarks/distributed.py quality corpora/multi30k/tok     # two ranks against one, on Multi30k

`cost` trains the same run with and without torchrun, in turn, and prints the ratio of the durations of a step for each
pair of runs, and their median. `quality` trains `multi30k-transformer` in one process and with several ranks, which
share the GPU if there is only one, and prints BLEU on the test set for both. With --accumulate 2 and two ranks, the
weights must be identical.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import regard
from regard.data.cache import sha256
from regard.runs.folder import RunFolder

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


class StepTimes(regard.Callback):
    """Notes the time of each step, and the CPU time of the process."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step(self, info: regard.StepInfo) -> None:
        del info
        self.times.append((time.perf_counter(), time.process_time()))


def train_timed(steps: int, device: str) -> None:
    """Train for some steps, and print the median duration of a step in seconds, and that of its CPU time."""
    times = StepTimes()
    settings = {
        "training.steps": steps,
        "training.validate_every": steps,
        "training.save_every": steps,
        "training.validation_pairs": 1,
        "training.device": device,
        "data.dev": 20,
        "training.diagnostics": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        regard.train("dates", settings, out=Path(folder, "run"), callbacks=times, quiet=True)
    for clock in zip(*times.times[10:], strict=True):
        print(statistics.median(end - start for start, end in pairwise(clock)))


def measure_cost(pairs: int, steps: int, device: str) -> None:
    """Print the duration of a step without torchrun, and with one rank under it."""
    ratios = []
    child = [str(Path(__file__)), "step", "--steps", str(steps), "--device", device]
    for number in range(pairs):
        variants = [(), (*TORCHRUN, "1")]
        seconds = {}
        for words in variants if number % 2 else reversed(variants):  # whichever is first may be at a disadvantage
            command = [sys.executable, *words, *child]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds[words] = [float(value) for value in done.stdout.split()[-2:]]
        without, one_rank = (seconds[words] for words in variants)
        ratios.append([rank / alone for rank, alone in zip(one_rank, without, strict=True)])
        print(
            f"without {without[0] * 1e3:.2f} ms, one rank {one_rank[0] * 1e3:.2f} ms, ratio {ratios[-1][0]:.4f}; "
            f"CPU time {without[1] * 1e3:.2f} ms, {one_rank[1] * 1e3:.2f} ms, ratio {ratios[-1][1]:.4f}",
            flush=True,
        )
    duration, cpu_time = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"median ratio {duration:.4f}, of CPU time {cpu_time:.4f}, of {pairs} pairs of runs")


def compare_quality(data: Path, ranks: int, out: Path, overrides: list[str], accumulate: int) -> None:
    """Train with one process and with several ranks, and print the test scores of both."""
    tokens = 16_384 // accumulate
    settings = [f"data.folder={data}", f"training.batch_tokens={tokens}", f"training.accumulate={accumulate}"]
    runs = {}
    for count in (1, ranks):
        runs[count] = RunFolder(out / f"{count}-accumulate-{accumulate}")
        words = ("train", "multi30k-transformer", *settings, *overrides, "--out", str(runs[count].path))
        start = time.perf_counter()
        launcher = (*TORCHRUN, str(count)) if count > 1 else ()
        subprocess.run([sys.executable, *launcher, "-m", "regard", *words], check=True)
        print(f"ranks {count}: trained in {time.perf_counter() - start:.0f} s", flush=True)
        subprocess.run([sys.executable, "-m", "regard", "evaluate", str(runs[count].path)], check=True)
    newest = [run.newest() for run in runs.values()]
    hashes = {sha256(checkpoint.path / "model.safetensors") for checkpoint in newest if checkpoint is not None}
    print(f"accumulate {accumulate}: last weights identical: {len(hashes) == 1}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("cost", "step"):
        command = commands.add_parser(name)
        command.add_argument("--steps", type=int, default=200)
        command.add_argument("--device", default="auto")
        command.add_argument("--pairs", type=int, default=7)
    quality = commands.add_parser("quality")
    quality.add_argument("data", type=Path)
    quality.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="override some of the settings")
    quality.add_argument("--ranks", type=int, default=2)
    quality.add_argument("--accumulate", type=int, default=1)
    quality.add_argument("--out", type=Path, default=Path("runs/distributed"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.command == "cost":
        measure_cost(arguments.pairs, arguments.steps, arguments.device)
    elif arguments.command == "step":
        train_timed(arguments.steps, arguments.device)
    else:
        compare_quality(arguments.data, arguments.ranks, arguments.out, arguments.settings, arguments.accumulate)


if __name__ == "__main__":
    main()
