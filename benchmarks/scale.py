"""What limits training, corpus jobs and sweeps on many GPUs and with many pairs?

    python benchmarks/scale.py measure --data corpora       # the constants of this machine, some minutes
    python benchmarks/scale.py predict                             # the tables of docs/scale.md
    python benchmarks/scale.py predict --set usd_per_gpu_hour=3.5  # with other constants
    python benchmarks/scale.py check --data corpora         # trains with 1, 2 and 4 processes

`scale_model.py` contains the equations, and the constants with their sources. `check` compares its prediction for
several processes on this machine with a measurement.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from regard.formatting import table
from regard.operating_system import usable_cores
from scale_model import (
    Constants,
    Model,
    Run,
    StepCost,
    best_save_interval_s,
    ddp_bytes,
    fsdp_bytes,
    lost_share,
    processes_step_s,
    relative_tokens,
    replicated_bytes,
    sharded_bytes,
)


def measure(data: Path, ranks: list[int]) -> None:
    """Print the constants of this machine."""
    import scale_measurements as measured

    rows: list[list[str]] = []

    def show(name: str, value: float, unit: str) -> None:
        rows.append([name, f"{value:,.3g}", unit])
        print(f"{name}: {value:,.4g} {unit}", flush=True)

    for count in ranks:
        times = measured.measure_all_reduce(count)
        for size, seconds in times.items():
            show(f"all-reduce of {size:,} bytes, {count} processes", 1e3 * seconds, "ms")
        link = measured.fit_link(times, count)
        show(f"hop, {count} processes", 1e6 * link.hop_s, "µs")
        show(f"rate of a link, {count} processes", link.bytes_per_s / 1e9, "GB/s")
    show("SHA-256", measured.measure_sha256() / 1e9, "GB/s")
    parameters, stored, seconds = measured.measure_checkpoint()
    show("checkpoint", stored / parameters, "bytes per parameter")
    show("checkpoint", stored / seconds / 1e6, "MB/s")
    preset, folder = "iwslt15-transformer", str(data / "iwslt15-en-vi")
    for name, value in measured.measure_corpus(preset, folder)._asdict().items():
        scale, unit = (1e6, "µs") if name.endswith("_s") else (1, "")
        show(f"{name} per pair", scale * value, unit)
    lengths_N2 = measured.load_encoded(preset, folder).lengths_N2
    show("driver of a corpus job, per line", 1e6 * measured.measure_driver(data / "iwslt15-en-vi/train.en.gz"), "µs")
    many_N2 = measured.resample(lengths_N2, 2_000_000)
    for count in (8, 64, 512):
        show(f"slowest of {count} ranks, batches of 64k tokens", measured.measure_dealt(many_N2, 65_536, count), "")
        show(f"slowest of {count} ranks, rows of 400k tokens", measured.measure_split(many_N2, 400_000, count), "")
    for name, value in measured.measure_rank(lengths_N2, 10_000_000)._asdict().items():
        scale, unit = (1e6, "µs") if name.endswith("_s") else (1, "")
        show(f"sampler: {name} per pair", scale * value, unit)
    print(table(["constant", "value", "unit"], rows))


def check(data: Path, ranks: list[int], steps: int) -> None:
    """Train a small Transformer with several processes, and compare the time of a step with the prediction. The
    prediction knows the time of a step with one process and two batch sizes, and the all-reduces of `measure`.
    """
    import scale_measurements as measured

    folder, cores = str(data / "multi30k/tok"), usable_cores()
    alone = {tokens: measured.train(folder, tokens, 1, steps) for tokens in (BATCH_TOKENS // 4, BATCH_TOKENS)}
    small, large = (alone[tokens][:2] for tokens in sorted(alone))
    cost, full = StepCost.fit(small, large), alone[BATCH_TOKENS]
    print(f"{cores} cores; {full.tokens:,.0f} target tokens per step; {full.weight_bytes / 1e6:.1f} MB of weights; "
          f"one process: {1e3 * cost.fixed_s:.0f} ms + {1e6 / cost.tokens_per_s:.1f} µs per token")  # fmt: skip
    rows = [["1", "–", f"{1e3 * full.seconds:.0f} ms", "–", "1.00"]]
    for count in ranks:
        link = measured.fit_link(measured.measure_all_reduce(count), count)
        predicted = processes_step_s(cost, full.tokens, count, cores, full.weight_bytes, link)
        seconds = measured.train(folder, BATCH_TOKENS, count, steps).seconds
        times = [f"{1e3 * value:.0f} ms" for value in (predicted, seconds)]
        rows.append([f"{count}", *times, f"{predicted / seconds - 1:+.0%}", f"{full.seconds / seconds:.2f}"])
        print(rows[-1], flush=True)
    print(format_table(["processes", "predicted", "measured", "error", "speed-up"], rows))


BATCH_TOKENS = 2_048
"""The batch of `check`, with padding."""

GPUS = (1, 8, 64, 512)
PAIRS = (10_000_000, 1_000_000_000, 100_000_000_000)
CORPORA = dict(zip(PAIRS, ("10 million", "1 billion", "100 billion"), strict=True))
MODELS = {"transformer-base": 49.3e6, "transformer-big": 186.6e6, "8 billion parameters": 8e9}
LAYERS = 12
"""The layers of these Transformers, whose weights are gathered one after the other."""

RUNS = 60
"""The number of runs of a sweep: 20 trials with three seeds each."""


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_number(value: float, digits: int = 2) -> str:
    """Return a number with some significant digits, without an exponent."""
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, decimals)}f}"


def format_duration(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * unit:
            return f"{format_number(seconds / unit)} {name}"
    return f"{format_number(1e3 * seconds)} ms"


def format_bytes(size: float) -> str:
    for power, name in ((15, "PB"), (12, "TB"), (9, "GB"), (6, "MB")):
        if size >= 10**power:
            return f"{format_number(size / 10**power)} {name}"
    return f"{format_number(size / 1e3)} kB"


def tabulate_steps(model: Model, gpu_tokens: Callable[[int], float]) -> str:
    headers = ["GPUs", "tokens per GPU", "computing", "waiting", "all-reduce", "flags", "step", "tokens/s",
               "efficiency", "sent per GPU"]  # fmt: skip
    rows = []
    for gpus in GPUS:
        batch_tokens = gpus * gpu_tokens(gpus)
        step = model.step(batch_tokens, gpus)
        times = (step.compute_s, step.waiting_s, step.reduce_s, 2 * step.flags_s, step.seconds)
        rows.append([
            f"{gpus}", f"{step.gpu_tokens:,.0f}", *(f"{format_number(1e3 * value)} ms" for value in times),
            f"{format_number(batch_tokens / step.seconds / 1e6)} M", f"{model.efficiency(batch_tokens, gpus):.0%}",
            format_bytes(ddp_bytes(4 * model.constants.parameters, gpus)),
        ])  # fmt: skip
    return format_table(headers, rows)


def tabulate_batches(model: Model) -> str:
    """The batch that reaches a given loss first, and what it costs."""
    headers = ["GPUs", "best batch", "tokens needed", "efficiency", "time to the same loss", "money"]
    alone = model.relative_s(model.best_batch_tokens(1), 1)
    rows = []
    for gpus in GPUS:
        tokens = model.best_batch_tokens(gpus)
        speedup = alone / model.relative_s(tokens, gpus)
        needed = relative_tokens(tokens, model.constants.critical_batch_tokens)
        rows.append([
            f"{gpus}", f"{tokens / 1e3:,.0f}k", f"{needed:.2f} ×", f"{model.efficiency(tokens, gpus):.0%}",
            f"1 / {format_number(speedup)}", f"{format_number(gpus / speedup)} ×",
        ])  # fmt: skip
    return format_table(headers, rows)


def tabulate_corpora(model: Model) -> str:
    """What a corpus needs before the first step, whatever the number of GPUs is."""
    c = model.constants
    headers = ["pairs", "text", "download", "tokenizing", "cache", "hashing at each start", "batches of an epoch",
               "memory per rank", "per node"]  # fmt: skip
    rows = [
        [
            name, format_bytes(pairs * c.text_bytes_per_pair),
            format_duration(pairs * c.text_bytes_per_pair / c.object_store_bytes_per_s),
            format_duration(model.tokenizing_s(pairs)), format_bytes(pairs * c.cache_bytes_per_pair),
            format_duration(model.hashing_s(pairs)), format_duration(pairs * c.epoch_s_per_pair),
            format_bytes(pairs * c.rank_bytes_per_pair),
            format_bytes(model.node_bytes(pairs, int(c.gpus_per_node))),
        ]
        for pairs, name in CORPORA.items()
    ]  # fmt: skip
    return format_table(headers, rows)


def tabulate_runs(model: Model) -> str:
    """One epoch, and the share of each part of its time."""
    names = [name.removesuffix("_s") for name in Run._fields]
    rows = []
    for (pairs, name), gpus in product(CORPORA.items(), GPUS):
        run = model.run(pairs, model.constants.critical_batch_tokens, gpus)
        shares = [f"{seconds / run.seconds:.0%}" for seconds in run]
        money = f"${format_number(model.usd(run.seconds, gpus))}"
        fits = model.node_bytes(pairs, gpus) <= model.constants.node_memory_bytes
        limit = run.limit if fits else "memory"
        rows.append([name, f"{gpus}", format_duration(run.seconds), money, *shares, limit])
    return format_table(["pairs", "GPUs", "time", "money", *names, "limit"], rows)


def tabulate_failures(model: Model) -> str:
    headers = ["GPUs", "a failure every", "best interval of checkpoints", "time lost", "time lost with 1,000 steps"]
    c, rows = model.constants, []
    for gpus in GPUS:
        between_s = model.failure_interval_s(gpus)
        best_s = best_save_interval_s(model.save_s, between_s)
        default_s = c.steps_between_checkpoints * model.step(c.critical_batch_tokens, gpus).seconds
        lost = [lost_share(model.save_s, interval, between_s, c.restart_s) for interval in (best_s, default_s)]
        shares = [f"{share:.2%}" for share in lost]
        rows.append([f"{gpus}", format_duration(between_s), format_duration(best_s), *shares])
    return format_table(headers, rows)


def tabulate_models(model: Model) -> str:
    """Memory and communication with replicated and with sharded weights."""
    headers = ["model", "GPUs", "replicated", "sent", "sharded", "on rank 0", "sent", "checkpoint", "saving"]
    c, rows = model.constants, []
    for (name, parameters), gpus in product(MODELS.items(), (8, 64)):
        stored = c.checkpoint_bytes_per_parameter * parameters
        sharded = sharded_bytes(parameters, gpus, LAYERS)
        sizes = (
            replicated_bytes(parameters), ddp_bytes(4 * parameters, gpus),
            sharded, sharded + 4 * parameters, fsdp_bytes(4 * parameters, gpus), stored,
        )  # fmt: skip
        saving = format_duration(stored / c.checkpoint_bytes_per_s)
        rows.append([name, f"{gpus}", *map(format_bytes, sizes), saving])
    return format_table(headers, rows)


def tabulate_jobs(model: Model) -> str:
    """Predicting a corpus, and sweeps: jobs that do not communicate."""
    headers = ["GPUs", "lines/s", "GPUs in use", *(f"{name} lines" for name in CORPORA.values()),
               f"sweep of {RUNS} runs: rounds", "GPUs in use"]  # fmt: skip
    rows = []
    for gpus in GPUS:
        rate, rounds = model.lines_per_s(gpus), math.ceil(RUNS / gpus)
        used = rate / (gpus * model.constants.predicted_lines_per_s)
        costs = [f"{format_duration(pairs / rate)}, ${format_number(model.usd(pairs / rate, gpus))}" for pairs in PAIRS]
        rows.append(
            [f"{gpus}", format_number(rate), f"{used:.0%}", *costs, f"{rounds}", f"{RUNS / (rounds * gpus):.0%}"]
        )
    return format_table(headers, rows)


def tabulate_constants(model: Model) -> str:
    values, sources = asdict(model.constants), Constants.sources()
    return format_table(["constant", "value", "source"], [
        [f"`{name}`", f"{value:.6g}", sources[name]] for name, value in values.items()
    ])  # fmt: skip


def predict(model: Model) -> dict[str, str]:
    """Return the tables of docs/scale.md by title."""
    c = model.constants
    return {
        "A step with a batch of 400k tokens": tabulate_steps(model, lambda gpus: c.critical_batch_tokens / gpus),
        "A step with full batches on each GPU": tabulate_steps(model, lambda _: model.full_batch_tokens),
        "The best batch": tabulate_batches(model),
        "Before the first step": tabulate_corpora(model),
        "One epoch": tabulate_runs(model),
        "Failures": tabulate_failures(model),
        "Larger models": tabulate_models(model),
        "Corpus jobs and sweeps": tabulate_jobs(model),
        "Constants": tabulate_constants(model),
    }


def plot(model: Model, path: Path) -> None:
    """Draw the efficiency of training by the number of GPUs, and the time of each stage by the number of pairs."""
    from matplotlib.figure import Figure

    c = model.constants
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    gpus = [2**power for power in range(10)]
    without_flags = Model(replace(c, gloo_hop_s=0.0))
    batches: dict[str, Callable[[int], float]] = {
        "full batches on each GPU": lambda count: count * model.full_batch_tokens,
        "400k tokens in all": lambda _: c.critical_batch_tokens,
    }
    for label, batch_tokens in batches.items():
        shown = [
            [100 * each.efficiency(batch_tokens(count), count) for count in gpus] for each in (model, without_flags)
        ]
        (line,) = left.plot(gpus, shown[0], "o-", markersize=4, label=label)
        left.plot(gpus, shown[1], ":", color=line.get_color())
    left.plot([], [], ":", color="gray", label="without the exchange of flags")
    left.set_xscale("log", base=2)
    left.set_xticks(gpus, [str(count) for count in gpus])
    left.set_ylim(0, 105)
    left.set_xlabel("GPUs")
    left.set_ylabel("speed per GPU, % of one GPU")
    runs = [model.run(PAIRS[1], c.critical_batch_tokens, count) for count in GPUS]
    bottoms = [0.0] * len(runs)
    for name in ("compute_s", "tokenizing_s", "start_s", "communication_s", "saving_s"):
        heights = [getattr(run, name) / 3600 for run in runs]
        right.bar([str(count) for count in GPUS], heights, 0.6, bottoms, label=name.removesuffix("_s"))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    right.set_xlabel("GPUs")
    right.set_ylabel("hours for an epoch of 1 billion pairs")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "check"):
        command = commands.add_parser(name)
        command.add_argument("--data", type=Path, required=True, help="folder with the corpora")
        command.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    command.add_argument("--steps", type=int, default=30)
    command = commands.add_parser("predict")
    command.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="other values of constants")
    command.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.command == "measure":
        measure(args.data, args.ranks)
    elif args.command == "check":
        check(args.data, args.ranks, args.steps)
    elif args.command == "predict":
        changes = {name: float(value) for name, _, value in (text.partition("=") for text in args.set)}
        model = Model(replace(Constants(), **changes))
        print("\n\n".join(f"**{title}**\n\n{rows}" for title, rows in predict(model).items()))
        if args.figure:
            plot(model, args.figure)


if __name__ == "__main__":
    main()
