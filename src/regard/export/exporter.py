"""The interface of exporters, and how their output is written: complete, or not at all."""

import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.config import to_yaml
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ConfigError
from regard.evaluation.settings import MetricValues
from regard.models.seq2seq import Seq2Seq
from regard.models.settings import ModelSettings, TransformerModel
from regard.runs.folder import RunFolder, local_folder
from regard.runs.settings import RunSettings
from regard.urls import is_url

_MIN_POSITIONS = 1024


@dataclass(frozen=True)
class TrainedModel:
    """What an exporter reads: a network with its settings and tokenizers, and how it was trained."""

    settings: RunSettings
    network: Seq2Seq
    tokenizers: TokenizerPair
    step: int
    scores: MetricValues | None = None
    """The validation metrics of the weights; None if they are not known."""
    run: RunFolder | None = None
    """The folder that the model was loaded from; None if it is not known."""
    members: int = 1
    """The number of models in an ensemble; 1 otherwise."""


class Exporter(ABC):
    """Writes models in one format. The parameters of the constructor are options."""

    writes_file: ClassVar[bool] = False
    """Whether the format is one file instead of a folder."""

    @abstractmethod
    def find_obstacle(self, model: TrainedModel) -> str | None:
        """Return why the format cannot express a model, with the nearest setting that can be expressed; None if it can.

        The text completes the sentence "The model cannot be exported to …: ".
        """

    @abstractmethod
    def write(self, model: TrainedModel, path: Path) -> None:
        """Write a model that can be expressed to an empty folder or, if the format is one file, to a new file."""


def find_transformer_obstacles(model: ModelSettings, supported: Mapping[str, str | None]) -> Iterator[str]:
    """Yield each part of a model that a format for Transformers does not have, with the nearest value that it has.

    `supported` are the settings with one supported value. Scores are scaled dot products, and feed-forward networks
    have no gates.
    """
    if not isinstance(model, TransformerModel):
        yield f"a model of the kind {model.kind} is not a Transformer. Train one with model=transformer."
        return
    if model.encoder is not None:
        yield f"model.encoder={model.encoder.kind} cannot be expressed. Use model.encoder=null."
    values = {name: getattr(model, name) for name in supported}
    values |= {name: getattr(model, name).kind for name in _SCORES}
    nearest = {**supported, **dict.fromkeys(_SCORES, "scaled_dot")}
    if model.activation == "swiglu":
        values, nearest = {**values, "activation": "swiglu"}, {**nearest, "activation": "silu"}
    for name, value in values.items():
        if value != nearest[name]:
            yield f"model.{name}={value} cannot be expressed. The nearest is model.{name}={nearest[name] or 'null'}."


_SCORES = ("encoder_score", "self_score", "cross_score")


def count_positions(settings: RunSettings) -> int:
    """Return the maximum number of tokens of a source or a prediction in an exported Transformer."""
    return max(_MIN_POSITIONS, 2 * settings.tokenizer.max_length)


def describe_training(model: TrainedModel) -> str:
    """Return the part of a model card that all formats share: architecture, metrics, data and settings."""
    settings, scores = model.settings, model.scores
    values = "not known" if scores is None else scores.describe(settings.training.metric)
    signatures = "" if scores is None else "".join(f"- {name}: `{text}`\n" for name, text in scores.signatures.items())
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    # Folders of this machine are not published. A description of a preset need not be true of a model.
    published = settings.map_paths(lambda path: path if is_url(path) else Path(path).name)
    published = published.model_copy(update={"about": ""})
    return f"""| | |
|---|---|
| architecture | {settings.model.architecture} |
| parameters | {parameters:,} |
| training steps | {model.step:,} |
| validation | {values} |
| data | {settings.data.kind} |

{signatures}
## Settings

```yaml
{to_yaml(published)}```
"""


def export_model(model: TrainedModel, exporter: Exporter, name: str, out: str | Path) -> Path:
    """Write a model to a new folder or file in the format of an exporter, and return its path.

    Raise ConfigError, before anything is written, if the format cannot express the model.
    """
    obstacle = exporter.find_obstacle(model)
    if obstacle is not None:
        raise ConfigError(f"The model cannot be exported to {name}: {obstacle}")
    with write_draft(out, is_file=exporter.writes_file) as draft:
        exporter.write(model, draft)
    return Path(out)


@contextmanager
def write_draft(out: str | Path, *, is_file: bool = False) -> Iterator[Path]:
    """Yield an empty folder, which is renamed to `out` at the end, and removed if the block raises an exception.

    With `is_file`, yield the path of a file in such a folder instead, and rename the file. Raise ConfigError if `out`
    exists and is not an empty folder.
    """
    path = local_folder(out).absolute()
    if os.path.lexists(path) and (is_file or path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        remedy = "Choose another path with --out, or remove it."
        raise ConfigError(f"{out} exists already, and is not replaced. {remedy}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{out} cannot be written: {path.parent} is not a folder. Choose another path.") from None
    folder = path.parent / f".{path.name}-{secrets.token_hex(4)}"
    folder.mkdir()
    draft = folder / path.name if is_file else folder
    try:
        yield draft
        os.replace(draft, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
