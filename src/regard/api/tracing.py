"""Trace a prediction, or a given target."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regard.api import arguments, description
from regard.decoding.tracing import TraceOptions
from regard.errors import ConfigError
from regard.inspection.trace import Trace

if TYPE_CHECKING:
    from regard.api.model import Model


def trace_source(
    model: "Model", source: Any, target: str | None, request: TraceOptions, search: Mapping[str, Any]
) -> Trace:
    """Return the trace of the prediction for a source, or of a given target."""
    predictor = model.predictor
    arguments.check_source(source, predictor.reader)
    [item] = predictor.reader.read([source])
    if target is None:
        options, constraints = arguments.parse_search(search)
        traced = predictor.trace(item, options, constraints, request)
        settings = arguments.describe_search(options, constraints)
    else:
        if search:
            raise ConfigError(
                f"A given target is traced without a search, so {', '.join(search)} cannot be set. Omit the target, or "
                "the settings of the search."
            )
        settings = {"target": arguments.check_text("target", target)}
        traced = predictor.trace_target(item, target, request)
    return Trace.from_search(item, traced, predictor.tokenizer, description.describe(model), settings)
