"""regard export"""

from pathlib import Path

import click

from regard.cli.options import accept_changes_option
from regard.errors import ConfigError
from regard.export.settings import parse_target
from regard.runs.folder import open_model

EXAMPLES = """\b
Examples:
  regard export runs/dates --out dates
  regard predict dates "3 mai 2009"
  regard export runs/en-de --to hf --out marian-en-de
  regard export runs/en-de --to hf --out marian-en-de --push USER/marian-en-de
  regard export runs/en-de --to ct2:precision=int8 --out ct2-en-de
  regard export runs/en-de --to argos:source=en,target=de --out en-de.argosmodel"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option(
    "--to", metavar="FORMAT", default="folder", show_default=True,
    help="Format, with options: NAME or NAME:KEY=VALUE,….",
)  # fmt: skip
@click.option(
    "--out", metavar="PATH", required=True, type=click.Path(path_type=Path),
    help="New folder, or new file for argos, to write to. A folder may exist if it is empty.",
)  # fmt: skip
@click.option(
    "--push", metavar="REPO",
    help="Afterwards, upload the folder to this repository of the Hugging Face Hub, which is created if necessary.",
)  # fmt: skip
@click.option("--private", is_flag=True, help="With --push: create the repository as private.")
@accept_changes_option
def command(model: str, to: str, out: Path, push: str | None, private: bool, accept_changes: bool) -> None:
    """Write MODEL to a new folder or file, in the format of other software. Prints its path on stdout, and with --push
    the URL of the repository.

    \b
    folder   a model folder of regard, without the optimizer and the data
    hf       a MarianMTModel of Hugging Face Transformers, with its tokenizer
    ct2      a model of CTranslate2; options: precision=float32, bfloat16 or int8
    argos    a package of Argos Translate, one file; options: source and target (language codes), precision as for
             ct2, sentences=argos (Argos Translate splits lines into sentences) or lines (each line is a sentence)
    onnx     an encoder and one step of a decoder for ONNX Runtime, with the tokenizers

    If the format cannot express the model, nothing is written, and the error names the setting and the nearest value
    that can be expressed. The output is written completely, or not at all, and uploaded when it is complete.
    """  # noqa: D301 - click needs a literal \b
    opened = open_model(model, accept_changes=accept_changes)
    exporter = parse_target(to).build_part()  # a wrong option is reported before the weights are read

    from regard.api.model import Model
    from regard.export.hub import check_repository, push_folder

    if private and push is None:
        raise click.UsageError("--private requires --push.")
    if push is not None:
        if exporter.writes_file:
            kind = to.partition(":")[0]
            raise ConfigError(f"--push uploads a folder, but the format {kind} is one file. Omit --push.")
        check_repository(push)
    path = Model.from_checkpoint(*opened, device="cpu").export(out, to)
    click.echo(path)
    if push is not None:
        click.echo(push_folder(path, push, private=private))
