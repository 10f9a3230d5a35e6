"""Arguments of the wrong type or size: the error names the argument, and is also a standard Python exception."""

from collections.abc import Callable
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


def test_argument_errors_are_standard_python_exceptions() -> None:
    assert issubclass(regard.ConfigError, ValueError)
    assert issubclass(regard.ArgumentTypeError, TypeError)
    assert issubclass(regard.ArgumentTypeError, regard.RegardError)
    with pytest.raises(ValueError, match="Did you mean 'additive'"):
        regard.Attention(4, 4, score="aditive")


@pytest.mark.parametrize("source", [None, 3, b"3 mai 2009", ["x", None], ["x", 2009], [b"x"]])
def test_sources_must_be_texts(model: regard.Model, source: Any) -> None:
    argument = rf"source\[{len(source) - 1}\] " if isinstance(source, list) else "source "
    with pytest.raises(regard.ArgumentTypeError, match=f"{argument}must be a text"):
        model.predict(source)
    with pytest.raises(regard.ArgumentTypeError, match=f"{argument}must be a text"):
        model.score(source, ["x", "y"])
    with pytest.raises(regard.ArgumentTypeError, match="source must be one text"):
        model.trace(source)


def test_predict_accepts_any_iterable_of_texts(model: regard.Model) -> None:
    expected = [prediction.text for prediction in model.predict(["x", "3 mai"])]
    assert [prediction.text for prediction in model.predict(iter(["x", "3 mai"]))] == expected  # type: ignore[call-overload]
    assert model.predict([]) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_error_for_a_packed_sequence_explains_how_to_unpack_it(network: Any) -> None:
    packed = pack_padded_sequence(torch.randn(2, 3, 4), [3, 2], batch_first=True)
    with pytest.raises(regard.ArgumentTypeError, match="pad_packed_sequence"):
        network(4, 8)(packed)


@pytest.mark.parametrize("x", [None, torch.randn(2, 3, 4).numpy(), [[1.0]]], ids=["None", "numpy", "list"])
@pytest.mark.parametrize("network", NETWORKS)
def test_recurrent_networks_need_a_tensor(network: Any, x: Any) -> None:
    with pytest.raises(regard.ArgumentTypeError, match=rf"{network.__name__} expects a tensor of shape"):
        network(4, 8)(x)


@pytest.mark.parametrize("lengths", [[2, 3], (2, 3)])
@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_may_be_a_list_or_tuple(network: Any, lengths: Any) -> None:
    layer, x = network(4, 8), torch.randn(2, 3, 4)
    expected, _ = layer(x, lengths=torch.tensor([2, 3]))
    torch.testing.assert_close(layer(x, lengths=lengths)[0], expected)


@pytest.mark.parametrize("lengths", [["a", "b"], [[1], [2, 3]], [None, 1], {1, 2}])
@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_of_wrong_type_are_rejected(network: Any, lengths: Any) -> None:
    with pytest.raises(TypeError, match="lengths must be a tensor or a list"):
        network(4, 8)(torch.randn(2, 3, 4), lengths=lengths)


@pytest.mark.parametrize("lengths", [3, [2.0, 3.0], [1, 2, 3], torch.tensor(3)])
@pytest.mark.parametrize("network", NETWORKS)
def test_lengths_need_one_integer_per_row(network: Any, lengths: Any) -> None:
    with pytest.raises(ValueError, match="lengths must be one integer for each"):
        network(4, 8)(torch.randn(2, 3, 4), lengths=lengths)


EMPTY = torch.randn(2, 0, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda query: regard.Attention.named("bahdanau", 4, 4)(query, EMPTY),
        lambda query: regard.Attention.named("luong-dot", 4, 4)(query, EMPTY),
        lambda query: regard.MultiHeadAttention(4, 2)(query, EMPTY),
        lambda query: regard.attend(query, EMPTY),
        lambda _: regard.Attention(4, 4).prepare(EMPTY),
    ],
    ids=["bahdanau", "luong-dot", "multi-head", "attend", "prepare"],
)
def test_empty_memory_is_rejected(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(ValueError, match=r"\(2, 0, 4\): the memory is empty"):
        call(torch.randn(2, 3, 4))


@pytest.mark.parametrize("attend", [regard.Attention(4, 4), regard.attend], ids=["Attention", "attend"])
def test_attention_needs_tensors(attend: Callable[..., Any]) -> None:
    x: Any = torch.randn(2, 3, 4)
    with pytest.raises(TypeError, match="query must be a tensor, not NoneType"):
        attend(None, x)
    with pytest.raises(TypeError, match="keys must be a tensor, not list"):
        attend(x, [1.0])
    with pytest.raises(TypeError, match="allowed must be a tensor, not list"):
        attend(x, x, allowed=[True])
