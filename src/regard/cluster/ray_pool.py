"""Workers on the machines of a Ray cluster. They need no shared file system: the model is sent through the object store
of Ray, and lines and predictions travel with the calls.

The workers are actors, and the job assigns a block to an actor when it is idle, as it does with local processes. So the
input is a stream of any size, and what happens when an actor dies is decided in one place (`corpus.py`).
"""

import importlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

from regard.cluster.block_predictor import (
    BlockPredictor,
    BlockRequest,
    BlockResponse,
    ErrorResponse,
    WorkerSettings,
    load_packed,
    pack_models,
    to_response,
)
from regard.cluster.pools import Pool, Worker, WorkerDied, check_response
from regard.errors import ConfigError, RegardError
from regard.formatting import shorten
from regard.version import __version__

LOCAL = "local"
"""The address that starts a cluster on this machine, for the time of the job."""

_CONNECT_SECONDS, _CHECK_SECONDS, _LEAVE_SECONDS = 10, 300, 90
"""How long to wait for a connection, for a small task on a machine, and until Ray notices that a machine is gone. With
its default settings, Ray needs up to 20 seconds if a process was killed, and 70 if a machine does not respond.
"""


class Node(NamedTuple):
    """A machine of the cluster: its address, the version of regard on it, or None, its version of Python, and the first
    module that it needs and cannot import.
    """

    address: str
    regard: str | None
    python: str
    missing: str | None = None


def check_nodes(nodes: Iterable[Node]) -> None:
    """Raise ConfigError unless all machines have this version of regard, and the modules that it needs."""
    for node in nodes:
        if node.regard is None:
            raise ConfigError(
                f"The machine {node.address} of the cluster does not have the package regard. Install regard "
                f"{__version__} for Python {node.python} on all machines of the cluster."
            )
        if node.regard != __version__:
            raise ConfigError(
                f"The machine {node.address} of the cluster has regard {node.regard}, and this machine has regard "
                f"{__version__}. Install the same version on all machines."
            )
        if node.missing is not None:
            raise ConfigError(
                f"The machine {node.address} of the cluster does not have the module {node.missing}. Run pip install "
                "'regard[ray,serve]' on all machines of the cluster."
            )


def connect(address: str, modules: Sequence[str] = ()) -> None:
    """Connect to a cluster. Raise ConfigError if Ray is not installed, if the cluster cannot be reached, or if one of
    its machines does not have this version of regard, or one of the modules.
    """
    try:
        # Ray sends statistics about its use unless this is set.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        raise ConfigError(
            "A cluster requires the package ray, which is not installed. Run pip install 'regard[ray]', or use "
            "--workers for processes of this machine."
        ) from None
    try:
        _check_reachable(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        reason = shorten(" ".join(str(error).split()), 300).rstrip(".")
        raise ConfigError(
            f"--cluster {address}: the Ray cluster cannot be reached: {reason}. Check the address (HOST:PORT of the "
            f"head node, auto or {LOCAL}), and that the cluster is running (`ray status`). Run the command on a "
            "machine of the cluster."
        ) from None
    try:
        check_nodes(_describe_nodes(modules))
    except BaseException:
        ray.shutdown()
        raise


def _check_reachable(address: str) -> None:
    """Raise OSError if no program accepts connections at HOST:PORT. Ray itself would try for minutes."""
    if address in (LOCAL, "auto"):
        return
    host, colon, port = address.rpartition(":")
    if "://" in address:
        raise ValueError("the protocol of the address is not supported")
    if not colon or not port.isdecimal():
        raise ValueError("the address has no port")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def _describe_nodes(modules: Sequence[str]) -> list[Node]:
    """Run a small task on every machine of the cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(_build_check())
    nodes = _list_alive()
    calls = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(modules)
        for node in nodes
    ]
    described = []
    for (node, address), call in zip(nodes.items(), calls, strict=True):
        try:
            described.append(Node(address, *ray.get(call, timeout=_CHECK_SECONDS)))
        except ray.exceptions.RayError as error:
            if _has_left(node):
                continue
            reason = shorten(str(error).splitlines()[0], 300)
            raise ConfigError(f"The machine {address} of the cluster cannot run tasks: {reason}") from None
    return described


def _has_left(node: str) -> bool:
    """Return whether a machine, which has failed, has left the cluster."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while node in _list_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _list_alive() -> dict[str, str]:
    """Return the address of each machine by its ID."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"]: str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]}


def _build_check() -> Callable[[Sequence[str]], tuple[str | None, str, str | None]]:
    """Return a function that describes a machine. Ray sends the code of a nested function, so that it runs without
    regard.
    """

    def describe(modules: Sequence[str]) -> tuple[str | None, str, str | None]:
        python = platform.python_version()
        try:
            from regard.version import __version__
        except ImportError:
            return None, python, None
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError as error:
            return __version__, python, error.name
        return __version__, python, None

    return describe


@final
class _Actor:
    """Runs on a machine of the cluster."""

    def load(self, settings: str, archive: bytes) -> ErrorResponse | dict[str, Any]:
        try:
            self._predictor: BlockPredictor = load_packed(WorkerSettings.model_validate_json(settings), archive)
        except RegardError as error:
            return to_response(error)
        return {}

    def predict(self, request: BlockRequest) -> BlockResponse | ErrorResponse:
        try:
            return self._predictor.predict(request)
        except RegardError as error:
            return to_response(error)


@final
class RayPool(Pool):
    """Actors of a Ray cluster: one for each GPU or, without GPUs, one for each CPU, or a given number."""

    def __init__(self, address: str, settings: WorkerSettings, size: int | None = None) -> None:
        connect(address)
        import ray

        try:
            resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
            gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
            if not gpus and not cpus:
                raise ConfigError(f"--cluster {address}: the cluster has neither CPUs nor GPUs.")
            self.size = size or gpus or cpus
            self._options = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_restarts": 0, "max_task_retries": 0}
            self._settings = settings.model_copy(update={"threads": None if gpus else 1})
            self._archive = ray.put(pack_models(settings.models, settings.plugins))
        except BaseException:
            ray.shutdown()
            raise

    def start(self, index: int) -> Worker:
        del index  # Ray assigns the GPUs
        return _RayWorker(self._options, self._settings, self._archive)

    def close(self) -> None:
        import ray

        ray.shutdown()


@final
class _RayWorker(Worker):
    def __init__(self, options: dict[str, Any], settings: WorkerSettings, archive: Any) -> None:
        import ray

        self._actor: Any = ray.remote(_Actor).options(**options).remote()
        self._settings, self._archive = settings, archive

    def load(self) -> None:
        self._get(self._actor.load.remote(self._settings.model_dump_json(), self._archive))

    def predict(self, request: BlockRequest) -> BlockResponse:
        return self._get(self._actor.predict.remote(request))

    def _get(self, call: Any) -> BlockResponse:
        import ray

        try:
            response = ray.get(call)
        except ray.exceptions.RayTaskError:  # an exception of the code
            raise
        except ray.exceptions.RayError as error:
            raise WorkerDied(shorten(" ".join(str(error).split()), 300)) from None
        return check_response(response)

    def kill(self) -> None:
        import ray

        ray.kill(self._actor)

    def close(self) -> None:
        """Do nothing: Ray frees what an ended actor holds."""
