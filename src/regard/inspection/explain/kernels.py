"""Which implementation each recurrent network and attention of a model uses, and why not a faster one."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from regard.attention.attention import Attention, dispatch_attention
from regard.attention.record import find_attentions
from regard.formatting import quantity
from regard.models.seq2seq import Seq2Seq
from regard.ops.reference_mode import Dispatch
from regard.recurrent.cells import Cell
from regard.recurrent.dispatch import dispatch_layer
from regard.recurrent.layers import Stack


def describe_kernels(model: Seq2Seq) -> list[str]:
    """Return a description of each network and attention. Identical layers are described once."""
    modules = model.named_modules()
    networks = [(name, _describe_network(model, module)) for name, module in modules if isinstance(module, Stack)]
    attentions = [(name, _describe_attention(attention)) for name, attention in find_attentions(model).items()]
    return [*_merge(networks), *_merge(attentions)]


def _merge(described: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Merge identical descriptions of modules whose names differ only in the number of the layer."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, description in described:
        groups.setdefault((re.sub(r"\d+", "", name), description), []).append(name)
    for (_, description), names in groups.items():
        yield f"{_join_names(names)}: {description}"


def _join_names(names: list[str]) -> str:
    """Return the name of several layers: `encoder.layers.0–5.attention (× 6)`."""
    if len(names) == 1:
        return names[0]
    columns = zip(*(re.split(r"(\d+)", name) for name in names), strict=True)
    joined = [values[0] if len(set(values)) == 1 else f"{values[0]}–{values[-1]}" for values in columns]
    return f"{''.join(joined)} (× {len(names)})"


def _describe_network(model: Seq2Seq, stack: Stack) -> str:
    cell, settings = stack.cells[0], stack.settings
    assert isinstance(cell, Cell)
    depth, direction = quantity(settings.layers, "layer"), "bi" if stack.directions > 1 else "uni"
    lines = [f"{cell.description or settings.cell.description}, {depth}, {direction}directional"]
    if stack in model.decoder.stepwise_modules:
        lines.append("  runs step by step, because attention is computed between the steps")
    else:
        state_dropout = settings.variational and settings.dropout > 0
        chosen = {device: dispatch_layer(cell, device, state_dropout=state_dropout) for device in ("cpu", "cuda")}
        lines += _describe_choices({"on CPU": chosen["cpu"], "on CUDA": chosen["cuda"]})
    return "\n".join(lines)


def _describe_attention(attention: Attention) -> str:
    parts = (attention.score, attention.scope, attention.select)
    names = " × ".join(type(part).__name__ for part in parts)
    lines = [f"{names}, {quantity(attention.heads, 'head')}", f"  {attention.score.equation}"]
    if attention.stepwise:
        lines.append("  runs step by step, because it depends on the weights of previous steps")
    needs_weights = attention.stepwise or attention.select.marginal
    choices = {
        "training and prediction": dispatch_attention(*parts, weights=needs_weights),
        "returning weights": dispatch_attention(*parts, weights=True),
    }
    return "\n".join([*lines, *_describe_choices(choices)])


def _describe_choices(choices: dict[str, Dispatch]) -> Iterator[str]:
    """Yield the chosen path of each case and why others are not used. Cases with the same result share it."""
    for _, cases in groupby(choices.items(), key=lambda case: case[1]):
        same = list(cases)
        chosen = same[0][1]
        yield f"  {' and '.join(label for label, _ in same)}: {chosen.path}"
        yield from (f"    not {path}: {reason}" for path, reason in chosen.rejected.items())
