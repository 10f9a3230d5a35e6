"""What `regard look` shows for each source: a prediction with its attention weights, or an attribution."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from regard.formatting import to_json

if TYPE_CHECKING:
    from regard.api.model import Model
    from regard.decoding.settings import PredictionOptions
    from regard.inspection.attribution.agreement import Agreement
    from regard.inspection.attribution.attribution import Attribution, Method
    from regard.inspection.figures import Figure
    from regard.inspection.prediction import ViewOptions
    from regard.inspection.trace.trace import Trace


class TraceRequest(NamedTuple):
    """What a trace in a .json file contains besides attention weights."""

    queries: bool
    states: bool


class Request(NamedTuple):
    """What is predicted, or decoded, and how it is explained."""

    sources: Sequence[str]
    targets: Sequence[str]
    contrasts: Sequence[str]
    beam: int
    method: "Method"
    traced: TraceRequest | None

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """Each source with its target, None if the target is predicted."""
        if not self.targets:
            return [(source, None) for source in self.sources]
        return list(zip(self.sources, self.targets, strict=True))


class Shown(NamedTuple):
    """What is drawn or printed for a source: attention weights, or an attribution with its agreement."""

    figure: "Figure"
    attribution: "Attribution | None" = None
    agreement: "Agreement | None" = None

    @property
    def notes(self) -> list[str]:
        """What is printed besides the view."""
        return [] if self.attribution is None else self.attribution.describe(self.agreement)


def show_predictions(model: "Model", request: Request, options: "ViewOptions") -> list[Shown]:
    """Predict the sources, or decode the given targets."""
    from regard.inspection.figures import Figure

    sources, targets, traced = request.sources, request.targets, request.traced
    if traced is not None:
        traces = _trace(model, request, traced)
        return [Shown(Figure(trace.prediction, trace.prediction.view(**options), trace.document)) for trace in traces]
    predictions = model.force(sources, targets) if targets else model.predict(sources, beam=request.beam)
    return [Shown(Figure(prediction, prediction.view(**options))) for prediction in predictions]


def _trace(model: "Model", request: Request, traced: TraceRequest) -> "list[Trace]":
    trace_one = partial(model.trace, queries=traced.queries, states=traced.states)
    return [
        trace_one(source, beam=request.beam) if target is None else trace_one(source, target)
        for source, target in request.pairs
    ]


def show_attributions(model: "Model", request: Request, options: "ViewOptions") -> list[Shown]:
    """Explain the predictions for the sources, or the given targets."""
    from regard.inspection.figures import Figure

    traces = None if request.traced is None else _trace(model, request, request.traced)
    shown = []
    for index, (source, target) in enumerate(request.pairs):
        contrast = request.contrasts[index] if request.contrasts else None
        search: PredictionOptions = {} if target is not None else {"beam": request.beam}
        attribution = model.attribute(source, target, method=request.method, contrast=contrast, **search)
        trace = None if traces is None else traces[index]
        if trace is not None:
            attribution = replace(attribution, prediction=trace.prediction)
        view = attribution.view(
            words=options["words"],
            kind=options["kind"],
            colors=options["colors"],
            max_weight=options["max_weight"],
            title=options["title"],
            style=options["style"],
        )
        agreement = attribution.measure_agreement(
            attention=options["attention"], layer=options["layer"], head=options["head"]
        )
        document = None if trace is None else replace(trace, attributions=[attribution]).document
        figure = Figure(attribution.prediction, view, document)
        shown.append(Shown(figure, attribution, agreement))
    return shown


def write_json(shown: Shown, options: "ViewOptions") -> str:
    prediction = shown.figure.prediction
    fields = {"source": prediction.source, "text": prediction.text, "score": prediction.score}
    if shown.attribution is not None:
        document = shown.attribution.to_document(words=options["words"], agreement=shown.agreement)
    else:
        selected = prediction.select(
            attention=options["attention"],
            layer=options["layer"],
            head=options["head"],
            words=options["words"],
            kind=options["kind"],
        )
        document = selected.document
    return to_json({**fields, **document}, ensure_ascii=False)
