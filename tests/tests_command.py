"""Run `regard …` in a separate process: a new interpreter, or a fork of one that has imported torch."""

import math
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

Result = subprocess.CompletedProcess[str]


class Measured(NamedTuple):
    """A command that has ended, its CPU time, and the maximum of its resident memory in bytes."""

    result: Result
    seconds: float
    peak_bytes: float


PRELOADED = ["torch._dynamo", "regard.api.training", "regard.cli.train", "regard.cli.predict", "regard.cli.evaluate"]
STREAMS, USAGE = ("stdin", "stdout", "stderr"), "usage"
NOISE = re.compile(r"^(.*Can't open MIDR_EL1 sysfs entry|Error in cpuinfo: .*)\n", flags=re.MULTILINE)
"""Messages of torch's libraries on an ARM CPU if /sys is not mounted, as in a chroot."""


def children_seconds() -> float:
    """Return the CPU time of all ended child processes. On a busy machine, it varies less than the elapsed time."""
    times = os.times()
    return times.children_user + times.children_system


def run_fresh(words: list[str], stdin: bytes, cwd: Path, timeout: float) -> Result:
    """Start a new interpreter, as a shell does."""
    command = [sys.executable, "-m", "regard", *words]
    env = {**os.environ, "PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, timeout=timeout, env=env, check=False)
    return Result(command, done.returncode, done.stdout.decode(), NOISE.sub("", done.stderr.decode()))


def run_preloaded(words: list[str], stdin: bytes, cwd: Path, timeout: float, cpu_seconds: int | None = None) -> Result:
    """Fork a process that has imported torch and regard, which saves seconds. Without fork, start a new one.

    A process that uses more than `cpu_seconds` of CPU time is killed by SIGXCPU.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return run_fresh(words, stdin, cwd, timeout)
    return run_measured(words, stdin, cwd, timeout, cpu_seconds).result


def run_measured(words: list[str], stdin: bytes, cwd: Path, timeout: float, cpu_seconds: int | None = None) -> Measured:
    """Fork a process that has imported torch and regard, and measure what it uses after the imports."""
    with tempfile.TemporaryDirectory() as folder:
        for name in STREAMS:
            Path(folder, name).write_bytes(stdin if name == "stdin" else b"")
        process = _fork_context().Process(target=_run_main, args=(words, cwd, folder, dict(os.environ), cpu_seconds))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        assert process.exitcode is not None
        out, err = (Path(folder, name).read_bytes().decode() for name in STREAMS[1:])
        usage = Path(folder, USAGE)
        seconds, kilobytes = map(float, usage.read_text().split()) if usage.exists() else (math.nan, math.nan)
        result = Result(["regard", *words], process.exitcode, out, NOISE.sub("", err))
        return Measured(result, seconds, 1024 * kilobytes)


@cache
def _fork_context() -> "ForkServerContext":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run_main(words: list[str], cwd: Path, folder: str, env: dict[str, str], cpu_seconds: int | None) -> None:
    """Run `regard` with these arguments, with files as standard streams."""
    if cpu_seconds is not None:
        used = math.ceil(time.process_time())  # a fork starts with 0, but not on every system
        resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_seconds, used + cpu_seconds + 1))
    for number, name in enumerate(STREAMS):
        os.dup2(os.open(Path(folder, name), os.O_RDONLY if name == "stdin" else os.O_WRONLY | os.O_APPEND), number)
        setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    warnings.simplefilter("default")
    sys.argv = ["regard", *words]
    from regard.cli import main

    try:
        main()
    except SystemExit as end:
        code = end.code
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    Path(folder, USAGE).write_text(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
