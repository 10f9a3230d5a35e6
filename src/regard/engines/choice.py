"""The engines of a model, and the choice between them."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from regard.decoding.engine import Engine, Request
from regard.decoding.predictor import Predictor
from regard.decoding.settings import EngineName, Precision
from regard.engines.ct2 import CTranslate2Engine
from regard.engines.onnx import OnnxEngine
from regard.errors import ConfigError
from regard.export.exporter import TrainedModel
from regard.ops.int8 import quantized_copy

log = logging.getLogger(__name__)


def build_engines(predictor: Predictor, model: TrainedModel, precision: Precision) -> dict[str, Engine]:
    """Return the engines of a model by name, the fastest first.

    ONNX Runtime is last: the time that it takes to convert a model is saved only after about 100,000 sentences, if at
    all (docs/results/speed-of-prediction.md).
    """
    reference = replace(predictor, model=quantized_copy(predictor.model)) if precision == "int8" else predictor
    engines = CTranslate2Engine(predictor, model, precision), reference, OnnxEngine(predictor, model)
    return {engine.name: engine for engine in engines}


def choose_engine(engines: Mapping[str, Engine], name: EngineName, request: Request) -> Engine:
    """Return the engine with this name, and log the choice with its reason.

    For `auto`, return the first engine that supports the request and returns the same hypotheses as the reference. If
    there is none, return the first engine that supports the request.

    Raise ConfigError if the engine cannot compute what is requested.
    """
    if name != "auto":
        obstacle = engines[name].find_obstacle(request)
        if obstacle is not None:
            raise ConfigError(f"The engine {name} cannot be used: {obstacle}")
        log.info("The engine is %s, as requested.", name)
        return engines[name]
    obstacles = {name: engine.find_obstacle(request) for name, engine in engines.items()}
    usable = {name: engine for name, engine in engines.items() if obstacles[name] is None}
    if not usable:
        reasons = " ".join(f"{name}: {obstacle}" for name, obstacle in obstacles.items())
        raise ConfigError(f"No engine can be used. {reasons}")
    differences = {name: engine.find_difference(request) for name, engine in usable.items()}
    exact = [name for name in usable if differences[name] is None]
    chosen = exact[0] if exact else next(iter(usable))
    faster = list(engines)[: list(engines).index(chosen)]
    reasons = "".join(
        f" {name} is not used: {(obstacles[name] or differences[name] or '').removesuffix('.')}." for name in faster
    )
    log.info("The engine is %s.%s", chosen, reasons or " It is the fastest for this model and this search.")
    return usable[chosen]
