"""Arguments of a wrong type or size: the error names the argument, and is the class that Python users catch."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import regard
from regard.runs.folder import RunFolder

NETWORKS = [regard.RNN, regard.GRU, regard.LSTM]


@pytest.fixture(scope="module")
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path)


def test_errors_of_arguments_are_also_those_of_python() -> None:
    assert issubclass(regard.ConfigError, ValueError)
    assert issubclass(regard.ArgumentTypeError, TypeError)
    assert issubclass(regard.ArgumentTypeError, regard.RegardError)
    with pytest.raises(ValueError, match="Did you mean 'additive'"):
        regard.Attention(4, 4, score="aditive")


@pytest.mark.parametrize("source", [None, 3, b"3 mai 2009", ["x", None], ["x", 2009], [b"x"]])
def test_only_texts_can_be_predicted_and_scored(model: regard.Model, source: Any) -> None:
    place = rf"source\[{len(source) - 1}\] " if isinstance(source, list) else "source "
    with pytest.raises(regard.ArgumentTypeError, match=f"{place}must be a text"):
        model.predict(source)
    with pytest.raises(regard.ArgumentTypeError, match=f"{place}must be a text"):
        model.score(source, ["x", "y"])
    with pytest.raises(regard.ArgumentTypeError, match="source must be one text"):
        model.trace(source)


def test_any_iterable_of_texts_can_be_predicted(model: regard.Model) -> None:
    expected = [found.text for found in model.predict(["x", "3 mai"])]
    assert [found.text for found in model.predict(iter(["x", "3 mai"]))] == expected  # type: ignore[call-overload]
    assert model.predict([]) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_a_packed_sequence_is_answered_with_how_to_unpack_it(network: Any) -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(regard.ArgumentTypeError, match="pad_packed_sequence"):
        network(4, 8)(pack_padded_sequence(x, [3, 2], batch_first=True))
    for other in (None, x.numpy(), [[1.0]]):
        with pytest.raises(regard.ArgumentTypeError, match=rf"{network.__name__} expects a tensor of shape"):
            network(4, 8)(other)


@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_may_be_a_list(network: Any) -> None:
    layer, x = network(4, 8), torch.randn(2, 3, 4)
    expected, _ = layer(x, lengths=torch.tensor([2, 3]))
    for lengths in ([2, 3], (2, 3)):
        torch.testing.assert_close(layer(x, lengths=lengths)[0], expected)
    for lengths in (["a", "b"], [[1], [2, 3]], [None, 1], {1, 2}):
        with pytest.raises(TypeError, match="lengths must be a tensor or a list"):
            layer(x, lengths=lengths)
    for lengths in (3, [2.0, 3.0], [1, 2, 3], torch.tensor(3)):
        with pytest.raises(ValueError, match="lengths must be one integer for each"):
            layer(x, lengths=lengths)


def test_an_empty_memory_cannot_be_attended_to() -> None:
    query, nothing = torch.randn(2, 3, 4), torch.randn(2, 0, 4)
    calls = [
        *(lambda name=name: regard.Attention.named(name, 4, 4)(query, nothing) for name in ("bahdanau", "luong-dot")),
        lambda: regard.MultiHeadAttention(4, 2)(query, nothing),
        lambda: regard.attend(query, nothing),
        lambda: regard.Attention(4, 4).prepare(nothing),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"\(2, 0, 4\): the memory is empty"):
            call()


def test_attention_takes_tensors() -> None:
    x: Any = torch.randn(2, 3, 4)
    for attend in (regard.Attention(4, 4), regard.attend):
        with pytest.raises(TypeError, match="query must be a tensor, not NoneType"):
            attend(None, x)
        with pytest.raises(TypeError, match="keys must be a tensor, not list"):
            attend(x, [1.0])
        with pytest.raises(TypeError, match="allowed must be a tensor, not list"):
            attend(x, x, allowed=[True])
