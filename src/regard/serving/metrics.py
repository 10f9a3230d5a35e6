"""Metrics in the format of Prometheus. No label contains a key, an address or a text."""

import os
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_METHODS: Final = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@final
class Metrics:
    """The metrics of the server. With several workers, each has its own counters, and `render` adds them up."""

    def __init__(self) -> None:
        self._shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "regard_requests", "Requests that were answered.", ["endpoint", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "regard_request_seconds",
            "Time from the headers of a request to the end of its response.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "regard_batch_size", "Sentences that were computed at once.", buckets=_SIZES, registry=registry
        )
        self._sentences = Counter("regard_sentences", "Sentences that were computed.", registry=registry)
        self._queue = Gauge(
            "regard_queue_length", "Sentences that wait.", registry=registry, multiprocess_mode="livesum"
        )
        if not self._shared:
            ProcessCollector(registry=registry)

    def count_request(self, endpoint: str, method: str, status: int, seconds: float) -> None:
        """Count a request. The endpoint is the path of its route, without parameters."""
        self._requests.labels(endpoint, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def count_batch(self, size: int) -> None:
        """Count a batch of sentences."""
        self._batches.observe(size)
        self._sentences.inc(size)

    def set_queue_length(self, length: int) -> None:
        """Set the number of sentences that wait."""
        self._queue.set(length)

    def render(self) -> bytes:
        """Return the metrics of all workers."""
        if not self._shared:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
