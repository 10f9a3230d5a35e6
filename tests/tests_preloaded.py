"""A server that has imported torch and regard, and forks for each command: it saves the seconds of an import.

A page of the documentation runs `regard …` many times, and examples in Python that import torch. `start_preloaded` puts
two small programs into a folder for PATH: `regard`, and `run-python`, which runs a text like `python -W error -c`. Each
passes its arguments, environment and standard streams to the server, which forks; the new process runs the command,
receives the signals of the program, and returns its exit code.
"""

import array
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENT = """#!{python} -SE
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
streams = array.array("i", [0, 1, 2])
server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(request)
process = int.from_bytes(server.recv(8), "big")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(process, number))
code = server.recv(1)
sys.exit(code[0] if code else 70)
"""

PRELOADED = (
    "torch._dynamo",
    "regard.api.training",
    "regard.cli.train",
    "regard.cli.predict",
    "regard.cli.evaluate",
    "regard.cli.compare",
    "regard.api.comparing",
    "regard.inspection.explain.explanation",
    "regard.inspection.figures",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
)


@contextmanager
def start_preloaded(folder: Path) -> Iterator[Path]:
    """Start the server. Return a folder for PATH with the programs `regard` and `run-python`."""
    address = folder / "server"
    (folder / "bin").mkdir()
    for name in PROGRAMS:
        program = folder / "bin" / name
        program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
        program.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, str(address)])
    try:
        while not address.exists():
            assert server.poll() is None, "the server has stopped"
            time.sleep(0.05)
        yield folder / "bin"
    finally:
        server.kill()
        server.wait()


def serve(address: str) -> None:
    """Fork for each request, until this process is killed."""
    for name in PRELOADED:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # finished processes are not waited for
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.sendall(os.getpid().to_bytes(8, "big"))
            code = 70
            try:
                code = _run(connection)
            except BaseException:  # reported like the interpreter does
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                connection.sendall(bytes([code & 255]))
                os._exit(0)
        connection.close()


def _run(connection: socket.socket) -> int:
    """Receive a request, and run its program. Return the exit code."""
    streams = array.array("i")
    header, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
    streams.frombytes(ancillary[0][2])
    size, request = int.from_bytes(header, "big"), b""
    while len(request) < size:
        request += connection.recv(size - len(request))
    program, arguments, cwd, environment = json.loads(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
        for number, mode in enumerate(("r", "w", "w"))
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    try:
        PROGRAMS[program](arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _run_regard(arguments: list[str]) -> None:
    """Run `regard` with these arguments."""
    from regard.cli import main

    warnings.simplefilter("default")
    sys.argv = ["regard", *arguments]
    main()


def _run_python(arguments: list[str]) -> None:
    """Run a text like `python -W error -c`."""
    [code] = arguments
    warnings.simplefilter("error")
    sys.path.insert(0, "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(module))


PROGRAMS = {"regard": _run_regard, "run-python": _run_python}

if __name__ == "__main__":
    serve(sys.argv[1])
