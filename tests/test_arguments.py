"""Arguments of the wrong type or size: the error names the argument, and is also a standard Python exception."""

from collections.abc import Callable
from pathlib import Path
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


Misuse = tuple[Callable[..., Any], type[Exception], str]
X, MEMORY = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
HALF = torch.empty(2, 3, 4, dtype=torch.float16)
MASK = torch.ones(2, 5, dtype=torch.bool)
VALUE, TYPE = regard.ConfigError, regard.ArgumentTypeError
API: Any = regard


def attention(**options: Any) -> regard.Attention:
    return regard.Attention(4, 4, **options)


def multi_head(**options: Any) -> regard.MultiHeadAttention:
    return regard.MultiHeadAttention(4, 2, **options)


def enter(context: Any) -> None:
    with context:
        pass


BUILDING: list[Misuse] = [
    (lambda: API.Attention(0, 4), VALUE, "query_size must be an integer of at least 1, not 0"),
    (lambda: API.Attention(-1, 4), VALUE, "query_size must be an integer of at least 1, not -1"),
    (lambda: API.Attention(True, 4), TYPE, "query_size must be an integer of at least 1, not True"),
    (lambda: API.Attention(4, 2.5), TYPE, r"key_size must be an integer of at least 1, not 2\.5"),
    (lambda: API.Attention(4, None), TYPE, "key_size must be .*, not None"),
    (lambda: API.Attention(4, "4"), TYPE, "key_size must be .*, not '4'"),
    (lambda: attention(heads=0), VALUE, "heads must be an integer of at least 1, not 0"),
    (lambda: attention(heads=True), TYPE, "heads must be .*, not True"),
    (lambda: attention(heads="2"), TYPE, "heads must be .*, not '2'"),
    (lambda: attention(heads=3), VALUE, "not divisible by 3 heads"),
    (lambda: attention(dropout=1.0), VALUE, r"dropout = 1\.0: input should be less than or equal to 0\.999"),
    (lambda: attention(dropout=-0.1), VALUE, r"dropout = -0\.1"),
    (lambda: attention(dropout=float("nan")), VALUE, "dropout = nan"),
    (lambda: attention(dropout=None), VALUE, "dropout = null"),
    (lambda: attention(score="aditive"), VALUE, "'aditive' is not a valid score. Did you mean 'additive'"),
    (lambda: attention(score=3), VALUE, "score = 3"),
    (lambda: attention(score=torch.nn.Linear(4, 4)), TYPE, r"score must be .* a regard\.Score, not Linear"),
    (lambda: attention(scope="globl"), VALUE, "'globl' is not a valid scope. Did you mean 'global'"),
    (lambda: attention(scope=None), VALUE, "scope = null"),
    (lambda: attention(scope=torch.nn.Linear(4, 4)), TYPE, r"scope must be .* a regard\.Scope, not Linear"),
    (lambda: attention(select="sofmax"), VALUE, "'sofmax' is not a valid select. Did you mean 'softmax'"),
    (lambda: attention(select={"kind": "x"}), VALUE, "'x' is not a valid select"),
    (lambda: attention(select=torch.nn.Linear(4, 4)), TYPE, r"select must be .* a regard\.Selection, not Linear"),
    (lambda: attention(role="self"), VALUE, "'self' is not a valid role"),
    (lambda: API.Attention(4, 5, score="dot"), VALUE, "queries and keys of equal size, but .* 4 and 5"),
    (lambda: API.Attention.named("bahdanu", 4, 4), VALUE, "'bahdanu' is not a mechanism. Did you mean 'bahdanau'"),
    (lambda: API.Attention.named(3, 4, 4), TYPE, "name must be the name of a mechanism, not int"),
    (lambda: API.Attention.named("bahdanau", 4, 4, hedas=2), VALUE, "no option 'hedas'. Did you mean 'heads'"),
    (lambda: API.Attention.named("bahdanau", 0, 4), VALUE, "query_size must be"),
    (lambda: API.MultiHeadAttention(0), VALUE, "model_size must be an integer of at least 1, not 0"),
    (lambda: API.MultiHeadAttention(None), TYPE, "model_size must be .*, not None"),
    (lambda: API.MultiHeadAttention(8, 3), VALUE, "8 is not divisible by 3 heads"),
    (lambda: API.MultiHeadAttention(8, True), TYPE, "heads must be .*, not True"),
    (lambda: multi_head(bias=3), TYPE, "bias must be True or False, not 3"),
    (lambda: multi_head(rotary=None), TYPE, "rotary must be True or False, not None"),
    (lambda: API.MultiHeadAttention(6, 2, rotary=True)(torch.randn(1, 2, 6)), VALUE, "need an even size, not 3"),
    (lambda: API.sinusoidal_positions(-1, 4), VALUE, "length must be an integer of at least 0, not -1"),
    (lambda: API.sinusoidal_positions(2.5, 4), TYPE, r"length must be .*, not 2\.5"),
    (lambda: API.sinusoidal_positions(3, 0), VALUE, "size must be an integer of at least 1, not 0"),
    (lambda: API.sinusoidal_positions(3, 5), VALUE, "need an even size, not 5"),
    (lambda: API.sinusoidal_positions(3, None), TYPE, "size must be .*, not None"),
    (lambda: API.sinusoidal_positions(3, 4, start=-1), VALUE, "start must be .*, not -1"),
    (lambda: API.sinusoidal_positions(3, 4, start="0"), TYPE, "start must be .*, not '0'"),
    (lambda: enter(API.record(None)), TYPE, r"model must be a regard\.Model or a torch\.nn\.Module, not NoneType"),
    (lambda: enter(API.record([])), TYPE, "model must be .*, not list"),
    (lambda: enter(API.record(API.Attention)), TYPE, "model must be .*, not ABCMeta|model must be .*, not type"),
    (lambda: enter(API.record(attention(), chosen="x")), TYPE, "chosen must be a function of a name, not str"),
    (lambda: API.RNN(4, 8, activation="sigmoid"), VALUE, "activation"),
    (lambda: API.GRU(4, 8, reset="never"), VALUE, "reset"),
    (lambda: API.LSTM(4, 8, variant="NIGG"), VALUE, "Did you mean 'NIG'"),
    (lambda: API.LSTM(4, 8, forget_bias="x"), VALUE, "forget_bias"),
    (lambda: API.LSTM.from_torch(None), TYPE, r"expects a torch\.nn\.LSTM, not None"),
    (lambda: API.GRU.from_torch(torch.nn.LSTM(4, 8)), TYPE, r"expects a torch\.nn\.GRU, not LSTM"),
    (lambda: API.LSTM(4, 8, variant="NIG").to_torch(), VALUE, r"Cannot convert this network to torch\.nn\.LSTM"),
]
"""Wrong arguments of constructors and functions."""

NETWORK_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_size": 0}, VALUE, "input_size must be an integer of at least 1, not 0"),
    ({"input_size": True}, TYPE, "input_size must be .*, not True"),
    ({"hidden_size": -8}, VALUE, "hidden_size must be an integer of at least 1, not -8"),
    ({"hidden_size": "8"}, TYPE, "hidden_size must be .*, not '8'"),
    ({"layers": 0}, VALUE, "layers must be an integer of at least 1, not 0"),
    ({"layers": 1.5}, TYPE, r"layers must be .*, not 1\.5"),
    ({"bidirectional": 1}, TYPE, "bidirectional must be True or False, not 1"),
    ({"dropout": 1.0}, VALUE, r"dropout = 1\.0"),
    ({"dropout": None}, VALUE, "dropout = null"),
    ({"residual": "yes"}, TYPE, "residual must be True or False, not 'yes'"),
    ({"variational": 1}, TYPE, "variational must be True or False, not 1"),
    ({"layer_norm": None}, TYPE, "layer_norm must be True or False, not None"),
    ({"learned_initial_state": 1}, TYPE, "learned_initial_state must be True or False, not 1"),
    ({"num_layers": 2}, VALUE, "has no option 'num_layers'. Did you mean 'layers'"),
    ({"batch_first": True}, VALUE, "It is always batch first"),
]

NETWORK_INPUTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X.long()}, VALUE, r"x must be a floating-point tensor, not torch\.int64"),
    ({"x": X.bool()}, VALUE, r"x must be a floating-point tensor, not torch\.bool"),
    ({"x": HALF}, VALUE, r"x is torch\.float16, but the (RNN|GRU|LSTM) is torch\.float32"),
    ({"x": X.double()}, VALUE, r"x is torch\.float64, but the (RNN|GRU|LSTM) is torch\.float32"),
    ({"x": X.to("meta")}, VALUE, "x is on meta, but the (RNN|GRU|LSTM) is on cpu"),
    ({"x": X[0]}, VALUE, r"expects input of shape \(rows, steps, 4\), got \(3, 4\)"),
    ({"x": X[..., :3]}, VALUE, r"expects input of shape \(rows, steps, 4\), got \(2, 3, 3\)"),
    ({"x": "x"}, TYPE, "expects a tensor of shape .*, not str"),
    ({"x": X, "lengths": [-1, 2]}, VALUE, r"lengths must be between 0 and the number of steps, 3, not \[-1, 2\]"),
    ({"x": X, "lengths": [1, 9]}, VALUE, r"lengths must be between 0 and the number of steps, 3, not \[1, 9\]"),
    ({"x": X, "lengths": [True, False]}, VALUE, r"one integer for each of the 2 rows, not torch\.bool"),
    ({"x": X, "lengths": "ab"}, TYPE, "lengths must be a tensor or a list"),
    ({"x": X, "state": 3}, VALUE, r"expects a state of shape .*, got \['int'\]"),
    ({"x": X, "state": torch.zeros(2, 8)}, VALUE, r"expects a state of shape .*\(1, 2, 8\).*, got \[\(2, 8\)\]"),
    ({"x": X, "state": torch.zeros(1, 2, 7)}, VALUE, r"expects a state of shape .*, got \[\(1, 2, 7\)\]"),
]

INPUTS: list[tuple[str, Any, type[Exception], str]] = [
    ("query", None, TYPE, "query must be a tensor, not NoneType"),
    ("query", X.numpy(), TYPE, "query must be a tensor, not ndarray"),
    ("query", X[0], VALUE, r"query must have the shape \(rows, steps, 4\), not \(3, 4\)"),
    ("query", X.long(), VALUE, r"query must be a floating-point tensor, not torch\.int64"),
    ("query", HALF, VALUE, r"(query is torch\.float16, but|but the query is torch\.float16)"),
    ("query", X.double(), VALUE, r"(query is torch\.float64, but|but the query is torch\.float64)"),
    ("query", X.to("meta"), VALUE, "(query is on meta, but|but the query is on meta)"),
    ("query", torch.randn(3, 3, 4), VALUE, "query has 3 rows, but keys has 2"),
    ("keys", [1.0], TYPE, "keys must be a tensor, not list"),
    ("keys", MEMORY[..., :3], VALUE, r"keys must have the shape \(rows, steps, 4\), not \(2, 5, 3\)"),
    ("keys", MEMORY.bool(), VALUE, r"keys must be a floating-point tensor, not torch\.bool"),
    ("keys", MEMORY.double(), VALUE, r"keys is torch\.float64, but"),
    ("keys", MEMORY.to("meta"), VALUE, "keys is on meta, but"),
    ("keys", torch.randn(2, 0, 4), VALUE, "the memory is empty"),
    ("values", 3, TYPE, "values must be a tensor, not int"),
    ("values", MEMORY[:, :3], VALUE, r"values has the shape \(2, 3, 4\), but keys has \(2, 5, 4\)"),
    ("values", MEMORY.long(), VALUE, r"values must be a floating-point tensor, not torch\.int64"),
    ("values", MEMORY.double(), VALUE, r"values is torch\.float64, but"),
    ("allowed", [True], TYPE, "allowed must be a tensor, not list"),
    ("allowed", MASK.numpy(), TYPE, "allowed must be a tensor, not ndarray"),
    ("allowed", MASK.float(), VALUE, r"allowed must be a boolean tensor \(True = visible\), not torch\.float32"),
    ("allowed", MASK.long(), VALUE, r"allowed must be a boolean tensor \(True = visible\), not torch\.int64"),
    ("allowed", MASK[:, :4], VALUE, r"allowed must have the shape \(2, 5\) or \(2, 3, 5\) .*, not \(2, 4\)"),
    ("allowed", MASK[0], VALUE, r"allowed must have the shape .*, not \(5,\)"),
    ("allowed", MASK.unsqueeze(1).repeat(1, 4, 1), VALUE, r"allowed must have the shape .*, not \(2, 4, 5\)"),
    ("allowed", MASK.to("meta"), VALUE, "allowed is on meta, but keys is on cpu"),
]
"""Wrong tensors for attention: the argument, its value, the error."""

PREPARED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"memory": None}, TYPE, "(keys|memory) must be a tensor, not NoneType"),
    ({"memory": MEMORY[0]}, VALUE, r"(keys|memory) must have the shape \(rows, steps, 4\), not \(5, 4\)"),
    ({"memory": MEMORY.long()}, VALUE, "(keys|memory) must be a floating-point tensor"),
    ({"memory": MEMORY.double()}, VALUE, r"(keys|memory) is torch\.float64, but"),
    ({"memory": MEMORY, "allowed": True}, TYPE, "allowed must be a tensor, not bool"),
    ({"memory": MEMORY, "allowed": MASK.float()}, VALUE, "allowed must be a boolean tensor"),
    ({"memory": MEMORY, "allowed": MASK[:, :4]}, VALUE, r"allowed must have the shape .*, not \(2, 4\)"),
]

USING: list[Misuse] = [
    (lambda _: API.attend(X, MEMORY, score="dott"), VALUE, "'dott' is not a score without parameters"),
    (lambda _: API.attend(X, MEMORY, score=3), TYPE, "score must be a name or a function, not int"),
    (lambda _: API.attend(X, MEMORY, score=lambda *_: 3), TYPE, "the result of score must be a tensor, not int"),
    (lambda _: API.attend(X, MEMORY, score=lambda query, _: query), VALUE, r"must have .* \(2, 3, 5\), not"),
    (lambda _: attention(score="projected")(X, MEMORY, MEMORY[..., :2]), VALUE, "values of the size of the keys, 4"),
    (lambda _: attention(heads=2, score="dot")(X, MEMORY, MEMORY[..., :3]), VALUE, "size 3, .* not divisible by 2"),
    (lambda _: attention(scope="causal")(X, MEMORY), VALUE, "3 queries and 5 slots"),
    (lambda _: API.load(None), TYPE, "path must be the path of a run folder, not NoneType"),
    (lambda _: API.load("runs", 3), TYPE, "path must be the path of a run folder, not int"),
    (lambda _: API.load("runs", device=3), TYPE, r"device must be a name .*, not int"),
    (lambda _: API.load("runs", dtype="int16"), VALUE, "dtype=int16: not a supported dtype"),
    (lambda _: API.choose([("a", "b")]), TYPE, "data must be a mapping of settings, .*, not list"),
    (lambda _: API.choose({}), VALUE, "the setting 'train' is required"),
    (lambda _: API.choose({"train": 3}), VALUE, "train = 3"),
    (lambda _: API.choose({"train": "pairs.tsv"}, ["x"]), TYPE, r"overrides must be a mapping .*, not \['x'\]"),
    (lambda _: API.choose({"train": "pairs.tsv"}, minutes="x"), TYPE, "minutes must be a number, not 'x'"),
    (lambda _: API.choose({"train": "pairs.tsv"}, minutes=0), VALUE, "minutes = 0"),
    (lambda _: API.choose({"train": "pairs.tsv"}, report=3), TYPE, "report must be a function of a text, not int"),
    (lambda _: API.choose({"train": "pairs.tsv"}, started="x"), TYPE, "started must be a reading of .*, not str"),
    (lambda _: API.train("datse"), VALUE, "'datse' is neither a preset nor a file. Did you mean 'dates'"),
    (lambda _: API.train("dates", {3: 4}), TYPE, "overrides must be a mapping of settings"),
    (lambda _: API.train("dates", minutes=True), TYPE, "minutes must be a number, not True"),
    (lambda _: API.train("dates", quiet=1), TYPE, "quiet must be True or False, not 1"),
    (lambda _: API.train("dates", out=__file__), VALUE, "cannot be a run folder: it, or a parent of it, is a file"),
    (lambda _: API.train({"data": {"kind": "dates"}}), VALUE, "need a folder to train in: out="),
    (lambda model: model.to(3), TYPE, "device must be a name .*, not int"),
    (lambda model: model.to(dtype=float), TYPE, r"dtype must be a torch\.dtype or its name .*, not type"),
    (lambda model: model.train("yes"), TYPE, "mode must be True or False, not 'yes'"),
    (lambda model: model.predict({"a": "b"}), TYPE, "source must be a text .*, not dict"),
    (lambda model: model.predict("x", batch_size=0), VALUE, "batch_size must be an integer of at least 1, not 0"),
    (lambda model: model.predict("x", batch_size=True), TYPE, "batch_size must be .*, not True"),
    (lambda model: model.predict("x", attention=None), TYPE, "attention must be True or False, not None"),
    (lambda model: model.predict("x", beam=True), TYPE, "beam must be an integer, not True"),
    (lambda model: model.predict("x", beam="2"), TYPE, "beam must be an integer, not '2'"),
    (lambda model: model.predict("x", beam=None), TYPE, "beam must be an integer, not None"),
    (lambda model: model.predict("x", beam=0), VALUE, "beam = 0"),
    (lambda model: model.predict("x", beam=2, nbest=3), VALUE, "a beam of 2 cannot return 3 predictions"),
    (lambda model: model.predict("x", sample="yes"), TYPE, "sample must be True or False, not 'yes'"),
    (lambda model: model.predict("x", sample=True, seed=2**70), VALUE, "seed = "),
    (lambda model: model.predict("x", sample=True, temperature="hot"), TYPE, "temperature must be a number, not 'hot'"),
    (lambda model: model.predict("x", sample=True, top_p=0), VALUE, "top_p = 0"),
    (lambda model: model.predict("x", prefix=3), TYPE, "prefix must be one text .*, not int"),
    (lambda model: model.predict("x", prefix=["2"]), TYPE, "prefix must be one text .*, not list"),
    (lambda model: model.predict("x", must_contain=[3]), TYPE, r"must_contain\[0\] must be a text .*, not int"),
    (lambda model: model.predict("x", banned=3), TYPE, "banned must be a text .* or a list of texts, not int"),
    (lambda model: model.predict("x", must_contain="字"), VALUE, "no token for '字'"),
    (lambda model: model.score("x", ["y"]), VALUE, "Pass one source and one target, or a list"),
    (lambda model: model.score(["x"], ["y", "z"]), VALUE, "Got 1 source and 2 targets"),
    (lambda model: model.score(["x"], [None]), TYPE, r"target\[0\] must be a text .*, not NoneType"),
    (lambda model: model.trace(["x"]), TYPE, "source must be one text .*, not list"),
    (lambda model: model.trace("x", beem=2), VALUE, "no search setting 'beem'. Did you mean 'beam'"),
    (lambda model: model.trace("x", candidates=0), VALUE, "candidates must be an integer of at least 1, not 0"),
    (
        lambda model: model.score("x", "y", batch_size=2**64),
        VALUE,
        "batch_size must be an integer of at most 1,000,000",
    ),
    (
        lambda model: model.attribute("x", "y", integration_steps=2**64),
        VALUE,
        "integration_steps must be an integer of at most 1,000, not 18446744073709551616",
    ),
    (
        lambda model: model.score("x", "y", batch_size=-(10**5_000)),
        VALUE,
        "batch_size must be an integer of at least 1",
    ),
    (lambda model: model.trace("x", queries="yes"), TYPE, "queries must be True or False, not 'yes'"),
    (lambda model: model.trace("x", states=1), TYPE, "states must be True or False, not 1"),
    (lambda model: model.trace("x", "y", beam=2), VALUE, "without a search, so beam cannot be set"),
    (lambda model: type(model.trace("x")).load(None), TYPE, "path must be the path of a file, not NoneType"),
    (lambda model: model.trace("x").save(None), TYPE, "path must be the path of a file, not NoneType"),
    (lambda model: model.trace("x").save("trace.txt"), VALUE, "a trace is saved as .json or .html"),
    (lambda model: model.trace("x").save("missing/trace.json"), VALUE, "there is no folder missing"),
    (
        lambda model: model.evaluate(None),
        TYPE,
        "sources must be a list of .* pairs if references is None, not NoneType",
    ),
    (lambda model: model.evaluate("x", "y"), TYPE, "sources must be a list of texts, not str"),
    (lambda model: model.evaluate([1], ["y"]), TYPE, r"sources\[0\] must be a text .*, not int"),
    (lambda model: model.evaluate(["x"], [1]), TYPE, r"references\[0\] must be a text .*, not int"),
    (lambda model: model.evaluate(["x"], [[1]]), TYPE, r"references\[0\]\[0\] must be a text .*, not int"),
    (lambda model: model.evaluate([("x", 1)]), TYPE, r"sources\[0\]\[1\] must be one text .*, not int"),
    (lambda model: model.evaluate([("x", "y", "z")]), VALUE, r"sources\[0\] is not a pair"),
    (lambda model: model.evaluate(["x"]), VALUE, r"sources\[0\] is not a pair"),
    (lambda model: model.evaluate(["x"], ["y", "z"]), VALUE, "Got 1 source and 2 references"),
    (lambda model: model.evaluate(["x"], [[]]), VALUE, "empty list of references"),
    (lambda model: model.evaluate(["x"], ["y"], metrics=["bluu"]), VALUE, "Did you mean 'bleu'"),
    (lambda model: model.evaluate(["x"], ["y"], metrics=3), TYPE, "metrics must be a list of names .*, not int"),
    (lambda model: model.evaluate(["x"], ["y"], metrics=[]), VALUE, "metrics is empty"),
    (lambda model: model.evaluate(["x"], ["y"], batch_size=0), VALUE, "batch_size must be"),
    (lambda model: model.evaluate(["x"], ["y"], confidence="x"), TYPE, "confidence must be True or False, not 'x'"),
    (lambda _: API.Run("runs", None, 0).load(device="gpu"), VALUE, "device=gpu: not a supported device"),
]
"""Wrong arguments of what is used with tensors, models and files. Each call gets a model."""


@pytest.mark.parametrize(("call", "kind", "message"), BUILDING)
def test_wrong_arguments_of_constructors(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(("options", "kind", "message"), NETWORK_OPTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_wrong_options_of_recurrent_networks(
    network: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        network(**{"input_size": 4, "hidden_size": 8, **options})


@pytest.mark.parametrize(("inputs", "kind", "message"), NETWORK_INPUTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_wrong_inputs_of_recurrent_networks(
    network: Any, inputs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    arguments = dict(inputs)
    with pytest.raises(kind, match=message):
        network(4, 8)(arguments.pop("x"), **arguments)


@pytest.mark.parametrize(("argument", "value", "kind", "message"), INPUTS)
@pytest.mark.parametrize(
    "attend",
    [attention(), attention(score="dot"), attention(score="projected", heads=2), multi_head(), regard.attend],
    ids=["additive", "dot", "projected", "multi-head", "attend"],
)
def test_wrong_tensors_for_attention(
    attend: Callable[..., Any], argument: str, value: Any, kind: type[Exception], message: str
) -> None:
    inputs = {"query": X, "keys": MEMORY, "values": MEMORY, "allowed": MASK, argument: value}
    with pytest.raises(kind, match=message):
        attend(inputs["query"], inputs["keys"], inputs["values"], allowed=inputs["allowed"])


@pytest.mark.parametrize(("inputs", "kind", "message"), PREPARED)
@pytest.mark.parametrize("module", [attention(), multi_head()], ids=["Attention", "MultiHeadAttention"])
def test_wrong_tensors_for_a_prepared_memory(
    module: Any, inputs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        module.prepare(inputs["memory"], allowed=inputs.get("allowed"))


@pytest.mark.parametrize(("call", "kind", "message"), USING)
def test_wrong_arguments_of_functions_and_models(
    model: regard.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, kind: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"a{index}\tb{index}\n" for index in range(50)))
    with pytest.raises(kind, match=message):
        call(model)


def test_the_tables_cover_at_least_120_misuses() -> None:
    tables: list[list[Any]] = [BUILDING, NETWORK_OPTIONS, NETWORK_INPUTS, INPUTS, PREPARED, USING]
    assert sum(map(len, tables)) >= 120


def test_autocast_accepts_inputs_of_another_precision() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        context, _ = attention()(X, MEMORY.bfloat16())
        output, _ = multi_head()(X.bfloat16(), MEMORY)
        states, _ = regard.GRU(4, 8)(X.bfloat16())
    assert context.isfinite().all()
    assert output.isfinite().all()
    assert states.isfinite().all()


def test_a_model_can_be_recorded_directly(model: regard.Model) -> None:
    with regard.record(model) as recording:
        model.predict("3 mai 2009", attention=False)
    assert recording.weights
