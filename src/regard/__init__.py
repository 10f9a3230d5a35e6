"""regard: sequence-to-sequence learning with attention. Train models, run them fast, and inspect their attention."""

import importlib
from typing import TYPE_CHECKING, Any

from regard.version import __version__ as __version__

if TYPE_CHECKING:
    from regard.api.comparing import compare
    from regard.api.model import Model, load
    from regard.api.training import Run, train
    from regard.attention.attention import Attention
    from regard.attention.equation import attend
    from regard.attention.mechanisms import mechanisms
    from regard.attention.multihead import MultiHeadAttention
    from regard.attention.positions import sinusoidal_positions
    from regard.attention.record import record
    from regard.attention.scopes import Scope, ScopeInput, ScopeOutput, register_scope
    from regard.attention.scores import InnerProduct, Score, register_score
    from regard.attention.selections import Selected, Selection, register_selection
    from regard.cluster.sweep.results import Sweep
    from regard.cluster.sweep.sweeping import sweep
    from regard.data.corpora import Corpus, Pairs, register_corpus
    from regard.data.source_readers import register_reader
    from regard.data.sources import LazySources, SourceItem, SourceReader
    from regard.errors import (
        ArgumentTypeError,
        ConfigError,
        DataError,
        DivergedError,
        Interrupted,
        ModelError,
        RankError,
        RegardError,
        ResourceError,
        RunInUseError,
    )
    from regard.evaluation.metrics import MetricStatistics, ModelOutputs, register_metric
    from regard.export.exporter import Exporter, TrainedModel
    from regard.export.targets import register_exporter
    from regard.inspection.attribution.attribution import Attribution
    from regard.inspection.compare.comparison import Comparison
    from regard.inspection.explain.explanation import Explanation, explain
    from regard.inspection.prediction import Prediction
    from regard.inspection.trace.trace import Trace
    from regard.models.contracts import Decoded, Decoder, Encoder, Grid, Memory, Source, Tokens
    from regard.models.seq2seq import Seq2Seq, register_decoder, register_encoder
    from regard.models.vision.sources import Pixels
    from regard.ops.reference_mode import reference_mode
    from regard.recurrent.cells import Cell, register_cell
    from regard.recurrent.modules import GRU, LSTM, RNN
    from regard.runs.callbacks import Callback, SaveInfo, ScheduleInfo, StepInfo, ValidationInfo
    from regard.training.planning.choosing import choose


_MODULES = {
    "GRU": "regard.recurrent.modules",
    "LSTM": "regard.recurrent.modules",
    "RNN": "regard.recurrent.modules",
    "ArgumentTypeError": "regard.errors",
    "Attention": "regard.attention.attention",
    "Attribution": "regard.inspection.attribution.attribution",
    "Callback": "regard.runs.callbacks",
    "Cell": "regard.recurrent.cells",
    "ConfigError": "regard.errors",
    "Comparison": "regard.inspection.compare.comparison",
    "Corpus": "regard.data.corpora",
    "DataError": "regard.errors",
    "Decoded": "regard.models.contracts",
    "Decoder": "regard.models.contracts",
    "DivergedError": "regard.errors",
    "Encoder": "regard.models.contracts",
    "Exporter": "regard.export.exporter",
    "Explanation": "regard.inspection.explain.explanation",
    "Grid": "regard.models.contracts",
    "InnerProduct": "regard.attention.scores",
    "Interrupted": "regard.errors",
    "LazySources": "regard.data.sources",
    "Memory": "regard.models.contracts",
    "MetricStatistics": "regard.evaluation.metrics",
    "Model": "regard.api.model",
    "ModelError": "regard.errors",
    "ModelOutputs": "regard.evaluation.metrics",
    "MultiHeadAttention": "regard.attention.multihead",
    "Pairs": "regard.data.corpora",
    "Pixels": "regard.models.vision.sources",
    "Prediction": "regard.inspection.prediction",
    "RegardError": "regard.errors",
    "ResourceError": "regard.errors",
    "Run": "regard.api.training",
    "RankError": "regard.errors",
    "RunInUseError": "regard.errors",
    "SaveInfo": "regard.runs.callbacks",
    "ScheduleInfo": "regard.runs.callbacks",
    "Scope": "regard.attention.scopes",
    "ScopeInput": "regard.attention.scopes",
    "ScopeOutput": "regard.attention.scopes",
    "Score": "regard.attention.scores",
    "Selected": "regard.attention.selections",
    "Selection": "regard.attention.selections",
    "Seq2Seq": "regard.models.seq2seq",
    "Source": "regard.models.contracts",
    "SourceItem": "regard.data.sources",
    "SourceReader": "regard.data.sources",
    "StepInfo": "regard.runs.callbacks",
    "Sweep": "regard.cluster.sweep.results",
    "Tokens": "regard.models.contracts",
    "Trace": "regard.inspection.trace.trace",
    "TrainedModel": "regard.export.exporter",
    "ValidationInfo": "regard.runs.callbacks",
    "attend": "regard.attention.equation",
    "choose": "regard.training.planning.choosing",
    "compare": "regard.api.comparing",
    "explain": "regard.inspection.explain.explanation",
    "load": "regard.api.model",
    "mechanisms": "regard.attention.mechanisms",
    "record": "regard.attention.record",
    "reference_mode": "regard.ops.reference_mode",
    "register_cell": "regard.recurrent.cells",
    "register_corpus": "regard.data.corpora",
    "register_decoder": "regard.models.seq2seq",
    "register_encoder": "regard.models.seq2seq",
    "register_exporter": "regard.export.targets",
    "register_metric": "regard.evaluation.metrics",
    "register_reader": "regard.data.source_readers",
    "register_scope": "regard.attention.scopes",
    "register_score": "regard.attention.scores",
    "register_selection": "regard.attention.selections",
    "sinusoidal_positions": "regard.attention.positions",
    "sweep": "regard.cluster.sweep.sweeping",
    "train": "regard.api.training",
}
"""The module of each public name. It is imported on first use, so that `import regard` does not import torch."""

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "ArgumentTypeError",
    "Attention",
    "Attribution",
    "Callback",
    "Cell",
    "Comparison",
    "ConfigError",
    "Corpus",
    "DataError",
    "Decoded",
    "Decoder",
    "DivergedError",
    "Encoder",
    "Explanation",
    "Exporter",
    "Grid",
    "InnerProduct",
    "Interrupted",
    "LazySources",
    "Memory",
    "MetricStatistics",
    "Model",
    "ModelError",
    "ModelOutputs",
    "MultiHeadAttention",
    "Pairs",
    "Pixels",
    "Prediction",
    "RankError",
    "RegardError",
    "ResourceError",
    "Run",
    "RunInUseError",
    "SaveInfo",
    "ScheduleInfo",
    "Scope",
    "ScopeInput",
    "ScopeOutput",
    "Score",
    "Selected",
    "Selection",
    "Seq2Seq",
    "Source",
    "SourceItem",
    "SourceReader",
    "StepInfo",
    "Sweep",
    "Tokens",
    "Trace",
    "TrainedModel",
    "ValidationInfo",
    "attend",
    "choose",
    "compare",
    "explain",
    "load",
    "mechanisms",
    "record",
    "reference_mode",
    "register_cell",
    "register_corpus",
    "register_decoder",
    "register_encoder",
    "register_exporter",
    "register_metric",
    "register_reader",
    "register_scope",
    "register_score",
    "register_selection",
    "sinusoidal_positions",
    "sweep",
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
