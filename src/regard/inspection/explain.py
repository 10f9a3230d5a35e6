"""Explain a config: what it computes, which implementation each part uses, and why not a faster one."""

import re
from collections.abc import Iterator

import torch

from regard.attention.attention import Attention
from regard.attention.dispatch import dispatch_attention
from regard.formatting import quantity
from regard.models.attentive import AttentiveDecoder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import Model
from regard.recurrent.cells import Cell
from regard.recurrent.dispatch import dispatch_layer
from regard.recurrent.layers import Stack
from regard.recurrent.settings import GRU, LSTM, VARIANTS

VOCABULARY = 1000
"""Placeholder for the vocabulary size, which is known only after the data is read."""


def explain(settings: Model) -> str:
    """Describe the recurrent networks and attentions of a model with their implementations. Allocates no weights."""
    with torch.device("meta"):
        model = build_model(settings, VOCABULARY, VOCABULARY)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    header = f"{settings.kind} model, {parameters:,} parameters with vocabularies of {VOCABULARY:,} tokens"
    return "\n".join([header, *_describe_networks(model), *_describe_attentions(model)])


def _describe_networks(model: Seq2Seq) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, Stack):
            continue
        cell = module.cells[0]
        assert isinstance(cell, Cell)
        depth = quantity(module.settings.layers, "layer")
        yield ""
        yield f"{name}: {_describe_cell(module)}, {depth}, {'bi' if module.directions > 1 else 'uni'}directional"
        decoder = model.decoder
        if isinstance(decoder, AttentiveDecoder) and decoder.stepwise and module in decoder.stacks:
            yield "  runs step by step, because attention is computed between the steps"
            continue
        for device, label in (("cpu", "on CPU"), ("cuda", "on CUDA")):
            state_dropout = module.settings.variational and module.settings.dropout > 0
            chosen = dispatch_layer(cell, device, state_dropout=state_dropout)
            yield f"  {label}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.rejected.items())


def _describe_cell(stack: Stack) -> str:
    """Return the name of a cell with the settings that differ from the defaults."""
    cell = stack.settings.cell
    if isinstance(cell, LSTM):
        variant = stack.settings.lstm_variant
        names = [name for name, known in VARIANTS.items() if known == variant and variant.non_default]
        return " ".join(["LSTM", *(names or (f"{name}={value}" for name, value in variant.non_default.items()))])
    return f"GRU, reset {cell.reset} the product with R" if isinstance(cell, GRU) else f"RNN with {cell.activation}"


def _describe_attentions(model: Seq2Seq) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, Attention):
            continue
        parts = (module.score, module.scope, module.select)
        names = " × ".join(type(part).__name__ for part in parts)
        yield ""
        yield f"{name}: {names}, {quantity(module.heads, 'head')}"
        yield f"  {_equation(module)}"
        if module.stepwise:
            yield "  runs step by step, because it depends on the weights of previous steps"
        for weights, when in ((False, "training and prediction"), (True, "recording weights")):
            chosen = dispatch_attention(*parts, weights=weights or module.stepwise or module.select.marginal)
            yield f"  {when}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.rejected.items())


def _equation(module: Attention) -> str:
    """Return the equation at the start of the docstring of a score, without the citation and the text after it."""
    paragraph = " ".join((type(module.score).__doc__ or "").split("\n\n")[0].split())
    return re.split(r" \([A-Z][a-z]+ et al| \(the form|: |; |\. ", paragraph)[0].rstrip(".")
