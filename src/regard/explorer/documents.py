"""Serialized documents of traces: a cache of them, and the parts of them that a request asks for.

H heads, T queries, S keys.
"""

import json
from collections import OrderedDict
from collections.abc import Collection
from hashlib import sha256
from threading import Lock
from typing import Any, Final

import numpy as np

from regard.errors import ConfigError
from regard.formatting import did_you_mean, to_json
from regard.inspection.trace.document import Document, read_array, write_array

MAX_BYTES: Final = 256 << 20


class DocumentCache:
    """Documents by the request that they answer, up to a total number of bytes. It can be used from several threads.
    A request can be larger than its document (images), so the cache keeps only its digest.

    Args:
        max_bytes: The maximum number of bytes of all documents. A larger document is not kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._documents: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._documents)

    def get(self, key: str) -> bytes | None:
        """Return a document, and mark it as used; None if it is not in the cache."""
        digest = _hash(key)
        with self._lock:
            if digest not in self._documents:
                return None
            self._documents.move_to_end(digest)
            return self._documents[digest]

    def put(self, key: str, document: bytes) -> None:
        """Keep a document, and remove those that were not used for the longest time."""
        if len(document) > self._max_bytes:
            return
        digest = _hash(key)
        with self._lock:
            self.bytes += len(document) - len(self._documents.pop(digest, b""))
            self._documents[digest] = document
            while self.bytes > self._max_bytes:
                _, removed = self._documents.popitem(last=False)
                self.bytes -= len(removed)


def _hash(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def summarize(content: bytes) -> bytes:
    """Average the weights of each attention over its heads, and omit what they are computed from."""
    document = json.loads(content)
    document["attention"] = [_average_heads(entry) for entry in document["attention"]]
    return to_json(document, ensure_ascii=False).encode()


def select_attention(content: bytes, names: Collection[str]) -> bytes:
    """Return the weights of these attentions, with all heads."""
    entries = json.loads(content)["attention"]
    available = {entry["name"] for entry in entries}
    for name in names:
        if name not in available:
            raise ConfigError(f"names: the model has no attention '{name}'.{did_you_mean(name, available)}")
    selected: dict[str, Any] = {"attention": [entry for entry in entries if entry["name"] in names]}
    return to_json(selected, ensure_ascii=False).encode()


def _average_heads(entry: Document) -> Document:
    weights = read_array(entry)
    rest = {name: value for name, value in entry.items() if name != "inputs"}
    if weights.ndim == 2:
        return rest
    average_TS = weights.astype(np.float32).mean(0)
    return {**rest, **write_array(average_TS, entry["dtype"])}
