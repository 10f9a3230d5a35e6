import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from regard.decoding.steps import call_before_step
from regard.errors import DataError
from regard.serving.batching import Batcher, BatchLimits, Item
from regard.serving.errors import RequestError

AT_ONCE = BatchLimits(wait=0)
PATIENT = BatchLimits(wait=0.05)


def item(text: str, tokens: int = 1) -> Item:
    return Item(text, text, tokens)


class Model:
    """Computes texts in upper case, and keeps the batches. While it is closed, a batch waits at its first step."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.stopped = 0
        self.gate, self.started = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def __call__(self, kind: str, texts: Sequence[str]) -> list[str]:
        self.batches.append((kind, list(texts)))
        self.started.set()
        while not self.gate.wait(0.001):
            try:
                call_before_step()
            except Exception:
                self.stopped += 1
                raise
        if "bad" in texts:
            raise DataError("This text is bad.")
        return [text.upper() for text in texts]


def run(work: Callable[[Batcher[str, str]], Awaitable[Any]], model: Model, limits: BatchLimits = PATIENT) -> Any:
    async def main() -> Any:
        batcher: Batcher[str, str] = Batcher(model, limits)
        try:
            return await work(batcher)
        finally:
            model.gate.set()
            await batcher.finish()

    return asyncio.run(main())


async def _submit_one(batcher: Batcher[str, str], text: str, kind: str = "greedy") -> str:
    [result] = await batcher.submit(kind, [item(text)])
    return result


def test_concurrent_requests_share_a_batch_and_each_gets_its_own_results() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[list[str]]:
        submitted = batcher.submit("greedy", [item("a"), item("b")]), batcher.submit("greedy", [item("c")])
        return list(await asyncio.gather(*submitted))

    assert run(work, model) == [["A", "B"], ["C"]]
    assert model.batches == [("greedy", ["a", "b", "c"])]


def test_equal_texts_are_computed_once() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[str]:
        return list(await asyncio.gather(*(_submit_one(batcher, text) for text in "aabab")))

    assert run(work, model) == list("AABAB")
    assert model.batches == [("greedy", ["a", "b"])]


def test_a_text_that_is_being_computed_is_not_computed_again() -> None:
    model = Model(is_open=False)

    async def work(batcher: Batcher[str, str]) -> list[str]:
        first = asyncio.ensure_future(_submit_one(batcher, "a"))
        await asyncio.to_thread(model.started.wait)
        second = asyncio.ensure_future(_submit_one(batcher, "a"))
        await asyncio.sleep(0)
        model.gate.set()
        return [await first, await second]

    assert run(work, model, AT_ONCE) == ["A", "A"]
    assert model.batches == [("greedy", ["a"])]


def test_requests_of_different_kinds_do_not_share_a_batch() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[str]:
        return list(await asyncio.gather(_submit_one(batcher, "a"), _submit_one(batcher, "a", "beam")))

    assert run(work, model) == ["A", "A"]
    assert model.batches == [("greedy", ["a"]), ("beam", ["a"])]


def test_a_batch_has_at_most_the_given_number_of_tokens_except_for_a_longer_item() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[str]:
        return await batcher.submit("greedy", [item("a", 3), item("b", 3), item("c", 9), item("d", 1)])

    assert run(work, model, BatchLimits(tokens=6, wait=0.05)) == ["A", "B", "C", "D"]
    assert [texts for _, texts in model.batches] == [["a", "b"], ["c"], ["d"]]


def test_a_full_batch_does_not_wait() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[str]:
        return await asyncio.wait_for(batcher.submit("greedy", [item("a"), item("b")]), 60)

    assert run(work, model, BatchLimits(items=2, wait=3600)) == ["A", "B"]


def test_a_cancelled_request_leaves_its_batch() -> None:
    model = Model(is_open=False)

    async def work(batcher: Batcher[str, str]) -> str:
        first = asyncio.ensure_future(_submit_one(batcher, "a"))
        await asyncio.to_thread(model.started.wait)
        cancelled, kept = (asyncio.ensure_future(_submit_one(batcher, text)) for text in "bc")
        await asyncio.sleep(0)
        cancelled.cancel()
        model.gate.set()
        await first
        return await kept

    assert run(work, model, AT_ONCE) == "C"
    assert [texts for _, texts in model.batches] == [["a"], ["c"]]


def test_a_batch_that_nobody_waits_for_stops_at_its_next_step() -> None:
    model = Model(is_open=False)

    async def work(batcher: Batcher[str, str]) -> str:
        abandoned = asyncio.ensure_future(_submit_one(batcher, "a"))
        await asyncio.to_thread(model.started.wait)
        abandoned.cancel()
        await asyncio.wait([abandoned])
        while not model.stopped:
            await asyncio.sleep(0.001)
        model.gate.set()
        return await _submit_one(batcher, "a")

    assert run(work, model, AT_ONCE) == "A"
    assert model.stopped == 1


def test_a_text_that_fails_does_not_make_others_fail() -> None:
    model = Model()

    async def work(batcher: Batcher[str, str]) -> list[Any]:
        return list(
            await asyncio.gather(*(_submit_one(batcher, text) for text in ("a", "bad", "c")), return_exceptions=True)
        )

    first, failure, last = run(work, model)
    assert (first, last) == ("A", "C")
    assert isinstance(failure, DataError)


def test_a_full_queue_is_reported_with_a_time_to_try_again() -> None:
    model = Model(is_open=False)

    async def work(batcher: Batcher[str, str]) -> None:
        first = asyncio.ensure_future(_submit_one(batcher, "a"))
        await asyncio.to_thread(model.started.wait)
        second = asyncio.ensure_future(batcher.submit("greedy", [item("b"), item("c")]))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as raised:
            await _submit_one(batcher, "d")
        assert (raised.value.status, raised.value.retry_after) == (503, 1)
        model.gate.set()
        assert [await first, await second] == ["A", ["B", "C"]]

    run(work, model, BatchLimits(wait=0, queue=2))


def test_finishing_computes_what_was_accepted() -> None:
    model = Model(is_open=False)

    async def main() -> list[str]:
        batcher: Batcher[str, str] = Batcher(model, AT_ONCE)
        accepted = [asyncio.ensure_future(_submit_one(batcher, text)) for text in "ab"]
        await asyncio.to_thread(model.started.wait)
        closing = asyncio.ensure_future(batcher.finish())
        await asyncio.sleep(0)
        model.gate.set()
        await closing
        late = await _submit_one(batcher, "c")  # of a request that was accepted before
        return [*[await each for each in accepted], late]

    assert asyncio.run(main()) == ["A", "B", "C"]
