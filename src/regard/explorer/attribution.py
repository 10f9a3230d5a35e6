"""Attributions as a stream: the progress, and the result of each method."""

from regard.explorer.jobs import Report
from regard.explorer.schemas import AttributionRequest, Contrast
from regard.explorer.served_model import ServedModel
from regard.inspection.trace_document import write_attribution


def attribute(served: ServedModel, request: AttributionRequest, report: Report) -> None:
    """Report the progress of all methods, from 0 to 1, and the result of each."""
    source = served.read_source(request.source)
    contrast = request.contrast
    report({"progress": 0.0})
    for done, method in enumerate(request.methods):

        def report_share(share: float, done: int = done) -> None:
            report({"progress": (done + share) / len(request.methods)})

        attribution = served.model.attribute(
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
        report({"result": {"tokens": attribution.tokens, **write_attribution(attribution)}})
    report({"progress": 1.0})
