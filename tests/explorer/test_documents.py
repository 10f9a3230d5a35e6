"""The cache keeps what was used last, up to its size."""

import gc
import weakref

from regard.explorer.documents import DocumentCache


def test_the_least_recently_used_document_is_removed_first() -> None:
    cache = DocumentCache(max_bytes=10)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    assert cache.get("a") == b"1234"
    cache.put("c", b"1234")
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (b"1234", b"1234")
    assert cache.bytes == 8


def test_the_size_is_that_of_the_documents_it_holds() -> None:
    cache = DocumentCache(max_bytes=10)
    cache.put("a", b"1234")
    cache.put("a", b"12")
    assert (len(cache), cache.bytes) == (1, 2)
    cache.put("b", b"x" * 11)
    assert (len(cache), cache.bytes) == (1, 2)


class Request(str):
    """A request whose memory can be observed."""


def test_the_requests_are_not_kept_in_memory() -> None:
    """A request with images can be much larger than its document, and is not counted."""
    cache = DocumentCache(max_bytes=10)
    request = Request("image" * 1000)
    alive = weakref.ref(request)
    cache.put(request, b"1234")
    del request
    gc.collect()
    assert alive() is None
    assert cache.get("image" * 1000) == b"1234"
    assert cache.get("image" * 1001) is None
