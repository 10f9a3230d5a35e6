"""Does `regard train --pairs FILE --minutes M` end on time, and how good is the model, with and without other load?

    python benchmarks/deadline.py --minutes 3 --load sentences=train.tsv,test.tsv,bleu \
        inflections=forms.tsv,forms.test.tsv,accuracy,1+3,2

Each data set is NAME=TRAIN,TEST,METRIC, followed by the columns of source and target if they are not the first two.
With --load, each is trained a second time beside one busy process per core. The checkpoint is chosen on pairs held back
from TRAIN; the test pairs are scored once. Seed 0.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.operating_system import usable_cores

BUSY_LOOP = "while True: pass"
LOWER_IS_BETTER = {"wer", "per", "cer", "ser", "ter"}


def run_regard(*arguments: str | Path, quiet: bool = False) -> str:
    """Run a regard command, and return its standard output."""
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    stderr = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True).stdout


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run busy loops, to compete for the cores."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def to_quality(metric: str, value: float) -> float:
    """Convert an error rate in percent to a share of correct items; leave other metrics unchanged."""
    return 100 - value if metric in LOWER_IS_BETTER else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=TRAIN,TEST,METRIC[,SOURCE,TARGET]")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--load", action="store_true", help="train each a second time beside busy processes")
    parser.add_argument("--verbose", action="store_true", help="show what training prints")
    args = parser.parse_args()
    cores = usable_cores()
    print(f"{'data':<16}{'load':>6}{'seconds':>9}{'of deadline':>13}{'steps':>8}  test", flush=True)
    for argument in args.data:
        name, _, fields = argument.partition("=")
        train, test, metric, *columns = fields.split(",")
        column_options = ["--columns", *columns] if columns else []
        qualities = []
        for busy in (0, cores) if args.load else (0,):
            with TemporaryDirectory() as folder, busy_processes(busy):
                run = Path(folder) / "run"
                started = time.monotonic()
                run_regard("train", "--pairs", train, "--minutes", args.minutes, "--out", run, *column_options,
                           quiet=not args.verbose)  # fmt: skip
                seconds = time.monotonic() - started
                scores = json.loads(
                    run_regard(
                        "evaluate", run, "--pairs", test, "--metric", metric, "--json", *column_options, quiet=True
                    )
                )
                steps = max(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("step-*"))
            value = scores["values"][metric]
            qualities.append(to_quality(metric, value))
            share = seconds / (60 * args.minutes)
            print(f"{name:<16}{busy:>6}{seconds:>9.1f}{share:>12.1%}{steps:>9,}  {metric} {value:.4g}", flush=True)
        if args.load:
            print(f"{'':<16}beside load: {qualities[1] / qualities[0]:.0%} of the quality without", flush=True)


if __name__ == "__main__":
    main()
