"""regard mechanisms"""

from dataclasses import asdict

import click

from regard.attention.mechanisms import mechanisms
from regard.formatting import table, to_json

EXAMPLES = """\b
Examples:
  regard mechanisms
  regard train dates model.attention=luong-general --out runs/luong"""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """List the attention mechanisms. Each combines a score, a scope and a selection."""
    if as_json:
        click.echo(to_json([asdict(entry) for entry in mechanisms()], ensure_ascii=False))
        return
    rows = [[m.name, m.score, m.scope, m.select, m.citation, m.equation] for m in mechanisms()]
    click.echo(table(["name", "score", "scope", "selection", "from", "equation"], rows))
