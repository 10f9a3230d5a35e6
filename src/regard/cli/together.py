"""The option by which models answer together, alike in every verb that has answers."""

import click

with_others = click.option(
    "--with", "others", metavar="MODEL", multiple=True, help="Another model that answers together with it."
)
