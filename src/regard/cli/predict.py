"""regard predict"""

import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import click

from regard.cli.options import with_others
from regard.cli.streaming import read_chunks
from regard.config import parse_override, resolve
from regard.data.lines import parse_lines
from regard.decoding.settings import SearchSettings
from regard.errors import DataError
from regard.formatting import quantity, to_json
from regard.runs.folder import open_models

if TYPE_CHECKING:
    from regard.inspection.prediction import Prediction

MOST_NAMED = 8
"""Unknown tokens that are told by name."""

EXAMPLES = """\b
Examples:
  regard predict runs/dates "3 mai 2009" "May 3, 2009"
  regard predict runs/dates < dates.txt > iso.txt
  tail -f dates.txt | regard predict runs/dates
  regard predict runs/dates --beam 5 --nbest 3 "3 mai 2009"
  regard predict runs/dates --set sample=true --set temperature=0.8 --nbest 5 "3 mai 2009"
  regard predict runs/dates --beam 5 --prefix 20 --must-say -05- --banned 1999 "3 mai 2009"
  regard predict runs/one --with runs/other --beam 5 "3 mai 2009"
  regard predict runs/dates --json --attention "3 mai 2009" """


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept at each step; 1 is greedy. [default: NBEST]")
@click.option("--nbest", type=click.IntRange(1), default=1, show_default=True, help="Predictions for each text.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting of the search, see below.")
@click.option("--prefix", metavar="TEXT", help="What every answer begins with.")
@click.option("--must-say", metavar="PHRASE", multiple=True, help="A phrase that every answer contains.")
@click.option("--banned", metavar="PHRASE", multiple=True, help="A phrase that no answer contains.")
@with_others
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line: text, score, tokens.")
@click.option("--attention", is_flag=True, help="With --json: the weights too.")
@click.option("--replace-invalid", is_flag=True, help="Bytes that are not UTF-8 become U+FFFD, and are counted.")
def command(
    model: str,
    texts: tuple[str, ...],
    beam: int | None,
    nbest: int,
    settings: tuple[str, ...],
    prefix: str | None,
    must_say: tuple[str, ...],
    banned: tuple[str, ...],
    others: tuple[str, ...],
    batch_size: int,
    as_json: bool,
    attention: bool,
    replace_invalid: bool,
) -> None:
    """Predict the output of each TEXT, or of each line of stdin if there is none (or a single -).

    One line in, one line out, in order; the prediction for an empty line, or one of spaces, is empty. Lines from a
    pipe are predicted as they arrive: in full batches while the input is fast, at once when it pauses. With --nbest
    above 1, each text has NBEST lines, each with its log-probability and a tab before it.

    Settings of the search: length_penalty, coverage_penalty, groups, diversity_penalty, sample, temperature, top_k,
    top_p, min_p, mbr_samples, no_repeat_ngram, repetition_penalty, min_length, seed.
    """
    search = {"nbest": nbest} | ({"beam": beam} if beam else {}) | dict(parse_override(text) for text in settings)
    nbest = resolve(SearchSettings, search, {}).nbest
    if attention and not as_json:
        raise click.UsageError("--attention goes with --json; `regard look` draws the weights.")
    from_stdin = not texts or texts == ("-",)
    if from_stdin and sys.stdin is None:
        raise click.UsageError("Standard input is closed. Give TEXT, or a file with < FILE.")
    opened = open_models(model, *others)

    from regard.api import Model

    loaded = Model.from_checkpoints(opened)
    lines: Iterable[str] = _stdin(replace_invalid=replace_invalid) if from_stdin else texts
    truncated, odd, unknown = 0, 0, dict[str, None]()
    # Several batches at a time, so that each has texts of similar length, but not all, so that memory use is constant.
    for chunk in read_chunks(lines, 16 * batch_size):
        wishes = {"prefix": [prefix or ""] * len(chunk), "must_say": [must_say] * len(chunk), "banned": banned}
        for best in loaded.predict(chunk, batch_size=batch_size, attention=attention, **wishes, **search):
            odd += bool(best.unknown)
            if len(unknown) <= MOST_NAMED:
                unknown |= dict.fromkeys(best.unknown)
            for prediction in (best, *best.alternatives):
                line = prediction.text.replace("\n", " ")  # which a model that writes bytes can say
                text = line if nbest == 1 else f"{prediction.score:.4f}\t{line}"
                click.echo(_as_json(prediction, attention=attention) if as_json else text)
                truncated += prediction.truncated
    if truncated:
        click.echo(
            f"note: {quantity(truncated, 'prediction')} reached the length limit and may be incomplete.", err=True
        )
    if unknown:
        named = ", ".join(map(repr, islice(unknown, MOST_NAMED))) + (" and others" if len(unknown) > MOST_NAMED else "")
        click.echo(f"note: the model has no token for {named} (in {odd:,} of the texts).", err=True)


def _stdin(*, replace_invalid: bool) -> Iterator[str]:
    replaced = 0
    for line in parse_lines(_own_reader(), "stdin"):
        if line.problem and not (replace_invalid and line.text):
            raise DataError(f"stdin, line {line.number}: {line.problem}. Mend the line, or see --replace-invalid.")
        replaced += line.problem is not None
        yield line.text
    if replaced:
        click.echo(
            f"note: {quantity(replaced, 'line')} had bytes that are not UTF-8; they were replaced with U+FFFD.",
            err=True,
        )


def _own_reader() -> BinaryIO:
    """Open stdin separately: Python aborts at exit if another thread is still reading from sys.stdin."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # sys.stdin is not a file
        return sys.stdin.buffer


def _as_json(prediction: "Prediction", *, attention: bool) -> str:
    fields = {
        "source": prediction.source,
        "text": prediction.text,
        "score": prediction.score,
        "truncated": prediction.truncated,
        "unknown": prediction.unknown,
        "tokens": prediction.tokens,
        "source_tokens": prediction.source_tokens,
    }
    if attention:
        fields["attention"] = prediction.attention.tolist()
    return to_json(fields, ensure_ascii=False)
