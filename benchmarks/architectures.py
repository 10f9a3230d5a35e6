"""What does attention contribute? Every architecture on dates and on a built-in task, by source length.

    python benchmarks/architectures.py                      # one thread each, two runs at a time
    python benchmarks/architectures.py --task sort --jobs 1

Prints a table (architecture, parameters, exact match, seconds) and plots exact match on the task by the length of the
source, after Figure 2 of Bahdanau et al. (2015). All architectures have the same sizes and steps unless stated
otherwise.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import regard
from regard.config import resolve
from regard.data.corpora import load_corpus
from regard.formatting import table
from regard.runs.settings import RunSettings

FIXED = {"kind": "fixed", "embedding": 64, "encoder": {"hidden": 64}, "decoder": {"hidden": 128}, "dropout": 0.0}
TRANSFORMER = {"kind": "transformer", "size": 128, "heads": 4, "layers": 2, "feedforward": 256, "dropout": 0.0}
LOWER_RATE = {"training.learning_rate": 0.002, "training.max_grad_norm": 1.0}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "fixed, initial": {"model": {**FIXED, "context": "initial"}, **LOWER_RATE},
    "fixed, initial, source reversed": {
        "model": {**FIXED, "context": "initial", "encoder": {"hidden": 128, "bidirectional": False, "reverse": True}},
        **LOWER_RATE,
    },
    "fixed, every step": {"model": FIXED, **LOWER_RATE},
    "fixed, every step, mean": {"model": {**FIXED, "encoder": {"hidden": 64, "summary": "mean"}}, **LOWER_RATE},
    "bahdanau": {},
    "bahdanau, lstm": {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm"},
    "bahdanau, copy": {"tokenizer.shared": True, "model.decoder.copy_source": True},
    "luong, input feeding": {"model.decoder.order": "luong"},
    "luong": {"model.decoder.order": "luong", "model.decoder.input_feeding": False},
    "simple rnn, projected": {
        "model.decoder.order": "simple",
        "model.decoder.cell": "rnn",
        "model.attention": {"score": "projected"},
        **LOWER_RATE,
    },
    "transformer": {"model": TRANSFORMER, **LOWER_RATE},
    "transformer, pre-norm, rotary": {"model": {**TRANSFORMER, "norm": "pre", "positions": "rotary"}, **LOWER_RATE},
}


def build_overrides(name: str, task: str, steps: int | None) -> dict[str, Any]:
    """Return the settings in which an architecture differs from the preset."""
    overrides = dict(ARCHITECTURES[name])
    if task != "dates":
        overrides["data.task"] = task
    if steps:
        overrides["training.steps"] = steps
    return overrides


def train(name: str, task: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train one architecture in its own process, and score it."""
    preset = "dates" if task == "dates" else "sequences"
    folder = args.out / f"{task}-{name.replace(', ', '-').replace(' ', '-')}"
    overrides = build_overrides(name, task, args.steps)
    started = time.perf_counter()
    program = "import json, sys, regard; *inputs, out = json.loads(sys.argv[1]); regard.train(*inputs, out=out)"
    arguments = json.dumps([preset, overrides, str(folder)])
    subprocess.run([sys.executable, "-c", program, arguments], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    return {"name": name, "task": task, "seconds": seconds, **score(folder, resolve(RunSettings, preset, overrides))}


def score(folder: Path, settings: RunSettings) -> dict[str, Any]:
    """Return exact match on the test set, overall and by the length of the source."""
    model = regard.load(folder)
    corpus = load_corpus(settings.data)
    assert corpus.test is not None
    predictions = model.predict(corpus.test.sources, attention=False)
    correct = [p.text == target for p, target in zip(predictions, corpus.test.targets, strict=True)]
    by_length: dict[int, list[bool]] = {}
    for source, is_correct in zip(corpus.test.sources, correct, strict=True):
        by_length.setdefault(len(source), []).append(is_correct)
    lengths = {length: sum(values) / len(values) for length, values in sorted(by_length.items())}
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    return {"accuracy": sum(correct) / len(correct), "parameters": parameters, "lengths": lengths}


def plot(results: list[Mapping[str, Any]], task: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for result in results:
        lengths = {int(length): share for length, share in result["lengths"].items()}
        window = {at: [lengths[n] for n in range(at - 1, at + 2) if n in lengths] for at in lengths}
        smooth = [100 * sum(near) / len(near) for near in window.values()]
        dashed = result["name"].startswith("fixed")
        axes.plot(list(lengths), smooth, label=result["name"], linestyle="--" if dashed else "-")
    axes.set_xlabel("length of the source")
    axes.set_ylabel(f"exact match, % ({task})")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="reverse", choices=["copy", "reverse", "sort"])
    parser.add_argument("--only", nargs="+", choices=list(ARCHITECTURES), default=list(ARCHITECTURES))
    parser.add_argument("--steps", type=int, help="number of steps; default: that of the preset")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/architectures"))
    parser.add_argument("--figure", type=Path, default=Path("architectures.png"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(name, task) for name in args.only for task in ("dates", args.task)]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda job: train(*job, args), jobs))
    lines = []
    for name in args.only:
        dates, task = (result for result in results if result["name"] == name)
        times = [f"{result['seconds']:.0f}" for result in (dates, task)]
        shares = [f"{result['accuracy']:.1%}" for result in (dates, task)]
        lines.append([name, f"{dates['parameters']:,}", shares[0], times[0], shares[1], times[1]])
    print(table(["architecture", "parameters", "dates", "seconds", args.task, "seconds"], lines))
    plot([result for result in results if result["task"] == args.task], args.task, args.figure)


if __name__ == "__main__":
    main()
