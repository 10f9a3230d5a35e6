"""regard predict. Lines are predicted in large chunks while they arrive fast, and at once when the input pauses."""

import inspect
import io
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from regard.cli.options import accept_changes_option, ensemble_option, number_option, setting_option
from regard.config import resolve
from regard.data.lines import parse_lines
from regard.data.pharaoh import format_links
from regard.decoding.settings import PredictionOptions, SearchSettings
from regard.errors import DataError
from regard.formatting import quantity, to_json
from regard.overrides import parse_overrides
from regard.quantities import BatchSize
from regard.runs.folder import open_models

if TYPE_CHECKING:
    from regard.api.model import Model
    from regard.data.pharaoh import Links
    from regard.inspection.prediction import Prediction

    Predicted = tuple[str, Prediction | None, str | None]

T = TypeVar("T")

PAUSE = 0.05
"""The longest time, in seconds, that an item waits for others to join its chunk."""

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
@number_option("--batch-size", BatchSize, "N", "Texts per batch.", 64)
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
    batch_size: int,
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
    nbest = resolve(SearchSettings, search, {}).nbest
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

    loaded = Model.from_checkpoints(opened)
    aligner = build_aligner(loaded, {"tokens": tokens}, batch_size) if align else None
    lines: Iterable[str] = _read_stdin(replace_invalid=replace_invalid) if from_stdin else texts

    truncated, looped, unknown, failed, count = 0, 0, UnknownTokens(), 0, 0

    def predict(sources: list[str]) -> "list[Prediction]":
        constraints: PredictionOptions = {
            "prefix": [prefix or ""] * len(sources),
            "must_contain": [must_contain] * len(sources),
            "banned": banned,
        }
        first = count - failed  # samples do not depend on the chunks of a pipe
        return loaded.predict(
            sources, batch_size=batch_size, attention=attention, first_index=first, **constraints, **search
        )

    # A chunk has several batches, so that each batch has texts of similar length, and memory use is bounded.
    for chunk in read_chunks(lines, 16 * batch_size):
        predicted = list(_predict_readable(loaded, chunk, predict))
        alignments = None if aligner is None else aligner.align(_predicted_pairs(predicted))
        for source, best, problem in predicted:
            count += 1
            if best is None:
                failed += 1
                click.echo(f"regard: {problem}", err=True)
                for _ in range(nbest):
                    click.echo(to_json({"source": source, "error": problem}) if as_json else "")
                continue
            unknown.add(best.unknown)
            for prediction in (best, *best.alternatives):
                links = None if alignments is None else next(alignments).links
                click.echo(
                    _to_json(prediction, attention=attention, links=links)
                    if as_json
                    else _to_line(prediction, scored=nbest > 1, links=links)
                )
                truncated += prediction.truncated
                looped += prediction.looped
            for _ in range(nbest - 1 - len(best.alternatives)):
                click.echo(_fill_line(source, as_json=as_json, scored=nbest > 1, aligned=align))
    if truncated:
        click.echo(
            f"note: {quantity(truncated, 'prediction')} reached the length limit and may be incomplete.", err=True
        )
    if looped:
        click.echo(
            f"note: {quantity(looped, 'prediction')} repeated a few tokens in a loop; the repetitions were removed "
            "(loop_guard).",
            err=True,
        )
    if unknown:
        click.echo(f"note: the model has no token for {unknown} (in {unknown.texts:,} of the texts).", err=True)
    if failed:
        noun = loaded.predictor.reader.noun
        raise DataError(
            f"{failed:,} of {quantity(count, noun)} could not be read, for the reasons above. Their predictions are "
            "empty."
        )


_OTHER_SETTINGS = ", ".join(name for name in SearchSettings.model_fields if name not in ("beam", "nbest"))
command.help = f"{inspect.cleandoc(command.help or '')}\n\nSearch settings: {_OTHER_SETTINGS}."


def _predict_readable(
    model: "Model", sources: Sequence[str], predict: "Callable[[list[str]], list[Prediction]]"
) -> "Iterator[Predicted]":
    """Predict the sources that can be read. Yield each source with its prediction, or with what is wrong with it."""
    problems = [model.predictor.reader.find_problem(source) for source in sources]
    predictions = iter(predict([source for source, problem in zip(sources, problems, strict=True) if problem is None]))
    for source, problem in zip(sources, problems, strict=True):
        yield source, next(predictions) if problem is None else None, problem


def _predicted_pairs(predicted: "Sequence[Predicted]") -> Iterator[tuple[str, str]]:
    """Yield each prediction with its source, alternatives included, in the order in which they are printed."""
    for _, best, _ in predicted:
        for prediction in (best, *best.alternatives) if best else ():
            yield prediction.source, prediction.text


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


def _open_stdin() -> BinaryIO:
    """Open stdin separately: Python aborts at exit if another thread is still reading from sys.stdin."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # sys.stdin is not a file
        return sys.stdin.buffer


def _to_line(prediction: "Prediction", *, scored: bool, links: "Links | None") -> str:
    text = prediction.text.replace("\n", " ")  # a byte-level model can generate line breaks
    fields = [f"{prediction.ranking_score:.4f}", f"{prediction.score:.4f}", text] if scored else [text]
    return "\t".join(fields if links is None else [*fields, format_links(links)])


def _fill_line(source: str, *, as_json: bool, scored: bool, aligned: bool) -> str:
    """Return a line for a prediction that does not exist: an empty text has one prediction, whatever --nbest."""
    if as_json:
        return to_json({"source": source, "text": "", "score": None, "ranking_score": None}, ensure_ascii=False)
    return "\t" * (2 * int(scored) + int(aligned))


def _to_json(prediction: "Prediction", *, attention: bool, links: "Links | None") -> str:
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
    if attention:
        fields["attention"] = prediction.attention.tolist()
    if links is not None:
        fields["links"] = sorted(links)
    return to_json(fields, ensure_ascii=False)
