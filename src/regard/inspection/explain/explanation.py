"""Explain a model: what it computes, what that costs, which implementation each part uses, and why not a faster one."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.arguments import check_integer, check_type
from regard.config import resolve
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import check_output_folder, check_path
from regard.formatting import format_bytes, format_count, table
from regard.inspection.explain import cost as costs
from regard.inspection.explain.cost import Lengths, ModelCost, compute_cost
from regard.inspection.explain.cost_plot import Measurement, draw_cost
from regard.inspection.explain.kernels import describe_kernels
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import TEXT, ModelSettings
from regard.ops.cost import Cost
from regard.registry import import_plugins
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, check_overrides

DEFAULT_LENGTH = 25
"""The length of a source and of a target, unless it is given or the run has recorded those of its data."""

ASSUMED_VOCABULARY = 1000
"""The vocabulary size that is assumed before the data is read."""


@dataclass(frozen=True)
class Vocabularies:
    """The number of source and target tokens. They are assumed if they are known only after the data is read."""

    source: int
    target: int
    assumed: bool


@dataclass(frozen=True)
class Explanation:
    """What a model computes and costs. `print` shows it as text.

    Attributes:
        settings: The settings of the model.
        vocabularies: The sizes of its vocabularies.
        lengths: The lengths at which formulas are evaluated.
        lengths_origin: Where the lengths come from, in words.
    """

    settings: ModelSettings
    vocabularies: Vocabularies
    lengths: Lengths
    lengths_origin: str = ""

    @cached_property
    def model(self) -> Seq2Seq:
        """The model, without memory for its weights."""
        with torch.device("meta"):
            return build_model(self.settings, self.vocabularies.source, self.vocabularies.target)

    @cached_property
    def cost(self) -> ModelCost:
        """The cost of the model, as formulas."""
        return compute_cost(self.model)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Explanation of {self.settings.architecture}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text())}</pre>"

    def to_text(self) -> str:
        """Return the cost and the implementations as text."""
        sections = [
            self._header(),
            self._multiply_adds(),
            self._growth(),
            self._decoding(),
            *([self._attention_weights()] if self.cost.weights else []),
            self._memory(),
            *describe_kernels(self.model),
        ]
        return "\n\n".join(sections)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a dictionary, for programs."""
        return {
            "architecture": self.settings.architecture,
            "parameters": self.cost.parameters,
            "vocabularies": vars(self.vocabularies),
            **costs.to_json(self.cost, self.lengths),
            "kernels": describe_kernels(self.model),
        }

    def plot(self, path: str | Path) -> Measurement:
        """Measure the time of a forward pass at several lengths, and draw it with the predicted multiply-adds.

        Args:
            path: An .svg, .png or .pdf file.

        Returns:
            The lengths, the times in seconds, and the number of threads.

        Raises:
            ConfigError: The path has another extension, its folder does not exist, or the cost of the model is unknown.
            ArgumentTypeError: The argument is not a path.

        >>> regard.explain("dates").plot("cost.svg").seconds
        """
        path = check_path(path)
        check_output_folder(path)
        return draw_cost(self.settings, (self.vocabularies.source, self.vocabularies.target), self.cost, path)

    def _header(self) -> str:
        sizes, is_text = self.vocabularies, self.settings.source_kind == TEXT
        source = f"{sizes.source:,} source and " if is_text else ""
        assumed = " (assumed: they are known when the data is read)" if sizes.assumed else ""
        tokens = f"{self.cost.parameters:,} parameters, {source}{sizes.target:,} target tokens{assumed}"
        return f"{self.settings.kind} model: {self.settings.architecture}\n{tokens}"

    @property
    def _at(self) -> str:
        """The lengths of the values, as a column header."""
        if self.cost.fixed_slots is not None:
            return f"T = {self.lengths.target:,}"
        return f"S = {self.lengths.source:,}, T = {self.lengths.target:,}"

    def _multiply_adds(self) -> str:
        cost, total = self.cost, self.cost.forward(*self.lengths)
        rows: list[list[str]] = []
        for side in ("encoder", "decoder"):
            rows.append([side, "", "", "", ""])
            for part in (part for part in cost.parts if part.side == side):
                value = part.forward(*self.lengths)
                parameters = "tied" if part.tied and not part.parameters else f"{part.parameters:,}"
                rows.append([f"  {part.label}", parameters, str(part.forward), *self._value_and_share(value, total)])
        rows.append(["total", f"{cost.parameters:,}", str(cost.forward), *self._value_and_share(total, total)])
        header = ["part", "parameters", "multiply-adds", self._at, "share"]
        return f"Forward pass of one pair{self._symbols()}\n\n{table(header, rows)}\n\n{_CONVENTION}"

    def _value_and_share(self, value: float, total: float) -> list[str]:
        known = total > 0  # not if it is NaN
        return [_format(value), f"{100 * value / total:.1f} %" if known and value > 0 else ""]

    def _symbols(self) -> str:
        origin = f" ({self.lengths_origin})" if self.lengths_origin else ""
        if self.cost.fixed_slots is None:
            return f": S source positions, T target steps{origin}"
        return f": {self.cost.fixed_slots:,} source positions, T target steps{origin}"

    def _growth(self) -> str:
        cost, forward = self.cost, self.cost.forward
        if not forward.is_known:
            return "Growth with the lengths: unknown"
        quadratic = forward.attention_terms
        rest = forward - quadratic
        if not quadratic.terms:
            reason = "the number of source positions is fixed" if cost.fixed_slots else "there is no attention"
            return f"Growth: {cost.growth}, linear in the lengths, because {reason}"
        share = 100 * quadratic(*self.lengths) / forward(*self.lengths)
        lengths = "T" if cost.fixed_slots else "S = T"
        return (
            f"Growth: {cost.growth} with attention, {costs.describe_growth(rest)} without its terms of degree 2\n"
            f"  terms of degree 2: {quadratic}, {share:.2g} % at {self._at}\n"
            f"  crossover: they exceed all other terms from {lengths} = {cost.crossover:,} on"
        )

    def _decoding(self) -> str:
        search = self.cost.search
        rows = []
        for beam in dict.fromkeys((1, self.lengths.beam)):
            name = "greedy" if beam == 1 else f"beam of {beam}"
            rows.append([name, str(search.with_beam(beam)), _format(search(*self.lengths[:2], beam))])
        return f"Decoding\n\n{table(['search', 'multiply-adds', self._at], rows)}"

    def _attention_weights(self) -> str:
        rows = [
            [
                weights.role,
                f"{weights.attentions:,}",
                f"{weights.heads:,}",
                str(weights.computed),
                _format(weights.computed(*self.lengths)),
                str(weights.visible),
                _format(weights.count_visible(self.lengths)),
            ]
            for weights in self.cost.weights
        ]
        header = ["role", "layers", "heads in total", "computed", self._at, "visible, at most", self._at]
        return f"Attention weights of a forward pass\n\n{table(header, rows)}"

    def _memory(self) -> str:
        memory, lengths = self.cost.memory, self.lengths
        beam = lengths.beam
        per_hypothesis = f"for each of {beam} hypotheses" if beam > 1 else "for each hypothesis"
        rows = [
            ["parameters", "", format_bytes(memory.parameters), ""],
            ["parameters, gradients, Adam", "", format_bytes(memory.training), "in training"],
            _memory_row("activations", memory.activations, lengths, "for each pair of a batch in training"),
            _memory_row("keys", memory.keys, lengths, "for each source while decoding"),
            _memory_row("state", memory.state, lengths, f"{per_hypothesis} while decoding"),
        ]
        return f"Memory in float32\n\n{table(['what', 'formula', self._at, ''], rows)}"


_CONVENTION = (
    "Multiply-adds of matrix products, convolutions and additive scores; elementwise operations are not counted.\n"
    "A training step costs about three times as much: the backward pass computes two products for each one."
)


def _memory_row(name: str, cost: Cost, lengths: Lengths, note: str) -> list[str]:
    value = cost(*lengths)
    return [name, cost.format(format_bytes), format_bytes(value) if cost.is_known else "unknown", note]


def _format(value: float) -> str:
    return format_count(value) if value == value else "unknown"


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
        beam: The beam size.
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
    check_type("config", config, str | Path | Mapping, "a name, a path or a mapping")
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
