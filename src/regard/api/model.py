"""Model: predict, score, trace, explain and evaluate with a trained model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import torch

from regard.api import arguments, description
from regard.api.alignment import align_pairs, check_pairs
from regard.api.arguments import OneSource
from regard.api.attribution import AttributionRequest, Contrast, attribute_source
from regard.api.network import LoadedNetwork
from regard.api.tracing import trace_source
from regard.arguments import check_device, check_flag, check_integer, check_metrics
from regard.config import resolve
from regard.decoding.edits import Edit
from regard.decoding.forced import force_targets
from regard.decoding.predictor import Predictor
from regard.decoding.settings import PredictionOptions, SearchOptions, SearchSettings
from regard.decoding.tracing import TraceOptions
from regard.errors import ArgumentTypeError, ModelError, check_choice
from regard.evaluation.alignment import SYMMETRIZATIONS, AlignmentOptions, Symmetrization, WordAlignment
from regard.evaluation.metrics import EvaluationSet, warn_if_tokenized
from regard.evaluation.settings import parse_metrics
from regard.evaluation.validation import Evaluation, evaluate
from regard.evaluation.values import MetricValues
from regard.inspection.attribution.attribution import Attribution
from regard.inspection.attribution.methods import Baseline, Method
from regard.inspection.prediction import Prediction
from regard.inspection.trace.trace import Trace
from regard.models.ensemble import ensemble
from regard.runs import checkpoints
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.runs.stored_checkpoint import Checkpoint


class Model(LoadedNetwork):
    """A trained model with its tokenizers. Load one with `regard.load`.

    A loaded model is in evaluation mode. `predict`, `score`, `trace` and `evaluate` always compute in evaluation mode,
    and restore the mode afterwards.

    Attributes:
        predictor: The torch module with its tokenizers.
        settings: The settings of the run.
        step: The training step of the weights.
        scores: The validation metrics of the weights; None if they are not known.
        members: The number of models in an ensemble; 1 otherwise.
    """

    def __init__(
        self,
        predictor: Predictor,
        settings: RunSettings,
        step: int,
        scores: MetricValues | None = None,
        members: int = 1,
    ) -> None:
        super().__init__(predictor)
        self.settings = settings
        self.step = step
        self.scores = scores
        self.members = members

    @classmethod
    def from_checkpoint(cls, folder: RunFolder, checkpoint: Checkpoint, device: str | torch.device = "auto") -> "Model":
        """Load the model of a checkpoint, by default on a GPU if there is one."""
        settings, reader, tokenizers, model, loaded = checkpoints.load_model(folder, checkpoint)
        model = model.to(check_device(device)).eval()
        max_length = settings.tokenizer.max_length
        predictor = Predictor(model, reader, tokenizers.target, settings.decoding, max_length)
        best = loaded.state.get("best") or {}
        scores = MetricValues.from_json(best) if best.get("step") == loaded.step else None
        return cls(predictor, settings, loaded.step, scores)

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
        return description.to_text(self)

    def _repr_html_(self) -> str:
        return description.to_html(self)

    @overload
    def predict(  # type: ignore[overload-overlap] # a str is a sequence of str
        self,
        source: OneSource,
        *,
        batch_size: int = 64,
        attention: bool = True,
        first_index: int = 0,
        **search: Unpack[PredictionOptions],
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        source: Sequence[OneSource],
        *,
        batch_size: int = 64,
        attention: bool = True,
        first_index: int = 0,
        **search: Unpack[PredictionOptions],
    ) -> list[Prediction]: ...

    def predict(
        self,
        source: OneSource | Sequence[OneSource],
        *,
        batch_size: int = 64,
        attention: bool = True,
        first_index: int = 0,
        **search: Unpack[PredictionOptions],
    ) -> Prediction | list[Prediction]:
        """Predict the output for a text, or for each text of a list.

        Args:
            source: A text, or a list of texts. If the encoder reads another kind of source, a source of this kind, for
                example a file name or an array, or a list of them.
            batch_size: The number of texts that are processed together.
            attention: Whether to record attention weights. Without them, prediction is faster.
            first_index: The index of the first text in the complete list, if a list is predicted in parts. A sample
                depends on the seed and the index of its text, and not on `batch_size` or the other texts.
            search: Settings of the search (`beam=5`; `sample=True, temperature=0.7`; see `regard.decoding.settings`)
                and constraints. A prediction starts with `prefix`, contains the phrases in `must_contain`, and does not
                contain the phrases in `banned`. For a list of texts, `prefix` and `must_contain` are lists with an item
                for each text.

        Returns:
            The best prediction, or a list with the best prediction for each text. If `nbest` is above 1, its
            `alternatives` are the other predictions for the same text.

        Raises:
            ConfigError: A search setting is unknown or out of range, or a constraint cannot be satisfied.
            ArgumentTypeError: A text is not a str.

        >>> model.predict("3 mai 2009", beam=5, nbest=3, banned=["1999"]).alternatives
        >>> model.predict(["3 mai 2009", "May 3, 2009"], prefix=["20", ""])
        """
        arguments.check_search(search, PredictionOptions)
        check_integer("batch_size", batch_size)
        check_flag("attention", attention)
        check_integer("first_index", first_index, minimum=0)
        predictor = self.predictor
        sources, single = arguments.check_sources(source, predictor.reader)
        options, constraints = arguments.parse_search(search, None if single else len(sources))
        items = predictor.reader.read(sources)
        hypotheses = predictor.predict(
            items, options, constraints, batch_size=batch_size, attention=attention, first_index=first_index
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
        sources, targets, single = arguments.check_sources_and_targets(source, target, self.predictor.reader)
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
        given, texts, _ = arguments.check_sources_and_targets(sources, targets, self.predictor.reader)
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
        arguments.check_search(search, PredictionOptions)
        request = TraceOptions(
            check_integer("candidates", candidates), check_flag("queries", queries), check_flag("states", states)
        )
        return trace_source(self, source, target, request, search, edits)

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
        arguments.check_search(search, PredictionOptions)
        request = AttributionRequest(method, contrast, baseline, integration_steps, previous, normalize, progress)
        request.check(self.members)
        return attribute_source(self.predictor, source, target, request, search)

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
        if reverse is not None and not isinstance(reverse, Model):
            raise ArgumentTypeError(f"reverse must be a model, not {type(reverse).__name__}.")
        check_choice("symmetrize", symmetrize, SYMMETRIZATIONS)
        return list(align_pairs(self, check_pairs(pairs), reverse, symmetrize, dict(options), batch_size))

    def evaluate(
        self,
        sources: Sequence[OneSource] | Sequence[tuple[OneSource, str]],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        metrics: str | Sequence[Any] | None = None,
        batch_size: int = 256,
        confidence: bool = False,
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
            search: Settings of the search, by default those of validation.

        Returns:
            The metrics, and the predictions that they were computed from.

        Raises:
            ConfigError: A metric or search setting is unknown, or there is not a reference for each source.
            ArgumentTypeError: An argument has the wrong type, for example a reference that is not a str.

        >>> print(model.evaluate(["3 mai 2009"], ["2009-05-03"], metrics=["bleu", "chrf"], beam=5))
        """
        arguments.check_search(search, SearchOptions)
        check_integer("batch_size", batch_size)
        check_flag("confidence", confidence)
        training = self.settings.training
        metrics = training.default_metrics if metrics is None else parse_metrics(check_metrics(metrics))
        options = resolve(SearchSettings, training.validation_search.model_dump(), dict(search))
        evaluation_set = EvaluationSet.from_lists(
            *arguments.check_evaluation(sources, references, self.predictor.reader)
        )
        warn_if_tokenized(evaluation_set, metrics)
        return evaluate(self.predictor, evaluation_set, metrics, options, batch_size=batch_size, confidence=confidence)
