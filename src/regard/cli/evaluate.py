"""regard evaluate"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from regard.cli.options import SeveralWords, reading_given, reading_options, with_others
from regard.config import parse_override, resolve
from regard.data.files import Files
from regard.data.settings import FilesData
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, DataError
from regard.evaluation.settings import KINDS, Metric, parse_metric, parse_metrics
from regard.formatting import short_path, to_json
from regard.runs.folder import Checkpoint, RunFolder, open_models

if TYPE_CHECKING:
    from regard.data.corpora import Pairs
    from regard.evaluation.validation import Evaluation

EXAMPLES = """\b
Examples:
  regard evaluate runs/dates
  regard evaluate runs/dates --pairs test.tsv --min accuracy=0.99
  regard evaluate runs/german --source test.en --target test.de --metric bleu chrf --beam 5 --confidence
  regard evaluate runs/german --pairs test.tsv --metric bleu:tokenize=none,lowercase=true
  regard evaluate runs/words --pairs test.tsv --columns 1 3 --metric wer per --max wer=25 --json
  regard evaluate runs/one --with runs/other --beam 5
  regard evaluate runs/dates --pairs test.tsv --out answers.txt"""


def _names_a_metric(word: str) -> bool:
    return word.partition(":")[0].partition("=")[0] in KINDS


class Limit(NamedTuple):
    """What a value must reach, or not exceed, for the answer to be yes."""

    measure: Metric
    value: float

    def missed(self, reached: float) -> str | None:
        if self.measure.higher_is_better:
            kept, side = reached >= self.value, "below"
        else:
            kept, side = reached <= self.value, "above"
        return None if kept else f"{self.measure.label} is {reached:.4f}, {side} {self.value:g}"


@click.command(cls=SeveralWords, several=("--metric", "--min", "--max"), known=_names_a_metric, epilog=EXAMPLES)
@click.argument("model")
@click.option("--pairs", metavar="FILE", help="TSV, CSV or JSONL, plain or gzipped.")
@reading_options
@click.option("--source", metavar="FILE", help="With --target: two parallel files.")
@click.option("--target", metavar="FILE")
@click.option("--metric", "metrics", multiple=True, metavar="METRIC...", help=f"Of {', '.join(KINDS)}; see above.")
@click.option("--beam", type=click.IntRange(1), help="Hypotheses kept; 1 is greedy. By default as in validation.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting of the search, as of predict.")
@with_others
@click.option("--min", "minima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if it is not reached.")
@click.option("--max", "maxima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if it is exceeded.")
@click.option("--confidence", is_flag=True, help="Intervals of 95 %, from 1,000 resamples of the sentences.")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="For the answers.")
@click.option("--json", "as_json", is_flag=True, help="Values, signatures, search, seconds as a JSON object.")
def command(
    model: str,
    pairs: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
    source: str | None,
    target: str | None,
    metrics: tuple[str, ...],
    beam: int | None,
    settings: tuple[str, ...],
    others: tuple[str, ...],
    minima: tuple[str, ...],
    maxima: tuple[str, ...],
    confidence: bool,
    batch_size: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Score a model on pairs; without files, on the test set of its own corpus.

    --pairs is read with the columns of the model's training file, unless --columns is given.

    Without --metric, by what the model was validated by, with accuracy, chrf and loss. Whatever is not given is
    taken from MODEL, also where others answer --with it.

    \b
    accuracy    share of answers that are a reference to the letter, 0 to 1
    wer         per cent of answers that are no reference (words of a dictionary)
    per, cer    per cent of edits, in symbols between white space, or characters
    bleu        tokenize=13a|none|intl|char|zh, lowercase, smooth, references
    chrf, ter   as sacrebleu has them; word_order=2 is chrF++
    loss        −log p of a reference's token, in nats; perplexity is e^loss

    Pairs with the same source share their references in accuracy, wer, per and cer; in bleu, chrf and ter
    with references=by_source.
    """  # noqa: D301 - click wants its \b as it stands
    wanted = parse_metrics(metrics)
    limits = [_limit("--min", text, wanted) for text in minima] + [_limit("--max", text, wanted) for text in maxima]
    files = _files(pairs, source, target, reading_given(columns, header))
    search = dict(parse_override(text) for text in settings) | ({"beam": beam} if beam else {})
    opened = open_models(model, *others)
    folder, chosen = opened[0]
    training = folder.settings().training
    resolve(SearchSettings, training.validation_search.model_dump(), search)
    wanted = list(dict.fromkeys([*(wanted or training.default_metrics), *(limit.measure for limit in limits)]))
    if out:
        _see_that_answers_can_be_written(out, wanted)

    from regard.api import Model

    test = _read_test(folder, chosen, files)
    found = Model.from_checkpoints(opened).evaluate(
        test.sources, test.targets, metrics=wanted, batch_size=batch_size, confidence=confidence, **search
    )
    if out:
        out.write_text("".join(answer.replace("\n", " ") + "\n" for answer in found.answers), "utf-8")
    if as_json:
        more = [{"model": other, "step": its.step} for other, (_, its) in zip(others, opened[1:], strict=True)]
        told = {"model": model, "step": chosen.step, **({"with": more} if more else {}), **found.to_json()}
        click.echo(to_json(told))
    else:
        click.echo(str(found))
        named = zip((model, *others), opened, strict=True)
        names = ", with ".join(f"{name}, step {its.step}" for name, (_, its) in named)
        click.echo(f"{names}, {_told(found)}", err=True)
    missed = [text for limit in limits if (text := limit.missed(found[limit.measure.label]))]
    if missed:
        click.echo(f"regard: {'; '.join(missed)}.", err=True)
        raise click.exceptions.Exit(1)


def _limit(option: str, text: str, wanted: Sequence[Metric]) -> Limit:
    """`bleu=40`: of the measure so called, or of the one that is wanted of that kind."""
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{option} {text}: write METRIC=VALUE, for example --min accuracy=0.99 or --max wer=20.")
    alike = [measure for measure in wanted if name == measure.kind]
    measure = alike[0] if len(alike) == 1 else parse_metric(name)
    right = "--min" if measure.higher_is_better else "--max"
    if option != right:
        better = "higher" if measure.higher_is_better else "lower"
        raise ConfigError(f"{option} {text}: {measure.kind} is the better the {better} it is. Use {right} {text}.")
    return Limit(measure, value)


def _files(pairs: str | None, source: str | None, target: str | None, reading: dict[str, Any]) -> Files | None:
    if pairs and (source or target):
        raise click.UsageError("Give --pairs, or --source and --target, not both.")
    if bool(source) != bool(target):
        raise click.UsageError("--source and --target go together.")
    if reading and not pairs:
        raise click.UsageError("--columns and --header go with --pairs.")
    if not (pairs or source):
        return None
    return resolve(Files, {"path": pairs, "source": source, "target": target, **reading}, {})


def _read_test(folder: RunFolder, chosen: Checkpoint, files: Files | None) -> "Pairs":
    """Read the pairs of files, with the columns of the training file; without files, the run's test set."""
    from regard.data.corpora import Pairs, Stream, load_corpus, read_pairs

    data = folder.settings().data
    if files is not None:
        return read_pairs(files.read_like(data.train) if isinstance(data, FilesData) else files)
    corpus = load_corpus(data)
    if corpus.test is None:
        raise DataError(
            f"{folder.path} was trained without a test set. Give one with --pairs, or --source and --target."
        )
    if isinstance(corpus.test, Stream):
        # From changed files, other pairs would be held back, and the model may have been trained on some of them.
        before = set(chosen.state["data"].values())
        changed = [path for path, found in corpus.fingerprint().items() if found not in before]
        if changed:
            raise DataError(
                f"{' and '.join(map(short_path, changed))} changed since {folder.path} was trained, so its test set "
                "can no longer be separated from its training pairs. Restore the file, or give a test set with --pairs."
            )
    return Pairs.of(corpus.test)


def _see_that_answers_can_be_written(out: Path, wanted: Sequence[Metric]) -> None:
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}. Make it first.")
    if not any(measure.of_answers for measure in wanted):
        raise ConfigError("--out: loss and perplexity need no answers. Ask for a metric that does, as accuracy.")


def _told(found: "Evaluation") -> str:
    """How the answers were looked for, and how long it took."""
    if not found.answers:
        return "no answers were looked for"
    changed = found.search.model_dump(exclude_defaults=True)
    search = ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy search"
    return f"{search}; {found.seconds:.1f} s, {found.tokens_per_second:,.0f} tokens/s"
