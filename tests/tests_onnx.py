"""Small models of all kinds that are exported to ONNX."""

from pathlib import Path
from typing import Any

import regard
from tests_marian import make_pairs

SMALL = {"tokenizer": {"kind": "bpe", "vocabulary": 120}, "training.batch_size": 32, "training.learning_rate": 5e-3}
RECURRENT = {"model": "recurrent", "model.embedding": 24, "model.encoder.hidden": 24, "model.decoder.hidden": 24}
GRU = {**RECURRENT, "model.encoder.bidirectional": True}
LSTM = {
    **RECURRENT,
    "model.encoder.cell": "lstm",
    "model.encoder.layers": 2,
    "model.decoder.cell": "lstm",
    "model.decoder.order": "luong",
    "model.decoder.input_feeding": True,
    "model.attention.score": "general",
}
FIXED = {"model": "fixed", "model.embedding": 24, "model.encoder.hidden": 32, "model.decoder.hidden": 32}
TRANSFORMER = {"model": "transformer", "model.size": 32, "model.heads": 2, "model.layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "gru": GRU,
    "lstm": LSTM,
    "fixed": FIXED,
    "transformer": TRANSFORMER,
    "pre-norm": {
        **TRANSFORMER,
        "model.norm": "pre",
        "model.normalization": "rms",
        "model.positions": "rotary",
        "model.activation": "swiglu",
        "tokenizer.shared": False,
    },
    "learned": {**TRANSFORMER, "model.layers": 1, "model.positions": "learned", "model.self_score": "additive"},
    "local": {**GRU, "model.attention.score": "concat", "model.attention.scope": "local_p"},
    "coverage": {
        **GRU,
        "model.attention.score": {"kind": "location_aware", "features": "sum"},
        "model.decoder.gate": True,
    },
    "copy": {**GRU, "model.decoder.order": "conditional", "model.decoder.copy_source": True, "tokenizer.shared": True},
    "intra": {**GRU, "model.decoder.intra_attention": "general", "model.attention.select": "hard"},
    "sparse": {**GRU, "model.attention.select": "sparsemax", "model.attention.scope": "local_m"},
    "marginal": {**GRU, "model.attention.select": "hard_exact", "model.encoder.reverse": True},
}


SEARCHED = ("gru", "lstm", "fixed", "transformer", "pre-norm")
"""Five kinds of models whose predictions are compared."""


def train(path: Path, steps: int = 1, **settings: Any) -> regard.Model:
    overrides = {**SMALL, **settings, "training.steps": steps}
    run = regard.train(pairs=make_pairs(300), dev=make_pairs(5, seed=9), overrides=overrides, out=path, quiet=True)
    return run.load(device="cpu")


def train_captioner(path: Path) -> regard.Model:
    sizes = {"data.train": 64, "data.dev": 4, "data.test": 4, "model.decoder.hidden": 24, "model.embedding": 16}
    settings = {**sizes, "model.encoder.channels": [8, 8], "training.steps": 30, "training.validate_every": 30}
    return regard.train("scenes", settings, out=path, quiet=True).load(device="cpu")
