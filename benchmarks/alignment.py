"""How well do attention weights align? One table: models by tasks, most of them with a known alignment.

    python benchmarks/alignment.py --data corpora --jobs 8              # everything: needs a GPU
    python benchmarks/alignment.py --data corpora --tasks dates reverse --models bahdanau transformer
    python benchmarks/alignment.py --data corpora --tasks multi30k --set training.steps=20
    python benchmarks/alignment.py --report                                    # print and draw finished runs

Every model is trained for every task, and aligns its test set. Accuracy is the share of the target symbols that have a
known origin and whose largest weight is on it. Links are those of `regard align`: of the supervised head, else of the
average over the heads of the last layer.

dates, transliteration, reverse, permute   known by construction, see `known_alignments.py`; guided models are trained
                                           with the known links of the training pairs
scenes     captions of images with known boxes: the share of objects whose cell with the largest weight is on the
           object, see `pointing.py`
multi30k   German → English. The standard is silver: the links of a statistical aligner (`statistical_aligner.py`) that
           it finds in both directions are sure, and the links of one direction are possible. Guided models are trained
           with the same aligner's links (grow-diag-final-and). The models also align hand-aligned sentences
           (`gold-alignments`) in lower case. These are from Europarl: another domain.

A model can read the right symbol at another place: the state of an encoder contains its neighbors, and a decoder may
attend a step early or late. If the accuracy is higher for the slot before (−1) or after (+1) the right one, or for the
weights of the step that reads a symbol (next step), it is printed in parentheses. An asterisk marks a model that has
not learned the task: less than 90 % of its outputs are correct. "best head" is the head of a Transformer with the
lowest alignment error rate (AER) on the dev set.

Runs and results are stored in runs/alignment and reused; existing runs are resumed.
"""

import argparse
import gzip
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import regard
from alignment_report import draw, format_europarl, format_table
from alignment_scores import (
    Pair,
    Quality,
    Result,
    Standard,
    measure_accuracy,
    measure_chance,
    score_aligner,
    score_captions,
    to_file_name,
)
from known_alignments import BUILDERS, build_standard
from regard.api.model import build_aligner
from regard.data.corpora import read_pairs
from regard.data.images.scenes import sample
from regard.data.images.settings import ScenesData
from regard.data.pharaoh import GoldLinks, format_links, read_alignments
from regard.data.settings import SPLITS, Files
from regard.evaluation.alignment import score_alignments, symmetrize
from regard.overrides import parse_overrides
from statistical_aligner import align_both_ways, align_statistically

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
TRANSFORMER: dict[str, Any] = {
    "model": {
        "kind": "transformer", "size": 256, "heads": 4, "layers": 4, "feedforward": 1024, "dropout": 0.2, "tied": "all",
    },
    "training.learning_rate": 0.001,
}  # fmt: skip
LUONG = {"model.decoder.order": "luong"}
SYMBOLS: dict[str, Any] = {
    "tokenizer": {"kind": "word", "shared": False},
    "training": {
        "steps": 1000,
        "batch_size": 64,
        "learning_rate": 0.006,
        "warmup": 100,
        "validate_every": 250,
        "save_every": 250,
    },
    "model": {
        "kind": "recurrent",
        "embedding": 64,
        "encoder": {"cell": "gru", "hidden": 64},
        "decoder": {"cell": "gru", "hidden": 128},
        "dropout": 0.0,
    },
}
SMALL_TRANSFORMER: dict[str, Any] = {
    "model": {
        "kind": "transformer", "size": 128, "heads": 4, "layers": 2, "feedforward": 256, "norm": "pre",
        "positions": "rotary", "dropout": 0.0,
    },
    "training.steps": 2000,
    "training.learning_rate": 0.002,
}  # fmt: skip
CAPTIONING_TRANSFORMER: dict[str, Any] = {
    "model": {
        "kind": "transformer", "size": 128, "heads": 4, "decoder_layers": 2, "feedforward": 256, "norm": "pre",
        "encoder": {"kind": "cnn", "height": 64, "width": 64, "channels": [64, 128], "positions": "learned"},
    },
}  # fmt: skip
TRANSFORMERS = {"multi30k": TRANSFORMER, "scenes": CAPTIONING_TRANSFORMER}


class Row(NamedTuple):
    """A model of the table."""

    overrides: dict[str, Any]
    """The settings in which it differs from the other models of a task."""
    transformer: bool = False
    guided: dict[str, Any] | None = None
    """The settings of guided alignment, if it is supervised."""
    sequences_only: bool = False
    """Whether it requires sources of one dimension: a window, or a convolution over the weights."""

    def learns(self, task: str) -> bool:
        """Whether the model can be trained for a task. Guided alignment requires sources of words."""
        return task != "scenes" or not (self.sequences_only or self.guided is not None)


MODELS = {
    "bahdanau": Row({"model.attention": "bahdanau"}),
    "conditional": Row({"model.attention": "bahdanau", "model.decoder.order": "conditional"}),
    "luong-dot": Row({"model.attention": "luong-dot", **LUONG}),
    "luong-general": Row({"model.attention": "luong-general", **LUONG}),
    "luong-concat": Row({"model.attention": "luong-concat", **LUONG}),
    "luong-local-m": Row({"model.attention": "luong-local-m", **LUONG}, sequences_only=True),
    "luong-local-p": Row({"model.attention": "luong-local-p", **LUONG}, sequences_only=True),
    "graves-content": Row({"model.attention": "graves-content"}),
    "chorowski": Row({"model.attention": "chorowski"}, sequences_only=True),
    "sparsemax": Row({"model.attention": "sparsemax"}),
    "entmax15": Row({"model.attention": "entmax15"}),
    "exact-hard": Row({"model.attention": "exact-hard", **LUONG}),
    "transformer": Row({}, transformer=True),
    "bahdanau, guided": Row({"model.attention": "bahdanau"}, guided={}),
    "luong-general, guided": Row({"model.attention": "luong-general", **LUONG}, guided={}),
    "transformer, guided": Row({}, transformer=True, guided={}),
    "transformer, guided, shifted": Row({}, transformer=True, guided={"shift": True}),
}
CHANCE, STATISTICAL, BEST_HEAD = "chance", "statistical aligner", "transformer, best head"
TASKS = ("multi30k", "scenes", *BUILDERS)
"""The tasks. The longest runs are first."""


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


def write_silver_standard(folder: Path, data: Path) -> None:
    """Align Multi30k and the hand-aligned sentences with the statistical aligner. Write the links of the training
    pairs, the silver standard of dev and test, and the score of the aligner on the hand-aligned sentences.
    """
    files = data_settings(data / "multi30k/tok", "de", "en")
    parts: dict[str, list[Pair]] = {
        split: list(read_pairs(Files(**{side: f"{files['folder']}/{name}" for side, name in files[split].items()})))
        for split in SPLITS
    }
    parts["europarl"], gold = read_gold(data / "gold-alignments")
    aligned = zip(*align_both_ways([pair for pairs in parts.values() for pair in pairs]), strict=True)
    both = {name: [next(aligned) for _ in pairs] for name, pairs in parts.items()}
    train, europarl = (
        [symmetrize(*each, "grow-diag-final-and") for each in both[name]] for name in ("train", "europarl")
    )
    (folder / "train.links").write_text("".join(f"{format_links(links)}\n" for links in train), "utf-8")
    for split in ("dev", "test"):
        silver = [GoldLinks(forward & backward, forward | backward) for forward, backward in both[split]]
        Standard(parts[split], silver).write(folder, split)
    Standard(parts["europarl"], gold).write(folder, "europarl")
    Result(scores={"europarl": score_alignments(europarl, gold).to_json()}).write(folder.parent, STATISTICAL)


def prepare(task: str, out: Path, data: Path) -> None:
    """Write the pairs and links of a task, and the results of the baselines, unless they exist."""
    folder = out / task / "data"
    if (out / task / f"{CHANCE}.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if task == "scenes":
        boxes = [(box, scene.pixels[..., 0].size) for scene in sample(ScenesData(), "test") for box in scene.boxes]
        areas = [(box.bottom - box.top) * (box.right - box.left) / size for box, size in boxes]
        Result(sum(areas) / len(areas)).write(folder.parent, CHANCE)
        return
    if task == "multi30k":
        write_silver_standard(folder, data)
    else:
        for split in SPLITS:
            build_standard(task, split, data).write(folder, split)
        train, test = (Standard.read(folder, split) for split in ("train", "test"))
        links = align_statistically([*train.pairs, *test.pairs])[len(train.pairs) :]
        Result(measure_accuracy(links, test.gold)).write(folder.parent, STATISTICAL)
    Result(measure_chance(Standard.read(folder, "test"))).write(folder.parent, CHANCE)


class Run(NamedTuple):
    """A model that is trained for a task."""

    name: str
    task: str
    folder: Path
    """The folder of the task."""
    settings: str | dict[str, Any]
    overrides: dict[str, Any]

    @classmethod
    def of(cls, name: str, task: str, out: Path, data: Path, overrides: dict[str, Any]) -> "Run":
        row, folder = MODELS[name], (out / task).resolve()
        changes = dict(row.overrides)
        settings: str | dict[str, Any]
        if task == "scenes":
            settings = "scenes"
            changes |= {} if row.transformer else {"model.decoder.hidden": 128}
        elif task == "multi30k":
            settings = {"data": data_settings(data / "multi30k/tok", "de", "en"), **SETTINGS}
            changes |= {"training.steps": 1500, "training.warmup": 150}
        else:
            files = {split: {"path": str(folder / f"data/{split}.tsv"), "header": False} for split in SPLITS}
            settings = {"data": {"kind": "files", **files}, **SYMBOLS}
        if row.transformer:
            changes |= TRANSFORMERS.get(task, SMALL_TRANSFORMER)
        if row.guided is not None:
            guided = {"file": str(folder / "data/train.links"), "weight": 0.3, **row.guided}
            changes["training.guided_alignment"] = guided
        return cls(name, task, folder, settings, changes | overrides)

    def train_and_score(self) -> None:
        """Train the model, or resume it. Align the test set, and write the results."""
        folder = self.folder / to_file_name(self.name)
        regard.train(self.settings, self.overrides, out=folder, quiet=True)
        model = regard.load(folder)
        for name, result in self._score(model):
            result.write(self.folder, name)

    def _score(self, model: regard.Model) -> Iterator[tuple[str, Result]]:
        """Yield the results of the rows that the model belongs to."""
        if self.task == "scenes":
            yield self.name, score_captions(model)
            return
        aligner, data = build_aligner(model, {}), self.folder / "data"
        if self.task == "multi30k":
            quality = Quality(bleu=model.scores["bleu"] if model.scores else None)
        else:
            quality = Quality(measure_correct(model, Standard.read(data, "test").pairs))
        if self.name == "transformer":
            best = aligner.rank_heads(*Standard.read(data, "dev"))[0].head
            yield BEST_HEAD, score_aligner(replace(aligner, head=best), data, quality)
        yield self.name, score_aligner(aligner, data, quality)


def measure_correct(model: regard.Model, pairs: list[Pair]) -> float:
    """Return the share of correct predictions."""
    predictions = model.predict([source for source, _ in pairs], attention=False, batch_size=256)
    return sum(each.text == target for each, (_, target) in zip(predictions, pairs, strict=True)) / len(pairs)


def run_all(runs: list[Run], jobs: int) -> list[str]:
    """Train all models, several at a time. Return the runs that failed."""
    failed = []
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    futures: dict[Future[None], str] = {pool.submit(run.train_and_score): f"{run.task}, {run.name}" for run in runs}
    try:
        for number, future in enumerate(as_completed(futures), 1):
            error = future.exception()
            failed += [futures[future]] if error else []
            message = f"failed: {error}" if error else "finished"
            print(f"{number}/{len(runs)} {futures[future]} {message}", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, no further run is started
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with multi30k, gold-alignments and transliteration")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK", help="default: all")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL", help="default: all"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/alignment"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of all runs"
    )
    parser.add_argument("--report", action="store_true", help="print and draw the results of finished runs only")
    parser.add_argument("--figure", type=Path, default=Path("alignment.png"))
    args = parser.parse_args()
    failed: list[str] = []
    if not args.report:
        if args.data is None:
            parser.error("--data is required for training")
        for task in args.tasks:
            prepare(task, args.out, args.data)
        overrides = parse_overrides(args.set)
        pairs = [(name, task) for task in args.tasks for name in args.models if MODELS[name].learns(task)]
        runs = [Run.of(name, task, args.out, args.data, overrides) for name, task in pairs]
        failed = run_all([run for run in runs if Result.read(run.folder, run.name) is None], args.jobs)
    rows = {
        name: {task: result for task in TASKS if (result := Result.read(args.out / task, name))}
        for name in (CHANCE, STATISTICAL, *MODELS, BEST_HEAD)
    }
    rows = {name: results for name, results in rows.items() if results}
    print(format_table(rows))
    print(f"\n{format_europarl(rows)}")
    draw(rows, args.figure)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
