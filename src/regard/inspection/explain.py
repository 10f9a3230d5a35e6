"""What a config computes, and which kernels it takes and why."""

import re
from collections.abc import Iterator

import torch

from regard.attention.attention import Attention
from regard.attention.dispatch import dispatch_attention
from regard.models.attentive import AttentiveDecoder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import Model
from regard.recurrent.cells import Cell
from regard.recurrent.dispatch import dispatch_layer
from regard.recurrent.layers import Stack
from regard.recurrent.settings import GRU, LSTM, VARIANTS

VOCABULARY = 1000
"""Stands in for the size of a vocabulary that is known only once the data is read."""


def explain(settings: Model) -> str:
    """The networks and attentions of a model, each with its parts and its implementation; nothing is allocated."""
    with torch.device("meta"):
        model = build_model(settings, VOCABULARY, VOCABULARY)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    head = f"{settings.kind} model, {parameters:,} parameters with vocabularies of {VOCABULARY:,}"
    return "\n".join([head, *_networks(model), *_attentions(model)])


def _networks(model: Seq2Seq) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, Stack):
            continue
        cell = module.cells[0]
        assert isinstance(cell, Cell)
        depth = f"{module.settings.layers} layer{'s' if module.settings.layers > 1 else ''}"
        yield ""
        yield f"{name}: {_cell(module)}, {depth}, {'both directions' if module.directions > 1 else 'one direction'}"
        decoder = model.decoder
        if isinstance(decoder, AttentiveDecoder) and decoder.stepwise and module in decoder.stacks:
            yield "  goes step by step: attention stands between the steps"
            continue
        for device, place in (("cpu", "on a CPU"), ("cuda", "on CUDA")):
            state_dropout = module.settings.variational and module.settings.dropout > 0
            chosen = dispatch_layer(cell, device, state_dropout=state_dropout)
            yield f"  {place}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.refused.items())


def _cell(stack: Stack) -> str:
    """A cell by its name and what is unusual about it."""
    cell = stack.settings.cell
    if isinstance(cell, LSTM):
        form = stack.settings.lstm_variant
        names = [name for name, known in VARIANTS.items() if known == form and form.non_default]
        return " ".join(["LSTM", *(names or (f"{name}={value}" for name, value in form.non_default.items()))])
    return f"GRU, reset {cell.reset} the product" if isinstance(cell, GRU) else f"RNN with {cell.activation}"


def _attentions(model: Seq2Seq) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, Attention):
            continue
        parts = (module.score, module.scope, module.select)
        kinds = " × ".join(type(part).__name__ for part in parts)
        yield ""
        yield f"{name}: {kinds}, {module.heads} head{'s' if module.heads > 1 else ''}"
        yield f"  {_equation(module)}"
        if module.stepwise:
            yield "  goes step by step: it looks at the steps before"
        for weights, when in ((False, "training and predicting"), (True, "while its weights are recorded")):
            chosen = dispatch_attention(*parts, weights=weights or module.stepwise or module.select.marginal)
            yield f"  {when}: {chosen.path}"
            yield from (f"    not {path}: {reason}" for path, reason in chosen.refused.items())


def _equation(module: Attention) -> str:
    """A score's docstring begins with its equation, up to the citation or the words about it."""
    paragraph = " ".join((type(module.score).__doc__ or "").split("\n\n")[0].split())
    return re.split(r" \([A-Z][a-z]+ et al| \(the form|: |; |\. ", paragraph)[0].rstrip(".")
