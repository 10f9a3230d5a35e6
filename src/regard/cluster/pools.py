"""Where the blocks of a corpus job are predicted: in this process, or in several processes of this machine.

A worker is used by one thread, which waits for it. `cluster/ray_pool.py` has the workers on the machines of a cluster.
"""

import json
from abc import ABC, abstractmethod
from typing import Any, cast, final

from regard import errors
from regard.cluster.block_predictor import BlockPredictor, BlockRequest, BlockResponse, WorkerSettings
from regard.data.tokens.processes import WorkerProcess, usable_threads
from regard.errors import RegardError, ResourceError


class WorkerDied(Exception):  # noqa: N818 - an event that the job handles
    """A worker has ended: it was killed, ran out of memory, or its machine is gone."""


class Worker(ABC):
    """Predicts blocks, one at a time. Methods raise WorkerDied if it has ended, and RegardError for an error that every
    block would have.
    """

    @abstractmethod
    def load(self) -> None:
        """Wait until the model is loaded. It is called once."""

    @abstractmethod
    def predict(self, request: BlockRequest) -> BlockResponse:
        """Predict a block."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker. May be called by another thread than the one that uses it."""

    @abstractmethod
    def close(self) -> None:
        """Free what an ended worker holds."""


class Pool(ABC):
    """Starts workers."""

    size: int
    """The maximum number of workers."""

    @abstractmethod
    def start(self, index: int) -> Worker:
        """Start worker `index` (from 0), without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Free what the pool holds. All workers have been killed."""


def check_response(response: Any) -> BlockResponse:
    """Return the response of a worker, or raise the error in it."""
    if "error" in response:
        kind, message = response["error"]
        raise cast("type[RegardError]", getattr(errors, kind))(message)
    return cast("BlockResponse", response)


@final
class InProcess(Pool):
    """One worker in this process."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self.size = settings, 1

    def start(self, index: int) -> Worker:
        del index
        return _LocalWorker(self._settings)

    def close(self) -> None:
        pass


@final
class _LocalWorker(Worker):
    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    def load(self) -> None:
        self._predictor = BlockPredictor(self._settings)

    def predict(self, request: BlockRequest) -> BlockResponse:
        return self._predictor.predict(request)

    def kill(self) -> None:
        """Do nothing: the thread ends with the process."""

    def close(self) -> None:
        pass


@final
class LocalProcesses(Pool):
    """Processes of this machine, which share its cores and its GPUs."""

    def __init__(self, settings: WorkerSettings, size: int) -> None:
        self._settings = settings.model_copy(update={"threads": max(1, usable_threads() // size)})
        self.size = size

    def start(self, index: int) -> Worker:
        return _ProcessWorker(self._settings.model_copy(update={"index": index}))

    def close(self) -> None:
        pass


@final
class _ProcessWorker(Worker):
    def __init__(self, settings: WorkerSettings) -> None:
        threads = str(settings.threads)
        self._settings = settings
        self._process = WorkerProcess(
            "regard.cluster.block_predictor", OMP_NUM_THREADS=threads, TOKENIZERS_PARALLELISM="false"
        )

    def load(self) -> None:
        self._exchange(self._settings.model_dump(mode="json"))

    def predict(self, request: BlockRequest) -> BlockResponse:
        return self._exchange(request)

    def _exchange(self, message: Any) -> BlockResponse:
        try:
            self._process.send(message)
            response = json.loads(self._process.receive())
        except ResourceError as error:
            raise WorkerDied(str(error)) from None
        return check_response(response)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.stop()
