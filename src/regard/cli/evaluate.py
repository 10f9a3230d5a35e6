"""regard evaluate"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from regard.cli.options import (
    IMAGES,
    MultiValueCommand,
    accept_changes_option,
    engine_options,
    ensemble_option,
    file_settings,
    number_option,
    parse_search_options,
    reader_options,
    reader_settings,
    resolve_files,
    search_options,
)
from regard.config import resolve
from regard.data.settings import Files
from regard.decoding.settings import EngineName, Precision, SearchSettings
from regard.errors import ConfigError, check_output_folder
from regard.evaluation.settings import BREAKDOWNS, BreakdownName, Metric, metric_names, parse_metric, parse_metrics
from regard.formatting import replace_nonfinite, to_json
from regard.quantities import BatchSize, Count
from regard.runs.folder import RunFolder, open_models

if TYPE_CHECKING:
    from regard.evaluation.breakdown import Breakdown
    from regard.evaluation.validation import Evaluation

EXAMPLES = """\b
Examples:
  regard evaluate runs/dates
  regard evaluate runs/dates --pairs test.tsv --min accuracy=0.99
  regard evaluate runs/german --source test.en --target test.de --metric bleu chrf --beam 5 --confidence
  regard evaluate runs/german --pairs test.tsv --metric bleu:tokenize=none,lowercase=true
  regard evaluate runs/words --pairs test.tsv --columns 1 3 --metric ser per --max ser=25 --json
  regard evaluate runs/one --with runs/other --beam 5
  regard evaluate runs/dates --pairs test.tsv --out predictions.txt
  regard evaluate runs/captions --images photos --pairs test.tsv --beam 5
  regard evaluate runs/german --pairs test.tsv --breakdown length frequency unseen --worst 10"""


def _is_value(word: str) -> bool:
    return word in BREAKDOWNS or word.partition(":")[0].partition("=")[0] in metric_names()


class Limit(NamedTuple):
    """The minimum or maximum of a metric, set with --min or --max."""

    metric: Metric
    value: float

    def violation(self, reached: float) -> str | None:
        """Return the message for a value outside the limit, or None."""
        if self.metric.higher_is_better:
            within, side = reached >= self.value, "below"
        else:
            within, side = reached <= self.value, "above"
        return None if within else f"{self.metric.label} is {reached:.4f}, {side} {self.value:g}"


@click.command(
    cls=MultiValueCommand,
    multi_value=("--metric", "--min", "--max", "--breakdown"),
    is_value=_is_value,
    epilog=EXAMPLES,
)
@click.argument("model")
@click.option("--pairs", metavar="FILE", help="Evaluate on this file: TSV, CSV or JSONL, plain or gzipped.")
@click.option("--images", metavar="FOLDER", help=IMAGES)
@reader_options
@click.option(
    "--metric", "metrics", multiple=True, metavar="METRIC...", help=f"One or more of {', '.join(metric_names())}."
)
@search_options("Beam size; 1 is greedy search. By default the beam size of validation.")
@ensemble_option
@click.option("--min", "minima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if METRIC is below VALUE.")
@click.option("--max", "maxima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if METRIC is above VALUE.")
@click.option("--confidence", is_flag=True, help="Print 95 % confidence intervals, from 1,000 bootstrap resamples.")
@click.option(
    "--breakdown", "breakdowns", multiple=True, metavar="[length frequency unseen]", is_flag=False, flag_value="all",
    type=click.Choice(["all", *BREAKDOWNS]),
    help="Print the metrics by source length, by the training frequency of the rarest source word (also F1 of words by "
    "frequency), or by the number of source words that are not in the training data. Without a value, all three.",
)  # fmt: skip
@click.option(
    "--train", metavar="FILE", help="Count word frequencies in FILE instead of in the training data of the run."
)
@number_option("--worst", Count, "N", "Print the N worst sentences.")
@click.option(
    "--worst-by", metavar="METRIC", help="Metric that ranks sentences; by default the first that uses predictions."
)
@number_option("--batch-size", BatchSize, "N", "Texts per batch.", 256)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write predictions to FILE."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print values, signatures, search settings and time as a JSON object."
)
@engine_options
@accept_changes_option
def command(
    model: str,
    pairs: str | None,
    images: str | None,
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
    breakdowns: tuple[str, ...],
    train: str | None,
    worst: int | None,
    worst_by: str | None,
    batch_size: int,
    out: Path | None,
    as_json: bool,
    engine: EngineName,
    precision: Precision,
    accept_changes: bool,
) -> None:
    """Score a model on pairs. Without files, use the test set of the model's own corpus.

    A file given with --pairs is read with the columns of the training file, unless --columns is given.

    Without --metric, the metrics of validation are computed, and accuracy, chrf and loss. In an ensemble (--with),
    MODEL sets all defaults.

    \b
    accuracy    share of predictions that match a reference exactly, from 0 to 1
    ser         percentage of predictions that match no reference (the WER of G2P)
    wer, per    edit distance over space-separated words, or phonemes, in percent
    cer         edit distance over characters, in percent
    bleu        options: tokenize=13a|none|intl|char|zh, lowercase, smooth, references
    chrf, ter   as in sacrebleu; chrf:word_order=2 is chrF++
    loss        −log p per reference token, in nats; perplexity is e^loss

    In accuracy, ser, wer, per and cer, pairs with the same source share their references. For bleu, chrf and ter, set
    references=by_source.
    """  # noqa: D301 - click needs a literal \b
    requested = parse_metrics(metrics)
    by = _parse_breakdowns(breakdowns)
    if train and not {"frequency", "unseen"} & set(by):
        raise click.UsageError("--train needs --breakdown frequency or --breakdown unseen.")
    if worst_by and not worst:
        raise click.UsageError("--worst-by needs --worst N.")
    ranking = [parse_metric(worst_by)] if worst_by else []
    limits = [_parse_limit("--min", text, requested) for text in minima]
    limits += [_parse_limit("--max", text, requested) for text in maxima]
    files = resolve_files(pairs, source, target, reader_settings(columns, header))
    if images and source:
        raise click.UsageError("--images needs --pairs, not --source and --target.")
    search = parse_search_options(beam, settings)
    opened = open_models(model, *others, accept_changes=accept_changes)
    folder, checkpoint = opened[0]
    training = folder.settings().training
    resolve(SearchSettings, training.validation_search.model_dump(), search)
    requested = list(
        dict.fromkeys([*(requested or training.default_metrics), *(limit.metric for limit in limits), *ranking])
    )
    if out:
        _check_output(out, requested)

    from regard.api.model import Model
    from regard.runs.pairs import read_test_set

    test = read_test_set(folder, checkpoint, files, images)
    result = Model.from_checkpoints(opened).evaluate(
        test.sources,
        test.targets,
        metrics=requested,
        batch_size=batch_size,
        confidence=confidence,
        engine=engine,
        precision=precision,
        **search,
    )
    parts = _compute_breakdowns(result, by, folder, train)
    worst_sentences = result.worst(worst, ranking[0].label if ranking else None) if worst else []
    if out:
        out.write_text("".join(text.replace("\n", " ") + "\n" for text in result.predictions), "utf-8")
    if as_json:
        members = [{"model": path, "step": member.step} for path, (_, member) in zip(others, opened[1:], strict=True)]
        ensemble = {"with": members} if members else {}
        details: dict[str, Any] = {"breakdown": {part.name: part.to_json() for part in parts}} if parts else {}
        if worst:
            details["worst"] = [sentence.to_json() for sentence in worst_sentences]
        head = {"model": model, "step": checkpoint.step, **ensemble}
        click.echo(to_json({**head, **result.to_json(), **replace_nonfinite(details)}))
    else:
        click.echo("\n\n".join([str(result), *map(str, parts), *map(str, worst_sentences)]))
        members_by_path = zip((model, *others), opened, strict=True)
        names = ", with ".join(f"{path}, step {member.step}" for path, (_, member) in members_by_path)
        click.echo(f"{names}, {_describe_search(result)}", err=True)
    violations = [text for limit in limits if (text := limit.violation(result[limit.metric.label]))]
    if violations:
        click.echo(f"regard: {'; '.join(violations)}.", err=True)
        raise click.exceptions.Exit(1)


def _parse_limit(option: str, text: str, requested: Sequence[Metric]) -> Limit:
    """Parse `bleu=40`. The metric is the requested one of that kind, if there is exactly one."""
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{option} {text}: write METRIC=VALUE, for example --min accuracy=0.99 or --max ser=20.")
    same_kind = [metric for metric in requested if name == metric.kind]
    metric = same_kind[0] if len(same_kind) == 1 else parse_metric(name)
    valid_option = "--min" if metric.higher_is_better else "--max"
    if option != valid_option:
        better = "higher" if metric.higher_is_better else "lower"
        raise ConfigError(f"{option} {text}: {better} {metric.kind} is better. Use {valid_option} {text}.")
    return Limit(metric, value)


def _parse_breakdowns(names: Sequence[str]) -> list[BreakdownName]:
    return list(BREAKDOWNS if "all" in names else dict.fromkeys(names))  # type: ignore[arg-type] # checked by click


def _compute_breakdowns(
    result: "Evaluation", by: Sequence[BreakdownName], folder: RunFolder, train: str | None
) -> "list[Breakdown]":
    """Compute breakdowns, and count the words of the training data if one of them needs this."""
    from regard.evaluation.breakdown import WordCounts, compute_breakdown
    from regard.runs.pairs import read_training_pairs

    counts = None
    if {"frequency", "unseen"} & set(by):
        files = resolve(Files, file_settings(train, {}), {}) if train else None
        counts = WordCounts.of(read_training_pairs(folder, files, "Give them with --train. "))
    return [
        compute_breakdown(name, result.statistics, result.evaluation_set, result.predictions, counts) for name in by
    ]


def _check_output(out: Path, metrics: Sequence[Metric]) -> None:
    check_output_folder(out, "--out")
    if not any(metric.needs_predictions for metric in metrics):
        raise ConfigError("--out: loss and perplexity need no predictions. Add a metric that does, such as accuracy.")


def _describe_search(result: "Evaluation") -> str:
    """Describe the search settings and the time of an evaluation."""
    if not result.predictions:
        return "no predictions needed"
    changed = result.search.model_dump(exclude_defaults=True)
    search = ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy search"
    return f"{search}; {result.seconds:.1f} s, {result.tokens_per_second:,.0f} tokens/s"
