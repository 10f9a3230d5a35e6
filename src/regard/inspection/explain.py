"""What a config computes, and which kernels it takes and why."""

import re
from collections.abc import Iterator

import torch

from regard.attention import kernels
from regard.attention.attention import Attention
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel

VOCABULARY = 1000
"""Stands in for the size of a vocabulary that is known only once the data is read."""


def explain(settings: RecurrentModel) -> str:
    """The attentions of a model, each with its parts and its plan; nothing is allocated."""
    with torch.device("meta"):
        model = build_model(settings, VOCABULARY, VOCABULARY)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    head = f"{settings.kind} model, {parameters:,} parameters with vocabularies of {VOCABULARY:,}"
    return "\n".join([head, *_attentions(model)])


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
            plan = kernels.plan(*parts, weights=weights or module.stepwise or module.select.marginal)
            yield f"  {when}: {plan.path}"
            yield from (f"    not {path}: {reason}" for path, reason in plan.refused.items())


def _equation(module: Attention) -> str:
    """A score's docstring begins with its equation, up to the citation or the words about it."""
    paragraph = " ".join((type(module.score).__doc__ or "").split("\n\n")[0].split())
    return re.split(r" \([A-Z][a-z]+ et al| \(the form|: |; |\. ", paragraph)[0].rstrip(".")
