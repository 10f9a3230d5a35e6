"""Explain a config: what it computes, which implementation each part uses, and why not a faster one."""

from collections.abc import Iterator

import torch

from regard.attention.attention import Attention
from regard.attention.dispatch import dispatch_attention
from regard.formatting import quantity
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import ModelSettings
from regard.recurrent.cells import Cell
from regard.recurrent.dispatch import dispatch_layer
from regard.recurrent.layers import Stack

VOCABULARY = 1000
"""Placeholder for the vocabulary size, which is known only after the data is read."""


def explain(settings: ModelSettings) -> str:
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
        description = module.settings.cell.description(module.settings.variant)
        yield f"{name}: {description}, {depth}, {'bi' if module.directions > 1 else 'uni'}directional"
        if module in model.decoder.stepwise_modules:
            yield "  runs step by step, because attention is computed between the steps"
            continue
        for device, label in (("cpu", "on CPU"), ("cuda", "on CUDA")):
            state_dropout = module.settings.variational and module.settings.dropout > 0
            chosen = dispatch_layer(cell, device, state_dropout=state_dropout)
            yield f"  {label}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.rejected.items())


def _describe_attentions(model: Seq2Seq) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, Attention):
            continue
        parts = (module.score, module.scope, module.select)
        names = " × ".join(type(part).__name__ for part in parts)
        yield ""
        yield f"{name}: {names}, {quantity(module.heads, 'head')}"
        yield f"  {module.score.equation}"
        if module.stepwise:
            yield "  runs step by step, because it depends on the weights of previous steps"
        for weights, when in ((False, "training and prediction"), (True, "returning weights")):
            chosen = dispatch_attention(*parts, weights=weights or module.stepwise or module.select.marginal)
            yield f"  {when}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.rejected.items())
