"""The correspondence between models of Joey NMT (Kreutzer et al. 2019) and ours.

Its recurrent model is ours in the order of Luong et al. (2015), with an additive or a general score. The initial state
is the same in all layers and, for an LSTM, in h and c. Its Transformer has the same positions as ours, and another ε
in the normalization. It scales embeddings by √d only if an option is set; ours are always scaled in a Transformer, and
never in a recurrent network. Where this differs, the weights of the embeddings are divided or multiplied by √d, and are
no longer tied to the output layer.

V vocabulary, D width of embeddings, H width of a state.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.export.foreign_weights import ForeignWeights
from regard.export.joey_options import (
    ModelOptions,
    PartOptions,
    RecurrentModelOptions,
    RecurrentOptions,
    TransformerModelOptions,
    TransformerOptions,
)

_EPSILON = 1e-6
_SCORES = {"bahdanau": "additive", "luong": "general"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}

Converted = tuple[dict[str, Any], dict[str, Tensor]]


def convert_recurrent(
    model: RecurrentModelOptions, weights: ForeignWeights, source_ids: list[int], target_ids: list[int]
) -> Converted:
    """Return the settings and the weights of a recurrent model."""
    encoder, decoder = model.encoder, model.decoder
    size, memory, hidden = encoder.embeddings.embedding_dim, 2 * encoder.hidden_size, decoder.hidden_size
    tied, (source_VD, target_VD, output_VH) = _convert_embeddings(
        model, weights, source_ids, target_ids, [_find_scale(part) for part in (encoder, decoder)]
    )
    converted = {
        "encoder.embedding.weight": source_VD,
        "decoder.embedding.weight": target_VD,
        "decoder.readout.output.weight": output_VH,
        "decoder.readout.output.bias": torch.zeros(len(target_ids)),
        "decoder.readout.hidden.weight": weights.take(
            "decoder.att_vector_layer.weight", shape=(hidden, hidden + memory)
        ),
        "decoder.readout.hidden.bias": weights.take("decoder.att_vector_layer.bias", shape=(hidden,)),
        **_convert_bridge(decoder, memory, weights),
    }
    key = weights.take("decoder.attention.key_layer.weight", shape=(hidden, memory))
    converted["decoder.attention.score.key.weight"] = key.unsqueeze(0)
    if decoder.attention == "bahdanau":
        query = weights.take("decoder.attention.query_layer.weight", shape=(hidden, hidden))
        converted["decoder.attention.score.query.weight"] = query.unsqueeze(0)
        converted["decoder.attention.score.v"] = weights.take(
            "decoder.attention.energy_layer.weight", shape=(1, hidden)
        )
    inputs = size + (hidden if decoder.input_feeding else 0)
    converted |= dict(_convert_layers("encoder", encoder, ("", "_reverse"), size, weights))
    converted |= dict(_convert_layers("decoder", decoder, ("",), inputs, weights))
    settings = {
        "kind": "recurrent",
        "embedding": size,
        "encoder": {"kind": "recurrent", "bidirectional": True, **_describe_layers(encoder)},
        "decoder": {
            "order": "luong",
            "input_feeding": decoder.input_feeding,
            "bridge": "linear" if decoder.init_hidden == "last" else "tanh",
            **_describe_layers(decoder),
        },
        "attention": {"score": _SCORES[decoder.attention]},
        "dropout": decoder.embedding_dropout,
        "output_dropout": decoder.hidden_dropout,
        "tied": tied,
    }
    return settings, _drop_tied(converted, tied, "decoder.readout.output.weight", "decoder.embedding.weight")


def convert_transformer(
    model: TransformerModelOptions, weights: ForeignWeights, source_ids: list[int], target_ids: list[int]
) -> Converted:
    """Return the settings and the weights of a Transformer."""
    encoder, decoder = model.encoder, model.decoder
    scales = [_find_scale(part) / math.sqrt(part.hidden_size) for part in (encoder, decoder)]
    tied, (source_VD, target_VD, output_VD) = _convert_embeddings(model, weights, source_ids, target_ids, scales)
    converted = {
        "encoder.embedding.tokens.weight": source_VD,
        "decoder.embedding.tokens.weight": target_VD,
        "decoder.output.weight": output_VD,
    }
    sides = (("encoder", encoder, _ENCODER_LAYER), ("decoder", decoder, _DECODER_LAYER))
    for side, part, names in sides:
        weights.ignore(f"{side}.pe.pe")
        for theirs, ours, shape in _list_parameters(side, part, names):
            converted[ours] = weights.take(theirs, shape=shape)
    blocks = [_describe_blocks(part) for part in (encoder, decoder)]
    settings = {
        "kind": "transformer",
        **blocks[1],
        "layers": encoder.num_layers,
        "decoder_layers": decoder.num_layers,
        "tied": tied,
    }
    if blocks[0] != blocks[1]:
        settings["encoder"] = {"kind": "transformer", **blocks[0], "layers": encoder.num_layers}
    return settings, _drop_tied(converted, tied, "decoder.output.weight", "decoder.embedding.tokens.weight")


def _find_scale(part: PartOptions) -> float:
    return math.sqrt(part.embeddings.embedding_dim) if part.embeddings.scale else 1.0


def _convert_embeddings(
    model: ModelOptions, weights: ForeignWeights, source_ids: list[int], target_ids: list[int], scales: list[float]
) -> tuple[str, list[Tensor]]:
    """Return the value of model.tied, and the source embedding, the target embedding and the output layer, multiplied
    by their scales.
    """
    assert isinstance(model, RecurrentModelOptions | TransformerModelOptions)
    size, hidden = model.decoder.embeddings.embedding_dim, model.decoder.hidden_size
    source_VD = weights.take("src_embed.lut.weight", shape=(len(source_ids), size))[source_ids]
    target_VD = weights.take("trg_embed.lut.weight", shape=(len(target_ids), size))[target_ids]
    output_VH = weights.take("decoder.output_layer.weight", shape=(len(target_ids), hidden))[target_ids]
    tied = ("all" if model.tied_embeddings else "decoder") if model.tied_softmax else "none"
    if scales[1] != 1.0 or (tied == "all" and scales[0] != 1.0):
        tied = "none"
    return tied, [source_VD * scales[0], target_VD * scales[1], output_VH]


def _drop_tied(converted: dict[str, Tensor], tied: str, output: str, embedding: str) -> dict[str, Tensor]:
    """Remove the tensors that are tied to another one."""
    dropped = {"none": (), "decoder": (output,), "all": (output, embedding)}[tied]
    return {name: tensor for name, tensor in converted.items() if name not in dropped}


def _describe_layers(part: RecurrentOptions) -> dict[str, Any]:
    return {"cell": part.rnn_type, "hidden": part.hidden_size, "layers": part.num_layers, "dropout": part.dropout}


def _convert_layers(
    side: str, part: RecurrentOptions, directions: tuple[str, ...], inputs: int, weights: ForeignWeights
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all cells: the rows of an LSTM are ordered i, f, z, o in torch.nn, and i, f, o, z here."""
    hidden = part.hidden_size
    rows = hidden * (4 if part.rnn_type == "lstm" else 3)
    for layer in range(part.num_layers):
        width = hidden * len(directions) if layer else inputs
        for index, direction in enumerate(directions):
            shapes = {"weight_ih": (rows, width), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
            tensors = [
                weights.take(f"{side}.rnn.{name}_l{layer}{direction}", shape=shape) for name, shape in shapes.items()
            ]
            cell = f"{side}.layers.cells.{layer * len(directions) + index}"
            if part.rnn_type == "lstm":
                tensors = [_swap_last_gates(tensor) for tensor in tensors]
                tensors[2:] = [tensors[2] + tensors[3]]
            yield from zip(
                [f"{cell}.{name}" for name in ("weight_input", "weight_state", "bias_input", "bias_state")],
                tensors,
                strict=False,
            )


def _swap_last_gates(tensor: Tensor) -> Tensor:
    first, second, third, last = tensor.chunk(4)
    return torch.cat([first, second, last, third])


def _convert_bridge(decoder: RecurrentOptions, memory: int, weights: ForeignWeights) -> dict[str, Tensor]:
    """Return W and b of the initial state: of each layer and, for an LSTM, of h and c."""
    hidden = decoder.hidden_size
    weight_HD, bias_H = torch.zeros(hidden, memory), torch.zeros(hidden)
    if decoder.init_hidden == "bridge":
        weight_HD = weights.take("decoder.bridge_layer.weight", shape=(hidden, memory))
        bias_H = weights.take("decoder.bridge_layer.bias", shape=(hidden,))
    elif decoder.init_hidden == "last":  # of the forward direction, if the state is half as wide as the memory
        weight_HD = torch.eye(hidden, memory)
    copies = decoder.num_layers * (2 if decoder.rnn_type == "lstm" else 1)
    return {"decoder.bridge.weight": weight_HD.repeat(copies, 1), "decoder.bridge.bias": bias_H.repeat(copies)}


_ENCODER_LAYER = {
    "src_src_att": "attention",
    "layer_norm": "after_attention.norm",
    "feed_forward.layer_norm": "after_feedforward.norm",
}
_DECODER_LAYER = {
    "trg_trg_att": "self_attention",
    "src_trg_att": "cross_attention",
    "x_layer_norm": "after_self.norm",
    "dec_layer_norm": "after_cross.norm",
    "feed_forward.layer_norm": "after_feedforward.norm",
}
_PROJECTIONS = {"q_layer": "to_query", "k_layer": "to_key", "v_layer": "to_value", "output_layer": "output"}


def _describe_blocks(part: TransformerOptions) -> dict[str, Any]:
    return {
        "size": part.hidden_size,
        "heads": part.num_heads,
        "feedforward": part.ff_size,
        "activation": _ACTIVATIONS[part.activation],
        "norm": part.layer_norm,
        "epsilon": _EPSILON,
        "dropout": part.dropout,
        "attention_dropout": part.dropout,
        "activation_dropout": part.dropout,
    }


def _list_parameters(
    side: str, part: TransformerOptions, names: dict[str, str]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the tensors of all layers: their names in Joey NMT and in regard, and their shapes."""
    size, feedforward = part.hidden_size, part.ff_size
    modules: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(part.num_layers):
        theirs, ours = f"{side}.layers.{layer}", f"{side}.layers.{layer}"
        for their_name, our_name in names.items():
            projections = _PROJECTIONS if their_name.endswith("_att") else {}
            for their_part, our_part in projections.items():
                modules[f"{theirs}.{their_name}.{their_part}"] = f"{ours}.{our_name}.{our_part}", (size, size)
            if not projections:
                modules[f"{theirs}.{their_name}"] = f"{ours}.{our_name}", (size,)
        modules[f"{theirs}.feed_forward.pwff_layer.0"] = f"{ours}.feedforward.inner", (feedforward, size)
        modules[f"{theirs}.feed_forward.pwff_layer.3"] = f"{ours}.feedforward.outer", (size, feedforward)
    if part.layer_norm == "pre":
        modules[f"{side}.layer_norm"] = f"{side}.norm", (size,)
    for theirs, (ours, shape) in modules.items():
        yield f"{theirs}.weight", f"{ours}.weight", shape
        yield f"{theirs}.bias", f"{ours}.bias", shape[:1]
