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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from regard.config import resolve
from regard.data.cache import sha256
from regard.errors import ConfigError, ModelError
from regard.formatting import parse_json
from regard.runs.directory import reject_links
from regard.runs.lock import LockedFolder, lock_folder
from regard.runs.settings import RunSettings
from regard.runs.stored_state import Manifest, StoredState

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = 2
"""The version of the layout and of the settings. Folders with another format are rejected."""

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")


class UnreadableError(ModelError):
    """A file of a checkpoint cannot be read (permissions, I/O error). Another checkpoint may be readable."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be read ({error.strerror}). Check its permissions and the disk.")


@dataclass(frozen=True)
class Checkpoint:
    """A folder `step-N` or `average-N`. It may be incomplete or damaged: see `find_problem`."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.split("-")[1])

    @cached_property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = parse_json((self.path / "state.json").read_text("utf-8"))
        return state

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.model_validate(parse_json((self.path / "manifest.json").read_text("utf-8")))

    @property
    def weights_hash(self) -> str:
        return self._manifest.files["model.safetensors"]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights, by name, without reading the weights."""
        return {name: tuple(shape) for name, shape in self._manifest.shapes.items()}

    def check_format(self) -> None:
        """Raise ModelError if the checkpoint has another format than this version of regard reads."""
        found = self._manifest.format
        if found != FORMAT:
            remedy = (
                "It was written by a newer version: upgrade regard."
                if found > FORMAT
                else "Train the model again with this version, in another folder."
            )
            run = self.path.parent.parent
            raise ModelError(f"{run} has format {found}, and this version of regard reads format {FORMAT}. {remedy}")

    def find_problem(self) -> str | None:
        """Return which file is missing, unreadable or damaged; None if all files agree with the manifest."""
        manifest = file = self.path / "manifest.json"
        try:
            self.check_format()
            files, tokenizers = self._manifest.files, self._manifest.tokenizers
            if not {"model.safetensors", "state.json"} <= set(files):
                return f"{manifest} lists no model"
            if any(Path(name).name != name for name in (*files, *tokenizers)):
                return f"{manifest} is damaged: it lists a file outside the run folder"
            for name, expected in files.items():
                file = self.path / name
                if sha256(file) != expected:
                    return f"{file} is damaged: its SHA-256 is not the one in the manifest"
            file = self.path / "state.json"
            StoredState.model_validate(self.state)
        except FileNotFoundError:
            return f"{file} is missing"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
        except ValueError:
            return f"{file} is damaged"
        return None

    def check_tokenizers(self) -> None:
        """Raise ModelError if a tokenizer is not the one that the model was trained with: its ids differ."""
        for name, expected in self._manifest.tokenizers.items():
            path = self.path.parent.parent / name
            try:
                unchanged = sha256(path) == expected
            except FileNotFoundError:
                unchanged = False
            except OSError as error:
                raise UnreadableError(path, error) from None
            if not unchanged:
                raise ModelError(
                    f"{path} is missing, damaged or from another run: {self.path} was trained with another tokenizer. "
                    "Copy it again from the original run folder."
                )

    def check_shapes(self) -> None:
        """Raise ModelError, with the name of the tensor, if a shape differs from the manifest.

        This detects a file that another tool has replaced together with its hash in the manifest.
        """
        path = self.path / "model.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
        except OSError as error:
            raise UnreadableError(path, error) from None
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged: {error}. Copy it again from the original run folder.") from None
        saved = self._manifest.shapes
        for name in sorted(shapes.keys() | saved.keys()):
            if shapes.get(name) != saved.get(name):
                now = f"has the shape {tuple(shapes[name])}" if name in shapes else "is missing"
                before = f"had the shape {tuple(saved[name])}" if name in saved else "did not exist"
                raise ModelError(
                    f"{path}: the tensor {name} {now}, and {before} when the model was saved. Copy the file again from "
                    "the original run folder."
                )


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

    @property
    def card(self) -> Path:
        return self.path / "card.md"

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


def open_model(path: str | Path) -> tuple[RunFolder, Checkpoint]:
    """Return the run folder at a path and the checkpoint to use. Raise ModelError if the model cannot be used."""
    path = Path(path)
    if path.is_file():
        _reject_pickle(path)
        raise ModelError(f"{path} is a file. A model is a folder that `regard train` has written.")
    if not path.is_dir():
        raise ModelError(f"There is no model at {path}. Train one with `regard train PRESET --out {path}`.")
    folder = RunFolder(path)
    if not folder.exists():
        raise ModelError(f"{path} does not contain a model: it has no config.yaml. Pass the folder of a run.")
    try:
        settings = folder.settings()
    except ConfigError as error:
        raise ModelError(
            f"{folder.config} does not have format {FORMAT}, which this version of regard reads. Train the model again "
            f"with this version, in another folder. {str(error).splitlines()[0]}"
        ) from None
    names = ["tokenizer.json"] if settings.tokenizer.shared else ["tokenizer.json", "tokenizer.target.json"]
    for name in names:
        if not (path / name).is_file():
            raise ModelError(f"{path / name} is missing. Copy it from the original run folder.")
    return folder, folder.read_first_readable(folder.best(), _check_files)


def _check_files(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint.check_tokenizers()
    checkpoint.check_shapes()
    return checkpoint


def open_models(path: str | Path, *others: str | Path) -> list[tuple[RunFolder, Checkpoint]]:
    """Open the models of an ensemble. Raise ModelError if their tokenizers differ."""
    first, *rest = [open_model(model) for model in (path, *others)]
    for folder, _ in rest:
        _check_same_tokenizers(first[0], folder)
    return [first, *rest]


def _check_same_tokenizers(first: RunFolder, other: RunFolder) -> None:
    """Raise ModelError if the models use different vocabularies, so that token ids do not match."""
    files, other_files = (
        {file.name: file.read_bytes() for file in run.path.glob("tokenizer*")} for run in (first, other)
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
        return config, RunFolder(Path(out))
    path = Path(config)
    if RunFolder(path).exists():
        return RunFolder(path).settings().model_dump(mode="json"), RunFolder(Path(out) if out else path)
    return config, RunFolder(Path(out) if out else Path("runs") / path.stem)


def _reject_pickle(path: Path) -> None:
    with path.open("rb") as handle:
        start = handle.read(4)
    if path.suffix in PICKLES or start.startswith((b"\x80", b"PK\x03\x04")):
        raise ModelError(
            f"{path} looks like a pickle file. It is rejected, because loading a pickle can run arbitrary code. A "
            "model is a folder with safetensors files."
        )
