"""The Transformer against torch.nn's and against Hugging Face's Marian, weight by weight; and its published sizes."""

from typing import Any

import pytest
import torch
from torch import nn

import regard
from peers import marian
from regard.config import resolve
from regard.data.batching import pad
from regard.models import transformer
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import TransformerModel
from regard.models.transformer import DecoderLayer, EncoderLayer, TransformerDecoder, TransformerEncoder
from regard.runs.settings import RunSettings

V, SIZE, HEADS, LAYERS, INNER = 13, 16, 4, 2, 24
SOURCE = pad([[4, 5, 6, 7, 8], [9, 10], [4, 4, 6]])
TOKENS = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 10], [2, 4, 9, 11]])
SMALL = {"size": SIZE, "heads": HEADS, "layers": LAYERS, "feedforward": INNER, "dropout": 0.0, "tied": "none"}


def build(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    model = build_model(resolve(TransformerModel, {**SMALL, **changes}, {}), V, V).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also biases and norms, which start at 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def put(target: nn.Module, source: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def put_attention(target: nn.MultiheadAttention, source: regard.MultiHeadAttention) -> None:
    parts = (source.to_query, source.to_key, source.to_value)
    assert target.in_proj_weight is not None
    target.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    target.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    put(target.out_proj, source.output)


@torch.no_grad()
def torchs(model: Seq2Seq, activation: str, first: bool) -> nn.Transformer:
    """torch.nn.Transformer with the same weights; it norms what comes out of either stack, which ours does only where
    the norm comes first.
    """
    theirs = nn.Transformer(
        SIZE, HEADS, LAYERS, LAYERS, INNER, 0.0, activation, norm_first=first, batch_first=True, dtype=torch.float64
    ).eval()
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    for ours, layer in zip(model.encoder.layers, theirs.encoder.layers, strict=True):
        assert isinstance(ours, EncoderLayer)
        put_attention(layer.self_attn, ours.attention)
        put(layer.linear1, ours.feedforward.inner)
        put(layer.linear2, ours.feedforward.outer)
        put(layer.norm1, ours.after_attention.norm)
        put(layer.norm2, ours.after_feedforward.norm)
    for own, layer in zip(model.decoder.layers, theirs.decoder.layers, strict=True):
        assert isinstance(own, DecoderLayer)
        put_attention(layer.self_attn, own.self_attention)
        put_attention(layer.multihead_attn, own.cross_attention)
        put(layer.linear1, own.feedforward.inner)
        put(layer.linear2, own.feedforward.outer)
        put(layer.norm1, own.after_self.norm)
        put(layer.norm2, own.after_cross.norm)
        put(layer.norm3, own.after_feedforward.norm)
    if first:
        put(theirs.encoder.norm, model.encoder.norm)
        put(theirs.decoder.norm, model.decoder.norm)
    else:
        theirs.encoder.norm = theirs.decoder.norm = None
    return theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch(norm: str, activation: str) -> None:
    model = build(norm=norm, activation=activation)
    theirs = torchs(model, activation, norm == "pre")
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    x, y = model.encoder.embedding(SOURCE.tokens_BT), model.decoder.embedding(TOKENS)
    padding = ~SOURCE.valid_BT
    future = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    hidden = theirs(
        x, y, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
    )
    torch.testing.assert_close(model(SOURCE, TOKENS).logits_BTV, model.decoder.output(hidden), rtol=1e-9, atol=1e-9)


def test_equals_marian() -> None:
    pytest.importorskip("transformers")
    model = build(tied="all")
    theirs = marian(model, resolve(TransformerModel, {**SMALL, "tied": "all"}, {}), V, 64)
    with torch.no_grad():
        expected = theirs(
            input_ids=SOURCE.tokens_BT, attention_mask=SOURCE.valid_BT.long(), decoder_input_ids=TOKENS
        ).logits
    torch.testing.assert_close(model(SOURCE, TOKENS).logits_BTV, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "vocabulary", "millions"), [("transformer-base", 37_000, 65), ("transformer-big", 37_000, 213)]
)
def test_the_published_sizes_have_the_published_numbers_of_parameters(
    name: str, vocabulary: int, millions: int
) -> None:
    settings = resolve(RunSettings, {"data": "dates", "model": name}, {})
    with torch.device("meta"):
        model = build_model(settings.model, vocabulary, vocabulary)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.035)


def test_a_size_by_name_can_be_changed() -> None:
    settings = resolve(RunSettings, {"data": "dates"}, {"model": "transformer-tiny", "model.dropout": 0.2})
    assert isinstance(settings.model, TransformerModel)
    assert (settings.model.size, settings.model.layers, settings.model.dropout) == (128, 4, 0.2)
    with pytest.raises(regard.ConfigError, match="transformer"):
        resolve(RunSettings, {"data": "dates"}, {"model": "transfomer"})


def test_tied_matrices_are_one() -> None:
    for tied, matrices in (("none", 3), ("decoder", 2), ("all", 1)):
        model = build(tied=tied)
        assert isinstance(model.encoder, TransformerEncoder)
        assert isinstance(model.decoder, TransformerDecoder)
        tables = {
            model.encoder.embedding.tokens.weight,
            model.decoder.embedding.tokens.weight,
            model.decoder.output.weight,
        }
        assert len(tables) == matrices


def test_embeddings_can_be_one_only_with_one_vocabulary() -> None:
    with pytest.raises(regard.ConfigError, match=r"tokenizer\.shared=true"):
        resolve(
            RunSettings,
            {"data": "dates", "tokenizer": {"kind": "char", "shared": False}},
            {"model": "transformer-tiny"},
        )


def test_rotary_positions_see_distances_alone() -> None:
    """A sentence moved as a whole (behind padding that nobody sees) is read as before."""
    heads = regard.MultiHeadAttention(8, 2, rotary=True).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    here = heads.read(x, heads.prepare(x), heads.attention.begin(heads.prepare(x))).context_BTD
    keys = heads.prepare(x, start=7)
    there = heads.read(x, keys, heads.attention.begin(keys), start=7).context_BTD
    torch.testing.assert_close(here, there)
    unturned = heads.read(x, keys, heads.attention.begin(keys), start=6).context_BTD
    assert not torch.allclose(here, unturned)


def test_the_cache_grows_by_doubling_and_forgets_nothing() -> None:
    model = build(layers=1)
    tokens = torch.randint(4, V, (2, 100))
    source = Padded(SOURCE.tokens_BT[:2], SOURCE.lengths_B[:2])
    memory = model.encoder(source)
    whole = model.decoder(tokens, memory).logits_BTV
    keys, state = model.decoder.begin(memory)
    rooms = set()
    for step in range(100):
        logits, state = model.decoder.step(tokens[:, step], state, keys)
        torch.testing.assert_close(logits, whole[:, step])
        rooms.add(state.layers.cache.stores[0].values_BHSD.shape[2])
    assert rooms == {32, 64, 128}


def test_layers_worked_out_again_have_the_same_gradients_and_keep_less() -> None:
    settings = {"size": 16, "heads": 2, "layers": 3, "feedforward": 32, "dropout": 0.3}
    source = Padded(torch.randint(4, 20, (3, 7)), torch.tensor([7, 5, 2]))
    given = torch.randint(4, 20, (3, 6))
    found, kept = [], []
    for gradient_checkpointing in (False, True):
        torch.manual_seed(0)
        model = build_model(
            resolve(TransformerModel, {**settings, "gradient_checkpointing": gradient_checkpointing}, {}), 20, 20
        )
        sizes: list[int] = []

        def note(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model(source, given).logits_BTV.square().mean()
        loss.backward()
        kept.append(sum(sizes))
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert kept[1] < kept[0] / 2
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])


def test_the_compiler_takes_positions_as_constants() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None))
    assert marks
    assert vars(transformer._sinusoids).items() >= marks.items()
