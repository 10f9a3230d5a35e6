"""Do models compute the same in other software? Needs transformers, sentencepiece and ctranslate2.

    python benchmarks/finetune_import.py --data multi30k/raw
    python benchmarks/export_agreement.py multi30k RUN runs/finetune-import/seed0/marian

RUN was trained on `tok` with settings that Marian can express, for example `regard train multi30k-transformer
model.norm=post model.positions=sinusoidal`. It is exported to Transformers and CTranslate2. The last argument is a
Marian model of Transformers that was trained on `raw`. It is imported, and exported again.

Prints on how many sentences of the test set both libraries generate the same text, with beam search in float32 and no
length penalty; the largest difference of the attention weights and of log p of these texts; and how many tensors have
the same bits after an export and an import. For texts that differ, log p of both in regard shows how close they are.
"""

import argparse
import gzip
import importlib
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from marian_models import Checkpoint, load_checkpoint, translate
from regard.data.batching import pad
from regard.data.tokens.tokenizers import START, Tokenizer
from regard.export.importing import import_model
from regard.export.sources import read_model
from regard.formatting import table

TEST = "test_2016_flickr"
BATCH = 50


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of Multi30k, with tok and raw")
    parser.add_argument("run", help="a run of regard, trained on tok")
    parser.add_argument("marian", type=Path, help="a Marian model of Transformers, trained on raw")
    parser.add_argument("--count", type=int, default=200, help="number of test sentences")
    parser.add_argument("--beam", type=int, default=5)
    args = parser.parse_args()
    run, checkpoint = regard.load(args.run, device="cpu"), load_checkpoint(args.marian)
    tok = read_sources(args.data / "tok" / f"{TEST}.lc.norm.tok.en.gz", args.count)
    raw = read_sources(args.data / "raw" / f"{TEST}.en.gz", args.count)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        imported = import_folder(args.marian, folder / "imported")
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
