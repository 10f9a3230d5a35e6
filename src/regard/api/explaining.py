"""Explain a model from Python: what it computes and costs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.arguments import check_integer
from regard.config import resolve
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ArgumentTypeError
from regard.inspection.explain.cost import Lengths
from regard.inspection.explain.explanation import Explanation, Vocabularies
from regard.registry import import_plugins
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, check_overrides

DEFAULT_LENGTH = 25
"""The length of a source and of a target, unless it is given or the run has recorded those of its data."""

ASSUMED_VOCABULARY = 1000
"""The number of tokens of a config, which is known only after the data is read."""


class _AverageLengths(NamedTuple):
    source: int
    target: int
    origin: str


def explain(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    source: int | None = None,
    target: int | None = None,
    beam: int = 1,
    imports: str | Iterable[str] = (),
) -> Explanation:
    """Explain what a model computes, what that costs, and which implementations it uses. No weights are allocated.

    Args:
        config: The name of a preset, the path of a YAML file or of a run folder, or a mapping of settings. For a run,
            the vocabulary sizes are those of its tokenizers; otherwise, 1,000 tokens are assumed.
        overrides: Settings, with dotted names, that replace those of `config`.
        source: The number of source positions at which formulas are evaluated. By default, the average of the training
            data of a run, otherwise 25.
        target: The number of target steps, including the end token. The default is as for `source`.
        beam: The size of the beam.
        imports: Plugins to import: modules or .py files that register parts, such as scores and cells.

    Returns:
        The explanation. `print` shows it; `.cost` contains the formulas, `.to_json()` returns everything for programs.

    Raises:
        ConfigError: A setting is unknown or out of range.
        ModelError: The run folder cannot be used.
        ArgumentTypeError: An argument has the wrong type.

    >>> print(regard.explain("dates", {"model.attention": "luong-general"}, source=50, target=50))
    >>> regard.explain("runs/dates").cost.forward(source=25, target=11)
    """
    import_plugins(imports)
    if not isinstance(config, str | Path | Mapping):
        raise ArgumentTypeError(f"config must be a name, a path or a mapping, not {type(config).__name__}.")
    for name, length in (("source", source), ("target", target), ("beam", beam)):
        if length is not None or name == "beam":
            check_integer(name, length)
    overrides = check_overrides({} if overrides is None else overrides)
    folder = None if isinstance(config, Mapping) else RunFolder(Path(config))
    if folder is None or not folder.exists():
        settings = resolve(RunSettings, config, overrides)
        vocabularies = Vocabularies(ASSUMED_VOCABULARY, ASSUMED_VOCABULARY, assumed=True)
        average = _AverageLengths(DEFAULT_LENGTH, DEFAULT_LENGTH, "")
    else:
        settings = resolve(RunSettings, folder.settings().model_dump(mode="json"), overrides)
        vocabularies, average = _read_vocabularies(folder), _read_lengths(folder)
    origin = "" if source or target else average.origin
    lengths = Lengths(source or average.source, target or average.target, beam)
    return Explanation(settings.model, vocabularies, lengths, origin)


def _read_vocabularies(folder: RunFolder) -> Vocabularies:
    """Return the vocabulary sizes of a run; assumed ones if it has not written its tokenizers yet."""
    if not (folder.path / "tokenizer.json").is_file():
        return Vocabularies(ASSUMED_VOCABULARY, ASSUMED_VOCABULARY, assumed=True)
    tokenizers = TokenizerPair.load(folder.path, folder.settings().tokenizer)
    return Vocabularies(len(tokenizers.source), len(tokenizers.target), assumed=False)


def _read_lengths(folder: RunFolder) -> _AverageLengths:
    """Return the average lengths of the training data, which a run records when it starts."""
    checkpoint = folder.newest()
    average = None if checkpoint is None else checkpoint.state.get("average_lengths")
    if average is None:
        return _AverageLengths(DEFAULT_LENGTH, DEFAULT_LENGTH, "")
    source, target = (max(1, round(average[side])) for side in ("source", "target"))
    return _AverageLengths(source, target, "averages of the training data")
