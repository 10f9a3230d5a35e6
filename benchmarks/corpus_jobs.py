"""How many lines per second does a corpus job predict, with 1 and 2 local workers and on Ray, against the plain
pipeline of `regard predict < FILE`?

    python benchmarks/corpus_jobs.py runs/multi30k-transformer train.en --lines 8000
    python benchmarks/corpus_jobs.py runs/multi30k-transformer train.en --lines 8000 --ray

Each command runs in a process of its own. Loading models and starting workers takes long compared with a short file, so
the time of the same command for the first blocks is subtracted. The outputs must be identical. With one CPU thread per
worker, set OMP_NUM_THREADS=1 for the plain pipeline, too. The CPU time is that of all processes of the command, except
those of Ray; unlike the rate, it hardly depends on other programs.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BLOCK_LINES = 512


class Times(NamedTuple):
    """The seconds of a command, and the CPU seconds of its processes."""

    seconds: float
    cpu: float

    @classmethod
    def now(cls) -> "Times":
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime)

    def until_now(self) -> "Times":
        now = Times.now()
        return Times(now.seconds - self.seconds, now.cpu - self.cpu)


def measure_plain(model: Path, source: Path, output: Path, options: list[str]) -> Times:
    """Measure `regard predict < FILE`."""
    start = Times.now()
    with source.open("rb") as lines, output.open("wb") as predictions:
        command = [sys.executable, "-m", "regard", "predict", str(model), *options]
        subprocess.run(command, stdin=lines, stdout=predictions, stderr=subprocess.DEVNULL, check=True)
    return start.until_now()


def measure_job(model: Path, source: Path, output: Path, options: list[str]) -> Times:
    """Measure a corpus job."""
    start = Times.now()
    command = [sys.executable, "-m", "regard", "predict", str(model), *options, "--input", str(source)]
    command += ["--output", str(output), "--block-lines", str(BLOCK_LINES)]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    return start.until_now()


def report(model: Path, lines: list[str], options: list[str], *, ray: bool, repeat: int) -> None:
    """Print a row for the plain pipeline, and one for each kind of worker."""
    jobs = {"in the process": [], "1 worker": ["--workers", "1"], "2 workers": ["--workers", "2"]}
    if ray:
        jobs |= {"Ray, 1 actor": ["--cluster", "local", "--workers", "1"], "Ray": ["--cluster", "local"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = 2 * BLOCK_LINES  # a block for each of two workers
        for file, part in (("all.txt", lines), ("few.txt", lines[:few])):
            (folder / file).write_text("".join(f"{line}\n" for line in part), "utf-8")
        expected = folder / "expected.txt"
        print(f"{len(lines):,} lines, {os.cpu_count()} cores; rates and CPU time without loading; seconds in all")
        for number in range(repeat):
            whole = measure_plain(model, folder / "all.txt", expected, options)
            loading = measure_plain(model, folder / "few.txt", folder / "few-expected.txt", options)
            plain = Times(whole.seconds - loading.seconds, whole.cpu - loading.cpu)
            rate = (len(lines) - few) / plain.seconds
            print(f"{'plain':<16} {rate:8,.0f} lines/s  1.00×  CPU 1.00×  {whole.seconds:6.1f} s", flush=True)
            for label, workers in jobs.items():
                out = folder / f"{label}-{number}".replace(" ", "-")
                whole = measure_job(model, folder / "all.txt", out, [*options, *workers])
                loading = measure_job(model, folder / "few.txt", out, [*options, *workers])
                seconds, cpu = whole.seconds - loading.seconds, whole.cpu - loading.cpu
                same = (out / "all.txt").read_bytes() == expected.read_bytes()
                print(
                    f"{label:<16} {(len(lines) - few) / seconds:8,.0f} lines/s  {plain.seconds / seconds:4.2f}×  CPU "
                    f"{cpu / plain.cpu:4.2f}×  {whole.seconds:6.1f} s  {'identical' if same else 'DIFFERENT'}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run folder")
    parser.add_argument("file", type=Path, help="a text file, one source per line")
    parser.add_argument("--lines", type=int, help="use the first N lines; by default all")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--ray", action="store_true", help="also measure a Ray cluster on this machine")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    lines = args.file.read_text("utf-8").splitlines()[: args.lines]
    report(args.model, lines, ["--beam", str(args.beam)], ray=args.ray, repeat=args.repeat)


if __name__ == "__main__":
    main()
