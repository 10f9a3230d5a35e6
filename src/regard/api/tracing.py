"""Trace a prediction, or a given target, with or without edits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from regard.api import arguments, description
from regard.arguments import check_text
from regard.decoding.edits import TraceTask, apply_edits, check_steps, describe_edit, parse_edits
from regard.decoding.tracing import TraceOptions
from regard.errors import ConfigError
from regard.inspection.trace.changes import compare_predictions
from regard.inspection.trace.trace import Trace

if TYPE_CHECKING:
    from regard.api.model import Model


def trace_source(
    model: "Model",
    source: Any,
    target: str | None,
    request: TraceOptions,
    search: Mapping[str, Any],
    edits: Sequence[Any] = (),
) -> Trace:
    """Return the trace of the prediction for a source, or of a given target, with the edits."""
    parsed = parse_edits(edits)
    predictor = model.predictor
    arguments.check_source(source, predictor.reader)
    [item] = predictor.reader.read([source])
    if target is None:
        options, constraints = arguments.parse_search(search)
        task = TraceTask(item, options, constraints)
        settings = arguments.describe_search(options, constraints)
    else:
        if search:
            raise ConfigError(
                f"A given target is traced without a search, so {', '.join(search)} cannot be set. Omit the target, or "
                "the settings of the search."
            )
        settings = {"target": check_text("target", target)}
        task = TraceTask(item, target=target)
    if not parsed:
        return _trace(model, task, request, settings)
    edited = _trace(model, apply_edits(predictor, task, parsed), request, settings)
    # Only the prediction and its weights are compared.
    before = _trace(model, task, TraceOptions(candidates=1), settings)
    check_steps(predictor, parsed, max(_longest(before), _longest(edited)))
    changes = compare_predictions(before.prediction, edited.prediction)
    return replace(edited, edits=list(map(describe_edit, parsed)), changes=changes)


def _trace(model: "Model", task: TraceTask, request: TraceOptions, settings: dict[str, Any]) -> Trace:
    predictor = model.predictor
    traced = task.trace(predictor, request)
    return Trace.from_search(task.item, traced, predictor.tokenizer, description.describe(model), settings)


def _longest(trace: Trace) -> int:
    """Return the number of tokens of the longest hypothesis."""
    return max(len(each.tokens) for each in (trace.prediction, *trace.prediction.alternatives))
