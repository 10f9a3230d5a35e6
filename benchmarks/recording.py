"""What do the hooks of recording and interventions cost in prediction when they are off, and recording when it is on?

    OMP_NUM_THREADS=1 python benchmarks/recording.py
    python benchmarks/recording.py --device cuda --texts 2000

`off` is the time of prediction without attention weights, divided by that of the same code from which all hooks of
recording and of interventions have been removed: their statements are deleted from the source of each function that
contains one. `on` is the time with attention weights, divided by the time without. `trace` is the same for
`Model.trace`, text by text.

The models have the architecture of the demo (`dates`), and a Transformer with the same tokenizers, with random weights;
they generate exactly as many tokens as a correct prediction has. The variants alternate, and a ratio is the median over
the repetitions. With one thread on a CPU, processor time is measured, because load on the machine hardly changes it.
"""

import argparse
import ast
import inspect
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch

import inference
import regard
from regard.attention.attention import Attention
from regard.attention.multihead import MultiHeadAttention
from regard.data import dates
from regard.formatting import table
from regard.recurrent import dispatch

FUNCTIONS: list[tuple[type | ModuleType, str]] = [
    (Attention, "fused"),
    (Attention, "prepare"),
    (Attention, "_read"),
    (MultiHeadAttention, "extend"),
    (dispatch, "scan_layer"),
    (dispatch, "step"),
]
"""The functions that contain hooks."""

CONDITIONS = {"is_recorded", "records_details"}
CALLS = {"record_weights", "record_fused"}
UNCHANGED: dict[str, Callable[[ast.Call], ast.expr]] = {
    "find_interventions": lambda _: ast.Tuple([], ast.Load()),
    "changes_weights": lambda _: ast.Constant(False),
    "replace_values": lambda call: call.args[1],
}
"""The functions that look up interventions, and what they return if there are none."""

SEARCHES: dict[str, dict[str, int]] = {"greedy": {}, "beam 5": {"beam": 5}}
LIMITS = {"off": 1.02, "on": 2.0}


class HookRemoval(ast.NodeTransformer):
    """Deletes the statements of hooks, `if self.records_details: …` and `self.record_weights(…)`, and replaces lookups
    of interventions with the result that there are none.
    """

    removed = 0

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Attribute) and node.test.attr in CONDITIONS:
            self.removed += 1
            return None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in CALLS:
            self.removed += 1
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in UNCHANGED:
            self.removed += 1
            return ast.copy_location(UNCHANGED[node.func.id](node), node)
        return node


@cache
def remove_hooks(member: Any) -> Any:
    """Return the function or property without its hooks."""
    function: Any = member.fget if isinstance(member, property) else member
    removal = HookRemoval()
    tree = removal.visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
    assert removal.removed, f"{function.__qualname__} contains no hook"
    names: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(tree), inspect.getfile(function), "exec")
    exec(code, function.__globals__, names)
    return names[function.__name__]


@contextmanager
def without_hooks() -> Iterator[None]:
    """Within the block, no module can be recorded, and no attention can be changed."""
    originals = [(owner, name, inspect.getattr_static(owner, name)) for owner, name in FUNCTIONS]
    for owner, name, function in originals:
        setattr(owner, name, remove_hooks(function))
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def measure(run: Callable[[], object], device: torch.device) -> float:
    """Return the time of a run in seconds."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def compare(model: regard.Model, texts: list[str], search: dict[str, int], repeats: int) -> dict[str, float]:
    """Return the time without recording, and the ratios. The first repetition is a warm-up."""
    options: dict[str, Any] = {"min_length": inference.TARGET_LENGTH, **search}
    single = texts[: max(1, len(texts) // 20)]
    times: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        for name, run in {
            "off": lambda: model.predict(texts, attention=False, **options),
            "on": lambda: model.predict(texts, **options),
            "predict": lambda: [model.predict(text, attention=False, **options) for text in single],
            "trace": lambda: [model.trace(text, **options) for text in single],
        }.items():
            if name == "off":
                with without_hooks():
                    times.setdefault("removed", []).append(measure(run, model.device))
            times.setdefault(name, []).append(measure(run, model.device))
    ratios = {
        name: statistics.median(part / whole for part, whole in zip(times[name][1:], times[base][1:], strict=True))
        for name, base in (("off", "removed"), ("on", "off"), ("trace", "predict"))
    }
    return {"seconds": statistics.median(times["off"][1:]), **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200, help="number of texts to predict")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    pairs = dates.sample("train", max(args.texts, inference.TOKENIZER_PAIRS), seed=0)
    texts = [source for source, _ in pairs[: args.texts]]
    rows, exceeded = [], []
    for name in inference.MODELS:
        model = inference.build(name, pairs).to(args.device)
        for search, options in SEARCHES.items():
            result = compare(model, texts, options, args.repeats)
            ratios = (f"{result[key]:.3f}" for key in ("off", "on", "trace"))
            rows.append([name, search, f"{result['seconds']:.2f}", *ratios])
            exceeded += [f"{name}, {search}: {key}" for key, limit in LIMITS.items() if result[key] > limit]
    threads = f"{torch.get_num_threads()} thread(s), " if args.device == "cpu" else ""
    print(f"prediction of {args.texts:,} texts on {args.device}, {threads}torch {torch.__version__}")
    print(table(["model", "search", "seconds", "off", "on", "trace"], rows))
    print(f"limits: off {LIMITS['off']}, on {LIMITS['on']:.0f}; exceeded: {'; '.join(exceeded) or 'none'}")


if __name__ == "__main__":
    main()
