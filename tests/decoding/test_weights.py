"""Attention weights of hypotheses: those of a pass of the whole model over each, with every model and search."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.settings import CharTokenizer
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import START, TokenizerPair
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.models.contracts import Decoded, Decoder, Encoder, Memory, Source, Tokens
from regard.models.ensemble import ensemble
from regard.models.seq2seq import Seq2Seq, build_model
from tests_shared import ModelOnly

TEXTS = ["3 mai 2009", "", "2009-05-03 is a Sunday", "x", "May 3", "3. 5.", "mai"]
TOKENIZERS = TokenizerPair.build(CharTokenizer(shared=False), TEXTS, ["2009-05-03"])
GRU = {"kind": "recurrent", "embedding": 8, "encoder": {"hidden": 8}, "decoder": {"hidden": 8}}
TRANSFORMER = {"kind": "transformer", "size": 8, "heads": 2, "layers": 2, "feedforward": 12}
SEARCHES: list[dict[str, Any]] = [
    {},
    {"sample": True, "temperature": 6.0},
    {"beam": 3, "nbest": 3},
    {"beam": 4, "nbest": 2, "coverage_penalty": 0.7},
    {"sample": True, "nbest": 2, "temperature": 6.0},
    {"mbr_samples": 6, "nbest": 2, "temperature": 6.0},
]


def build(settings: dict[str, Any], seed: int = 0) -> Seq2Seq:
    """Build a model in float64 whose weights are large enough for hypotheses and attentions to differ."""
    torch.manual_seed(seed)
    model = build_model(
        ModelOnly.model_validate({"model": settings}).model, len(TOKENIZERS.source), len(TOKENIZERS.target)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.double().eval()


MODELS = {
    "gru": lambda: build(GRU),
    "lstmn": lambda: build(
        {**GRU, "kind": "lstmn", "decoder": {"hidden": 16, "fusion": "deep", "intra_attention": "dot"}}
    ),
    "transformer": lambda: build(TRANSFORMER),
    "ensemble": lambda: ensemble([build(GRU), build(TRANSFORMER), build(GRU, seed=1)]).eval(),
}


def predictor_of(model: Seq2Seq) -> Predictor:
    return Predictor(model, TextReader(TOKENIZERS.source, 100), TOKENIZERS.target, DecodingSettings(), max_length=100)


def direct_weights(model: Seq2Seq, source: Source, target: list[int]) -> dict[str, Tensor]:
    """Return the weights of the whole model for one pair, which has no padding."""
    with torch.inference_mode(), regard.record(model) as recording:
        model(source, torch.tensor([[START, *target]]))
    return {
        name: weights[0].flip(-2, -1) if name in recording.backward else weights[0]
        for name, weights in recording.weights.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_weights_equal_those_of_a_pass_of_the_whole_model(name: str, search: dict[str, Any]) -> None:
    model = MODELS[name]()
    predictor = predictor_of(model)
    sources = predictor.reader.read(TEXTS)
    predictions = predictor.predict(sources, SearchSettings(**search), attention=True)
    if search:  # hypotheses end at different steps
        assert len({len(hypothesis.tokens) for nbest in predictions for hypothesis in nbest}) > 2
    for source, nbest in zip(sources, predictions, strict=True):
        assert len(nbest) <= search.get("nbest", 1)
        for hypothesis in nbest:
            expected = direct_weights(model, predictor.reader.collate([source]), hypothesis.tokens)
            assert list(hypothesis.attentions) == list(expected)
            steps, slots = len(hypothesis.tokens), source.length
            for attention, weights in hypothesis.attentions.items():
                shape = {"encoder-self": (slots, slots), "decoder-self": (steps, steps), "cross": (steps, slots)}
                rows, columns = shape[predictor.attention_roles[attention]]
                np.testing.assert_allclose(weights, expected[attention][..., :rows, :columns].numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_source_is_encoded_once_and_its_hypotheses_are_read_at_most_once(name: str, search: dict[str, Any]) -> None:
    model = MODELS[name]()
    calls: list[nn.Module] = []
    for part in (model.encoder, model.decoder):
        part.register_forward_hook(lambda module, *_: calls.append(module))
    predictor = predictor_of(model)
    predictor.predict(predictor.reader.read(TEXTS), SearchSettings(**search), attention=True)
    assert calls == ([model.encoder] if search in SEARCHES[:2] else [model.encoder, model.decoder])
    calls.clear()
    predictor.predict(predictor.reader.read(TEXTS), SearchSettings(**search))
    assert calls == ([model.encoder, model.decoder] if "coverage_penalty" in search else [model.encoder])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_weights_do_not_change_the_hypotheses(name: str) -> None:
    predictor = predictor_of(MODELS[name]())
    sources = predictor.reader.read(TEXTS)
    for search in SEARCHES:
        settings = SearchSettings(**search)
        without = predictor.predict(sources, settings)
        assert not any(hypothesis.attentions for nbest in without for hypothesis in nbest)
        with_weights = predictor.predict(sources, settings, attention=True)
        assert [[h[:4] for h in nbest] for nbest in with_weights] == [[h[:4] for h in nbest] for nbest in without]


def test_the_roles_of_an_ensemble_are_those_of_its_models() -> None:
    roles = predictor_of(MODELS["ensemble"]()).attention_roles
    assert roles["encoder.encoders.1.layers.0.attention.attention"] == "encoder-self"
    assert roles["decoder.decoders.0.attention"] == "cross"
    assert roles["decoder.decoders.1.layers.1.self_attention.attention"] == "decoder-self"
    assert roles["decoder.decoders.1.layers.1.cross_attention.attention"] == "cross"
    assert len(roles) == 8


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_weights_of_an_empty_source_are_empty(name: str, search: dict[str, Any]) -> None:
    predictor = predictor_of(MODELS[name]())
    for nbest in predictor.predict(predictor.reader.read(["", " "]), SearchSettings(**search), attention=True):
        for hypothesis in nbest:
            assert hypothesis.tokens == []
            assert list(hypothesis.attentions) == list(predictor.attention_roles)
            assert all(weights.size == 0 for weights in hypothesis.attentions.values())


class PairEncoder(Encoder[Tokens]):
    """An encoder with one slot for every two tokens, so that slots and tokens differ in number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(TOKENIZERS.source), size)

    @property
    def size(self) -> int:
        return self.embedding.embedding_dim

    def forward(self, source: Tokens) -> Memory:
        embedded = nn.functional.pad(self.embedding(source.tokens_BT), (0, 0, 0, source.tokens_BT.shape[1] % 2))
        slots_BSD = embedded.unflatten(1, (-1, 2)).mean(2)  # type: ignore[no-untyped-call]
        allowed_BS = torch.arange(slots_BSD.shape[1]) < (source.lengths_B.unsqueeze(1) + 1) // 2
        return Memory(slots_BSD, allowed_BS, slots_BSD.mean(1))


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_weights_have_a_column_for_each_visible_slot(search: dict[str, Any]) -> None:
    model = build(GRU)
    predictor = predictor_of(Seq2Seq(PairEncoder(16).double(), model.decoder).eval())
    sources = predictor.reader.read(TEXTS)
    for source, nbest in zip(
        sources, predictor.predict(sources, SearchSettings(**search), attention=True), strict=True
    ):
        for hypothesis in nbest:
            weights = hypothesis.attentions["decoder.attention"]
            assert weights.shape == (len(hypothesis.tokens), (source.length + 1) // 2)
            np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)


class RepeatingDecoder(Decoder):
    """A decoder that calls its attention twice at each step, or once more when it begins."""

    def __init__(self, inner: Decoder, *, at_begin: bool) -> None:
        super().__init__()
        self.inner, self.at_begin = inner, at_begin

    def begin(self, memory: Memory) -> tuple[Any, Any]:
        keys, state = self.inner.begin(memory)
        if self.at_begin:
            self.inner.step(torch.full((len(memory.allowed_BS),), START), state, keys)
        return keys, state

    def step(self, token_B: Tensor, state: Any, keys: Any) -> tuple[Tensor, Any]:
        if not self.at_begin:
            self.inner.step(token_B.flip(0), state, keys)
        return self.inner.step(token_B, state, keys)

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        decoded: Decoded = self.inner(tokens_BT, memory)
        return decoded


@pytest.mark.parametrize("at_begin", [True, False])
def test_the_weights_of_a_step_are_those_of_its_last_call(at_begin: bool) -> None:
    model = build(GRU)
    repeating = Seq2Seq(model.encoder, RepeatingDecoder(model.decoder, at_begin=at_begin)).eval()
    search = SearchSettings(loop_guard=False)
    items = predictor_of(model).reader.read(TEXTS)
    for [expected], [hypothesis] in zip(
        predictor_of(model).predict(items, search, attention=True),
        predictor_of(repeating).predict(items, search, attention=True),
        strict=True,
    ):
        assert hypothesis[:4] == expected[:4]
        np.testing.assert_allclose(
            hypothesis.attentions["decoder.inner.attention"], expected.attentions["decoder.attention"], atol=1e-6
        )


@pytest.mark.parametrize("search", SEARCHES[:2], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_search_for_one_hypothesis_has_the_weights_of_one_pass(name: str, search: dict[str, Any]) -> None:
    """Self-attention of the decoder has one more slot at each step, and no weight on later ones. Greedy search removes
    the loops of some of these models: it runs again.
    """
    predictor = predictor_of(MODELS[name]())
    items = predictor.reader.read(["3 mai 2009"])
    with regard.record(predictor.model) as recording:
        [[hypothesis]] = predictor.predict(items, SearchSettings(**search))
    expected = direct_weights(predictor.model, predictor.reader.collate(items), hypothesis.tokens)
    assert recording.weights.keys() == expected.keys()
    for attention, weights in recording.weights.items():
        steps, slots = weights.shape[-2:]
        row = weights[0].flip(-2, -1) if attention in recording.backward else weights[0]
        torch.testing.assert_close(row, expected[attention][..., :steps, :slots])
        assert steps >= len(hypothesis.tokens) or recording.roles[attention] == "encoder-self"


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("search", [{"beam": 3}, {"sample": True, "nbest": 2}])
@pytest.mark.parametrize("settings", [GRU, {**GRU, "attention": "chorowski"}, TRANSFORMER])
def test_the_hypotheses_of_a_recorded_search_are_not_joined(
    settings: dict[str, Any], search: dict[str, Any], attention: bool
) -> None:
    predictor = predictor_of(build(settings))
    items = predictor.reader.read(["3 mai 2009"])
    with regard.record(predictor.model) as recording:
        predictor.predict(items, SearchSettings(**search), attention=attention)
    with pytest.raises(regard.ConfigError, match=r"several hypotheses.*or use `calls`.*`Prediction.attentions`"):
        _ = recording.weights
    assert all(recording.calls.values())


@pytest.mark.parametrize("settings", [GRU, TRANSFORMER])
def test_the_weights_of_a_recorded_search_for_several_texts_are_not_joined(settings: dict[str, Any]) -> None:
    predictor = predictor_of(build(settings))
    texts = ["2009-05-03"[:length] for length in range(1, 9)]
    with regard.record(predictor.model) as recording:
        predictor.predict(predictor.reader.read(texts))
    with pytest.raises(regard.ConfigError, match="not those of one pass: the number of rows changes from 8 to"):
        _ = recording.weights
