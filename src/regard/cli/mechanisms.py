"""regard mechanisms"""

from dataclasses import asdict

import click

from regard.attention.mechanisms import mechanisms
from regard.formatting import table, to_json

EXAMPLES = """\b
Examples:
  regard mechanisms
  regard mechanisms --facts
  regard train dates model.attention=luong-general --out runs/luong"""


@click.command(epilog=EXAMPLES)
@click.option("--facts", is_flag=True, help="Print what distinguishes the mechanisms, instead of their equations.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with equations and facts.")
def command(facts: bool, as_json: bool) -> None:
    """List the attention mechanisms. Each combines a score, a scope and a selection."""
    entries = mechanisms()
    if not (facts or as_json):
        rows = [[m.name, m.score, m.scope, m.select, m.citation, m.equation] for m in entries]
        click.echo(table(["name", "score", "scope", "selection", "from", "equation"], rows))
        return
    from regard.inspection.explain.facts import HEADERS, find_facts

    if as_json:
        click.echo(to_json([asdict(m) | {"facts": asdict(find_facts(m))} for m in entries], ensure_ascii=False))
        return
    click.echo(table(["name", *HEADERS], [[m.name, *find_facts(m).row()] for m in entries]))
