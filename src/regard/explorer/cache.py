"""A cache of serialized documents: the least recently used are removed when it is full."""

from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import Final

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
