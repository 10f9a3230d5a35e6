"""regard presets"""

import click

from regard.config import find_config, presets
from regard.formatting import table, to_json
from regard.regular_files import read_regular

EXAMPLES = """\b
Examples:
  regard presets
  regard presets dates > my-settings.yaml"""


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False, metavar="[PRESET]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(name: str | None, as_json: bool) -> None:
    """List the presets, or print one as YAML, to edit and train."""
    if name:
        click.echo(read_regular(find_config(name)).decode("utf-8"), nl=False)
    elif as_json:
        click.echo(to_json(presets(), ensure_ascii=False))
    else:
        click.echo(table(["preset", "what it trains"], list(presets().items())))
