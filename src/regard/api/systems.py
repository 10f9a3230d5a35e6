"""Systems of a comparison: runs, which are opened and evaluated, and lists of outputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.api.alignment import build_aligner
from regard.api.model import Model
from regard.data.corpora import Pairs
from regard.data.pharaoh import GoldLinks
from regard.errors import ArgumentTypeError
from regard.evaluation.alignment import score_alignments
from regard.evaluation.attention_statistics import compute_attention_entropy
from regard.evaluation.comparison import System
from regard.evaluation.metrics import EvaluationSet, ModelOutputs, compute_statistics
from regard.evaluation.settings import Metric
from regard.runs.folder import RunFolder, open_model
from regard.runs.stored_checkpoint import Checkpoint


class OpenedRun(NamedTuple):
    """A run with the name under which it is shown, and the checkpoint to use."""

    name: str
    folder: RunFolder
    checkpoint: Checkpoint


def open_runs(paths: Sequence[str | Path], *, accept_changes: bool = False) -> list[OpenedRun]:
    """Open runs, and name them after their folders."""
    for path in paths:
        if not isinstance(path, str | Path):
            raise ArgumentTypeError(f"runs must be paths of run folders, not {type(path).__name__}.")
    opened = [open_model(path, accept_changes=accept_changes) for path in paths]
    return [OpenedRun(name, *run) for name, run in zip(name_paths(paths), opened, strict=True)]


def name_paths(paths: Sequence[str | Path]) -> list[str]:
    """Return the last part of each path, or as many parts as are needed to distinguish them; without .txt.

    >>> name_paths(["runs/dates/seed-0", "runs/luong/seed-0"])
    ['dates/seed-0', 'luong/seed-0']
    """
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(path[-count:]).removesuffix(".txt") for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def evaluate_run(
    run: OpenedRun,
    evaluation_set: EvaluationSet,
    metrics: list[Metric],
    *,
    search: dict[str, Any],
    gold: Sequence[GoldLinks] | None = None,
    batch_size: int = 64,
    device: torch.device,
) -> System:
    """Predict the sources, and measure speed, size and attention. `gold` aligns sources with first references."""
    model = Model.from_checkpoint(run.folder, run.checkpoint, device)
    sources, references = evaluation_set.sources, evaluation_set.references
    # The first batch includes the time for initialization, so it is not timed.
    model.evaluate(sources[:batch_size], references[:batch_size], metrics=metrics, **search)
    result = model.evaluate(sources, references, metrics=metrics, batch_size=batch_size, **search)
    pairs = evaluation_set.first_pairs
    entropy = compute_attention_entropy(model.predictor, pairs)
    decoded = bool(result.predictions) and result.seconds > 0
    return System(
        run.name,
        result.predictions,
        result.statistics,
        path=str(run.folder.path),
        step=run.checkpoint.step,
        settings=model.settings.model_dump(mode="json"),
        search=result.search,
        parameters=sum(parameter.numel() for parameter in model.network.parameters()),
        disk_bytes=measure_model_files(run.folder, run.checkpoint),
        sentences_per_second=evaluation_set.distinct_sources / result.seconds if decoded else None,
        tokens_per_second=result.tokens_per_second if decoded else None,
        attention_entropy=entropy,
        alignment_error_rate=None if gold is None or entropy is None else _compute_aer(model, pairs, gold),
    )


def evaluate_outputs(name: str, texts: list[str], evaluation_set: EvaluationSet, metrics: list[Metric]) -> System:
    """Compute the metrics of a list of outputs."""
    outputs = ModelOutputs(evaluation_set, texts, np.zeros((0, 2)))
    return System(name, texts, {metric: compute_statistics(metric, outputs) for metric in metrics})


def _compute_aer(model: Model, pairs: Pairs, gold: Sequence[GoldLinks]) -> float:
    """Return the alignment error rate of the attention that `regard align` uses by default."""
    alignments = build_aligner(model, {}).align(pairs)
    return score_alignments([alignment.links for alignment in alignments], gold).aer


def measure_model_files(folder: RunFolder, checkpoint: Checkpoint) -> int:
    """Return the bytes that are needed to use a model: weights, settings and tokenizers, without the optimizer."""
    files = [folder.config, *folder.path.glob("tokenizer*"), *checkpoint.path.iterdir()]
    return sum(file.stat().st_size for file in files if file.is_file() and file.name != "optimizer.safetensors")
