"""Does `regard train --pairs FILE --minutes M` end on time, and how good is the model, with and without other load?

    python benchmarks/deadline.py --minutes 3 --load sentences=train.tsv,test.tsv,bleu \
        inflections=forms.tsv,forms.test.tsv,accuracy,1+3,2

Each data set is NAME=TRAIN,TEST,METRIC, followed by the columns of source and target if they are not the first two.
With --load, each is trained a second time beside one busy process per core, and a third time without load and without a
deadline, with the settings and the number of steps of the second: the difference between the second and the third is
the loss that the load causes in addition to the lost compute. The checkpoint is chosen on pairs held back from TRAIN;
the test pairs are scored once. Seed 0.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from regard.operating_system import usable_cores
from regard.runs.folder import RunFolder

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


class DataSet(NamedTuple):
    """Training and test pairs, and the metric of the test pairs."""

    name: str
    train_file: str
    test_file: str
    metric: str
    columns: list[str]

    @classmethod
    def parse(cls, argument: str) -> "DataSet":
        name, _, fields = argument.partition("=")
        train, test, metric, *columns = fields.split(",")
        return cls(name, train, test, metric, ["--columns", *columns] if columns else [])

    def train(self, minutes: float, out: Path, *, quiet: bool) -> None:
        """Train without settings until a deadline."""
        run_regard("train", "--pairs", self.train_file, "--minutes", minutes, "--out", out, *self.columns, quiet=quiet)

    def score(self, run: Path, busy: int, seconds: float, minutes: float) -> float:
        """Score a run on the test pairs, print a row of the table, and return the quality."""
        output = run_regard("evaluate", run, "--pairs", self.test_file, "--metric", self.metric, "--json",
                            *self.columns, quiet=True)  # fmt: skip
        value = json.loads(output)["values"][self.metric]
        share = seconds / (60 * minutes)
        score = f"{self.metric} {value:.4g}"
        print(f"{self.name:<16}{busy:>6}{seconds:>9.1f}{share:>12.1%}{count_steps(run):>9,}  {score}", flush=True)
        return to_quality(self.metric, value)


def repeat(run: Path, out: Path) -> None:
    """Repeat a run without a deadline, with the same settings and number of steps, and a schedule of this length."""
    training, steps = RunFolder(run).settings().training, count_steps(run)
    names = ("warmup", "validate_every", "save_every")
    scaled = [f"training.{name}={max(1, round(getattr(training, name) * steps / training.steps))}" for name in names]
    run_regard("train", run / "config.yaml", "training.minutes=null", "training.max_epochs=null",
               f"training.steps={steps}", *scaled, "--out", out, quiet=True)  # fmt: skip


def count_steps(run: Path) -> int:
    return max(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("step-*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=TRAIN,TEST,METRIC[,SOURCE,TARGET]")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--load", action="store_true", help="train each beside busy processes too, and repeat its steps"
    )
    parser.add_argument("--verbose", action="store_true", help="show what training prints")
    args = parser.parse_args()
    cores = usable_cores()
    print(f"{'data':<16}{'load':>6}{'seconds':>9}{'of deadline':>13}{'steps':>8}  test", flush=True)
    for data in map(DataSet.parse, args.data):
        qualities = []
        with TemporaryDirectory() as folder:
            run, repeated = Path(folder) / "run", Path(folder) / "repeated"
            for busy in (0, cores) if args.load else (0,):
                shutil.rmtree(run, ignore_errors=True)
                with busy_processes(busy):
                    started = time.monotonic()
                    data.train(args.minutes, run, quiet=not args.verbose)
                    seconds = time.monotonic() - started
                qualities.append(data.score(run, busy, seconds, args.minutes))
            if args.load:
                started = time.monotonic()
                repeat(run, repeated)
                same_steps = data.score(repeated, 0, time.monotonic() - started, args.minutes)
                print(
                    f"{'':<16}beside load: {qualities[1] / qualities[0]:.0%} of the quality without, "
                    f"{qualities[1] / same_steps:.0%} of that of the same steps without",
                    flush=True,
                )


if __name__ == "__main__":
    main()
