"""How long does `regard train --pairs FILE` take before the first training step, and what does it do in that time?

    python benchmarks/preparation.py eng-fra.tsv --minutes 3
    python benchmarks/preparation.py eng-fra.tsv --minutes 3 --against ../before/src --repeat 3

Prints the time and the CPU time, including that of ended worker processes, at each message until training starts. Then
the process is killed. The cache is empty at the start. With `--against`, runs alternate with
those of the package in another folder, and the ratio of the medians is printed. Linux only, because it reads /proc.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

STARTS = "Training "
"""The start of the message before the first step. The line `Training: …`, which is printed earlier, has a colon."""


class Cost(NamedTuple):
    """The seconds since a process was started, and the CPU seconds of it and its ended children."""

    seconds: float
    cpu: float


def read_cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure_preparation(pairs: str, minutes: float, source: Path) -> Cost:
    """Start training, print the cost at each message, and return that of the whole preparation."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "REGARD_CACHE": f"{folder}/cache", "PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "regard", "train", "--pairs", pairs, "--minutes", str(minutes)]
        started = time.monotonic()
        with subprocess.Popen(
            [*command, "--out", f"{folder}/run"], stderr=subprocess.PIPE, text=True, env=env
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                cost = Cost(time.monotonic() - started, read_cpu_seconds(process.pid))
                print(f"{cost.seconds:8.1f} s {cost.cpu:6.1f} CPU s  {line.rstrip()[:80]}", flush=True)
                if line.startswith(STARTS):
                    process.kill()
                    return cost
    raise SystemExit("Training did not start.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="file of pairs")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="folder with another version of the package")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    own = Path(__file__).resolve().parents[1] / "src"
    sources = [own, *([args.against] if args.against else [])]
    costs: dict[Path, list[Cost]] = {source: [] for source in sources}
    for _ in range(args.repeat):
        for source in sources:
            print(f"{source}:", flush=True)
            costs[source].append(measure_preparation(args.pairs, args.minutes, source.resolve()))
    medians = [Cost(*map(statistics.median, zip(*costs[source], strict=True))) for source in sources]
    for source, median in zip(sources, medians, strict=True):
        print(f"{source}: median {median.seconds:.1f} s, {median.cpu:.1f} CPU s")
    if args.against:
        print(f"ratio: {medians[0].seconds / medians[1].seconds:.2f}, CPU {medians[0].cpu / medians[1].cpu:.2f}")


if __name__ == "__main__":
    main()
