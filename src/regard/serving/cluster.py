"""Models on a Ray cluster: each is a deployment of Ray Serve, and the processes of the server send sources to it.

A detached actor, the manager, deploys the models, so that all processes of the server, and servers on several machines,
share the same replicas. It keeps the files of the models, which replicas read when they start: the machines need no
shared file system. A server renews its use of the models; those that no server uses are removed.

A prediction has no side effects. So if a replica ends, its requests are sent to another one.
"""

import asyncio
import hashlib
import io
import itertools
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, final
from zipfile import ZipFile

from regard.cluster.block_predictor import ErrorResponse, pack_models, to_response, unpack_models
from regard.cluster.pools import check_response
from regard.cluster.ray_pool import connect
from regard.data.corpora import RawSource
from regard.errors import ConfigError, ModelError, RegardError, ResourceError
from regard.formatting import shorten
from regard.registry import import_plugins
from regard.runs.folder import open_model
from regard.serving.errors import RequestError
from regard.serving.models import Backend, Catalog, Description, LoadedModel, LocalBackend, Output, Wanted
from regard.serving.settings import ClusterOptions, Loading, ModelAddress, Replicas

log = logging.getLogger(__name__)

_MODULES: Final = ("ray.serve", "regard.serving.cluster")
"""What each machine of the cluster must be able to import."""

_NAMESPACE: Final = "regard-serve"
_MANAGER: Final = "manager"
_DEPLOYMENT: Final = "model"

_ATTEMPTS: Final = 8
"""How often a request is sent if replicas end. The time of a request is limited, too."""
_MAX_DELAY: Final = 2.0
_ONGOING: Final = 64
"""The number of requests that a replica has at a time. It merges them into batches."""
_TARGET: Final = 16
"""With more requests per replica, replicas are added."""
_STOP_SECONDS: Final = 60
"""How long a replica that is replaced finishes its requests."""
_RENEW_SECONDS, _LEASE_SECONDS = 5, 300
"""How often a server renews its use of models, and after which time without it they are removed."""


class _Packed(NamedTuple):
    """A model as it is sent to the cluster.

    Attributes:
        app: The name of the application of Ray Serve.
        version: Identifies the files and all settings.
        loading: How the model is loaded; it contains only this model.
        checkpoint: The name of the checkpoint.
        options: The options of the deployment.
        archive: The files.
    """

    app: str
    version: str
    loading: Loading
    checkpoint: str
    options: Mapping[str, Any]
    archive: bytes

    @classmethod
    def pack(cls, address: ModelAddress, loading: Loading, replicas: Replicas) -> "_Packed":
        import ray

        folder, checkpoint = open_model(address.path, accept_changes=loading.accept_changes)
        path = folder.path.resolve()
        archive = pack_models([(str(path), checkpoint.path.name)], loading.plugins)
        loading = loading.model_copy(update={"models": (ModelAddress(path=str(path), languages=address.languages),)})
        options: dict[str, Any] = {
            "max_ongoing_requests": _ONGOING,
            "max_queued_requests": loading.queue,
            "graceful_shutdown_timeout_s": _STOP_SECONDS,
            "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
            "ray_actor_options": {
                "num_cpus": 1,
                "num_gpus": 1 if ray.cluster_resources().get("GPU") else 0,  # type: ignore[no-untyped-call]
            },
        }
        if replicas.minimum == replicas.maximum:
            options["num_replicas"] = replicas.minimum
        else:
            options["autoscaling_config"] = {
                "min_replicas": replicas.minimum,
                "max_replicas": replicas.maximum,
                "target_ongoing_requests": _TARGET,
            }
        with ZipFile(io.BytesIO(archive)) as files:
            contents = [(file.filename, file.CRC) for file in files.infolist()]
        identity = repr((contents, loading.model_dump_json(), checkpoint.weights_hash, options))
        version = hashlib.sha256(identity.encode()).hexdigest()
        return cls(f"regard-{path.name}", version, loading, checkpoint.path.name, options, archive)

    def load(self) -> LoadedModel:
        """Load the model in this process, and test it."""
        [address] = self.loading.models
        with unpack_models(self.archive, [(address.path, self.checkpoint)], self.loading.plugins) as (models, plugins):
            import_plugins(plugins)
            return LoadedModel.load(address.model_copy(update={"path": models[0][0]}), self.loading)


class _Failure(NamedTuple):
    """A RequestError, which a replica returns because exceptions of Ray contain the traceback instead."""

    status: int
    message: str
    retry_after: int | None

    @classmethod
    def of(cls, error: Exception) -> "_Failure":
        failure = RequestError.of(error)
        return cls(failure.status, failure.message, failure.retry_after)


@final
class _Replica:
    """A copy of a model on a machine of the cluster. Requests of all processes of the server share its batches."""

    def __init__(self, model: _Packed) -> None:
        import ray

        manager: Any = ray.get_actor(_MANAGER, _NAMESPACE)
        archive = ray.get(manager.read.remote(model.version))
        self._backend: LocalBackend = LocalBackend(model._replace(archive=archive).load(), model.loading)

    async def describe(self) -> Description:
        return self._backend.description

    async def predict(self, sources: Sequence[RawSource], wanted: Wanted) -> list[Output] | _Failure:
        try:
            return await self._backend.predict(sources, wanted)
        except Exception as error:
            return _Failure.of(error)

    async def render_trace(self, text: str, wanted: Wanted) -> str | _Failure:
        try:
            return await self._backend.render_trace(text, wanted)
        except Exception as error:
            return _Failure.of(error)

    async def stream(self, text: str) -> AsyncIterator[str | _Failure]:
        try:
            async for part in self._backend.stream(text):
                yield part
        except Exception as error:
            yield _Failure.of(error)


def _test(model: _Packed) -> ErrorResponse | dict[str, Any]:
    """Load a model in a process of its own, and predict something."""
    try:
        model.load()
    except RegardError as error:
        return to_response(error)
    return {}


@final
class _Manager:
    """Deploys models, and keeps their files for replicas that start. Its methods are called in several threads."""

    def __init__(self) -> None:
        from ray import serve

        serve.start(proxy_location="Disabled")
        self._models: dict[str, _Packed] = {}
        self._archives: dict[str, bytes] = {}
        self._users: dict[str, tuple[float, frozenset[str]]] = {}
        self._deploying = threading.Lock()
        threading.Thread(target=self._remove_expired, daemon=True).start()

    def read(self, version: str) -> bytes:
        """Return the files of a model."""
        return self._archives[version]

    def renew(self, user: str, apps: Sequence[str]) -> None:
        """Note that a server uses models."""
        self._users[user] = time.monotonic(), frozenset(apps)

    def deploy(self, user: str, models: Sequence[_Packed]) -> ErrorResponse | dict[str, Any]:
        """Replace the models whose version is another one. If one of them fails its test, replace none."""
        with self._deploying:
            new = [model for model in models if self._find_version(model.app) != model.version]
            try:
                for model in new:
                    self._test(model)
                for model in new:
                    self._run(model)
            except RegardError as error:
                return to_response(error)
            finally:
                self.renew(user, [model.app for model in models])
                self._remove_unused()
            return {}

    def adopt(self, user: str, models: Sequence[_Packed]) -> None:
        """Note models that another manager, which has ended, has deployed."""
        with self._deploying:
            for model in models:
                self._models.setdefault(model.app, model)
                self._archives[model.version] = model.archive
            self.renew(user, [model.app for model in models])

    def leave(self, user: str) -> bool:
        """Note that a server has ended. Return whether no models are left."""
        with self._deploying:
            self._users.pop(user, None)
            self._remove_unused()
            return not self._models

    def _find_version(self, app: str) -> str | None:
        return self._models[app].version if app in self._models else None

    def _test(self, model: _Packed) -> None:
        """Raise RegardError if a model cannot be loaded or fails its test prediction."""
        import ray

        # It needs no CPU of its own, so that a cluster with a replica on each CPU can be updated.
        test = ray.remote(num_cpus=0, max_calls=1, max_retries=1)(_test)
        try:
            response = ray.get(test.remote(model))
        except ray.exceptions.RayError as error:
            raise ModelError(f"The model of {model.app} cannot be tested on the cluster: {_shorten(error)}") from None
        check_response(response)

    def _run(self, model: _Packed) -> None:
        """Deploy a model, and wait until all replicas have it."""
        from ray import serve

        self._archives[model.version] = model.archive
        bare = model._replace(archive=b"")
        deployment: Any = serve.deployment(_Replica, name=_DEPLOYMENT, **model.options)
        try:
            serve.run(deployment.bind(bare), name=model.app, route_prefix=None)
        except RuntimeError as error:
            if model.app not in self._models:
                serve.delete(model.app)
            raise ResourceError(f"Ray Serve cannot start {model.app}: {_shorten(error)}") from None
        self._models[model.app] = bare
        versions = {each.version for each in self._models.values()}
        self._archives = {version: archive for version, archive in self._archives.items() if version in versions}

    def _remove_unused(self) -> None:
        from ray import serve

        limit = time.monotonic() - _LEASE_SECONDS
        self._users = {user: (last, apps) for user, (last, apps) in list(self._users.items()) if last > limit}
        used = frozenset[str]().union(*(apps for _, apps in self._users.values()))
        for app in self._models.keys() - used:
            serve.delete(app)
            self._archives.pop(self._models.pop(app).version, None)

    def _remove_expired(self) -> None:
        while True:
            time.sleep(_RENEW_SECONDS)
            with self._deploying:
                self._remove_unused()


def _find_manager() -> Any:
    """Return the manager of the cluster. It is started on this machine if there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": _MANAGER, "namespace": _NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(_Manager).options(num_cpus=0, max_concurrency=32, scheduling_strategy=here, **options).remote()


@contextmanager
def open_cluster(address: str, replicas: Replicas) -> Iterator[ClusterOptions]:
    """Connect to a cluster, or start one, for the time of a block of code. At the end, models that no other server uses
    are removed. Raise ConfigError if Ray Serve is not installed, or if the cluster cannot be used.
    """
    try:
        import ray
        from ray import serve  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--cluster requires the package {error.name}, which is not installed. Run pip install 'regard[ray]'."
        ) from None
    connect(address, _MODULES)
    user = uuid.uuid4().hex
    try:
        _check_resources(replicas)
        yield ClusterOptions(address=ray.get_runtime_context().gcs_address, replicas=replicas, user=user)
    finally:
        with suppress(ValueError, ray.exceptions.RayError):  # there is no manager, or the cluster is gone
            manager = ray.get_actor(_MANAGER, _NAMESPACE)
            if ray.get(manager.leave.remote(user)):
                ray.kill(manager)
        ray.shutdown()


def _check_resources(replicas: Replicas) -> None:
    import ray

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    kind = "GPU" if resources.get("GPU") else "CPU"
    count = int(resources.get(kind, 0))
    if replicas.minimum > count:
        raise ConfigError(
            f"--replicas {replicas.minimum}: each replica uses one {kind}, and the cluster has {count}. Use fewer "
            "replicas, or add machines."
        )


@final
class ClusterLoader:
    """Loads models on a cluster, instead of `load_catalog`. Each process of a server has one."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options

    def __call__(self, loading: Loading, report: Callable[[int], object] = lambda _: None) -> Catalog:
        """Deploy the models, or replace those that have changed. Raise RegardError if a model cannot be used."""
        del report  # the replicas form the batches
        import ray
        from ray import serve

        import_plugins(loading.plugins)
        if not ray.is_initialized():
            connect(self._options.address)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        models = _pack(loading, self._options.replicas)
        renewal = _Renewal(self._options, loading, {model.app: model.version for model in models})
        try:
            check_response(ray.get(_find_manager().deploy.remote(self._options.user, models)))
            catalog = Catalog([RayBackend(serve.get_app_handle(model.app), renewal) for model in models])
        except ray.exceptions.RayError as error:
            raise ResourceError(f"The cluster {self._options.address} cannot load models: {_shorten(error)}") from None
        renewal.start()
        return catalog


def _pack(loading: Loading, replicas: Replicas) -> list[_Packed]:
    models = [_Packed.pack(address, loading, replicas) for address in loading.models]
    apps = [model.app for model in models]
    for app in apps:
        if apps.count(app) > 1:
            name = app.removeprefix("regard-")
            raise ConfigError(f"Two models have the name {name}, that of their folder. Rename one of the folders.")
    return models


@final
class _Renewal:
    """A thread that renews the use of models. If the manager has ended, it starts another one."""

    def __init__(self, options: ClusterOptions, loading: Loading, versions: Mapping[str, str]) -> None:
        self._options, self._loading, self._versions = options, loading, versions
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A call of Ray after the process has left the cluster would start another one."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        import ray

        while not self._stopped.wait(_RENEW_SECONDS):
            try:
                manager = ray.get_actor(_MANAGER, _NAMESPACE)
                ray.get(manager.renew.remote(self._options.user, list(self._versions)))
            except (ValueError, ray.exceptions.RayError):
                with suppress(RegardError, OSError, ray.exceptions.RayError):
                    self._start_manager()

    def _start_manager(self) -> None:
        import ray

        models = _pack(self._loading, self._options.replicas)
        deployed = [model for model in models if self._versions[model.app] == model.version]
        ray.get(_find_manager().adopt.remote(self._options.user, deployed))


@final
class RayBackend(Backend):
    """A model on a cluster. If a replica ends, its requests are sent to another one.

    Args:
        handle: The handle of the deployment.
        renewal: Renews the use of the model.
    """

    def __init__(self, handle: Any, renewal: _Renewal) -> None:
        self._handle, self._renewal, self._queued = handle, renewal, 0
        self.description = asyncio.run(self._call("describe"))

    async def predict(self, sources: Sequence[RawSource], wanted: Wanted) -> list[Output]:
        self._queued += len(sources)
        try:
            outputs: list[Output] = await self._call("predict", list(sources), wanted)
        finally:
            self._queued -= len(sources)
        return outputs

    async def render_trace(self, text: str, wanted: Wanted) -> str:
        return str(await self._call("render_trace", text, wanted))

    async def stream(self, text: str) -> AsyncIterator[str]:
        received = 0
        for attempt in itertools.count():
            parts, index = self._handle.options(stream=True).stream.remote(text), 0
            try:
                async for part in parts:
                    index += 1
                    if index > received:  # another replica yields the same parts again
                        received = index
                        yield _check(part)
                return
            except Exception as error:
                await _wait_to_repeat(error, attempt)
            finally:
                parts.cancel()

    @property
    def queued(self) -> int:
        return self._queued

    async def close(self) -> None:
        """End what runs in the background. The manager replaces or removes the deployment."""
        await asyncio.to_thread(self._renewal.stop)
        await self._handle.shutdown_async()  # ends a task that calls Ray, but no requests

    async def _call(self, method: str, *arguments: Any) -> Any:
        for attempt in itertools.count():
            response = getattr(self._handle, method).remote(*arguments)
            try:
                return _check(await response)
            except asyncio.CancelledError:
                response.cancel()
                raise
            except Exception as error:
                await _wait_to_repeat(error, attempt)
        raise AssertionError


def _check(result: Any) -> Any:
    """Return the result of a replica, or raise the failure in it."""
    if isinstance(result, _Failure):
        raise RequestError(result.status, result.message, retry_after=result.retry_after)
    return result


async def _wait_to_repeat(error: Exception, attempt: int) -> None:
    """Wait before a request is sent to another replica. Raise the error if another one would not help."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import BackPressureError, RayServeException

    if isinstance(error, BackPressureError):
        raise RequestError(503, "The server is busy: the queue is full. Try again later.", retry_after=1) from None
    if not isinstance(error, (RayError, RayServeException)):
        raise error
    if attempt + 1 == _ATTEMPTS:
        log.error("Replicas have ended: %s", _shorten(error))
        raise RequestError(503, "No copy of the model responds. Try again later.", retry_after=1) from None
    await asyncio.sleep(min(_MAX_DELAY, 0.1 * 2**attempt))


def _shorten(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error  # without the traceback
    return shorten(" ".join(f"{type(cause).__name__}: {cause}".split()), 300)
