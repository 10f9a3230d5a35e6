"""Does "A Search Space Odyssey" hold on the Bach chorales? Next-step prediction of the keys that sound, each by its own
sigmoid, by the nine LSTMs of the paper, each under the same random draws of hyperparameters.

    python benchmarks/odyssey.py --data jsb-chorales-quarter.json.gz --device cuda
    python benchmarks/odyssey.py --data jsb-chorales-quarter.json.gz --trials 8 --epochs 60 --widest 128   # 2 cores
    python benchmarks/odyssey.py --draw results.json

All trials of a cell train side by side, as the cells of one scan; a narrower trial is a wide cell whose last units are
held at zero. Every cell is given the same draws. A trial's checkpoint is the epoch that is best on the validation set;
the test set is then scored once. The loss is in nats a step: summed over the 88 keys, averaged over all steps of all
pieces but each piece's first.
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
from regard.recurrent import dispatch
from regard.recurrent.cells import LSTMCell
from regard.recurrent.settings import VARIANTS

CELLS = ["vanilla", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR"]
KEYS, LOWEST = 88, 21
BEST = 0.2  # the share of a cell's trials, best on validation, that are compared

Draw = dict[str, float]
Weights = dict[str, Tensor]
"""Every weight of all trials, the trials on axis 0."""


class Pieces(NamedTuple):
    """Keys that sound, (B, T, 88), and how many steps each piece has to predict."""

    given: Tensor
    lengths: Tensor

    @property
    def x(self) -> Tensor:
        return self.given[:, :-1]

    @property
    def y(self) -> Tensor:
        return self.given[:, 1:]

    @property
    def valid(self) -> Tensor:
        return torch.arange(self.given.shape[1] - 1, device=self.given.device) < self.lengths.unsqueeze(1)

    def pick(self, rows: list[int]) -> "Pieces":
        lengths = self.lengths[rows]
        return Pieces(self.given[rows, : int(lengths.max()) + 1], lengths)

    def transposed(self, semitones: Tensor) -> "Pieces":
        """Each piece moved up by so many keys; chorales stay within the keyboard."""
        index = (torch.arange(KEYS, device=self.given.device) - semitones.unsqueeze(1)) % KEYS
        return self._replace(given=self.given.gather(2, index.unsqueeze(1).expand_as(self.given)))


def read(path: Path, device: str) -> dict[str, Pieces]:
    with gzip.open(path, "rt") as file:
        splits: dict[str, list[list[list[int]]]] = json.load(file)
    found = {}
    for split, pieces in splits.items():
        given = torch.zeros(len(pieces), max(map(len, pieces)), KEYS)
        for row, piece in enumerate(pieces):
            for step, pitches in enumerate(piece):
                given[row, step, [pitch - LOWEST for pitch in pitches]] = 1
        found[split] = Pieces(given.to(device), torch.tensor([len(piece) - 1 for piece in pieces]).to(device))
    return found


def draw(source: random.Random, widest: int) -> Draw:
    """One trial's hyperparameters."""
    return {
        "hidden": round(math.exp(source.uniform(math.log(widest / 4), math.log(widest)))),
        "learning_rate": math.exp(source.uniform(math.log(2e-3), math.log(2e-2))),
        "dropout_input": source.uniform(0.0, 0.3),
        "dropout_state": source.uniform(0.0, 0.5),
        "dropout_output": source.uniform(0.0, 0.6),
    }


class Population:
    """The trials of one cell: LSTMs side by side, each with a linear layer to the keys."""

    def __init__(self, variant: str, draws: list[Draw], widest: int, device: str, seed: int) -> None:
        self.form, self.draws, self.widest, self.device = VARIANTS[variant], draws, widest, device
        built, inside = [], []
        for index, drawn in enumerate(draws):
            torch.manual_seed(seed + index)
            hidden = int(drawn["hidden"])
            cell, output = LSTMCell(KEYS, hidden, self.form), nn.Linear(hidden, KEYS)
            built.append(self._widen(cell, output))
            for parameter in (*cell.parameters(), *output.parameters()):
                nn.init.ones_(parameter)
            inside.append(self._widen(cell, output))
        self.weights: Weights = {
            name: torch.stack([weights[name] for weights in built]).to(device).requires_grad_() for name in built[0]
        }
        self.inside = {name: torch.stack([ones[name] for ones in inside]).to(device) for name in inside[0]}

    def _widen(self, cell: LSTMCell, output: nn.Linear) -> Weights:
        """A trial's weights with room for the widest; what it does not have is zero, and is given no gradient."""
        size, wide = cell.hidden_size, self.widest

        def spread(rows: Tensor) -> Tensor:
            return _grow(rows.unflatten(0, (-1, size)), 1, wide).flatten(0, 1)

        weights = {
            "input": spread(cell.weight_input),
            "state": _grow(spread(cell.weight_state), 1, wide),
            "bias": spread(cell.bias_input),
            "output": _grow(output.weight, 1, wide),
            "output_bias": output.bias,
        }
        if cell.peepholes is not None:
            weights["peepholes"] = _grow(cell.peepholes, 1, wide)
        if cell.weight_gates is not None:
            weights["gates"] = spread(spread(cell.weight_gates).t().contiguous()).t()
        return {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}

    def dropout(self, name: str, *shape: int) -> Tensor:
        """A mask for each trial, of its own rate."""
        rates = torch.tensor([drawn[f"dropout_{name}"] for drawn in self.draws], device=self.device)
        rates = rates.view(-1, *([1] * len(shape)))
        return (torch.rand(len(self.draws), *shape, device=self.device) >= rates).float() / (1 - rates)

    def loss(self, weights: Weights, pieces: Pieces, *, training: bool = False) -> Tensor:
        """Nats a step, of each trial."""
        trials, (rows, steps) = len(self.draws), pieces.y.shape[:2]
        x = pieces.x.transpose(0, 1).reshape(1, steps * rows, KEYS).expand(trials, -1, -1)
        keep = None
        if training:
            x = x * self.dropout("input", steps * rows, KEYS)
            keep = self.dropout("state", rows, self.widest)
        gates = torch.baddbmm(weights["bias"].unsqueeze(1), x, weights["input"].transpose(1, 2))
        gates = gates.view(trials, steps, rows, -1).transpose(0, 1).contiguous()
        start = gates.new_zeros(trials, rows, self.widest)
        remembered = (gates.new_zeros(trials, rows, gates.shape[-1] - self.widest),) if "gates" in weights else ()
        matrices = dispatch.LSTMWeights(weights["state"], weights.get("peepholes"), weights.get("gates"))
        scan = dispatch.scan_lstms(self.form, gates, (start, start, *remembered), matrices, keep, fused=gates.is_cuda)
        states = scan[0].transpose(0, 1).reshape(trials, steps * rows, -1)
        if training:
            states = states * self.dropout("output", steps * rows, self.widest)
        logits = torch.baddbmm(weights["output_bias"].unsqueeze(1), states, weights["output"].transpose(1, 2))
        target = pieces.y.transpose(0, 1).reshape(1, steps * rows, KEYS).expand_as(logits)
        nats = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
        valid = pieces.valid.t().reshape(1, -1)
        return nats.masked_fill(~valid, 0.0).sum(1) / valid.sum()


def _grow(x: Tensor, dim: int, size: int) -> Tensor:
    """Zeros at the end of an axis."""
    shape = list(x.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([x, x.new_zeros(shape)], dim)


class Optimizer:
    """Adam for all trials, each with its own rate and its own gradient norm, and a running mean of the weights."""

    def __init__(self, population: Population, steps: int, *, mean: float = 0.998, clip: float = 5.0) -> None:
        self.population, self.steps, self.mean, self.clip, self.step = population, steps, mean, clip, 0
        self.averaged = {name: weight.detach().clone() for name, weight in population.weights.items()}
        self.moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in population.weights.items()}
        rates = [drawn["learning_rate"] for drawn in population.draws]
        self.rates = torch.tensor(rates, device=population.device)

    def update(self, loss: Tensor) -> None:
        self._descend(torch.autograd.grad(loss.sum(), list(self.population.weights.values())))

    @torch.no_grad()
    def _descend(self, gradients: tuple[Tensor, ...]) -> None:
        weights, inside = self.population.weights, self.population.inside.values()
        gradients = tuple(gradient.nan_to_num(0.0) * mask for gradient, mask in zip(gradients, inside, strict=True))
        norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        scale = (self.clip / norms).clamp(max=1.0).nan_to_num(0.0)
        self.step += 1
        warm = min(1.0, self.step / 100)
        rates = self.rates * warm * 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            first, second = self.moments[name]
            gradient = gradient * _per_trial(scale, gradient)
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.01)
            ahead = (first / (1 - 0.9**self.step)) / ((second / (1 - 0.99**self.step)).sqrt() + 1e-8)
            weight.sub_(_per_trial(rates, weight) * ahead)
            self.averaged[name].lerp_(weight, 1 - min(self.mean, self.step / (self.step + 10)))


def _per_trial(x: Tensor, like: Tensor) -> Tensor:
    return x.view(-1, *([1] * (like.dim() - 1)))


def batches(lengths: list[int], rows: int, source: random.Random) -> Iterator[list[int]]:
    """Pieces of about the same length together, in random order."""
    near = sorted(range(len(lengths)), key=lambda index: lengths[index] + source.uniform(0, 12))
    found = [near[first : first + rows] for first in range(0, len(near), rows)]
    source.shuffle(found)
    yield from found


class Trial(NamedTuple):
    cell: str
    draw: Draw
    valid: float
    test: float
    epoch: int


def train(variant: str, data: dict[str, Pieces], args: argparse.Namespace) -> list[Trial]:
    """All trials of one cell."""
    source = random.Random(args.seed)
    draws = [draw(source, args.widest) for _ in range(args.trials)]
    population = Population(variant, draws, args.widest, args.device, args.seed)
    lengths = data["train"].lengths.tolist()
    optimizer = Optimizer(population, args.epochs * math.ceil(len(lengths) / args.rows))
    best = torch.full((args.trials,), float("inf"), device=args.device)
    kept = {name: weight.clone() for name, weight in optimizer.averaged.items()}
    epochs = torch.zeros(args.trials, dtype=torch.long)
    started = time.perf_counter()
    for epoch in range(args.epochs):
        for rows in batches(lengths, args.rows, source):
            moved = torch.tensor([source.randint(-args.transpose, args.transpose) for _ in rows], device=args.device)
            optimizer.update(
                population.loss(population.weights, data["train"].pick(rows).transposed(moved), training=True)
            )
        with torch.no_grad():
            valid = population.loss(optimizer.averaged, data["valid"])
        better = valid < best
        best = torch.where(better, valid, best)
        epochs[better.cpu()] = epoch + 1
        for name, weight in optimizer.averaged.items():
            kept[name] = torch.where(_per_trial(better, weight), weight, kept[name])
        if not args.quiet and (epoch + 1) % max(1, args.epochs // 10) == 0:
            seconds = time.perf_counter() - started
            print(f"{variant:8} epoch {epoch + 1:4}  best on validation {best.min():.3f}  {seconds:.0f} s", flush=True)
    with torch.no_grad():
        test = population.loss(kept, data["test"])
    check(population, kept, data["valid"], best)
    scores = zip(draws, best.tolist(), test.tolist(), epochs.tolist(), strict=True)
    return [Trial(variant, *scored) for scored in scores]


def check(population: Population, weights: Weights, pieces: Pieces, expected: Tensor) -> None:
    """The best trial as a network of its own size must score what it scored side by side."""
    best = int(expected.argmin())
    size, form = int(population.draws[best]["hidden"]), population.form
    network = regard.LSTM(KEYS, size, **form._asdict()).to(population.device)
    cell = network.stack.cells[0]
    assert isinstance(cell, LSTMCell)
    gates = len(form.gates)

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
        alone = nats[pieces.valid].mean()
    if not torch.allclose(alone, expected[best], atol=5e-3):
        raise SystemExit(f"Alone the best trial scores {alone:.4f}, side by side {expected[best]:.4f}.")


def _narrow(wide: Tensor, parts: int, size: int) -> Tensor:
    """The rows of a trial of its own size, in each of so many parts."""
    return wide.unflatten(0, (parts, -1))[:, :size].flatten(0, 1)


def compared(trials: list[Trial]) -> list[float]:
    """The test scores of a cell's best trials; which those are is decided on validation."""
    ranked = sorted(trials, key=lambda trial: trial.valid)
    return [trial.test for trial in ranked[: max(3, round(BEST * len(trials)))]]


def p_value(ours: list[float], theirs: list[float], draws: int = 20000) -> float:
    """How often a random relabelling of the scores separates the two means as far as they are: a permutation test."""
    pooled = torch.tensor(ours + theirs, dtype=torch.float64)
    apart = abs(pooled[: len(ours)].mean() - pooled[len(ours) :].mean())
    generator = torch.Generator().manual_seed(0)
    shuffled = pooled[torch.rand(draws, len(pooled), generator=generator).argsort(1)]
    found = (shuffled[:, : len(ours)].mean(1) - shuffled[:, len(ours) :].mean(1)).abs()
    return (int((found >= apart - 1e-12).sum()) + 1) / (draws + 1)


def report(trials: list[Trial]) -> str:
    by_cell = {cell: [trial for trial in trials if trial.cell == cell] for cell in CELLS}
    vanilla = compared(by_cell["vanilla"])
    lines = []
    for cell, own in by_cell.items():
        if not own:
            continue
        chosen = min(own, key=lambda trial: trial.valid)
        scores = compared(own)
        mean, apart = sum(scores) / len(scores), sum(scores) / len(scores) - sum(vanilla) / len(vanilla)
        median = sorted(trial.test for trial in own)[len(own) // 2]
        lost = sum(mine.test > theirs.test for mine, theirs in zip(own, by_cell["vanilla"], strict=True))
        worse = "" if cell == "vanilla" else f"{lost}/{len(own)}"
        verdict = "" if cell == "vanilla" else f"{p_value(scores, vanilla):.4f}"
        numbers = [f"{value:.3f}" for value in (chosen.valid, chosen.test, mean)]
        lines.append([cell, str(len(own)), *numbers, f"{apart:+.3f}", verdict, worse, f"{median:.3f}"])
    share = f"best {BEST:.0%}"
    head = [
        "cell",
        "trials",
        "best, valid",
        "its test",
        f"{share}, test",
        "− vanilla",
        "p",
        "worse, same draw",
        "median, test",
    ]
    chosen = min((trial for trial in trials if trial.cell == "vanilla"), key=lambda trial: trial.valid)
    settings = ", ".join(f"{name} {value:.3g}" for name, value in chosen.draw.items())
    return f"{table(head, lines)}\n\nvanilla's best: {settings}, epoch {chosen.epoch}"


def plot(trials: list[Trial], path: Path) -> None:
    """The paper's figure: for each cell, the test scores of its best trials, and of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    vanilla = compared([trial for trial in trials if trial.cell == "vanilla"])
    tops = []
    for place, cell in enumerate(CELLS):
        own = [trial for trial in trials if trial.cell == cell]
        scores = compared(own)
        tops.append(max(scores))
        apart = cell != "vanilla" and p_value(scores, vanilla) < 0.05
        worse = sum(scores) / len(scores) > sum(vanilla) / len(vanilla)
        color = "#0072b2" if not apart else "#d55e00" if worse else "#009e73"
        axes.scatter([place] * len(own), [trial.test for trial in own], s=6, color="#bbbbbb", zorder=1)
        axes.boxplot(
            scores,
            positions=[place],
            widths=0.6,
            patch_artist=True,
            showfliers=False,
            boxprops={"facecolor": color, "alpha": 0.55},
            medianprops={"color": "black"},
            zorder=2,
        )
    axes.set_xticks(range(len(CELLS)), CELLS)
    axes.set_ylim(min(trial.test for trial in trials) - 0.05, max(tops) + 0.1)
    axes.set_ylabel("test, nats a step")
    said = "orange: worse than vanilla, green: better, blue: neither (p < 0.05)"
    axes.set_title(f"Best {BEST:.0%} of each cell's trials (grey: all); {said}", fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the chorales, {split: [piece: [step: [pitches]]]}, gzipped JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--rows", type=int, default=16, help="pieces in a batch")
    parser.add_argument("--widest", type=int, default=512, help="hidden sizes are drawn from a quarter of this up")
    parser.add_argument("--transpose", type=int, default=6, help="pieces are moved by up to so many semitones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("odyssey.json"))
    parser.add_argument("--figure", type=Path, default=Path("odyssey.png"))
    parser.add_argument("--draw", type=Path, help="only report and draw the results of an earlier run")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.draw:
        trials = [Trial(**line) for line in json.loads(args.draw.read_text())["trials"]]
    else:
        if "vanilla" not in args.cells:
            parser.error("the others are compared with vanilla: name it among --cells")
        if args.data is None:
            parser.error("give the chorales with --data")
        data = read(args.data, args.device)
        trials = []
        started = time.perf_counter()
        for cell in args.cells:
            trials += train(cell, data, args)
            settings: dict[str, Any] = {key: str(value) for key, value in vars(args).items() if key != "data"}
            kept = {"settings": settings, "trials": [trial._asdict() for trial in trials]}
            args.results.write_text(json.dumps(kept, indent=1))
        print(f"{(time.perf_counter() - started) / 60:.1f} minutes")
    print(report(trials))
    if len({trial.cell for trial in trials}) == len(CELLS):
        try:
            plot(trials, args.figure)
        except ImportError:
            print(f"No matplotlib here; draw with --draw {args.results}")


if __name__ == "__main__":
    main()
