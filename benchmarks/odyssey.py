"""Does "A Search Space Odyssey" hold on the Bach chorales? The nine LSTM variants of the paper predict the notes of the
next step, each with its own sigmoid. Every cell is trained with the same random samples of hyperparameters.

    python benchmarks/odyssey.py --data jsb-chorales-quarter.json.gz --device cuda
    python benchmarks/odyssey.py --data jsb-chorales-quarter.json.gz --trials 8 --epochs 60 --max-hidden 128   # 2 cores
    python benchmarks/odyssey.py --report results.json

All trials of a cell are trained in one batched scan; a narrower trial is a wide cell whose last units are kept at zero.
The checkpoint of a trial is the epoch with the best validation loss; the test set is then scored once. The loss is in
nats per step: summed over the 88 keys, averaged over all steps of all pieces except the first step of each.
"""

import argparse
import gzip
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import regard
from regard.formatting import table
from regard.recurrent.cells import LSTMCell
from regard.recurrent.fast import kernels
from regard.recurrent.fast.analytic_lstm import LSTMWeights
from regard.recurrent.settings import VARIANTS

CELLS = ["vanilla", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR"]
KEYS, LOWEST = 88, 21
BEST = 0.2  # compare this share of the trials of a cell, those that are best on validation

Hyperparameters = dict[str, float]
Weights = dict[str, Tensor]
"""The weights of all trials, stacked on axis 0."""


class Pieces(NamedTuple):
    """Piano rolls of shape (B, T, 88), and the number of steps to predict in each piece."""

    rolls: Tensor
    lengths: Tensor

    @property
    def x(self) -> Tensor:
        return self.rolls[:, :-1]

    @property
    def y(self) -> Tensor:
        return self.rolls[:, 1:]

    @property
    def valid(self) -> Tensor:
        return torch.arange(self.rolls.shape[1] - 1, device=self.rolls.device) < self.lengths.unsqueeze(1)

    def select(self, rows: list[int]) -> "Pieces":
        """Return some of the pieces, without unnecessary padding."""
        lengths = self.lengths[rows]
        return Pieces(self.rolls[rows, : int(lengths.max()) + 1], lengths)

    def transpose(self, semitones: Tensor) -> "Pieces":
        """Transpose each piece by a number of semitones; chorales stay within the keyboard."""
        index = (torch.arange(KEYS, device=self.rolls.device) - semitones.unsqueeze(1)) % KEYS
        return self._replace(rolls=self.rolls.gather(2, index.unsqueeze(1).expand_as(self.rolls)))


def read_pieces(path: Path, device: str) -> dict[str, Pieces]:
    """Read the pieces of each split."""
    with gzip.open(path, "rt") as file:
        splits: dict[str, list[list[list[int]]]] = json.load(file)
    result = {}
    for split, pieces in splits.items():
        rolls = torch.zeros(len(pieces), max(map(len, pieces)), KEYS)
        for row, piece in enumerate(pieces):
            for step, pitches in enumerate(piece):
                rolls[row, step, [pitch - LOWEST for pitch in pitches]] = 1
        result[split] = Pieces(rolls.to(device), torch.tensor([len(piece) - 1 for piece in pieces]).to(device))
    return result


def sample_hyperparameters(rng: random.Random, max_hidden: int) -> Hyperparameters:
    """Sample the hyperparameters of one trial."""
    return {
        "hidden": round(math.exp(rng.uniform(math.log(max_hidden / 4), math.log(max_hidden)))),
        "learning_rate": math.exp(rng.uniform(math.log(2e-3), math.log(2e-2))),
        "dropout_input": rng.uniform(0.0, 0.3),
        "dropout_state": rng.uniform(0.0, 0.5),
        "dropout_output": rng.uniform(0.0, 0.6),
    }


class Population:
    """The trials of one cell: a batch of LSTMs, each with a linear output layer."""

    def __init__(self, variant: str, samples: list[Hyperparameters], max_hidden: int, device: str, seed: int) -> None:
        self.variant, self.samples, self.max_hidden, self.device = VARIANTS[variant], samples, max_hidden, device
        initial, masks = [], []
        for index, sample in enumerate(samples):
            torch.manual_seed(seed + index)
            hidden = int(sample["hidden"])
            cell, output = LSTMCell(KEYS, hidden, self.variant), nn.Linear(hidden, KEYS)
            initial.append(self._pad_weights(cell, output))
            for parameter in (*cell.parameters(), *output.parameters()):
                nn.init.ones_(parameter)
            masks.append(self._pad_weights(cell, output))
        self.weights: Weights = {
            name: torch.stack([weights[name] for weights in initial]).to(device).requires_grad_() for name in initial[0]
        }
        self.masks = {name: torch.stack([mask[name] for mask in masks]).to(device) for name in masks[0]}

    def _pad_weights(self, cell: LSTMCell, output: nn.Linear) -> Weights:
        """Pad the weights of a trial with zeros to the maximum width. The padding has no gradient."""
        size, wide = cell.hidden_size, self.max_hidden

        def pad_gates(rows: Tensor) -> Tensor:
            return _pad_axis(rows.unflatten(0, (-1, size)), 1, wide).flatten(0, 1)

        weights = {
            "input": pad_gates(cell.weight_input),
            "state": _pad_axis(pad_gates(cell.weight_state), 1, wide),
            "bias": pad_gates(cell.bias_input),
            "output": _pad_axis(output.weight, 1, wide),
            "output_bias": output.bias,
        }
        if cell.peepholes is not None:
            weights["peepholes"] = _pad_axis(cell.peepholes, 1, wide)
        if cell.weight_gates is not None:
            weights["gates"] = pad_gates(pad_gates(cell.weight_gates).t().contiguous()).t()
        return {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}

    def dropout(self, name: str, *shape: int) -> Tensor:
        """Sample a dropout mask for each trial, with the rate of the trial."""
        rates = torch.tensor([sample[f"dropout_{name}"] for sample in self.samples], device=self.device)
        rates = rates.view(-1, *([1] * len(shape)))
        return (torch.rand(len(self.samples), *shape, device=self.device) >= rates).float() / (1 - rates)

    def loss(self, weights: Weights, pieces: Pieces, *, training: bool = False) -> Tensor:
        """Return the loss of each trial, in nats per step."""
        trials, (rows, steps) = len(self.samples), pieces.y.shape[:2]
        x = pieces.x.transpose(0, 1).reshape(1, steps * rows, KEYS).expand(trials, -1, -1)
        keep = None
        if training:
            x = x * self.dropout("input", steps * rows, KEYS)
            keep = self.dropout("state", rows, self.max_hidden)
        gates = torch.baddbmm(weights["bias"].unsqueeze(1), x, weights["input"].transpose(1, 2))
        gates = gates.view(trials, steps, rows, -1).transpose(0, 1).contiguous()
        start = gates.new_zeros(trials, rows, self.max_hidden)
        gate_state = (gates.new_zeros(trials, rows, gates.shape[-1] - self.max_hidden),) if "gates" in weights else ()
        matrices = LSTMWeights(weights["state"], weights.get("peepholes"), weights.get("gates"))
        scan = kernels.scan_lstms(self.variant, gates, (start, start, *gate_state), matrices, keep, fused=gates.is_cuda)
        states = scan[0].transpose(0, 1).reshape(trials, steps * rows, -1)
        if training:
            states = states * self.dropout("output", steps * rows, self.max_hidden)
        logits = torch.baddbmm(weights["output_bias"].unsqueeze(1), states, weights["output"].transpose(1, 2))
        target = pieces.y.transpose(0, 1).reshape(1, steps * rows, KEYS).expand_as(logits)
        nats = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
        valid = pieces.valid.t().reshape(1, -1)
        return nats.masked_fill(~valid, 0.0).sum(1) / valid.sum()


def _pad_axis(x: Tensor, dim: int, size: int) -> Tensor:
    """Append zeros to an axis."""
    shape = list(x.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([x, x.new_zeros(shape)], dim)


class Optimizer:
    """Adam with a learning rate and gradient clipping per trial, and a moving average of the weights."""

    def __init__(
        self, population: Population, steps: int, *, ema_decay: float = 0.998, max_grad_norm: float = 5.0
    ) -> None:
        self.population, self.steps, self.step = population, steps, 0
        self.ema_decay, self.max_grad_norm = ema_decay, max_grad_norm
        self.averaged = {name: weight.detach().clone() for name, weight in population.weights.items()}
        self.moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in population.weights.items()}
        rates = [sample["learning_rate"] for sample in population.samples]
        self.rates = torch.tensor(rates, device=population.device)

    def update(self, loss: Tensor) -> None:
        self._apply(torch.autograd.grad(loss.sum(), list(self.population.weights.values())))

    @torch.no_grad()
    def _apply(self, gradients: tuple[Tensor, ...]) -> None:
        weights, masks = self.population.weights, self.population.masks.values()
        gradients = tuple(gradient.nan_to_num(0.0) * mask for gradient, mask in zip(gradients, masks, strict=True))
        norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        scale = (self.max_grad_norm / norms).clamp(max=1.0).nan_to_num(0.0)
        self.step += 1
        warmup = min(1.0, self.step / 100)
        rates = self.rates * warmup * 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            first, second = self.moments[name]
            gradient = gradient * _per_trial(scale, gradient)
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.01)
            update = (first / (1 - 0.9**self.step)) / ((second / (1 - 0.99**self.step)).sqrt() + 1e-8)
            weight.sub_(_per_trial(rates, weight) * update)
            self.averaged[name].lerp_(weight, 1 - min(self.ema_decay, self.step / (self.step + 10)))


def _per_trial(x: Tensor, like: Tensor) -> Tensor:
    return x.view(-1, *([1] * (like.dim() - 1)))


def batches(lengths: list[int], batch_size: int, rng: random.Random) -> Iterator[list[int]]:
    """Yield batches of pieces of similar length, in random order."""
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index] + rng.uniform(0, 12))
    result = [by_length[first : first + batch_size] for first in range(0, len(by_length), batch_size)]
    rng.shuffle(result)
    yield from result


class Trial(NamedTuple):
    cell: str
    hyperparameters: Hyperparameters
    valid: float
    test: float
    epoch: int


def train(variant: str, data: dict[str, Pieces], args: argparse.Namespace) -> list[Trial]:
    """Train all trials of one cell."""
    rng = random.Random(args.seed)
    samples = [sample_hyperparameters(rng, args.max_hidden) for _ in range(args.trials)]
    population = Population(variant, samples, args.max_hidden, args.device, args.seed)
    lengths = data["train"].lengths.tolist()
    optimizer = Optimizer(population, args.epochs * math.ceil(len(lengths) / args.batch_size))
    best = torch.full((args.trials,), float("inf"), device=args.device)
    best_weights = {name: weight.clone() for name, weight in optimizer.averaged.items()}
    epochs = torch.zeros(args.trials, dtype=torch.long)
    started = time.perf_counter()
    for epoch in range(args.epochs):
        for rows in batches(lengths, args.batch_size, rng):
            semitones = torch.tensor([rng.randint(-args.transpose, args.transpose) for _ in rows], device=args.device)
            optimizer.update(
                population.loss(population.weights, data["train"].select(rows).transpose(semitones), training=True)
            )
        with torch.no_grad():
            valid = population.loss(optimizer.averaged, data["valid"])
        better = valid < best
        best = torch.where(better, valid, best)
        epochs[better.cpu()] = epoch + 1
        for name, weight in optimizer.averaged.items():
            best_weights[name] = torch.where(_per_trial(better, weight), weight, best_weights[name])
        if not args.quiet and (epoch + 1) % max(1, args.epochs // 10) == 0:
            seconds = time.perf_counter() - started
            print(f"{variant:8} epoch {epoch + 1:4}  best on validation {best.min():.3f}  {seconds:.0f} s", flush=True)
    with torch.no_grad():
        test = population.loss(best_weights, data["test"])
    check_best_trial(population, best_weights, data["valid"], best)
    trials = zip(samples, best.tolist(), test.tolist(), epochs.tolist(), strict=True)
    return [Trial(variant, *trial) for trial in trials]


def check_best_trial(population: Population, weights: Weights, pieces: Pieces, expected: Tensor) -> None:
    """Check that the best trial, as a separate network of its own size, has the same loss as in the batch."""
    best = int(expected.argmin())
    size, variant = int(population.samples[best]["hidden"]), population.variant
    network = regard.LSTM(KEYS, size, **variant._asdict()).to(population.device)
    cell = network.stack.cells[0]
    assert isinstance(cell, LSTMCell)
    gates = len(variant.gates)

    def narrow(name: str, parts: int) -> Tensor:
        return _narrow(weights[name][best], parts, size)

    with torch.no_grad():
        cell.weight_input.copy_(narrow("input", gates + 1))
        cell.weight_state.copy_(narrow("state", gates + 1)[:, :size])
        cell.bias_input.copy_(narrow("bias", gates + 1))
        if cell.peepholes is not None:
            cell.peepholes.copy_(weights["peepholes"][best, :, :size])
        if cell.weight_gates is not None:
            cell.weight_gates.copy_(_narrow(narrow("gates", gates).t(), gates, size).t())
        states, _ = network(pieces.x, lengths=pieces.lengths)
        logits = nn.functional.linear(states, weights["output"][best, :, :size], weights["output_bias"][best])
        nats = nn.functional.binary_cross_entropy_with_logits(logits, pieces.y, reduction="none").sum(-1)
        separate = nats[pieces.valid].mean()
    if not torch.allclose(separate, expected[best], atol=5e-3):
        raise SystemExit(
            f"The best trial has a loss of {separate:.4f} separately, and {expected[best]:.4f} in the batch."
        )


def _narrow(wide: Tensor, parts: int, size: int) -> Tensor:
    """Remove the padding from the rows of a trial, in each of the parts."""
    return wide.unflatten(0, (parts, -1))[:, :size].flatten(0, 1)


def best_test_scores(trials: list[Trial]) -> list[float]:
    """Return the test scores of the trials that are best on validation."""
    ranked = sorted(trials, key=lambda trial: trial.valid)
    return [trial.test for trial in ranked[: max(3, round(BEST * len(trials)))]]


def p_value(first: list[float], second: list[float], permutations: int = 20000) -> float:
    """Return the p-value of a permutation test on the difference of two means."""
    pooled = torch.tensor(first + second, dtype=torch.float64)
    observed = abs(pooled[: len(first)].mean() - pooled[len(first) :].mean())
    generator = torch.Generator().manual_seed(0)
    shuffled = pooled[torch.rand(permutations, len(pooled), generator=generator).argsort(1)]
    differences = (shuffled[:, : len(first)].mean(1) - shuffled[:, len(first) :].mean(1)).abs()
    return (int((differences >= observed - 1e-12).sum()) + 1) / (permutations + 1)


def build_report(trials: list[Trial]) -> str:
    """Return the table of all cells, and the hyperparameters of the best vanilla trial."""
    by_cell = {cell: [trial for trial in trials if trial.cell == cell] for cell in CELLS}
    vanilla = best_test_scores(by_cell["vanilla"])
    lines = []
    for cell, cell_trials in by_cell.items():
        if not cell_trials:
            continue
        chosen = min(cell_trials, key=lambda trial: trial.valid)
        scores = best_test_scores(cell_trials)
        mean, difference = sum(scores) / len(scores), sum(scores) / len(scores) - sum(vanilla) / len(vanilla)
        median = sorted(trial.test for trial in cell_trials)[len(cell_trials) // 2]
        worse_count = sum(trial.test > other.test for trial, other in zip(cell_trials, by_cell["vanilla"], strict=True))
        worse = "" if cell == "vanilla" else f"{worse_count}/{len(cell_trials)}"
        p = "" if cell == "vanilla" else f"{p_value(scores, vanilla):.4f}"
        numbers = [f"{value:.3f}" for value in (chosen.valid, chosen.test, mean)]
        lines.append([cell, str(len(cell_trials)), *numbers, f"{difference:+.3f}", p, worse, f"{median:.3f}"])
    share = f"best {BEST:.0%}"
    head = [
        "cell",
        "trials",
        "best valid",
        "its test",
        f"{share} test",
        "− vanilla",
        "p",
        "worse, same sample",
        "median test",
    ]
    chosen = min((trial for trial in trials if trial.cell == "vanilla"), key=lambda trial: trial.valid)
    settings = ", ".join(f"{name} {value:.3g}" for name, value in chosen.hyperparameters.items())
    return f"{table(head, lines)}\n\nBest vanilla trial: {settings}, epoch {chosen.epoch}"


def plot(trials: list[Trial], path: Path) -> None:
    """Plot the test scores of the best trials of each cell, and of all trials, as in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    vanilla = best_test_scores([trial for trial in trials if trial.cell == "vanilla"])
    tops = []
    for position, cell in enumerate(CELLS):
        cell_trials = [trial for trial in trials if trial.cell == cell]
        scores = best_test_scores(cell_trials)
        tops.append(max(scores))
        significant = cell != "vanilla" and p_value(scores, vanilla) < 0.05
        worse = sum(scores) / len(scores) > sum(vanilla) / len(vanilla)
        color = "#0072b2" if not significant else "#d55e00" if worse else "#009e73"
        axes.scatter(
            [position] * len(cell_trials), [trial.test for trial in cell_trials], s=6, color="#bbbbbb", zorder=1
        )
        axes.boxplot(
            scores,
            positions=[position],
            widths=0.6,
            patch_artist=True,
            showfliers=False,
            boxprops={"facecolor": color, "alpha": 0.55},
            medianprops={"color": "black"},
            zorder=2,
        )
    axes.set_xticks(range(len(CELLS)), CELLS)
    axes.set_ylim(min(trial.test for trial in trials) - 0.05, max(tops) + 0.1)
    axes.set_ylabel("test loss, nats per step")
    legend = "orange: worse than vanilla, green: better, blue: neither (p < 0.05)"
    axes.set_title(f"Best {BEST:.0%} of each cell's trials (grey: all); {legend}", fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the chorales, {split: [piece: [step: [pitches]]]}, gzipped JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces in a batch")
    parser.add_argument(
        "--max-hidden", type=int, default=512, help="sample hidden sizes between a quarter of this and this"
    )
    parser.add_argument(
        "--transpose", type=int, default=6, help="transpose training pieces by up to N semitones", metavar="N"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("odyssey.json"))
    parser.add_argument("--figure", type=Path, default=Path("odyssey.png"))
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="report and plot the results in FILE, without training"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.report:
        trials = [Trial(**line) for line in json.loads(args.report.read_text())["trials"]]
    else:
        if "vanilla" not in args.cells:
            parser.error("all cells are compared with vanilla: add it to --cells")
        if args.data is None:
            parser.error("--data is required for training")
        data = read_pieces(args.data, args.device)
        trials = []
        started = time.perf_counter()
        for cell in args.cells:
            trials += train(cell, data, args)
            settings: dict[str, Any] = {key: str(value) for key, value in vars(args).items() if key != "data"}
            results = {"settings": settings, "trials": [trial._asdict() for trial in trials]}
            args.results.write_text(json.dumps(results, indent=1))
        print(f"{(time.perf_counter() - started) / 60:.1f} minutes")
    print(build_report(trials))
    if len({trial.cell for trial in trials}) == len(CELLS):
        try:
            plot(trials, args.figure)
        except ImportError:
            print(f"matplotlib is not installed; plot later with --report {args.results}")


if __name__ == "__main__":
    main()
