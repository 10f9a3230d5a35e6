"""Model: predict, score, trace, explain and evaluate with a trained model."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, Unpack, final, get_args, overload

import torch
from numpy.typing import NDArray

from regard.arguments import (
    check_device,
    check_dtype,
    check_flag,
    check_integer,
    check_list,
    check_metrics,
    check_references,
    check_text,
    check_texts,
    check_type,
)
from regard.config import resolve
from regard.data.corpora import Pairs, RawSource
from regard.data.source_readers import TextReader
from regard.data.sources import SourceReader, check_items, check_source, check_sources
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.constraints import describe_search, parse_search
from regard.decoding.edits import Edit, TraceTask, apply_edits, check_steps, describe_edit, parse_edits
from regard.decoding.engine import Engine, Request
from regard.decoding.forced import force_targets
from regard.decoding.predictor import Predictor
from regard.decoding.settings import (
    CONSTRAINTS,
    EngineName,
    Precision,
    PredictionOptions,
    SearchOptions,
    SearchSettings,
    check_search,
)
from regard.decoding.tracing import TraceOptions
from regard.engines.choice import build_engines, choose_engine
from regard.errors import ArgumentTypeError, ConfigError, ModelError, check_choice
from regard.evaluation.aligner import Aligner, Pair, choose_unit
from regard.evaluation.alignment import (
    SYMMETRIZATIONS,
    AlignmentOptions,
    AlignmentSettings,
    Symmetrization,
    WordAlignment,
)
from regard.evaluation.metrics import EvaluationSet, warn_if_tokenized
from regard.evaluation.settings import MetricValues, parse_metrics
from regard.evaluation.validation import Evaluation, evaluate
from regard.export.exporter import TrainedModel, export_model
from regard.export.settings import parse_target
from regard.formatting import quantity
from regard.inspection.attribution.attribution import Attribution
from regard.inspection.attribution.heads import HeadEffects, ablate_heads
from regard.inspection.attribution.methods import AttributionRequest, Contrast, attribute_target
from regard.inspection.attribution.settings import Baseline, Method
from regard.inspection.prediction import Prediction
from regard.inspection.trace.trace import Trace, compare_predictions
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq
from regard.ops.int8 import find_int8_obstacle, has_int8_weights, quantize_weights, restore_weights
from regard.registry import import_plugins
from regard.runs import checkpoints
from regard.runs.folder import RunFolder, open_models
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import Checkpoint
from regard.version import __version__


class ArrayInterface(Protocol):
    """What numpy can read as an array: an array, or a Pillow image."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


OneSource = str | Path | NDArray[Any] | ArrayInterface
"""A source: a text; or what another kind of encoder reads: the name of a file, an array, or a Pillow image."""


@final
class Model:
    """A trained model with its tokenizers. Load one with `regard.load`.

    A loaded model is in evaluation mode. `predict`, `score`, `trace` and `evaluate` always compute in evaluation mode,
    and restore the mode afterwards.

    Attributes:
        predictor: The torch module with its tokenizers.
        settings: The settings of the run.
        step: The training step of the weights.
        scores: The validation metrics of the weights; None if they are not known.
        members: The number of models in an ensemble; 1 otherwise.
        run: The folder that the model was loaded from; None for an ensemble.
    """

    def __init__(
        self,
        predictor: Predictor,
        settings: RunSettings,
        step: int,
        scores: MetricValues | None = None,
        members: int = 1,
        run: RunFolder | None = None,
    ) -> None:
        self.predictor = predictor
        self.settings = settings
        self.step = step
        self.scores = scores
        self.members = members
        self.run = run
        self._engines: dict[Precision, dict[str, Engine]] = {}

    @classmethod
    def from_checkpoint(cls, folder: RunFolder, checkpoint: Checkpoint, device: str | torch.device = "auto") -> "Model":
        """Load the model of a checkpoint, by default on a GPU if there is one."""
        settings, reader, tokenizers, model, loaded = checkpoints.load_model(folder, checkpoint)
        model = model.to(check_device(device)).eval()
        max_length = settings.tokenizer.max_length
        predictor = Predictor(model, reader, tokenizers.target, settings.decoding, max_length)
        best = loaded.state.get("best") or {}
        scores = MetricValues.from_json(best) if best.get("step") == loaded.step else None
        return cls(predictor, settings, loaded.step, scores, run=folder)

    @classmethod
    def from_checkpoints(
        cls, located: Sequence[tuple[RunFolder, Checkpoint]], device: str | torch.device = "auto"
    ) -> "Model":
        """Load the model of a checkpoint, or an ensemble of several with the settings of the first."""
        models = [cls.from_checkpoint(folder, checkpoint, device) for folder, checkpoint in located]
        if len(models) == 1:
            return models[0]
        for (folder, _), model in zip(located, models, strict=True):
            if not models[0].predictor.reader.is_compatible(model.predictor.reader):
                raise ModelError(
                    f"{folder.path} reads another kind of source than {located[0][0].path}, or preprocesses sources "
                    "differently. The models of an ensemble must use the same kind of source and the same "
                    "preprocessing."
                )
        shortest = min((model.predictor for model in models), key=lambda predictor: predictor.max_length)
        predictor = replace(
            models[0].predictor,
            model=ensemble([model.network for model in models]).eval(),
            reader=shortest.reader,
            max_length=shortest.max_length,
        )
        return cls(predictor, models[0].settings, models[0].step, members=len(models))

    def __repr__(self) -> str:
        return format_summary("Model", self._summarize())

    def _repr_html_(self) -> str:
        return summary_to_html("regard.Model", self._summarize())

    def _summarize(self) -> dict[str, str]:
        """Return the architecture, the size and the training of the model, as text by name."""
        reader, tokenizer = self.predictor.reader, self.predictor.tokenizer
        source_tokens = "" if reader.vocabulary_size is None else f"{reader.vocabulary_size:,} source tokens, "
        prefix = f"ensemble of {self.members} models, the first: " if self.members > 1 else ""
        summary = {
            "architecture": prefix + self.settings.model.architecture,
            "parameters": f"{sum(parameter.numel() for parameter in self.network.parameters()):,}",
            "vocabulary": f"{source_tokens}{len(tokenizer):,} target tokens",
            "step": f"{self.step:,}",
            "device": str(self.device),
        }
        if self.dtype != torch.float32:
            summary["dtype"] = str(self.dtype).removeprefix("torch.")
        if self.scores is not None:
            summary["validation"] = self.scores.describe(self.settings.training.metric)
        return summary

    @property
    def network(self) -> Seq2Seq:
        """The torch module, for use in PyTorch code: to inspect or change weights, register hooks, record attention.

        >>> sum(parameter.numel() for parameter in model.network.parameters())
        """
        return self.predictor.model

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the modules of `network` with their names, so that `regard.record(model)` works.

        >>> with regard.record(model) as recording:
        ...     model.predict("3 mai 2009")
        """
        yield from self.network.named_modules()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.predictor.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights. It is int8 if matrix products are computed in int8."""
        return torch.int8 if has_int8_weights(self.network) else self.predictor.dtype

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the model to a device, convert it to a dtype, or both, like `torch.nn.Module.to`.

        With dtype int8, large matrix products are computed in int8, on a CPU; all other operations use float32. An int8
        model has no gradients, and ignores later changes to its weights. Convert it to another dtype to undo this.

        Args:
            device: "cpu", "cuda", "cuda:1" or a `torch.device`. By default, unchanged.
            dtype: "float32", "float64", "bfloat16", "float16", "int8" or a `torch.dtype`. By default, unchanged.

        Returns:
            The model itself.

        Raises:
            ConfigError: The device or the dtype is not supported, or int8 requires packages that are not installed.
            ArgumentTypeError: An argument has the wrong type.

        >>> model.to("cpu").to(dtype="float64").predict("3 mai 2009")
        """
        place = None if device is None else check_device(device)
        kind = None if dtype is None else check_dtype(dtype)
        if torch.int8 in (kind, self.dtype) and kind in (None, torch.int8):
            obstacle = find_int8_obstacle(place or self.device)
            if obstacle is not None:
                raise ConfigError(obstacle)
            self.network.to(place, torch.float32)
            quantize_weights(self.network)
            return self
        restore_weights(self.network)
        self.network.to(device=place, dtype=kind)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set `network` to training mode, in which dropout is active, or to evaluation mode. Return the model itself.

        This matters for code that calls `network`. The methods of this class compute in evaluation mode in any case. To
        train a model, use `regard.train`.

        >>> model.train().network.training
        """
        self.network.train(check_flag("mode", mode))
        return self

    def eval(self) -> Self:
        """Set `network` to evaluation mode, which a loaded model has already. Return the model itself.

        >>> model.eval().network.training
        """
        return self.train(mode=False)

    @overload
    def predict(  # type: ignore[overload-overlap] # a str is a sequence of str
        self,
        source: OneSource,
        *,
        batch_size: int | None = None,
        attention: bool = True,
        first_index: int = 0,
        engine: EngineName = "torch",
        precision: Precision = "float32",
        **search: Unpack[PredictionOptions],
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        source: Sequence[OneSource],
        *,
        batch_size: int | None = None,
        attention: bool = True,
        first_index: int = 0,
        engine: EngineName = "torch",
        precision: Precision = "float32",
        **search: Unpack[PredictionOptions],
    ) -> list[Prediction]: ...

    def predict(
        self,
        source: OneSource | Sequence[OneSource],
        *,
        batch_size: int | None = None,
        attention: bool = True,
        first_index: int = 0,
        engine: EngineName = "torch",
        precision: Precision = "float32",
        **search: Unpack[PredictionOptions],
    ) -> Prediction | list[Prediction]:
        """Predict the output for a text, or for each text of a list.

        Args:
            source: A text, or a list of texts. If the encoder reads another kind of source, a source of this kind, for
                example a file name or an array, or a list of them.
            batch_size: The maximum number of texts that are processed together. By default 64 and, on a GPU without
                `attention`, as many as its memory holds easily.
            attention: Whether to record attention weights. Without them, prediction is faster.
            first_index: The index of the first text in the complete list, if a list is predicted in parts. A sample
                depends on the seed and the index of its text, and not on `batch_size` or the other texts.
            engine: What computes the predictions: "torch", "ct2" (CTranslate2), "onnx" (ONNX Runtime), or "auto" for
                the fastest engine that returns the same text as torch. "auto" never uses "onnx", because converting the
                model takes several seconds. "ct2" and "onnx" require `attention=False`.
            precision: "float32", or "int8" for quantized weights, on a CPU. torch computes only large matrix products
                in int8.
            search: Settings of the search (`beam=5`; `sample=True, temperature=0.7`; see `regard.decoding.settings`)
                and constraints. A prediction starts with `prefix`, contains the phrases in `must_contain`, and does not
                contain the phrases in `banned`. For a list of texts, `prefix` and `must_contain` are lists with an item
                for each text.

        Returns:
            The best prediction, or a list with the best prediction for each text. If `nbest` is above 1, its
            `alternatives` are the other predictions for the same text.

        Raises:
            ConfigError: A search setting is unknown or out of range, or a constraint cannot be satisfied; or the engine
                does not support the model or what is requested.
            ArgumentTypeError: A text is not a str.

        >>> model.predict("3 mai 2009", beam=5, nbest=3, banned=["1999"]).alternatives
        >>> model.predict(["3 mai 2009", "May 3, 2009"], prefix=["20", ""])
        """
        check_search(search, CONSTRAINTS)
        if batch_size is not None:
            check_integer("batch_size", batch_size)
        check_flag("attention", attention)
        check_integer("first_index", first_index, minimum=0)
        predictor = self.predictor
        sources, single = check_sources(source, predictor.reader)
        options, constraints = parse_search(search, None if single else len(sources))
        chosen = self.choose_engine(engine, Request(options, bool(constraints), attention, precision))
        items = predictor.reader.read(sources)
        indices = range(first_index, first_index + len(items))
        hypotheses = chosen.predict(
            items, options, constraints, batch_size=batch_size, attention=attention, indices=indices
        )
        tokenizer, roles = predictor.tokenizer, predictor.attention_roles
        predictions = [
            Prediction.from_nbest(item, nbest, tokenizer, roles, self.members)
            for item, nbest in zip(items, hypotheses, strict=True)
        ]
        return predictions[0] if single else predictions

    @overload
    def score(  # type: ignore[overload-overlap] # a str is a sequence of str
        self, source: OneSource, target: str, *, batch_size: int = 64
    ) -> float: ...

    @overload
    def score(self, source: Sequence[OneSource], target: Sequence[str], *, batch_size: int = 64) -> list[float]: ...

    def score(
        self, source: OneSource | Sequence[OneSource], target: str | Sequence[str], *, batch_size: int = 64
    ) -> float | list[float]:
        """Return log p(target | source) of a pair of texts, or of each pair of two lists.

        Args:
            source: A text, or a list of texts.
            target: A text, or a list with a text for each source.
            batch_size: The maximum number of pairs that are processed together. Batches of long pairs are smaller, so
                that memory use is bounded.

        Returns:
            The log-probability, or a list with that of each pair.

        Raises:
            ConfigError: There is not one target for each source.
            ArgumentTypeError: A text is not a str.

        >>> model.score("3 mai 2009", "2009-05-03")
        """
        check_integer("batch_size", batch_size)
        sources, targets, single = _check_sources_and_targets(source, target, self.predictor.reader)
        scores = self.predictor.score(sources, targets, batch_size=batch_size)
        return scores[0] if single else scores

    def force(self, sources: Sequence[OneSource], targets: Sequence[str]) -> list[Prediction]:
        """Return given targets as predictions, with their log-probabilities and attention weights (forced decoding).

        Args:
            sources: A list of texts, or of other sources of the model.
            targets: A list with a text for each source.

        Raises:
            ConfigError: There is not one target for each source.
            ArgumentTypeError: A text is not a str.

        >>> print(model.force(["3 mai 2009"], ["2009-05-03"])[0])
        """
        given, texts, _ = _check_sources_and_targets(sources, targets, self.predictor.reader)
        items, hypotheses = force_targets(self.predictor, given, texts)
        tokenizer, roles = self.predictor.tokenizer, self.predictor.attention_roles
        return [
            Prediction.from_nbest(item, [one], tokenizer, roles, self.members)
            for item, one in zip(items, hypotheses, strict=True)
        ]

    def trace(
        self,
        source: OneSource,
        target: str | None = None,
        *,
        queries: bool = False,
        states: bool = False,
        candidates: int = 10,
        edits: Sequence[Edit | Mapping[str, Any]] = (),
        **search: Unpack[PredictionOptions],
    ) -> Trace:
        """Predict the output for a text, and return it with all attention weights and how it was computed.

        Args:
            source: A text, or another source of the model.
            target: A text to trace instead of the prediction (forced decoding).
            queries: Whether to record everything that the weights are computed from: queries, keys, values, scores,
                masks and parameters.
            states: Whether to record the states and gates of recurrent layers.
            candidates: The number of most likely tokens that are listed at each step.
            edits: Changes to the source, attention weights or tokens, with which the model decodes again: mappings
                such as {"kind": "force_token", "step": 0, "token": "2"}, or objects of `regard.decoding.edits`.
            search: Settings of the search and constraints, as for `predict`.

        Returns:
            The trace.

        Raises:
            ConfigError: A search setting is unknown or out of range, or is combined with a target. An edit is unknown,
                or refers to a step, head, key or position that does not exist.
            ArgumentTypeError: The source or another argument has the wrong type.

        >>> model.trace("3 mai 2009", beam=5).save("trace.html")
        >>> model.trace("3 mai 2009", queries=True, states=True).states[0].gates
        >>> model.trace("3 mai 2009", "2009-05-03").steps[0]
        >>> model.trace("3 mai 2009", edits=[{"kind": "replace_source", "position": 1, "text": "juin"}]).changes
        """
        check_search(search, CONSTRAINTS)
        request = TraceOptions(
            check_integer("candidates", candidates), check_flag("queries", queries), check_flag("states", states)
        )
        parsed = parse_edits(edits)
        predictor = self.predictor
        check_source(source, predictor.reader)
        [item] = predictor.reader.read([source])
        if target is None:
            options, constraints = parse_search(search)
            task = TraceTask(item, options, constraints)
            settings = describe_search(options, constraints)
        else:
            settings = {"target": _check_target(target, search, "traced")}
            task = TraceTask(item, target=target)
        if not parsed:
            return self._trace(task, request, settings)
        edited = self._trace(apply_edits(predictor, task, parsed), request, settings)
        # Only the prediction and its weights are compared.
        before = self._trace(task, TraceOptions(candidates=1), settings)
        check_steps(predictor, parsed, max(_longest(before), _longest(edited)))
        changes = compare_predictions(before.prediction, edited.prediction)
        return replace(edited, edits=list(map(describe_edit, parsed)), changes=changes)

    def _trace(self, task: TraceTask, request: TraceOptions, search: dict[str, Any]) -> Trace:
        traced = task.trace(self.predictor, request)
        description = {
            "architecture": self.settings.model.architecture,
            "members": self.members,
            "step": self.step,
            "dtype": str(self.dtype).removeprefix("torch."),
            "version": __version__,
            "settings": self.settings.model.model_dump(mode="json"),
        }
        roles = {name: mechanism.role for name, mechanism in traced.mechanisms.items()}
        prediction = Prediction.from_nbest(task.item, traced.nbest, self.predictor.tokenizer, roles, self.members)
        return Trace(prediction, description, "smooth", search, *traced[1:])

    def attribute(
        self,
        source: OneSource,
        target: str | None = None,
        *,
        method: Method = "integrated_gradients",
        contrast: Contrast | None = None,
        baseline: Baseline = "zero",
        integration_steps: int = 50,
        previous: bool = False,
        normalize: bool = False,
        progress: Callable[[float], object] | None = None,
        **search: Unpack[PredictionOptions],
    ) -> Attribution:
        """Compute how much each source token contributes to the log-probability of each token of a target.

        Args:
            source: A text, or another source of the model.
            target: The target. By default, the prediction for the source.
            method: `gradient_x_input`, `integrated_gradients`, `occlusion`, `value_zeroing`, or `attention` for the
                attention weights. The first three require captum: `pip install 'regard[explain]'`.
            contrast: Explain why a token was predicted rather than another: log p(token) − log p(other). Either another
                target, which is compared at the first token that differs, or a pair: the index of a step and a token.
            baseline: Where integration starts: `zero`, or the embedding of the `unknown` or the `padding` token.
            integration_steps: The number of points at which integrated gradients evaluates the gradient.
            previous: Whether to also compute scores of the previous tokens of the target.
            normalize: Whether to divide each row of scores by the sum of its absolute values.
            progress: A function that is called with the share of the computation that is done, from 0 to 1. If it
                raises an exception, the computation stops.
            search: Settings of the search and constraints, as for `predict`, if there is no target.

        Returns:
            The scores, and their rank correlation with the attention weights.

        Raises:
            ConfigError: An argument is out of range, the model does not support the method, or captum is missing.
            ArgumentTypeError: An argument has the wrong type.

        >>> print(model.attribute("3 mai 2009", method="occlusion"))
        >>> model.attribute("3 mai 2009", "2009-05-03", contrast="2009-03-05").scores
        """
        check_search(search, CONSTRAINTS)
        request = AttributionRequest(method, contrast, baseline, integration_steps, previous, normalize, progress)
        request.check(self.members)
        predictor = self.predictor
        check_source(source, predictor.reader)
        if target is None:
            options, constraints = parse_search(search)
            items = predictor.reader.read([source])
            [[hypothesis, *_]] = predictor.predict(items, options, constraints, attention=True)
        else:
            items, [hypothesis] = force_targets(predictor, [source], [_check_target(target, search, "explained")])
        return attribute_target(predictor, items[0], hypothesis, request)

    def ablate_heads(
        self,
        source: OneSource,
        *,
        edits: Sequence[Edit | Mapping[str, Any]] = (),
        progress: Callable[[float], object] = lambda _: None,
        **search: Unpack[PredictionOptions],
    ) -> HeadEffects:
        """Set the output of each attention head to zero, one at a time, and compute what changes in a prediction.

        Args:
            source: A text, or another source of the model.
            edits: Changes with which the model predicts, as for `trace`. A head is ablated in addition to them.
            progress: A function that is called with the share of the computation that is done, from 0 to 1. If it
                raises an exception, the computation stops.
            search: Settings of the search and constraints, as for `predict`.

        Returns:
            For each head, how the log-probability of the prediction changes, and what the model predicts instead.

        Raises:
            ConfigError: A search setting is unknown or out of range, an edit is not valid, or the source is empty.
            ArgumentTypeError: The source or another argument has the wrong type.

        >>> print(model.ablate_heads("3 mai 2009"))
        """
        check_search(search, CONSTRAINTS)
        parsed, predictor = parse_edits(edits), self.predictor
        check_source(source, predictor.reader)
        [item] = predictor.reader.read([source])
        task = apply_edits(predictor, TraceTask(item, *parse_search(search)), parsed)
        return ablate_heads(predictor, task, check_type("progress", progress, Callable, "a function"))

    def align(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        reverse: "Model | None" = None,
        symmetrize: Symmetrization = "grow-diag-final",
        batch_size: int = 64,
        **options: Unpack[AlignmentOptions],
    ) -> list[WordAlignment]:
        """Align the words of each pair of texts, from the attention weights with which the target is predicted.

        Args:
            pairs: (source, target) pairs of texts. Words are separated by white space. If one side of most pairs is a
                single word, tokens are aligned instead, unless `tokens=False`.
            reverse: A model of the opposite direction, to combine the alignments of both.
            symmetrize: How to combine them: intersection, union, grow-diag, grow-diag-final or grow-diag-final-and.
            batch_size: The maximum number of pairs that are processed together.
            options: Which weights are used, and how they are converted to links; see `AlignmentSettings`.

        Returns:
            The alignment of each pair. `str(alignment)` is in Pharaoh format.

        Raises:
            ConfigError: An option is unknown or out of range, or the model cannot align words.
            ArgumentTypeError: A pair does not consist of two texts.

        >>> model.align([("3 mai 2009", "2009-05-03")], method="threshold", threshold=0.3)[0].links
        """
        if reverse is not None:
            check_type("reverse", reverse, Model, "a model")
        check_choice("symmetrize", symmetrize, SYMMETRIZATIONS)
        return list(align_pairs(self, _check_pairs(pairs), reverse, symmetrize, dict(options), batch_size))

    def evaluate(
        self,
        sources: Sequence[OneSource] | Sequence[tuple[OneSource, str]],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        metrics: str | Sequence[Any] | None = None,
        batch_size: int = 256,
        confidence: bool = False,
        engine: EngineName = "torch",
        precision: Precision = "float32",
        **search: Unpack[SearchOptions],
    ) -> Evaluation:
        """Compute metrics of the predictions for sources against references.

        Args:
            sources: The sources; or, without `references`, a list of (source, reference) pairs. Pairs with the same
                source share their references.
            references: A reference for each source, or a list of references for each.
            metrics: Names (`"bleu"`, `"bleu:tokenize=none"`) or mappings. By default the metrics that the model was
                validated with, and accuracy, chrF and loss.
            batch_size: The number of texts that are processed together.
            confidence: Whether to compute confidence intervals.
            engine: What computes the predictions, as for `predict`. The loss is always computed with torch.
            precision: The precision of the predictions, as for `predict`.
            search: Settings of the search, by default those of validation.

        Returns:
            The metrics, and the predictions that they were computed from.

        Raises:
            ConfigError: A metric or search setting is unknown, or there is not a reference for each source.
            ArgumentTypeError: An argument has the wrong type, for example a reference that is not a str.

        >>> print(model.evaluate(["3 mai 2009"], ["2009-05-03"], metrics=["bleu", "chrf"], beam=5))
        """
        check_search(search)
        check_integer("batch_size", batch_size)
        check_flag("confidence", confidence)
        training = self.settings.training
        metrics = training.default_metrics if metrics is None else parse_metrics(check_metrics(metrics))
        options = resolve(SearchSettings, training.validation_search.model_dump(), dict(search))
        evaluation_set = _check_evaluation_set(sources, references, self.predictor.reader)
        warn_if_tokenized(evaluation_set, metrics)
        return evaluate(
            self.predictor,
            evaluation_set,
            metrics,
            options,
            batch_size=batch_size,
            confidence=confidence,
            engine=self.choose_engine(engine, Request(options, precision=precision)),
        )

    def choose_engine(self, name: EngineName, request: Request) -> Engine:
        """Return the engine with this name; for "auto", the fastest that returns the same predictions as torch.

        Args:
            name: "torch", "ct2", "onnx" or "auto".
            request: What the engine has to compute.

        Raises:
            ConfigError: The engine is unknown, or does not support the model or what is requested.

        >>> model.choose_engine("auto", Request(SearchSettings())).name
        """
        check_choice("engine", name, get_args(EngineName))
        check_choice("precision", request.precision, get_args(Precision))
        if request.precision not in self._engines:
            self._engines[request.precision] = build_engines(self.predictor, self._trained, request.precision)
        return choose_engine(self._engines[request.precision], name, request)

    @property
    def _trained(self) -> TrainedModel:
        predictor = self.predictor
        source = predictor.reader.tokenizer if isinstance(predictor.reader, TextReader) else predictor.tokenizer
        tokenizers = TokenizerPair(source, predictor.tokenizer)
        return TrainedModel(self.settings, self.network, tokenizers, self.step, self.scores, self.run, self.members)

    def export(self, out: str | Path, to: str | Mapping[str, Any] = "folder") -> Path:
        """Write the model to a new folder or file in the format of other software.

        Args:
            out: The folder, which must not exist or must be empty; or a new file, for formats of one file.
            to: The format: the name of an exporter, with options (`"ct2:precision=int8"`), or a mapping with its
                `kind`. By default a model folder without the optimizer and the data.

        Returns:
            The path of the folder or file.

        Raises:
            ConfigError: The format is unknown, cannot express the model, or needs a package that is not installed; or
                the path exists.
            ArgumentTypeError: An argument has the wrong type.

        >>> model.export("exported/dates")
        """
        check_type("out", out, str | Path, "the path of a folder or file")
        check_type("to", to, str | Mapping, "the name of a format, or a mapping with its kind")
        if self.members > 1:
            raise ConfigError("An ensemble cannot be exported. Export its models one by one.")
        target = parse_target(to)
        return export_model(self._trained, target.build_part(), target.kind, out)


def load(
    path: str | Path,
    *others: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    imports: str | Iterable[str] = (),
    accept_changes: bool = False,
) -> Model:
    """Load a trained model, or an ensemble of several.

    Args:
        path: A run folder. Its best checkpoint is loaded.
        others: More run folders. The ensemble averages the probabilities that its models predict.
        device: "cpu", "cuda", "cuda:1" or a `torch.device`; by default the GPU if there is one, else the CPU.
        dtype: The dtype of weights and computation: "float32" (the default), "float64", "bfloat16", "float16", "int8"
            or a `torch.dtype`. With int8, only matrix products are computed in int8, on a CPU.
        imports: Plugins to import: modules or .py files that register parts of the model. A model folder never imports
            code by itself.
        accept_changes: Whether to load a model even if its config.yaml or tokenizers have been edited in a way that
            changes predictions. By default, loading such a model raises ModelError.

    Returns:
        The model, in evaluation mode.

    Raises:
        ModelError: There is no model at a path, or it is damaged or edited, or the models of an ensemble do not match.
        ConfigError: The device or the dtype is not supported, or int8 requires packages that are not installed.
        ArgumentTypeError: An argument has the wrong type.

    >>> model = regard.load("runs/dates")
    >>> model = regard.load("runs/dates", device="cpu", dtype="float64")
    >>> ensemble = regard.load("runs/dates", "runs/two-minutes")
    """
    import_plugins(imports)
    for model in (path, *others):
        check_type("path", model, str | Path, "the path of a run folder")
    place = check_device("auto" if device is None else device)
    kind = None if dtype is None else check_dtype(dtype)
    opened = open_models(path, *others, accept_changes=check_flag("accept_changes", accept_changes))
    return Model.from_checkpoints(opened, place).to(dtype=kind)


_HEAD_OPTIONS = {"attention", "layer", "head"}
"""The options that select attention weights."""


def build_aligner(model: Model, options: dict[str, Any], batch_size: int = 64) -> Aligner:
    """Return the aligner of a model, with options from `AlignmentSettings`."""
    check_integer("batch_size", batch_size)
    settings = resolve(AlignmentSettings, {}, {**_supervised_head(model, options), **options})
    return Aligner.of(model.predictor, settings, batch_size=batch_size)


def _supervised_head(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that select the head that guided alignment supervised, unless others are given."""
    guided = model.settings.training.guided_alignment
    if guided is None or model.members > 1 or _HEAD_OPTIONS & options.keys():
        return {}
    return {"layer": guided.find_layer(model.settings.model), "head": guided.head, "shift": guided.shift}


def align_pairs(
    model: Model,
    pairs: Iterable[Pair],
    reverse: Model | None,
    symmetrization: Symmetrization,
    options: dict[str, Any],
    batch_size: int = 64,
) -> Iterator[WordAlignment]:
    """Yield the alignment of each pair. With `reverse`, a model of the opposite direction, it is symmetrized.

    The options apply to both models, except those that select an attention: the reverse model uses its default.
    """
    options, pairs = choose_unit(options, pairs)
    aligner = build_aligner(model, options, batch_size)
    if reverse is None:
        return aligner.align(pairs)
    shared = {name: value for name, value in options.items() if name not in _HEAD_OPTIONS}
    return aligner.align_symmetrized(build_aligner(reverse, shared, batch_size), pairs, symmetrization)


def _check_pairs(pairs: Any) -> list[Pair]:
    """Return pairs as a list. Raise ArgumentTypeError, with the index, for an item that is not a pair of texts."""
    checked = []
    for index, pair in enumerate(check_list("pairs", pairs, "a list of (source, target) pairs")):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ArgumentTypeError(f"pairs[{index}] must be a pair of texts (source, target), not {pair!r}.")
        checked.append((pair[0], pair[1]))
    return checked


def format_summary(title: str, summary: Mapping[str, str]) -> str:
    """Format names and values as text, one per line."""
    width = max(map(len, summary)) + 3
    lines = (f"  {name + ':':<{width}}{value}\n" for name, value in summary.items())
    return f"{title}(\n{''.join(lines)})"


def summary_to_html(title: str, summary: Mapping[str, str]) -> str:
    """Format names and values as a table."""
    rows = (
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in summary.items()
    )
    return f"<table><caption>{title}</caption>{''.join(rows)}</table>"


def _check_sources_and_targets(
    source: Any, target: Any, reader: SourceReader
) -> tuple[list[RawSource], list[str], bool]:
    """Return a list of sources, a list of targets, and whether they were a single source and a single target."""
    sources, single = check_sources(source, reader)
    if single and isinstance(target, str):
        return sources, [target], True
    if single or isinstance(target, str):
        raise ConfigError("Pass one source and one target, or a list of sources and a list of targets.")
    targets = check_texts("target", target)
    if len(sources) != len(targets):
        raise ConfigError(
            f"Got {quantity(len(sources), 'source')} and {quantity(len(targets), 'target')}. Pass one target for each "
            "source."
        )
    return sources, targets, False


def _check_target(target: Any, search: Mapping[str, Any], verb: str) -> str:
    """Return a given target, which cannot be combined with settings of the search."""
    if search:
        raise ConfigError(
            f"A given target is {verb} without a search, so {', '.join(search)} cannot be set. Omit the target, or "
            "the settings of the search."
        )
    return check_text("target", target)


def _check_evaluation_set(sources: Any, references: Any, reader: SourceReader) -> EvaluationSet:
    """Return sources and references, or pairs, as an evaluation set. Raise ArgumentTypeError for a value that is not a
    source or a text.
    """
    if references is None:
        pairs = check_list("sources", sources, "a list of (source, reference) pairs if references is None")
        for index, pair in enumerate(pairs):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ConfigError(
                    f"sources[{index}] is not a pair. Pass sources and references, or a list of pairs (source, "
                    "reference)."
                )
            check_text(f"sources[{index}][1]", pair[1])
        check_items("sources", [source for source, _ in pairs], reader)
        return EvaluationSet.from_pairs(Pairs.of(pairs))
    items = check_list("sources", sources, f"a list of {reader.noun}s")
    check_items("sources", items, reader)
    return EvaluationSet.from_lists(items, check_references(references))


def _longest(trace: Trace) -> int:
    """Return the number of tokens of the longest hypothesis."""
    return max(len(each.tokens) for each in (trace.prediction, *trace.prediction.alternatives))
