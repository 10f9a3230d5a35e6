"""The models of others with our weights, so that they must say what ours say: for benchmarks, and for tests."""

from types import SimpleNamespace
from typing import Any

import torch

from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.models.attentive import LuongDecoder
from regard.models.recurrent import RecurrentEncoder
from regard.models.seq2seq import Seq2Seq
from regard.models.settings import RecurrentModel, TransformerModel
from regard.recurrent.cells import Cell
from regard.recurrent.fast.cudnn import to_torch_weights


@torch.no_grad()
def marian(model: Seq2Seq, settings: TransformerModel, vocabulary: int, positions: int) -> Any:
    """Hugging Face's model with our weights. Its position table has all sines before all cosines where ours alternate,
    so every vector of width d is put into that order.
    """
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary, d_model=settings.size, encoder_layers=settings.layers, decoder_layers=settings.layers,
        encoder_attention_heads=settings.heads, decoder_attention_heads=settings.heads,
        encoder_ffn_dim=settings.feedforward, decoder_ffn_dim=settings.feedforward, activation_function="relu",
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=positions,
        scale_embedding=True, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=START, share_encoder_decoder_embeddings=True, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = MarianMTModel(config).to(model.decoder.embedding.tokens.weight.dtype).eval()  # type: ignore[union-attr, arg-type]
    order = torch.cat([torch.arange(0, settings.size, 2), torch.arange(1, settings.size, 2)])
    names = {
        "attention": "self_attn", "self_attention": "self_attn", "cross_attention": "encoder_attn",
        "to_query": "q_proj", "to_key": "k_proj", "to_value": "v_proj", "output": "out_proj",
        "feedforward": "", "inner": "fc1", "outer": "fc2", "norm": "",
        "after_attention": "self_attn_layer_norm", "after_self": "self_attn_layer_norm",
        "after_cross": "encoder_attn_layer_norm", "after_feedforward": "final_layer_norm",
    }  # fmt: skip
    found = dict(theirs.named_parameters())
    for side in ("encoder", "decoder"):
        for name, tensor in getattr(model, side).layers.named_parameters():
            path = ".".join(part for part in (names.get(part, part) for part in name.split(".")) if part)
            outward = not any(f".{part}." in f".{path}." for part in ("q_proj", "k_proj", "v_proj", "fc1"))
            inward = tensor.dim() == 2 and not any(f".{part}." in f".{path}." for part in ("out_proj", "fc2"))
            moved = tensor[order] if outward else tensor
            found[f"model.{side}.layers.{path}"].copy_(moved[:, order] if inward else moved)
    found["model.shared.weight"].copy_(model.decoder.embedding.tokens.weight[:, order])  # type: ignore[union-attr, index]
    return theirs


@torch.no_grad()
def joey(model: Seq2Seq, settings: RecurrentModel, vocabulary: int) -> Any:
    """Joey NMT's recurrent model with our weights: Luong's order with input feeding, one layer, GRU or LSTM. Its output
    layer has no bias, and its LSTM starts with a cell that equals its output: ours is made to be like it.
    """
    from joeynmt.decoders import RecurrentDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import RecurrentEncoder as JoeyEncoder
    from joeynmt.model import Model
    from joeynmt.vocabulary import Vocabulary

    cell, hidden, embedding = settings.decoder.cell.kind, settings.decoder.hidden, settings.embedding
    mechanism = {"additive": "bahdanau", "general": "luong"}[settings.attention.score.kind]
    encoder = JoeyEncoder(cell, settings.encoder.hidden, embedding, 1, bidirectional=True)
    decoder = RecurrentDecoder(cell, embedding, hidden, encoder, mechanism, 1, vocabulary)
    names = {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "bos", "eos")}
    numbers = {f"{name}_id": number for number, name in enumerate(("unk", "pad", "bos", "eos"))}
    words = Vocabulary([], SimpleNamespace(**names, **numbers, sep_token=None, lang_tags=[]))
    tables = [Embeddings(embedding, False, vocabulary, PAD) for _ in range(2)]
    theirs = Model(encoder, decoder, *tables, words, words).eval()
    theirs.pad_index, theirs.unk_index, theirs.bos_index, theirs.eos_index = PAD, UNKNOWN, START, END
    own, ours = model.encoder, model.decoder
    assert isinstance(own, RecurrentEncoder)
    assert isinstance(ours, LuongDecoder)
    ours.readout.output.bias.zero_()
    for half in ours.bridge.weight.split(hidden), ours.bridge.bias.split(hidden):  # type: ignore[no-untyped-call]
        half[-1].copy_(half[0])
    score = ours.attention.score
    for target, source in (
        (theirs.src_embed.lut.weight, own.embedding.weight),
        (theirs.trg_embed.lut.weight, ours.embedding.weight),
        (decoder.bridge_layer.weight, ours.bridge.weight[:hidden]),
        (decoder.bridge_layer.bias, ours.bridge.bias[:hidden]),
        (decoder.att_vector_layer.weight, ours.readout.hidden.weight),
        (decoder.att_vector_layer.bias, ours.readout.hidden.bias),
        (decoder.output_layer.weight, ours.readout.output.weight),
        (decoder.attention.key_layer.weight, score.key.weight[0]),
    ):
        target.copy_(source)
    if mechanism == "bahdanau":
        decoder.attention.query_layer.weight.copy_(score.query.weight[0])
        decoder.attention.energy_layer.weight.copy_(score.v)
    for network, cells in ((encoder.rnn, own.layers.cells), (decoder.rnn, ours.layers.cells)):
        for found, suffix in zip(cells, ("", "_reverse"), strict=False):
            assert isinstance(found, Cell)
            for part, values in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), to_torch_weights(found), strict=True
            ):
                getattr(network, f"{part}_l0{suffix}").copy_(values)
    return theirs
