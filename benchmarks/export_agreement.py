"""Do models compute the same in other software? Needs transformers, sentencepiece and ctranslate2.

    python benchmarks/export_agreement.py
    python benchmarks/export_agreement.py --data multi30k --models RUN runs/finetune-import/seed0/marian

A run of regard is exported to Transformers and CTranslate2. A Marian model of Transformers, with SentencePiece models,
is imported, and exported again. By default, both are trained on the corpus of dates for a few minutes. With --data, the
run was trained on `tok` of Multi30k with settings that Marian can express, for example `regard train
multi30k-transformer model.norm=post model.positions=sinusoidal`, and the Marian model on `raw`, for example by
`finetune_import.py`.

Prints on how many sentences of the test set both libraries generate the same text, with beam search in float32 and no
length penalty; the largest difference of the attention weights and of log p of these texts; and how many tensors have
the same bits after an export and an import. For texts that differ, log p of both in regard shows how close they are.
"""

import argparse
import gzip
import importlib
import itertools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from marian_models import (
    Checkpoint,
    build_model,
    load_checkpoint,
    shuffle_batches,
    train_model,
    train_tokenizer,
    translate,
)
from regard.data.batching import pad
from regard.data.dates import sample
from regard.data.tokens.tokenizers import START, Tokenizer
from regard.export.importing import import_model
from regard.export.sources import read_model
from regard.formatting import table

TEST = "test_2016_flickr"
BATCH = 50
VOCABULARY = 1000
SETTINGS = {
    "model": "transformer", "model.norm": "post", "model.positions": "sinusoidal", "model.size": 64, "model.heads": 4,
    "model.layers": 2, "tokenizer": {"kind": "bpe", "vocabulary": VOCABULARY}, "training.learning_rate": 2e-3,
}  # fmt: skip


class Outputs(NamedTuple):
    """The attention weights, by their names in regard, and the log-probabilities of target tokens, (1, T)."""

    weights: dict[str, Tensor]
    log_p: Tensor


def read_sources(path: Path, count: int) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()[:count]


def predict(model: regard.Model, texts: list[str], beam: int) -> list[str]:
    """Translate with regard."""
    predictions = model.predict(texts, beam=beam, length_penalty=0.0, batch_size=BATCH, attention=False)
    return [prediction.text for prediction in predictions]


def generate(checkpoint: Checkpoint, texts: list[str], beam: int) -> list[str]:
    """Translate with Transformers."""
    batches = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
    return [text for batch in batches for text in translate(checkpoint, batch, num_beams=beam)]


def translate_ct2(folder: Path, texts: list[str], beam: int) -> list[str]:
    """Translate with CTranslate2 and the tokenizers of an exported folder."""
    ctranslate2: Any = importlib.import_module("ctranslate2")  # most of its functions have no types
    translator = ctranslate2.Translator(str(folder), compute_type="default", inter_threads=1, intra_threads=1)
    source, target = Tokenizer.load(folder / "tokenizer.json"), folder / "tokenizer.target.json"
    target_tokenizer = Tokenizer.load(target) if target.exists() else source
    batch = [source.tokens(ids) for ids in source.ids(texts)]
    results = translator.translate_batch(
        batch, beam_size=beam, length_penalty=0, min_decoding_length=0, max_batch_size=BATCH
    )
    ids = target_tokenizer.inner.get_vocab()
    return [target_tokenizer.decode([ids[token] for token in result.hypotheses[0]]) for result in results]


@torch.inference_mode()
def compute_ours(model: regard.Model, source: str, target: str) -> Outputs:
    """Return what regard computes for a pair."""
    predictor = model.predictor
    tokens_BT = pad([[START, *predictor.tokenizer.ids([target])[0]]]).tokens_BT
    with regard.record(model) as recording:
        model.network(predictor.collate(predictor.reader.read([source])), tokens_BT)
    return Outputs(recording.weights, torch.tensor(model.score(source, target)))


@torch.inference_mode()
def compute_theirs(checkpoint: Checkpoint, source: str, target: str) -> Outputs:
    """Return what Transformers computes for a pair."""
    inputs = checkpoint.tokenizer([source], text_target=[target], return_tensors="pt")
    outputs = checkpoint.model(**inputs, output_attentions=True)
    names = {
        "encoder.layers.{}.attention.attention": outputs.encoder_attentions,
        "decoder.layers.{}.self_attention.attention": outputs.decoder_attentions,
        "decoder.layers.{}.cross_attention.attention": outputs.cross_attentions,
    }
    weights = {name.format(layer): tensor for name, layers in names.items() for layer, tensor in enumerate(layers)}
    log_p_BTV = outputs.logits.log_softmax(-1)
    return Outputs(weights, log_p_BTV.gather(-1, inputs["labels"].unsqueeze(-1)).sum())


def compare_outputs(model: regard.Model, checkpoint: Checkpoint, pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Return the largest differences of attention weights and of log p."""
    checkpoint.model.set_attn_implementation("eager")
    differences = []
    for source, target in pairs:
        ours, theirs = compute_ours(model, source, target), compute_theirs(checkpoint, source, target)
        assert ours.weights.keys() == theirs.weights.keys()
        weights = max(float((ours.weights[name] - tensor).abs().max()) for name, tensor in theirs.weights.items())
        differences.append((weights, float((ours.log_p - theirs.log_p).abs())))
    return max(weights for weights, _ in differences), max(log_p for _, log_p in differences)


def compare_texts(title: str, model: regard.Model, sources: list[str], ours: list[str], theirs: list[str]) -> list[str]:
    """Return a row of the table, and print the texts that differ."""
    differing = [row for row in zip(sources, ours, theirs, strict=True) if row[1] != row[2]]
    for source, our_text, their_text in differing:
        print(f"{title}: {source}")
        for name, text in (("regard", our_text), ("other", their_text)):
            print(f"  {name:6} log p {model.score(source, text):.5f}  {text}")
    same = len(sources) - len(differing)
    return [title, f"{same} of {len(sources)} texts ({same / len(sources):.1%})"]


def round_trip(title: str, model: regard.Model, exported: Path) -> list[str]:
    """Import an exported model, and return how many of its tensors have the same bits."""
    again = import_folder(exported, exported.with_name(f"{exported.name}-imported"))
    before, after = model.network.state_dict(), again.network.state_dict()
    same = sum(name in after and torch.equal(tensor, after[name]) for name, tensor in before.items())
    return [title, f"{same} of {len(before)} tensors; {len(after.keys() - before.keys())} new"]


def import_folder(folder: Path, out: Path) -> regard.Model:
    return regard.load(import_model(read_model(folder), out), device="cpu")


def train_models(folder: Path, steps: int) -> tuple[Path, Path]:
    """Train a model with regard and one with Transformers on the corpus of dates, and return their folders."""
    limits = {"training.steps": steps, "training.validate_every": steps}
    run = regard.train("dates", {**SETTINGS, **limits}, out=folder / "run", quiet=True)
    marian, pairs = folder / "marian", sample("train", 20_000, 0)
    torch.manual_seed(0)
    tokenizer = train_tokenizer(marian, pairs, VOCABULARY, max_length=256)
    model = build_model(tokenizer, size=64, layers=(2, 2), feedforward=256)
    batches = itertools.islice(shuffle_batches(pairs, 64, seed=0), steps)
    for _ in train_model(model, tokenizer, batches, 2e-3, lambda step: min(1.0, (step + 1) / 50)):
        pass
    tokenizer.save_pretrained(marian)
    model.save_pretrained(marian)
    return Path(run.path), marian


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Multi30k, with tok and raw; by default, the test dates")
    parser.add_argument("--models", type=Path, nargs=2, metavar=("RUN", "MARIAN"), help="models of --data")
    parser.add_argument("--steps", type=int, default=600, help="training steps of the default models")
    parser.add_argument("--count", type=int, default=200, help="number of test sentences")
    parser.add_argument("--beam", type=int, default=5)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        trained, marian = args.models or train_models(folder, args.steps)
        run, checkpoint = regard.load(trained, device="cpu"), load_checkpoint(marian)
        if args.data is None:
            tok = raw = [source for source, _ in sample("test", args.count, 0)]
        else:
            tok = read_sources(args.data / "tok" / f"{TEST}.lc.norm.tok.en.gz", args.count)
            raw = read_sources(args.data / "raw" / f"{TEST}.en.gz", args.count)
        imported = import_folder(marian, folder / "imported")
        theirs = generate(checkpoint, raw, args.beam)
        rows.append(
            compare_texts("imported Marian: generate", imported, raw, predict(imported, raw, args.beam), theirs)
        )
        weights, log_p = compare_outputs(imported, checkpoint, list(zip(raw, theirs, strict=True)))
        rows.append(["imported Marian: attention weights", f"within {weights:.1e}"])
        rows.append(["imported Marian: log p of texts", f"within {log_p:.1e}"])
        for name, model, texts in (("imported Marian", imported, raw), ("run", run, tok)):
            ours = predict(model, texts, args.beam)
            hf, ct2 = folder / f"{name}-hf", folder / f"{name}-ct2"
            model.export(hf, "hf")
            model.export(ct2, "ct2")
            outputs = {
                "hf": generate(load_checkpoint(hf), texts, args.beam),
                "ct2": translate_ct2(ct2, texts, args.beam),
            }
            rows += [
                compare_texts(f"{name}, exported to {key}", model, texts, ours, out) for key, out in outputs.items()
            ]
            rows.append(round_trip(f"{name}, exported to hf and imported", model, hf))
    print(table(["", "same as in regard"], rows))


if __name__ == "__main__":
    main()
