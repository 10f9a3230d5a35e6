"""regard train"""

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.options import files_given, reading_given, reading_options
from regard.config import parse_override, resolve
from regard.data.layouts import EXTENSIONS
from regard.errors import ConfigError
from regard.runs.folder import RunFolder, locate
from regard.runs.settings import RunSettings, with_deadline
from regard.training.finetuning import INIT_FROM, resolve_run

if TYPE_CHECKING:
    from regard.evaluation.values import MetricValues

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
  regard train --from runs/words --pairs names.tsv --minutes 2"""


@click.command(epilog=EXAMPLES)
@click.argument("words", metavar="[PRESET|FILE.yaml|RUN|PAIRS.tsv] [KEY=VALUE]...", nargs=-1)
@click.option("--pairs", metavar="FILE", help="Your pairs; all settings are chosen from what they are like.")
@click.option("--source", metavar="FILE", help="With --target: your pairs in two parallel files.")
@click.option("--target", metavar="FILE")
@click.option(
    "--dev", metavar="FILE", help="Pairs to choose the best model by, or SOURCE,TARGET; without it, some are held back."
)
@click.option(
    "--test", metavar="FILE", help="Pairs for `regard evaluate RUN`, or SOURCE,TARGET; without it, some are held back."
)
@reading_options
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Deadline of each run. The schedule is rescaled to the speed measured while training. With --pairs the "
    "default is at most 10.",
)
@click.option(
    "--seeds", metavar="N", type=click.IntRange(min=1), default=1, help="Train N runs with consecutive seeds."
)
@click.option(
    "--from", "start", metavar="RUN",
    help="Fine-tune: start from the best weights of RUN, with its tokenizers and its model. Without other data or "
    "settings, those of RUN are used.",
)  # fmt: skip
@click.option("--out", metavar="DIR", help="The run's folder; by default runs/NAME.")
@click.option(
    "--find",
    type=click.Choice(["learning-rate", "batch"]),
    help="Try out and print a setting instead of training.",
)
def command(
    words: tuple[str, ...],
    pairs: str | None,
    source: str | None,
    target: str | None,
    dev: str | None,
    test: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
    minutes: float | None,
    seeds: int,
    start: str | None,
    out: str | None,
    find: str | None,
) -> None:
    """Train a model, or resume one: the same command continues a run that was stopped.

    Prints the run folder on stdout; progress goes to stderr.
    """
    started = time.monotonic() - time.process_time()  # so the deadline includes the time for imports
    if words and not (pairs or source) and _is_data_file(words[0]):
        pairs, *rest = words
        words = tuple(rest)
        click.echo(f"{pairs} is a data file: training on it as with --pairs {pairs}.", err=True)
    for word in words if pairs or source else words[1:]:
        if "=" not in word and (_is_data_file(word) or Path(word).is_file()):
            raise click.UsageError(
                f"{word}: use --pairs, or --source and --target, for training data, --dev and --test for other data."
            )
    own = _own_data(pairs, source, target, {"dev": dev, "test": test}, reading_given(columns, header))
    initial = {INIT_FROM: start} if start else {}
    if own is None:
        if start and (not words or "=" in words[0]):
            words = (start, *words)
        if not words or "=" in words[0]:
            raise click.UsageError("Name a preset, a file or a run to train, or bring your own --pairs.")
        config, folder = locate(words[0], out)
        _check_own_folder(start, folder)
        overrides = with_deadline(dict(map(parse_override, words[1:])), minutes)
        settings = resolve_run(config, {**initial, **overrides})
        folder.reject_foreign()
    else:
        overrides = {**initial, **dict(map(parse_override, words))}
        folder = RunFolder(Path(out) if out else Path("runs") / _stem(pairs or str(source)))
        _check_own_folder(start, folder)
        folder.reject_foreign()
        settings = _chosen(own, overrides, folder, minutes, started, several=seeds > 1)
    if find:
        _find(find, settings)
        return

    from regard.training import loop

    if seeds == 1:
        loop.train(settings, folder, started)
        click.echo(folder.path)
        return
    reached = []
    for seed in range(settings.seed, settings.seed + seeds):
        place = RunFolder(folder.path / f"seed-{seed}")
        reached.append(loop.train(settings.model_copy(update={"seed": seed}), place).best)
        click.echo(place.path)
    _summarise([scores for scores in reached if scores is not None], settings)


def _check_own_folder(start: str | None, folder: RunFolder) -> None:
    if start and Path(start).resolve() == folder.path.resolve():
        raise click.UsageError(f"--from {start}: a fine-tuned run needs its own folder. Choose one with --out.")


def _own_data(
    pairs: str | None, source: str | None, target: str | None, held_out: dict[str, str | None], reading: dict[str, Any]
) -> dict[str, Any] | None:
    """The user's files as settings of data."""
    if bool(source) != bool(target) or (pairs and source):
        raise click.UsageError("Give one file of pairs (--pairs), or two parallel files (--source and --target).")
    if not (pairs or source):
        if any(held_out.values()) or reading:
            raise click.UsageError("--dev, --test, --columns and --header go with --pairs, or --source and --target.")
        return None
    train: dict[str, Any] = {"path": pairs, **reading} if pairs else {"source": source, "target": target}
    given = {name: files_given(path, reading) for name, path in held_out.items() if path}
    return {"kind": "files", "train": train, **given}


def _is_data_file(word: str) -> bool:
    """Whether a name has the extension of a file of pairs."""
    return "=" not in word and Path(word.removesuffix(".gz")).suffix in EXTENSIONS


def _stem(path: str) -> str:
    return Path(path.removesuffix(".gz")).stem


def _chosen(
    data: dict[str, Any],
    overrides: dict[str, Any],
    folder: RunFolder,
    minutes: float | None,
    started: float,
    *,
    several: bool,
) -> RunSettings:
    """The settings of a run that was started before, or new ones, whose reasons are printed."""
    begun = RunFolder(folder.path / f"seed-{overrides.get('seed', 0)}") if several else folder
    if begun.exists():
        click.echo(
            f"{begun.path} was started before; its settings are used. For others, choose another folder with --out.",
            err=True,
        )
        before = resolve(RunSettings, begun.config, {})
        settings = resolve(RunSettings, begun.config, {"data": data, **with_deadline(overrides, minutes)})

        from regard.data.pinning import pin_data

        if pin_data(before.data) != pin_data(settings.data):
            raise ConfigError(
                f"{begun.path} was started with other files ({before.data.train}). Choose another folder with --out."  # type: ignore[union-attr]
            )
        return settings

    from regard.api import choose

    chosen = choose(
        data, overrides, minutes=minutes, report=lambda reason: click.echo(reason, err=True), started=started
    )
    click.echo(f"The resolved settings are written to {begun.config}; change any with key=value.", err=True)
    return chosen.settings


def _summarise(reached: list["MetricValues"], settings: RunSettings) -> None:
    """The mean over seeds, with its standard deviation, of all that was measured in validation."""
    for measure in settings.training.metrics:
        values = [scores.values[measure.label] for scores in reached]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        told = ", ".join(map(measure.told, values))
        click.echo(
            f"{measure.label}: {measure.told(statistics.fmean(values))} ± {measure.told(spread)} ({told})", err=True
        )


def _find(what: str, settings: RunSettings) -> None:
    from regard.training import lr_finder

    if what == "learning-rate":
        found, key, unit = lr_finder.find_learning_rate(settings), "training.learning_rate", "loss"
    else:
        found, key, unit = lr_finder.find_batch_tokens(settings), "training.batch_tokens", "tokens/s"
    every = max(1, len(found.trials) // 20)
    for value, outcome in found.trials[::every]:
        click.echo(f"{key}={value:<10.3g} {unit} {outcome:,.4g}", err=True)
    click.echo(f"{key}={found.suggestion:.2g}" if what == "learning-rate" else f"{key}={found.suggestion:.0f}")
