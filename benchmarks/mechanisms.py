"""Does every mechanism learn? Trains each on `dates` from one config switch, prints a table, and draws the gallery.

    python benchmarks/mechanisms.py                      # all, two at a time, about 15 minutes on 2 cores
    python benchmarks/mechanisms.py bahdanau luong-dot   # some
    python benchmarks/mechanisms.py --gallery docs/mechanisms.md

Trained runs are kept in runs/mechanisms and used again.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.attention.mechanisms import MECHANISMS, Mechanism
from regard.config import resolve
from regard.data.corpora import load_corpus
from regard.formatting import table
from regard.runs.events import read_events
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings

SENTENCE = "Sunday, May 3, 2009"

SLOWER = {"training.learning_rate": 0.006, "training.steps": 1000}
"""For scores that nothing keeps from growing: at the preset's rate their softmax saturates early."""

NEEDS: dict[str, dict[str, Any]] = {
    "luong-general": SLOWER,
    # The year of most dates stands last in the source and first in the target.
    "luong-local-m": {**SLOWER, "model.attention.scope.window": 30},
    "luong-local-p": {
        "training.learning_rate": 0.004,
        "training.steps": 2000,
        "model.attention.scope.window": 12,
    },
    "exact-hard": SLOWER,
    # It can never go back, and the year, said first, mostly stands last: it learns to read all from the end.
    "hard-monotonic": {"training.learning_rate": 0.006, "training.steps": 3000},
    "luong-location": {"training.learning_rate": 0.008, "training.steps": 1200},
    "show-attend-tell-hard": {"training.learning_rate": 0.006, "training.steps": 1200},
    "simple-rnn-projected": {"training.learning_rate": 0.003, "training.steps": 1400},
    "transformer": {"training.learning_rate": 0.006},
}
"""What a mechanism needs beyond its name; all the rest is the preset's."""


def train(name: str, place: Path) -> None:
    """Train one mechanism in a process of its own."""
    overrides = {"model.attention": name, **NEEDS.get(name, {})}
    words = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "regard", "train", "dates", *words, "--out", str(place / name)]
    subprocess.run(command, check=True, capture_output=True)


def seconds(folder: RunFolder) -> float:
    """From the first event of a run to its last."""
    times = [event["time"] for event in read_events(folder.events)]
    return float(times[-1] - times[0])


def entropy(model: regard.Model, sources: list[str]) -> float:
    """The mean entropy of the weights of a target token, in nats."""
    found = []
    for prediction in model.predict(sources):
        weights = prediction.attention.reshape(-1, prediction.attention.shape[-1])
        found += list(-(weights * np.log(np.maximum(weights, 1e-12))).sum(-1))
    return float(np.mean(found))


def row(mechanism: Mechanism, place: Path) -> list[str]:
    model = regard.load(place / mechanism.name)
    test = load_corpus(model.settings.data).test
    assert test is not None
    scores = model.evaluate(test.sources, test.targets)
    needed = ", ".join(f"{key.removeprefix('model.')}={value}" for key, value in NEEDS.get(mechanism.name, {}).items())
    spread = entropy(model, test.sources[:200])
    return [
        mechanism.name,
        f"{scores['accuracy']:.1%}",
        f"{scores['loss']:.4f}",
        f"{spread:.2f}",
        f"{seconds(RunFolder(place / mechanism.name)):.0f}",
        needed or "–",
    ]


def gallery(names: list[str], place: Path, path: Path, rows: list[list[str]]) -> None:
    """The mechanisms with their equations and their weights on one sentence, as a page."""
    settings = resolve(RunSettings, "dates", {})
    lines = [
        "# The mechanisms of attention",
        "",
        "Attention is a soft dictionary look-up: a **score** says what matches, a **scope** who may be seen, a "
        "**selection** how much of each is read. A name of the literature is one choice of the three (and of heads); "
        "`regard mechanisms` lists them, `model.attention=NAME` trains one, and any part can be changed by itself: "
        "`model.attention.score=cosine`.",
        "",
        f"Each was trained on `dates` with the preset's {settings.training.steps} steps (what one needed beyond that "
        "is in the last column) and scored on 1,000 unseen dates; entropy is that of a target token's weights, in "
        f"nats. Rows of a map are the answer, columns are “{SENTENCE}”.",
        "",
        "`python benchmarks/mechanisms.py --gallery docs/mechanisms.md` makes this page.",
        "",
        "| mechanism | exact match | loss | entropy | seconds | needed |",
        "|---|---|---|---|---|---|",
        *(f"| [{cells[0]}](#{cells[0]}) | {' | '.join(cells[1:])} |" for cells in rows),
        "",
    ]
    for name in names:
        mechanism = MECHANISMS[name]
        prediction = regard.load(place / name).predict(SENTENCE)
        parts = f"score `{mechanism.score}`, scope `{mechanism.scope}`, selection `{mechanism.select}`"
        heads = f", {mechanism.heads} heads; the map is their mean" if mechanism.heads > 1 else ""
        lines += [
            f"## {name}",
            "",
            f"{mechanism.equation}  ",
            f"{mechanism.citation}: {parts}{heads}.",
            "",
            "```text",
            str(prediction),
            "```",
            "",
        ]
    path.write_text("\n".join(lines), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--out", type=Path, default=Path("runs/mechanisms"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--gallery", type=Path)
    given = parser.parse_args()
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda name: train(name, given.out), given.names))
    rows = [row(MECHANISMS[name], given.out) for name in given.names]
    print(table(["mechanism", "exact match", "loss", "entropy", "seconds", "needed"], rows))
    if given.gallery:
        gallery(given.names, given.out, given.gallery, rows)


if __name__ == "__main__":
    main()
