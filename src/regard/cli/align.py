"""regard align"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from regard.cli.options import (
    accept_changes_option,
    number_option,
    reader_options,
    reader_settings,
    resolve_files,
    setting_option,
)
from regard.errors import check_output_folder
from regard.evaluation.alignment import (
    SYMMETRIZATIONS,
    AlignmentSettings,
    Method,
    Symmetrization,
    score_alignments,
)
from regard.formatting import table, to_json
from regard.quantities import BatchSize
from regard.runs.folder import open_model

if TYPE_CHECKING:
    from regard.data.corpora import Pairs
    from regard.data.pharaoh import GoldLinks
    from regard.evaluation.aligner import Aligner, RankedHead
    from regard.evaluation.alignment import WordAlignment

EXAMPLES = """\b
Examples:
  regard align runs/de-en --pairs test.tsv > test.pharaoh
  regard align runs/de-en --source test.de --target test.en -o test.pharaoh
  regard align runs/de-en --pairs test.tsv --method threshold --threshold 0.3
  regard align runs/de-en --reverse runs/en-de --pairs test.tsv
  regard align runs/de-en --pairs gold.tsv --gold gold.links --one-based
  regard align runs/de-en --pairs gold.tsv --gold gold.links --rank
  regard align runs/pronunciation --pairs words.tsv --tokens --json
  regard align runs/de-en --pairs test.tsv --layer 5 --head 2 --json"""

ScoredBy = Literal["gold", "reverse", "entropy"]

_DEFAULTS = AlignmentSettings()


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option(
    "--pairs", metavar="FILE", help="File of pairs: TSV, CSV, JSONL or lines with |||, plain or gzipped; - is stdin."
)
@reader_options
@click.option("--reverse", metavar="MODEL", help="Model of the opposite direction, to combine both alignments.")
@click.option(
    "--symmetrize", type=click.Choice(SYMMETRIZATIONS), default="grow-diag-final", show_default=True,
    help="How to combine the two alignments; needs --reverse.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(get_args(Method)), default=_DEFAULTS.method, show_default=True,
    help="How to convert weights to links.",
)  # fmt: skip
@setting_option(AlignmentSettings, "threshold", "X", f"Minimum weight of a link. [default: {_DEFAULTS.threshold:g}]")
@setting_option(
    AlignmentSettings, "max_entropy", "X", f"Maximum entropy, from 0 to 1. [default: {_DEFAULTS.max_entropy:g}]"
)
@setting_option(AlignmentSettings, "layer", "N", "Layer, from 1.")
@setting_option(AlignmentSettings, "head", "N", "Head, from 1.")
@click.option("--attention", metavar="NAME", help="Attention by name, instead of --layer; --rank prints the names.")
@click.option(
    "--shift",
    is_flag=True,
    default=None,
    help="Use the weights of the step that reads a token, not of the one that predicts it.",
)
@click.option(
    "--tokens/--words", default=None,
    help="Align the tokens of the model, or words. [default: tokens if one side of most pairs is a single word]",
)  # fmt: skip
@click.option("--gold", metavar="FILE", help="Print the alignment error rate against this file in Pharaoh format.")
@click.option("--one-based", is_flag=True, help="Words in the gold file are counted from 1.")
@click.option("--rank", is_flag=True, help="Print a score for every layer and head, the best first.")
@number_option("--batch-size", BatchSize, "N", "Pairs per batch.", 64)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per pair, or one with the scores.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the alignments to FILE instead of stdout.",
)  # fmt: skip
@accept_changes_option
def command(
    model: str,
    pairs: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
    source: str | None,
    target: str | None,
    reverse: str | None,
    symmetrize: Symmetrization,
    method: Method,
    tokens: bool | None,
    gold: str | None,
    one_based: bool,
    rank: bool,
    batch_size: int,
    as_json: bool,
    output: Path | None,
    accept_changes: bool,
    **others: Any,
) -> None:
    """Align the words of pairs, using the attention weights with which MODEL predicts the given targets.

    Write one line per pair, in order, in Pharaoh format: i-j links source word i to target word j. Words are separated
    by white space and counted from 0. The weights of the tokens of a word are merged. If a side of a pair is
    empty, its line is empty.

    If one side of most pairs is a single word, as in pronunciation or inflection, the tokens of the model are aligned
    instead: the characters of a word and the symbols of its pronunciation, for example. --json prints the tokens. To
    choose the unit yourself, use --tokens or --words. With --gold, words are aligned unless --tokens is given.

    \b
    argmax      link each target word to the source word with the largest weight
    threshold   link to all source words with a weight of at least --threshold
    entropy     as argmax, but no link if the entropy of the weights, divided by
                log(source words), is above --max-entropy

    By default, the weights are those of the head that training.guided_alignment supervised. Without guided alignment,
    they are the average over the heads of the last layer.

    With --gold, print the alignment error rate (Och and Ney 2003), precision and recall instead of the alignments. In
    the gold file, i-j is a sure link, and i?j or ipj a possible link.

    With --rank, score every head of every layer: against the --gold file, or by agreement with the --reverse model, or,
    without either, by the entropy of its weights.
    """  # noqa: D301 - click needs a literal \b
    files = resolve_files(pairs, source, target, reader_settings(columns, header))
    if files is None:
        raise click.UsageError("Give the pairs to align with --pairs, or with --source and --target.")
    if rank and output:
        raise click.UsageError("--rank prints a table and no alignments. Redirect it with > FILE instead of -o.")
    if rank and gold and reverse:
        raise click.UsageError("--rank with --gold scores MODEL alone. Omit --reverse.")
    if one_based and not gold:
        raise click.UsageError("--one-based needs --gold.")
    if output:
        check_output_folder(output, "-o")
    others["tokens"] = False if gold and tokens is None else tokens
    # What is not given is chosen later, for example from guided alignment.
    options = {"method": method, **{name: value for name, value in others.items() if value is not None}}
    paths = (model, *([reverse] if reverse else ()))
    opened = [open_model(path, accept_changes=accept_changes) for path in paths]

    from regard.api.model import Model, align_pairs, build_aligner
    from regard.data.corpora import Pairs, stream_pairs
    from regard.evaluation.aligner import choose_unit, read_gold_alignments
    from regard.runs.pairs import read_like_training

    options, stream = choose_unit(options, stream_pairs(read_like_training(files, opened[0][0].settings().data)))
    if options["tokens"] and tokens is None:
        click.echo(
            "note: one side of most pairs is a single word, so tokens are aligned. To align words, use --words.",
            err=True,
        )
    loaded, *reversed_model = (Model.from_checkpoint(*located) for located in opened)
    backward = reversed_model[0] if reversed_model else None
    if rank:
        read = Pairs.of(stream)
        aligner = build_aligner(loaded, options, batch_size)
        references = read_gold_alignments(gold, read, one_based=one_based, aligner=aligner) if gold else None
        if backward is not None:
            chosen = {"method": method, "tokens": options["tokens"]}
            references = _align_reversed(build_aligner(backward, chosen, batch_size), read)
        ranking = aligner.rank_heads(read, references)
        _print_ranking(ranking, "gold" if gold else "reverse" if reverse else "entropy", as_json=as_json)
        return
    align = partial(
        align_pairs, loaded, reverse=backward, symmetrization=symmetrize, options=options, batch_size=batch_size
    )
    if gold is None:
        _write(align(stream), output, as_json=as_json)
        return
    read = Pairs.of(stream)
    aligner = build_aligner(loaded, options, batch_size)
    references = read_gold_alignments(gold, read, one_based=one_based, aligner=aligner)
    alignments = list(align(read))
    if output:
        _write(alignments, output, as_json=as_json)
    score = score_alignments([alignment.links for alignment in alignments], references)
    click.echo(to_json({"model": model, "pairs": len(read), **score.to_json()}) if as_json else str(score))


def _write(alignments: "Iterable[WordAlignment]", output: Path | None, *, as_json: bool) -> None:
    """Write a line for each alignment, to a file or to stdout."""
    with nullcontext() if output is None else output.open("w", encoding="utf-8", newline="\n") as file:
        for alignment in alignments:
            click.echo(_to_json(alignment) if as_json else str(alignment), file)


def _to_json(alignment: "WordAlignment") -> str:
    fields = {
        "source": alignment.source_words,
        "target": alignment.target_words,
        "links": sorted(alignment.links),
        "unit": alignment.unit,
    }
    return to_json(fields, ensure_ascii=False)


def _align_reversed(reverse: "Aligner", pairs: "Pairs") -> "list[GoldLinks]":
    """Return the links of a model of the opposite direction, as a reference for the forward model."""
    from regard.data.pharaoh import GoldLinks
    from regard.evaluation.alignment import flip

    alignments = reverse.align(zip(pairs.targets, pairs.sources, strict=True))
    return [GoldLinks.of(flip(alignment.links)) for alignment in alignments]


def _print_ranking(ranking: "Sequence[RankedHead]", scored_by: ScoredBy, *, as_json: bool) -> None:
    """Print the scores of heads."""
    if as_json:
        click.echo(to_json({"ranking": [{**entry.head._asdict(), **_scores(entry, scored_by)} for entry in ranking]}))
        return
    rows = []
    for entry in ranking:
        head = "average" if entry.head.head is None else str(entry.head.head)
        scores = (f"{value:.1%}" for value in _scores(entry, scored_by).values())
        rows.append([str(entry.head.layer), head, *scores, entry.head.attention])
    names = ("AER" if name == "aer" else name for name in _scores(ranking[0], scored_by))
    click.echo(table(["layer", "head", *names, "attention"], rows))


def _scores(entry: "RankedHead", scored_by: ScoredBy) -> dict[str, float]:
    """Return error rates, or the agreement with the opposite direction (the F1 score of the links); and entropy."""
    score = entry.score
    scores = {
        "gold": {"aer": score.aer, "precision": score.precision, "recall": score.recall},
        "reverse": {"agreement": 1 - score.aer},
        "entropy": {},
    }
    return {**scores[scored_by], "entropy": entry.entropy}
