"""Export to CTranslate2, a fast inference engine for Transformers (https://opennmt.net/CTranslate2)."""

from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import sinusoidal_positions
from regard.errors import ConfigError
from regard.export.exporter import Exporter, TrainedModel, count_positions, find_transformer_obstacles
from regard.models.settings import TransformerModel
from regard.models.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    TransformerDecoder,
    TransformerEncoder,
)

Precision = Literal["float32", "bfloat16", "int8"]


@final
class CTranslate2Exporter(Exporter):
    """A model of CTranslate2, with the tokenizers of the run: a Transformer with sinusoidal positions."""

    def __init__(self, precision: Precision = "float32") -> None:
        self.precision = precision

    def find_obstacle(self, model: TrainedModel) -> str | None:
        supported = {"normalization": "layer", "epsilon": None, "positions": "sinusoidal"}
        return " ".join(find_transformer_obstacles(model.settings.model, supported)) or None

    def write(self, model: TrainedModel, folder: Path) -> None:
        source, target = (side.tokens(range(len(side))) for side in model.tokenizers)
        save_ct2(model, folder, self.precision, (source, target))
        model.tokenizers.save(lambda name, content: (folder / name).write_bytes(content))


def save_ct2(
    model: TrainedModel, folder: Path, precision: Precision, tokens: tuple[list[str], list[str]], **config: object
) -> None:
    """Save a model with the tokens of source and target, and options of the config.json of CTranslate2."""
    spec = _build_spec(model)
    spec.register_source_vocabulary(tokens[0])
    spec.register_target_vocabulary(tokens[1])
    for name, value in config.items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(folder))


def _build_spec(model: TrainedModel) -> Any:
    """Return the specification of CTranslate2 with the weights of the model."""
    try:
        from ctranslate2.specs import Activation, TransformerSpec
    except ImportError:
        raise ConfigError(
            "This format requires the package ctranslate2, which is not installed. Run pip install 'regard[fast]'."
        ) from None
    settings, encoder, decoder = model.settings.model, model.network.encoder, model.network.decoder
    assert isinstance(settings, TransformerModel)
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    activations = {"relu": Activation.RELU, "gelu": Activation.GELU, "silu": Activation.SWISH}
    spec = TransformerSpec.from_config(
        (settings.layers, settings.attention_layers),
        settings.heads,
        pre_norm=settings.norm == "pre",
        activation=activations[settings.activation],
    )
    positions = sinusoidal_positions(count_positions(model.settings), settings.size)
    spec.encoder.embeddings[0].weight = _array(encoder.embedding.tokens.weight)
    spec.decoder.embeddings.weight = _array(decoder.embedding.tokens.weight)
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = _array(positions)
    for encoder_layer, encoder_spec in zip(encoder.layers, spec.encoder.layer, strict=True):
        assert isinstance(encoder_layer, EncoderLayer)
        _set_attention(encoder_spec.self_attention, encoder_layer.attention, encoder_layer.after_attention)
        _set_feedforward(encoder_spec.ffn, encoder_layer.feedforward, encoder_layer.after_feedforward)
    for decoder_layer, decoder_spec in zip(decoder.layers, spec.decoder.layer, strict=True):
        assert isinstance(decoder_layer, DecoderLayer)
        _set_attention(decoder_spec.self_attention, decoder_layer.self_attention, decoder_layer.after_self)
        _set_attention(decoder_spec.attention, decoder_layer.cross_attention, decoder_layer.after_cross, cross=True)
        _set_feedforward(decoder_spec.ffn, decoder_layer.feedforward, decoder_layer.after_feedforward)
    if settings.norm == "pre":
        _set_norm(spec.encoder.layer_norm, encoder.norm)
        _set_norm(spec.decoder.layer_norm, decoder.norm)
    _set_linear(spec.decoder.projection, decoder.output)
    return spec


def _set_attention(spec: Any, attention: MultiHeadAttention, residual: Residual, *, cross: bool = False) -> None:
    """Set the projections. CTranslate2 concatenates those of the same input."""
    query, key, value = (_linear(each) for each in (attention.to_query, attention.to_key, attention.to_value))
    groups = ((query,), (key, value)) if cross else ((query, key, value),)
    for linear_spec, group in zip(spec.linear, (*groups, (_linear(attention.output),)), strict=True):
        linear_spec.weight = np.concatenate([weight for weight, _ in group])
        linear_spec.bias = np.concatenate([bias for _, bias in group])
    _set_norm(spec.layer_norm, residual.norm)


def _set_feedforward(spec: Any, feedforward: FeedForward, residual: Residual) -> None:
    _set_linear(spec.linear_0, feedforward.inner)
    _set_linear(spec.linear_1, feedforward.outer)
    _set_norm(spec.layer_norm, residual.norm)


def _linear(module: nn.Module) -> tuple[Any, Any]:
    assert isinstance(module, nn.Linear)
    return _array(module.weight), _array(module.bias)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().float().numpy().copy()  # CTranslate2 quantizes in place
