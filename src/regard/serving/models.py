"""The models of a server: what each can do, and how its predictions are computed."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from regard.api.model import Model, build_aligner
from regard.config import Settings, resolve
from regard.data.corpora import RawSource
from regard.data.settings import FilesData
from regard.data.sources import Span
from regard.data.tokens.tokenizers import find_words
from regard.decoding.constraints import parse_constraints
from regard.decoding.engine import Engine, Request
from regard.decoding.settings import EngineName, Precision, SearchSettings
from regard.errors import ConfigError, DataError, ModelError
from regard.formatting import LANGUAGE_CODE, did_you_mean, name_language
from regard.inspection.prediction import Prediction
from regard.models.settings import IMAGE, TEXT
from regard.registry import import_plugins
from regard.runs.folder import RunFolder, open_model
from regard.runs.stored_checkpoint import Checkpoint
from regard.serving.batching import Batcher, BatchLimits, Item
from regard.serving.errors import RequestError
from regard.serving.settings import Loading, ModelAddress

_MIN_SENTENCE: Final = 20


class Wanted(Settings):
    """What is computed for a source, besides the best prediction. Sources with the same value share a batch."""

    search: SearchSettings
    prefix: str = ""
    must_contain: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    align: bool = False
    attention: bool = False


class Text(NamedTuple):
    """A predicted text, its log-probability, and the spans of aligned words: in the source, and in the text."""

    text: str
    score: float
    links: tuple[tuple[Span, Span], ...] = ()


class Output(NamedTuple):
    """The predictions for a source, best first, and the weights of the best if they were requested."""

    texts: tuple[Text, ...]
    tokens: tuple[str, ...] = ()
    source_tokens: tuple[str, ...] = ()
    weights: list[list[float]] | None = None
    unknown: tuple[str, ...] = ()
    truncated: bool = False

    @property
    def best(self) -> Text:
        return self.texts[0]

    @property
    def attention(self) -> dict[str, Any]:
        """The weights, with the tokens of their rows and columns, as values of JSON."""
        return {"source_tokens": self.source_tokens, "tokens": self.tokens, "weights": self.weights}


class Description(NamedTuple):
    """The properties of a model.

    Attributes:
        name: The name of its folder.
        languages: The codes of the source and target language; None if it does not translate.
        source_kind: The kind of source that it reads: text, image, or a kind of a plugin.
        architecture: A short description.
        version: Identifies the weights.
        sentence: The number of characters of the longest source that is certainly not truncated.
        search: The settings of the search if a request has none.
    """

    name: str
    languages: tuple[str, str] | None
    source_kind: str
    architecture: str
    version: str
    sentence: int
    search: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What the model does: translate, predict or caption."""
        if self.languages is not None:
            return "translate"
        return {TEXT: "predict", IMAGE: "caption"}.get(self.source_kind, "other")


class Backend(ABC):
    """Computes the predictions of one model."""

    description: Description

    @abstractmethod
    async def predict(self, sources: Sequence[RawSource], wanted: Wanted) -> list[Output]:
        """Return the predictions for each source. Raise RequestError or RegardError if one cannot be predicted."""

    @abstractmethod
    async def render_trace(self, text: str, wanted: Wanted) -> str:
        """Return the page of the explorer with the prediction for a text. It works without the server."""

    @abstractmethod
    def stream(self, text: str) -> AsyncIterator[str]:
        """Yield the text that is predicted for a text by greedy search, after each token."""

    @property
    def queued(self) -> int:
        """The number of sources that wait for a batch."""
        return 0

    @abstractmethod
    async def close(self) -> None:
        """Finish the predictions that were accepted. Requests that still use this object can get others."""


@final
class LoadedModel:
    """A model in this process, with the functions that its thread calls.

    Args:
        model: The model.
        description: What is known of it.
        engine: What computes predictions, if it can compute what is requested.
        precision: The precision of the weights.
    """

    def __init__(self, model: Model, description: Description, engine: EngineName, precision: Precision) -> None:
        self.model, self.description = model, description
        self._engine, self._precision = engine, precision
        self._engines: dict[Request, Engine] = {}

    @classmethod
    def load(cls, address: ModelAddress, loading: Loading) -> "LoadedModel":
        """Load a model, and compute a prediction as a test. Raise ModelError if this fails."""
        folder, checkpoint = open_model(address.path, accept_changes=loading.accept_changes)
        model = Model.from_checkpoint(folder, checkpoint)
        description = describe(model, folder, checkpoint, address, loading.search)
        loaded = cls(model, description, loading.engine, loading.precision)
        loaded.test()
        return loaded

    def test(self) -> None:
        """Predict one source with the default search. Raise ModelError if this fails."""
        kind = self.description.source_kind
        if kind not in (TEXT, IMAGE):
            return
        source = np.full((32, 32, 3), 128, np.uint8) if kind == IMAGE else "1 a"
        wanted = Wanted(search=resolve(SearchSettings, dict(self.description.search), {}))
        try:
            self.predict(wanted, self.model.predictor.reader.read([source]))
        except ConfigError:
            raise
        except Exception as error:
            raise ModelError(f"The model {self.description.name} failed its test prediction: {error}") from error

    def predict(self, wanted: Wanted, items: Sequence[Any]) -> list[Output]:
        """Return the predictions for items that the reader of the model returned."""
        model, predictor = self.model, self.model.predictor
        required = {"prefix": wanted.prefix, "must_contain": wanted.must_contain}
        constraints = parse_constraints(
            {**{name: [value] * len(items) for name, value in required.items() if value}, "banned": wanted.banned},
            len(items),
        )
        engine = self._choose_engine(Request(wanted.search, bool(constraints), wanted.attention, self._precision))
        found = engine.predict(items, wanted.search, constraints, attention=wanted.attention)
        roles = predictor.attention_roles
        predictions = [
            Prediction.from_nbest(item, nbest, predictor.tokenizer, roles, model.members)
            for item, nbest in zip(items, found, strict=True)
        ]
        return self._to_outputs(predictions, wanted)

    def _choose_engine(self, request: Request) -> Engine:
        """Return the engine for a request. Only torch returns weights and satisfies constraints."""
        engine = self._engines.get(request)
        if engine is None:
            if self._engine == "auto" or not (request.attention or request.constrained):
                engine = self.model.choose_engine(self._engine, request)
            else:
                engine = self.model.choose_engine("torch", request._replace(precision="float32"))
            self._engines[request] = engine
        return engine

    def _to_outputs(self, predictions: Sequence[Prediction], wanted: Wanted) -> list[Output]:
        texts = [[(each.text, each.score) for each in (one, *one.alternatives)] for one in predictions]
        links = iter(self._align([(one.source, text) for one, found in zip(predictions, texts, strict=True)
                                  for text, _ in found]) if wanted.align else ())  # fmt: skip
        return [
            Output(
                tuple(Text(text, score, next(links, ())) for text, score in found),
                tuple(one.tokens),
                tuple(one.source_tokens),
                one.attention.tolist() if wanted.attention else None,
                tuple(one.unknown),
                one.truncated,
            )
            for one, found in zip(predictions, texts, strict=True)
        ]

    def _align(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[tuple[Span, Span], ...]]:
        """Return the spans of aligned words, for each pair of texts."""
        found = []
        for (source, target), alignment in zip(pairs, self._aligner.align(pairs), strict=True):
            sources, targets = find_words(source), find_words(target)
            found.append(tuple((sources[i], targets[j]) for i, j in sorted(alignment.links)))
        return found

    @cached_property
    def _aligner(self) -> Any:
        return build_aligner(self.model, {"tokens": False})

    def render_trace(self, text: str, wanted: Wanted) -> str:
        """Return the page of the explorer with the prediction for a text."""
        return self.model.trace(text, **wanted.search.model_dump()).to_html()

    def stream(self, text: str, report: Callable[[str], object]) -> None:
        """Predict a text with greedy search, and report the predicted text after each token, and at the end."""
        predictor = self.model.predictor
        [item] = predictor.reader.read([text])
        decode = predictor.tokenizer.decode
        report(decode(predictor.predict_stepwise(item, lambda tokens: report(decode(tokens)))))


@final
class LocalBackend(Backend):
    """A model in this process. Requests share batches, which one thread computes."""

    def __init__(self, loaded: LoadedModel, loading: Loading, report: Callable[[int], object] = lambda _: None) -> None:
        self.description = loaded.description
        self._loaded = loaded
        # While a batch is computed, requests for the next one arrive. On a CPU, larger batches are hardly faster.
        tokens = 512 if loaded.model.device.type == "cpu" else 16_384
        limits = BatchLimits(tokens, wait=loading.batch_wait, queue=loading.queue)
        self._batcher: Batcher[Wanted, Output] = Batcher(loaded.predict, limits, report)

    async def predict(self, sources: Sequence[RawSource], wanted: Wanted) -> list[Output]:
        reader = self._loaded.model.predictor.reader
        for source in sources:
            problem = reader.find_problem(source)
            if problem is not None:
                raise DataError(problem)
        items = reader.read(list(sources))
        return await self._batcher.submit(
            wanted,
            [
                Item(source if isinstance(source, str) else id(item), item, item.length)
                for source, item in zip(sources, items, strict=True)
            ],
        )

    async def render_trace(self, text: str, wanted: Wanted) -> str:
        return await self._batcher.run(self._loaded.render_trace, text, wanted)

    async def stream(self, text: str) -> AsyncIterator[str]:
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def report(part: str | None) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        call = asyncio.ensure_future(self._batcher.run(self._loaded.stream, text, report))
        call.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            await call
        finally:
            call.cancel()

    @property
    def queued(self) -> int:
        return self._batcher.queued

    async def close(self) -> None:
        await self._batcher.finish()


@final
class Catalog:
    """The models that a server answers with. It does not change: reloading replaces it."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.by_name: dict[str, Backend] = {}
        self.by_languages: dict[tuple[str, str], Backend] = {}
        for backend in backends:
            name, languages = backend.description.name, backend.description.languages
            if name in self.by_name:
                raise ConfigError(f"Two models have the name {name}, that of their folder. Rename one of the folders.")
            if languages in self.by_languages:
                raise ConfigError(f"Two models translate from {languages[0]} to {languages[1]}. Serve one of them.")
            self.by_name[name] = backend
            if languages is not None:
                self.by_languages[languages] = backend

    @property
    def descriptions(self) -> list[Description]:
        return [backend.description for backend in self.by_name.values()]

    @property
    def versions(self) -> tuple[str, ...]:
        """What identifies the weights of each model."""
        return tuple(description.version for description in self.descriptions)

    @property
    def sources(self) -> list[str]:
        """The codes of all source languages."""
        return list(dict.fromkeys(source for source, _ in self.by_languages))

    @property
    def queued(self) -> int:
        """The number of sources that wait for a batch."""
        return sum(backend.queued for backend in self.by_name.values())

    def list_languages(self) -> list[dict[str, Any]]:
        """Return the source languages with their names and targets, as LibreTranslate does."""
        codes = dict.fromkeys(code for pair in self.by_languages for code in pair)
        return [
            {
                "code": code,
                "name": name_language(code),
                "targets": [target for source, target in self.by_languages if source == code],
            }
            for code in codes
        ]

    def find_translator(self, source: str, target: str) -> Backend:
        """Return the model of a pair of languages. Raise RequestError if there is none."""
        if (source, target) not in self.by_languages:
            raise self._unsupported(f"{source} → {target}")
        return self.by_languages[source, target]

    def find_sources(self, target: str) -> list[str]:
        """Return the languages that are translated to a target. Raise RequestError if there is none."""
        sources = [source for source, known in self.by_languages if known == target]
        if not sources:
            raise self._unsupported(target)
        return sources

    def find(self, name: str) -> Backend:
        """Return the model with a name. Raise RequestError if there is none."""
        if name not in self.by_name:
            available = ", ".join(self.by_name)
            raise RequestError(
                400, f"There is no model '{name}'.{did_you_mean(name, self.by_name)} Available: {available}."
            )
        return self.by_name[name]

    async def close(self) -> None:
        """Finish the accepted predictions of all models."""
        await asyncio.gather(*(backend.close() for backend in self.by_name.values()))

    def _unsupported(self, languages: str) -> RequestError:
        available = ", ".join(f"{source} → {target}" for source, target in self.by_languages) or "none"
        return RequestError(400, f"{languages} is not supported. Available: {available}.")


def load_catalog(loading: Loading, report: Callable[[int], object] = lambda _: None) -> Catalog:
    """Load all models, and test each. `report` receives the size of each batch. Raise RegardError if a model cannot be
    used.
    """
    import_plugins(loading.plugins)
    return Catalog([LocalBackend(LoadedModel.load(address, loading), loading, report) for address in loading.models])


def read_stamps(loading: Loading) -> list[tuple[str, int]]:
    """Return what changes when weights are written to a model folder: names and times, without reading files."""
    folders = [RunFolder(Path(each.path)) for each in loading.models]
    paths = [path for folder in folders for path in (folder.config, *sorted(folder.checkpoints.rglob("*")))]
    return [(str(path), path.stat().st_mtime_ns) for path in paths]


def identify_versions(loading: Loading) -> tuple[str, ...]:
    """Return what identifies the weights in the model folders, without loading them."""
    return tuple(
        open_model(each.path, accept_changes=loading.accept_changes)[1].weights_hash for each in loading.models
    )


def describe(
    model: Model, folder: RunFolder, checkpoint: Checkpoint, address: ModelAddress, search: Mapping[str, Any]
) -> Description:
    """Return the description of a loaded model."""
    settings, name = model.settings, folder.path.resolve().name
    defaults = resolve(SearchSettings, settings.training.validation_search.model_dump(), dict(search))
    return Description(
        name,
        address.languages or _find_languages(name, settings.data),
        settings.model.source_kind,
        settings.model.architecture,
        checkpoint.weights_hash,
        max(_MIN_SENTENCE, settings.tokenizer.max_length - 1),
        defaults.model_dump(),
    )


def _find_languages(name: str, data: Any) -> tuple[str, str] | None:
    """Return the languages that the name of a folder contains, as in opus-mt-en-de, or else those at the end of the
    names of the training files, as in train.en and train.de.gz.
    """
    *_, source, target = ["", "", *re.split(r"[-_.]", name)]
    if _is_language(source) and _is_language(target):
        return source, target
    files = data.files("train") if isinstance(data, FilesData) else None
    if files is None or files.source is None or files.target is None:
        return None
    source, target = (Path(path.removesuffix(".gz")).suffix.removeprefix(".") for path in (files.source, files.target))
    return (source, target) if _is_language(source) and _is_language(target) else None


def _is_language(code: str) -> bool:
    return bool(LANGUAGE_CODE.fullmatch(code)) and code.islower() and name_language(code) != code


def describe_links(source: str, output: Output) -> dict[str, Any]:
    """Return the spans of the words of a source and of the best prediction, and the pairs that are aligned."""
    sources, targets = find_words(source), find_words(output.best.text)
    links = [[sources.index(one), targets.index(other)] for one, other in output.best.links]
    return {"links": links, "source_words": sources, "words": targets}
