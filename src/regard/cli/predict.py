"""regard predict"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from regard.data.lines import Line, parse_lines
from regard.errors import DataError
from regard.training.folder import open_model

if TYPE_CHECKING:
    from regard.inspection.prediction import Prediction

EXAMPLES = """\b
Examples:
  regard predict runs/dates "3 mai 2009" "May 3, 2009"
  regard predict runs/dates < dates.txt > iso.txt
  regard predict runs/dates --json --attention "3 mai 2009" """


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line: text, score, tokens.")
@click.option("--attention", is_flag=True, help="With --json: the weights too.")
@click.option("--replace-invalid", is_flag=True, help="Bytes that are not UTF-8 become U+FFFD, and are counted.")
def command(
    model: str, texts: tuple[str, ...], batch_size: int, as_json: bool, attention: bool, replace_invalid: bool
) -> None:
    """Answer each TEXT, or each line of stdin where there is none (or a single -).

    One line in, one line out, in order; an empty line stays empty.
    """
    if attention and not as_json:
        raise click.UsageError("--attention goes with --json; `regard look` draws the weights.")
    folder, chosen = open_model(model)

    from regard.api import Model

    loaded = Model.open(folder, chosen)
    waiting = sys.stdin.isatty()
    lines: Iterator[str] = iter(texts)
    if not texts or texts == ("-",):
        lines = _usable(parse_lines(sys.stdin.buffer, "stdin"), replace_invalid=replace_invalid)
    truncated = 0
    # A person at the keyboard is answered at every line; files go in pieces that keep memory flat.
    while chunk := list(islice(lines, 1 if waiting else 16 * batch_size)):
        for prediction in loaded.predict(chunk, batch_size=batch_size, attention=attention):
            click.echo(_as_json(prediction, attention=attention) if as_json else prediction.text)
            truncated += prediction.truncated
    if truncated:
        click.echo(f"note: {truncated} answers did not end by themselves and were cut.", err=True)


def _usable(lines: Iterable[Line], *, replace_invalid: bool) -> Iterator[str]:
    replaced = 0
    for line in lines:
        if line.problem and not (replace_invalid and line.text):
            raise DataError(f"stdin, line {line.number}: {line.problem}. Mend the line, or see --replace-invalid.")
        replaced += line.problem is not None
        yield line.text
    if replaced:
        click.echo(f"note: {replaced} lines had bytes that are not UTF-8; they became U+FFFD.", err=True)


def _as_json(prediction: "Prediction", *, attention: bool) -> str:
    fields = {
        "source": prediction.source,
        "text": prediction.text,
        "score": prediction.score,
        "truncated": prediction.truncated,
        "tokens": prediction.tokens,
        "source_tokens": prediction.source_tokens,
    }
    if attention:
        fields["attention"] = prediction.attention.tolist()
    return json.dumps(fields, ensure_ascii=False)
