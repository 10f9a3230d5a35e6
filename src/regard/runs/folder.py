"""The run folder: its layout, and which of its checkpoints are complete. No torch here: a damaged model is reported
before torch is imported.

    config.yaml               the resolved settings
    tokenizer.json            (and tokenizer.target.json, if source and target have different vocabularies)
    checkpoints/step-N/       model.safetensors, optimizer.safetensors, state.json, manifest.json (SHA-256)
    checkpoints/average-N/    the average of the last checkpoints if it is the best model; without optimizer.safetensors
    events.jsonl              the events of training, one per line
    card.md                   the model card
    data/                     the pairs, if they were passed to `regard.train` as Python objects

A model is the same folder; it can be used without the optimizer state.
"""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from regard.config import check_without_torch, resolve
from regard.errors import ConfigError, DataError, ModelError
from regard.formatting import to_json
from regard.regular_files import open_regular, read_regular
from regard.runs.directory import LockedFolder, lock_folder, reject_links
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import FORMAT, Checkpoint, UnreadableError, hash_tokenizer_parts
from regard.urls import hide_password, is_url, local_path

log = logging.getLogger(__name__)

T = TypeVar("T")

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, and what can be read from them without torch."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def exists(self) -> bool:
        """Whether this is a run. Raise ModelError if it has another format than this version of regard reads, or if it
        contains links or special files, before any of them is opened.
        """
        if not os.path.lexists(self.config):
            return False
        reject_links(self.path)
        for checkpoint in self.all_checkpoints():
            with suppress(OSError, ValueError):  # `find_problem` reports these
                checkpoint.check_format()
        return True

    def settings(self) -> RunSettings:
        return resolve(RunSettings, self.config, {}).within(self.path)

    def reject_foreign(self) -> None:
        """Raise ConfigError if config.yaml was not written by this version of regard: training would replace it."""
        if self.exists():
            try:
                self.settings()
            except ConfigError as error:
                raise ConfigError(
                    f"{self.path} contains a config.yaml that this version of regard (format {FORMAT}) did not write, "
                    f"and training would replace it. Choose another folder with --out (out=… in Python). {error}"
                ) from None

    def all_checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints of steps, newest (by step) first, including damaged ones."""
        try:
            entries = list(self.checkpoints.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UnreadableError(self.checkpoints, error) from None
        steps = [Checkpoint(entry) for entry in entries if re.fullmatch(r"step-\d+", entry.name)]
        return sorted(steps, key=lambda checkpoint: -checkpoint.step)

    def complete_checkpoints(self, exclude: Collection[Checkpoint] = ()) -> Iterator[Checkpoint]:
        """Yield the complete checkpoints, newest first; report and skip damaged or unreadable ones."""
        for checkpoint in self.all_checkpoints():
            if checkpoint in exclude:
                continue
            problem = checkpoint.find_problem()
            if problem is None:
                yield checkpoint
            else:
                log.warning("%s; the previous checkpoint is used.", problem)

    def newest(self) -> Checkpoint | None:
        return next(self.complete_checkpoints(), None)

    def best(self, exclude: Collection[Checkpoint] = ()) -> Checkpoint:
        """Return the best checkpoint by validation, or the newest complete one if that is damaged."""
        newest = next(self.complete_checkpoints(exclude), None)
        if newest is None:
            problems = [problem for entry in self.all_checkpoints() if (problem := entry.find_problem())]
            missing = "no other checkpoint can be read" if exclude else "it has no checkpoint yet"
            reason = f"{problems[0]}, and no earlier checkpoint is valid" if problems else missing
            raise ModelError(f"{self.path} cannot be used: {reason}. Train it (again), or copy it again.")
        state = newest.state.get("best", {})
        name = str(state.get("name") or f"step-{state.get('step', newest.step)}")
        best = Checkpoint(self.checkpoints / name) if re.fullmatch(r"(step|average)-\d+", name) else newest
        if best == newest or best in exclude:
            return newest
        problem = best.find_problem()
        if problem is None:
            return best
        log.warning("%s; the newest checkpoint, step %d, is used instead of the best.", problem, newest.step)
        return newest

    def read_first_readable(self, checkpoint: Checkpoint, read: Callable[[Checkpoint], T]) -> T:
        """Read from a checkpoint or, if it cannot be read, from the best of the others."""
        tried = [checkpoint]
        while True:
            try:
                return read(tried[-1])
            except UnreadableError as error:
                log.warning("%s Another checkpoint is used.", error)
                tried.append(self.best(exclude=tried))

    def lock(self) -> AbstractContextManager[LockedFolder]:
        """Lock the folder for training by this process; see `lock_folder`."""
        return lock_folder(self.path)


def local_folder(path: str | Path) -> Path:
    """Return the path of a run folder. Raise ConfigError for a URL."""
    if not is_url(path):
        return Path(path)
    local = local_path(str(path))
    if local is None:
        raise ConfigError(
            f"{hide_password(str(path))} is a URL. A run folder must be on a local or mounted disk, "
            "because training locks it and replaces files atomically. Use a local folder, and copy it afterwards."
        )
    return Path(local)


def open_model(path: str | Path, *, accept_changes: bool = False) -> tuple[RunFolder, Checkpoint]:
    """Return the run folder at a path and the checkpoint to use. Raise ModelError if the model cannot be used, or if it
    has been edited and changes are not accepted.
    """
    path = local_folder(path)
    if path.is_file():
        _reject_pickle(path)
        raise ModelError(f"{path} is a file. A model is a folder that `regard train` has written.")
    if not path.is_dir():
        raise ModelError(
            f"There is no model at {path}. If it was moved, pass its new path; to train one, use `regard train PRESET "
            f"--out {path}`."
        )
    folder = RunFolder(path)
    if not folder.exists():
        raise ModelError(f"{path} does not contain a model: it has no config.yaml. Pass the folder of a run.")
    with _as_model_error(folder):
        check_without_torch(RunSettings, folder.config)

    def check(checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.check_shapes()
        with _as_model_error(folder):
            checkpoint.check_unchanged(folder.settings, accept_changes=accept_changes)
        return checkpoint

    return folder, folder.read_first_readable(folder.best(), check)


@contextmanager
def _as_model_error(folder: RunFolder) -> Iterator[None]:
    """Report settings that are not valid as those of another version."""
    try:
        yield
    except ConfigError as error:
        raise ModelError(
            f"{folder.config} does not have format {FORMAT}, which this version of regard reads. Train the model again "
            f"with this version, in another folder. {str(error).splitlines()[0]}"
        ) from None


def open_models(
    path: str | Path, *others: str | Path, accept_changes: bool = False
) -> list[tuple[RunFolder, Checkpoint]]:
    """Open the models of an ensemble. Raise ModelError if their tokenizers differ."""
    first, *rest = [open_model(model, accept_changes=accept_changes) for model in (path, *others)]
    for folder, _ in rest:
        _check_same_tokenizers(first[0], folder)
    return [first, *rest]


def _check_same_tokenizers(first: RunFolder, other: RunFolder) -> None:
    """Raise ModelError if the models use different vocabularies, so that token ids do not match."""
    files, other_files = (
        {path.name: hash_tokenizer_parts(read_regular(path), path) for path in run.path.glob("tokenizer*.json")}
        for run in (first, other)
    )
    for name in sorted({*files, *other_files}):
        if files.get(name) != other_files.get(name):
            raise ModelError(
                f"{other.path / name} differs from that of {first.path}. The models of an ensemble must have the same "
                "tokenizers: train them on the same data with the same tokenizer settings."
            )


def locate(
    config: str | Path | Mapping[str, Any], out: str | Path | None
) -> tuple[str | Path | Mapping[str, Any], RunFolder]:
    """Return where to read the settings, and the folder to train in. A run is resumed in its own folder."""
    if isinstance(config, Mapping):
        if out is None:
            raise ConfigError("Settings passed as a mapping need a folder to train in: out='runs/…'.")
        return config, RunFolder(local_folder(out))
    path = local_folder(config)
    if RunFolder(path).exists():
        return RunFolder(path).settings().model_dump(mode="json"), RunFolder(local_folder(out) if out else path)
    return config, RunFolder(local_folder(out) if out else Path("runs") / path.stem)


def _reject_pickle(path: Path) -> None:
    with open_regular(path) as handle:
        start = handle.read(4)
    if path.suffix in PICKLES or start.startswith((b"\x80", b"PK\x03\x04")):
        raise ModelError(
            f"{path} looks like a pickle file. It is rejected, because loading a pickle can run arbitrary code. A "
            "model is a folder with safetensors files."
        )


DATA = "data"


def store_pairs(folder: RunFolder, splits: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """Store the pairs of each split in a run folder, and return the settings of the data.

    If the run was started before, the pairs must be the same. The format is JSON, which preserves tabs and line breaks.
    """
    contents = {f"{split}.jsonl": _to_json_lines(pairs) for split, pairs in splits.items()}
    with folder.lock() as locked:
        folder.reject_foreign()
        started = folder.exists()
        if started and DATA not in locked.directory.names():
            raise DataError(
                f"{folder.path} was started with other data, not with pairs=…. Choose another folder with out=…."
            )
        with locked.directory.subdirectory(DATA) as data:
            before = {name: data.read(name) for name in data.names() if not name.startswith(".")}
            if started:
                _check_same(folder, before, contents)
            else:
                for name in before.keys() - contents.keys():
                    data.remove(name)
                for name, content in contents.items():
                    data.write(name, content)
    paths = {split: {"path": f"{split}.jsonl", "format": "jsonl"} for split in splits}
    return {"kind": "files", "folder": str(folder.path.absolute() / DATA), **paths}


def _to_json_lines(pairs: Sequence[tuple[str, str]]) -> bytes:
    records = ({"source": source, "target": target} for source, target in pairs)
    return "".join(f"{to_json(record, ensure_ascii=False)}\n" for record in records).encode()


def _check_same(folder: RunFolder, before: Mapping[str, bytes], now: Mapping[str, bytes]) -> None:
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if changed:
        files = " and ".join(str(folder.path / DATA / name) for name in changed)
        raise DataError(
            f"{files}: the data has changed since {folder.path} was started. Pass the same pairs to resume, or choose "
            "another folder with out=…."
        )


INIT_FROM = "training.init_from"
ACCEPT_CHANGES = "training.accept_changes"


def resolve_run(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> RunSettings:
    """Resolve the settings of a run.

    If the overrides name an initial run, its model and tokenizer replace those of `source`. The other overrides are
    applied last.
    """
    init_from = overrides.get(INIT_FROM)
    inherited = {} if init_from is None else read_inherited_settings(overrides)
    return resolve(RunSettings, source, {**inherited, **overrides})


def read_inherited_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings that a fine-tuned run inherits from the initial run that its overrides name: tokenizer and
    model.
    """
    # Validate these overrides first: the run that they name is needed to validate the others. Any corpus will do.
    given = {key: overrides[key] for key in (INIT_FROM, ACCEPT_CHANGES) if key in overrides}
    training = resolve(RunSettings, {"data": "dates"}, given).training
    folder, _ = open_initial_run(str(training.init_from), accept_changes=training.accept_changes)
    settings = folder.settings()
    return {name: getattr(settings, name).model_dump(mode="json") for name in ("tokenizer", "model")}


def open_initial_run(init_from: str | Path, *, accept_changes: bool) -> tuple[RunFolder, Checkpoint]:
    """Return the folder of the initial run, and its best checkpoint."""
    try:
        return open_model(init_from, accept_changes=accept_changes)
    except ModelError as error:
        raise ModelError(f"{INIT_FROM}: {error}") from None
