"""Attributions as a stream: one method after the other, so that a client can stop between two of them."""

from collections.abc import Generator
from typing import Any

from regard.explorer.schemas import AttributionRequest, Contrast
from regard.explorer.served_model import ServedModel
from regard.inspection.trace_document import write_attribution


def attribute(served: ServedModel, request: AttributionRequest) -> Generator[dict[str, Any], None, None]:
    """Yield the progress from 0 to 1, and the result of each method."""
    source = served.read_source(request.source)
    contrast = request.contrast
    yield {"progress": 0.0}
    for done, method in enumerate(request.methods, start=1):
        attribution = served.model.attribute(
            source,
            request.target,
            method=method,
            contrast=(contrast.step, contrast.token) if isinstance(contrast, Contrast) else contrast,
            baseline=request.baseline if method == "integrated_gradients" else "zero",
            integration_steps=request.integration_steps,
            previous=request.previous,
            normalize=request.normalize,
            **request.search.options,
        )
        yield {"result": {"tokens": attribution.tokens, **write_attribution(attribution)}}
        yield {"progress": done / len(request.methods)}
