"""regard import"""

from pathlib import Path

import click

from regard.export.sources import read_model

EXAMPLES = """\b
Examples:
  regard import opus-mt-en-de --out models/en-de
  regard import joeynmt/models/rnn_reverse --out models/reverse
  regard predict models/en-de "A man rides a horse." --beam 5
  regard look models/en-de "A man rides a horse."
  regard train --from models/en-de --pairs pairs.tsv --out runs/tuned"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="MODEL", required=True, type=click.Path(path_type=Path),
    help="New folder to write to. It must not exist, or must be empty.",
)  # fmt: skip
def command(folder: Path, out: Path) -> None:
    """Import a Marian or Joey NMT model. Prints the folder of the new model on stdout.

    A Marian model of Hugging Face, such as those of OPUS-MT, consists of config.json, model.safetensors or
    pytorch_model.bin, source.spm, target.spm, vocab.json and tokenizer_config.json. A model of Joey NMT 2, recurrent or
    a Transformer, consists of config.yaml, a checkpoint (best.ckpt, latest.ckpt or N.ckpt), src_vocab.txt,
    trg_vocab.txt and, if it has one, its SentencePiece model.

    Nothing in FOLDER is run: a pickle with anything but tensors is rejected. The new model can be used with all
    commands, and fine-tuned with its own vocabulary.

    If a part is not supported, the error names it, and nothing is written. Greedy predictions are the same as those of
    the other software, except that the unknown token is never generated, and that the length limits differ. Beam
    search without a length penalty agrees with Marian; Joey NMT returns different predictions for some sentences.
    """
    model = read_model(folder)

    from regard.export.importing import import_model

    click.echo(import_model(model, out))
