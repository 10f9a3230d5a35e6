"""regard evaluate"""

import json

import click

from regard.cli.tables import table
from regard.data.settings import Files
from regard.errors import ConfigError, DataError, did_you_mean
from regard.training.folder import open_model

METRICS = ("accuracy", "loss")

EXAMPLES = """\b
Examples:
  regard evaluate runs/dates
  regard evaluate runs/dates --pairs test.tsv --min accuracy=0.99
  regard evaluate runs/dates --source test.txt --target test.iso --json"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option("--pairs", metavar="FILE", help="TSV, CSV or JSONL, plain or gzipped.")
@click.option("--source", metavar="FILE", help="With --target: two parallel files.")
@click.option("--target", metavar="FILE")
@click.option("--metric", "metrics", multiple=True, help=f"One of {', '.join(METRICS)}; by default all.")
@click.option("--min", "minima", multiple=True, metavar="METRIC=VALUE", help="Exit with 1 if it is not reached.")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def command(
    model: str,
    pairs: str | None,
    source: str | None,
    target: str | None,
    metrics: tuple[str, ...],
    minima: tuple[str, ...],
    batch_size: int,
    as_json: bool,
) -> None:
    """Score a model on pairs; without files, on the test set of its own corpus.

    accuracy is the share of answers that are the reference to the letter (decoded greedily), loss the mean
    of −log p of a reference's tokens, in nats.
    """
    wanted = [_known(metric) for metric in metrics] or list(METRICS)
    floors = dict(_floor(text) for text in minima)
    files = _files(pairs, source, target)
    folder, chosen = open_model(model)

    from regard.api import Model
    from regard.data.corpora import load_corpus, read_pairs

    test = read_pairs(files) if files else load_corpus(folder.settings().data).test
    if test is None:
        raise DataError(f"{model} was trained without a test set. Name one with --pairs, or --source and --target.")
    scores = Model.open(folder, chosen).evaluate(test.sources, test.targets, batch_size=batch_size)
    reached = scores._asdict()
    if as_json:
        shown = {name: reached[name] for name in ("pairs", *wanted)}
        click.echo(json.dumps({**shown, "step": chosen.step, "search": "greedy"}))
    else:
        texts = {"accuracy": f"{scores.accuracy:.2%}", "loss": f"{scores.loss:.4f}"}
        rows = [[name, texts[name]] for name in wanted]
        click.echo(table(["metric", f"on {scores.pairs:,} pairs"], rows))
        click.echo(f"{model}, step {chosen.step}, greedy search", err=True)
    missed = [
        f"{name} is {reached[name]:.4f}, below {least}" for name, least in floors.items() if reached[name] < least
    ]
    if missed:
        click.echo(f"regard: {'; '.join(missed)}.", err=True)
        raise click.exceptions.Exit(1)


def _known(metric: str) -> str:
    if metric not in METRICS:
        near = did_you_mean(metric, METRICS)
        raise ConfigError(f"There is no metric '{metric}'.{near} Metrics: {', '.join(METRICS)}.")
    return metric


def _floor(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return _known(name), float(value)
    except ValueError:
        raise ConfigError(f"--min {text}: write METRIC=VALUE, for example --min accuracy=0.99.") from None


def _files(pairs: str | None, source: str | None, target: str | None) -> Files | None:
    if pairs and (source or target):
        raise click.UsageError("Give --pairs, or --source and --target, not both.")
    if bool(source) != bool(target):
        raise click.UsageError("--source and --target go together.")
    return Files(path=pairs, source=source, target=target) if pairs or source else None
