"""regard train"""

import click

from regard.config import parse_override, resolve
from regard.training.folder import locate
from regard.training.settings import RunSettings

EXAMPLES = """\b
Examples:
  regard train dates
  regard train dates training.steps=300 model.attention=luong-general --out runs/luong
  regard train pairs data.train=train.tsv data.dev=dev.tsv --out runs/mine
  regard train my-settings.yaml
  regard train runs/dates"""


@click.command(epilog=EXAMPLES)
@click.argument("config", metavar="PRESET|FILE.yaml|RUN")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--out", metavar="DIR", help="The run's folder; by default runs/NAME.")
@click.option(
    "--find", type=click.Choice(["learning-rate", "batch"]), help="Try out and print a setting instead of training."
)
def command(config: str, settings: tuple[str, ...], out: str | None, find: str | None) -> None:
    """Train a model. Given again, the same command goes on where it stopped.

    Prints the run's folder; what happens meanwhile is told on stderr.
    """
    overrides = dict(parse_override(text) for text in settings)
    source, folder = locate(config, out)
    chosen = resolve(RunSettings, source, overrides)
    if find:
        _find(find, chosen)
        return

    from regard.training import loop

    loop.train(chosen, folder)
    click.echo(folder.path)


def _find(what: str, settings: RunSettings) -> None:
    from regard.training import finder

    if what == "learning-rate":
        found, key, unit = finder.find_learning_rate(settings), "training.learning_rate", "loss"
    else:
        found, key, unit = finder.find_batch(settings), "training.batch_tokens", "tokens/s"
    every = max(1, len(found.tried) // 20)
    for value, outcome in found.tried[::every]:
        click.echo(f"{key}={value:<10.3g} {unit} {outcome:,.4g}", err=True)
    click.echo(f"{key}={found.suggestion:.2g}" if what == "learning-rate" else f"{key}={found.suggestion:.0f}")
