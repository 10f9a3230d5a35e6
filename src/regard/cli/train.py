"""regard train"""

import functools
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from regard.cli.options import IMAGES, file_settings, number_option, reader_options, reader_settings
from regard.data.pair_files import EXTENSIONS
from regard.formatting import short_path
from regard.operating_system import process_age
from regard.overrides import parse_overrides
from regard.quantities import Minutes, RunCount, WorkerCount
from regard.runs.folder import ACCEPT_CHANGES, INIT_FROM, RunFolder, local_folder, locate, resolve_run
from regard.runs.settings import RunSettings, with_deadline
from regard.training.ranks import count_ranks, get_rank
from regard.training.signals import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from regard.evaluation.settings import MetricValues
    from regard.training.planning.trials import SearchResult

EXAMPLES = """\b
Examples:
  regard train dates
  regard train --pairs words.tsv
  regard train --source train.en --target train.de --dev dev.en,dev.de --minutes 30
  regard train dates training.steps=300 model.attention=luong-general --out runs/luong
  regard train dates --seeds 3
  regard train my-settings.yaml
  regard train runs/dates
  regard train runs/words training.patience=20
  regard train --images photos --pairs captions.tsv
  regard train --images captchas.zip data.test_every=10
  regard train --from runs/words --pairs names.tsv --minutes 2"""


def _joining_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that joins the other ranks first, if torchrun has started several."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        if count_ranks() == 1:
            command(**options)
            return
        with stop_on_signals() as stop, stop.imports():
            from regard.training.distributed import open_group

        with open_group():
            command(**options)

    return run


@click.command(epilog=EXAMPLES)
@click.argument("words", metavar="[PRESET|FILE.yaml|RUN|PAIRS.tsv] [KEY=VALUE]...", nargs=-1)
@click.option("--pairs", metavar="FILE", help="Train on this file. All settings are chosen from the data.")
@click.option("--images", metavar="FOLDER", help=IMAGES)
@click.option(
    "--dev",
    metavar="FILE",
    help="Validation pairs, or SOURCE,TARGET. Without it, some training pairs are held out for validation.",
)
@click.option(
    "--test",
    metavar="FILE",
    help="Test pairs for `regard evaluate RUN`, or SOURCE,TARGET. Without --dev and --test, some training pairs are "
    "held out for testing.",
)
@reader_options
@number_option(
    "--minutes", Minutes, "M",
    "Deadline of each run, in minutes. The schedule is rescaled to the speed measured while training. With --pairs, "
    "the default is at most 10.",
)  # fmt: skip
@number_option("--seeds", RunCount, "N", "Train N runs with consecutive seeds.")
@click.option(
    "--from", "start", metavar="RUN",
    help="Fine-tune: start from the best weights of RUN, with its tokenizers and its model settings. Without other "
    "data or settings, those of RUN are used.",
)  # fmt: skip
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Accept an edited model for --from, and edited models as teachers.",
)
@number_option(
    "--devices", WorkerCount, "N",
    "Train with N processes on this machine, one for each GPU. Each step is divided among them; the settings stay the "
    "same. To use several machines, start `regard train` with torchrun.",
)  # fmt: skip
@click.option("--out", metavar="DIR", help="Write the run to DIR; by default to runs/NAME.")
@click.option(
    "--find",
    type=click.Choice(["learning-rate", "batch"]),
    help="Search for a learning rate or batch size and print it, instead of training.",
)
@_joining_ranks
def command(
    words: tuple[str, ...],
    pairs: str | None,
    images: str | None,
    source: str | None,
    target: str | None,
    dev: str | None,
    test: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
    minutes: float | None,
    seeds: int | None,
    start: str | None,
    accept_changes: bool,
    devices: int | None,
    out: str | None,
    find: str | None,
) -> None:
    """Train a model, or resume one. Repeat the command to resume a run that was stopped.

    Prints the run folder on stdout; progress goes to stderr.
    """
    started = time.monotonic() - process_age()  # so the deadline includes the time for imports
    if find and (devices or count_ranks() > 1):
        raise click.UsageError("--find needs one process. Remove --devices, or start it without torchrun.")
    if devices and devices > 1:
        _launch(devices)
    if get_rank():
        _follow(seeds or 1, started)
        return
    if words and not (pairs or source or images) and _is_data_file(words[0]):
        pairs, *rest = words
        words = tuple(rest)
        click.echo(f"{short_path(pairs)} is a data file: training on it as with --pairs {short_path(pairs)}.", err=True)
    for word in words if pairs or source or images else words[1:]:
        if "=" not in word and (_is_data_file(word) or Path(word).is_file()):
            raise click.UsageError(
                f"{word} is not a KEY=VALUE setting. Pass training data with --pairs, or --source and --target, "
                "and other data with --dev and --test."
            )
    held_out, reader, runs = {"dev": dev, "test": test}, reader_settings(columns, header), seeds or 1
    data = (
        _caption_settings(images, pairs, source or target, held_out, reader)
        if images
        else _data_settings(pairs, source, target, held_out, reader)
    )
    initial: dict[str, Any] = {INIT_FROM: start} if start else {}
    initial |= {ACCEPT_CHANGES: True} if accept_changes else {}
    with stop_on_signals() as stop:
        if data is None:
            if start and (not words or "=" in words[0]):
                words = (start, *words)
            if not words or "=" in words[0]:
                raise click.UsageError("Give a preset, a file or a run to train, or your own data with --pairs.")
            with stop.imports():
                config, folder = locate(words[0], out)
                _check_separate_folder(start, folder)
                overrides = with_deadline(parse_overrides(words[1:]), minutes)
                folder.reject_foreign()
                stop.resumed = bool(folder.all_checkpoints())
                settings = resolve_run(config, {**initial, **overrides})
        else:
            overrides = {**initial, **parse_overrides(words)}
            folder = RunFolder(local_folder(out) if out else Path("runs") / _stem(pairs or images or str(source)))
            _check_separate_folder(start, folder)
            with stop.imports():
                folder.reject_foreign()
            stop.resumed = bool(folder.all_checkpoints())
            settings = _choose_settings(data, overrides, folder, minutes, started, stop, several=runs > 1)
        with stop.imports():
            from regard.training import loop
            from regard.training.planning import trials

        if find:
            search = trials.find_learning_rate if find == "learning-rate" else trials.find_batch_tokens
            _print_suggestion(find, search(settings))
            return

    if runs == 1:
        loop.train(settings, folder, started)
        click.echo(folder.path)
        return
    results = []
    for seed in range(settings.seed, settings.seed + runs):
        seed_folder = RunFolder(folder.path / f"seed-{seed}")
        results.append(loop.train(settings.model_copy(update={"seed": seed}), seed_folder).best)
        click.echo(seed_folder.path)
    _print_summary([best for best in results if best is not None], settings)


def _launch(devices: int) -> NoReturn:
    """Run this command with several ranks, and exit."""
    if count_ranks() > 1:
        raise click.UsageError("--devices cannot be combined with torchrun, which starts the ranks itself.")
    with stop_on_signals() as stop, stop.imports():
        from regard.training.distributed import launch

    raise click.exceptions.Exit(launch(devices, _without_option(sys.argv[1:], "--devices")))


def _without_option(words: Sequence[str], option: str) -> list[str]:
    """Return words of a command line without an option and its value."""
    kept, skips = [], False
    for word in words:
        if not skips and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skips = word == option and not skips
    return kept


def _follow(runs: int, started: float) -> None:
    """Train as a rank other than the first, which sends the settings of each run."""
    with stop_on_signals() as stop, stop.imports():
        from regard.training import loop

    logging.getLogger("regard").setLevel(logging.ERROR)  # rank 0 prints the warnings
    for _ in range(runs):
        loop.follow(started)


def _check_separate_folder(start: str | None, folder: RunFolder) -> None:
    if start and Path(start).resolve() == folder.path.resolve():
        raise click.UsageError(f"--from {start}: a fine-tuned run needs its own folder. Choose one with --out.")


def _data_settings(
    pairs: str | None, source: str | None, target: str | None, held_out: dict[str, str | None], reader: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the data settings for the user's files, or None without files."""
    if bool(source) != bool(target) or (pairs and source):
        raise click.UsageError("Give one file of pairs (--pairs), or two parallel files (--source and --target).")
    if not (pairs or source):
        if any(held_out.values()) or reader:
            raise click.UsageError("--dev, --test, --columns and --header need --pairs, or --source and --target.")
        return None
    train: dict[str, Any] = {"path": pairs, **reader} if pairs else {"source": source, "target": target}
    others = {name: file_settings(path, reader) for name, path in held_out.items() if path}
    return {"kind": "files", "train": train, **others}


def _caption_settings(
    images: str, pairs: str | None, parallel: str | None, held_out: dict[str, str | None], reader: dict[str, Any]
) -> dict[str, Any]:
    """Return the data settings for the user's images."""
    if parallel:
        raise click.UsageError("--images needs --pairs, not --source and --target.")
    captions = {"captions": {"path": pairs, **reader}} if pairs else {}
    others = {name: path for name, path in held_out.items() if path}
    return {"kind": "captions", "images": images, **captions, **others}


def _is_data_file(word: str) -> bool:
    """Whether a word has the extension of a data file."""
    return "=" not in word and Path(word.removesuffix(".gz")).suffix in EXTENSIONS


def _stem(path: str) -> str:
    return Path(path.removesuffix(".gz")).stem


def _choose_settings(
    data: dict[str, Any],
    overrides: dict[str, Any],
    folder: RunFolder,
    minutes: float | None,
    started: float,
    stop: StopRequest,
    *,
    several: bool,
) -> RunSettings:
    """Return the settings of a run that was started before, or choose new ones and print the reasons."""
    previous = RunFolder(folder.path / f"seed-{overrides.get('seed', 0)}") if several else folder

    with stop.imports():
        from regard.training.planning.choosing import choose_or_reuse

    return choose_or_reuse(
        previous,
        data,
        overrides,
        minutes=minutes,
        report=lambda reason: click.echo(reason, err=True),
        started=started,
        how_to_override="key=value",
    )


def _print_summary(results: list["MetricValues"], settings: RunSettings) -> None:
    """Print the mean and standard deviation over seeds of every validation metric."""
    for metric in settings.training.metrics:
        values = [result.values[metric.label] for result in results]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        mean = metric.format(statistics.fmean(values))
        by_seed = ", ".join(map(metric.format, values))
        click.echo(f"{metric.label}: {mean} ± {metric.format(deviation)} ({by_seed})", err=True)


def _print_suggestion(what: str, result: "SearchResult") -> None:
    """Print the trials of a search for a learning rate or batch size on stderr, and the best value on stdout."""
    key, unit = ("learning_rate", "loss") if what == "learning-rate" else ("batch_tokens", "tokens/s")
    interval = max(1, len(result.trials) // 20)
    for value, outcome in result.trials[::interval]:
        click.echo(f"training.{key}={value:<10.3g} {unit} {outcome:,.4g}", err=True)
    suggestion = f"{result.suggestion:.2g}" if what == "learning-rate" else f"{result.suggestion:.0f}"
    click.echo(f"training.{key}={suggestion}")
