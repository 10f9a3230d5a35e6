"""What do attention weights cost in prediction, and how much memory does scoring need?

    OMP_NUM_THREADS=1 python benchmarks/inference.py                  # both questions; the models are not trained
    OMP_NUM_THREADS=1 python benchmarks/inference.py --pairs 1000     # only the memory of `Model.score`

The models have the architecture of the demo (`dates`), and a Transformer with the same tokenizers. They read dates, and
generate exactly as many tokens as a correct prediction has. With one thread, processor time is measured, because load
on the machine hardly changes it. Memory is measured in a new process for each number of pairs, with distinct dates in
one format, because sampling dates of all formats needs more memory than scoring.
"""

import argparse
import datetime
import resource
import subprocess
import sys
import time
from typing import Any

import torch

import regard
from regard.config import resolve
from regard.data import dates
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings
from regard.formatting import table
from regard.models.seq2seq import build_model
from regard.runs.settings import RunSettings

TARGET_LENGTH = len("2009-05-03")
MODELS = {
    "dates (the demo)": {},
    "Transformer": {
        "model": {"kind": "transformer", "size": 128, "heads": 4, "layers": 2, "feedforward": 512, "dropout": 0.0}
    },
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"loop_guard": False},
    "beam 5": {"beam": 5},
    "beam 5, nbest 5": {"beam": 5, "nbest": 5},
}
TOKENIZER_PAIRS = 1000
"""The number of pairs from which the tokenizers are built."""

FIRST_DAY = datetime.date(1700, 1, 1)


def build(name: str, pairs: list[tuple[str, str]]) -> regard.Model:
    """Build a model with random weights, whose predictions have at most the length of a date."""
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", MODELS[name])
    sources, targets = ([*side] for side in zip(*pairs, strict=True))
    tokenizers = TokenizerPair.build(settings.tokenizer, sources, targets)
    network = build_model(settings.model, len(tokenizers.source), len(tokenizers.target)).eval()
    limits = DecodingSettings(max_length_ratio=1e-6, max_length_extra=TARGET_LENGTH)
    max_length = settings.tokenizer.max_length
    reader = TextReader(tokenizers.source, max_length)
    return regard.Model(Predictor(network, reader, tokenizers.target, limits, max_length), settings, step=0)


def time_predictions(model: regard.Model, texts: list[str], search: dict[str, Any], repeats: int) -> list[float]:
    """Return the best time without and with attention weights. The two alternate; the first run is a warm-up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = [float("inf")] * 2
    for repeat in range(repeats + 1):
        for attention in (False, True):
            start = clock()
            model.predict(texts, attention=attention, min_length=TARGET_LENGTH, **search)
            if repeat:
                best[attention] = min(best[attention], clock() - start)
    return best


def print_times(pairs: list[tuple[str, str]], texts: int, repeats: int) -> None:
    rows = []
    for name in MODELS:
        model = build(name, pairs)
        for search, options in SEARCHES.items():
            without, with_weights = time_predictions(model, [source for source, _ in pairs[:texts]], options, repeats)
            rows.append([name, search, f"{without:.2f}", f"{with_weights:.2f}", f"{with_weights / without:.2f}"])
    print(f"prediction of {texts:,} texts, {torch.get_num_threads()} thread(s); seconds")
    print(table(["model", "search", "without weights", "with weights", "ratio"], rows))


def peak_memory() -> float:
    """Return the peak memory of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def print_memory(count: int) -> None:
    """Score `count` pairs, and print the peak memory before and after."""
    days = [FIRST_DAY + datetime.timedelta(index) for index in range(count)]
    sources, targets = [f"{day:%d %B %Y}" for day in days], [day.isoformat() for day in days]
    model = build("dates (the demo)", list(zip(sources[:TOKENIZER_PAIRS], targets[:TOKENIZER_PAIRS], strict=True)))
    before, start = peak_memory(), time.process_time()
    model.score(sources, targets)
    after, seconds = peak_memory(), time.process_time() - start
    print(f"score of {count:,} pairs: peak memory {before:.0f} MiB before, {after:.0f} MiB after; {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=500, help="number of texts to predict")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", type=int, help="only score this number of pairs")
    args = parser.parse_args()
    if args.pairs is not None:
        print_memory(args.pairs)
        return
    # First, because a process starts with the peak memory of its parent.
    for count in (1_000, 100_000):
        subprocess.run([sys.executable, __file__, "--pairs", str(count)], check=True)
    print_times(dates.sample("train", max(args.texts, TOKENIZER_PAIRS), seed=0), args.texts, args.repeats)


if __name__ == "__main__":
    main()
