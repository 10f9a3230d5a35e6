"""regard predict. Lines are predicted in large chunks while they arrive fast, and at once when the input pauses."""

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from regard.api.line_prediction import LineOptions, LinePredictor, PredictionCounts, read_chunks
from regard.cli.options import accept_changes_option, engine_options, ensemble_option, number_option, setting_option
from regard.cluster.block_predictor import WorkerSettings
from regard.cluster.corpus import BLOCK_LINES, Job, find_inputs, predict_corpus
from regard.cluster.job_folder import FAILURES
from regard.cluster.pools import InProcess, LocalProcesses, Pool
from regard.config import resolve
from regard.data.lines import Line, open_stdin, parse_blocks
from regard.decoding.settings import EngineName, Precision, SearchSettings
from regard.errors import DataError
from regard.formatting import quantity, short_path
from regard.overrides import parse_overrides
from regard.quantities import BatchSize, Count, WorkerCount
from regard.registry import imported_plugins
from regard.runs.folder import open_models

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
  regard predict runs/german --engine ct2 --precision int8 --beam 5 < english.txt
  regard predict runs/one --with runs/other --beam 5 < dates.txt
  regard predict runs/captions --beam 5 photo.jpg photos.zip/cat.png
  ls photos/*.jpg | regard predict runs/captions
  regard predict runs/german --input 'in/*.txt.gz' --output out/ --workers 4
  regard predict runs/german --input in/ --output out/ --cluster head:6379"""


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
@number_option("--batch-size", BatchSize, "N", "Maximum number of texts per batch. [default: depends on the device]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per prediction: text, score, tokens.")
@click.option("--attention", is_flag=True, help="Include attention weights; needs --json.")
@click.option("--align", is_flag=True, help="Add word alignments in Pharaoh format, after a tab; see regard align -h.")
@click.option("--tokens", is_flag=True, help="Align tokens instead of words; needs --align.")
@click.option("--replace-invalid", is_flag=True, help="Replace bytes that are not UTF-8 with U+FFFD, and count them.")
@click.option(
    "--input", "inputs", metavar="FILES", multiple=True,
    help="Predict all lines of FILES: a file, a folder, a quoted pattern, or - for stdin. Repeat for more. Needs "
    "--output.",
)  # fmt: skip
@click.option("--output", metavar="DIR", help="Write a file to DIR for each file of --input, with the same name.")
@number_option(
    "--workers", WorkerCount, "N", "Predict in N processes. [default: 1; with --cluster, one per GPU or CPU]"
)
@click.option(
    "--cluster", metavar="ADDRESS",
    help="Predict on a Ray cluster: HOST:PORT of its head node, auto, or local to start one on this machine.",
)  # fmt: skip
@number_option("--block-lines", Count, "N", "Lines that a worker predicts at a time, with --input.", BLOCK_LINES)
@engine_options
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
    batch_size: int | None,
    as_json: bool,
    attention: bool,
    align: bool,
    tokens: bool,
    replace_invalid: bool,
    inputs: tuple[str, ...],
    output: str | None,
    workers: int | None,
    cluster: str | None,
    block_lines: int,
    engine: EngineName,
    precision: Precision,
    accept_changes: bool,
) -> None:
    """Predict the output for each TEXT. Without TEXT (or with a single -), read lines from stdin.

    With --input, predict files of any size into a folder. If the command is stopped or fails, the same command resumes
    it, and does not repeat what is finished. A line that cannot be read or predicted is listed in failures.jsonl, and
    its prediction is empty; the exit code is then 1, or 3 if a file cannot be read.

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
    options = LineOptions(
        search=resolve(SearchSettings, search, {}),
        prefix=prefix,
        must_contain=must_contain,
        banned=banned,
        as_json=as_json,
        attention=attention,
        align=align,
        align_tokens=tokens,
        batch_size=batch_size,
        engine=engine,
        precision=precision,
    )
    if attention and not as_json:
        raise click.UsageError("--attention needs --json. To draw the weights, use `regard look`.")
    if tokens and not align:
        raise click.UsageError("--tokens needs --align.")
    if inputs or output:
        if texts or not (inputs and output):
            raise click.UsageError("--input FILES and --output DIR must be used together, and without TEXT.")
        found = find_inputs(inputs)
        located = open_models(model, *others, accept_changes=accept_changes)
        job = predict_corpus(
            located,
            found,
            Path(output),
            options,
            block_lines=block_lines,
            replace_invalid=replace_invalid,
            build_pool=partial(_build_pool, workers=workers, cluster=cluster),
            plugins=imported_plugins(),
        )
        _report_job(job)
        return
    if workers or cluster:
        raise click.UsageError("--workers and --cluster need --input and --output.")
    from_stdin = not texts or texts == ("-",)
    if from_stdin and sys.stdin is None:
        raise click.UsageError("Standard input is closed. Give TEXT, or redirect a file with < FILE.")
    opened = open_models(model, *others, accept_changes=accept_changes)

    from regard.api.model import Model

    predictor = LinePredictor(Model.from_checkpoints(opened), options)
    blocks: Iterable[Sequence[str]] = _read_stdin(replace_invalid=replace_invalid) if from_stdin else [texts]
    counts, failed = PredictionCounts(), 0
    chunks = map(predictor.read, read_chunks(blocks, predictor.chunk_size))
    with closing(predictor.predict(chunks)) as predictions:
        for predicted in predictions:
            for problem in predicted.problems.values():
                click.echo(f"regard: {problem}", err=True)
            click.echo("\n".join(predicted.lines))
            counts += predicted.counts
            failed += len(predicted.problems)
    for note in counts.describe():
        click.echo(f"note: {note}", err=True)
    if failed:
        raise DataError(
            f"{failed:,} of {quantity(counts.sources, predictor.noun)} could not be read, for the reasons above. Their "
            "predictions are empty."
        )


def _build_pool(settings: WorkerSettings, *, workers: int | None, cluster: str | None) -> Pool:
    if cluster is not None:
        from regard.cluster.ray_pool import RayPool

        return RayPool(cluster, settings, workers)
    return InProcess(settings) if workers is None else LocalProcesses(settings, workers)


def _report_job(job: Job) -> None:
    """Print a summary. Raise DataError if files could not be read; exit with code 1 if lines could not be predicted."""
    counts, out = job.count(), short_path(job.folder)
    for note in counts.describe():
        click.echo(f"note: {note}", err=True)
    lines, files = quantity(counts.sources, "line"), quantity(len(job.states), "file")
    failed = sum(len(block.problems) for state in job.states for block in state.output.blocks.values())
    unread = sum(state.failure is not None for state in job.states)
    if unread:
        raise DataError(
            f"{unread:,} of {files} could not be predicted, for the reasons above. The others are in {out}. Correct "
            "these files, and run the same command."
        )
    click.echo(f"{lines} of {files} are predicted in {out}.", err=True)
    if failed:
        many = "1 line has" if failed == 1 else f"{failed:,} lines have"
        click.echo(f"{many} no prediction: {out}/{FAILURES} lists the reasons.", err=True)
        raise click.exceptions.Exit(1)


_OTHER_SETTINGS = ", ".join(name for name in SearchSettings.model_fields if name not in ("beam", "nbest"))
command.help = f"{inspect.cleandoc(command.help or '')}\n\nSearch settings: {_OTHER_SETTINGS}."


def _read_stdin(*, replace_invalid: bool) -> Iterator[Sequence[str]]:
    """Read blocks of lines, as they arrive."""
    replaced = 0
    for block in parse_blocks(open_stdin(), "stdin"):
        texts: list[str] = []
        for line in block:
            if isinstance(line, Line) and line.problem:
                if not (replace_invalid and line.text):
                    yield texts
                    remedy = "Correct the line, or use --replace-invalid."
                    raise DataError(f"stdin, line {line.number}: {line.problem}. {remedy}")
                replaced += 1
            texts.append(line.text if isinstance(line, Line) else line)
        yield texts
    if replaced:
        click.echo(
            f"note: {quantity(replaced, 'line')} had bytes that are not UTF-8; they were replaced with U+FFFD.",
            err=True,
        )
