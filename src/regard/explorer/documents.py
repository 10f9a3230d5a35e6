"""Documents of traces, as the server sends them: complete, or with the heads of each attention averaged.

H heads, T queries, S keys.
"""

import json
from collections.abc import Collection
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from regard.errors import ConfigError
from regard.explorer.cache import DocumentCache
from regard.explorer.schemas import TraceRequest
from regard.explorer.served_model import ServedModel
from regard.formatting import did_you_mean, to_json
from regard.inspection.trace_document import Document, read_array, write_array


class Answer(NamedTuple):
    """A serialized document, whether it was in the cache, and the time that it took in seconds."""

    content: bytes
    cached: bool
    seconds: float

    def to_json(self) -> bytes:
        """Return the document with the fields `cached` and `seconds`."""
        fields = to_json({"cached": self.cached, "seconds": round(self.seconds, 4)})
        return fields[:-1].encode() + b"," + self.content[1:]


def trace_document(served: ServedModel, request: TraceRequest, cache: DocumentCache) -> Answer:
    """Return the complete document of a trace, computed once."""
    start = perf_counter()
    fields = request.model_dump_json(include=set(TraceRequest.model_fields), exclude={"summary"})
    cached = cache.get(fields)
    if cached is not None:
        return Answer(cached, True, perf_counter() - start)
    content = to_json(served.trace(request).document, ensure_ascii=False).encode()
    cache.put(fields, content)
    return Answer(content, False, perf_counter() - start)


def summarize(answer: Answer) -> Answer:
    """Average the weights of each attention over its heads, and omit what they are computed from."""
    document = json.loads(answer.content)
    document["attention"] = [_average_heads(entry) for entry in document["attention"]]
    return answer._replace(content=to_json(document, ensure_ascii=False).encode())


def select_attention(answer: Answer, names: Collection[str]) -> Answer:
    """Return the weights of these attentions, with all heads."""
    entries = json.loads(answer.content)["attention"]
    available = {entry["name"] for entry in entries}
    for name in names:
        if name not in available:
            raise ConfigError(f"names: the model has no attention '{name}'.{did_you_mean(name, available)}")
    selected: dict[str, Any] = {"attention": [entry for entry in entries if entry["name"] in names]}
    return answer._replace(content=to_json(selected, ensure_ascii=False).encode())


def _average_heads(entry: Document) -> Document:
    weights = read_array(entry)
    rest = {name: value for name, value in entry.items() if name != "inputs"}
    if weights.ndim == 2:
        return rest
    average_TS = weights.astype(np.float32).mean(0)
    return {**rest, **write_array(average_TS, entry["dtype"])}
