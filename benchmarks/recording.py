"""What do hooks (of recordings and interventions) cost in prediction when they are off, and recording when it is on?

    OMP_NUM_THREADS=1 python benchmarks/recording.py
    python benchmarks/recording.py --device cuda --texts 2000

`off` is the time of prediction without attention weights, divided by that of the same code from which all hooks have
been removed: their statements are deleted from the source of each function that contains one. `on` is the time with
attention weights, divided by the time without. `trace` is the same for `Model.trace`, text by text.

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
    (Attention, "_attend"),
    (Attention, "_attend_fused"),
    (Attention, "_next_past"),
    (MultiHeadAttention, "extend"),
    (dispatch, "scan_layer"),
    (dispatch, "step"),
]
"""The functions that contain hooks."""

LOOKUPS = {"find_hooks", "hooks_of"}
RESULTS = {"on_memory": 2, "on_scores": 2, "on_weights": 1, "on_context": 1}
"""The argument that each point returns if there are no hooks."""

SEARCHES: dict[str, dict[str, int]] = {"greedy": {}, "beam 5": {"beam": 5}}
LIMITS = {"off": 1.02, "on": 2.0}


class HookRemoval(ast.NodeTransformer):
    """Deletes the statements that only hooks need, and replaces the lookup of hooks, and what they return, with the
    result that there are none.
    """

    removed = 0

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if _is_lookup(node.test) or (isinstance(node.test, ast.Name) and node.test.id == "hooks"):
            self.removed += 1
            return None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Call) and _called_method(node.value) == "on_inputs":
            self.removed += 1
            return None
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "change_weights":
            self.removed += 1
            return ast.copy_location(ast.Constant(False), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        index = RESULTS.get(_called_method(node) or "")
        if index is None and not _is_lookup(node):
            return node
        self.removed += 1
        return ast.copy_location(ast.Tuple([], ast.Load()) if index is None else node.args[index], node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "hooks" and isinstance(node.ctx, ast.Load):
            self.removed += 1
            return ast.copy_location(ast.Tuple([], ast.Load()), node)
        return node


def _is_lookup(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOOKUPS


def _called_method(node: ast.Call) -> str | None:
    return node.func.attr if isinstance(node.func, ast.Attribute) else None


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
