"""Shared code of the classic experiments `bahdanau2015.py`, `cheng2016.py`, `luong2015.py` and `vaswani2017.py`, and of
the experiments on local attention, `local_attention.py` and `long_sources.py`; not run by itself.

An experiment has systems (settings), seeds and contrasts. A contrast names two systems, a metric and the direction that
a paper reports. The contrasts are fixed before training. All systems are trained on Multi30k English → German with the
same data, tokenizer and number of steps, and the checkpoint is chosen on the dev set. The test set (test_2016_flickr)
is decoded once for each run. An experiment that chooses a default decodes the dev set instead.

A difference is tested in two ways:

- over sentences: paired bootstrap on the test set, with the outputs of all seeds for each resampled sentence;
- over seeds: paired t-test on the values of each seed.

The p-value of a contrast is the larger of the two, so a significant difference exceeds what the choice of sentences and
what the choice of seeds explain. With three seeds, the t-test has two degrees of freedom, which is conservative. The
p-values are corrected for the number of contrasts of the experiment (Holm). A contrast

- holds, if the difference is significant and has the expected direction;
- does not hold, if it is significant and has the other direction;
- is not significant otherwise.

If the paper reports equal systems, the contrast holds if both 95 % confidence intervals are within the margin that the
contrast names, and does not hold if the difference is significant.

Several runs share a GPU better if NVIDIA's Multi-Process Service is running (`nvidia-cuda-mps-control -d`).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

import regard
from alignment import SETTINGS, data_settings, read_gold
from regard.api.model import build_aligner
from regard.data.corpora import Pairs, load_corpus
from regard.data.pharaoh import GoldLinks
from regard.decoding.settings import SearchOptions
from regard.evaluation.alignment import AlignmentScore, flip
from regard.evaluation.breakdown import find_lines, group_by_length
from regard.evaluation.metrics import EvaluationSet, MetricStatistics, ModelOutputs, compute_statistics
from regard.evaluation.settings import parse_metric
from regard.evaluation.significance import Difference, SeedDifference, compare_over_seeds, compare_pair, correct
from regard.evaluation.validation import compute_losses
from regard.formatting import table
from regard.overrides import parse_overrides

MetricName = Literal["BLEU", "BLEU, > 25 words", "perplexity", "AER", "BLEU, long − short"]
Direction = Literal["higher", "lower", "equal"]
Split = Literal["dev", "test"]
Verdict = Literal["holds", "does not hold", "not significant"]

SEARCH: SearchOptions = {"beam": 5, "length_penalty": 1.0}
SHORT, LONG = 10, 15
"""Sources with at most SHORT words are short, and sources with at least LONG words are long."""

SIGNIFICANT = 0.05
_DONE = "result.json"


@dataclass(frozen=True)
class Contrast:
    """A difference that a paper reports: how `system` compares with `baseline` in a metric."""

    baseline: str
    system: str
    expected: Direction
    source: str
    metric: MetricName = "BLEU"
    margin: float = 0.0
    """For `equal`: the largest difference that is of no interest."""


def multi30k(folder: Path) -> dict[str, Any]:
    """Return the settings of Multi30k English → German in the folder of all corpora."""
    return data_settings(folder / "multi30k/tok", "en", "de")


@dataclass(frozen=True)
class Experiment:
    """Systems, as overrides of `alignment.SETTINGS`, and the contrasts between them."""

    name: str
    systems: Mapping[str, Mapping[str, Any]]
    contrasts: Sequence[Contrast]
    aligns: bool = False
    """Whether to compute the alignment error rate on `gold-alignments`."""
    data: Callable[[Path], dict[str, Any]] = multi30k
    """Returns the settings of the corpus in the folder of all corpora."""
    split: Split = "test"
    """The set that is decoded; the dev set if the experiment chooses a default."""


@dataclass(frozen=True)
class Job:
    """A system with a seed, and the folder of its run."""

    system: str
    seed: int
    settings: dict[str, Any]
    overrides: dict[str, Any]
    folder: str
    gold: str | None
    split: Split

    @property
    def result(self) -> Path:
        return Path(self.folder) / _DONE


def list_jobs(experiment: Experiment, args: argparse.Namespace) -> list[Job]:
    """Return the runs of an experiment, all systems of the first seed first."""
    settings = {**SETTINGS, "data": experiment.data(args.data)}
    gold = str(args.data / "gold-alignments") if experiment.aligns else None
    return [
        Job(
            system,
            seed,
            settings,
            {**experiment.systems[system], **parse_overrides(args.set), "seed": seed},
            str(args.out / f"{system.replace(', ', '-').replace(' ', '-')}-seed-{seed}"),
            gold,
            experiment.split,
        )
        for seed in range(args.seeds)
        for system in args.only or experiment.systems
    ]


def train_and_score(job: Job) -> None:
    """Train a run, or resume it. Then decode the dev or test set, and write the result."""
    seconds = train(job)
    model = regard.load(job.folder)
    corpus = load_corpus(model.settings.data)
    pairs = corpus.dev if job.split == "dev" else corpus.test
    assert pairs is not None
    decoded = Pairs(*map(list, zip(*pairs, strict=True)))
    predictions = [prediction.text for prediction in model.predict(decoded.sources, attention=False, **SEARCH)]
    losses_N2 = compute_losses(model.predictor, decoded, batch_size=64)
    result: dict[str, Any] = {
        "system": job.system,
        "seed": job.seed,
        "overrides": job.overrides,
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "sources": list(decoded.sources),
        "references": list(decoded.targets),
        "predictions": predictions,
        "losses": losses_N2.round(3).tolist(),
    }
    if job.gold is not None and model.settings.model.attention_layers:
        result["alignment"] = [list(score) for score in align_gold(model, Path(job.gold))]
    temporary = job.result.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, ensure_ascii=False), "utf-8")
    temporary.replace(job.result)


def train(job: Job) -> float:
    """Train a run, or resume it. Return the total time of all calls, including those that were stopped."""
    total = Path(f"{job.folder}.seconds")
    before, started = float(total.read_text()) if total.exists() else 0.0, time.monotonic()
    try:
        regard.train(job.settings, job.overrides, out=job.folder, quiet=True)
    finally:
        total.write_text(f"{before + time.monotonic() - started:.1f}")
    return float(total.read_text())


def align_gold(model: regard.Model, folder: Path) -> list[AlignmentScore]:
    """Align the hand-aligned sentences from English to German, and count the correct links of each."""
    pairs, gold = read_gold(folder)
    reversed_pairs = Pairs([english for _, english in pairs], [german for german, _ in pairs])
    alignments = build_aligner(model, {}).align(reversed_pairs)
    return [
        AlignmentScore.of(alignment.links, GoldLinks(flip(links.sure), flip(links.possible)))
        for alignment, links in zip(alignments, gold, strict=True)
    ]


def run_jobs(jobs: Sequence[Job], script: str, parallel: int, minutes: float | None) -> None:
    """Run jobs in processes of their own. On a deadline or a signal, stop the processes; they save their states."""
    waiting = [job for job in jobs if not job.result.exists()]
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    active: dict[subprocess.Popen[bytes], Job] = {}
    failed = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        while (waiting or active) and time.monotonic() < deadline:
            while waiting and len(active) < parallel:
                job = waiting.pop(0)
                active[_start(job, script)] = job
                print(f"started {job.folder}", file=sys.stderr, flush=True)
            for process in [process for process in active if process.poll() is not None]:
                job = active.pop(process)
                failed += [job.folder] if process.returncode else []
                outcome = f"failed, see {job.folder}.log" if process.returncode else "finished"
                print(f"{job.folder}: {outcome} ({len(waiting)} waiting)", file=sys.stderr, flush=True)
            time.sleep(0.5)
    finally:
        for process in active:
            process.terminate()
        for process in active:
            process.wait()
    if failed:
        raise SystemExit(f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}")


def _start(job: Job, script: str) -> subprocess.Popen[bytes]:
    Path(job.folder).parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{job.folder}.log").open("ab") as log:
        command = [sys.executable, script, "--worker", json.dumps(vars(job))]
        # In a group of its own: Ctrl-C stops this process, which then stops its workers.
        return subprocess.Popen(command, stdout=log, stderr=log, process_group=0, env={**os.environ})


@dataclass
class Results:
    """The outputs of all runs on the same pairs."""

    sources: list[str]
    references: list[str]
    runs: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """By system and seed: predictions, losses, the counts of an alignment, seconds and parameters."""

    @classmethod
    def collect(cls, jobs: Sequence[Job]) -> "Results | None":
        """Read the results that exist; None if there are none."""
        documents = [json.loads(job.result.read_text("utf-8")) for job in jobs if job.result.exists()]
        if not documents:
            return None
        results = cls(documents[0]["sources"], documents[0]["references"])
        for document in documents:
            kept = {key: value for key, value in document.items() if key not in {"sources", "references"}}
            results.runs.setdefault(document["system"], {})[document["seed"]] = kept
        return results

    @classmethod
    def read(cls, path: Path) -> "Results":
        document = json.loads(path.read_text("utf-8"))
        runs = {
            system: {int(seed): run for seed, run in by_seed.items()} for system, by_seed in document["runs"].items()
        }
        return cls(document["sources"], document["references"], runs)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self), ensure_ascii=False), "utf-8")

    @property
    def evaluation_set(self) -> EvaluationSet:
        return EvaluationSet.from_lists(self.sources, self.references)

    def statistics(self, system: str, metric: MetricName) -> dict[int, MetricStatistics]:
        """Return the statistics of each sentence, by seed; empty if the system has no values of this metric."""
        build = _STATISTICS[metric]
        found = {seed: build(self, run) for seed, run in sorted(self.runs.get(system, {}).items())}
        return {seed: values for seed, values in found.items() if values is not None}


def _build_bleu(results: Results, run: Mapping[str, Any]) -> MetricStatistics:
    outputs = ModelOutputs(results.evaluation_set, run["predictions"], np.zeros((0, 2)))
    return compute_statistics(parse_metric("bleu:tokenize=none"), outputs)


def _build_perplexity(results: Results, run: Mapping[str, Any]) -> MetricStatistics:
    outputs = ModelOutputs(results.evaluation_set, [], np.asarray(run["losses"], np.float64))
    return compute_statistics(parse_metric("perplexity"), outputs)


def _build_aer(_: Results, run: Mapping[str, Any]) -> MetricStatistics | None:
    if "alignment" not in run:
        return None
    counts_N4 = np.asarray(run["alignment"], np.float64)
    return MetricStatistics(counts_N4, lambda totals: 100 * AlignmentScore(*map(round, totals)).aer, "AER in percent")


def _build_length_gap(results: Results, run: Mapping[str, Any]) -> MetricStatistics:
    """Return BLEU on long sources minus BLEU on short sources, as one statistic of all sentences."""
    bleu = _build_bleu(results, run)
    lengths_N1, width = _count_source_words(results, bleu), bleu.statistics_NK.shape[1]
    long_NK, short_NK = bleu.statistics_NK * (lengths_N1 >= LONG), bleu.statistics_NK * (lengths_N1 <= SHORT)

    def compute_gap(totals: list[float]) -> float:
        return bleu.compute_value(totals[:width]) - bleu.compute_value(totals[width:])

    return MetricStatistics(np.concatenate([long_NK, short_NK], axis=1), compute_gap, bleu.signature)


def _build_bleu_of_long_sources(results: Results, run: Mapping[str, Any]) -> MetricStatistics:
    bleu = _build_bleu(results, run)
    long_NK = bleu.statistics_NK * (_count_source_words(results, bleu) > 25)
    return MetricStatistics(long_NK, bleu.compute_value, bleu.signature)


def _count_source_words(results: Results, values: MetricStatistics) -> NDArray[np.int64]:
    """Return the length of the source of each row of the statistics, N × 1."""
    lines = find_lines(values, results.evaluation_set)
    return np.array([[len(results.sources[line].split())] for line in lines])


_STATISTICS: dict[MetricName, Callable[[Results, Mapping[str, Any]], MetricStatistics | None]] = {
    "BLEU": _build_bleu,
    "BLEU, > 25 words": _build_bleu_of_long_sources,
    "perplexity": _build_perplexity,
    "AER": _build_aer,
    "BLEU, long − short": _build_length_gap,
}


@dataclass(frozen=True)
class Outcome:
    """The difference of a contrast, system minus baseline, over sentences and over seeds."""

    contrast: Contrast
    sentences: Difference
    seeds: SeedDifference | None
    """None for a single seed."""
    corrected_p_value: float = float("nan")

    @property
    def p_value(self) -> float:
        return max(self.sentences.p_value, self.seeds.p_value if self.seeds else 1.0)

    @property
    def verdict(self) -> Verdict:
        significant = self.corrected_p_value < SIGNIFICANT
        if self.contrast.expected == "equal":
            intervals = [self.sentences.interval, *([self.seeds.interval] if self.seeds else [])]
            within = all(-self.contrast.margin < low and high < self.contrast.margin for low, high in intervals)
            return "does not hold" if significant else "holds" if within and self.seeds else "not significant"
        if not significant:
            return "not significant"
        return "holds" if (self.sentences.value > 0) == (self.contrast.expected == "higher") else "does not hold"


def compare_systems(experiment: Experiment, results: Results) -> list[Outcome]:
    """Test the contrasts whose systems have results, on the seeds that both have."""
    outcomes = []
    for contrast in experiment.contrasts:
        baseline = results.statistics(contrast.baseline, contrast.metric)
        system = results.statistics(contrast.system, contrast.metric)
        seeds = sorted(baseline.keys() & system.keys())
        if not seeds:
            continue
        first, second = (pool([values[seed] for seed in seeds]) for values in (baseline, system))
        over_sentences = compare_pair(first, second)
        over_seeds = compare_over_seeds(
            *({seed: values[seed].value for seed in seeds} for values in (baseline, system))
        )
        outcomes.append(Outcome(contrast, over_sentences, over_seeds))
    corrected = correct([outcome.p_value for outcome in outcomes], "holm")
    return [
        Outcome(outcome.contrast, outcome.sentences, outcome.seeds, p_value)
        for outcome, p_value in zip(outcomes, corrected, strict=True)
    ]


def pool(values: Sequence[MetricStatistics]) -> MetricStatistics:
    """Add the statistics of several seeds, sentence by sentence."""
    first = values[0]
    return MetricStatistics(np.sum([each.statistics_NK for each in values], axis=0), first.compute_value, "")


def describe_systems(experiment: Experiment, results: Results) -> str:
    """Return a table of all systems: the mean and standard deviation of each metric over seeds."""
    metrics: list[MetricName] = list(dict.fromkeys(["BLEU", *(contrast.metric for contrast in experiment.contrasts)]))
    rows = []
    for system in experiment.systems:
        runs = results.runs.get(system)
        if not runs:
            continue
        cells = []
        for metric in metrics:
            values = [each.value for each in results.statistics(system, metric).values()]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.2f}{spread}" if values else "–")
        seconds = statistics.fmean(run["seconds"] for run in runs.values())
        parameters = next(iter(runs.values()))["parameters"]
        rows.append([system, str(len(runs)), *cells, f"{parameters:,}", f"{seconds:.0f}"])
    return table(["system", "seeds", *metrics, "parameters", "seconds"], rows)


def describe_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return a table of the contrasts with their verdicts."""
    rows = []
    for outcome in outcomes:
        contrast, seeds = outcome.contrast, outcome.seeds
        rows.append(
            [
                f"{contrast.system} − {contrast.baseline}",
                contrast.metric,
                f"equal ± {contrast.margin:g}" if contrast.expected == "equal" else contrast.expected,
                f"{outcome.sentences.value:+.2f}",
                _format_interval(outcome.sentences.interval),
                _format_interval(seeds.interval) if seeds else "–",
                f"{outcome.corrected_p_value:.4f}",
                outcome.verdict,
                contrast.source,
            ]
        )
    header = ["contrast", "metric", "expected", "difference", "95 %, sentences", "95 %, seeds", "p (Holm)", "verdict"]
    return table([*header, "source"], rows)


def _format_interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def plot(experiment: Experiment, results: Results, outcomes: Sequence[Outcome], path: Path) -> None:
    """Plot BLEU by the length of the source for each system, and the differences of the contrasts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 0.5 * len(outcomes) + 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, system in enumerate(experiment.systems):
        if points := list(_compute_by_length(results, system)):
            labels, means, lows, highs = zip(*points, strict=True)
            style = "-" if number < 10 else "--"  # matplotlib has ten colors
            (line,) = left.plot(labels, means, style, marker="o", markersize=4, label=system)
            left.fill_between(labels, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    left.set_xlabel("source length in words")
    left.set_ylabel("BLEU (mean, and range over seeds)")
    left.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.18), ncols=2, frameon=False)
    colors: dict[Verdict, str] = {"holds": "#009e73", "does not hold": "#d55e00", "not significant": "#777777"}
    for row, outcome in enumerate(reversed(outcomes)):
        color = colors[outcome.verdict]
        right.plot(outcome.sentences.interval, [row, row], color=color, linewidth=4, solid_capstyle="butt", alpha=0.5)
        if outcome.seeds:
            right.plot(outcome.seeds.interval, [row, row], color=color, linewidth=1)
        right.plot(outcome.sentences.value, row, "o", color=color)
    right.axvline(0, color="black", linewidth=0.8)
    names = [
        f"{outcome.contrast.system} − {outcome.contrast.baseline}\n"
        f"{outcome.contrast.metric}, expected {outcome.contrast.expected}: {outcome.verdict}"
        for outcome in reversed(outcomes)
    ]
    right.set_yticks(range(len(outcomes)), names, fontsize=8)
    right.set_ylim(-0.6, len(outcomes) - 0.4)
    right.set_xlabel("difference\n(thick: 95 % over sentences, thin: 95 % over seeds)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _compute_by_length(results: Results, system: str) -> Iterator[tuple[str, float, float, float]]:
    """Yield the label of each group of lengths, and the mean, lowest and highest BLEU over seeds."""
    by_seed = list(results.statistics(system, "BLEU").values())
    for label, lines in list_length_groups(results.evaluation_set):
        rows_N = np.isin(find_lines(by_seed[0], results.evaluation_set), lines) if by_seed else np.zeros(0, bool)
        values = [each.compute_value(each.statistics_NK[rows_N].sum(0).tolist()) for each in by_seed]
        if rows_N.any():
            yield label, statistics.fmean(values), min(values), max(values)


def list_length_groups(evaluation_set: EvaluationSet) -> list[tuple[str, list[int]]]:
    """Return the labels and lines of the groups of source lengths that `regard evaluate --breakdown length` uses."""
    return [(bucket.label, lines) for bucket, lines in group_by_length(evaluation_set).lines.items() if lines]


def main(experiment: Experiment, script: str, description: str | None) -> None:
    """Run an experiment from the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with multi30k and gold-alignments")
    parser.add_argument("--only", nargs="+", choices=list(experiment.systems), help="systems to train; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="train seeds 0 to N − 1")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="train N runs at a time")
    parser.add_argument("--minutes", type=float, help="stop after this time; the same command continues")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--out", type=Path, default=Path("runs") / experiment.name)
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: OUT/results.json")
    parser.add_argument("--report", type=Path, metavar="FILE", help="report the results in FILE, without training")
    parser.add_argument("--figure", type=Path, default=Path(f"{experiment.name}.png"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        train_and_score(Job(**json.loads(args.worker)))
        return
    if args.report:
        report(experiment, Results.read(args.report), args.figure)
        return
    if args.data is None:
        parser.error("--data is required for training")
    jobs = list_jobs(experiment, args)
    try:
        run_jobs(jobs, script, args.parallel, args.minutes)
    finally:
        if results := Results.collect(jobs):
            results.write(args.results or args.out / "results.json")
    print(f"{sum(job.result.exists() for job in jobs)} of {len(jobs)} runs are finished.", file=sys.stderr)
    if results:
        report(experiment, results, args.figure)


def report(experiment: Experiment, results: Results, figure: Path) -> None:
    """Print the tables, and draw the figure."""
    outcomes = compare_systems(experiment, results)
    print(describe_systems(experiment, results))
    if outcomes:
        print(f"\n{describe_outcomes(outcomes)}")
        plot(experiment, results, outcomes, figure)
