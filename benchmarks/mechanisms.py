"""Does every mechanism learn? Trains each on `dates`, prints a table, and writes the gallery of the explorer.

    python benchmarks/mechanisms.py                      # all, two at a time, about 15 minutes on 2 cores
    python benchmarks/mechanisms.py bahdanau luong-dot   # only these
    python benchmarks/mechanisms.py --markdown           # the table of docs/mechanisms.md
    python benchmarks/mechanisms.py --small --out runs/gallery --traces src/regard/explorer/gallery.json.gz

Runs are stored in runs/mechanisms and reused. The last command trains small models for `regard explore --gallery`, and
writes their predictions with everything that the page shows.
"""

import argparse
import gzip
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.attention.mechanisms import MECHANISMS, Mechanism
from regard.data.corpora import load_corpus
from regard.explorer.embedding import embed_models
from regard.formatting import table, to_json
from regard.runs.events import read_events
from regard.runs.folder import RunFolder

SENTENCE = "Sunday, May 3, 2009"
HEADER = ["mechanism", "exact match", "loss", "entropy", "seconds", "settings"]

LOWER_RATE = {"training.learning_rate": 0.006, "training.steps": 1000}
"""For unbounded scores, whose softmax saturates early at the learning rate of the preset."""

REQUIRED_SETTINGS: dict[str, dict[str, Any]] = {
    "luong-general": LOWER_RATE,
    # The year of most dates is last in the source and first in the target.
    "luong-local-m": {**LOWER_RATE, "model.attention.scope.window": 30},
    "luong-local-p": {"training.learning_rate": 0.004, "training.steps": 2000},
    "exact-hard": LOWER_RATE,
    # It cannot go back, and the year is first in the target but mostly last in the source: it learns to read the
    # complete date from the end of the source.
    "hard-monotonic": {"training.learning_rate": 0.006, "training.steps": 3000},
    "luong-location": {"training.learning_rate": 0.008, "training.steps": 1200},
    "show-attend-tell-hard": {"training.learning_rate": 0.006, "training.steps": 1200},
    "simple-rnn-projected": {"training.learning_rate": 0.003, "training.steps": 1400},
    "transformer": {"training.learning_rate": 0.006},
}
"""The settings in which a mechanism differs from the preset, besides its name."""


@dataclass(frozen=True)
class Entry:
    """A mechanism of the gallery: what it computes, how it is selected and trained, and the weights that are drawn."""

    name: str
    equation: str
    citation: str
    description: str
    selected_by: dict[str, Any]
    required: dict[str, Any]
    attention: str = "cross"
    role: str = "cross"

    @classmethod
    def of(cls, mechanism: Mechanism) -> "Entry":
        parts = f"score `{mechanism.score}`, scope `{mechanism.scope}`, selection `{mechanism.select}`"
        heads = f", {mechanism.heads} heads; the map is their average" if mechanism.heads > 1 else ""
        return cls(
            mechanism.name,
            mechanism.equation,
            mechanism.citation,
            f"{parts}{heads}",
            {"model.attention": mechanism.name},
            REQUIRED_SETTINGS.get(mechanism.name, {}),
        )


LSTMN = {"model.encoder.cell": "lstmn", "model.decoder.cell": "lstmn"}
CHENG = "Cheng, Dong & Lapata 2016, arXiv:1601.06733"
SELF_ATTENTION = [
    Entry(
        "lstmn",
        "a_i ∝ exp(vᵀ tanh(W q_t + U h_i)), h̃_t = Σ_{i<t} a_i h_i, c̃_t = Σ_{i<t} a_i c_i",
        CHENG,
        "the cell `lstmn` in encoder and decoder. The map shows which earlier characters the forward direction of the "
        "encoder reads at each character",
        LSTMN,
        {"training.learning_rate": 0.006, "training.steps": 1200},
        "encoder.layers.cells.0.attention",
        "encoder-self",
    ),
    Entry(
        "lstmn-deep-fusion",
        "c_t = r_t ⊙ α̃_t + f_t ⊙ c̃_t + i_t ⊙ ĉ_t",
        CHENG,
        "the cell `lstmn` with `decoder.fusion=deep`. The map shows the attention to the source, which reads hidden "
        "and cell states",
        {**LSTMN, "model.decoder.fusion": "deep"},
        {"training.learning_rate": 0.003, "training.steps": 2500},
    ),
    Entry(
        "intra-attention",
        "e = s_tᵀ W s_i, p(y_t) from [s_t; Σ_{i<t} a_i s_i; c_t]",
        "Paulus, Xiong & Socher 2018, arXiv:1705.04304",
        "`decoder.intra_attention=general`. The map shows which earlier steps of the decoder each step reads; the "
        "columns are their inputs",
        {"model.decoder.intra_attention": "general"},
        {},
        "decoder-self",
        "decoder-self",
    ),
]
"""Self-attention of recurrent networks."""

TRANSFORMER = Entry(
    "transformer-model",
    "Concat(head_1, …, head_h) W, head_i = softmax(Q_i K_iᵀ / √d) V_i, in encoder and decoder",
    "Vaswani et al. 2017, arXiv:1706.03762",
    "the architecture `transformer`, with pre-norm and rotary positions. The map is the average of the last layer",
    {
        "model": {
            "kind": "transformer",
            "size": 64,
            "feedforward": 128,
            "layers": 2,
            "heads": 4,
            "dropout": 0.0,
            "norm": "pre",
            "positions": "rotary",
        },
    },
    {"training.batch_size": 128, "training.learning_rate": 0.002, "training.warmup": 400, "training.steps": 8000},
)
"""A small model without a recurrent network."""

ENTRIES = {entry.name: entry for entry in (*map(Entry.of, MECHANISMS.values()), *SELF_ATTENTION)}

SMALL = {
    "model.embedding": 32,
    "model.encoder.hidden": 32,
    "model.decoder.hidden": 64,
    "training.learning_rate": 0.006,
    "training.steps": 2500,
}
"""Settings of small models, whose predictions with all their numbers take little space."""

SMALL_SETTINGS: dict[str, dict[str, Any]] = {
    "hard-monotonic": {
        "model.encoder.hidden": 48,
        "training.learning_rate": 0.004,
        "training.steps": 7000,
    },
    "lstmn": {"training.steps": 1500},
    "lstmn-deep-fusion": {"training.learning_rate": 0.003, "training.steps": 2500},
    "show-attend-tell-hard": {"training.steps": 6000},
}
"""The settings in which the small model of an entry differs from `SMALL`."""


def shrink(entry: Entry) -> Entry:
    """Return the entry with the settings of its small model."""
    return replace(entry, required={**entry.required, **SMALL, **SMALL_SETTINGS.get(entry.name, {})})


def train(entry: Entry, folder: Path) -> None:
    """Train one mechanism in its own process."""
    overrides = {**entry.selected_by, **entry.required}
    arguments = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "regard", "train", "dates", *arguments, "--out", str(folder / entry.name)]
    subprocess.run(command, check=True, capture_output=True)


def training_seconds(folder: RunFolder) -> float:
    """Return the time from the first event of a run to its last."""
    times = [event["time"] for event in read_events(folder.events)]
    return float(times[-1] - times[0])


def mean_entropy(model: regard.Model, sources: list[str]) -> float:
    """Return the entropy of the attention weights in nats, averaged over target tokens."""
    entropies = []
    for prediction in model.predict(sources):
        weights = prediction.attention.reshape(-1, prediction.attention.shape[-1])
        entropies += list(-(weights * np.log(np.maximum(weights, 1e-12))).sum(-1))
    return float(np.mean(entropies))


def build_row(entry: Entry, folder: Path) -> list[str]:
    """Return the row of a mechanism in the table."""
    model = regard.load(folder / entry.name)
    test = load_corpus(model.settings.data).test
    assert test is not None
    scores = model.evaluate(test.sources, test.targets)
    settings = ", ".join(
        f"{key.removeprefix('training.').removeprefix('model.attention.')}={value}"
        for key, value in entry.required.items()
    )
    entropy = mean_entropy(model, test.sources[:200])
    return [
        entry.name,
        f"{scores['accuracy']:.1%}",
        f"{scores['loss']:.4f}",
        f"{entropy:.2f}",
        f"{training_seconds(RunFolder(folder / entry.name)):.0f}",
        settings or "–",
    ]


def format_markdown(entries: list[Entry], rows: list[list[str]]) -> str:
    """Return the table of docs/mechanisms.md."""
    cells = [
        [f"`{name}`", entry.equation.replace("|", r"\|"), entry.citation, *rest]
        for entry, (name, *rest) in zip(entries, rows, strict=True)
    ]
    header = ["mechanism", "equation", "from", *HEADER[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *cells])


def format_override(key: str, value: Any) -> str:
    """Return a setting as an argument of `regard train`, without details of the model."""
    return f"{key}.kind={value['kind']}" if isinstance(value, dict) else f"{key}={value}"


def write_traces(entries: list[Entry], folder: Path, path: Path) -> None:
    """Write the predictions for one sentence that `regard explore --gallery` shows."""
    data = embed_models({entry.name: regard.load(folder / entry.name) for entry in entries}, [SENTENCE])
    data["gallery"] = [
        {
            "model": model["id"],
            "equation": entry.equation,
            "citation": entry.citation,
            "description": entry.description.replace("`", ""),
            "settings": " ".join(format_override(key, value) for key, value in entry.selected_by.items()),
            "role": entry.role,
        }
        for model, entry in zip(data["models"], entries, strict=True)
    ]
    # Without a time, the same models give the same file.
    path.write_bytes(gzip.compress(to_json(data, ensure_ascii=False).encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ENTRIES), help="default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/mechanisms"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--small", action="store_true", help="train small models, and a Transformer")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="write the predictions for one sentence to FILE")
    args = parser.parse_args()
    entries = [ENTRIES[name] for name in args.names]
    if args.small:
        entries = [*map(shrink, entries), TRANSFORMER]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda entry: train(entry, args.out), entries))
    rows = [build_row(entry, args.out) for entry in entries]
    print(format_markdown(entries, rows) if args.markdown else table(HEADER, rows))
    if args.traces:
        write_traces(entries, args.out, args.traces)


if __name__ == "__main__":
    main()
