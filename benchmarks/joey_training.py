"""How fast is training on a CPU, compared with Joey NMT? Target tokens per second of processor time on one thread, from
files to weights, with the same corpus, tokens, sizes and batch size.

    python benchmarks/joey_training.py --data corpora                    # needs `pip install joeynmt`
    python benchmarks/joey_training.py --data corpora --only gru --repeats 3

The corpus is Multi30k (English to German), tokenized into words. Each program trains in its own process, one after the
other, and the best of `--repeats` runs counts. Padding is not counted as tokens. The first third of the steps is a
warm-up. Joey NMT runs with and without oneDNN, and the faster of the two counts.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.formatting import table

VOCABULARY = 10_000
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "transformer": (
        {"kind": "transformer-tiny", "tied": "decoder"},
        {
            "tied_softmax": True,
            **{
                side: {
                    "type": "transformer",
                    "num_layers": 4,
                    "num_heads": 4,
                    "embeddings": {"embedding_dim": 128, "scale": True, "dropout": 0.3},
                    "hidden_size": 128,
                    "ff_size": 256,
                    "dropout": 0.3,
                }
                for side in ("encoder", "decoder")
            },
        },
    ),
    "gru": (
        {
            "kind": "recurrent",
            "embedding": 256,
            "encoder": {"cell": "gru", "hidden": 256},
            "decoder": {"cell": "gru", "hidden": 256, "order": "luong"},
            "attention": "bahdanau",
            "dropout": 0.3,
        },
        {
            "encoder": {
                "type": "recurrent",
                "rnn_type": "gru",
                "embeddings": {"embedding_dim": 256, "dropout": 0.3},
                "hidden_size": 256,
                "bidirectional": True,
                "dropout": 0.3,
                "num_layers": 1,
            },
            "decoder": {
                "type": "recurrent",
                "rnn_type": "gru",
                "embeddings": {"embedding_dim": 256, "dropout": 0.3},
                "hidden_size": 256,
                "hidden_dropout": 0.3,
                "dropout": 0.3,
                "num_layers": 1,
                "input_feeding": True,
                "init_hidden": "bridge",
                "attention": "bahdanau",
            },
        },
    ),
}
"""The settings of each model for regard and for Joey NMT."""


def write_corpus(data: Path, folder: Path) -> None:
    """Write the training and validation sentences as text, for both programs."""
    for split in ("train", "val"):
        for language in ("en", "de"):
            name = f"{split}.lc.norm.tok.{language}.gz"
            text = gzip.decompress((data / "multi30k" / "tok" / name).read_bytes())
            (folder / f"{split}.{language}").write_bytes(text)


class Recorder:
    """Records the processor time and the tokens of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []

    def add(self, tokens: int) -> None:
        self.steps.append((time.process_time(), tokens))

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second after the warm-up."""
        first = len(self.steps) // 3
        seconds = self.steps[-1][0] - self.steps[first][0]
        return sum(tokens for _, tokens in self.steps[first + 1 :]) / seconds


def train_regard(shape: str, folder: Path, args: argparse.Namespace) -> float:
    """Train with regard, and return tokens per second."""
    import regard
    from regard.training import loop
    from regard.training.state import TrainingState
    from regard.training.step import take_step

    recorder = Recorder()

    def take_recorded_step(state: TrainingState) -> tuple[float, int]:
        loss, tokens = take_step(state)
        recorder.add(tokens)
        return loss, tokens

    setattr(loop, "take_step", take_recorded_step)  # noqa: B010
    files = {
        name: {"source": f"{split}.en", "target": f"{split}.de"} for name, split in (("train", "train"), ("dev", "val"))
    }
    training = {
        "steps": args.steps, "batch_tokens": args.batch_tokens, "learning_rate": 0.001, "label_smoothing": 0.1,
        "validate_every": args.steps, "save_every": args.steps, "validation_pairs": 8,
    }  # fmt: skip
    settings = {
        "data": {"kind": "files", "folder": str(folder), **files},
        "tokenizer": {"kind": "word", "vocabulary": VOCABULARY, "shared": False},
        "model": SHAPES[shape][0],
        "training": training,
    }
    regard.train(settings, out=folder / f"regard-{shape}-{time.time_ns()}", quiet=True)
    return recorder.tokens_per_second


def train_joey(shape: str, folder: Path, args: argparse.Namespace) -> float:
    """Train with Joey NMT, and return tokens per second."""
    import logging

    import torch
    from joeynmt.training import TrainManager, train

    torch.backends.mkldnn.enabled = args.onednn
    logging.disable(logging.CRITICAL)
    recorder, train_step = Recorder(), TrainManager._train_step

    def train_recorded_step(manager: Any, batch: Any) -> Any:
        if len(recorder.steps) == args.steps:
            raise KeyboardInterrupt  # Joey NMT stops training
        result = train_step(manager, batch)
        recorder.add(batch.ntokens.item() if hasattr(batch.ntokens, "item") else batch.ntokens)
        return result

    TrainManager._train_step = train_recorded_step
    side = {"level": "word", "lowercase": False, "voc_limit": VOCABULARY, "voc_min_freq": 1, "max_length": 256}
    config = {
        "name": "benchmark", "joeynmt_version": "2.3.0", "model_dir": str(folder / f"joey-{shape}-{time.time_ns()}"),
        "use_cuda": False, "fp16": False, "random_seed": 0,
        "data": {
            "train": str(folder / "train"), "dev": str(folder / "val"), "dataset_type": "plain",
            "src": {"lang": "en", **side}, "trg": {"lang": "de", **side},
        },
        "testing": {"beam_size": 1, "batch_size": 10, "batch_type": "sentence", "eval_metrics": ["bleu"]},
        "training": {
            "optimizer": "adam", "normalization": "tokens", "learning_rate": 0.001, "label_smoothing": 0.1,
            "loss": "crossentropy", "batch_size": args.batch_tokens, "batch_type": "token", "clip_grad_norm": 1.0,
            "epochs": 100, "validation_freq": 10**9, "logging_freq": 10**9, "early_stopping_metric": "loss",
            "overwrite": True, "shuffle": True, "scheduling": "exponential",
            "decrease_factor": 0.99,
        },
        "model": {"initializer": "xavier_uniform", **SHAPES[shape][1]},
    }  # fmt: skip
    Path(str(config["model_dir"])).mkdir()
    train(0, 0, config, skip_test=True)
    return recorder.tokens_per_second


PROGRAMS: dict[str, Callable[[str, Path, argparse.Namespace], float]] = {"regard": train_regard, "joey": train_joey}


def measure(program: str, shape: str, folder: Path, args: argparse.Namespace, *options: str) -> float:
    """Train in a process of its own."""
    command = [
        sys.executable, __file__, "--data", str(args.data), "--program", program, "--only", shape,
        "--folder", str(folder),
        "--steps", str(args.steps), "--batch-tokens", str(args.batch_tokens), *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{program}: {finished.stderr.strip()[-2000:]}")
    return float(json.loads(finished.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the corpora")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens per batch, with padding")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--program", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--onednn", action=argparse.BooleanOptionalAction, default=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        print(json.dumps(PROGRAMS[args.program](args.only[0], args.folder, args)))
        return
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_corpus(args.data, folder)
        for shape in args.only:
            ours, theirs = 0.0, 0.0
            for _ in range(args.repeats):
                ours = max(ours, measure("regard", shape, folder, args))
                for option in ("--onednn", "--no-onednn"):
                    theirs = max(theirs, measure("joey", shape, folder, args, option))
            lines.append([shape, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"])
    print(table(["model", "regard, tokens/s", "Joey NMT, tokens/s", "ratio"], lines))


if __name__ == "__main__":
    main()
