"""How good are captions, and is the attention on the objects that they mention? Trains presets, scores their test sets.

    python benchmarks/captioning.py --only scenes --seeds 3
    python benchmarks/captioning.py --only captcha --data corpora --figures figures
    python benchmarks/captioning.py --only flickr8k --attention soft soft-tuned hard --data corpora --seeds 3 \
        --figures figures   # needs a GPU
    python benchmarks/captioning.py --only scenes --attention soft --set training.steps=500

Existing runs are resumed. Checkpoints are chosen on the dev set.

scenes: exact captions; pointing accuracy and mass inside the box, on the objects that are mentioned in the right place
(see `pointing.py`); and the number of cells that each word reads (weight above 0.1 %).
captcha: correct characters (100 − CER), correct captchas, and the share of characters whose attention is further right
than that of the character before.
flickr8k: BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D (printed × 100, as in papers). Beam and length penalty are those with
the best BLEU-4 on the dev set. The run `soft-tuned` starts with the weights of the run `soft` of the same seed, and
trains the backbone too. The run `hard` starts with the weights of `soft-tuned`.

With --figures, contact sheets are drawn for the first seed: of scenes and captchas, the first test images; of
flickr8k, the test images with the highest and the lowest CIDEr-D.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import regard
from pointing import score_pointing
from regard.data.corpora import Pairs, load_corpus
from regard.data.images.scenes import sample
from regard.data.images.settings import ScenesData
from regard.evaluation.settings import parse_metric
from regard.inspection import figures

HARD = "{kind: hard, reward: 0.003, entropy: 0.0003}"
SELECTIONS = {
    "soft": "softmax",
    "soft-tuned": "softmax",
    "hard": HARD,
    "hard_exact": "hard_exact",
    "straight_through": "straight_through",
}


class Tuning(NamedTuple):
    """A run of flickr8k that starts with the weights of another run of the same seed."""

    start: str
    steps: int
    learning_rate: float


TUNED = {"soft-tuned": Tuning("soft", 1000, 0.0001), "hard": Tuning("soft-tuned", 1500, 0.0002)}

TUNING = ["model.encoder.frozen=false", "data.augmentation.flip=0.5", "training.warmup=200"]
TUNING += ["training.validate_every=250", "training.save_every=250"]

BLEU = {order: f"bleu:tokenize=coco,smooth=none,max_order={order},references=by_source" for order in (1, 2, 3, 4)}
READ = 1e-3
"""A cell with at least this weight is read."""

SHEETS = 4
"""The number of contact sheets of each kind."""

Row = dict[str, float]
"""The results of a run: values by the name of their column."""


class Run(NamedTuple):
    """A training run of one preset, attention and seed."""

    preset: str
    attention: str
    seed: int
    args: argparse.Namespace

    @property
    def folder(self) -> Path:
        return Path(self.args.out) / f"{self.preset}-{self.attention}-seed{self.seed}"

    @property
    def sheets(self) -> Path | None:
        """The folder of the contact sheets, for the first seed."""
        if self.args.figures is None or self.seed:
            return None
        folder = Path(self.args.figures)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def train(self) -> regard.Model:
        """Train, or resume, and load the model."""
        data = [] if self.preset == "scenes" else [f"data.folder={Path(self.args.data).resolve() / self.preset}"]
        preset, settings = self.preset, [f"model.attention={{score: additive, select: {SELECTIONS[self.attention]}}}"]
        if (preset, self.attention) == ("scenes", "hard"):  # REINFORCE needs other settings
            preset, settings = "scenes-hard", []
        elif preset == "flickr8k" and self.attention in TUNED:
            tuning = TUNED[self.attention]
            start = self._replace(attention=tuning.start)
            start.train()
            settings += [f"training.init_from={start.folder.resolve()}", *TUNING]
            settings += [f"training.steps={tuning.steps}", f"training.learning_rate={tuning.learning_rate}"]
        settings = [*data, *settings, f"seed={self.seed}", *self.args.set]
        command = [sys.executable, "-m", "regard", "train", preset, *settings, "--out", str(self.folder)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return regard.load(self.folder)

    def draw(self, predictions: Sequence[regard.Prediction], kind: str = "") -> None:
        """Draw the contact sheets of some predictions."""
        if self.sheets is None:
            return
        for number, prediction in enumerate(predictions):
            name = "-".join(filter(None, (self.preset, self.attention, kind, str(number))))
            figures.save(prediction, self.sheets / f"{name}.png")


def score_scenes(run: Run, model: regard.Model) -> Row:
    settings = model.settings.data
    assert isinstance(settings, ScenesData)
    scenes = sample(settings, "test")
    predictions = model.predict([scene.pixels for scene in scenes], batch_size=256)
    run.draw(predictions[:SHEETS])
    exact = [prediction.text == scene.caption for prediction, scene in zip(predictions, scenes, strict=True)]
    pointing = score_pointing(predictions, scenes)
    read = [float((prediction.attention >= READ).sum(-1).mean()) for prediction in predictions if prediction.tokens]
    return {
        "exact captions %": 100 * statistics.fmean(exact),
        "pointing accuracy %": 100 * pointing.accuracy,
        "mass inside the box %": 100 * pointing.mass,
        "objects mentioned %": 100 * pointing.objects / (pointing.objects + pointing.missing),
        "cells read": statistics.fmean(read),
    }


def score_captchas(run: Run, model: regard.Model) -> Row:
    pairs = read_split(model, "test")
    result = model.evaluate(list(pairs), metrics=["accuracy", "cer"])
    predictions = model.predict(pairs.sources)
    run.draw(predictions[:SHEETS])
    moves = np.concatenate([np.diff(locate_columns(prediction)) for prediction in predictions])
    return {
        "characters %": 100 - result["cer"],
        "whole %": 100 * result["accuracy"],
        "steps to the right %": 100 * float((moves > 0).mean()),
        "captions/s": len(result.predictions) / result.seconds,
    }


def locate_columns(prediction: regard.Prediction) -> Any:
    """Return the average column of the attention weights of each token."""
    assert prediction.layout is not None
    weights_TYX = prediction.attention.reshape(-1, *prediction.layout)
    return weights_TYX.sum(1) @ np.arange(prediction.layout.width)


def score_flickr8k(run: Run, model: regard.Model) -> Row:
    dev, test = (list(read_split(model, split)) for split in ("dev", "test"))
    searches = list(product(run.args.beams, run.args.length_penalties))
    by_search = {}
    for beam, penalty in searches:
        value = model.evaluate(dev, metrics=[BLEU[4]], beam=beam, length_penalty=penalty)["bleu"]
        by_search[beam, penalty] = value
        print(f"{run.folder.name}: beam {beam}, length penalty {penalty}: dev BLEU-4 {value:.2f}", file=sys.stderr)
    beam, penalty = max(searches, key=lambda search: by_search[search])
    metrics = [*BLEU.values(), "rouge_l", "cider"]
    result = model.evaluate(test, metrics=metrics, beam=beam, length_penalty=penalty)
    if run.sheets is not None:
        lines = list(result.evaluation_set.group_references())
        ciders = result.statistics[parse_metric("cider")].statistics_NK[:, 0]
        ranked = [result.evaluation_set.sources[lines[index]] for index in np.argsort(-ciders, kind="stable")]
        for kind, sources in (("best", ranked[:SHEETS]), ("worst", ranked[-SHEETS:])):
            run.draw(model.predict(sources, beam=beam, length_penalty=penalty), kind)
    return {
        **{f"BLEU-{order}": result[parse_metric(label).label] for order, label in BLEU.items()},
        "ROUGE-L": result["rouge_l"],
        "CIDEr-D": 100 * result["cider"],
        "beam": beam,
        "length penalty": penalty,
        "captions/s": result.evaluation_set.distinct_sources / result.seconds,
    }


def read_split(model: regard.Model, split: str) -> Pairs:
    """Read a split of the corpus that a model was trained on."""
    return Pairs.of(getattr(load_corpus(model.settings.data), split))


SECTIONS = {"scenes": score_scenes, "captcha": score_captchas, "flickr8k": score_flickr8k}


def format_table(results: list[tuple[Run, Row]]) -> Iterator[str]:
    """Yield the lines of a table: a row for each run, and the average of each attention if there are several seeds."""
    columns = list(results[0][1])
    yield "| " + " | ".join(["attention", "seed", *columns]) + " |"
    yield "|---" * (2 + len(columns)) + "|"
    for attention in dict.fromkeys(run.attention for run, _ in results):
        rows = {run.seed: row for run, row in results if run.attention == attention}
        for seed, row in rows.items():
            yield "| " + " | ".join([attention, str(seed), *(f"{row[name]:.2f}" for name in columns)]) + " |"
        if len(rows) > 1:
            means = [statistics.fmean(row[name] for row in rows.values()) for name in columns]
            yield "| " + " | ".join([attention, "mean", *(f"{mean:.2f}" for mean in means)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--data", default="corpora", help="folder with the corpora captcha and flickr8k")
    parser.add_argument("--attention", nargs="+", choices=list(SELECTIONS), default=["soft", "hard"])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 3, 5, 8, 12], help="beams that are compared on dev")
    parser.add_argument("--length-penalties", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--out", default="runs/captioning", help="folder of the runs")
    parser.add_argument("--figures", metavar="FOLDER", help="draw contact sheets")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    args = parser.parse_args()
    for section in args.only:
        results: list[tuple[Run, Row]] = []
        for attention, seed in product(args.attention, range(args.seeds)):
            run = Run(section, attention, seed, args)
            row = SECTIONS[section](run, run.train())
            results.append((run, row))
            print(f"{run.folder.name}: {json.dumps(row, allow_nan=False)}", file=sys.stderr, flush=True)
        print(f"{section}\n")
        print("\n".join(format_table(results)) + "\n")


if __name__ == "__main__":
    main()
