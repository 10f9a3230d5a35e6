"""A checkpoint on disk: whether its files are complete and undamaged, and what has changed since it was saved. No torch
here.

The predictions of a checkpoint depend on its weights, on settings in config.yaml, and on the tokenizers. The manifest
contains the settings and a hash of each part of the tokenizers, so that a later edit is noticed even if the weights
still fit. Edits without an effect on predictions are not changes: other settings, comments, the order of keys, white
space.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, conlist, create_model
from safetensors import SafetensorError, safe_open

from regard.config import MAY_CHANGE_ON_RESUME, TRAINING_ONLY, Settings
from regard.errors import ModelError
from regard.formatting import is_encodable, parse_json, quote, shorten, to_json
from regard.quantities import OptionalCount, Position
from regard.regular_files import open_regular, read_regular
from regard.runs.progress import RunProgress, Schedule, Segment
from regard.runs.settings import RunSettings
from regard.yaml_reader import read_yaml

log = logging.getLogger(__name__)

FORMAT = 2
"""The version of the layout and of the settings. Folders with another format are rejected."""

WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"

_TOKENIZER_BYTES, _BYTES_PER_TOKEN = 16_000_000, 4_000
"""Maximum size of a tokenizer file: a constant, and the bytes for each token. A larger file cannot belong to the model,
and is rejected before it is read.
"""


_MAX_HEADER_BYTES = 100_000_000
"""The maximum size of the header of a safetensors file, as in the library."""


def _is_file_name(name: str) -> bool:
    """Whether a manifest may list this name: it must not contain a folder, or characters that are invalid in names."""
    return Path(name).name == name and "\0" not in name and is_encodable(name)


def _has_described_size(file: BinaryIO) -> bool:
    """Whether the size of a safetensors file is the one that follows from its header."""
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        return False
    try:
        header = parse_json(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        described = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return False
    return bool(os.fstat(file.fileno()).st_size == described)


_Dimension = Annotated[int, Field(ge=0, le=2**40)]


class _Stored(BaseModel):
    """Values of exactly these types. Keys that another version of regard wrote are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Manifest(_Stored):
    """The hashes of the files of a checkpoint and of its tokenizers, the shapes of its weights, and the settings."""

    format: int
    files: dict[str, str] = {}
    shapes: dict[str, list[_Dimension]] = {}
    tokenizers: dict[str, str] = {}
    tokenizer_parts: dict[str, dict[str, str]] = {}
    """A hash of each part of each tokenizer. Missing in older checkpoints."""
    settings: dict[str, Any] = {}
    """The settings that predictions depend on. Missing in older checkpoints."""


class _StoredBest(_Stored):
    """The best validation: its step, and its values by the label of the metric."""

    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    step: OptionalCount | None = None
    name: str | None = None
    pairs: OptionalCount = 0
    signatures: dict[str, str] = {}


class _StoredLengths(_Stored):
    source: Position
    target: Position


def _derive_stored(declared: type[Any], **replaced: Any) -> Any:
    """Return the stored form of a dataclass: its fields, except for those that are replaced."""
    types = get_type_hints(declared, include_extras=True)
    values = {field.name: ... if field.default is MISSING else field.default for field in fields(declared)}
    declarations = {name: (types[name], value) for name, value in values.items()} | replaced
    return create_model(f"Stored{declared.__name__}", __base__=_Stored, **declarations)


_StoredSchedule = _derive_stored(Schedule, segments=(conlist(_derive_stored(Segment), min_length=1), ...))

_StoredState = _derive_stored(
    RunProgress,
    # Keys may be missing: a model of another version can be used.
    data=(dict[str, str], {}),
    schedule=(_StoredSchedule | None, None),
    best=(_StoredBest, _StoredBest()),
    average_lengths=(_StoredLengths | None, None),
)


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
        state: dict[str, Any] = parse_json(read_regular(self.path / "state.json"))
        return state

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.model_validate(parse_json(read_regular(self.path / "manifest.json")))

    @property
    def weights_hash(self) -> str:
        return self._manifest.files[WEIGHTS]

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
        """Return which file of the model is missing, unreadable or damaged; None if all files agree with the manifest.

        A model can be used without the state of the optimizer, so `find_optimizer_problem` checks it.
        """
        manifest = file = self.path / "manifest.json"
        try:
            self.check_format()
            files, tokenizers = self._manifest.files, self._manifest.tokenizers
            if not {WEIGHTS, "state.json"} <= set(files):
                return f"{manifest} lists no model"
            if not all(map(_is_file_name, (*files, *tokenizers))):
                return f"{manifest} is damaged: it lists a file with an invalid name, or outside the run folder"
            for name in files:
                problem = self._find_file_problem(name) if name != OPTIMIZER else None
                if problem is not None:
                    return problem
            file = self.path / "state.json"
            _StoredState.model_validate(self.state)
        except FileNotFoundError:
            return f"{file if self.path.is_dir() else self.path} is missing"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
        except ValueError:
            return f"{file} is damaged"
        return None

    def find_optimizer_problem(self) -> str | None:
        """Return why the state of the optimizer of a complete checkpoint cannot be used; None if it can."""
        return self._find_file_problem(OPTIMIZER)

    def _find_file_problem(self, name: str) -> str | None:
        file = self.path / name
        try:
            with open_regular(file) as handle:
                # Before hashing, because a file that is much too large takes minutes to hash, even if it is sparse.
                if file.suffix == ".safetensors" and not _has_described_size(handle):
                    return f"{file} is damaged: its size does not match its header"
                handle.seek(0)
                undamaged = hashlib.file_digest(handle, "sha256").hexdigest() == self._manifest.files.get(name)
        except FileNotFoundError:
            return f"{file} is missing"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
        return None if undamaged else f"{file} is damaged: its SHA-256 is not the one in the manifest"

    def find_changed_settings(self, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
        """Return the saved and the current value of each changed setting that predictions depend on, by dotted key.

        A setting that was not saved did not exist when the checkpoint was written, and its default has no effect. It is
        compared with its default.
        """
        saved, now = self._manifest.settings, describe_settings(settings)
        changed = {key: (value, now.get(key)) for key, value in saved.items() if now.get(key) != value}
        if changed or not saved:
            return changed
        added = (setting for setting in _flatten(settings.model, "model.") if setting.key not in saved)
        return {setting.key: (setting.default, setting.value) for setting in added if not setting.is_default}

    def find_changed_tokenizers(self) -> list[str]:
        """Return what has changed in each tokenizer since the model was saved. Raise ModelError if one is damaged."""
        changes = []
        for name, expected in self._manifest.tokenizers.items():
            path = self.path.parent.parent / name
            content = self._read_tokenizer(path)
            if hashlib.sha256(content).hexdigest() == expected:
                continue
            saved = self._manifest.tokenizer_parts.get(name)
            if saved is None:  # an older checkpoint
                changes.append(f"{name} is not the same file")
                continue
            now = hash_tokenizer_parts(content, path)
            parts = sorted(part for part in saved.keys() | now.keys() if saved.get(part) != now.get(part))
            if parts:
                changes.append(f"{name} has a different {' and '.join(shorten(part) for part in parts[:5])}")
        return changes

    def _read_tokenizer(self, path: Path) -> bytes:
        tokens = max((size for shape in self.shapes.values() for size in shape), default=0)
        try:
            if path.stat().st_size > _TOKENIZER_BYTES + _BYTES_PER_TOKEN * tokens:
                raise ModelError(
                    f"{path} is too large for a model with at most {tokens:,} tokens. Copy it again from the original "
                    "run folder."
                )
            return read_regular(path)
        except FileNotFoundError:
            raise ModelError(f"{path} is missing. Copy it from the original run folder.") from None
        except OSError as error:
            raise UnreadableError(path, error) from None

    def check_unchanged(self, read_settings: Callable[[], RunSettings], *, accept_changes: bool = False) -> None:
        """Raise ModelError if settings or tokenizers that predictions depend on have changed since the model was saved:
        the weights were not trained for them. If changes are accepted, log a warning instead.

        The settings are not read if only a tokenizer has changed, because this imports torch.
        """
        run = self.path.parent.parent
        changes = self.find_changed_tokenizers()
        if not changes or not contains_settings(read_yaml(run / "config.yaml")[0], self._manifest.settings):
            changed = self.find_changed_settings(read_settings())
            changes = [*([list_differences(changed)] if changed else []), *changes]
        if not changes:
            return
        edited = f"{run} has been edited since its model was saved: {'; '.join(changes)}."
        if not accept_changes:
            raise ModelError(
                f"{edited} Copy config.yaml and the tokenizers again from the original run folder. To use the edited "
                "model, pass --accept-changes. In Python, use regard.load(…, accept_changes=True), or the setting "
                "training.accept_changes in regard.train."
            )
        log.warning("%s The changes are accepted.", edited)

    def check_shapes(self) -> None:
        """Raise ModelError, with the name of the tensor, if a shape differs from the manifest.

        This detects a file that another tool has replaced together with its hash in the manifest.
        """
        path = self.path / WEIGHTS
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


_NO_EFFECT = (MAY_CHANGE_ON_RESUME, TRAINING_ONLY)


def describe_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that predictions depend on, by dotted key.

    Of the tokenizer settings, only `shared` is included: tokenizer.json contains everything else.
    """
    described = {setting.key: setting.value for setting in _flatten(settings.model, "model.")}
    return {**described, "tokenizer.shared": settings.tokenizer.shared}


class _Setting(NamedTuple):
    """A setting with its dotted key, its value as JSON, and its default."""

    key: str
    value: Any
    default: Any
    is_default: bool


def _flatten(settings: Settings, prefix: str) -> Iterator[_Setting]:
    dumped = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if field.json_schema_extra in _NO_EFFECT:
            continue
        if isinstance(value, Settings):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield _Setting(f"{prefix}{name}", dumped[name], default, value == default)


def contains_settings(tree: Any, saved: Mapping[str, Any]) -> bool:
    """Whether the content of config.yaml contains the saved settings, each in its place."""
    for key, value in saved.items():
        node = tree
        for name in key.split("."):
            node = node.get(name, _MISSING) if isinstance(node, dict) else _MISSING
        if node != value:
            return False
    return True


_MISSING = object()


def list_differences(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Format changed settings for a message: `seed was 0 and is now 1; …`."""
    return "; ".join(f"{key} was {quote(old)} and is now {quote(new)}" for key, (old, new) in changed.items())


@lru_cache(maxsize=4)
def hash_tokenizer_parts(content: bytes, path: Path) -> Mapping[str, str]:
    """Return a hash of each part of a tokenizer file, which does not depend on white space and the order of keys.

    Raise ModelError if the content is not valid.
    """
    try:
        document = parse_json(content)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        parts: dict[str, Any] = {}
        for name, part in document.items():
            nested = name == "model" and isinstance(part, dict)
            parts |= {f"{name}.{key}": value for key, value in part.items()} if nested else {name: part}
        canonical = {name: to_json(part, sort_keys=True) for name, part in parts.items()}
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelError(f"{path} is damaged: {problem}. Copy it again from the original run folder.") from None
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in canonical.items()}
