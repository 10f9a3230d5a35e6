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
def command(config: str, settings: tuple[str, ...], out: str | None) -> None:
    """Train a model. Given again, the same command goes on where it stopped.

    Prints the run's folder; what happens meanwhile is told on stderr.
    """
    overrides = dict(parse_override(text) for text in settings)
    source, folder = locate(config, out)
    chosen = resolve(RunSettings, source, overrides)

    from regard.training import loop

    loop.train(chosen, folder)
    click.echo(folder.path)
