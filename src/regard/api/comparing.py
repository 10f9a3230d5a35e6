"""Compare runs, or the outputs of other systems, on the same sentences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from regard.api.model import Model, OneSource, build_aligner
from regard.api.training import Run
from regard.arguments import (
    check_device,
    check_flag,
    check_integer,
    check_list,
    check_metrics,
    check_references,
    check_seed,
    check_text,
    check_texts,
    check_type,
)
from regard.config import resolve
from regard.data.corpora import Pairs, read_pairs
from regard.data.lines import read_lines
from regard.data.pharaoh import GoldLinks
from regard.data.settings import Files
from regard.decoding.settings import SearchOptions, SearchSettings, check_search
from regard.errors import ArgumentTypeError, ConfigError, DataError, check_choice, check_path
from regard.evaluation.aligner import read_gold_alignments
from regard.evaluation.alignment import score_alignments
from regard.evaluation.attention_statistics import compute_attention_entropy
from regard.evaluation.comparison import System, SystemComparison
from regard.evaluation.metrics import EvaluationSet, ModelOutputs, compute_statistics, warn_if_tokenized
from regard.evaluation.settings import Metric, parse_metrics
from regard.evaluation.significance import (
    CORRECTIONS,
    TESTS,
    CorrectionName,
    SignificanceTest,
    TestName,
)
from regard.formatting import did_you_mean, quantity
from regard.inspection.compare.comparison import Comparison
from regard.registry import import_plugins
from regard.runs.folder import RunFolder, open_model
from regard.runs.pairs import read_test_set
from regard.runs.stored_checkpoint import Checkpoint

Outputs = Sequence[str] | str | Path
"""The outputs of a system: a text for each sentence, or the path of a file with one on each line."""


class OpenedRun(NamedTuple):
    """A run with the name under which it is shown, and the checkpoint to use."""

    name: str
    folder: RunFolder
    checkpoint: Checkpoint


def compare(
    *runs: str | Path | Run,
    outputs: Mapping[str, Outputs] | None = None,
    pairs: str | Path | Sequence[tuple[OneSource, str]] | None = None,
    sources: Sequence[OneSource] | None = None,
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
    metrics: str | Sequence[Any] | None = None,
    baseline: str | None = None,
    test: TestName = "bootstrap",
    correction: CorrectionName = "holm",
    resamples: int | None = None,
    test_seed: int = 0,
    batch_size: int = 64,
    alignments: str | Path | None = None,
    one_based: bool = False,
    device: str | torch.device | None = None,
    imports: str | Iterable[str] = (),
    accept_changes: bool = False,
    **search: Unpack[SearchOptions],
) -> Comparison:
    """Compare runs, or the outputs of other systems, on the same sentences.

    Args:
        runs: Run folders, or what `regard.train` returned.
        outputs: The outputs of other systems by name: a list of texts, or the path of a file with one text per line.
        pairs: The test set: the path of a file, or a list of (source, reference) pairs. By default the test set of the
            runs, which must be the same for all of them.
        sources: The sources of the test set, if it is not given as pairs. They can be omitted if there are no runs.
        references: A reference for each source, or a list of references for each.
        metrics: Names or mappings, as for `Model.evaluate`. By default the metrics of the first run that use
            predictions; without runs, BLEU and chrF.
        baseline: The name of the system that the others are compared with; by default the first.
        test: `bootstrap` (paired bootstrap) or `randomization` (approximate randomization).
        correction: For several comparisons: `holm`, `bh` (Benjamini–Hochberg) or `none`.
        resamples: The number of bootstrap resamples (default 1,000), or of trials of the randomization test (default
            10,000).
        test_seed: The seed of the resamples or trials.
        batch_size: The number of texts that are processed together. It affects the measured speed.
        alignments: A file in Pharaoh format with the gold alignments of the pairs, to compute the alignment error rate.
        one_based: Whether words are counted from 1 in this file.
        device: "cpu", "cuda", … By default the GPU if there is one, else the CPU.
        imports: Plugins to import, as for `regard.load`.
        accept_changes: Whether to use runs that have been edited since they were saved, as for `regard.load`.
        search: Settings of the search, by default those of the validation of each run.

    Returns:
        The comparison. `print` shows its tables, and `save` writes them, or a report, to a file.

    Raises:
        ConfigError: A metric, a test or a search setting is unknown; or there is nothing to compare.
        DataError: The runs have different test sets, or a system has a different number of outputs.
        ModelError: There is no model at a path, or it is damaged.
        ArgumentTypeError: An argument has the wrong type.

    >>> print(regard.compare("runs/dates", "runs/luong"))
    >>> regard.compare("runs/dates", "runs/luong", pairs="test.tsv", beam=5).save("report.html")
    >>> regard.compare(outputs={"ours": "ours.txt", "theirs": "theirs.txt"}, references=["A dog runs.", "A cat."])
    """
    import_plugins(imports)
    check_search(search)
    check_integer("batch_size", batch_size)
    check_seed("test_seed", test_seed)
    if resamples is not None:
        check_integer("resamples", resamples, minimum=10)
    check_flag("one_based", one_based)
    check_choice("test", test, TESTS)
    check_choice("correction", correction, CORRECTIONS)
    if baseline is not None and not isinstance(baseline, str):
        raise ArgumentTypeError(f"baseline must be the name of a system, not {baseline!r}.")
    if alignments is not None:
        alignments = check_path(alignments, "alignments")
    if outputs is not None:
        check_type("outputs", outputs, Mapping, "a dictionary with a name for each list of outputs")
    paths = [run.path if isinstance(run, Run) else run for run in runs]
    opened = open_runs(paths, accept_changes=check_flag("accept_changes", accept_changes))
    read = {name: _read_outputs(name, texts) for name, texts in (outputs or {}).items()}
    evaluation_set = _find_evaluation_set(opened, pairs, sources, references)
    options = ComparisonOptions(
        None if metrics is None else parse_metrics(check_metrics(metrics)),
        baseline,
        make_test(test, resamples, test_seed),
        correction,
        batch_size,
        check_device("auto" if device is None else device),
        dict(search),
        read_gold(alignments, evaluation_set, one_based=one_based),
    )
    return compare_systems(opened, read, evaluation_set, options)


class ComparisonOptions(NamedTuple):
    """How to compare; see `compare`."""

    metrics: list[Metric] | None
    baseline: str | None
    test: SignificanceTest
    correction: CorrectionName
    batch_size: int
    device: torch.device
    search: dict[str, Any]
    gold: Sequence[GoldLinks] | None
    """The gold alignments of the first references."""


def make_test(name: TestName, resamples: int | None, seed: int) -> SignificanceTest:
    """Return the test with this name. `resamples` is the number of its resamples or trials."""
    if resamples is None:
        return SignificanceTest(name, seed=seed)
    if name == "bootstrap":
        return SignificanceTest(name, resamples=resamples, seed=seed)
    return SignificanceTest(name, trials=resamples, seed=seed)


def read_texts(path: str | Path) -> list[str]:
    """Read the lines of a file."""
    texts = []
    for line in read_lines(path):
        if line.problem:
            raise DataError(f"{path}:{line.number}: {line.problem}. {line.remedy}".strip())
        texts.append(line.text)
    return texts


def _read_outputs(name: str, outputs: Outputs) -> list[str]:
    if isinstance(outputs, str | Path):
        return read_texts(outputs)
    return check_texts(f"outputs[{name!r}]", outputs)


def _find_evaluation_set(runs: Sequence[OpenedRun], pairs: Any, sources: Any, references: Any) -> EvaluationSet:
    """Return the sentences: from a file, from lists, or from the test set of the runs."""
    if pairs is not None and (sources is not None or references is not None):
        raise ConfigError("Pass pairs, or sources and references, not both.")
    if sources is not None and references is None:
        raise ConfigError("sources need references. Pass references=…, or pairs=….")
    if references is not None:
        return make_evaluation_set(sources, check_references(references))
    if isinstance(pairs, str | Path):
        return read_evaluation_set(runs, resolve(Files, {"path": str(pairs)}, {}))
    if pairs is not None:
        return EvaluationSet.from_pairs(Pairs.of(_check_pairs(pairs)))
    return read_evaluation_set(runs)


def make_evaluation_set(sources: Sequence[Any] | None, references: Sequence[Any]) -> EvaluationSet:
    """Return a set of references and their sources. Without sources, each line counts as a different source."""
    return EvaluationSet.from_lists(list(range(len(references)) if sources is None else sources), list(references))


def read_evaluation_set(
    runs: Sequence[OpenedRun], files: Files | None = None, images: str | None = None
) -> EvaluationSet:
    """Read the pairs of files, or the test set that the runs have in common."""
    if not runs:
        if files is None:
            raise ConfigError("Outputs need references. Give a file of pairs (--pairs), or references (--references).")
        return EvaluationSet.from_pairs(read_pairs(files))
    first, *others = runs
    test = read_test_set(first.folder, first.checkpoint, files, images)
    for other in others if files is None and images is None else ():
        _check_same_test_set(first, test, other, read_test_set(other.folder, other.checkpoint))
    return EvaluationSet.from_pairs(test)


def read_gold(path: str | Path | None, evaluation_set: EvaluationSet, *, one_based: bool) -> list[GoldLinks] | None:
    """Read the gold alignments of each source and its first reference; None without a file."""
    if path is None:
        return None
    if not all(isinstance(source, str) for source in evaluation_set.sources):
        raise ConfigError("Gold alignments need sources that are text. Give them with --pairs or --sources.")
    return read_gold_alignments(path, evaluation_set.first_pairs, one_based=one_based)


def _check_same_test_set(first: OpenedRun, expected: Pairs, other: OpenedRun, found: Pairs) -> None:
    # Sources may be arrays, which have no single truth value when they are compared.
    same_sources = len(found) == len(expected) and all(map(np.array_equal, found.sources, expected.sources))
    if not same_sources or found.targets != expected.targets:
        sizes = f"{quantity(len(expected), 'pair')} and {quantity(len(found), 'pair')}"
        raise DataError(
            f"{first.folder.path} and {other.folder.path} have different test sets ({sizes}). Compare them on the same "
            "pairs: give a file with --pairs (pairs=… in Python)."
        )


def compare_systems(
    runs: Sequence[OpenedRun],
    outputs: Mapping[str, Sequence[str]],
    evaluation_set: EvaluationSet,
    options: ComparisonOptions,
    report: Callable[[System], None] = lambda _: None,
) -> Comparison:
    """Decode the sources with each run, and compare all systems. One model at a time is in memory.

    `report` is called after each run.
    """
    names = [*(run.name for run in runs), *outputs]
    _check_systems(names, outputs, evaluation_set)
    baseline = _find_baseline(names, runs, options.baseline)
    metrics = _choose_metrics(options.metrics, runs, outputs)
    if runs and not all(isinstance(source, str) for source in evaluation_set.sources):
        _check_sources_given(runs, evaluation_set)
    for run in runs:
        training = run.folder.settings().training
        resolve(SearchSettings, training.validation_search.model_dump(), options.search)
    warn_if_tokenized(evaluation_set, metrics)
    systems = []
    for run in runs:
        system = _evaluate_run(run, evaluation_set, metrics, options)
        report(system)
        systems.append(system)
    systems += [_evaluate_outputs(name, list(texts), evaluation_set, metrics) for name, texts in outputs.items()]
    numbers = SystemComparison(
        systems, evaluation_set, metrics, systems[names.index(baseline)], options.test, options.correction
    )
    return Comparison(numbers, options.batch_size, str(options.device) if runs else None)


def _check_systems(names: Sequence[str], outputs: Mapping[str, Sequence[str]], evaluation_set: EvaluationSet) -> None:
    if len(names) < 2:
        raise ConfigError(
            f"There is {'one system' if names else 'nothing'} to compare. Give two or more runs, or files of "
            "outputs (--outputs). For a single run, use `regard evaluate`."
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"Two systems are called '{twice[0]}'. Give each system once, with a unique name.")
    count = len(evaluation_set.references)
    if not count:
        raise DataError("There are no sentences to compare the systems on. Give at least one pair.")
    for name, texts in outputs.items():
        if len(texts) != count:
            raise DataError(
                f"{name} has {quantity(len(texts), 'line')}, but there are {quantity(count, 'reference')}. Outputs "
                "need one line for each reference, in the same order."
            )


def _find_baseline(names: Sequence[str], runs: Sequence[OpenedRun], baseline: str | None) -> str:
    """Return the name of the baseline, which may be given as the path of a run."""
    if baseline is None:
        return names[0]
    by_path = {str(run.folder.path): run.name for run in runs}
    found = by_path.get(str(Path(baseline)), Path(baseline).name if baseline not in names else baseline)
    found = found if found in names else found.removesuffix(".txt")
    if found not in names:
        suggestion = did_you_mean(found, names)
        raise ConfigError(f"The baseline '{baseline}' is not one of the systems: {', '.join(names)}.{suggestion}")
    return found


def _choose_metrics(
    requested: list[Metric] | None, runs: Sequence[OpenedRun], outputs: Mapping[str, Sequence[str]]
) -> list[Metric]:
    if requested is None:
        defaults = runs[0].folder.settings().training.default_metrics if runs else parse_metrics(["bleu", "chrf"])
        return [metric for metric in defaults if metric.needs_predictions]
    for metric in requested:
        if outputs and not metric.needs_predictions:
            raise ConfigError(
                f"{metric.label} needs a model, and {next(iter(outputs))} is a list of outputs. Use a metric of the "
                "outputs, such as bleu, chrf or accuracy."
            )
    return requested


def _check_sources_given(runs: Sequence[OpenedRun], evaluation_set: EvaluationSet) -> None:
    if all(isinstance(source, int) for source in evaluation_set.sources):
        raise ConfigError(
            f"{runs[0].folder.path} needs sources to predict from. Give them with --sources, or use --pairs."
        )


def open_runs(paths: Sequence[str | Path], *, accept_changes: bool = False) -> list[OpenedRun]:
    """Open runs, and name them after their folders."""
    for path in paths:
        check_type("runs", path, str | Path, "paths of run folders")
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


def _evaluate_run(
    run: OpenedRun, evaluation_set: EvaluationSet, metrics: list[Metric], options: ComparisonOptions
) -> System:
    """Predict the sources, and measure speed, size and attention."""
    model = Model.from_checkpoint(run.folder, run.checkpoint, options.device)
    sources, references = evaluation_set.sources, evaluation_set.references
    batch_size, search, gold = options.batch_size, options.search, options.gold
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
        disk_bytes=_measure_model_files(run.folder, run.checkpoint),
        sentences_per_second=evaluation_set.distinct_sources / result.seconds if decoded else None,
        tokens_per_second=result.tokens_per_second if decoded else None,
        attention_entropy=entropy,
        alignment_error_rate=None if gold is None or entropy is None else _compute_aer(model, pairs, gold),
    )


def _evaluate_outputs(name: str, texts: list[str], evaluation_set: EvaluationSet, metrics: list[Metric]) -> System:
    """Compute the metrics of a list of outputs."""
    outputs = ModelOutputs(evaluation_set, texts, np.zeros((0, 2)))
    return System(name, texts, {metric: compute_statistics(metric, outputs) for metric in metrics})


def _compute_aer(model: Model, pairs: Pairs, gold: Sequence[GoldLinks]) -> float:
    """Return the alignment error rate of the attention that `regard align` uses by default."""
    alignments = build_aligner(model, {}).align(pairs)
    return score_alignments([alignment.links for alignment in alignments], gold).aer


def _measure_model_files(folder: RunFolder, checkpoint: Checkpoint) -> int:
    """Return the bytes that are needed to use a model: weights, settings and tokenizers, without the optimizer."""
    files = [folder.config, *folder.path.glob("tokenizer*"), *checkpoint.path.iterdir()]
    return sum(file.stat().st_size for file in files if file.is_file() and file.name != "optimizer.safetensors")


def _check_pairs(pairs: Any) -> list[Any]:
    """Return (source, reference) pairs as a list."""
    listed = check_list("pairs", pairs, "a path or a list of pairs (source, reference)")
    for index, pair in enumerate(listed):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"pairs[{index}] must be a pair (source, reference), not {pair!r}.")
        check_text(f"pairs[{index}][1]", pair[1])
    return listed
