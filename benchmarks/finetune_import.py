"""Does fine-tuning improve an imported model? Needs transformers and sentencepiece.

    python benchmarks/finetune_import.py --data multi30k/raw
    GPU="--device cuda --seeds 3 --size 256 --layers 4 --vocabulary 6000 --batch 256 --steps 4000 --tuning-steps 2000"
    python benchmarks/finetune_import.py --data multi30k/raw $GPU

The defaults take about ten minutes on one core.

Trains a Marian model with Transformers and SentencePiece, without regard, on the first half of Multi30k's training
data (English to German). The model with the lowest dev loss is saved in the format of OPUS-MT. Then `regard import`
reads it, and `regard train --from` fine-tunes it on the second half, with its own vocabulary. The checkpoint with the
best dev BLEU is used. With --control, the same fine-tuning on the first half shows the effect of more steps alone. Each
model is scored once on the test set, with beam search. Existing models and scores in --out are reused.
"""

import argparse
import copy
import gzip
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from marian_models import Pairs, build_model, compute_loss, shuffle_batches, train_model, train_tokenizer
from quality import run_regard, write_atomically
from regard.formatting import table

DEV, TEST = "val", "test_2016_flickr"
SEARCH = ("--beam", "5", "--metric", "bleu", "chrf", "loss")


def read_pairs(data: Path, split: str) -> Pairs:
    """Read the pairs of a split."""
    sides = (
        gzip.decompress((data / f"{split}.{language}.gz").read_bytes()).decode().splitlines()
        for language in ("en", "de")
    )
    return [(source.strip(), target.strip()) for source, target in zip(*sides, strict=True)]


def train_marian(path: Path, pairs: Pairs, dev: Pairs, seed: int, args: argparse.Namespace) -> None:
    """Train a Marian model, and save the weights with the lowest dev loss."""
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(path, pairs, args.vocabulary, max_length=256)
    model = build_model(
        tokenizer, size=args.size, layers=(args.layers, args.layers), feedforward=4 * args.size, dropout=args.dropout
    ).to(args.device)
    batches = itertools.islice(shuffle_batches(pairs, args.batch, seed), args.steps)
    warmup = max(1, args.steps // 10)
    best, weights = float("inf"), {}
    losses = train_model(
        model, tokenizer, batches, args.learning_rate,
        lambda step: min((step + 1) / warmup, 1 - step / args.steps),
    )  # fmt: skip
    for step, loss in enumerate(losses, 1):
        if step % args.validate_every and step != args.steps:
            continue
        dev_loss = validate(model, tokenizer, dev)
        print(f"seed {seed}, step {step}: loss {loss:.3f}, dev loss {dev_loss:.3f}", file=sys.stderr, flush=True)
        if dev_loss < best:
            best, weights = dev_loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    tokenizer.save_pretrained(path)
    model.cpu().save_pretrained(path)


@torch.inference_mode()
def validate(model: Any, tokenizer: Any, pairs: Pairs, size: int = 64) -> float:
    """Return the dev loss, averaged over batches of similar length."""
    model.eval()
    ordered = sorted(pairs, key=lambda pair: len(pair[0]))
    losses = [compute_loss(model, tokenizer, ordered[start : start + size]) for start in range(0, len(pairs), size)]
    return torch.stack(losses).mean().item()


def score(model: Path, args: argparse.Namespace) -> list[str]:
    """Return the metrics on dev and test. Each is scored once; existing scores are reused."""
    values: list[float] = []
    for split in (DEV, TEST):
        path = model.parent / f"{model.name}-{split}.json"
        if not path.exists():
            files = ("--pairs", f"{args.out}/{split}.tsv", "--no-header")
            write_atomically(path, run_regard(model.parent, "evaluate", str(model), *files, *SEARCH, "--json"))
        scores = json.loads(path.read_text())
        print(f"{model} {split}: {scores['values']} {scores['signatures']}", file=sys.stderr, flush=True)
        values += scores["values"].values()
    return [f"{value:.2f}" for value in values]


def make_models(
    folder: Path, seed: int, splits: dict[str, Pairs], args: argparse.Namespace
) -> Iterator[tuple[str, Path]]:
    """Train, import and fine-tune a model. Yield the imported and the fine-tuned models, by name."""
    marian, imported = folder / "marian", folder / "imported"
    if not (marian / "model.safetensors").exists():
        train_marian(marian, splits["first"], splits[DEV], seed, args)
    if not imported.exists():
        run_regard(folder, "import", str(marian), "--out", str(imported))
    yield "imported", imported
    files = ("--dev", f"{args.out}/{DEV}.tsv", "--no-header")
    settings = (f"training.steps={args.tuning_steps}", f"training.validate_every={args.validate_every}", f"seed={seed}")
    for half in ("second", "first") if args.control else ("second",):
        tuned, pairs = folder / f"tuned-{half}", f"{args.out}/{half}.tsv"
        run_regard(folder, "train", "--from", str(imported), "--pairs", pairs, *files, "--out", str(tuned), *settings)
        yield f"fine-tuned on the {half} half", tuned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files of Multi30k")
    parser.add_argument("--out", default="runs/finetune-import")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--device", default="cpu", help="device of the training with Transformers")
    parser.add_argument("--size", type=int, default=128, help="model dimensions")
    parser.add_argument("--layers", type=int, default=1, help="layers of the encoder and of the decoder")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--vocabulary", type=int, default=2000, help="pieces of each SentencePiece model")
    parser.add_argument("--batch", type=int, default=32, help="pairs per batch")
    parser.add_argument("--steps", type=int, default=800, help="training steps with Transformers")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--tuning-steps", type=int, default=150, help="training steps of fine-tuning")
    parser.add_argument("--validate-every", type=int, default=75)
    parser.add_argument("--control", action="store_true", help="fine-tune on the first half again, too")
    args = parser.parse_args()
    train = read_pairs(args.data, "train")
    middle = len(train) // 2
    splits = {
        "first": train[:middle],
        "second": train[middle:],
        **{name: read_pairs(args.data, name) for name in (DEV, TEST)},
    }
    for name, pairs in splits.items():
        write_atomically(Path(args.out) / f"{name}.tsv", "".join(f"{source}\t{target}\n" for source, target in pairs))
    rows = [
        [name, str(seed), *score(model, args)]
        for seed in range(args.seeds)
        for name, model in make_models(Path(args.out) / f"seed{seed}", seed, splits, args)
    ]
    metrics = [f"{split} {metric}" for split in ("dev", "test") for metric in ("BLEU", "chrF", "loss")]
    print(table(["model", "seed", *metrics], rows))


if __name__ == "__main__":
    main()
