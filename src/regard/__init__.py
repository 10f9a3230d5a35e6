"""regard: sequence-to-sequence learning with attention. Train models, run them fast, and inspect their attention."""

import importlib
from typing import TYPE_CHECKING, Any

from regard.version import __version__ as __version__

if TYPE_CHECKING:
    from regard.api.model import Model, load
    from regard.api.training import Run, train
    from regard.attention.attention import Attention
    from regard.attention.equation import attend
    from regard.attention.mechanisms import mechanisms
    from regard.attention.multihead import MultiHeadAttention
    from regard.attention.positions import sinusoidal_positions
    from regard.attention.record import record
    from regard.attention.scores import InnerProduct, Score, register_score
    from regard.errors import (
        ArgumentTypeError,
        ConfigError,
        DataError,
        DivergedError,
        Interrupted,
        ModelError,
        RegardError,
        ResourceError,
        RunInUseError,
    )
    from regard.inspection.prediction import Prediction
    from regard.inspection.trace import Trace
    from regard.recurrent.modules import GRU, LSTM, RNN
    from regard.runs.callbacks import Callback, SaveInfo, ScheduleInfo, StepInfo, ValidationInfo
    from regard.training.planning import choose


_MODULES = {
    "ArgumentTypeError": "regard.errors",
    "Attention": "regard.attention.attention",
    "Callback": "regard.runs.callbacks",
    "ConfigError": "regard.errors",
    "DataError": "regard.errors",
    "DivergedError": "regard.errors",
    "GRU": "regard.recurrent.modules",
    "InnerProduct": "regard.attention.scores",
    "LSTM": "regard.recurrent.modules",
    "RNN": "regard.recurrent.modules",
    "Interrupted": "regard.errors",
    "Model": "regard.api.model",
    "ModelError": "regard.errors",
    "MultiHeadAttention": "regard.attention.multihead",
    "Prediction": "regard.inspection.prediction",
    "RegardError": "regard.errors",
    "ResourceError": "regard.errors",
    "Run": "regard.api.training",
    "RunInUseError": "regard.errors",
    "SaveInfo": "regard.runs.callbacks",
    "ScheduleInfo": "regard.runs.callbacks",
    "Score": "regard.attention.scores",
    "StepInfo": "regard.runs.callbacks",
    "Trace": "regard.inspection.trace",
    "ValidationInfo": "regard.runs.callbacks",
    "attend": "regard.attention.equation",
    "choose": "regard.training.planning",
    "load": "regard.api.model",
    "mechanisms": "regard.attention.mechanisms",
    "record": "regard.attention.record",
    "register_score": "regard.attention.scores",
    "sinusoidal_positions": "regard.attention.positions",
    "train": "regard.api.training",
}
"""The module of each public name. It is imported on first use, so that `import regard` does not import torch."""

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "ArgumentTypeError",
    "Attention",
    "Callback",
    "ConfigError",
    "DataError",
    "DivergedError",
    "InnerProduct",
    "Interrupted",
    "Model",
    "ModelError",
    "MultiHeadAttention",
    "Prediction",
    "RegardError",
    "ResourceError",
    "Run",
    "RunInUseError",
    "SaveInfo",
    "ScheduleInfo",
    "Score",
    "StepInfo",
    "Trace",
    "ValidationInfo",
    "attend",
    "choose",
    "load",
    "mechanisms",
    "record",
    "register_score",
    "sinusoidal_positions",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
