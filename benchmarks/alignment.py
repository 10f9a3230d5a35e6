"""How well do attention weights align words? Alignment error rate (AER) by mechanism, and with guided alignment.

    python benchmarks/alignment.py --data ../shared/data                          # everything: needs a GPU
    python benchmarks/alignment.py --data ../shared/data bahdanau transformer     # only these
    python benchmarks/alignment.py --data ../shared/data --both                   # train English → German, too
    python benchmarks/alignment.py --data ../shared/data bahdanau --set training.steps=20

All models are trained on Multi30k German → English (`multi30k/tok`), and align the hand-aligned sentences of
`gold-alignments` (`deen.src-tgt.gz`, `deen.gold.gz`), in lower case. The gold sentences are from Europarl, so all
models align text of another domain.

The guided models are trained with alignments of the training pairs by a statistical aligner, which is part of this
file: IBM Model 1 with a preference for the diagonal, after fast_align (Dyer et al. 2013, with a fixed tension), trained
in both directions and symmetrized by grow-diag-final-and. As is usual for such aligners, the sentences to align are
part of its training data. It is also the baseline of the table. No model sees the gold links.

AER is that of the supervised head, else of the average over the heads of the last layer. "best head" has the lowest AER
of all layers and heads, chosen on the same sentences. With --both, "symmetrized" is the AER of both directions,
combined by grow-diag-final. Runs are stored in runs/alignment and reused; existing runs are resumed.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import regard
from regard.api.model import build_aligner
from regard.data.corpora import read_pairs
from regard.data.pharaoh import GoldLinks, Links, format_links, read_alignments
from regard.data.settings import Files
from regard.evaluation.alignment import AlignmentScore, flip, score_alignments, symmetrize
from regard.formatting import table
from regard.overrides import parse_overrides

Pair = tuple[str, str]
Ints = NDArray[np.int64]

SETTINGS: dict[str, Any] = {
    "tokenizer": {"kind": "bpe", "vocabulary": 8000, "shared": True, "split": "spaces", "max_length": 256},
    "training": {
        "steps": 3000,
        "batch_tokens": 8192,
        "learning_rate": 0.002,
        "warmup": 300,
        "weight_decay": 0.0001,
        "label_smoothing": 0.1,
        "precision": "auto",
        "metric": {"kind": "bleu", "tokenize": "none"},
        "validate_every": 500,
        "save_every": 500,
        "log_every": 100,
    },
    "model": {
        "kind": "recurrent",
        "embedding": 256,
        "encoder": {"cell": "gru", "hidden": 192},
        "decoder": {"cell": "gru", "hidden": 384},
        "dropout": 0.3,
        "tied": "all",
    },
}
LUONG = {"model.decoder.order": "luong"}
TRANSFORMER = {
    "model": {
        "kind": "transformer", "size": 256, "heads": 4, "layers": 4, "feedforward": 1024, "dropout": 0.2, "tied": "all",
    },
    "training.learning_rate": 0.001,
}  # fmt: skip
GUIDED = {"training.guided_alignment": {"file": "train.links", "weight": 0.3}}

MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {"model.attention": "bahdanau"},
    "conditional": {"model.attention": "bahdanau", "model.decoder.order": "conditional"},
    "luong-dot": {"model.attention": "luong-dot", **LUONG},
    "luong-general": {"model.attention": "luong-general", **LUONG},
    "luong-concat": {"model.attention": "luong-concat", **LUONG},
    "luong-local-m": {"model.attention": "luong-local-m", **LUONG},
    "luong-local-p": {"model.attention": "luong-local-p", **LUONG},
    "graves-content": {"model.attention": "graves-content"},
    "chorowski": {"model.attention": "chorowski"},
    "sparsemax": {"model.attention": "sparsemax"},
    "entmax15": {"model.attention": "entmax15"},
    "exact-hard": {"model.attention": "exact-hard", **LUONG},
    "transformer": TRANSFORMER,
    "bahdanau, guided": {"model.attention": "bahdanau", **GUIDED},
    "luong-general, guided": {"model.attention": "luong-general", **LUONG, **GUIDED},
    "transformer, guided": {**TRANSFORMER, **GUIDED},
    "transformer, guided, shifted": {
        **TRANSFORMER, "training.guided_alignment": {**GUIDED["training.guided_alignment"], "shift": True},
    },
}  # fmt: skip
"""The settings in which each model differs from `SETTINGS`."""


class Cells(NamedTuple):
    """All pairs of a source position and a target position, in all sentence pairs. Source word 0 is the empty word."""

    source: Ints
    target: Ints
    group: Ints
    """The number of the target position, over all sentence pairs."""
    prior: NDArray[np.float64]
    i: Ints
    """The source position; −1 for the empty word."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[Ints, Ints]], tension: float = 4.0, p_empty: float = 0.08) -> "Cells":
        """List the cells of pairs of word ids, with the prior probability of each source position."""
        columns: list[list[NDArray[Any]]] = [[] for _ in cls._fields]
        groups = 0
        for source, target in pairs:
            slots, words = len(source), len(target)
            i, j = np.arange(slots), np.arange(words)
            distance = np.abs((i[None] + 1) / (slots + 1) - (j[:, None] + 1) / (words + 1))
            near = np.exp(-tension * distance)
            near *= (1 - p_empty) / near.sum(1, keepdims=True)
            values = (
                np.broadcast_to(np.concatenate([[0], source]), (words, slots + 1)),
                np.broadcast_to(target[:, None], (words, slots + 1)),
                np.broadcast_to(groups + j[:, None], (words, slots + 1)),
                np.concatenate([np.full((words, 1), p_empty), near], axis=1),
                np.broadcast_to(np.concatenate([[-1], i]), (words, slots + 1)),
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value.ravel())
            groups += words
        return cls(*(np.concatenate(column) for column in columns))


def align_statistically(pairs: Sequence[Pair], iterations: int = 8) -> list[Links]:
    """Align words with IBM Model 1 and a diagonal prior, trained by expectation maximization on the same pairs."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({"": 0}, {})
    encoded = []
    for pair in pairs:
        source, target = (
            np.array([side.setdefault(word, len(side)) for word in text.split()], np.int64)
            for side, text in zip(numbers, pair, strict=True)
        )
        encoded.append((source, target))
    cells = Cells.of(encoded)
    keys, cell_of = np.unique(cells.source * len(numbers[1]) + cells.target, return_inverse=True)
    source_of = keys // len(numbers[1])
    probability = np.ones(len(keys))
    for _ in range(iterations):
        weights = probability[cell_of] * cells.prior
        weights /= np.bincount(cells.group, weights)[cells.group]
        counts = np.bincount(cell_of, weights) + 0.01  # smoothing, so that rare words do not explain everything
        probability = counts / np.bincount(source_of, counts)[source_of]
    weights = probability[cell_of] * cells.prior
    # The last cell of a group after sorting by weight has the largest weight.
    order = np.lexsort((weights, cells.group))
    best = order[np.flatnonzero(np.diff(cells.group[order], append=-1))]
    positions = iter(cells.i[best].tolist())
    return [frozenset((i, j) for j, i in enumerate(next(positions) for _ in target) if i >= 0) for _, target in encoded]


def align_both_ways(pairs: Sequence[Pair]) -> list[Links]:
    """Align in both directions, and symmetrize."""
    forward = align_statistically(pairs)
    backward = align_statistically([(target, source) for source, target in pairs])
    return [symmetrize(one, flip(other), "grow-diag-final-and") for one, other in zip(forward, backward, strict=True)]


def read_gold(folder: Path) -> tuple[list[Pair], list[GoldLinks]]:
    """Read the hand-aligned sentences, in lower case."""
    with gzip.open(folder / "deen.src-tgt.gz", "rt", encoding="utf-8") as file:
        sides = [line.lower().split(" ||| ") for line in file]
    pairs = [(source.strip(), target.strip()) for source, target in sides]
    return pairs, list(read_alignments(folder / "deen.gold.gz", one_based=True))


def data_settings(folder: Path, source: str, target: str) -> dict[str, Any]:
    """Return the files of Multi30k for one direction."""
    splits = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    files = {
        split: {"source": f"{name}.lc.norm.tok.{source}.gz", "target": f"{name}.lc.norm.tok.{target}.gz"}
        for split, name in splits.items()
    }
    return {"kind": "files", "folder": str(folder.resolve()), **files}


def train(name: str, args: argparse.Namespace, *, reverse: bool = False) -> Path:
    """Train one model in its own process, unless it is trained already."""
    out: Path = args.out / f"{name.replace(', ', '-')}{'-reverse' if reverse else ''}"
    overrides = dict(MODELS[name])
    if "training.guided_alignment" in overrides:
        links = args.out / ("train.en-de.links" if reverse else "train.de-en.links")
        overrides["training.guided_alignment"] = {**overrides["training.guided_alignment"], "file": str(links)}
    overrides |= parse_overrides(args.set)
    languages = ("en", "de") if reverse else ("de", "en")
    settings = {"data": data_settings(args.data / "multi30k/tok", *languages), **SETTINGS}
    program = "import json, sys, regard; s, o, out = json.loads(sys.argv[1]); regard.train(s, o, out=out, quiet=True)"
    arguments = json.dumps([settings, overrides, str(out)])
    subprocess.run([sys.executable, "-c", program, arguments], check=True)
    return out


def write_training_alignments(args: argparse.Namespace, gold_pairs: Sequence[Pair]) -> list[Links]:
    """Align the training pairs statistically, and write their links for both directions. Return those of the gold
    pairs.
    """
    files = data_settings(args.data / "multi30k/tok", "de", "en")
    folder, train_files = Path(files["folder"]), files["train"]
    pairs = read_pairs(Files(**{side: str(folder / name) for side, name in train_files.items()}))
    links = align_both_ways([*pairs, *gold_pairs])
    args.out.mkdir(parents=True, exist_ok=True)
    for name, change in (("de-en", frozenset), ("en-de", flip)):
        lines = (format_links(change(linked)) + "\n" for linked in links[: len(pairs)])
        (args.out / f"train.{name}.links").write_text("".join(lines), "utf-8")
    return links[len(pairs) :]


def describe_score(score: AlignmentScore) -> list[str]:
    return [f"{score.aer:.1%}", f"{score.precision:.1%}", f"{score.recall:.1%}"]


def build_row(name: str, args: argparse.Namespace, pairs: Sequence[Pair], gold: Sequence[GoldLinks]) -> list[str]:
    """Return the row of a trained model in the table."""
    model = regard.load(args.out / name.replace(", ", "-"))
    score = score_alignments([alignment.links for alignment in model.align(pairs)], gold)
    best = build_aligner(model, {}).rank_heads(pairs, gold)[0]
    head = (
        f"{best.score.aer:.1%} (layer {best.head.layer}, {f'head {best.head.head}' if best.head.head else 'average'})"
    )
    bleu = f"{model.scores['bleu']:.1f}" if model.scores else "–"
    row = [name, bleu, *describe_score(score), head]
    if args.both:
        reverse = regard.load(args.out / f"{name.replace(', ', '-')}-reverse")
        symmetrized = score_alignments([alignment.links for alignment in model.align(pairs, reverse=reverse)], gold)
        row.append(f"{symmetrized.aer:.1%}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), help="default: all")
    parser.add_argument("--data", type=Path, required=True, help="folder with multi30k and gold-alignments")
    parser.add_argument("--out", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--both", action="store_true", help="also train English → German, and symmetrize")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in MODELS]
    if unknown:
        parser.error(f"{unknown[0]} is not a model. Available: {'; '.join(MODELS)}")
    pairs, gold = read_gold(args.data / "gold-alignments")
    baseline = score_alignments(write_training_alignments(args, pairs), gold)
    directions = [(name, reverse) for name in args.names for reverse in ((False, True) if args.both else (False,))]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda run: train(run[0], args, reverse=run[1]), directions))
    header = ["model", "dev BLEU", "AER", "precision", "recall", "best head", *(["symmetrized"] if args.both else [])]
    padding = ["–"] * (len(header) - 5)
    rows = [["statistical aligner", "–", *describe_score(baseline), *padding]]
    rows += [build_row(name, args, pairs, gold) for name in args.names]
    print(table(header, rows))


if __name__ == "__main__":
    main()
