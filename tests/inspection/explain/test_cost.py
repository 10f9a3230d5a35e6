"""The cost of a model: the multiply-adds of its parts agree with torch's counter, parameters with those of the model.

S source positions, T target steps, K hypotheses of a beam.
"""

from typing import Any

import example_parts
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.config import resolve
from regard.inspection.explain.cost import (
    ModelCost,
    Part,
    compute_cost,
    compute_parts,
    describe_growth,
    find_crossover,
    merge_layers,
)
from regard.inspection.explain.cost_measurement import count_encoder, fit_costs
from regard.models.contracts import Tokens, reorder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.vision.sources import Pixels
from regard.ops.cost import NO_COST, Cost, CostPart, K, S, T, sum_costs
from regard.ops.reference_mode import reference_mode
from regard.runs.settings import RunSettings
from tests_shared import ModelOnly, thin

META = torch.device("meta")
LENGTHS = [(4, 3), (2, 4)]
RECURRENT: dict[str, Any] = {
    "kind": "recurrent",
    "embedding": 6,
    "encoder": {"hidden": 8},
    "decoder": {"hidden": 16},
}
"""A dot product needs a query as wide as the memory: 2 × 8 and 16."""
FIXED = {**RECURRENT, "kind": "fixed"}
TRANSFORMER: dict[str, Any] = {"kind": "transformer", "size": 8, "heads": 2, "layers": 2, "feedforward": 12}

MECHANISMS = [{**RECURRENT, "attention": mechanism.name} for mechanism in regard.mechanisms()]
_DECODERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"order": "luong"}, {}),
    ({"order": "luong", "input_feeding": False}, {}),
    ({"order": "luong"}, {"attention": "exact-hard"}),
    ({"order": "simple", "cell": "rnn"}, {}),
    ({"order": "conditional", "layers": 2}, {}),
    ({"gate": True, "copy_source": True}, {"tied": "all"}),
    ({"gate": True}, {"attention": "hard-monotonic"}),
    ({"cell": "mgu"}, {"attention": {"heads": 4}}),
    ({"cell": "lstm", "variant": "FGR"}, {"encoder": {"hidden": 8, "layers": 3, "initial_state": "learned"}}),
    ({"cell": "lstm", "layer_norm": True}, {"encoder": {"hidden": 16, "bidirectional": False}}),
    ({}, {"attention": {"score": "general", "scope": {"kind": "all_of", "scopes": ["local_m", "local_p"]}}}),
]
DECODERS = [{**RECURRENT, "decoder": {"hidden": 16, **decoder}, **others} for decoder, others in _DECODERS]
TRANSFORMERS = [
    TRANSFORMER,
    {**TRANSFORMER, "norm": "pre", "activation": "swiglu", "tied": "all", "decoder_layers": 1},
    {**TRANSFORMER, "positions": "learned", "tied": "none"},
    *(
        {**TRANSFORMER, "encoder_score": score, "self_score": score, "cross_score": score}
        for score in ("general", "additive", "concat", "cosine", "location", "projected", "manhattan")
    ),
    {**TRANSFORMER, "cross_score": "location_aware"},
    {**TRANSFORMER, "encoder": {"kind": "recurrent", "hidden": 6}},
]
FIXED_MODELS = [FIXED, {**FIXED, "context": "initial", "decoder": {"hidden": 16, "layers": 2}}]
PLUGINS = [{"kind": "plain"}, {**RECURRENT, "encoder": "convolutional", "attention": "luong-general"}]
CAPTIONERS = [
    {**RECURRENT, "encoder": {"kind": "cnn", "channels": [8, 16], "height": 16, "width": 24, "positions": "learned"}},
    {**TRANSFORMER, "encoder": {"kind": "patches", "height": 16, "width": 16, "patch": 8, "size": 8, "heads": 2}},
]
TEXT_MODELS = [*MECHANISMS, *DECODERS, *TRANSFORMERS, *FIXED_MODELS, *PLUGINS]


def build(settings: dict[str, Any], device: torch.device = META) -> Seq2Seq:
    """Build a model. On the device meta, nothing is computed, but operations are counted."""
    with device:
        return build_model(resolve(ModelOnly, {"model": settings}, {}).model, 11, 11).eval()


def count(module: nn.Module, *inputs: Any) -> int:
    """Count multiply-adds with torch's counter. It counts neither products with a vector nor those in place, which are
    added here, nor fused attention.
    """
    products = {
        torch.ops.aten.mv: lambda matrix, *_, **__: 2 * matrix[0] * matrix[1],
        torch.ops.aten.baddbmm_: lambda _, left, right, **__: 2 * left[0] * left[1] * left[2] * right[2],
    }
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=products) as counter:
        module(*inputs)
    operations: int = counter.get_total_flops()
    return operations // 2


def zero_tokens(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=META)


class Logits(nn.Module):
    """A forward pass up to the logits."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Any, target: Tensor) -> Tensor:
        logits_BTV: Tensor = self.model(source, target).logits_BTV
        return logits_BTV


class Search(nn.Module):
    """The steps of a beam search in which no hypothesis ends."""

    def __init__(self, model: Seq2Seq, beam: int) -> None:
        super().__init__()
        self.model, self.beam = model, beam

    def forward(self, source: Any, steps: int) -> None:
        keys, state = self.model.decoder.begin(self.model.encoder(source))
        rows = torch.zeros(self.beam, dtype=torch.long, device=META)
        state = reorder(reorder(state, rows), torch.arange(self.beam, device=META), block=self.beam)
        for _ in range(steps):
            _, state = self.model.decoder.step(zero_tokens(self.beam, 1).squeeze(1), state, keys)


@pytest.mark.slow
@pytest.mark.parametrize("settings", thin(TEXT_MODELS, every=10), ids=str)
def test_multiply_adds_of_a_forward_pass_agree_with_the_counter(settings: dict[str, Any]) -> None:
    model = build(settings)
    forward = sum_costs(part.forward for part in compute_parts(model))
    for source, target in LENGTHS:
        with reference_mode():
            counted = count(Logits(model), Tokens.zeros(source, META), zero_tokens(1, target))
        assert forward(source, target) == counted


@pytest.mark.parametrize("settings", thin(TEXT_MODELS, every=10), ids=str)
def test_multiply_adds_of_greedy_decoding_agree_with_the_counter(settings: dict[str, Any]) -> None:
    model = build(settings)
    search = sum_costs(part.search for part in compute_parts(model))
    with reference_mode():
        counted = count(Search(model, 1), Tokens.zeros(4, META), 3)
    assert search(4, 3) == counted


@pytest.mark.slow
@pytest.mark.parametrize("settings", [*DECODERS, *TRANSFORMERS, FIXED, *PLUGINS[1:]], ids=str)
def test_multiply_adds_of_a_beam_agree_with_the_counter(settings: dict[str, Any]) -> None:
    model = build(settings)
    search = sum_costs(part.search for part in compute_parts(model))
    # Not in reference mode: there, no attention uses the fused path, in which hypotheses share a cache.
    counted = count(Search(model, 3), Tokens.zeros(4, META), 3)
    assert search(4, 3, 3) == counted


@pytest.mark.parametrize("settings", CAPTIONERS, ids=str)
def test_the_cost_of_a_captioner_depends_on_the_target_only(settings: dict[str, Any]) -> None:
    model = build(settings)
    cost = compute_cost(model)
    source = model.encoder.example_source(1, META)
    assert isinstance(source, Pixels)
    assert cost.fixed_slots == model.encoder.fixed_slots == (24 if settings["kind"] == "recurrent" else 4)
    assert all(s == 0 for s, _, _ in cost.forward.terms)
    for target in (3, 8):
        with reference_mode():
            counted = count(Logits(model), source, zero_tokens(1, target))
        assert cost.forward(999, target) == counted


@pytest.mark.parametrize("settings", thin([*TEXT_MODELS, *CAPTIONERS], every=10), ids=str)
def test_parameters_of_the_parts_are_those_of_the_model(settings: dict[str, Any]) -> None:
    model = build(settings)
    parts = compute_parts(model)
    assert sum(part.parameters for part in parts) == sum(parameter.numel() for parameter in model.parameters())
    assert "other parameters" not in {part.name for part in parts}


def test_tied_parameters_are_counted_once_and_marked() -> None:
    parts = {(part.side, part.name): part for part in compute_parts(build({**TRANSFORMER, "tied": "all"}))}
    assert parts["encoder", "embedding"].parameters == 11 * 8
    for part in (parts["decoder", "embedding"], parts["decoder", "output projection"]):
        assert part.tied
        assert part.parameters == 0
    assert not parts["encoder", "embedding"].tied


def test_identical_layers_are_merged() -> None:
    parts = compute_parts(build({**TRANSFORMER, "layers": 6}))
    labels = [part.label for part in parts if part.side == "encoder"]
    assert labels == ["embedding", "layers 1–6 (× 6): self-attention", "layers 1–6 (× 6): feed-forward"]
    stacked = compute_parts(build({**RECURRENT, "encoder": {"hidden": 8, "layers": 3}}))
    labels = [part.label for part in stacked if part.side == "encoder"]
    # The first layer reads embeddings of width 6, the others 16 outputs.
    assert labels == ["embedding", "layer 1: GRU, 2 directions", "layers 2–3 (× 2): GRU, 2 directions"]
    assert stacked[1].forward == 2 * 24 * (6 + 8) * S
    assert stacked[2].forward == 2 * (2 * 24 * (16 + 8)) * S


def test_layers_that_differ_are_not_merged() -> None:
    def part(layer: int, multiply_adds: int) -> Part:
        return Part("encoder", "GRU", (layer,), 3, False, multiply_adds * S, multiply_adds * S)

    merged = merge_layers([part(1, 5), part(2, 5), part(3, 7), part(4, 5)])
    assert [(one.layers, one.forward) for one in merged] == [((1, 2), 10 * S), ((3,), 7 * S), ((4,), 5 * S)]


def test_the_formula_of_additive_attention_is_that_of_the_documentation() -> None:
    """Query, memory and hidden layer have the width 16: W q, U k, v for each pair, and the context."""
    cost = compute_cost(build(RECURRENT))
    (attention,) = (part for part in cost.parts if part.name == "cross-attention")
    assert attention.forward == 16 * 16 * T + 16 * 16 * S + (16 + 16) * S * T
    assert attention.search == 16 * 16 * K * T + 16 * 16 * S + (16 + 16) * K * S * T


def weights_of(cost: ModelCost) -> dict[str, tuple[Cost, Cost]]:
    return {weights.role: (weights.computed, weights.visible) for weights in cost.weights}


@pytest.mark.slow
def test_attention_weights_are_counted_by_role() -> None:
    assert weights_of(compute_cost(build(TRANSFORMER))) == {
        "encoder-self": (4 * S * S, 4 * S * S),
        "decoder-self": (4 * T * T, 2 * T * T + 2 * T),
        "cross": (4 * S * T, 4 * S * T),
    }
    assert weights_of(compute_cost(build(FIXED))) == {}


@pytest.mark.parametrize("scope", ["local_m", "local_p"])
def test_local_attention_computes_all_weights_and_masks_those_outside_the_window(scope: str) -> None:
    settings = {**RECURRENT, "attention": {"score": "general", "scope": {"kind": scope, "window": 2}}}
    (weights,) = compute_cost(build(settings)).weights
    assert (weights.computed, weights.visible) == (S * T, 5 * T)
    model = build(settings, torch.device("cpu"))
    with regard.record(model) as recording:
        model(Tokens.zeros(12, torch.device("cpu")), torch.zeros(1, 6, dtype=torch.long))
    (recorded,) = recording.weights.values()
    assert recorded.numel() == weights.computed(12, 6)
    assert (recorded > 0).sum() <= weights.visible(12, 6)


@pytest.mark.slow
def test_a_model_without_attention_is_linear_in_the_lengths() -> None:
    cost = compute_cost(build(FIXED))
    assert cost.growth == "O(S + T)"
    assert cost.crossover is None
    assert compute_cost(build(RECURRENT)).growth == "O(S·T)"
    assert compute_cost(build(TRANSFORMER)).growth == "O(S² + S·T + T²)"


def test_the_crossover_is_the_first_length_at_which_the_terms_of_degree_2_are_larger() -> None:
    for cost in (100 + 30 * S + 12 * T + S * T, 2 * S * S + 9 * T, compute_cost(build(RECURRENT)).forward):
        crossover = find_crossover(cost)
        assert crossover is not None
        quadratic = cost.attention_terms
        rest = cost - quadratic
        assert quadratic(crossover, crossover) > rest(crossover, crossover)
        assert quadratic(crossover - 1, crossover - 1) <= rest(crossover - 1, crossover - 1)
    assert find_crossover(3 * S + T) is None
    assert describe_growth(NO_COST) == "O(1)"


@pytest.mark.slow
def test_the_kv_cache_grows_with_the_target_and_keys_with_the_source() -> None:
    memory = compute_cost(build(TRANSFORMER)).memory
    # Keys and values of two layers, 8 wide, in float32; the other terms are a mask and a position.
    assert memory.state.terms[0, 1, 0] == 2 * 2 * 8 * 4
    assert 2 * 2 * 8 * 4 <= memory.keys.terms[1, 0, 0] <= 2 * (2 * 8 * 4 + 8)
    recurrent = compute_cost(build(RECURRENT)).memory
    assert all(t == 0 for _, t, _ in recurrent.state.terms)
    assert recurrent.decoding(10, 10, beam=4) == recurrent.keys(10, 10) + 4 * recurrent.state(10, 10)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [RECURRENT, FIXED, TRANSFORMER, {**RECURRENT, "attention": "luong-general"}])
def test_activations_are_those_that_autograd_keeps_on_a_cpu(settings: dict[str, Any]) -> None:
    """The formula is fitted to short pairs on the device meta. A longer pair on the CPU needs as much, up to copies of
    the weights, which all pairs of a batch share.
    """
    predicted = compute_cost(build(settings)).memory.activations(100, 80)
    device = torch.device("cpu")
    model = build(settings, device).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive.append(tensor)
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(Tokens.zeros(100, device), torch.zeros(1, 80, dtype=torch.long)).logits_BTV
        nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(80, dtype=torch.long))
    assert predicted == pytest.approx(sum(kept.values()), rel=0.1)


def test_frozen_parameters_need_no_gradients() -> None:
    settings = {"kind": "efficientnet_lite0", "stage": "stage1", "height": 32, "width": 32}
    memory = compute_cost(build({**RECURRENT, "encoder": settings})).memory
    backbone = sum(p.numel() for p in build({**RECURRENT, "encoder": settings}).encoder.parameters())
    assert memory.training == 4 * memory.parameters - 3 * 4 * backbone


def test_products_of_matrices_and_vectors_and_convolutions_are_counted_by_part() -> None:
    class Products(example_parts.ConvolutionalEncoder):
        """A product with a vector in a module that no part lists, and in a method that is not `forward`."""

        def __init__(self) -> None:
            super().__init__(11, 6)
            self.inner = nn.Linear(self.size, 7, bias=False)
            self.vector = nn.Parameter(torch.zeros(7))

        def cost_parts(self) -> list[CostPart]:
            return [CostPart("projection", (self.inner,)), CostPart("convolution", (self.convolution,))]

        def multiply(self, slots_BSD: Tensor) -> Tensor:
            hidden_BSA: Tensor = self.inner(slots_BSD)
            return torch.tanh(hidden_BSA) @ self.vector

        def forward(self, source: Tokens) -> regard.Memory:
            memory = super().forward(source)
            self.multiply(memory.slots_BSD)
            return memory

    with META:
        encoder = Products()
    costs = {cost.part.name: cost.forward for cost in count_encoder(encoder)}
    assert costs == {
        "projection": 7 * encoder.size * S,
        "convolution": encoder.convolution.weight.numel() * S,
        "other parameters": 7 * S,
    }


def test_elementwise_operations_of_a_plugin_are_not_counted() -> None:
    """The score is a sum of absolute differences, so that only the context is counted."""
    parts = compute_parts(build({**RECURRENT, "attention": "manhattan"}))
    (attention,) = (part for part in parts if part.name == "cross-attention")
    assert attention.forward == 16 * S * T


def test_a_cost_that_cannot_be_measured_is_unknown() -> None:
    class ReadsValues(example_parts.ConvolutionalEncoder):
        def forward(self, source: Tokens) -> regard.Memory:
            assert source.tokens_BT.max().item() >= 0
            return super().forward(source)

    with META:
        model = Seq2Seq(ReadsValues(11, 6), build(RECURRENT).decoder)
    cost = compute_cost(model)
    assert str(cost.forward) == "unknown"
    assert cost.crossover is None
    assert cost.growth == "unknown"
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_polynomial_is_fitted_exactly() -> None:
    expected = 3 + 5 * S + 7 * T + 2 * S * S + 11 * S * T + 13.5 * T * T
    terms = ((0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (1, 1, 0))
    assert fit_costs(lambda source, target: [expected(source, target)], terms) == [expected]
    large = 10**17 + 1  # exact, although a float64 is not
    assert fit_costs(lambda source, _: [large * source], terms) == [large * S]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["multi30k-gru", "multi30k-transformer", "flickr8k", "sigmorphon2017-monotonic"])
def test_the_cost_of_presets_is_known(preset: str) -> None:
    explanation = regard.explain(preset)
    assert explanation.cost.forward.is_known
    assert explanation.cost.memory.activations.is_known
    assert isinstance(resolve(RunSettings, preset, {}).model, type(explanation.settings))
    assert all(parameter.is_meta for parameter in explanation.model.parameters())
