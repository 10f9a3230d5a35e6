"""How does the cost grow with the lengths, the batch, the beam, the vocabulary and the corpus? Fits an exponent p to
each, for models without attention, with additive attention, and for a Transformer.

    python benchmarks/growth.py --figure docs/performance/growth.png          # CPU, one thread, some minutes

The function a + b nᵖ is fitted to the cost at five sizes n: to the multiply-adds that `regard explain` counts, and to
processor time. For the beam, a search is measured; for the corpus, `regard train` with one step and an empty cache;
otherwise, a training step.
"""

import argparse
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from decoding import Job, build_search
from regard.config import resolve
from regard.formatting import table
from regard.inspection.explain.cost import compute_cost
from regard.models.contracts import Tokens
from regard.models.seq2seq import build_model
from regard.models.settings import FixedModel, ModelSettings, RecurrentModel, TransformerModel
from regard.ops.losses import cross_entropy
from regard.ops.reference_mode import full_precision

WIDTH = 32
RECURRENT = {"embedding": WIDTH, "encoder": {"hidden": WIDTH // 2}, "decoder": {"hidden": WIDTH}, "dropout": 0.0}
MODELS: dict[str, tuple[type[ModelSettings], dict[str, Any]]] = {
    "without attention": (FixedModel, RECURRENT),
    "additive attention": (RecurrentModel, {**RECURRENT, "attention": "bahdanau"}),
    "Transformer": (
        TransformerModel,
        {"size": WIDTH, "heads": 2, "layers": 1, "feedforward": 2 * WIDTH, "dropout": 0.0},
    ),
}


class Sizes(NamedTuple):
    """What the cost of a step depends on."""

    source: int = 16
    target: int = 16
    batch: int = 16
    beam: int = 1
    vocabulary: int = 100


GROWTH: dict[str, Callable[[int], Sizes]] = {
    "source length S": lambda n: Sizes(source=n),
    "target length T": lambda n: Sizes(target=n),
    "both, S = T": lambda n: Sizes(source=n, target=n, batch=4),
    "batch": lambda n: Sizes(batch=n),
    "beam": lambda n: Sizes(batch=16, beam=n),
    "vocabulary": lambda n: Sizes(vocabulary=n),
}
LARGEST = {"source length S": 2048, "target length T": 512, "both, S = T": 1024, "batch": 1024, "beam": 64,
           "vocabulary": 64_000}  # fmt: skip
CORPUS = "corpus, pairs"
CORPUS_LARGEST = 200_000


class Curve(NamedTuple):
    """The cost at five sizes, each twice the one before."""

    sizes: list[int]
    operations: list[float] | None
    seconds: list[float]


def doubling(largest: int) -> list[int]:
    return [largest // 2**power for power in (4, 3, 2, 1, 0)]


def fit_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent p of a + b nᵖ, fitted by least squares of the relative errors with a, b ≥ 0."""
    n, f = np.array(sizes) / sizes[-1], np.array(costs)
    best = (math.inf, math.nan)
    for p in np.arange(0, 3, 0.01):
        basis = np.stack([np.ones_like(n), n**p], axis=1) / f[:, None]
        for columns in (basis, basis[:, 1:]):
            solution = np.linalg.lstsq(columns, np.ones_like(f), rcond=None)[0]
            error = float(np.square(columns @ solution - 1).sum())
            if (solution >= 0).all() and error < best[0] - 1e-9:
                best = (error, float(p))
    return best[1]


def settings_of(name: str) -> ModelSettings:
    kind, values = MODELS[name]
    return resolve(kind, values, {})


def count_operations(name: str, sizes: Sizes, *, search: bool) -> float:
    """Return the multiply-adds of a batch: of a search, or of a forward pass."""
    with torch.device("meta"):
        cost = compute_cost(build_model(settings_of(name), sizes.vocabulary, sizes.vocabulary).eval())
    formula = cost.search if search else cost.forward
    return sizes.batch * formula(sizes.source, sizes.target, sizes.beam)


def measure_seconds(name: str, sizes: Sizes, repeats: int, *, search: bool) -> float:
    """Return the processor time of a search, or of a training step."""
    torch.manual_seed(0)
    model = build_model(settings_of(name), sizes.vocabulary, sizes.vocabulary)
    source_BS, target_BT = (
        torch.randint(4, sizes.vocabulary, (sizes.batch, length)) for length in (sizes.source, sizes.target)
    )
    source = Tokens(source_BS, torch.full((sizes.batch,), sizes.source))
    if search:
        run: Callable[[], Any] = build_search(model.eval(), Job(source, sizes.beam, sizes.target))
    else:

        def run() -> None:
            model.zero_grad()
            logits_BTV = model(source, target_BT).logits_BTV
            cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), 0.1).backward()  # type: ignore[no-untyped-call]

    best = float("inf")
    for _ in range(repeats + 1):  # one for warm-up
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def measure_corpus(pairs: int) -> float:
    """Return the processor time of reading and tokenizing a corpus, and of one training step."""
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        texts = ("".join(generator.choices("abcdefghij ", k=30)).strip() for _ in range(2 * pairs))
        lines = (f"{source}\t{target}\n" for source, target in zip(texts, texts, strict=True))
        (Path(folder) / "train.tsv").write_text("".join(lines))
        overrides = ["training.steps=1", "training.batch_size=1", "training.validation_pairs=1"]
        command = [sys.executable, "-m", "regard", "train", "pairs", f"data.train={folder}/train.tsv", *overrides]
        environment = {**os.environ, "REGARD_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--out", f"{folder}/run"], env=environment, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_growth(quantity: str, name: str, repeats: int) -> Curve:
    at, search = GROWTH[quantity], quantity == "beam"
    sizes = doubling(LARGEST[quantity])
    operations = [count_operations(name, at(n), search=search) for n in sizes]
    return Curve(sizes, operations, [measure_seconds(name, at(n), repeats, search=search) for n in sizes])


def plot(curves: dict[tuple[str, str], Curve], path: Path) -> None:
    """Draw times, and multiply-adds with the same value at the largest size."""
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(quantity for quantity, _ in curves))
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(2, 4).flat
    for quantity, axes in zip(quantities, panels, strict=False):
        selected = {name: curve for (other, name), curve in curves.items() if other == quantity}
        for name, curve in selected.items():
            (line,) = axes.plot(curve.sizes, curve.seconds, "o-", markersize=4, label=name)
            if curve.operations is not None:
                scale = curve.seconds[-1] / curve.operations[-1]
                predicted = [scale * count for count in curve.operations]
                axes.plot(curve.sizes, predicted, ":", color=line.get_color(), linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        sizes = next(iter(selected.values())).sizes
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axes.minorticks_off()
        axes.set_xlabel(quantity)
        axes.set_ylabel("seconds", fontsize=8)
        axes.yaxis.set_major_formatter("{x:.2g}")
        axes.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.axes[-1].axis("off")
    figure.axes[-1].legend(handles, labels, frameon=False, loc="center")
    figure.axes[-1].set_title("dotted: multiply-adds", fontsize=9, y=0.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*GROWTH, CORPUS], default=[*GROWTH, CORPUS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[tuple[str, str], Curve] = {}
    lines = []
    with full_precision(torch.float32):  # as in training and prediction
        for quantity in args.only:
            row = [quantity]
            for name in MODELS if quantity != CORPUS else (CORPUS,):
                if quantity == CORPUS:
                    sizes = doubling(CORPUS_LARGEST)
                    curve = Curve(sizes, None, [measure_corpus(pairs) for pairs in sizes])
                else:
                    curve = measure_growth(quantity, name, args.repeats)
                curves[quantity, name] = curve
                operations = "–" if curve.operations is None else f"{fit_exponent(curve.sizes, curve.operations):.2f}"
                row += [operations, f"{fit_exponent(curve.sizes, curve.seconds):.2f}"]
            lines.append([*row, *[""] * (7 - len(row))])
    headers = [f"{name}: {kind}" for name in MODELS for kind in ("operations", "time")]
    print(table(["growth with", *headers], lines))
    if args.figure:
        plot(curves, args.figure)


if __name__ == "__main__":
    main()
