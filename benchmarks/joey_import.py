"""Do imported Joey NMT models compute what Joey NMT computes? Needs the Python of an environment with joeynmt 2.3.

    python benchmarks/joey_import.py --python joey/bin/python --data multi30k/raw --out runs/joey

Trains small recurrent models and Transformers with Joey NMT on a few sentences of Multi30k, English to German
(`joey_reference.py`), imports them, and prints for each the share of identical greedy predictions and of identical
predictions with a beam of 5, without and with a length penalty, the share of test pairs with identical tokens, and the
largest differences of attention weights and of log-probabilities of the test targets. Models in --out are reused.
Joey NMT 2.3 requires sentencepiece 0.2.0 or older.
"""

import argparse
import gzip
import shutil
import subprocess
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import regard
from regard.data.batching import pad
from regard.data.tokens.tokenizers import START
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.export.importing import import_model
from regard.export.joey_files import JoeyFolder
from regard.formatting import table

MODELS = (
    "gru-bahdanau", "gru-luong", "gru-2-layers", "gru-tied", "lstm-bahdanau", "lstm-luong-zero", "lstm-last",
    "transformer-pre", "transformer-post", "transformer-tied", "transformer-unscaled",
)  # fmt: skip
LINES = {"train": ("train", 2000), "dev": ("val", 50), "test": ("test_2016_flickr", 100)}
MAX_LENGTH = 80
SEARCHES = {
    "greedy": SearchSettings(loop_guard=False, min_length=1),
    "beam": SearchSettings(beam=5, length_penalty=0.0, min_length=1),
    "alpha": SearchSettings(beam=5, length_penalty=0.6, min_length=1),
}


def write_pairs(data: Path, folder: Path) -> None:
    for split, (name, count) in LINES.items():
        for language in ("en", "de"):
            with gzip.open(data / f"{name}.{language}.gz", "rt", encoding="utf-8") as lines:
                (folder / f"{split}.{language}").write_text("".join(islice(lines, count)), encoding="utf-8")


def compare(folder: Path, name: str) -> list[str]:
    """Import a model, and return a row of the table."""
    sources, targets = ((folder / f"test.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    files = JoeyFolder.read(folder / name)
    out = folder / f"{name}-imported"
    shutil.rmtree(out, ignore_errors=True)
    model = regard.load(import_model(files, out))
    expected: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    limits = DecodingSettings(max_length_ratio=1e-6, max_length_extra=MAX_LENGTH)
    predictor = replace(model.predictor, limits=limits)
    items = predictor.reader.read(sources)
    row = [name]
    for search, settings in SEARCHES.items():
        texts = [predictor.tokenizer.decode(best.tokens) for best, *_ in predictor.predict(items, settings)]
        same = sum(ours.strip() == theirs.strip() for ours, theirs in zip(texts, expected[search], strict=True))
        row.append(f"{same / len(sources):.0%}")
    same, weight_difference, score_difference = 0, 0.0, 0.0
    for source, target, forced in zip(sources, targets, expected["forced"], strict=True):
        source_ids, target_ids, weights_TS, log_p_T = forced
        batch = predictor.collate(predictor.reader.read([source]))
        assert isinstance(batch, regard.Tokens)
        tokens = predictor.tokenizer.ids([target])[0]
        same += [files.source_ids[index] for index in batch.tokens_BT[0].tolist()] == source_ids and [
            files.target_ids[index] for index in tokens
        ] == target_ids[:-1]
        with regard.record(model) as recording, torch.inference_mode():
            model.network(batch, pad([[START, *tokens]]).tokens_BT)
        read = [value[0] for key, value in recording.weights.items() if _reads_source(key)]
        ours_TS = read[-1] if read[-1].dim() == 2 else read[-1].mean(0)
        weight_difference = max(weight_difference, float((ours_TS - weights_TS).abs().max()))
        score_difference = max(score_difference, abs(model.score(source, target) - float(log_p_T.sum())))
    return [*row, f"{same / len(sources):.0%}", f"{weight_difference:.1e}", f"{score_difference:.1e}"]


def _reads_source(name: str) -> bool:
    return name.startswith("decoder.attention") or "cross_attention" in name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python of an environment with joeynmt")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the raw texts of Multi30k")
    parser.add_argument("--out", type=Path, default=Path("runs/joey-import"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--steps", type=int, default=200, help="training steps of each model")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    missing = [name for name in options.models if not (options.out / f"{name}.pt").exists()]
    if missing:
        write_pairs(options.data, options.out)
        script = Path(__file__).with_name("joey_reference.py")
        subprocess.run([options.python, script, options.out, *missing, "--steps", str(options.steps)], check=True)
    header = ["model", "greedy", "beam", "beam, α = 0.6", "tokens", "weights", "log p"]
    print(table(header, [compare(options.out, name) for name in options.models]))


if __name__ == "__main__":
    main()
