"""regard export"""

from pathlib import Path

import click

from regard.cli.options import accept_changes_option
from regard.export.settings import parse_target
from regard.runs.folder import open_model

EXAMPLES = """\b
Examples:
  regard export runs/dates --out dates
  regard predict dates "3 mai 2009"
  regard export runs/en-de --to hf --out marian-en-de
  regard export runs/en-de --to ct2:precision=int8 --out ct2-en-de"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option(
    "--to", metavar="FORMAT", default="folder", show_default=True,
    help="Format, with options: NAME or NAME:KEY=VALUE,….",
)  # fmt: skip
@click.option(
    "--out", metavar="DIR", required=True, type=click.Path(path_type=Path),
    help="New folder to write to. It must not exist, or must be empty.",
)  # fmt: skip
@accept_changes_option
def command(model: str, to: str, out: Path, accept_changes: bool) -> None:
    """Write MODEL to a new folder, in the format of other software. Prints the folder on stdout.

    \b
    folder   a model folder of regard, without the optimizer and the data
    hf       a MarianMTModel of Hugging Face Transformers, with its tokenizer
    ct2      a model of CTranslate2; options: precision=float32, bfloat16 or int8

    If the format cannot express the model, nothing is written, and the error names the setting and the nearest value
    that can be expressed. A folder is written completely, or not at all.
    """  # noqa: D301 - click needs a literal \b
    opened = open_model(model, accept_changes=accept_changes)
    parse_target(to)  # a typo is reported before the weights are read

    from regard.api.model import Model

    click.echo(Model.from_checkpoint(*opened, device="cpu").export(out, to))
