"""regard predict"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from regard.cli.together import with_others
from regard.config import parse_override, resolve
from regard.data.lines import Line, parse_lines
from regard.decoding.settings import SearchSettings
from regard.errors import DataError
from regard.training.folder import open_models

if TYPE_CHECKING:
    from regard.inspection.prediction import Prediction

MOST_NAMED = 8
"""Unknown tokens that are told by name."""

EXAMPLES = """\b
Examples:
  regard predict runs/dates "3 mai 2009" "May 3, 2009"
  regard predict runs/dates < dates.txt > iso.txt
  regard predict runs/dates --beam 5 --nbest 3 "3 mai 2009"
  regard predict runs/dates --set sample=true --set temperature=0.8 --nbest 5 "3 mai 2009"
  regard predict runs/dates --beam 5 --prefix 20 --must-say -05- --banned 1999 "3 mai 2009"
  regard predict runs/one --with runs/other --beam 5 "3 mai 2009"
  regard predict runs/dates --json --attention "3 mai 2009" """


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept; 1 is greedy. By default as many as answers.")
@click.option("--nbest", type=click.IntRange(1), default=1, show_default=True, help="Answers to each text.")
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
    """Answer each TEXT, or each line of stdin where there is none (or a single -).

    One line in, one line out, in order; an empty line stays empty. With --nbest above 1 a text has as many lines, each
    with its log-probability and a tab before it.

    Settings of the search: length_penalty, coverage_penalty, groups, diversity, sample, temperature, top_k, top_p,
    min_p, minimum_risk, no_repeat, repetition_penalty, min_length, seed.
    """
    search = {"nbest": nbest} | ({"beam": beam} if beam else {}) | dict(parse_override(text) for text in settings)
    resolve(SearchSettings, search, {})
    if attention and not as_json:
        raise click.UsageError("--attention goes with --json; `regard look` draws the weights.")
    from_stdin = not texts or texts == ("-",)
    if from_stdin and sys.stdin is None:
        raise click.UsageError("Standard input is closed. Give TEXT, or a file with < FILE.")
    opened = open_models(model, *others)

    from regard.api import Model

    loaded = Model.together(opened)
    waiting = from_stdin and sys.stdin.isatty()
    lines: Iterator[str] = iter(texts)
    if from_stdin:
        lines = _usable(parse_lines(sys.stdin.buffer, "stdin"), replace_invalid=replace_invalid)
    truncated, odd, unknown = 0, 0, dict[str, None]()
    # A person at the keyboard is answered at every line; files go in pieces that keep memory flat.
    while chunk := list(islice(lines, 1 if waiting else 16 * batch_size)):
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
        click.echo(f"note: {truncated} answers did not end by themselves and were cut.", err=True)
    if unknown:
        named = ", ".join(map(repr, islice(unknown, MOST_NAMED))) + (" and others" if len(unknown) > MOST_NAMED else "")
        click.echo(f"note: the model has no token for {named} (in {odd:,} of the texts).", err=True)


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
        "unknown": prediction.unknown,
        "tokens": prediction.tokens,
        "source_tokens": prediction.source_tokens,
    }
    if attention:
        fields["attention"] = prediction.attention.tolist()
    return json.dumps(fields, ensure_ascii=False)
