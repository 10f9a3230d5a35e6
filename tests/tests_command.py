"""`regard …` in processes of their own, for tests: fresh ones, or ones that have torch in memory from the start."""

import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

Result = subprocess.CompletedProcess[str]

PRELOADED = ["torch._dynamo", "regard.api", "regard.cli.train", "regard.cli.predict", "regard.cli.evaluate"]
STREAMS = ("stdin", "stdout", "stderr")
NOISE = re.compile(r"^(.*Can't open MIDR_EL1 sysfs entry|Error in cpuinfo: .*)\n", flags=re.MULTILINE)
"""What torch's libraries print on an ARM CPU where /sys is not mounted, as in a chroot."""


def fresh(words: list[str], stdin: bytes, cwd: Path, timeout: float) -> Result:
    """As a user's shell would start it."""
    command = [sys.executable, "-m", "regard", *words]
    env = {**os.environ, "PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, timeout=timeout, env=env, check=False)
    return Result(command, done.returncode, done.stdout.decode(), NOISE.sub("", done.stderr.decode()))


def warm(words: list[str], stdin: bytes, cwd: Path, timeout: float) -> Result:
    """The same, forked from a process that has imported torch and regard: it saves seconds each time."""
    with tempfile.TemporaryDirectory() as place:
        for name in STREAMS:
            Path(place, name).write_bytes(stdin if name == "stdin" else b"")
        process = _server().Process(target=_become, args=(words, cwd, place, dict(os.environ)))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        assert process.exitcode is not None
        out, err = (Path(place, name).read_bytes().decode() for name in STREAMS[1:])
        return Result(["regard", *words], process.exitcode, out, NOISE.sub("", err))


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _become(words: list[str], cwd: Path, place: str, env: dict[str, str]) -> None:
    """`regard` with these words, reading and writing files in place of a terminal."""
    for number, name in enumerate(STREAMS):
        os.dup2(os.open(Path(place, name), os.O_RDONLY if name == "stdin" else os.O_WRONLY | os.O_APPEND), number)
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
