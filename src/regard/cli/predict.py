"""regard predict. Lines are predicted in large chunks while they arrive fast, and at once when the input pauses.

Threads read and tokenize the next chunk while the model predicts the current one.
"""

import inspect
import io
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import click

from regard.cli.options import accept_changes_option, ensemble_option, number_option, setting_option
from regard.config import resolve
from regard.data.lines import parse_lines
from regard.data.pharaoh import format_links
from regard.decoding.settings import SearchSettings
from regard.errors import DataError
from regard.formatting import quantity, to_json
from regard.overrides import parse_overrides
from regard.quantities import BatchSize
from regard.runs.folder import open_models

if TYPE_CHECKING:
    from regard.data.pharaoh import Links
    from regard.data.sources import SourceItem, SourceReader
    from regard.data.tokens.tokenizers import UnknownTokens
    from regard.decoding.search import Hypothesis
    from regard.inspection.prediction import Prediction

T = TypeVar("T")

PAUSE = 0.05
"""The longest time, in seconds, that an item waits for others to join its chunk."""

_BATCHES_PER_CHUNK = 16

EXAMPLES = """\b
Examples:
  regard predict runs/dates "3 mai 2009" "May 3, 2009"
  regard predict runs/dates < dates.txt > iso.txt
  tail -f dates.txt | regard predict runs/dates
  regard predict runs/dates --beam 5 --nbest 3 "3 mai 2009"
  regard predict runs/dates --set sample=true --set temperature=0.8 --nbest 5 "3 mai 2009"
  regard predict runs/dates --beam 5 --prefix 20 --must-contain -05- --banned 1999 "3 mai 2009"
  regard predict runs/dates --json --attention "3 mai 2009"
  regard predict runs/german --align < english.txt
  regard predict runs/one --with runs/other --beam 5 < dates.txt
  regard predict runs/captions --beam 5 photo.jpg photos.zip/cat.png
  ls photos/*.jpg | regard predict runs/captions"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@setting_option(SearchSettings, "beam", "K", "Beam size; 1 is greedy search. [default: the value of --nbest]")
@setting_option(SearchSettings, "nbest", "N", "Predictions per text.", show_default=True)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a search setting, listed above.")
@click.option("--prefix", metavar="TEXT", help="Start every prediction with TEXT.")
@click.option("--must-contain", metavar="PHRASE", multiple=True, help="Force every prediction to contain PHRASE.")
@click.option("--banned", metavar="PHRASE", multiple=True, help="Prevent predictions from containing PHRASE.")
@ensemble_option
@number_option("--batch-size", BatchSize, "N", "Maximum number of texts per batch. [default: depends on the device]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per prediction: text, score, tokens.")
@click.option("--attention", is_flag=True, help="Include attention weights; needs --json.")
@click.option("--align", is_flag=True, help="Add word alignments in Pharaoh format, after a tab; see regard align -h.")
@click.option("--tokens", is_flag=True, help="Align tokens instead of words; needs --align.")
@click.option("--replace-invalid", is_flag=True, help="Replace bytes that are not UTF-8 with U+FFFD, and count them.")
@accept_changes_option
def command(
    model: str,
    texts: tuple[str, ...],
    beam: int | None,
    nbest: int,
    settings: tuple[str, ...],
    prefix: str | None,
    must_contain: tuple[str, ...],
    banned: tuple[str, ...],
    others: tuple[str, ...],
    batch_size: int | None,
    as_json: bool,
    attention: bool,
    align: bool,
    tokens: bool,
    replace_invalid: bool,
    accept_changes: bool,
) -> None:
    """Predict the output for each TEXT. Without TEXT (or with a single -), read lines from stdin.

    If the model reads images, TEXT is the name of an image file. The prediction for an image that cannot be read is
    empty; the problem is printed on stderr, and the exit code is 3.

    Write one line per input line, in order. The prediction for an empty or blank line is empty. Lines from a pipe are
    predicted as they arrive: in full batches while the input is fast, and at once when it pauses. With --nbest above
    1, write N lines per text, sorted by the ranking score: ranking score, log-probability and prediction, separated by
    tabs. If a text has fewer predictions (an empty text has one), the fields of the remaining lines are empty. With
    --align, the links between source words and predicted words follow after a tab.

    Beam search ranks predictions by log-probability / ((5 + length) / 6)^length_penalty. The default length_penalty is
    0.6, so a longer prediction can rank above a more probable one; with 0, both scores are equal. If greedy search
    repeats a few tokens in a loop, only the first cycle is kept, unless loop_guard=false.
    """
    search: dict[str, Any] = {"nbest": nbest} | ({"beam": beam} if beam else {}) | parse_overrides(settings)
    options = resolve(SearchSettings, search, {})
    if attention and not as_json:
        raise click.UsageError("--attention needs --json. To draw the weights, use `regard look`.")
    if tokens and not align:
        raise click.UsageError("--tokens needs --align.")
    from_stdin = not texts or texts == ("-",)
    if from_stdin and sys.stdin is None:
        raise click.UsageError("Standard input is closed. Give TEXT, or redirect a file with < FILE.")
    opened = open_models(model, *others, accept_changes=accept_changes)

    from regard.api.model import Model, build_aligner
    from regard.data.tokens.tokenizers import UnknownTokens
    from regard.decoding.constraints import parse_constraints
    from regard.inspection.prediction import Prediction

    loaded = Model.from_checkpoints(opened)
    predictor, roles = loaded.predictor, loaded.predictor.attention_roles

    def build(item: "SourceItem", nbest: "Sequence[Hypothesis]") -> Prediction:
        return Prediction.from_nbest(item, nbest, predictor.tokenizer, roles, loaded.members)

    aligner = build_aligner(loaded, {"tokens": tokens}, batch_size or 64) if align else None
    lines: Iterable[str] = _read_stdin(replace_invalid=replace_invalid) if from_stdin else texts
    output = _Output(build=build, nbest=options.nbest, as_json=as_json, attention=attention, align=align)
    summary = _Summary(predictor.reader.noun, UnknownTokens())
    required = {"prefix": prefix, "must_contain": must_contain}

    def predict(chunk: Chunk) -> list[_Predicted]:
        per_text = {name: [value] * len(chunk.items) for name, value in required.items() if value}
        constraints = parse_constraints({**per_text, "banned": banned}, len(chunk.items))
        nbest = predictor.predict(
            chunk.items,
            options,
            constraints,
            batch_size=batch_size,
            attention=attention,
            first_index=summary.readable,  # samples do not depend on the chunks of a pipe
        )
        decoded = iter(predictor.tokenizer.decode_all([one.tokens for hypotheses in nbest for one in hypotheses]))
        return [
            _Predicted(item, hypotheses, list(islice(decoded, len(hypotheses))))
            for item, hypotheses in zip(chunk.items, nbest, strict=True)
        ]

    # A chunk has several batches, so that each batch has texts of similar length, and memory use is bounded.
    size = _BATCHES_PER_CHUNK * predictor.limit_batches(options, batch_size, attention=attention).rows
    read = partial(Chunk.read, predictor.reader, distinct=not options.is_random)
    for chunk in compute_ahead(map(read, read_chunks(lines, size))):
        predictions = chunk.match(predict(chunk))
        links: Iterator[Links | None] = repeat(None)
        if aligner is not None:
            found = aligner.align((each.item.label, text) for each in predictions if each for text in each.texts)
            links = (alignment.links for alignment in found)
        written: list[str] = []
        for source, problem, predicted in zip(chunk.sources, chunk.problems, predictions, strict=True):
            summary.add(predicted, problem)
            written += output.format(source, problem, predicted, links)
        click.echo("\n".join(written))
    summary.report()


_OTHER_SETTINGS = ", ".join(name for name in SearchSettings.model_fields if name not in ("beam", "nbest"))
command.help = f"{inspect.cleandoc(command.help or '')}\n\nSearch settings: {_OTHER_SETTINGS}."


class _Predicted(NamedTuple):
    """A source, its n-best hypotheses, and their texts."""

    item: "SourceItem"
    nbest: "Sequence[Hypothesis]"
    texts: Sequence[str]


class Chunk(NamedTuple):
    """Consecutive sources. For each, what is wrong with it if it cannot be read, otherwise the index of its item."""

    sources: Sequence[str]
    problems: Sequence[str | None]
    rows: Sequence[int | None]
    items: "Sequence[SourceItem]"

    @classmethod
    def read(cls, reader: "SourceReader", sources: Sequence[str], *, distinct: bool) -> "Chunk":
        """Read sources. If `distinct`, a source that occurs several times has one item."""
        problems = [reader.find_problem(source) for source in sources]
        rows: list[int | None] = []
        readable: list[str] = []
        row_of: dict[str, int] = {}
        for source, problem in zip(sources, problems, strict=True):
            row = row_of.get(source) if distinct else None
            if problem is None and row is None:
                row = row_of[source] = len(readable)
                readable.append(source)
            rows.append(row)
        return cls(sources, problems, rows, reader.read(readable))

    def match(self, predicted: Sequence[_Predicted]) -> list[_Predicted | None]:
        """Return the prediction for each source, given those for the items."""
        return [None if row is None else predicted[row] for row in self.rows]


@final
@dataclass
class _Summary:
    """What is reported when all sources have been predicted."""

    noun: str
    unknown: "UnknownTokens"
    count: int = 0
    failed: int = 0
    truncated: int = 0
    looped: int = 0

    @property
    def readable(self) -> int:
        return self.count - self.failed

    def add(self, predicted: _Predicted | None, problem: str | None) -> None:
        self.count += 1
        if predicted is None:
            self.failed += 1
            click.echo(f"regard: {problem}", err=True)
            return
        if unknown := predicted.item.unknown:
            self.unknown.add(unknown)
        for hypothesis in predicted.nbest:
            self.truncated += hypothesis.truncated
            self.looped += hypothesis.looped

    def report(self) -> None:
        """Print notes on stderr. Raise DataError if a source could not be read."""
        if self.truncated:
            many = quantity(self.truncated, "prediction")
            click.echo(f"note: {many} reached the length limit and may be incomplete.", err=True)
        if self.looped:
            many = quantity(self.looped, "prediction")
            click.echo(
                f"note: {many} repeated a few tokens in a loop; the repetitions were removed (loop_guard).", err=True
            )
        if self.unknown:
            texts = f"in {self.unknown.texts:,} of the texts"
            click.echo(f"note: the model has no token for {self.unknown} ({texts}).", err=True)
        if self.failed:
            raise DataError(
                f"{self.failed:,} of {quantity(self.count, self.noun)} could not be read, for the reasons above. "
                "Their predictions are empty."
            )


def read_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items, in order. A list ends if it is full, or `PAUSE` seconds after its first item.

    A thread reads ahead, up to `size` items. If reading fails, the items before the failure are yielded before the
    exception is raised.
    """
    ahead = queue.Queue[T | _End](size)
    # A daemon thread, because a read from an idle pipe cannot be interrupted.
    threading.Thread(target=_read, args=(items, ahead), daemon=True).start()
    while True:
        chunk: list[T] = []
        item = ahead.get()
        deadline = time.monotonic() + PAUSE
        while not isinstance(item, _End):
            chunk.append(item)
            if len(chunk) == size:
                break
            try:
                item = ahead.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if chunk:
            yield chunk
        if isinstance(item, _End):
            if item.failure is not None:
                raise item.failure
            return


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

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure


def _read(items: Iterable[T], ahead: "queue.Queue[T | _End]") -> None:
    try:
        for item in items:
            ahead.put(item)
    except Exception as error:  # raised again where the items are used
        ahead.put(_End(error))
    else:
        ahead.put(_End())


def _read_stdin(*, replace_invalid: bool) -> Iterator[str]:
    replaced = 0
    for line in parse_lines(_open_stdin(), "stdin"):
        if line.problem and not (replace_invalid and line.text):
            raise DataError(f"stdin, line {line.number}: {line.problem}. Correct the line, or use --replace-invalid.")
        replaced += line.problem is not None
        yield line.text
    if replaced:
        click.echo(
            f"note: {quantity(replaced, 'line')} had bytes that are not UTF-8; they were replaced with U+FFFD.",
            err=True,
        )


def _open_stdin() -> io.BufferedIOBase:
    """Open stdin separately: Python aborts at exit if another thread is still reading from sys.stdin."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # sys.stdin is not a file
        return sys.stdin.buffer  # type: ignore[return-value] # it is buffered, too


@final
@dataclass(frozen=True, kw_only=True)
class _Output:
    """The format of the output: lines of text, or JSON."""

    build: "Callable[[SourceItem, Sequence[Hypothesis]], Prediction]"
    nbest: int
    as_json: bool
    attention: bool
    align: bool

    def format(
        self, source: str, problem: str | None, predicted: _Predicted | None, links: "Iterator[Links | None]"
    ) -> list[str]:
        """Return the lines of a source. `links` yields the alignment of each prediction."""
        if predicted is None:
            return [to_json({"source": source, "error": problem}) if self.as_json else ""] * self.nbest
        if self.as_json:
            best = self.build(predicted.item, predicted.nbest)
            lines = [self._to_json(prediction, next(links)) for prediction in (best, *best.alternatives)]
        else:
            lines = [self._to_line(*pair, next(links)) for pair in zip(predicted.nbest, predicted.texts, strict=True)]
        return lines + [self._fill_line(source)] * (self.nbest - len(lines))

    def _to_line(self, hypothesis: "Hypothesis", text: str, links: "Links | None") -> str:
        text = text.replace("\n", " ")  # a byte-level model can generate line breaks
        fields = [f"{hypothesis.rank:.4f}", f"{hypothesis.score:.4f}", text] if self.nbest > 1 else [text]
        return "\t".join(fields if links is None else [*fields, format_links(links)])

    def _fill_line(self, source: str) -> str:
        """Return a line for a prediction that does not exist: an empty text has one prediction, whatever --nbest."""
        if self.as_json:
            return to_json({"source": source, "text": "", "score": None, "ranking_score": None}, ensure_ascii=False)
        return "\t" * (2 * int(self.nbest > 1) + int(self.align))

    def _to_json(self, prediction: "Prediction", links: "Links | None") -> str:
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
        if self.attention:
            fields["attention"] = prediction.attention.tolist()
        if links is not None:
            fields["links"] = sorted(links)
        return to_json(fields, ensure_ascii=False)
