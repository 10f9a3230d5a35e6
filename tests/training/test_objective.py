"""The training objective: values computed by hand; padding, micro-batches and chunks do not change it."""

import math

import pytest
import torch

from regard.config import resolve
from regard.data.batching import EncodedCorpus, EncodedTexts
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END, START, UNKNOWN
from regard.errors import ConfigError
from regard.models.contracts import Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel
from regard.ops import losses
from regard.ops.reference_mode import reference_mode
from regard.runs.settings import Consistency, NoConsistency, RDrop, RunSettings, SimCut
from regard.training.objective import Objective, drop_words
from regard.training.step import compute_gradients
from tests_shared import make_short_batch as batch

V = 9


def make_model() -> Seq2Seq:
    torch.manual_seed(0)
    small = {"encoder.hidden": 4, "decoder.hidden": 4, "dropout": 0.0, "embedding": 4}
    return build_model(resolve(RecurrentModel, {}, small), V, V).double()


def test_loss_is_the_negative_log_likelihood_of_the_targets() -> None:
    model = make_model()
    pair = batch(0)
    log_p = model(pair.source, pair.decoder_inputs).logits_BTV.log_softmax(-1)[0]
    expected = -sum(log_p[step, token] for step, token in enumerate([5, 6, END]))
    total = Objective()(model, pair)
    torch.testing.assert_close(total, expected.to(total.dtype), rtol=1e-5, atol=1e-6)
    assert pair.tokens == 3


def test_padding_does_not_change_the_loss() -> None:
    model = make_model()
    separate = sum(Objective()(model, batch(index)) for index in range(3))
    torch.testing.assert_close(Objective()(model, batch(0, 1, 2)), separate)
    assert batch(0, 1, 2).tokens == 9


@pytest.mark.parametrize("consistency", [NoConsistency(), RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("kind", ["recurrent", "fixed", "transformer"])
def test_the_loss_of_only_padding_or_empty_sources_is_finite(kind: str, consistency: Consistency) -> None:
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", {"model": kind, "tokenizer.shared": True}).model
    model = build_model(settings, V, V).train()
    device, empty = torch.device("cpu"), Ragged.of([[], []])
    padding = EncodedCorpus(EncodedTexts(empty), EncodedTexts(empty)).batch([0, 1], device)
    assert padding.target.tokens_BT.shape == (2, 1)
    loss = compute_gradients(model, Objective(consistency=consistency), [padding])
    assert loss == 0.0
    assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)
    empty_sources = EncodedCorpus(EncodedTexts(empty), EncodedTexts(Ragged.of([[5, END], [END]]))).batch([0, 1], device)
    for batches in ([empty_sources], [empty_sources, padding]):
        assert math.isfinite(compute_gradients(model, Objective(consistency=consistency), batches))
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_label_smoothing_mixes_in_the_uniform_distribution() -> None:
    model = make_model()
    for parameter in model.parameters():
        parameter.data.zero_()
    two = batch(0, 1)
    total = Objective(label_smoothing=0.3)(model, two)
    assert total.item() == pytest.approx(two.tokens * math.log(V), rel=1e-5)


@pytest.mark.parametrize("micro_batches", [[(0, 1), (2,)], [(0, 2), (1,)], [(0,), (1,), (2,)]])
def test_micro_batches_give_the_same_gradients(micro_batches: list[tuple[int, ...]]) -> None:
    model = make_model()
    loss = compute_gradients(model, Objective(0.1), [batch(0, 1, 2)])
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    parts = [batch(*part) for part in micro_batches]
    assert float(compute_gradients(model, Objective(0.1), parts)) == pytest.approx(float(loss))
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-8)


def named_gradients(model: Seq2Seq, objective: Objective) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    compute_gradients(model, objective, [batch(0, 1, 2)])
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("kind", [NoConsistency(), RDrop(), SimCut(cut=0.5)])
def test_a_chunked_loss_has_the_same_value_and_gradients(kind: Consistency, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model().train()
    objective = Objective(0.1, 0.2, kind)
    torch.manual_seed(0)
    loss, expected = objective(model, batch(0, 1, 2)).item(), named_gradients(model, objective)
    monkeypatch.setitem(losses.MAX_LOGITS, "cpu", 2 * V)
    torch.manual_seed(0)
    assert objective(model, batch(0, 1, 2)).item() == pytest.approx(loss)
    for name, gradient in named_gradients(model, objective).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8)


def test_second_derivatives_of_the_loss_need_the_reference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    weight = model.decoder.get_parameter("readout.output.weight")

    def second_derivative() -> torch.Tensor:
        with reference_mode():
            [gradient] = torch.autograd.grad(Objective()(model, batch(0, 1, 2)), weight, create_graph=True)
            return torch.autograd.grad(gradient.square().sum(), weight)[0]

    expected = second_derivative()
    monkeypatch.setitem(losses.MAX_LOGITS, "cpu", 2 * V)
    torch.testing.assert_close(second_derivative(), expected)
    with pytest.raises(ConfigError, match="reference_mode"):
        torch.autograd.grad(Objective()(model, batch(0, 1, 2)), weight, create_graph=True)


def test_accumulated_batches_are_weighted_by_their_tokens() -> None:
    model = make_model()
    expected = named_gradients(model, Objective())
    compute_gradients(model, Objective(), [batch(0), batch(1, 2)])
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", [RDrop(), SimCut(cut=0.0)], ids=lambda choice: choice.kind)
def test_the_consistency_loss_of_two_equal_passes_is_zero(kind: Consistency) -> None:
    """The passes of R-Drop are equal without dropout, those of SimCut if no token is cut."""
    model = make_model().train()
    cross_entropy = Objective(0.1)(model, batch(0, 1, 2)).item()
    assert Objective(0.1, 0.0, kind)(model, batch(0, 1, 2)).item() == pytest.approx(cross_entropy)


def test_the_consistency_loss_may_start_at_a_later_step() -> None:
    objective = Objective(0.1, 0.2, RDrop(start_step=5), bfloat16=True)
    assert objective.at(4) == Objective(0.1, 0.2, bfloat16=True)
    assert objective.at(5) == objective


def test_simcut_adds_the_divergence_of_two_passes() -> None:
    """Computed from the model's outputs for a pair, and for the same pair with every token but the start unknown."""
    model = make_model().eval()
    pair = batch(1)
    source = pair.source
    assert isinstance(source, Tokens)
    cut_source = Tokens(torch.full_like(source.tokens_BT, UNKNOWN), source.lengths_B)
    cut_inputs = torch.full_like(pair.decoder_inputs, UNKNOWN)
    cut_inputs[:, 0] = pair.decoder_inputs[:, 0]
    p = model(pair.source, pair.decoder_inputs).logits_BTV.float().log_softmax(-1)
    q = model(cut_source, cut_inputs).logits_BTV.float().log_softmax(-1)
    expected = Objective()(model, pair).item() + 3.0 * (p.exp() * (p - q)).sum().item()
    cut_all = SimCut.model_construct(alpha=3.0, cut=1.0)
    assert Objective(0.0, 0.0, cut_all)(model, pair).item() == pytest.approx(expected, rel=1e-5)


def test_r_drop_adds_a_quarter_of_alpha_times_both_divergences_to_the_average_loss() -> None:
    """Computed from the model's outputs for a pair in both halves of a batch, which have different dropout masks."""
    torch.manual_seed(0)
    model = build_model(resolve(RunSettings, "dates", {"model.dropout": 0.4}).model, V, V).train()
    pair = batch(1)
    twice = pair.source.rows(torch.tensor([0, 0]))
    torch.manual_seed(1)
    logits_BTV = model(twice, pair.decoder_inputs.repeat(2, 1)).logits_BTV
    (p, q), tokens = logits_BTV.float().log_softmax(-1), pair.target.tokens_BT[0]
    losses = [-log_p.gather(-1, tokens.unsqueeze(-1)).sum() for log_p in (p, q)]
    divergences = (p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()
    torch.manual_seed(1)
    loss = Objective(consistency=RDrop(alpha=2.0))(model, pair)
    assert divergences > 0.01
    torch.testing.assert_close(loss, 0.5 * (losses[0] + losses[1]) + 0.5 * divergences)


def test_a_consistency_loss_with_weight_zero_can_be_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model().train()
    expected = named_gradients(model, Objective())
    monkeypatch.setitem(losses.MAX_LOGITS, "cpu", 2 * V)
    for name, gradient in named_gradients(model, Objective(consistency=SimCut(alpha=0.0, cut=0.0))).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8)


def test_dropped_words_become_unknown_except_the_start_symbol() -> None:
    source, decoder_inputs = drop_words(batch(0, 1), 0.999_999)
    assert isinstance(source, Tokens)
    assert (source.tokens_BT == UNKNOWN).all()
    assert (decoder_inputs[:, 0] == START).all()
    assert (decoder_inputs[:, 1:] == UNKNOWN).all()


def test_mixed_precision_gives_nearly_the_same_gradients() -> None:
    model = make_model().float()
    mixed, full = (
        torch.cat([gradient.flatten() for gradient in named_gradients(model, Objective(bfloat16=bfloat16)).values()])
        for bfloat16 in (True, False)
    )
    assert torch.linalg.norm(mixed - full) < 0.03 * torch.linalg.norm(full)
    assert not torch.equal(mixed, full)
