"""regard explain"""

import click

from regard.config import parse_override, resolve
from regard.runs.folder import locate
from regard.runs.settings import RunSettings

EXAMPLES = """\b
Examples:
  regard explain dates
  regard explain dates model.attention=transformer
  regard explain runs/dates"""


@click.command(epilog=EXAMPLES)
@click.argument("config", metavar="PRESET|FILE.yaml|RUN")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
def command(config: str, settings: tuple[str, ...]) -> None:
    """Print the layers and attentions of a config, the kernel that each uses, and why faster kernels are not used."""
    source, _ = locate(config, None)
    resolved = resolve(RunSettings, source, dict(parse_override(text) for text in settings))

    from regard.inspection.explain import explain

    click.echo(explain(resolved.model))
