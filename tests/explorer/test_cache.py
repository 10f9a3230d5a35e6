"""The cache keeps what was used last, up to its size."""

from regard.explorer.cache import DocumentCache


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
