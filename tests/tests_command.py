"""Run `regard …` in a separate process: a new interpreter, or a fork of one that has imported torch."""

import math
import multiprocessing
import os
import re
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


class Imports(NamedTuple):
    """A command that has ended, and the modules that it imported."""

    result: Result
    modules: set[str]


PRELOADED = ["torch._dynamo", "regard.api.training", "regard.cli.train", "regard.cli.predict", "regard.cli.evaluate"]
STREAMS = ("stdin", "stdout", "stderr")
NOISE = re.compile(r"^(.*Can't open MIDR_EL1 sysfs entry|Error in cpuinfo: .*)\n", flags=re.MULTILINE)
"""Messages of torch's libraries on an ARM CPU if /sys is not mounted, as in a chroot."""


HANG = 600
"""A process that takes longer, in seconds, is taken to hang. On a loaded machine, a test can take minutes."""


def run_fresh(words: list[str], stdin: bytes, cwd: Path, timeout: float) -> Result:
    """Start a new interpreter, as a shell does."""
    command = [sys.executable, "-m", "regard", *words]
    env = {**os.environ, "PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, timeout=timeout, env=env, check=False)
    return Result(command, done.returncode, done.stdout.decode(), NOISE.sub("", done.stderr.decode()))


def find_imports(*words: str) -> Imports:
    """Run `regard …` in a new interpreter, and list the modules that it imports."""
    command = [sys.executable, "-X", "importtime", "-m", "regard", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    lines = done.stderr.splitlines(keepends=True)
    modules = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    stderr = "".join(line for line in lines if not line.startswith("import time:"))
    return Imports(Result(command, done.returncode, done.stdout, stderr), modules)


def run_preloaded(words: list[str], stdin: bytes, cwd: Path, timeout: float, cpu_seconds: int | None = None) -> Result:
    """Fork a process that has imported torch and regard, which saves seconds. Without fork, start a new one.

    A process that uses more than `cpu_seconds` of CPU time is killed by SIGXCPU.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return run_fresh(words, stdin, cwd, timeout)
    with tempfile.TemporaryDirectory() as folder:
        for name in STREAMS:
            Path(folder, name).write_bytes(stdin if name == "stdin" else b"")
        process = fork_context().Process(target=run_main, args=(words, cwd, folder, dict(os.environ), cpu_seconds))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        assert process.exitcode is not None
        out, err = (Path(folder, name).read_bytes().decode() for name in STREAMS[1:])
        return Result(["regard", *words], process.exitcode, out, NOISE.sub("", err))


@cache
def fork_context() -> "ForkServerContext":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_main(words: list[str], cwd: Path, folder: str, env: dict[str, str], cpu_seconds: int | None) -> None:
    """Run `regard` with these arguments, with files as standard streams."""
    if cpu_seconds is not None:
        import resource  # Windows has none

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
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
