"""Predict lines of text as `regard predict` does: read a chunk of lines, predict it, and format the predictions.

A chunk has several batches, so that each batch has texts of similar length, and memory use is bounded. While a thread
searches for the predictions of a chunk, others read and tokenize the next chunk, and format and write the previous
one. The modules that need torch are imported when a model is loaded.
"""

import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

from regard.config import Settings
from regard.data.pharaoh import format_links
from regard.decoding.settings import EngineName, Precision, SearchSettings
from regard.formatting import quantity, to_json
from regard.quantities import BatchSize

if TYPE_CHECKING:
    from regard.api.model import Model
    from regard.data.pharaoh import Links
    from regard.data.sources import SourceItem, SourceReader
    from regard.data.tokens.tokenizers import UnknownTokens
    from regard.decoding.search import Hypothesis

T = TypeVar("T")

PAUSE = 0.05
"""The longest time, in seconds, that an item waits for others to join its chunk."""

_BATCHES_PER_CHUNK = 16

_BLOCKS_AHEAD = 16
"""The maximum number of blocks of lines that wait to be predicted."""

_MAX_NAMES = 32
"""The maximum number of unknown tokens that are kept for a message."""


class LineOptions(Settings):
    """What is predicted for each line, and how it is written."""

    search: SearchSettings
    prefix: str | None = None
    must_contain: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    as_json: bool = False
    attention: bool = False
    align: bool = False
    align_tokens: bool = False
    batch_size: BatchSize | None = None
    engine: EngineName = "auto"
    precision: Precision = "float32"

    @property
    def constrained(self) -> bool:
        return bool(self.prefix or self.must_contain or self.banned)

    def fill_line(self, source: str) -> str:
        """Return a line for a prediction that does not exist: an empty text has one prediction, whatever `nbest`."""
        if self.as_json:
            return to_json({"source": source, "text": "", "score": None, "ranking_score": None}, ensure_ascii=False)
        return "\t" * (2 * int(self.search.nbest > 1) + int(self.align))

    def format_problem(self, source: str, problem: str) -> list[str]:
        """Return the lines of a source that cannot be read or predicted."""
        return [to_json({"source": source, "error": problem}) if self.as_json else ""] * self.search.nbest


class Predicted(NamedTuple):
    """A source, its n-best hypotheses, and their texts."""

    item: "SourceItem"
    nbest: "Sequence[Hypothesis]"
    texts: Sequence[str]


class Chunk(NamedTuple):
    """Consecutive sources. For each, what is wrong with it if it cannot be read, otherwise the index of its item; and
    the index of the first source of each item.
    """

    sources: Sequence[str]
    problems: Sequence[str | None]
    rows: Sequence[int | None]
    items: "Sequence[SourceItem]"
    positions: Sequence[int]

    @classmethod
    def read(
        cls, reader: "SourceReader", sources: Sequence[str], *, distinct: bool, known: Mapping[int, str] | None = None
    ) -> "Chunk":
        """Read sources, except for those with a known problem. If `distinct`, a source that occurs several times has
        one item.
        """
        known = known or {}
        problems = [known.get(index) or reader.find_problem(source) for index, source in enumerate(sources)]
        rows: list[int | None] = []
        positions: list[int] = []
        row_of: dict[str, int] = {}
        for position, (source, problem) in enumerate(zip(sources, problems, strict=True)):
            row = row_of.get(source) if distinct and problem is None else None
            if problem is None and row is None:
                row = row_of[source] = len(positions)
                positions.append(position)
            rows.append(row)
        return cls(sources, problems, rows, reader.read([sources[position] for position in positions]), positions)

    def match(self, predicted: Sequence[Predicted]) -> list[Predicted | None]:
        """Return the prediction for each source, given those for the items."""
        return [None if row is None else predicted[row] for row in self.rows]


@final
@dataclass
class PredictionCounts:
    """What is reported when all sources have been predicted."""

    sources: int = 0
    truncated: int = 0
    looped: int = 0
    unknown_texts: int = 0
    unknown: list[str] = field(default_factory=list)
    """The first distinct unknown tokens."""

    def describe(self) -> list[str]:
        """Return notes for the user."""
        notes = []
        if self.truncated:
            notes.append(f"{quantity(self.truncated, 'prediction')} reached the length limit and may be incomplete.")
        if self.looped:
            notes.append(
                f"{quantity(self.looped, 'prediction')} repeated a few tokens in a loop; the repetitions were removed "
                "(loop_guard)."
            )
        if self.unknown_texts:
            from regard.data.tokens.tokenizers import UnknownTokens

            named = UnknownTokens.of(self.unknown)
            notes.append(f"the model has no token for {named} (in {self.unknown_texts:,} of the texts).")
        return notes

    def __add__(self, other: "PredictionCounts") -> "PredictionCounts":
        return PredictionCounts(
            self.sources + other.sources,
            self.truncated + other.truncated,
            self.looped + other.looped,
            self.unknown_texts + other.unknown_texts,
            list(islice(dict.fromkeys((*self.unknown, *other.unknown)), _MAX_NAMES)),
        )

    @classmethod
    def of(cls, predictions: Sequence[Predicted | None], unknown: "UnknownTokens") -> "PredictionCounts":
        """Count the predictions of a chunk; `unknown` are the unknown tokens of its sources."""
        hypotheses = [hypothesis for each in predictions if each is not None for hypothesis in each.nbest]
        return cls(
            len(predictions),
            sum(hypothesis.truncated for hypothesis in hypotheses),
            sum(hypothesis.looped for hypothesis in hypotheses),
            unknown.texts,
            unknown.names,
        )


@final
@dataclass(frozen=True)
class PredictedLines:
    """The output lines of consecutive sources, what is wrong with each source that has no prediction, and counts."""

    lines: list[str]
    problems: dict[int, str]
    counts: PredictionCounts

    def __add__(self, other: "PredictedLines") -> "PredictedLines":
        """Append the lines of the sources that follow."""
        shifted = {self.counts.sources + index: problem for index, problem in other.problems.items()}
        return PredictedLines(self.lines + other.lines, self.problems | shifted, self.counts + other.counts)


@final
class LinePredictor:
    """A model that predicts lines, with the options of the prediction."""

    def __init__(self, model: "Model", options: LineOptions) -> None:
        from regard.api.model import build_aligner
        from regard.decoding.engine import Request

        self.model, self.options = model, options
        self._predictor = model.predictor
        self._roles = model.predictor.attention_roles
        request = Request(options.search, options.constrained, options.attention, options.precision)
        self._engine = model.choose_engine(options.engine, request)
        tokens = {"tokens": options.align_tokens}
        self._aligner = build_aligner(model, tokens, options.batch_size or 64) if options.align else None

    @property
    def noun(self) -> str:
        return self._predictor.reader.noun

    @property
    def chunk_size(self) -> int:
        limits = self._predictor.limit_batches(
            self.options.search, self.options.batch_size, attention=self.options.attention
        )
        return _BATCHES_PER_CHUNK * limits.rows

    def read(self, sources: Sequence[str], known: Mapping[int, str] | None = None) -> Chunk:
        """Read a chunk, except for sources with a known problem."""
        return Chunk.read(self._predictor.reader, sources, distinct=not self.options.search.is_random, known=known)

    def predict(self, chunks: Iterable[Chunk], first_index: int = 0) -> Generator[PredictedLines]:
        """Predict consecutive chunks. `first_index` is the index of the first source in the input: samples depend on
        it.

        One thread reads the chunks, and another searches. If words are aligned, the caller searches, because the
        aligner uses the model, too. If the generator is closed, a running search stops at its next step.
        """
        from regard.decoding.steps import call_before_steps

        closed, searching = threading.Event(), threading.Lock()

        def stop_if_closed() -> None:
            if closed.is_set():
                raise InterruptedError

        def search() -> "Iterator[tuple[Chunk, list[list[Hypothesis]]]]":
            index = first_index
            for chunk in compute_ahead(chunks):
                with searching, call_before_steps(stop_if_closed):
                    stop_if_closed()
                    nbest = self._search(chunk, index)
                yield chunk, nbest
                index += len(chunk.sources)

        try:
            for chunk, nbest in compute_ahead(search()) if self._aligner is None else search():
                yield self._format_chunk(chunk, nbest)
        finally:
            closed.set()
            with searching:  # the interpreter must not exit while another thread computes
                pass

    def predict_block(self, sources: Sequence[str], known: Mapping[int, str], first_index: int) -> PredictedLines:
        """Predict any number of sources, in chunks, except for sources with a known problem."""
        size = self.chunk_size
        chunks = (
            self.read(sources[start : start + size], {index - start: problem for index, problem in known.items()})
            for start in range(0, len(sources), size)
        )
        return sum(self.predict(chunks, first_index), start=PredictedLines([], {}, PredictionCounts()))

    def _format_chunk(self, chunk: Chunk, nbest: "Sequence[Sequence[Hypothesis]]") -> PredictedLines:
        from regard.data.tokens.tokenizers import UnknownTokens

        decoded = iter(self._predictor.tokenizer.decode_all([one.tokens for found in nbest for one in found]))
        predictions = chunk.match(
            [
                Predicted(item, found, list(islice(decoded, len(found))))
                for item, found in zip(chunk.items, nbest, strict=True)
            ]
        )
        links: Iterator[Links | None] = repeat(None)
        if self._aligner is not None:
            pairs = ((each.item.label, text) for each in predictions if each for text in each.texts)
            links = (alignment.links for alignment in self._aligner.align(pairs))
        unknown = UnknownTokens()
        lines: list[str] = []
        for source, problem, predicted in zip(chunk.sources, chunk.problems, predictions, strict=True):
            if predicted is None:
                lines += self.options.format_problem(source, problem or "")
                continue
            unknown.add(predicted.item.unknown)
            lines += self._format(source, predicted, links)
        problems = {index: problem for index, problem in enumerate(chunk.problems) if problem is not None}
        return PredictedLines(lines, problems, PredictionCounts.of(predictions, unknown))

    def _search(self, chunk: Chunk, first_index: int) -> "list[list[Hypothesis]]":
        from regard.decoding.constraints import parse_constraints

        options, count = self.options, len(chunk.items)
        required = {"prefix": options.prefix, "must_contain": options.must_contain}
        per_text = {name: [value] * count for name, value in required.items() if value}
        return self._engine.predict(
            chunk.items,
            options.search,
            parse_constraints({**per_text, "banned": options.banned}, count),
            batch_size=options.batch_size,
            attention=options.attention,
            indices=[first_index + position for position in chunk.positions],
        )

    def _format(self, source: str, predicted: Predicted, links: "Iterator[Links | None]") -> list[str]:
        """Return the lines of a source. `links` yields the alignment of each prediction."""
        if self.options.as_json:
            lines = self._to_json(predicted, links)
        else:
            lines = [self._to_line(*pair, next(links)) for pair in zip(predicted.nbest, predicted.texts, strict=True)]
        return lines + [self.options.fill_line(source)] * (self.options.search.nbest - len(lines))

    def _to_line(self, hypothesis: "Hypothesis", text: str, links: "Links | None") -> str:
        text = text.replace("\n", " ")  # a byte-level model can generate line breaks
        scores = [f"{hypothesis.rank:.4f}", f"{hypothesis.score:.4f}"] if self.options.search.nbest > 1 else []
        return "\t".join([*scores, text, *([] if links is None else [format_links(links)])])

    def _to_json(self, predicted: Predicted, links: "Iterator[Links | None]") -> list[str]:
        from regard.inspection.prediction import Prediction

        tokenizer, members = self._predictor.tokenizer, self.model.members
        best = Prediction.from_nbest(predicted.item, predicted.nbest, tokenizer, self._roles, members)
        lines = []
        for prediction in (best, *best.alternatives):
            fields: dict[str, Any] = {
                "source": prediction.source,
                "text": prediction.text,
                "score": prediction.score,
                "ranking_score": prediction.ranking_score,
                "truncated": prediction.truncated,
                "looped": prediction.looped,
                "unknown": prediction.unknown,
                "tokens": prediction.tokens,
                "source_tokens": prediction.source_tokens,
            }
            if self.options.attention:
                fields["attention"] = prediction.attention.tolist()
            found = next(links)
            if found is not None:
                fields["links"] = sorted(found)
            lines.append(to_json(fields, ensure_ascii=False))
        return lines


def read_chunks(blocks: Iterable[Sequence[T]], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items, in order, given blocks of items. A list ends if it is full, or `PAUSE` seconds
    after its first item.

    A thread reads some blocks ahead. If reading fails, the items before the failure are yielded before the exception is
    raised.
    """
    ahead = queue.Queue[Sequence[T] | _End](_BLOCKS_AHEAD)
    # A daemon thread, because a read from an idle pipe cannot be interrupted.
    threading.Thread(target=_read, args=(blocks, ahead), daemon=True).start()
    items: list[T] = []
    end: _End | None = None
    while end is None or items:
        deadline = time.monotonic() + PAUSE
        while end is None and len(items) < size:
            try:
                block = ahead.get(timeout=max(0.0, deadline - time.monotonic()) if items else None)
            except queue.Empty:
                break
            if isinstance(block, _End):
                end = block
            else:
                deadline = deadline if items else time.monotonic() + PAUSE
                items += block
        if items:
            yield items[:size]
            items = items[size:]
    if end.failure is not None:
        raise end.failure


def compute_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield items that a thread computes. It computes the next item while the caller uses the current one."""
    ahead = queue.Queue[T | _End](1)
    threading.Thread(target=_read, args=(items, ahead), daemon=True).start()
    while not isinstance(item := ahead.get(), _End):
        yield item
    if item.failure is not None:
        raise item.failure


class _End:
    """The end of the input, and the exception that caused it, if any."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure


def _read(items: Iterable[T], ahead: "queue.Queue[T | _End]") -> None:
    try:
        for item in items:
            ahead.put(item)
    except BaseException as error:  # raised again where the items are used; a plugin may raise SystemExit
        ahead.put(_End(error))
    else:
        ahead.put(_End())
