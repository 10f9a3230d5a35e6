"""Train the runs of a sweep on a Ray cluster, with Ray Tune. The machines need no shared file system.

Ray Tune places the runs on machines, and starts them again if a machine fails. `SweepState` decides what to train, as
for local processes. An actor on this machine keeps the run folders: a run sends its folder at each checkpoint, and
receives it again if it is resumed on another machine. Files that a machine does not have are sent to it for each run.
"""

import io
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final
from zipfile import ZipFile

from regard.cluster.ray_pool import connect
from regard.cluster.sweep.study import Job, Outcome, Run, SweepState
from regard.cluster.sweep.workers import SweepDisplay, describe_failure, train_run
from regard.config import resolve, to_yaml
from regard.data.images.settings import CaptionsData
from regard.data.settings import DataSettings, Files, FilesData
from regard.errors import ConfigError
from regard.formatting import parse_json, to_json
from regard.registry import import_plugins
from regard.regular_files import read_regular
from regard.runs.callbacks import Callback, SaveInfo
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.training.signals import stop_on_signals
from regard.urls import is_url

_MAX_FAILURES = 3
"""The number of times that a run is started again after its machine or process has failed."""


class Resources(NamedTuple):
    """What a run needs, and the number of runs that fit into the cluster at the same time."""

    cpus: int
    gpus: float
    slots: int


@contextmanager
def open_cluster(address: str, cpus: int, gpus: float | None) -> Iterator[Resources]:
    """Connect to a cluster, and check that all its machines have this version of regard.

    By default, a run uses a GPU if the cluster has any.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"--cluster {address}: run a sweep on a machine of the cluster, where its folder is, and give the address "
            "HOST:PORT of the head node, or auto."
        )
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # it prints even if verbose is 0
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # we report why runs fail
    connect(address)
    import ray

    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        gpus = float(any(node.get("GPU") for node in nodes)) if gpus is None else gpus
        slots = sum(
            int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else float("inf"))) for node in nodes
        )
        if not slots:
            raise ConfigError(
                f"--cluster {address}: no machine of the cluster has {cpus} CPUs and {gpus:g} GPUs for a run. Lower "
                "training.threads or --gpus."
            )
        yield Resources(cpus, gpus, slots)
    finally:
        ray.shutdown()


def run_on_cluster(state: SweepState, resources: Resources, workers: int, display: SweepDisplay) -> None:
    """Train up to `workers` runs at the same time on the cluster that this process is connected to."""
    import ray
    from ray import tune
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    store = ray.remote(RunStore).options(num_cpus=0, scheduling_strategy=here).remote(str(state.folder.absolute()))
    with tempfile.TemporaryDirectory(prefix="regard-tune-") as folder, stop_on_signals() as stop:
        stop.resumed = True
        trainable = tune.with_resources(
            tune.with_parameters(_train_on_node, store=store), {"cpu": resources.cpus, "gpu": resources.gpus}
        )
        tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(search_alg=_build_searcher(state, store, workers, display), num_samples=-1),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=folder,
                failure_config=tune.FailureConfig(max_failures=_MAX_FAILURES),
                verbose=0,
            ),
        ).fit()


def _build_searcher(state: SweepState, store: Any, workers: int, display: SweepDisplay) -> Any:
    """Return a searcher of Ray Tune that suggests the runs of a sweep, and records their outcomes."""
    import ray
    from ray.tune.search import Searcher

    @final
    class SweepSearcher(Searcher):
        def __init__(self) -> None:
            super().__init__()
            self._running: dict[str, Run] = {}

        def suggest(self, trial_id: str) -> Any:
            waiting = [run for run in state.due() if run not in self._running.values()]
            if not waiting and not self._running:
                return Searcher.FINISHED
            if not waiting or len(self._running) >= workers:
                return None
            self._running[trial_id] = waiting[0]
            return {"job": state.job(waiting[0])}

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            run = self._running.pop(trial_id)
            if error or not result or "outcome" not in result:
                reason = ray.get(store.find_failure.remote(run.path)) or "the process or its machine failed"
                outcome = Outcome(0.0, failure=f"{reason} ({_MAX_FAILURES + 1} attempts)")
            else:
                outcome = Outcome.from_json(parse_json(result["outcome"]))
            state.record(run, outcome)
            display.record(run, outcome)

        def save(self, checkpoint_path: str) -> None:
            """Do nothing: the journal of the sweep contains the state."""

        def restore(self, checkpoint_path: str) -> None:
            """Do nothing: a sweep is resumed from its journal."""

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return type(None), ()  # Ray Tune stores the searcher for its own way to resume, which is not used

    return SweepSearcher()


@final
class RunStore:
    """Keeps run folders on the machine of the sweep, and reads its files. An actor of Ray."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._failures: dict[str, str] = {}

    def note_failure(self, run: str, reason: str) -> None:
        self._failures[run] = reason

    def find_failure(self, run: str) -> str | None:
        """Return the last exception that ended a run on another machine."""
        return self._failures.get(run)

    def fetch(self, run: str) -> bytes | None:
        """Return the archive of a run folder; None if the run has not been started."""
        path = self._folder / run
        return pack(path) if path.exists() else None

    def save(self, run: str, archive: bytes) -> None:
        """Replace a run folder."""
        path = self._folder / run
        draft, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        unpack(archive, draft)
        if path.exists():
            path.rename(old)
        draft.rename(path)
        shutil.rmtree(old, ignore_errors=True)

    def read(self, path: str) -> bytes | list[str] | None:
        """Return the content of a file, or the names in a folder; None if there is neither."""
        if Path(path).is_dir():
            return sorted(os.listdir(path))
        return read_regular(path) if Path(path).is_file() else None


def pack(folder: Path, data: Path | None = None) -> bytes:
    """Return an archive of a run folder. Paths of files below `data` become those of the machine of the sweep."""
    archive = io.BytesIO()
    with ZipFile(archive, "w") as files:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name == ".lock":
                continue
            content = read_regular(path)
            if data is not None and path.name in {"config.yaml", "card.md"}:
                content = content.replace(f"{data}/".encode(), b"/")
            files.writestr(str(path.relative_to(folder)), content)
    return archive.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Create a folder from an archive."""
    folder.mkdir(parents=True)
    with ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)


def _train_on_node(config: dict[str, Any], store: Any) -> None:
    """Train a run on a machine of the cluster, in a temporary folder."""
    import ray
    from ray import tune

    job: Job = config["job"]
    with tempfile.TemporaryDirectory(prefix="regard-sweep-") as temporary:
        folder, data = Path(temporary) / "run", Path(temporary) / "data"
        archive = ray.get(store.fetch.remote(job.run.path))
        if archive is not None:
            unpack(archive, folder)

        def send() -> None:
            ray.get(store.save.remote(job.run.path, pack(folder, data)))

        try:
            job = copy_files(job, data, lambda path: ray.get(store.read.remote(path)))
            use_copies(RunFolder(folder), data)
            outcome = train_run(job, folder, (_Sender(send),))
        except Exception as error:
            ray.get(store.note_failure.remote(job.run.path, describe_failure(error)))
            raise
        send()
    tune.report({"outcome": to_json(outcome.to_json())})


class _Sender(Callback):
    """Sends the run folder at each checkpoint."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send

    def on_save(self, info: SaveInfo) -> None:
        del info
        self._send()


def copy_files(job: Job, folder: Path, read: Callable[[str], bytes | list[str] | None]) -> Job:
    """Return a job whose files exist on this machine: its data, its plugins, and the runs that it starts from or
    distills. URLs are not changed.

    A file or a folder that does not exist is read from the machine of the sweep, and written below `folder` with its
    absolute path.
    """
    languages: tuple[str, ...] = ("",)

    def copy(path: str) -> bool:
        content, target = read(path), Path(f"{folder}{path}")
        if isinstance(content, bytes):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return content is not None and (isinstance(content, bytes) or all(copy(f"{path}/{name}") for name in content))

    def move(path: str) -> str:
        paths = [path.replace("{language}", language) for language in languages]
        if is_url(path) or all(Path(path).exists() for path in paths):
            return path
        return f"{folder}{path}" if all(map(copy, paths)) else path

    imports = tuple(move(name) if name.endswith(".py") else name for name in job.imports)
    import_plugins(imports)
    settings = resolve(RunSettings, job.settings, {})
    if isinstance(settings.data, FilesData) and settings.data.has_tags:
        languages = tuple(settings.data.language)
    joined = settings.model_copy(update={"data": _join_folder(settings.data)})
    moved = joined.map_paths(move)
    return replace(job, imports=imports, settings=job.settings if moved == joined else moved.model_dump(mode="json"))


def _join_folder(data: DataSettings) -> DataSettings:
    """Return data settings whose paths include the folder."""
    if not isinstance(data, FilesData | CaptionsData):
        return data
    language = data.language if isinstance(data, FilesData) else ""
    joined = {name: value.within(data.folder, language) for name, value in data if isinstance(value, Files)}
    images = {} if isinstance(data, FilesData) else {"images": data.image_path}
    return data.model_copy(update={"folder": "", **joined, **images})


def use_copies(run: RunFolder, folder: Path) -> None:
    """Change the paths in a run folder of another machine to those of copies below `folder`, as in the job."""
    if run.exists():
        settings = run.settings().map_paths(lambda path: copy if Path(copy := f"{folder}{path}").exists() else path)
        run.config.write_text(to_yaml(settings), "utf-8")
