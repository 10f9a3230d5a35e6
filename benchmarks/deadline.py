"""Does `regard train --pairs FILE --minutes M` end on time, and what does it reach, also beside busy processes?

    python benchmarks/deadline.py --minutes 3 --load sentences=train.tsv,test.tsv,bleu \
        inflections=forms.tsv,forms.test.tsv,accuracy,1+3,2

Each kind of data is NAME=TRAIN,TEST,METRIC, with the columns of source and target where they are not the first two.
With --load, each is trained a second time while one busy process per core competes for the machine. The test pairs are
scored once, by the checkpoint that was chosen on pairs held back from TRAIN; seed 0.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

BUSY = "while True: pass"
LOWER_IS_BETTER = {"wer", "per", "cer", "ser", "ter"}


def regard(*words: str | Path, quiet: bool = False) -> str:
    """Run a command of regard → its standard output."""
    command = [sys.executable, "-m", "regard", *map(str, words)]
    stderr = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True).stdout


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def quality(metric: str, value: float) -> float:
    """A figure of which more is better; error rates are percentages."""
    return 100 - value if metric in LOWER_IS_BETTER else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", metavar="NAME=TRAIN,TEST,METRIC[,SOURCE,TARGET]")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--load", action="store_true", help="train each a second time beside busy processes")
    parser.add_argument("--verbose", action="store_true", help="show what training prints")
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"{'data':<16}{'load':>6}{'seconds':>9}{'of deadline':>13}{'steps':>8}  test", flush=True)
    for kind in args.kinds:
        name, _, given = kind.partition("=")
        train, test, metric, *columns = given.split(",")
        picked = ["--columns", *columns] if columns else []
        reached = []
        for busy in (0, cores) if args.load else (0,):
            with TemporaryDirectory() as folder, load(busy):
                run = Path(folder) / "run"
                started = time.monotonic()
                regard("train", "--pairs", train, "--minutes", args.minutes, "--out", run, *picked,
                       quiet=not args.verbose)  # fmt: skip
                seconds = time.monotonic() - started
                scores = json.loads(
                    regard("evaluate", run, "--pairs", test, "--metric", metric, "--json", *picked, quiet=True)
                )
                steps = max(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("step-*"))
            value = scores["values"][metric]
            reached.append(quality(metric, value))
            share = seconds / (60 * args.minutes)
            print(f"{name:<16}{busy:>6}{seconds:>9.1f}{share:>12.1%}{steps:>9,}  {metric} {value:.4g}", flush=True)
        if args.load:
            print(f"{'':<16}beside load: {reached[1] / reached[0]:.0%} of the quality without", flush=True)


if __name__ == "__main__":
    main()
