"""A model that the page shows: its description, its sources, and what is computed with it."""

import base64
import binascii
from collections.abc import Collection, Generator, Sequence
from functools import cached_property
from threading import Lock
from time import perf_counter
from typing import Any, Final

from regard.api.model import Model
from regard.config import to_yaml
from regard.data.corpora import RawSource
from regard.data.images.pixels import decode_image
from regard.decoding.tracing import describe_mechanisms
from regard.errors import ConfigError, DataError, RegardError
from regard.explorer.corpus import CorpusPredictions
from regard.explorer.documents import DocumentCache, select_attention, summarize
from regard.explorer.jobs import Report, Worker
from regard.explorer.schemas import (
    MAX_IMAGE_BYTES,
    MAX_ROWS,
    MAX_TEXT,
    AttributionRequest,
    Contrast,
    ExampleSource,
    HeadsRequest,
    ImageSource,
    NeighborsRequest,
    TextSource,
    TraceRequest,
)
from regard.explorer.training_pairs import TrainingPairs
from regard.formatting import quantity, to_json
from regard.inspection.trace.trace import Trace
from regard.inspection.views import curves
from regard.models.settings import IMAGE, TEXT
from regard.runs.events import find_attention
from regard.runs.folder import RunFolder, open_model
from regard.runs.pairs import HeldOutPairs, read_held_out, read_training_pairs
from regard.runs.stored_checkpoint import Checkpoint

FORMATS: Final = ("PNG", "JPEG", "WEBP")
"""The formats of images in requests. Others are not decoded, because fewer decoders have fewer bugs."""

MAX_EXAMPLES: Final = 8


class ServedModel:
    """A loaded model with its run folder. Call the methods that compute something in the thread of `worker`.

    Args:
        id: The name of the model in requests: "0", "1", …
        folder: The run folder.
        checkpoint: The checkpoint of the model.
        model: The loaded model.
    """

    def __init__(self, id: str, folder: RunFolder, checkpoint: Checkpoint, model: Model) -> None:  # noqa: A002
        self.id, self.folder, self.checkpoint, self.model = id, folder, checkpoint, model
        self.worker = Worker(id)
        self._lock = Lock()
        self._training_pairs: TrainingPairs | None = None

    @property
    def source_kind(self) -> str:
        """The kind of source that the model reads: text, image, or a kind of a plugin."""
        return self.model.settings.model.source_kind

    @cached_property
    def held_out(self) -> HeldOutPairs:
        """The first pairs of the run's test set, or of its dev set. Raise DataError if they cannot be read."""
        try:
            return read_held_out(self.folder, MAX_ROWS, unchanged_since=self.checkpoint)
        except RegardError as error:
            remedy = {TEXT: "Type a text instead.", IMAGE: "Open an image instead."}.get(self.source_kind, "")
            raise DataError(f"There are no examples for this model. {error} {remedy}".rstrip()) from None

    @cached_property
    def corpus(self) -> CorpusPredictions:
        """The predictions for these pairs, computed on request. Raise DataError if the pairs cannot be read."""
        return CorpusPredictions(self.model, self.held_out)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the page shows of the model before anything is predicted."""
        return {
            "id": self.id,
            "name": self.folder.path.resolve().name,
            **summarize_model(self.model),
            **self._describe_examples(),
        }

    def describe(self) -> dict[str, Any]:
        """Return the summary. Unlike other methods, it can be called in any thread."""
        with self._lock:
            return self.summary

    @cached_property
    def card(self) -> dict[str, Any]:
        """The settings, the learning curves and the metrics of the run, and what is wrong with the model."""
        settings = self.model.settings
        return {
            "settings": to_yaml(settings.model_copy(update={"about": settings.true_about})),
            "curves": self._read_curves(),
            "warnings": self._find_warnings(),
            "metrics": self.summary["metrics"],
        }

    def read_source(self, source: TextSource | ImageSource | ExampleSource) -> RawSource:
        """Return a source as `Model.trace` accepts it. A text is never the name of a file."""
        match source:
            case TextSource() if self.source_kind == TEXT:
                return source.text
            case ImageSource() if self.source_kind == IMAGE:
                return decode_image(_decode_base64(source.image), "The image", FORMATS)
            case ExampleSource():
                split, pairs, _ = self.held_out
                if source.example >= len(pairs):
                    raise ConfigError(
                        f"source.example: the {split} set has {quantity(len(pairs), 'pair')}, counted from 0."
                    )
                return pairs.sources[source.example]
        raise ConfigError(f"The model reads sources of the kind {self.source_kind}. Send a source of this kind.")

    def trace(self, request: TraceRequest) -> Trace:
        """Trace the prediction for the source of a request, or its target."""
        return self.model.trace(
            self.read_source(request.source),
            request.target,
            queries=request.queries,
            states=request.states,
            candidates=request.candidates,
            edits=request.edits,
            **request.search.options,
        )

    def answer_trace(self, request: TraceRequest, cache: DocumentCache, names: Collection[str] | None = None) -> bytes:
        """Return the document of a trace as JSON, with the fields `cached` and `seconds`. It is computed once.

        Args:
            request: What to trace.
            cache: The documents that were computed before.
            names: Return only the weights of these attentions.
        """
        start = perf_counter()
        key = request.model_dump_json(include=set(TraceRequest.model_fields), exclude={"summary"})
        content = cached = cache.get(key)
        if content is None:
            content = to_json(self.trace(request).document, ensure_ascii=False).encode()
            cache.put(key, content)
        if names is not None:
            content = select_attention(content, names)
        elif request.summary:
            content = summarize(content)
        fields = to_json({"cached": cached is not None, "seconds": round(perf_counter() - start, 4)})
        return fields[:-1].encode() + b"," + content[1:]

    def attribute(self, request: AttributionRequest, report: Report) -> None:
        """Report the progress of all methods, from 0 to 1, and the result of each."""
        source = self.read_source(request.source)
        contrast = request.contrast
        report({"progress": 0.0})
        for done, method in enumerate(request.methods):

            def report_share(share: float, done: int = done) -> None:
                report({"progress": (done + share) / len(request.methods)})

            attribution = self.model.attribute(
                source,
                request.target,
                method=method,
                contrast=(contrast.step, contrast.token) if isinstance(contrast, Contrast) else contrast,
                baseline=request.baseline if method == "integrated_gradients" else "zero",
                integration_steps=request.integration_steps,
                previous=request.previous,
                normalize=request.normalize,
                progress=report_share,
                **request.search.options,
            )
            report({"result": {"tokens": attribution.tokens, **attribution.document}})
        report({"progress": 1.0})

    def ablate_heads(self, request: HeadsRequest, report: Report) -> None:
        """Report the progress, from 0 to 1, and the effect of each head."""
        effects = self.model.ablate_heads(
            self.read_source(request.source),
            edits=request.edits,
            progress=lambda share: report({"progress": share}),
            **request.search.options,
        )
        report({"result": effects.document})

    def find_neighbors(self, request: NeighborsRequest) -> Generator[dict[str, Any], None, None]:
        """Yield the progress of the preparation of the training pairs, which is done once, and the nearest of them."""
        source = self.read_source(request.source)
        while (share := self._prepare_training_pairs()) is not None:
            yield {"progress": share}
        assert self._training_pairs is not None
        yield {"result": self._training_pairs.find(source, request.tokens)}

    def _prepare_training_pairs(self) -> float | None:
        """Do a part of the preparation. Return the share that is done; None if it is complete."""
        if self._training_pairs is None:
            self._training_pairs = TrainingPairs(self.model, read_training_pairs(self.folder))
        try:
            return self._training_pairs.advance()
        except BaseException:
            self._training_pairs = None
            raise

    def _describe_examples(self) -> dict[str, Any]:
        """Return the split of the examples (None if it cannot be read), and the first examples if they are texts."""
        try:
            split, pairs, _ = read_held_out(self.folder, MAX_EXAMPLES)
        except RegardError:
            return {"split": None, "examples": []}
        texts = pairs.sources if self.source_kind == TEXT else []
        return {"split": split, "examples": [text for text in texts if len(text) <= MAX_TEXT]}

    def _read_curves(self) -> list[dict[str, Any]]:
        try:
            panels = curves.read_panels([self.folder])
        except RegardError:  # the events of a copied model may be missing
            return []
        return [
            {
                "name": panel.name,
                "validated": curve.validated,
                "role": curve.role,
                "points": [list(point) for point in zip(curve.steps, curve.values, strict=True)],
            }
            for panel in panels
            for curve in panel.curves
        ]

    def _find_warnings(self) -> list[str]:
        """Return what training reported about the checkpoint: heads that do not use their input."""
        name = self.checkpoint.path.name
        average = name if name.startswith("average-") else None
        attention = find_attention(self.folder.events, self.checkpoint.step, average)
        return list(filter(None, [attention.describe_dead_heads()])) if attention else []


def summarize_model(model: Model) -> dict[str, Any]:
    """Return what the page shows of a model, whichever folder it was loaded from."""
    scores = model.scores
    return {
        "architecture": model.settings.model.architecture,
        "source_kind": model.settings.model.source_kind,
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "step": model.step,
        "metrics": None if scores is None else scores.values,
        "attentions": [
            {"name": name, **{key: value for key, value in record._asdict().items() if key != "parameters"}}
            for name, record in describe_mechanisms(model.network, parameters=False).items()
        ],
    }


def load_models(paths: Sequence[str], *, accept_changes: bool = False) -> list[ServedModel]:
    """Load the models of run folders. Raise ModelError for a folder that cannot be used, before any is loaded."""
    located = [open_model(path, accept_changes=accept_changes) for path in paths]
    return [
        ServedModel(str(index), folder, checkpoint, Model.from_checkpoint(folder, checkpoint))
        for index, (folder, checkpoint) in enumerate(located)
    ]


def _decode_base64(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("source.image is not valid base64. Encode the bytes of an image file.") from None
    if len(content) > MAX_IMAGE_BYTES:
        raise DataError(f"The image file is larger than {MAX_IMAGE_BYTES // 1_000_000} MB. Use a smaller image.")
    return content
