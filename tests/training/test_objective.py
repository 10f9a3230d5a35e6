"""The loss: worked by hand, blind to padding, and the same in pieces."""

import math

import pytest
import torch

from regard.config import resolve
from regard.data.batching import EncodedCorpus
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END, START, UNKNOWN
from regard.errors import ConfigError
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel
from regard.ops import chunked_loss
from regard.ops.reference_mode import reference_mode
from regard.runs.settings import Consistency, NoConsistency, RDrop, RunSettings, SimCut
from regard.training.objective import Objective, drop_words, token_loss
from regard.training.step import compute_gradients
from tests_shared import three_pairs as batch

V = 9


def model() -> Seq2Seq:
    torch.manual_seed(0)
    small = {"encoder.hidden": 4, "decoder.hidden": 4, "dropout": 0.0, "embedding": 4}
    return build_model(resolve(RecurrentModel, {}, small), V, V).double()


def test_is_minus_log_p_of_the_targets() -> None:
    net = model()
    given = batch(0)
    log_p = net(given.source, given.decoder_inputs).logits_BTV.log_softmax(-1)[0]
    expected = -sum(log_p[step, token] for step, token in enumerate([5, 6, END]))
    total, count = token_loss(net, given)
    torch.testing.assert_close(total, expected.to(total.dtype), rtol=1e-5, atol=1e-6)
    assert count == 3


def test_padding_counts_for_nothing() -> None:
    net = model()
    alone = sum(token_loss(net, batch(index))[0] for index in range(3))
    together, count = token_loss(net, batch(0, 1, 2))
    torch.testing.assert_close(together, alone)
    assert count == 9


@pytest.mark.parametrize("consistency", [NoConsistency(), RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("kind", ["recurrent", "fixed", "transformer"])
def test_a_batch_of_nothing_but_padding_and_sources_without_a_token_give_numbers(
    kind: str, consistency: Consistency
) -> None:
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", {"model": kind, "tokenizer.shared": True}).model
    net = build_model(settings, V, V).train()
    device, nothing = torch.device("cpu"), Ragged.of([[], []])
    padding = EncodedCorpus(nothing, nothing).batch([0, 1], device)
    assert padding.target.tokens_BT.shape == (2, 1)
    loss, _ = compute_gradients(net, Objective(consistency=consistency), [padding])
    assert loss == 0.0
    assert all(not parameter.grad.any() for parameter in net.parameters() if parameter.grad is not None)
    silent = EncodedCorpus(nothing, Ragged.of([[5, END], [END]])).batch([0, 1], device)
    for batches in ([silent], [silent, padding]):
        loss, tokens = compute_gradients(net, Objective(consistency=consistency), batches)
        assert (math.isfinite(loss), tokens) == (True, 3)
        assert all(parameter.grad.isfinite().all() for parameter in net.parameters() if parameter.grad is not None)


def test_label_smoothing_mixes_in_the_uniform_distribution() -> None:
    net = model()
    for parameter in net.parameters():
        parameter.data.zero_()
    total, count = token_loss(net, batch(0, 1), label_smoothing=0.3)
    assert total.item() == pytest.approx(int(count) * math.log(V), rel=1e-5)


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_the_gradient_is_the_same_in_pieces(pieces: int) -> None:
    net = model()
    whole = compute_gradients(net, Objective(0.1), [batch(0, 1, 2)])
    expected = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    in_pieces = compute_gradients(net, Objective(0.1), [batch(0, 1, 2)], pieces)
    assert tuple(map(float, in_pieces)) == pytest.approx(tuple(map(float, whole)))
    found = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-8)


def gradients(net: Seq2Seq, objective: Objective, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    compute_gradients(net, objective, [batch(0, 1, 2)])
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("kind", [NoConsistency(), RDrop(), SimCut(cut=0.5)])
def test_few_logits_at_a_time_give_the_same_loss_and_gradient(
    kind: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model().train()
    objective = Objective(0.1, 0.2, kind)
    torch.manual_seed(0)
    loss, expected = objective(net, batch(0, 1, 2)).item(), gradients(net, objective)
    monkeypatch.setitem(chunked_loss.MAX_LOGITS, "cpu", 2 * V)
    torch.manual_seed(0)
    assert objective(net, batch(0, 1, 2)).item() == pytest.approx(loss)
    for name, found in gradients(net, objective).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-8)


def test_second_derivatives_of_the_loss_are_known_to_the_plain_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    weight = net.decoder.readout.output.weight  # type: ignore[union-attr]

    def curvature() -> torch.Tensor:
        with reference_mode():
            [slope] = torch.autograd.grad(Objective()(net, batch(0, 1, 2)), weight, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), weight)[0]

    expected = curvature()
    monkeypatch.setitem(chunked_loss.MAX_LOGITS, "cpu", 2 * V)
    torch.testing.assert_close(curvature(), expected)
    with pytest.raises(ConfigError, match="reference_mode"):
        torch.autograd.grad(Objective()(net, batch(0, 1, 2)), weight, create_graph=True)


def test_batches_that_make_one_step_weigh_by_their_tokens() -> None:
    net = model()
    whole = gradients(net, Objective())
    compute_gradients(net, Objective(), [batch(0), batch(1, 2)])
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-5, atol=1e-8)


def test_passes_that_agree_cost_nothing() -> None:
    """Without dropout both passes of R-Drop are one, and with no token cut those of SimCut are."""
    net = model().train()
    plain = Objective(0.1)(net, batch(0, 1, 2)).item()
    for kind in (RDrop(), SimCut(cut=0.0)):
        assert Objective(0.1, 0.0, kind)(net, batch(0, 1, 2)).item() == pytest.approx(plain)


def test_consistency_may_begin_later() -> None:
    objective = Objective(0.1, 0.2, RDrop(start_step=5), bfloat16=True)
    assert objective.at(4) == Objective(0.1, 0.2, bfloat16=True)
    assert objective.at(5) == objective


def test_consistency_is_the_divergence_of_two_passes() -> None:
    """Worked out from the model's own answers to a pair whole and with every token but the start unknown."""
    net = model().eval()
    whole = batch(1)
    cut_source = whole.source._replace(tokens_BT=torch.full_like(whole.source.tokens_BT, UNKNOWN))
    cut_given = torch.full_like(whole.decoder_inputs, UNKNOWN)
    cut_given[:, 0] = whole.decoder_inputs[:, 0]
    p = net(whole.source, whole.decoder_inputs).logits_BTV.float().log_softmax(-1)
    q = net(cut_source, cut_given).logits_BTV.float().log_softmax(-1)
    expected = Objective()(net, whole).item() + 3.0 * (p.exp() * (p - q)).sum().item()
    everything_cut = SimCut.model_construct(alpha=3.0, cut=1.0)
    assert Objective(0.0, 0.0, everything_cut)(net, whole).item() == pytest.approx(expected, rel=1e-5)


def test_r_drop_adds_a_quarter_of_alpha_times_both_divergences_to_the_mean_of_both_losses() -> None:
    """Worked out from the model's own answers to a pair in both halves of a batch, each with dropout of its own."""
    torch.manual_seed(0)
    net = build_model(resolve(RunSettings, "dates", {"model.dropout": 0.4}).model, V, V).train()
    pair = batch(1)
    twice = Padded(pair.source.tokens_BT.repeat(2, 1), pair.source.lengths_B.repeat(2))
    torch.manual_seed(1)
    logits_BTV = net(twice, pair.decoder_inputs.repeat(2, 1)).logits_BTV
    (p, q), tokens = logits_BTV.float().log_softmax(-1), pair.target.tokens_BT[0]
    losses = [-log_p.gather(-1, tokens.unsqueeze(-1)).sum() for log_p in (p, q)]
    apart = (p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()
    torch.manual_seed(1)
    found = Objective(consistency=RDrop(alpha=2.0))(net, pair)
    assert apart > 0.01
    torch.testing.assert_close(found, 0.5 * (losses[0] + losses[1]) + 0.5 * apart)


def test_passes_that_need_not_agree_are_worked_out_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model().train()
    expected = gradients(net, Objective())
    monkeypatch.setitem(chunked_loss.MAX_LOGITS, "cpu", 2 * V)
    for name, found in gradients(net, Objective(consistency=SimCut(alpha=0.0, cut=0.0))).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-8)


def test_dropped_words_become_unknown_but_never_the_start() -> None:
    source, given = drop_words(batch(0, 1), 0.999_999)
    assert (source.tokens_BT == UNKNOWN).all()
    assert (given[:, 0] == START).all()
    assert (given[:, 1:] == UNKNOWN).all()


def test_half_the_bits_give_nearly_the_same_gradient() -> None:
    net = model().float()
    full, half = gradients(net, Objective()), gradients(net, Objective(bfloat16=True))
    ours, theirs = (torch.cat([grad.flatten() for grad in grads.values()]) for grads in (half, full))
    assert torch.linalg.norm(ours - theirs) < 0.03 * torch.linalg.norm(theirs)
    assert not torch.equal(ours, theirs)
