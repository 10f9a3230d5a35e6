"""regard compare"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.options import (
    IMAGES,
    MultiValueCommand,
    accept_changes_option,
    number_option,
    parse_search_options,
    reader_options,
    reader_settings,
    resolve_files,
    search_options,
)
from regard.errors import ConfigError, check_output_folder
from regard.evaluation.settings import metric_names, parse_metrics
from regard.formatting import to_json
from regard.quantities import BatchSize, Resamples, Seed

if TYPE_CHECKING:
    from regard.data.settings import Files
    from regard.evaluation.comparison import System
    from regard.evaluation.metrics import EvaluationSet
    from regard.inspection.compare.comparison import Comparison

EXAMPLES = """\b
Examples:
  regard compare runs/dates runs/luong
  regard compare runs/dates runs/luong runs/fixed --pairs test.tsv --metric accuracy cer --html report.html
  regard compare runs/dates/seed-* runs/luong/seed-* --pairs test.tsv
  regard compare runs/german runs/other --pairs test.tsv --beam 5 --test randomization --format latex
  regard compare runs/de-en runs/other --pairs gold.tsv --alignments gold.links --metric bleu
  regard compare --outputs ours.txt theirs.txt --references test.de --sources test.en
  regard compare runs/german --outputs theirs.txt --pairs test.tsv --baseline theirs --json"""


def _is_value(word: str) -> bool:
    """Whether a word is a metric or a file, as opposed to the folder of a run."""
    path = Path(word)
    return word.partition(":")[0] in metric_names() or (bool(path.suffix) and not path.is_dir())


@click.command(
    cls=MultiValueCommand,
    multi_value=("--metric", "--outputs", "--references"),
    is_value=_is_value,
    epilog=EXAMPLES,
)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--outputs", multiple=True, metavar="FILE...", help="Outputs of other systems, one text per line.")
@click.option("--pairs", metavar="FILE", help="Compare on this file: TSV, CSV or JSONL, plain or gzipped.")
@click.option("--images", metavar="FOLDER", help=IMAGES)
@reader_options
@click.option(
    "--references", multiple=True, metavar="FILE...",
    help="References, one per line. Give several files if a sentence has several references.",
)  # fmt: skip
@click.option("--sources", metavar="FILE", help="Sources of --references, one per line.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="METRIC...",
    help=f"One or more of {', '.join(metric_names())}. By default those of the first run; without runs, bleu and chrf.",
)  # fmt: skip
@click.option("--baseline", metavar="SYSTEM", help="Compare the others with this run or file; by default the first.")
@click.option(
    "--test", type=click.Choice(["bootstrap", "randomization"]), default="bootstrap", show_default=True,
    help="Paired bootstrap (Koehn 2004), or approximate randomization (Riezler and Maxwell 2005).",
)  # fmt: skip
@click.option(
    "--correction", type=click.Choice(["holm", "bh", "none"]), default="holm", show_default=True,
    help="Correct p-values for several comparisons: Holm, Benjamini–Hochberg, or none.",
)  # fmt: skip
@number_option(
    "--resamples", Resamples, "N", "Bootstrap resamples (default 1,000), or trials of randomization (default 10,000)."
)
@number_option("--seed", Seed, "N", "Seed of the test.", 0)
@search_options("Beam size. By default that of the validation of each run.")
@number_option("--batch-size", BatchSize, "N", "Texts per batch. It affects the measured speed.", 64)
@click.option(
    "--alignments", metavar="GOLD",
    help="Gold alignments of the pairs in Pharaoh format: print the alignment error rate (AER) of the runs.",
)  # fmt: skip
@click.option("--one-based", is_flag=True, help="Words in the gold file are counted from 1.")
@click.option(
    "--format", "output_format", type=click.Choice(["text", "json", "markdown", "latex"]), default="text",
    show_default=True, help="Format of the tables on stdout. LaTeX needs the package booktabs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--html", "report", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a report with plots and examples: one HTML file that works offline.",
)  # fmt: skip
@accept_changes_option
def command(
    runs: tuple[str, ...],
    outputs: tuple[str, ...],
    pairs: str | None,
    images: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
    source: str | None,
    target: str | None,
    references: tuple[str, ...],
    sources: str | None,
    metrics: tuple[str, ...],
    baseline: str | None,
    test: Any,
    correction: Any,
    resamples: int | None,
    seed: int,
    beam: int | None,
    settings: tuple[str, ...],
    batch_size: int,
    alignments: str | None,
    one_based: bool,
    output_format: str,
    as_json: bool,
    report: Path | None,
    accept_changes: bool,
) -> None:
    """Compare runs, or outputs in files, on the same sentences.

    Prints each metric with a 95 % confidence interval, the difference from the baseline with its interval and p-value,
    speed, size, and the entropy of the attention weights. Runs that differ only in their seed are also compared over
    seeds. Without files, the test set of the runs is used.
    """
    if references and (pairs or source or target or images):
        raise click.UsageError("Give --references, or --pairs, or --source and --target.")
    if sources and not references:
        raise click.UsageError("--sources needs --references. For two parallel files, use --source and --target.")
    if one_based and not alignments:
        raise click.UsageError("--one-based needs --alignments.")
    files = resolve_files(pairs, source, target, reader_settings(columns, header))
    if images and source:
        raise click.UsageError("--images needs --pairs, not --source and --target.")
    requested = parse_metrics(metrics) or None
    if report:
        _check_report(report)
    search = parse_search_options(beam, settings)

    from regard.api.comparing import (
        ComparisonOptions,
        compare_systems,
        make_test,
        name_paths,
        open_runs,
        read_gold,
        read_texts,
    )
    from regard.arguments import check_device

    opened = open_runs(runs, accept_changes=accept_changes)
    run_names = {run.name for run in opened}
    texts = {
        path if name in run_names else name: read_texts(path)
        for name, path in zip(name_paths(outputs), outputs, strict=True)
    }
    evaluation_set = _read_sentences(opened, files, images, references, sources)
    options = ComparisonOptions(
        requested,
        baseline,
        make_test(test, resamples, seed),
        correction,
        batch_size,
        check_device("auto"),
        search,
        read_gold(alignments, evaluation_set, one_based=one_based),
    )
    comparison = compare_systems(opened, texts, evaluation_set, options, _report_run)
    click.echo(_format(comparison, "json" if as_json else output_format))
    if report:
        comparison.save(report)
        click.echo(f"wrote {report}", err=True)


def _report_run(system: "System") -> None:
    """Print progress on stderr."""
    values = ", ".join(f"{metric.label} {metric.format(result.value)}" for metric, result in system.statistics.items())
    click.echo(f"{system.path}, step {system.step}: {values}", err=True)


def _read_sentences(
    opened: Any, files: "Files | None", images: str | None, references: tuple[str, ...], sources: str | None
) -> "EvaluationSet":
    """Read the sources and references that the systems are compared on."""
    from regard.api.comparing import make_evaluation_set, read_evaluation_set, read_texts

    if not references:
        return read_evaluation_set(opened, files, images)
    columns = {path: read_texts(path) for path in (*([sources] if sources else []), *references)}
    lengths = {path: len(lines) for path, lines in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path} has {length:,}" for path, length in lengths.items())
        raise ConfigError(
            f"The files have different numbers of lines: {listed}. Line n of each file must belong to sentence n."
        )
    by_line = [list(texts) for texts in zip(*(columns[path] for path in references), strict=True)]
    return make_evaluation_set(columns[sources] if sources else None, by_line)


def _check_report(report: Path) -> None:
    """Report a path that cannot be written before the systems are evaluated."""
    if report.suffix != ".html":
        raise ConfigError(f"--html {report}: the report is an HTML file. Use the extension .html.")
    check_output_folder(report, "--html")


def _format(comparison: "Comparison", output_format: str) -> str:
    writers = {
        "text": comparison.to_text,
        "json": lambda: to_json(comparison.to_json(), ensure_ascii=False),
        "markdown": comparison.to_markdown,
        "latex": comparison.to_latex,
    }
    return writers[output_format]()
