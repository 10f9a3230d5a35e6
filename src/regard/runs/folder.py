"""A run is a folder; this is its layout, what proves a checkpoint whole, and the lock. No torch here: a
damaged model is told before anything heavy is loaded.

    config.yaml            the settings, resolved
    tokenizer.json         (and tokenizer.target.json where the vocabularies differ)
    checkpoints/step-N/    model.safetensors, optimizer.safetensors, state.json, manifest.json (SHA-256)
    checkpoints/mean-N/    the same without the optimizer: the mean of the last checkpoints, where it was the best
    events.jsonl           what happened, a line each
    card.md                what this model is, for people

A model to hand on is the same folder without the optimizer.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from regard.config import resolve
from regard.data.cache import sha256
from regard.errors import ConfigError, ModelError
from regard.runs.directory import reject_links
from regard.runs.lock import LockedFolder, lock_folder
from regard.runs.settings import RunSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = 1
"""The version of the layout; a higher one was written by a newer regard."""

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")


class UnreadableError(ModelError):
    """A file of a checkpoint cannot be read (permissions, I/O error). Another checkpoint may be readable."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be read ({error.strerror}). Check its permissions and the disk.")


@dataclass(frozen=True)
class Checkpoint:
    """A folder `step-N`, whole or not: `problem` tells."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.split("-")[1])

    @cached_property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.path / "state.json").read_text("utf-8"))
        return state

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.path / "manifest.json").read_text("utf-8"))
        return manifest

    @property
    def weights_hash(self) -> str:
        found: str = self._manifest["files"]["model.safetensors"]
        return found

    def problem(self) -> str | None:
        """What is wrong with it, naming the file; None if every file is what the manifest says."""
        manifest = file = self.path / "manifest.json"
        try:
            version, files = int(self._manifest["format"]), dict(self._manifest["files"])
            if version > FORMAT:
                raise ModelError(
                    f"{manifest} is of format {version}, and this regard reads up to {FORMAT}: it was written by a "
                    "newer version. Upgrade regard to use it."
                )
            if not {"model.safetensors", "state.json"} <= set(files):
                return f"{manifest} lists no model"
            if any(Path(name).name != name for name in (*files, *self._manifest.get("tokenizers", {}))):
                return f"{manifest} is damaged: it lists a file outside the run folder"
            for name, expected in files.items():
                file = self.path / name
                if sha256(file) != expected:
                    return f"{file} is damaged: its SHA-256 is not the one in the manifest"
            file = self.path / "state.json"
            dict(self.state)
        except FileNotFoundError:
            return f"{file} is missing"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
        except (ValueError, KeyError, TypeError):
            return f"{file} is damaged"
        return None

    def see_that_tokenizers_are_those_saved(self) -> None:
        """Refuse a tokenizer other than the one that the model was trained with: its ids would mean other tokens."""
        for name, expected in self._manifest.get("tokenizers", {}).items():
            path = self.path.parent.parent / name
            try:
                same = sha256(path) == expected
            except FileNotFoundError:
                same = False
            except OSError as error:
                raise UnreadableError(path, error) from None
            if not same:
                raise ModelError(
                    f"{path} is missing, damaged or of another run: it is not the one that {self.path} was trained "
                    "with. Copy it again from where it was trained."
                )

    def see_that_tensors_are_those_saved(self) -> None:
        """Refuse a file that a careless tool wrote anew, manifest and all, naming the tensor."""
        path = self.path / "model.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
        except OSError as error:
            raise UnreadableError(path, error) from None
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged: {error}. Copy it again from where it was trained.") from None
        saved = self._manifest.get("shapes", found)
        for name in sorted(found.keys() | saved.keys()):
            if found.get(name) != saved.get(name):
                is_now = f"has the shape {tuple(found[name])}" if name in found else "is missing"
                was = f"had the shape {tuple(saved[name])}" if name in saved else "was not there"
                raise ModelError(
                    f"{path}: the tensor {name} {is_now}, and {was} when the model was saved. Copy it again from where "
                    "it was trained."
                )


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run, and what can be known of it without loading it."""

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
        """Whether there is a run here. One with links or special files in it is rejected before a file is opened."""
        if not os.path.lexists(self.config):
            return False
        reject_links(self.path)
        return True

    def settings(self) -> RunSettings:
        return resolve(RunSettings, self.config, {})

    def reject_foreign(self) -> None:
        """Raise ConfigError if there is a config.yaml here that does not belong to a run: training would replace it."""
        if self.exists():
            try:
                self.settings()
            except ConfigError as error:
                raise ConfigError(
                    f"{self.path} contains a config.yaml that this version of regard did not write, and training would "
                    f"replace it. Choose another folder with --out. The first problem: {error}"
                ) from None

    def all_checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint there is, whole or not, newest (by step) first."""
        try:
            entries = list(self.checkpoints.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UnreadableError(self.checkpoints, error) from None
        found = [entry for entry in entries if re.fullmatch(r"step-\d+", entry.name)]
        return sorted((Checkpoint(entry) for entry in found), key=lambda entry: -entry.step)

    def complete(self, without: Collection[Checkpoint] = ()) -> Iterator[Checkpoint]:
        """The checkpoints that are complete, newest first; a damaged or unreadable one is reported and skipped."""
        for checkpoint in self.all_checkpoints():
            if checkpoint in without:
                continue
            problem = checkpoint.problem()
            if problem is None:
                yield checkpoint
            else:
                log.warning("%s; the checkpoint before it is used.", problem)

    def newest(self) -> Checkpoint | None:
        return next(self.complete(), None)

    def best(self, without: Collection[Checkpoint] = ()) -> Checkpoint:
        """The checkpoint that validation chose, or the newest complete one if that is damaged."""
        newest = next(self.complete(without), None)
        if newest is None:
            damaged = [problem for entry in self.all_checkpoints() if (problem := entry.problem())]
            none = "no other checkpoint can be read" if without else "it has no checkpoint yet"
            why = f"{damaged[0]}, and no earlier checkpoint is valid" if damaged else none
            raise ModelError(f"{self.path} cannot be used: {why}. Train it (again), or copy it again.")
        chosen = newest.state.get("best", {})
        name = str(chosen.get("name") or f"step-{chosen.get('step', newest.step)}")
        best = Checkpoint(self.checkpoints / name) if re.fullmatch(r"(step|mean)-\d+", name) else newest
        if best == newest or best in without:
            return newest
        problem = best.problem()
        if problem is None:
            return best
        log.warning("%s; the newest checkpoint, step %d, is used in place of the best.", problem, newest.step)
        return newest

    def first_readable(self, chosen: Checkpoint, read: Callable[[Checkpoint], T]) -> T:
        """Read from a checkpoint or, if it cannot be read, from the best of the others."""
        tried = [chosen]
        while True:
            try:
                return read(tried[-1])
            except UnreadableError as error:
                log.warning("%s Another checkpoint is used.", error)
                tried.append(self.best(without=tried))

    def lock(self) -> AbstractContextManager[LockedFolder]:
        """Keep every other process from training here, and write to the folder."""
        return lock_folder(self.path)


def open_model(path: str | Path) -> tuple[RunFolder, Checkpoint]:
    """A folder that holds a model, and the checkpoint to use; whatever is unusable is told by name."""
    path = Path(path)
    if path.is_file():
        _refuse_pickle(path)
        raise ModelError(f"{path} is a file. A model is a folder, the one that `regard train` wrote.")
    if not path.is_dir():
        raise ModelError(f"There is no model at {path}. `regard train PRESET --out {path}` would train one.")
    folder = RunFolder(path)
    if not folder.exists():
        raise ModelError(f"{path} holds no model: there is no config.yaml in it.")
    try:
        settings = folder.settings()
    except ConfigError as error:
        raise ModelError(f"{path} cannot be used with this version of regard. {error}") from None
    names = ["tokenizer.json"] if settings.tokenizer.shared else ["tokenizer.json", "tokenizer.target.json"]
    for name in names:
        if not (path / name).is_file():
            raise ModelError(f"{path / name} is missing, and the model cannot read text without it. Copy it there.")
    return folder, folder.first_readable(folder.best(), _checked)


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint.see_that_tokenizers_are_those_saved()
    checkpoint.see_that_tensors_are_those_saved()
    return checkpoint


def open_models(path: str | Path, *others: str | Path) -> list[tuple[RunFolder, Checkpoint]]:
    """Folders whose models are to answer together: they must read and write the same tokens."""
    first, *rest = [open_model(each) for each in (path, *others)]
    for folder, _ in rest:
        _refuse_other_tokens(first[0], folder)
    return [first, *rest]


def _refuse_other_tokens(one: RunFolder, other: RunFolder) -> None:
    """Models whose tokenizers differ cannot answer together: a token of one would be another's something else."""
    ours, theirs = ({file.name: file.read_bytes() for file in run.path.glob("tokenizer*")} for run in (one, other))
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise ModelError(
                f"{other.path / name} is not that of {one.path}: models that answer together must have the same "
                "tokenizers. Train them on the same data with the same settings of the tokenizer."
            )


def locate(
    config: str | Path | Mapping[str, Any], out: str | Path | None
) -> tuple[str | Path | Mapping[str, Any], RunFolder]:
    """Where the settings stand and in which folder to train: a run trains on in its own."""
    if isinstance(config, Mapping):
        if out is None:
            raise ConfigError("Settings given as a mapping need a folder to train in: out='runs/…'.")
        return config, RunFolder(Path(out))
    path = Path(config)
    if RunFolder(path).exists():
        return RunFolder(path).config, RunFolder(Path(out) if out else path)
    return config, RunFolder(Path(out) if out else Path("runs") / path.stem)


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as handle:
        start = handle.read(4)
    if path.suffix in PICKLES or start.startswith((b"\x80", b"PK\x03\x04")):
        raise ModelError(
            f"{path} looks like a pickle, which can run any code when it is loaded, and is refused. "
            "Models are folders with safetensors files."
        )
