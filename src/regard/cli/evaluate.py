"""regard evaluate"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from regard.cli.options import (
    IMAGES,
    MultiValueCommand,
    ensemble_option,
    reader_options,
    reader_settings,
    resolve_files,
)
from regard.config import parse_override, resolve
from regard.data.files import Files
from regard.data.images.settings import CaptionsData
from regard.data.settings import DataSettings, FilesData
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, DataError
from regard.evaluation.settings import Metric, metric_names, parse_metric, parse_metrics
from regard.formatting import short_path, to_json
from regard.models.vision.settings import IMAGE
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
  regard evaluate runs/words --pairs test.tsv --columns 1 3 --metric ser per --max ser=25 --json
  regard evaluate runs/one --with runs/other --beam 5
  regard evaluate runs/dates --pairs test.tsv --out predictions.txt
  regard evaluate runs/captions --images photos --pairs test.tsv --beam 5"""


def _is_metric(word: str) -> bool:
    return word.partition(":")[0].partition("=")[0] in metric_names()


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


@click.command(cls=MultiValueCommand, multi_value=("--metric", "--min", "--max"), is_value=_is_metric, epilog=EXAMPLES)
@click.argument("model")
@click.option("--pairs", metavar="FILE", help="Evaluate on this file: TSV, CSV or JSONL, plain or gzipped.")
@click.option("--images", metavar="FOLDER", help=IMAGES)
@reader_options
@click.option("--source", metavar="FILE", help="Source side of two parallel files; needs --target.")
@click.option("--target", metavar="FILE", help="Target side of two parallel files; needs --source.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="METRIC...", help=f"One or more of {', '.join(metric_names())}."
)
@click.option(
    "--beam",
    metavar="K",
    type=click.IntRange(1),
    help="Beam size; 1 is greedy search. By default the beam size of validation.",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a search setting; see regard predict -h."
)
@ensemble_option
@click.option("--min", "minima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if METRIC is below VALUE.")
@click.option("--max", "maxima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if METRIC is above VALUE.")
@click.option("--confidence", is_flag=True, help="Print 95 % confidence intervals, from 1,000 bootstrap resamples.")
@click.option(
    "--batch-size", metavar="N", type=click.IntRange(1), default=256, show_default=True, help="Texts per batch."
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write predictions to FILE."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print values, signatures, search settings and time as a JSON object."
)
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
    batch_size: int,
    out: Path | None,
    as_json: bool,
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
    limits = [_parse_limit("--min", text, requested) for text in minima]
    limits += [_parse_limit("--max", text, requested) for text in maxima]
    files = resolve_files(pairs, source, target, reader_settings(columns, header))
    if images and source:
        raise click.UsageError("--images needs --pairs, not --source and --target.")
    search = dict(parse_override(text) for text in settings) | ({"beam": beam} if beam else {})
    opened = open_models(model, *others)
    folder, checkpoint = opened[0]
    training = folder.settings().training
    resolve(SearchSettings, training.validation_search.model_dump(), search)
    requested = list(dict.fromkeys([*(requested or training.default_metrics), *(limit.metric for limit in limits)]))
    if out:
        _check_output(out, requested)

    from regard.api.model import Model

    test = _read_test(folder, checkpoint, files, images)
    result = Model.from_checkpoints(opened).evaluate(
        test.sources, test.targets, metrics=requested, batch_size=batch_size, confidence=confidence, **search
    )
    if out:
        out.write_text("".join(text.replace("\n", " ") + "\n" for text in result.predictions), "utf-8")
    if as_json:
        members = [{"model": path, "step": member.step} for path, (_, member) in zip(others, opened[1:], strict=True)]
        ensemble = {"with": members} if members else {}
        click.echo(to_json({"model": model, "step": checkpoint.step, **ensemble, **result.to_json()}))
    else:
        click.echo(str(result))
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


def _read_test(folder: RunFolder, checkpoint: Checkpoint, files: Files | None, images: str | None) -> "Pairs":
    """Read the pairs of files, with the columns of the training file; without files, the run's test set."""
    from regard.data.corpora import Pairs, Stream, load_corpus, read_pairs

    data = folder.settings().data
    if images or (files and data.source_kind == IMAGE):
        return _read_captions(data, files, images)
    if files is not None:
        return read_pairs(files.read_like(data.train) if isinstance(data, FilesData) else files)
    corpus = load_corpus(data)
    if corpus.test is None:
        raise DataError(
            f"{folder.path} was trained without a test set. Give one with --pairs, or --source and --target."
        )
    if isinstance(corpus.test, Stream):
        # Changed files give a different test split, which may contain pairs that the model was trained on.
        before = set(checkpoint.state["data"].values())
        changed = [path for path, fingerprint in corpus.hash_files().items() if fingerprint not in before]
        if changed:
            raise DataError(
                f"{' and '.join(map(short_path, changed))} changed since {folder.path} was trained, so its test set "
                "can no longer be separated from its training pairs. Restore the file, or give a test set with --pairs."
            )
    return Pairs.of(corpus.test)


def _read_captions(data: DataSettings, files: Files | None, images: str | None) -> "Pairs":
    """Read images with their captions."""
    from regard.data.corpora import Pairs
    from regard.data.images.captions import read_pairs

    if data.source_kind != IMAGE:
        raise click.UsageError(f"--images: the model reads {data.source_kind}, not images. Use --pairs alone.")
    if images is None:
        raise click.UsageError("The model reads images. Give the folder or the zip file of the images with --images.")
    policy = data.bad_images if isinstance(data, CaptionsData) else "error"
    return Pairs.of(read_pairs(CaptionsData(images=images, captions=files, bad_images=policy)))


def _check_output(out: Path, metrics: Sequence[Metric]) -> None:
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}. Create it first.")
    if not any(metric.needs_predictions for metric in metrics):
        raise ConfigError("--out: loss and perplexity need no predictions. Add a metric that does, such as accuracy.")


def _describe_search(result: "Evaluation") -> str:
    """Describe the search settings and the time of an evaluation."""
    if not result.predictions:
        return "no predictions needed"
    changed = result.search.model_dump(exclude_defaults=True)
    search = ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy search"
    return f"{search}; {result.seconds:.1f} s, {result.tokens_per_second:,.0f} tokens/s"
