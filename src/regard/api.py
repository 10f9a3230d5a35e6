"""The public Python interface: train a model, load it, predict with it."""

import html
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from regard.config import resolve
from regard.data.corpora import describe_held_out
from regard.data.pinning import pin_files
from regard.data.settings import FilesData
from regard.decoding.predictor import Constraints, Predictor
from regard.decoding.settings import SearchSettings
from regard.errors import ArgumentTypeError, ConfigError
from regard.evaluation.metrics import EvaluationSet, warn_if_tokenized
from regard.evaluation.settings import parse_metrics
from regard.evaluation.validation import Evaluation, evaluate
from regard.evaluation.values import MetricValues
from regard.inspection.prediction import Prediction
from regard.inspection.trace import Trace
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq
from regard.runs import checkpoints
from regard.runs.events import read_events
from regard.runs.folder import Checkpoint, RunFolder, locate, open_models
from regard.runs.settings import RunSettings, TrainingSettings, with_deadline
from regard.training import autoconfig, budget, loop
from regard.training.autoconfig import ChosenSettings
from regard.training.finetuning import resolve_run
from regard.training.lr_finder import measure_speed
from regard.training.machine import resolve_device


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        path: The run folder.
        best: The validation metrics of the best checkpoint; None if the run was never validated.
        steps: The number of training steps.
    """

    path: Path
    best: MetricValues | None
    steps: int

    def load(self) -> "Model":
        """Load the best checkpoint of the run."""
        return load(self.path)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the run in order: training losses and validations."""
        return read_events(RunFolder(self.path).events)


def train(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    minutes: float | None = None,
) -> Run:
    """Train a model, or resume a run that was stopped.

    Args:
        config: The name of a preset, the path of a YAML file or of a run folder, or a mapping of settings.
        overrides: Settings that replace those of `config`, with dotted names. If `training.init_from` is among them,
            the run starts from the weights of another run, and uses its model and its tokenizers (fine-tuning).
        out: The run folder, by default `runs/NAME`; a mapping has no name, so it needs `out`. If the folder contains a
            run with the same settings, the run is resumed.
        minutes: Deadline in minutes. The schedule is rescaled to the speed that is measured during training.

    Returns:
        The finished run.

    >>> run = regard.train("dates", {"training.steps": 500}, out="runs/dates")
    >>> run = regard.train("dates", minutes=2, out="runs/two-minutes")
    >>> run = regard.train("dates", {"training.init_from": "runs/dates", "data.seed": 1}, out="runs/tuned")
    """
    started = time.monotonic()
    source, folder = locate(config, out)
    settings = resolve_run(source, with_deadline(overrides or {}, minutes))
    progress = loop.train(settings, folder, started)
    return Run(folder.path, progress.best, progress.step)


def choose(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    minutes: float | None = None,
    report: Callable[[str], object] = lambda _: None,
    started: float | None = None,
) -> ChosenSettings:
    """Choose settings for a dataset of pairs, from statistics of the pairs and from the speed of this machine.

    Args:
        data: Settings of the data: the files of pairs and their columns.
        overrides: Settings that are fixed in advance, with dotted names.
        minutes: Deadline of the training in minutes. Without it, training takes at most 10 minutes.
        report: Called with each reason for a choice.
        started: Time from which the deadline counts, as returned by `time.monotonic()`; by default now.

    Returns:
        The settings and the reasons for them.

    >>> chosen = regard.choose({"train": "pairs.tsv"})
    >>> regard.train(chosen.settings.model_dump(), out="runs/pairs")
    """
    started = time.monotonic() if started is None else started
    overrides = with_deadline(overrides or {}, minutes)
    minutes = resolve(TrainingSettings, {"minutes": overrides.pop("training.minutes", None)}, {}).minutes
    data_overrides = {key.removeprefix("data."): value for key, value in overrides.items() if key.startswith("data.")}
    files = pin_files(resolve(FilesData, data, data_overrides))
    device = resolve_device(str(overrides.get("training.device", "auto")))
    chosen = autoconfig.choose(files, overrides, cuda=device.type == "cuda")
    for reason in filter(None, [*chosen.reasons, describe_held_out(files)]):
        report(reason)
    seconds = 60 * (minutes or budget.DEFAULT_MINUTES)
    deadline, share = started + seconds, min(5.0, 0.05 * seconds)
    speed = measure_speed(chosen.settings, share)
    shrunk = budget.shrink(chosen, speed, deadline - time.monotonic(), overrides)
    if shrunk is not chosen:
        speed = measure_speed(shrunk.settings, share)
    fitted = budget.fit_schedule(shrunk, speed, minutes, deadline - time.monotonic(), overrides)
    for reason in fitted.reasons[len(chosen.reasons) :]:
        report(reason)
    return fitted


def load(path: str | Path, *others: str | Path) -> "Model":
    """Load a trained model, or an ensemble of several.

    Args:
        path: A run folder. Its best checkpoint is loaded.
        others: More run folders. The ensemble averages the probabilities that its models predict.

    Returns:
        The model in evaluation mode, on a GPU if there is one.

    >>> model = regard.load("runs/dates")
    >>> ensemble = regard.load("runs/dates", "runs/two-minutes")
    """
    return Model.from_checkpoints(open_models(path, *others))


class Model:
    """A trained model with its tokenizers. Load one with `regard.load`.

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
        self.predictor = predictor
        self.settings = settings
        self.step = step
        self.scores = scores
        self.members = members

    @classmethod
    def from_checkpoint(cls, folder: RunFolder, checkpoint: Checkpoint) -> "Model":
        """Load the model of a checkpoint, on a GPU if there is one."""
        settings, tokenizers, model, loaded = checkpoints.load_model(folder, checkpoint)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        predictor = Predictor(model, tokenizers, settings.decoding, settings.tokenizer.max_length)
        best = loaded.state.get("best") or {}
        scores = MetricValues.from_json(best) if best.get("step") == loaded.step else None
        return cls(predictor, settings, loaded.step, scores)

    @classmethod
    def from_checkpoints(cls, located: Sequence[tuple[RunFolder, Checkpoint]]) -> "Model":
        """Load the model of a checkpoint, or an ensemble of several with the settings of the first."""
        models = [cls.from_checkpoint(folder, checkpoint) for folder, checkpoint in located]
        if len(models) == 1:
            return models[0]
        predictor = replace(
            models[0].predictor,
            model=ensemble([model.network for model in models]).eval(),
            max_length=min(model.predictor.max_length for model in models),
        )
        return cls(predictor, models[0].settings, models[0].step, members=len(models))

    @property
    def _summary(self) -> dict[str, str]:
        """Names and values for `repr` and for the table in notebooks."""
        tokenizers = self.predictor.tokenizers
        prefix = f"ensemble of {self.members} models, the first: " if self.members > 1 else ""
        summary = {
            "architecture": prefix + self.settings.model.architecture,
            "parameters": f"{sum(parameter.numel() for parameter in self.network.parameters()):,}",
            "vocabulary": f"{len(tokenizers.source):,} source tokens, {len(tokenizers.target):,} target tokens",
            "step": f"{self.step:,}",
            "device": str(self.predictor.device),
        }
        if self.scores is not None:
            summary["validation"] = self.scores.describe(self.settings.training.metric)
        return summary

    def __repr__(self) -> str:
        lines = (f"  {name + ':':<14}{value}\n" for name, value in self._summary.items())
        return f"Model(\n{''.join(lines)})"

    def _repr_html_(self) -> str:
        rows = (
            f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
            for name, value in self._summary.items()
        )
        return f"<table><caption>regard.Model</caption>{''.join(rows)}</table>"

    @property
    def network(self) -> Seq2Seq:
        """The torch module."""
        return self.predictor.model

    @overload
    def predict(self, source: str, *, batch_size: int = 64, attention: bool = True, **search: Any) -> Prediction: ...

    @overload
    def predict(
        self, source: Sequence[str], *, batch_size: int = 64, attention: bool = True, **search: Any
    ) -> list[Prediction]: ...

    def predict(
        self, source: str | Sequence[str], *, batch_size: int = 64, attention: bool = True, **search: Any
    ) -> Prediction | list[Prediction]:
        """Predict the output for a text, or for each text of a list.

        Args:
            source: A text, or a list of texts.
            batch_size: Texts that are processed together.
            attention: Whether to record attention weights. Without them, prediction is faster.
            search: Settings of the search (`beam=5`; `sample=True, temperature=0.7`; see `regard.decoding.settings`)
                and constraints: `prefix`, the start of the prediction; `must_contain`, a list of phrases that it must
                contain; `banned`, a list of phrases that it must not contain. For a list of texts, `prefix` and
                `must_contain` are lists with an item for each text.

        Returns:
            The best prediction, or a list with the best prediction for each text. If `nbest` is above 1, its
            `alternatives` are the other predictions for the same text.

        >>> model.predict("3 mai 2009", beam=5, nbest=3, banned=["1999"]).alternatives
        >>> model.predict(["3 mai 2009", "May 3, 2009"], prefix=["20", ""])
        """
        if isinstance(source, str):
            for name in ("prefix", "must_contain"):
                if name in search:
                    search[name] = [search[name]]
            return self.predict([source], attention=attention, **search)[0]
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, but must be at least 1.")
        texts = _check_texts("source", source)
        constraints = Constraints(search.pop("prefix", ()), search.pop("must_contain", ()), search.pop("banned", ()))
        for name, values in (("prefix", constraints.prefixes), ("must_contain", constraints.phrases)):
            if values and len(values) != len(texts):
                raise ConfigError(f"{name}: there are {len(values)} values for {len(texts)} texts. Pass one for each.")
        options = resolve(SearchSettings, search, {})
        predictor = self.predictor
        sources = predictor.tokenize(texts)
        hypotheses = predictor.predict(sources, options, constraints, batch_size=batch_size, attention=attention)
        tokenizer, roles = predictor.tokenizers.target, predictor.attention_roles
        return [
            Prediction.from_nbest(text, source, nbest, tokenizer, roles)
            for text, source, nbest in zip(texts, sources, hypotheses, strict=True)
        ]

    @overload
    def score(self, source: str, target: str) -> float: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def score(self, source: Sequence[str], target: Sequence[str]) -> list[float]: ...

    def score(self, source: str | Sequence[str], target: str | Sequence[str]) -> float | list[float]:
        """Return log p(target | source) of a pair of texts, or of each pair of two lists.

        >>> model.score("3 mai 2009", "2009-05-03")
        """
        if isinstance(source, str) and isinstance(target, str):
            return self.predictor.score([source], [target])[0]
        if isinstance(source, str) or isinstance(target, str):
            raise ConfigError("source and target must both be texts, or both lists of texts.")
        sources, targets = _check_texts("source", source), _check_texts("target", target)
        if len(sources) != len(targets):
            raise ConfigError(
                f"There are {len(sources)} sources and {len(targets)} targets. Pass one target for each source."
            )
        return self.predictor.score(sources, targets)

    def trace(self, source: str) -> Trace:
        """Predict the output for a text, and return it with all attention weights of the model.

        >>> model.trace("3 mai 2009").save("trace.html")
        """
        if not isinstance(source, str):
            raise ArgumentTypeError(f"source must be one text (str) to trace, not {type(source).__name__}.")
        settings = self.settings.model.model_dump(mode="json")
        return Trace(self.predict(source), {"step": self.step, **settings})

    def evaluate(
        self,
        sources: Sequence[str] | Sequence[tuple[str, str]],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        metrics: Sequence[Any] | None = None,
        batch_size: int = 256,
        confidence: bool = False,
        **search: Any,
    ) -> Evaluation:
        """Compute metrics of the predictions for sources against references.

        Args:
            sources: The sources; or, without `references`, a list of (source, reference) pairs. Pairs with the same
                source share their references.
            references: A reference for each source, or a list of references for each.
            metrics: Names (`"bleu"`, `"bleu:tokenize=none"`) or mappings. By default the metrics that the model was
                validated with, and accuracy, chrF and loss.
            batch_size: Texts that are processed together.
            confidence: Whether to compute confidence intervals.
            search: Settings of the search, by default those of validation.

        Returns:
            The metrics, and the predictions that they were computed from.

        >>> print(model.evaluate(["3 mai 2009"], ["2009-05-03"], metrics=["bleu", "chrf"], beam=5))
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, but must be at least 1.")
        training = self.settings.training
        metrics = training.default_metrics if metrics is None else parse_metrics(metrics)
        options = resolve(SearchSettings, training.validation_search.model_dump(), search)
        evaluation_set = EvaluationSet.from_lists(sources, references)
        warn_if_tokenized(evaluation_set, metrics)
        return evaluate(self.predictor, evaluation_set, metrics, options, batch_size=batch_size, confidence=confidence)


def _check_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return the texts as a list. Raise ArgumentTypeError for anything else, with its index."""
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise ArgumentTypeError(f"{name} must be a text (str) or a list of texts, not {type(texts).__name__}.")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{name}[{index}] must be a text (str), not {type(text).__name__}.")
    return texts
