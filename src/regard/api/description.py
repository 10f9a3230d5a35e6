"""Descriptions of models and runs: as text, as a table in notebooks, and for traces."""

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from regard.version import __version__

if TYPE_CHECKING:
    from regard.api.model import Model


def to_text(model: "Model") -> str:
    """Return the names and values of `summarize`, one per line."""
    return format_summary("Model", summarize(model))


def to_html(model: "Model") -> str:
    """Return the names and values of `summarize` as a table."""
    return summary_to_html("regard.Model", summarize(model))


def format_summary(title: str, summary: Mapping[str, str]) -> str:
    """Format names and values as text, one per line."""
    width = max(map(len, summary)) + 3
    lines = (f"  {name + ':':<{width}}{value}\n" for name, value in summary.items())
    return f"{title}(\n{''.join(lines)})"


def summary_to_html(title: str, summary: Mapping[str, str]) -> str:
    """Format names and values as a table."""
    rows = (
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in summary.items()
    )
    return f"<table><caption>{title}</caption>{''.join(rows)}</table>"


def summarize(model: "Model") -> dict[str, str]:
    """Return the architecture, the size and the training of a model, for people."""
    reader, tokenizer = model.predictor.reader, model.predictor.tokenizer
    source_tokens = "" if reader.vocabulary_size is None else f"{reader.vocabulary_size:,} source tokens, "
    prefix = f"ensemble of {model.members} models, the first: " if model.members > 1 else ""
    summary = {
        "architecture": prefix + model.settings.model.architecture,
        "parameters": f"{sum(parameter.numel() for parameter in model.network.parameters()):,}",
        "vocabulary": f"{source_tokens}{len(tokenizer):,} target tokens",
        "step": f"{model.step:,}",
        "device": str(model.device),
    }
    if model.dtype != torch.float32:
        summary["dtype"] = str(model.dtype).removeprefix("torch.")
    if model.scores is not None:
        summary["validation"] = model.scores.describe(model.settings.training.metric)
    return summary


def describe(model: "Model") -> dict[str, Any]:
    """Return the architecture, settings and training step of a model, for programs."""
    return {
        "architecture": model.settings.model.architecture,
        "members": model.members,
        "step": model.step,
        "dtype": str(model.dtype).removeprefix("torch."),
        "version": __version__,
        "settings": model.settings.model.model_dump(mode="json"),
    }
