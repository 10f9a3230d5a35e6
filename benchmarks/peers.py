"""Models of other libraries with our weights, for benchmarks and tests: their outputs must equal ours."""

from types import SimpleNamespace
from typing import Any

import torch

from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.export.marian import alternate_positions, list_layer_parameters
from regard.models.attentive import LuongDecoder
from regard.models.recurrent import RecurrentEncoder
from regard.models.seq2seq import Seq2Seq
from regard.models.settings import RecurrentModel, TransformerModel
from regard.recurrent.cells import Cell
from regard.recurrent.fast.cudnn import to_torch_weights


@torch.no_grad()
def marian(model: Seq2Seq, settings: TransformerModel, vocabulary: int, positions: int) -> Any:
    """Build Hugging Face's Marian model with our weights."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary, d_model=settings.size, encoder_layers=settings.layers, decoder_layers=settings.layers,
        encoder_attention_heads=settings.heads, decoder_attention_heads=settings.heads,
        encoder_ffn_dim=settings.feedforward, decoder_ffn_dim=settings.feedforward, activation_function="relu",
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=positions,
        scale_embedding=True, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=START, share_encoder_decoder_embeddings=True, forced_eos_token_id=None,
    )  # fmt: skip
    peer = MarianMTModel(config).to(model.decoder.embedding.tokens.weight.dtype).eval()  # type: ignore[union-attr, arg-type]
    ours, theirs = model.state_dict(), dict(peer.named_parameters())
    order_D = torch.argsort(alternate_positions(settings.size))
    for parameter in list_layer_parameters(settings.size, settings.feedforward, settings.layers, settings.layers):
        tensor = ours[parameter.ours]
        permuted = tensor if parameter.axis is None else tensor.index_select(parameter.axis, order_D)
        theirs[parameter.theirs].copy_(permuted)
    theirs["model.shared.weight"].copy_(ours["encoder.embedding.tokens.weight"][:, order_D])
    return peer


@torch.no_grad()
def joey(model: Seq2Seq, settings: RecurrentModel, vocabulary: int) -> Any:
    """Build Joey NMT's recurrent model with our weights: Luong's order with input feeding, one layer, GRU or LSTM.

    Its output layer has no bias, and the initial cell state of its LSTM equals the initial hidden state. Our model is
    changed to match.
    """
    from joeynmt.decoders import RecurrentDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import RecurrentEncoder as JoeyEncoder
    from joeynmt.model import Model
    from joeynmt.vocabulary import Vocabulary

    cell, hidden, embedding = settings.decoder.cell.kind, settings.decoder.hidden, settings.embedding
    mechanism = {"additive": "bahdanau", "general": "luong"}[settings.attention.score.kind]
    encoder_hidden = (settings.encoder.memory_size or 0) // 2
    encoder = JoeyEncoder(cell, encoder_hidden, embedding, 1, bidirectional=True)
    decoder = RecurrentDecoder(cell, embedding, hidden, encoder, mechanism, 1, vocabulary)
    names = {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "bos", "eos")}
    numbers = {f"{name}_id": number for number, name in enumerate(("unk", "pad", "bos", "eos"))}
    words = Vocabulary([], SimpleNamespace(**names, **numbers, sep_token=None, lang_tags=[]))
    tables = [Embeddings(embedding, False, vocabulary, PAD) for _ in range(2)]
    peer = Model(encoder, decoder, *tables, words, words).eval()
    peer.pad_index, peer.unk_index, peer.bos_index, peer.eos_index = PAD, UNKNOWN, START, END
    our_encoder, our_decoder = model.encoder, model.decoder
    assert isinstance(our_encoder, RecurrentEncoder)
    assert isinstance(our_decoder, LuongDecoder)
    our_decoder.readout.output.bias.zero_()
    for half in our_decoder.bridge.weight.split(hidden), our_decoder.bridge.bias.split(hidden):  # type: ignore[no-untyped-call]
        half[-1].copy_(half[0])
    score = our_decoder.attention.score
    for target, source in (
        (peer.src_embed.lut.weight, our_encoder.embedding.weight),
        (peer.trg_embed.lut.weight, our_decoder.embedding.weight),
        (decoder.bridge_layer.weight, our_decoder.bridge.weight[:hidden]),
        (decoder.bridge_layer.bias, our_decoder.bridge.bias[:hidden]),
        (decoder.att_vector_layer.weight, our_decoder.readout.hidden.weight),
        (decoder.att_vector_layer.bias, our_decoder.readout.hidden.bias),
        (decoder.output_layer.weight, our_decoder.readout.output.weight),
        (decoder.attention.key_layer.weight, score.get_parameter("key.weight")[0]),
    ):
        target.copy_(source)
    if mechanism == "bahdanau":
        decoder.attention.query_layer.weight.copy_(score.get_parameter("query.weight")[0])
        decoder.attention.energy_layer.weight.copy_(score.v)
    for network, cells in ((encoder.rnn, our_encoder.layers.cells), (decoder.rnn, our_decoder.layers.cells)):
        for our_cell, suffix in zip(cells, ("", "_reverse"), strict=False):
            assert isinstance(our_cell, Cell)
            for part, values in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), to_torch_weights(our_cell), strict=True
            ):
                getattr(network, f"{part}_l0{suffix}").copy_(values)
    return peer
