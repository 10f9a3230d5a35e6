"""The loss: worked by hand, blind to padding, and the same in pieces."""

import math

import pytest
import torch

from regard.config import resolve
from regard.data.batching import Batch, Encoded
from regard.data.ragged import Ragged
from regard.data.tokenizers import END
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel
from regard.training.losses import Objective, backward, token_loss

V = 9


def model() -> Seq2Seq:
    torch.manual_seed(0)
    small = {"encoder.hidden": 4, "decoder.hidden": 4, "dropout": 0.0, "embedding": 4}
    return build_model(resolve(RecurrentModel, {}, small), V, V).double()


def batch(*ids: int) -> Batch:
    sources, targets = [[4, 5, 6], [7], [8, 8]], [[5, 6, END], [7, 7, 7, 7, END], [END]]
    encoded = Encoded(Ragged.of(sources), Ragged.of(targets))
    return encoded.batch(list(ids), torch.device("cpu"))


def test_is_minus_log_p_of_the_targets() -> None:
    net = model()
    given = batch(0)
    log_p = net(given.source, given.given).logits_BTV.log_softmax(-1)[0]
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


def test_label_smoothing_mixes_in_the_uniform_distribution() -> None:
    net = model()
    for parameter in net.parameters():
        parameter.data.zero_()
    total, count = token_loss(net, batch(0, 1), label_smoothing=0.3)
    assert total.item() == pytest.approx(int(count) * math.log(V), rel=1e-5)


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_the_gradient_is_the_same_in_pieces(pieces: int) -> None:
    net = model()
    whole = backward(net, [batch(0, 1, 2)], Objective(0.1))
    expected = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    in_pieces = backward(net, [batch(0, 1, 2)], Objective(0.1), pieces)
    assert in_pieces == pytest.approx(whole)
    found = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-8)
