"""regard sweep"""

import click

from regard.cli.options import number_option
from regard.formatting import to_json
from regard.quantities import Count, GpuShare, RunCount, Threads

EXAMPLES = """\b
Examples:
  regard sweep dates model.attention=bahdanau,luong-general --seeds 3
  regard sweep dates 'training.learning_rate=log(1e-4,1e-2)' --trials 20 --seeds 3 --workers 4
  regard sweep dates 'model.decoder.hidden=int(64,256,64)' 'model.dropout=uniform(0,0.5)' --trials 30 --prune
  regard sweep dates 'training.learning_rate=log(1e-4,1e-2)' --trials 100 --cluster auto
  regard sweep settings.yaml training.label_smoothing=0,0.1 training.steps=2000 --out sweeps/smoothing"""


@click.command(epilog=EXAMPLES)
@click.argument("words", metavar="PRESET|FILE.yaml|RUN [KEY=VALUES]...", nargs=-1)
@number_option("--trials", Count, "N", "Search: propose N combinations, instead of training all. Required for ranges.")
@number_option(
    "--seeds", RunCount, "K", "Train each combination of a grid, or each finalist of a search, with K seeds.", 1
)
@number_option(
    "--finalists", RunCount, "N",
    "Compare the best N trials on the test set: by default all of a grid, and 3 of a search.",
)  # fmt: skip
@click.option(
    "--prune", is_flag=True,
    help="Stop a trial of a search early if its validations are worse than the median of the others.",
)  # fmt: skip
@number_option(
    "--workers", Threads, "N",
    "Train N runs at the same time, in N processes. [default: 1; with --cluster, as many as it has room for]",
)  # fmt: skip
@click.option(
    "--cluster", metavar="ADDRESS",
    help="Train on a Ray cluster: HOST:PORT of its head node, auto, or local to start one here. Run the command on a "
    "machine of the cluster. Each run uses training.threads CPUs.",
)  # fmt: skip
@number_option(
    "--gpus", GpuShare, "X", "With --cluster: GPUs for each run, for example 0.5. [default: 1 if the cluster has GPUs]"
)
@click.option("--out", metavar="DIR", help="Write the sweep to DIR; by default to sweeps/NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON: the content of sweep.json.")
def command(
    words: tuple[str, ...],
    trials: int | None,
    seeds: int,
    finalists: int | None,
    prune: bool,
    workers: int | None,
    cluster: str | None,
    gpus: float | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Train a grid of settings, or search for good ones, and compare the results. Repeat the command to resume.

    A setting varies if it has several values: KEY=A,B,C, or a range: KEY=uniform(LOW,HIGH), KEY=log(LOW,HIGH),
    KEY=int(LOW,HIGH) or KEY=logint(LOW,HIGH). uniform and int accept a step: int(64,256,64). A comma separates values
    unless it is inside quotes, brackets or braces: KEY=[A,B] is one list. Other settings are the same for all trials.

    Without --trials, every combination is trained with every seed. With --trials, a search (TPE) trains each proposal
    with the seed of the settings. If K is above 1, the best trials are then trained with K other seeds. Trials are
    ranked by training.metric on the validation data; the test set is used once, at the end, for the finalists.

    Prints tables on stdout, and writes sweep.json, importance.svg, history.svg and report.html (see regard compare) to
    the folder of the sweep. Progress goes to stderr. Needs the extra sweep; --cluster also the extra ray.
    """
    if not words or "=" in words[0]:
        raise click.UsageError("Give a preset, a file or a run whose settings are varied.")
    if gpus is not None and cluster is None:
        raise click.UsageError("--gpus needs --cluster. Local workers are distributed over the GPUs of this machine.")

    from regard.cluster.sweep.space import parse_words
    from regard.cluster.sweep.sweeping import sweep

    space, overrides = parse_words(words[1:])
    result = sweep(
        words[0],
        space,
        overrides,
        trials=trials,
        seeds=seeds,
        finalists=finalists,
        prune=prune,
        workers=workers,
        cluster=cluster,
        gpus=gpus,
        out=out,
    )
    click.echo(to_json(result.to_json(), ensure_ascii=False) if as_json else result.to_text())
    click.echo(f"wrote {result.path}", err=True)
