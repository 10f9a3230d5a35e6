"""The Transformer against those of torch.nn and Hugging Face (Marian), with equal weights; and its published sizes."""

from typing import Any

import pytest
import torch
from torch import nn

import regard
from peers import marian
from regard.config import resolve
from regard.data.batching import pad
from regard.models import embedding
from regard.models.contracts import Tokens
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
        for parameter in model.parameters():  # also biases and norms, which are initialized to 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def copy_weights(target: nn.Module, source: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def copy_attention(target: nn.MultiheadAttention, source: regard.MultiHeadAttention) -> None:
    assert isinstance(source.to_key, nn.Linear)
    parts = (source.to_query, source.to_key, source.to_value)
    assert target.in_proj_weight is not None
    target.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    target.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    copy_weights(target.out_proj, source.output)


@torch.no_grad()
def to_torch(model: Seq2Seq, activation: str, pre_norm: bool) -> nn.Transformer:
    """Return a torch.nn.Transformer with the same weights. It normalizes the output of both stacks; ours does so only
    with pre-norm.
    """
    module = nn.Transformer(
        SIZE, HEADS, LAYERS, LAYERS, INNER, 0.0, activation, norm_first=pre_norm, batch_first=True, dtype=torch.float64
    ).eval()
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    for ours, layer in zip(model.encoder.layers, module.encoder.layers, strict=True):
        assert isinstance(ours, EncoderLayer)
        copy_attention(layer.self_attn, ours.attention)
        copy_weights(layer.linear1, ours.feedforward.inner)
        copy_weights(layer.linear2, ours.feedforward.outer)
        copy_weights(layer.norm1, ours.after_attention.norm)
        copy_weights(layer.norm2, ours.after_feedforward.norm)
    for ours, layer in zip(model.decoder.layers, module.decoder.layers, strict=True):
        assert isinstance(ours, DecoderLayer)
        copy_attention(layer.self_attn, ours.self_attention)
        copy_attention(layer.multihead_attn, ours.cross_attention)
        copy_weights(layer.linear1, ours.feedforward.inner)
        copy_weights(layer.linear2, ours.feedforward.outer)
        copy_weights(layer.norm1, ours.after_self.norm)
        copy_weights(layer.norm2, ours.after_cross.norm)
        copy_weights(layer.norm3, ours.after_feedforward.norm)
    if pre_norm:
        copy_weights(module.encoder.norm, model.encoder.norm)
        copy_weights(module.decoder.norm, model.decoder.norm)
    else:
        module.encoder.norm = module.decoder.norm = None
    return module


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch(norm: str, activation: str) -> None:
    model = build(norm=norm, activation=activation)
    module = to_torch(model, activation, norm == "pre")
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    x, y = model.encoder.embedding(SOURCE.tokens_BT), model.decoder.embedding(TOKENS)
    padding = ~SOURCE.valid_BT
    future = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    hidden = module(
        x, y, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
    )
    torch.testing.assert_close(model(SOURCE, TOKENS).logits_BTV, model.decoder.output(hidden), rtol=1e-9, atol=1e-9)


def test_equals_marian() -> None:
    pytest.importorskip("transformers")
    model = build(tied="all")
    module = marian(model, resolve(TransformerModel, {**SMALL, "tied": "all"}, {}), V, 64)
    with torch.no_grad():
        expected = module(
            input_ids=SOURCE.tokens_BT, attention_mask=SOURCE.valid_BT.long(), decoder_input_ids=TOKENS
        ).logits
    torch.testing.assert_close(model(SOURCE, TOKENS).logits_BTV, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "vocabulary", "millions"), [("transformer-base", 37_000, 65), ("transformer-big", 37_000, 213)]
)
def test_published_sizes_have_the_published_number_of_parameters(name: str, vocabulary: int, millions: int) -> None:
    settings = resolve(RunSettings, {"data": "dates", "model": name}, {})
    with torch.device("meta"):
        model = build_model(settings.model, vocabulary, vocabulary)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.035)


def test_settings_override_a_named_size() -> None:
    settings = resolve(RunSettings, {"data": "dates"}, {"model": "transformer-tiny", "model.dropout": 0.2})
    assert isinstance(settings.model, TransformerModel)
    assert (settings.model.size, settings.model.layers, settings.model.dropout) == (128, 4, 0.2)
    with pytest.raises(regard.ConfigError, match="transformer"):
        resolve(RunSettings, {"data": "dates"}, {"model": "transfomer"})


@pytest.mark.parametrize(("tied", "count"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tied_layers_share_a_matrix(tied: str, count: int) -> None:
    model = build(tied=tied)
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    matrices = {
        model.encoder.embedding.tokens.weight,
        model.decoder.embedding.tokens.weight,
        model.decoder.output.weight,
    }
    assert len(matrices) == count


def test_tying_all_embeddings_requires_a_shared_vocabulary() -> None:
    with pytest.raises(regard.ConfigError, match=r"tokenizer\.shared=true"):
        resolve(
            RunSettings,
            {"data": "dates", "tokenizer": {"kind": "char", "shared": False}},
            {"model": "transformer-tiny"},
        )


def test_rotary_positions_depend_on_distances_only() -> None:
    """Shifting queries and keys by the same offset does not change the output."""
    heads = regard.MultiHeadAttention(8, 2, rotary=True).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    expected = heads.read(x, heads.prepare(x), heads.attention.begin(heads.prepare(x))).context_BTD
    keys = heads.prepare(x, start=7)
    shifted = heads.read(x, keys, heads.attention.begin(keys), start=7).context_BTD
    torch.testing.assert_close(shifted, expected)
    other_distance = heads.read(x, keys, heads.attention.begin(keys), start=6).context_BTD
    assert not torch.allclose(other_distance, expected)


def test_the_cache_grows_by_doubling_and_keeps_all_steps() -> None:
    model = build(layers=1)
    tokens = torch.randint(4, V, (2, 100))
    source = Tokens(SOURCE.tokens_BT[:2], SOURCE.lengths_B[:2])
    memory = model.encoder(source)
    expected = model.decoder(tokens, memory).logits_BTV
    keys, state = model.decoder.begin(memory)
    capacities = set()
    for step in range(100):
        logits, state = model.decoder.step(tokens[:, step], state, keys)
        torch.testing.assert_close(logits, expected[:, step])
        capacities.add(state.layers.cache.layers[0].values_BHSD.shape[2])
    assert capacities == {32, 64, 128}


def test_gradient_checkpointing_saves_memory_and_keeps_the_gradients() -> None:
    settings = {"size": 16, "heads": 2, "layers": 3, "feedforward": 32, "dropout": 0.3}
    source = Tokens(torch.randint(4, 20, (3, 7)), torch.tensor([7, 5, 2]))
    tokens = torch.randint(4, 20, (3, 6))
    gradients, saved = [], []
    for gradient_checkpointing in (False, True):
        torch.manual_seed(0)
        model = build_model(
            resolve(TransformerModel, {**settings, "gradient_checkpointing": gradient_checkpointing}, {}), 20, 20
        )
        sizes: list[int] = []

        def record_size(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
            loss = model(source, tokens).logits_BTV.square().mean()
        loss.backward()
        saved.append(sum(sizes))
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert saved[1] < saved[0] / 2
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name])


def test_torch_compile_treats_sinusoidal_positions_as_constants() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None))  # type: ignore[no-untyped-call]
    assert marks
    assert vars(embedding._get_sinusoids).items() >= marks.items()
