"""Attribution methods: against autograd, captum, repeated scoring, and equations, for every family of models.

T target steps, S source tokens, D width, V vocabulary.
"""

from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, LayerIntegratedGradients
from torch import Tensor, nn

import regard
from regard.attention.interventions import ZeroValues, intervene
from regard.config import resolve
from regard.data.settings import CharSide
from regard.data.source_readers import TextReader
from regard.data.tokens.tokenizers import PAD, START, UNKNOWN, Tokenizer
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings
from regard.errors import ConfigError
from regard.inspection.attribution import methods as attribution_methods
from regard.inspection.attribution.settings import Baseline, Method
from regard.models.attentive import LuongDecoder
from regard.models.contracts import Decoded, Decoder, Encoder, Memory, Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.settings import RunSettings
from tests_shared import thin

ALPHABET = "abcdefghij 0123456789-"
SOURCE, TARGET, OTHER = "3 feb 2009", "2009-02", "2009-12"
TOKENIZER = Tokenizer.of(CharSide(), [ALPHABET])

RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 8, "heads": 2, "layers": 2, "feedforward": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "bahdanau": RECURRENT,
    "luong, local": {**RECURRENT, "attention": "luong-local-p", "decoder": {"hidden": 16, "order": "luong"}},
    "lstm, two layers": {
        **RECURRENT,
        "encoder": {"hidden": 8, "cell": "lstm", "layers": 2, "reverse": True},
        "decoder": {"hidden": 16, "cell": "lstm", "order": "conditional"},
    },
    "hard monotonic": {**RECURRENT, "attention": {"select": "hard_monotonic"}},
    "copy": {**RECURRENT, "decoder": {"hidden": 16, "copy_source": True}},
    "fixed": {**RECURRENT, "kind": "fixed"},
    "transformer": TRANSFORMER,
    "transformer, tied": {**TRANSFORMER, "norm": "pre", "positions": "rotary", "tied": "all"},
}
CAPTUM: tuple[Method, ...] = ("gradient_x_input", "integrated_gradients", "occlusion")
METHODS: tuple[Method, ...] = (*CAPTUM, "value_zeroing")


def wrap(network: Seq2Seq, settings: RunSettings) -> regard.Model:
    limits = DecodingSettings(max_length_ratio=0.5, max_length_extra=2)
    return regard.Model(Predictor(network, TextReader(TOKENIZER, 50), TOKENIZER, limits, 50), settings, step=0)


def build(model: dict[str, Any]) -> regard.Model:
    """Return an untrained model in float64, with larger weights, so that attention is not uniform."""
    torch.manual_seed(1)
    tree = {"data": {"kind": "dates"}, "model": model, "tokenizer": {"kind": "char", "shared": True}}
    settings = resolve(RunSettings, tree, {})
    network = build_model(settings.model, len(TOKENIZER), len(TOKENIZER)).double().eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(1.0 if "norm" in name else 2.0)
    return wrap(network, settings)


def encode(text: str) -> list[int]:
    [ids] = TOKENIZER.ids([text])
    return ids


def compute_log_probs(model: regard.Model, tokens_BS: Tensor, target: str = TARGET) -> Tensor:
    """Return the log-probability of each target token, (B, T), with the whole model."""
    ids = encode(target)
    inputs = torch.tensor([[START, *ids[:-1]]]).expand(len(tokens_BS), -1)
    source = Tokens(tokens_BS, torch.full((len(tokens_BS),), tokens_BS.shape[1]))
    log_p_BTV: Tensor = model.network(source, inputs).logits_BTV.log_softmax(-1)
    return log_p_BTV[:, range(len(ids)), ids]


@pytest.mark.parametrize("family", thin(FAMILIES))
def test_gradient_times_input_equals_autograd(family: str) -> None:
    model = build(FAMILIES[family])
    embedding = model.network.encoder.token_embedding
    assert embedding is not None
    outputs: list[Tensor] = []
    hook = embedding.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    log_p_T = compute_log_probs(model, torch.tensor([encode(SOURCE)]))[0]
    hook.remove()
    [embedded_1SD] = outputs
    gradients = [torch.autograd.grad(value, embedded_1SD, retain_graph=True)[0][0] for value in log_p_T]
    expected = torch.stack([(gradient * embedded_1SD[0]).sum(-1) for gradient in gradients])
    attribution = model.attribute(SOURCE, TARGET, method="gradient_x_input")
    np.testing.assert_allclose(attribution.scores, expected.detach().numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["unknown", "padding"])
@pytest.mark.parametrize("family", thin(FAMILIES))
def test_integrated_gradients_equal_captum_on_the_layer(family: str, baseline: Baseline) -> None:
    model = build(FAMILIES[family])
    tokens_1S = torch.tensor([encode(SOURCE)])
    reference = torch.full_like(tokens_1S, {"unknown": UNKNOWN, "padding": PAD}[baseline])
    method = LayerIntegratedGradients(
        lambda tokens_BS: compute_log_probs(model, tokens_BS), model.network.encoder.token_embedding
    )
    expected = [
        method.attribute(tokens_1S, baselines=reference, target=step, n_steps=20).sum(-1)[0]
        for step in range(len(TARGET))
    ]
    attribution = model.attribute(SOURCE, TARGET, baseline=baseline, integration_steps=20)
    np.testing.assert_allclose(attribution.scores, torch.stack(expected).detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", thin(FAMILIES))
def test_integrated_gradients_from_zero_equal_captum_on_embeddings(family: str) -> None:
    model = build(FAMILIES[family])
    embedding = model.network.encoder.token_embedding
    assert embedding is not None
    tokens_1S = torch.tensor([encode(SOURCE)])

    def evaluate(embedded_BSD: Tensor) -> Tensor:
        hook = embedding.register_forward_hook(lambda *_: embedded_BSD)
        try:
            return compute_log_probs(model, tokens_1S.expand(len(embedded_BSD), -1))
        finally:
            hook.remove()

    embedded_1SD = embedding(tokens_1S).detach()
    results = [
        IntegratedGradients(evaluate).attribute(embedded_1SD, target=step, n_steps=30, return_convergence_delta=True)
        for step in range(len(TARGET))
    ]
    attribution = model.attribute(SOURCE, TARGET, integration_steps=30)
    expected = torch.cat([scores.sum(-1) for scores, _ in results])
    np.testing.assert_allclose(attribution.scores, expected.detach().numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(attribution.deltas or [], [delta.item() for _, delta in results], atol=1e-6)


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("family", ["bahdanau", "hard monotonic", "fixed", "transformer"])
def test_integrated_gradients_add_up_to_the_change_of_the_log_probability(family: str, previous: bool) -> None:
    # ReLU is not smooth, so that the integral would need many more steps.
    model = build(FAMILIES[family] | ({"activation": "gelu"} if family == "transformer" else {}))
    attribution = model.attribute(SOURCE, TARGET, baseline="unknown", integration_steps=150, previous=previous)
    unknown = torch.full((1, len(SOURCE)), UNKNOWN)
    with torch.no_grad():
        start = compute_log_probs(model, unknown)[0].numpy()
        end = compute_log_probs(model, torch.tensor([encode(SOURCE)]))[0].numpy()
    assert attribution.deltas is not None
    assert np.abs(attribution.deltas).max() < 2e-2
    if not previous:
        np.testing.assert_allclose(attribution.scores.sum(1) - attribution.deltas, end - start, atol=1e-5)
        return
    assert attribution.target_scores is not None
    assert attribution.target_scores.shape == (len(TARGET), len(TARGET))
    assert not np.triu(attribution.target_scores, 1).any()  # a step does not depend on the tokens after it
    assert np.abs(np.tril(attribution.target_scores)).sum() > 0


@pytest.mark.parametrize("family", thin(FAMILIES))
def test_occlusion_equals_scoring_the_source_without_each_token(family: str) -> None:
    model = build(FAMILIES[family])
    attribution = model.attribute(SOURCE, TARGET, method="occlusion")
    texts = [SOURCE, *(f"{SOURCE[:index]}☃{SOURCE[index + 1 :]}" for index in range(len(SOURCE)))]
    with torch.no_grad():
        log_p_BT = compute_log_probs(model, torch.tensor([encode(text) for text in texts]))
    np.testing.assert_allclose(attribution.scores, (log_p_BT[0] - log_p_BT[1:]).T.numpy(), rtol=1e-5, atol=1e-6)
    # `model.score` also contains the end token, which a contrast with one of its tokens does not change.
    end = [model.trace(text, TARGET).steps[0][-1].log_prob for text in texts]
    scores = np.array(model.score(texts, [TARGET] * len(texts))) - end
    np.testing.assert_allclose(attribution.scores.sum(0), scores[0] - scores[1:], rtol=1e-4, atol=1e-5)


def test_value_zeroing_equals_the_equations_of_a_decoder_with_one_attention() -> None:
    order = {"hidden": 16, "order": "luong", "input_feeding": False}
    model = build({**RECURRENT, "attention": "luong-dot", "decoder": order})
    decoder = model.network.decoder
    assert isinstance(decoder, LuongDecoder)
    with torch.no_grad():
        source = model.predictor.reader.collate(model.predictor.reader.read([SOURCE]))
        memory = model.network.encoder(source)
        _, state = decoder.begin(memory)
        embedded = decoder.embedding(torch.tensor([[START, *encode(TARGET)[:-1]]]))
        outputs_BTH, _ = decoder.layers(embedded, state=state.layers)
        weights_BTS = (outputs_BTH @ memory.slots_BSD.transpose(1, 2)).softmax(-1)
        features_TD = decoder.readout.features(outputs_BTH, weights_BTS @ memory.slots_BSD)[0]
        for slot in range(len(SOURCE)):
            kept_BSD = memory.slots_BSD.clone()
            kept_BSD[:, slot] = 0
            changed_TD = decoder.readout.features(outputs_BTH, weights_BTS @ kept_BSD)[0]
            expected = 1 - nn.functional.cosine_similarity(features_TD, changed_TD, dim=-1)
            attribution = model.attribute(SOURCE, TARGET, method="value_zeroing")
            np.testing.assert_allclose(attribution.scores[:, slot], expected.numpy(), rtol=1e-4, atol=1e-8)


def test_value_zeroing_hides_a_token_of_a_transformer_from_all_layers() -> None:
    """Without the values of a token, the output depends on its embedding only through keys and queries."""
    model = build({**TRANSFORMER, "encoder_score": "location", "cross_score": "location"})
    scores = [model.attribute(text, TARGET, method="value_zeroing").scores for text in ("3 feb", "4 feb")]
    tokens = torch.tensor([encode("3 feb"), encode("4 feb")])
    network = model.network
    attentions = [module for module in network.modules() if isinstance(module, regard.Attention)]
    zeroed = torch.zeros(2, 5, dtype=torch.bool)
    zeroed[:, 0] = True
    with torch.no_grad(), intervene(dict.fromkeys(attentions, (ZeroValues(zeroed),))):
        # The scores `location` do not read keys, so nothing reads the first token.
        features = network(Tokens(tokens, torch.tensor([5, 5])), torch.tensor([[START, 9, 8]] * 2)).features
    torch.testing.assert_close(features[0], features[1])
    assert not np.allclose(scores[0], scores[1])


@pytest.mark.parametrize("method", ["gradient_x_input", "integrated_gradients"])
@pytest.mark.parametrize("family", ["bahdanau", "fixed", "transformer"])
def test_a_contrast_is_the_difference_of_two_attributions(family: str, method: Method) -> None:
    model = build(FAMILIES[family])
    first, second = (model.attribute(SOURCE, text, method=method).scores[5] for text in (TARGET, OTHER))
    contrast = model.attribute(SOURCE, TARGET, method=method, contrast=OTHER)
    assert contrast.steps == [5]
    assert contrast.tokens == ["0 rather than 1"]
    np.testing.assert_allclose(contrast.scores[0], first - second, rtol=1e-4, atol=1e-6)
    token = model.attribute(SOURCE, TARGET, method=method, contrast=(5, "1"))
    np.testing.assert_allclose(token.scores, contrast.scores, rtol=1e-6)


def test_a_contrast_may_be_the_end_of_the_target() -> None:
    model = build(RECURRENT)
    shorter = model.attribute(SOURCE, TARGET, method="occlusion", contrast="2009")
    assert (shorter.steps, shorter.tokens) == ([4], ["- rather than </s>"])
    longer = model.attribute(SOURCE, "2009", method="occlusion", contrast=TARGET)
    assert (longer.steps, longer.tokens) == ([4], ["</s> rather than -"])
    np.testing.assert_allclose(shorter.scores, -longer.scores, rtol=1e-5, atol=1e-7)
    assert shorter.agreement is not None
    assert longer.agreement is not None
    assert longer.agreement.spearman is None  # attention weights have no row for the end token


class LinearEncoder(Encoder[Tokens]):
    """The embeddings themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(TOKENIZER), 3)

    @property
    def size(self) -> int:
        return 3

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    def forward(self, source: Tokens) -> Memory:
        slots_BSD = self.embedding(source.tokens_BT)
        return Memory(slots_BSD, source.valid_BT, slots_BSD.sum(1), source.tokens_BT)


class LinearDecoder(Decoder):
    """Logits that are a linear function of the sum of the source embeddings, the same for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(3, len(TOKENIZER))

    def begin(self, memory: Memory) -> tuple[Tensor, tuple[()]]:
        return memory.summary_BD, ()

    def step(self, token_B: Tensor, state: tuple[()], keys: Tensor) -> tuple[Tensor, tuple[()]]:
        return self.output(keys).repeat_interleave(len(token_B) // len(keys), 0), state

    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        logits_BV = self.output(memory.summary_BD)
        return Decoded.from_logits(logits_BV.unsqueeze(1).expand(-1, tokens_BT.shape[1], -1))


def test_a_linear_model_has_analytic_attributions() -> None:
    """Log p(a) − log p(b) is (w_a − w_b) · Σ_s x_s, so the score of token s is (w_a − w_b) · (x_s − baseline)."""
    torch.manual_seed(0)
    encoder, decoder = LinearEncoder(), LinearDecoder()
    model = wrap(Seq2Seq(encoder, decoder).eval(), build(RECURRENT).settings)
    first, second = encode("01")
    with torch.no_grad():
        direction_D = decoder.output.weight[first] - decoder.output.weight[second]
        embedded_SD = encoder.embedding(torch.tensor(encode(SOURCE)))
        expected = {
            baseline: ((embedded_SD - vector_D) @ direction_D).numpy()
            for baseline, vector_D in (("zero", torch.zeros(3)), ("unknown", encoder.embedding.weight[UNKNOWN]))
        }
    for method in ("gradient_x_input", "integrated_gradients"):
        scores = model.attribute(SOURCE, "0", method=method, contrast="1").scores
        np.testing.assert_allclose(scores[0], expected["zero"], rtol=1e-4, atol=1e-6)
    scores = model.attribute(SOURCE, "0", method="occlusion", contrast="1").scores
    np.testing.assert_allclose(scores[0], expected["unknown"], rtol=1e-4, atol=1e-6)
    scores = model.attribute(SOURCE, "0", baseline="unknown", contrast="1").scores
    np.testing.assert_allclose(scores[0], expected["unknown"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bahdanau", "hard monotonic", "transformer"])
def test_scores_do_not_depend_on_the_size_of_batches(
    family: str, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(FAMILIES[family])
    previous = method != "value_zeroing" or family == "transformer"
    expected = model.attribute(SOURCE, TARGET, method=method, previous=previous, integration_steps=7)
    monkeypatch.setattr(attribution_methods, "MAX_TOKENS", 3 * (len(SOURCE) + len(TARGET)))
    actual = model.attribute(SOURCE, TARGET, method=method, previous=previous, integration_steps=7)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-4, atol=1e-7)
    assert (actual.target_scores is None) == (expected.target_scores is None)
    if expected.target_scores is not None and actual.target_scores is not None:
        np.testing.assert_allclose(actual.target_scores, expected.target_scores, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", thin(FAMILIES))
def test_attribution_changes_neither_the_model_nor_its_mode(family: str, method: Method) -> None:
    model = build(FAMILIES[family]).train()
    if family == "fixed" and method == "value_zeroing":
        with pytest.raises(ConfigError, match="has no attention to the source"):
            model.attribute(SOURCE, method=method)
        return
    before = model.score(SOURCE, TARGET)
    attribution = model.attribute(SOURCE, method=method, beam=2)
    assert attribution.prediction.text == model.predict(SOURCE, beam=2).text
    assert attribution.scores.shape == (len(attribution.prediction.tokens), len(SOURCE))
    assert np.isfinite(attribution.scores).all()
    assert (attribution.agreement is None) == (family == "fixed")
    assert model.network.training
    assert model.score(SOURCE, TARGET) == before
    assert all("forward" not in vars(module) for module in model.network.modules())
    assert all(parameter.grad is None for parameter in model.network.parameters())


COMPUTED = [method for method in METHODS if method != "attention"]


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("method", COMPUTED)
def test_the_progress_increases_to_one(method: Method, previous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution_methods, "MAX_TOKENS", 3 * (len(SOURCE) + len(TARGET)))
    shares: list[float] = []
    model = build(FAMILIES["transformer"])
    model.attribute(SOURCE, TARGET, method=method, previous=previous, integration_steps=7, progress=shares.append)
    assert len(set(shares)) > 2
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    assert shares[-1] == 1


@pytest.mark.parametrize("method", COMPUTED)
def test_an_exception_of_the_progress_function_stops_the_computation(method: Method) -> None:
    def stop(_: float) -> None:
        raise InterruptedError

    model = build(FAMILIES["transformer"])
    before = model.score(SOURCE, TARGET)
    with pytest.raises(InterruptedError):
        model.attribute(SOURCE, TARGET, method=method, progress=stop)
    assert model.score(SOURCE, TARGET) == before
    assert all("forward" not in vars(module) for module in model.network.modules())
