"""Train, load, predict: what most users need, in a few names."""

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
from regard.evaluation.metrics import EvaluationSet, note_tokenized
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
    """A finished training: where it lies, and what its best model reached on the dev set."""

    path: Path
    best: MetricValues | None
    steps: int

    def load(self) -> "Model":
        return load(self.path)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order: losses, validations."""
        return read_events(RunFolder(self.path).events)


def train(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    minutes: float | None = None,
) -> Run:
    """Train a preset, a file or a mapping of settings, or resume a run that was stopped.

    With `minutes`, training ends at that time: the schedule is rescaled to the speed measured while training.

    >>> run = regard.train("dates", {"training.steps": 500}, out="runs/dates")
    >>> run = regard.train("dates", minutes=2, out="runs/two-minutes")

    With `training.init_from` among the overrides, a new run starts from another run's weights, and takes over its model
    and its tokenizers.

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
    say: Callable[[str], object] = lambda _: None,
    started: float | None = None,
) -> ChosenSettings:
    """Choose settings for pairs in files, from statistics of the pairs and from the speed of this machine.

    `minutes` is the deadline of the training, counted from `started` (a reading of `time.monotonic`, by default now).
    Without it, training ends after 10 minutes at the latest. The reasons are passed to `say` as they are found.

    >>> chosen = regard.choose({"train": "pairs.tsv"})
    >>> regard.train(chosen.settings.model_dump(), out="runs/pairs")
    """
    started = time.monotonic() if started is None else started
    given = with_deadline(overrides or {}, minutes)
    minutes = resolve(TrainingSettings, {"minutes": given.pop("training.minutes", None)}, {}).minutes
    own = {key.removeprefix("data."): value for key, value in given.items() if key.startswith("data.")}
    files = pin_files(resolve(FilesData, data, own))
    device = resolve_device(str(given.get("training.device", "auto")))
    chosen = autoconfig.choose(files, given, cuda=device.type == "cuda")
    for reason in filter(None, [*chosen.reasons, describe_held_out(files)]):
        say(reason)
    seconds = 60 * (minutes or budget.DEFAULT_MINUTES)
    ends, share = started + seconds, min(5.0, 0.05 * seconds)
    pace = measure_speed(chosen.settings, share)
    shrunk = budget.shrink(chosen, pace, ends - time.monotonic(), given)
    if shrunk is not chosen:
        pace = measure_speed(shrunk.settings, share)
    fitted = budget.fit_schedule(shrunk, pace, minutes, ends - time.monotonic(), given)
    for reason in fitted.reasons[len(chosen.reasons) :]:
        say(reason)
    return fitted


def load(path: str | Path, *others: str | Path) -> "Model":
    """The model in a run's folder: the checkpoint that validation chose. Several answer together, as an ensemble.

    >>> model = regard.load("runs/one", "runs/other")
    """
    return Model.together(open_models(path, *others))


class Model:
    """A trained model, ready to be used.

    `step` is the training step of its weights; `scores` are their validation scores, or None if they are not known.
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
    def open(cls, folder: RunFolder, chosen: Checkpoint) -> "Model":
        settings, tokenizers, model, used = checkpoints.load_model(folder, chosen)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        predictor = Predictor(model, tokenizers, settings.decoding, settings.tokenizer.max_length)
        best = used.state.get("best") or {}
        scores = MetricValues.from_json(best) if best.get("step") == used.step else None
        return cls(predictor, settings, used.step, scores)

    @classmethod
    def together(cls, opened: Sequence[tuple[RunFolder, Checkpoint]]) -> "Model":
        """One model that says what those of `open_models` say in the mean; in all else it is as the first."""
        models = [cls.open(*each) for each in opened]
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
        """The lines of `repr`, and of the table in notebooks."""
        tokenizers = self.predictor.tokenizers
        together = f"ensemble of {self.members} models, the first: " if self.members > 1 else ""
        summary = {
            "architecture": together + self.settings.model.architecture,
            "parameters": f"{sum(parameter.numel() for parameter in self.network.parameters()):,}",
            "vocabulary": f"{len(tokenizers.source):,} source tokens, {len(tokenizers.target):,} target tokens",
            "step": f"{self.step:,}",
            "device": str(self.predictor.device),
        }
        if self.scores is not None:
            summary["validation"] = self.scores.told(self.settings.training.metric)
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
        """The answer to a text, or to each of a list, in order; without `attention` it is quicker.

        `search` are settings of the search (`beam=5`, `sample=True, temperature=0.7` …) and wishes: `prefix`, what an
        answer begins with, `must_say`, phrases that it contains, `banned`, phrases that it does not. With `nbest` above
        1 the other answers are `.alternatives` of the best.
        """
        if isinstance(source, str):
            for name in ("prefix", "must_say"):
                if name in search:
                    search[name] = [search[name]]
            return self.predict([source], attention=attention, **search)[0]
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, and must be at least 1.")
        texts = _checked_texts("source", source)
        wishes = Constraints(search.pop("prefix", ()), search.pop("must_say", ()), search.pop("banned", ()))
        for name, given in (("prefix", wishes.prefixes), ("must_say", wishes.phrases)):
            if given and len(given) != len(texts):
                raise ConfigError(f"{name}: there are {len(given)} for {len(texts)} texts: give one for each.")
        options = resolve(SearchSettings, search, {})
        found = self.predictor.translate(texts, options, wishes, batch_size=batch_size, attention=attention)
        tokenizer = self.predictor.tokenizers.target
        return [Prediction.best_of(text, answers, tokenizer) for text, answers in zip(texts, found, strict=True)]

    @overload
    def score(self, source: str, target: str) -> float: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def score(self, source: Sequence[str], target: Sequence[str]) -> list[float]: ...

    def score(self, source: str | Sequence[str], target: str | Sequence[str]) -> float | list[float]:
        """The log-probability of a target given its source, or of each pair of two lists."""
        if isinstance(source, str) and isinstance(target, str):
            return self.predictor.score([source], [target])[0]
        if isinstance(source, str) or isinstance(target, str):
            raise ConfigError("Score a text against a text, or a list against a list.")
        sources, targets = _checked_texts("source", source), _checked_texts("target", target)
        if len(sources) != len(targets):
            raise ConfigError(
                f"There are {len(sources)} sources and {len(targets)} targets. Give one target for each source."
            )
        return self.predictor.score(sources, targets)

    def trace(self, source: str) -> Trace:
        """Everything that a picture of the prediction needs."""
        if not isinstance(source, str):
            raise ArgumentTypeError(f"source must be one text (str) to trace, not {type(source).__name__}.")
        settings = self.settings.model.model_dump(mode="json")
        return Trace.of(self.predict(source), {"step": self.step, **settings})

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
        """How good the answers to sources are, held against references: one for each, or a list for each.

        In place of the two, a list of pairs; those with the same source share their references. `metrics` are names
        (`"bleu"`, `"bleu:tokenize=none"`) or mappings; by default those the model was validated by, with accuracy,
        chrF and loss. `search` are settings of the search, by default that of validation; `confidence` adds
        intervals.

        >>> print(model.evaluate(sources, references, metrics=["bleu", "chrf"], beam=5))
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}, and must be at least 1.")
        training = self.settings.training
        metrics = training.default_metrics if metrics is None else parse_metrics(metrics)
        options = resolve(SearchSettings, training.validation_search.model_dump(), search)
        questions = EvaluationSet.read(sources, references)
        note_tokenized(questions, metrics)
        return evaluate(self.predictor, questions, metrics, options, batch_size=batch_size, confidence=confidence)


def _checked_texts(name: str, given: Iterable[str]) -> list[str]:
    """Return the texts as a list. Raise ArgumentTypeError for anything else, with its index."""
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"{name} must be a text (str) or a list of texts, not {type(given).__name__}.")
    texts = list(given)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{name}[{place}] must be a text (str), not {type(text).__name__}.")
    return texts
