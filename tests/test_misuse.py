"""Wrong arguments of what is called step by step (prepared memories, encoders, decoders, cells), and of comparisons,
views and files: the error names the argument, and is also a standard Python exception.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.explorer.notebook import explore
from regard.models.contracts import Memory, Tokens
from regard.recurrent.cells import LSTMCell
from tests_shared import build_untrained

MEMORY, QUERY = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
API: Any = regard
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}},
    "luong": {"kind": "recurrent", "encoder": {"hidden": 8}, "decoder": {"hidden": 16, "order": "luong"}},
    "fixed": {"kind": "fixed", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}},
    "transformer": {"kind": "transformer", "size": 16, "heads": 2, "layers": 1, "feedforward": 12},
}

QUERIES: dict[str, tuple[Any, str]] = {
    "None": (None, "query must be a tensor, not NoneType"),
    "a list": ([1.0], "query must be a tensor, not list"),
    "an array": (QUERY.numpy(), "query must be a tensor, not ndarray"),
    "rank 2": (QUERY[0], r"query must have the shape \(rows, steps, 4\), not \(3, 4\)"),
    "rank 1": (QUERY[0, 0], "query must have the shape"),
    "too wide": (torch.randn(2, 3, 7), "query must have the shape"),
    "integers": (QUERY.long(), r"query must be a floating-point tensor, not torch\.int64"),
    "float64": (QUERY.double(), r"query is torch\.float64, but"),
    "another device": (QUERY.to("meta"), "query is on meta, but"),
    "three rows": (torch.randn(3, 3, 4), "query has 3 rows, but keys has 2"),
    "no rows": (torch.randn(0, 3, 4), "query has 0 rows, but keys has 2"),
}

ATTENTIONS: dict[str, Callable[[], Any]] = {
    "additive": lambda: regard.Attention(4, 4),
    "dot": lambda: regard.Attention(4, 4, score="dot"),
    "hard-monotonic": lambda: regard.Attention.named("hard-monotonic", 4, 4),
    "location-aware": lambda: regard.Attention(4, 4, score="location_aware"),
    "multi-head": lambda: regard.MultiHeadAttention(4, 2),
}


def prepare(attention: Any) -> tuple[Any, Any]:
    keys = attention.prepare(MEMORY)
    return keys, getattr(attention, "attention", attention).begin(keys)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_wrong_queries_of_a_prepared_memory(name: str, query: str) -> None:
    attention = ATTENTIONS[name]()
    value, message = QUERIES[query]
    with pytest.raises(regard.RegardError, match=message):
        attention.read(value, *prepare(attention))


@pytest.mark.parametrize("value", [None, MEMORY, (MEMORY, MEMORY)], ids=["None", "tensor", "tuple"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_keys_and_past_must_come_from_the_attention(name: str, value: Any) -> None:
    attention = ATTENTIONS[name]()
    keys, past = prepare(attention)
    with pytest.raises(TypeError, match="keys must be what `prepare` returned, not"):
        attention.read(QUERY, value, past)
    with pytest.raises(TypeError, match="past must be what `begin` or the last step returned, not"):
        attention.read(QUERY, keys, value)
    with pytest.raises(TypeError, match="keys must be what `prepare` returned, not"):
        getattr(attention, "attention", attention).begin(value)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_is_a_flag(name: str) -> None:
    attention = ATTENTIONS[name]()
    with pytest.raises(TypeError, match="weights must be True or False, not 'yes'"):
        attention(QUERY, MEMORY, weights="yes")
    with pytest.raises(TypeError, match="weights must be True or False, not 3"):
        attention.read(QUERY, *prepare(attention), weights=3)


@pytest.mark.parametrize("start", [None, "0", -1, 1.5])
def test_start_is_a_position(start: Any) -> None:
    attention = regard.MultiHeadAttention(4, 2, rotary=True)
    with pytest.raises(regard.RegardError, match="start must be an integer of at least 0"):
        attention.prepare(MEMORY, start=start)
    with pytest.raises(regard.RegardError, match="start must be an integer of at least 0"):
        attention.read(QUERY, *prepare(attention), start=start)


@pytest.mark.parametrize("convert", [Tensor.long, Tensor.double, lambda scores: scores.to("meta")])
def test_a_score_function_returns_scores_like_the_keys(convert: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match=r"the result of score (must be|is)"):
        regard.attend(QUERY, MEMORY, score=lambda query, keys: convert(query @ keys.mT))


@pytest.mark.parametrize("network", [regard.RNN, regard.GRU, regard.LSTM])
def test_lengths_without_values_are_rejected(network: Any) -> None:
    with pytest.raises(ValueError, match="lengths is on meta, but x is on cpu"):
        network(4, 8)(QUERY, lengths=torch.tensor([2, 3], device="meta"))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "x must be a tensor, not NoneType"),
        ([1.0], "x must be a tensor, not list"),
        (QUERY.numpy(), "x must be a tensor, not ndarray"),
        (torch.randn(2, 7), r"The last dimension of x must be at most 4, but x has the shape \(2, 7\)"),
        (QUERY.long(), "x must be a floating-point tensor"),
        (QUERY.double(), r"x is torch\.float64, but the cell is torch\.float32"),
        (QUERY.to("meta"), "x is on meta, but the cell is on cpu"),
    ],
)
def test_wrong_inputs_of_a_cell(x: Any, message: str) -> None:
    with pytest.raises(regard.RegardError, match=message):
        LSTMCell(4, 8).project(x)


@pytest.fixture(scope="module", params=MODELS)
def network(request: pytest.FixtureRequest) -> regard.Seq2Seq:
    return build_untrained(MODELS[request.param], {}).network


TOKENS, LENGTHS = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2])
IDS: dict[str, tuple[Any, str]] = {
    "None": (None, "tokens must be a tensor, not NoneType"),
    "a list": ([[4, 5]], "tokens must be a tensor, not list"),
    "an array": (TOKENS.numpy(), "tokens must be a tensor, not ndarray"),
    "floats": (TOKENS.float(), r"tokens must be a tensor of integers \(int64 or int32\), not torch\.float32"),
    "a mask": (TOKENS.bool(), "tokens must be a tensor of integers"),
    "rank 1": (TOKENS[0], r"tokens must have the shape \(rows, steps\), not \(3,\)"),
    "rank 3": (TOKENS.unsqueeze(-1), r"tokens must have the shape \(rows, steps\), not \(2, 3, 1\)"),
}
OUT_OF_RANGE = {"too large": (TOKENS * 1_000, "but one is 8000"), "negative": (-TOKENS, "but one is -8")}


@pytest.mark.parametrize("tokens", IDS)
def test_sources_are_integers(tokens: str) -> None:
    value, message = IDS[tokens]
    with pytest.raises(regard.RegardError, match=message):
        Tokens(value, LENGTHS)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (None, "lengths must be a tensor, not NoneType"),
        ([3, 2], "lengths must be a tensor, not list"),
        (LENGTHS.float(), "lengths must be a tensor of integers"),
        (LENGTHS.unsqueeze(0), r"lengths must have the shape \(rows,\), not \(1, 2\)"),
        (torch.tensor([1, 2, 3]), "lengths has 3 rows, but tokens has 2"),
        (LENGTHS.to("meta"), "lengths is on meta, but tokens is on cpu"),
    ],
)
def test_sources_have_one_length_for_each_row(lengths: Any, message: str) -> None:
    with pytest.raises(regard.RegardError, match=message):
        Tokens(TOKENS, lengths)


@pytest.mark.parametrize("tokens", IDS | OUT_OF_RANGE)
def test_wrong_targets(network: regard.Seq2Seq, tokens: str) -> None:
    value, message = (IDS | OUT_OF_RANGE)[tokens]
    with pytest.raises(regard.RegardError, match=message):
        network(Tokens(TOKENS, LENGTHS), value)


def test_targets_of_other_rows_or_devices(network: regard.Seq2Seq) -> None:
    with pytest.raises(ValueError, match="tokens has 3 rows, but the memory has 2"):
        network(Tokens(TOKENS, LENGTHS), torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="tokens is on meta, but the decoder is on cpu"):
        network(Tokens(TOKENS, LENGTHS), TOKENS.to("meta"))


@pytest.mark.parametrize("source", [None, TOKENS, [[4, 5]], "abc", regard.Pixels(torch.zeros(2, 3, 8, 8))])
def test_an_encoder_of_texts_needs_tokens(network: regard.Seq2Seq, source: Any) -> None:
    with pytest.raises(TypeError, match=r"source must be a regard\.Tokens, not"):
        network(source, TOKENS)


@pytest.mark.parametrize("tokens", OUT_OF_RANGE)
def test_wrong_values_in_a_source(network: regard.Seq2Seq, tokens: str) -> None:
    value, message = OUT_OF_RANGE[tokens]
    with pytest.raises(ValueError, match=message):
        network.encoder(Tokens(value, LENGTHS))


@pytest.mark.parametrize("lengths", [[9, 1], [-1, 1]])
def test_lengths_are_checked_on_a_cpu(network: regard.Seq2Seq, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"source\.lengths_B must be between 0 and the number of steps, 3"):
        network.encoder(Tokens(TOKENS, torch.tensor(lengths)))


def test_a_source_on_another_device(network: regard.Seq2Seq) -> None:
    with pytest.raises(ValueError, match=r"source\.tokens_BT is on meta, but the encoder is on cpu"):
        network.encoder(Tokens(TOKENS.to("meta"), LENGTHS.to("meta")))


MEMORIES: dict[str, tuple[Callable[[Memory], Any], str]] = {
    "None": (lambda _: None, "memory must be a regard.Memory, as an encoder returns it, not NoneType"),
    "a tensor": (lambda memory: memory.slots_BSD, "memory must be a regard.Memory, .*, not Tensor"),
    "a tuple": (lambda memory: tuple(memory)[:2], "memory must be a regard.Memory, .*, not tuple"),
}
SLOTS: dict[str, tuple[dict[str, Any], str]] = {
    "too narrow": ({"slots_BSD": torch.randn(2, 3, 5)}, r"memory.slots_BSD must have the shape \(rows, slots, 16\)"),
    "None": ({"slots_BSD": None}, "memory.slots_BSD must be a tensor, not NoneType"),
    "float64": ({"slots_BSD": torch.zeros(2, 3, 16).double()}, r"memory.slots_BSD is torch\.float64"),
    "another device": ({"slots_BSD": torch.zeros(2, 3, 16, device="meta")}, "memory.slots_BSD is on meta"),
    "mask of floats": ({"allowed_BS": torch.ones(2, 3)}, r"memory.allowed_BS must be boolean .* not torch\.float32"),
    "mask of another shape": ({"allowed_BS": torch.ones(2, 2, dtype=torch.bool)}, "memory.allowed_BS must be boolean"),
}
SUMMARIES: dict[str, tuple[Any, str]] = {
    "too narrow": (torch.randn(2, 3), r"memory.summary_BD must have the shape \((rows|2), 16\), not \(2, 3\)"),
    "None": (None, "memory.summary_BD must be a tensor, not NoneType"),
}


def check_memory_is_rejected(network: regard.Seq2Seq, memory: Any, message: str) -> None:
    with pytest.raises(regard.RegardError, match=message):
        network.decoder.begin(memory)
    with pytest.raises(regard.RegardError, match=message):
        network.decoder(TOKENS, memory)


@pytest.mark.parametrize("change", MEMORIES)
def test_wrong_memories(network: regard.Seq2Seq, change: str) -> None:
    build, message = MEMORIES[change]
    check_memory_is_rejected(network, build(network.encoder(Tokens(TOKENS, LENGTHS))), message)


@pytest.mark.parametrize("change", SLOTS)
@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_wrong_slots_of_a_memory(kind: str, change: str) -> None:
    network = build_untrained(MODELS[kind], {}).network
    changes, message = SLOTS[change]
    check_memory_is_rejected(network, network.encoder(Tokens(TOKENS, LENGTHS))._replace(**changes), message)


@pytest.mark.parametrize("change", SUMMARIES)
@pytest.mark.parametrize("kind", ["recurrent", "fixed"])
def test_wrong_summaries_of_a_memory(kind: str, change: str) -> None:
    network = build_untrained(MODELS[kind], {}).network
    summary, message = SUMMARIES[change]
    memory = network.encoder(Tokens(TOKENS, LENGTHS))._replace(summary_BD=summary)
    check_memory_is_rejected(network, memory, message)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "token must be a tensor, not NoneType"),
        ([4, 5], "token must be a tensor, not list"),
        (torch.ones(2), "token must be a tensor of integers"),
        (TOKENS, r"token must have the shape \(rows,\), not \(2, 3\)"),
        (torch.tensor([999, 2]), "Token ids must be between 0 and .*, but one is 999"),
        (torch.ones(2, dtype=torch.long, device="meta"), "token is on meta, but the decoder is on cpu"),
        (torch.ones(3, dtype=torch.long), "token has 3 rows, but the state has 2"),
    ],
)
def test_wrong_tokens_of_a_step(network: regard.Seq2Seq, token: Any, message: str) -> None:
    keys, state = network.decoder.begin(network.encoder(Tokens(TOKENS, LENGTHS)))
    with pytest.raises(regard.RegardError, match=message):
        network.decoder.step(token, state, keys)


def test_wrong_states_of_a_step(network: regard.Seq2Seq) -> None:
    keys, state = network.decoder.begin(network.encoder(Tokens(TOKENS, LENGTHS)))
    with pytest.raises(TypeError, match="state must be what `begin` or the last step returned, not NoneType"):
        network.decoder.step(torch.ones(2, dtype=torch.long), None, keys)
    with pytest.raises(TypeError, match="keys must be what `begin` returned, not NoneType"):
        network.decoder.step(torch.ones(2, dtype=torch.long), state, None)


def test_a_model_has_an_encoder_and_a_decoder(network: regard.Seq2Seq) -> None:
    with pytest.raises(TypeError, match=r"encoder must be a regard\.Encoder, not Linear"):
        API.Seq2Seq(torch.nn.Linear(1, 1), network.decoder)
    with pytest.raises(TypeError, match=r"decoder must be a regard\.Decoder, not NoneType"):
        API.Seq2Seq(network.encoder, None)


@pytest.mark.parametrize("pixels", [None, 3, torch.zeros(2, 3), torch.zeros(2, 4, 8, 8)])
def test_wrong_pixels(pixels: Any) -> None:
    with pytest.raises(regard.RegardError, match="pixels must"):
        API.Pixels(pixels)


def compare(**options: Any) -> Any:
    return API.compare(**{"outputs": {"x": ["a"], "y": ["b"]}, "pairs": [("a", "b")], **options})


def compare_references(references: Any) -> Any:
    return API.compare(outputs={"x": ["a"], "y": ["b"]}, sources=["a"], references=references)


def compute() -> None:
    """Nothing; it is not called."""


COMPARISONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: compare(pairs=b"a"), r"pairs must be a path or a list of pairs \(source, reference\), not bytes"),
    (lambda: compare(pairs=3), r"pairs must be a path or a list of pairs \(source, reference\), not int"),
    (lambda: compare(pairs=[3]), r"pairs\[0\] must be a pair .*, not 3"),
    (lambda: compare(pairs=[("a",)]), r"pairs\[0\] must be a pair"),
    (lambda: compare(pairs=[("a", 3)]), r"pairs\[0\]\[1\] must be one text .*, not int"),
    (lambda: compare(pairs=torch.zeros(2)), r"pairs\[0\] must be a pair"),
    (lambda: compare_references(3), "references must be a list of texts.*, not int"),
    (lambda: compare_references(b"a"), "references must be a list of texts.*, not bytes"),
    (lambda: compare_references([3]), r"references\[0\] must be a text .*, not int"),
    (lambda: compare_references([torch.zeros(())]), r"references\[0\] must be a text .*, not Tensor"),
    (lambda: compare_references({"a": "b"}), "references must be a list of texts.*, not dict"),
    (lambda: compare(baseline=3), "baseline must be the name of a system, not 3"),
    (lambda: compare(baseline=["x"]), r"baseline must be the name of a system, not \['x'\]"),
    (lambda: compare(baseline=b"x"), "baseline must be the name of a system"),
    (lambda: compare(test=3), "test must be one of bootstrap, randomization, not 3"),
    (lambda: compare(correction=3), "correction must be one of .*, not 3"),
    (lambda: compare(alignments=3), "alignments must be the path of a file, not int"),
    (lambda: compare(one_based="x"), "one_based must be True or False, not 'x'"),
    (lambda: compare(imports=3), "imports must be names of modules .*, not 3"),
    (lambda: API.explain("dates", 3), "overrides must be a mapping of settings"),
    (lambda: API.explain("dates", ["x"]), "overrides must be a mapping of settings"),
    (lambda: API.explain("dates", {3: 4}), "overrides must be a mapping of settings"),
    (lambda: API.explain("dates", beam=None), "beam must be an integer of at least 1, not None"),
    (lambda: API.explain("dates", imports=3), "imports must be names of modules .*, not 3"),
    (lambda: API.train("dates", imports=3.5), "imports must be names of modules"),
    (lambda: API.train(pairs=torch.zeros(2), out="x"), r"pairs.* must be a pair \(source, target\)"),
    (lambda: API.explain("dates").plot(None), "path must be the path of a file, not NoneType"),
    (lambda: API.explain("dates").plot(b"a"), "path must be the path of a file, not bytes"),
    (lambda: API.explain("dates").plot("missing/x.svg"), "there is no folder missing"),
    (lambda: API.Pairs.of(None), "pairs must be an iterable of .* pairs, not NoneType"),
    (lambda: API.Pairs.of([3]), r"pairs must be \(source, target\) pairs, but one is 3"),
    (lambda: API.Pairs.of([("a",)]), r"pairs must be .* pairs, but one is \('a',\)"),
    (lambda: API.Pairs.of("abc"), "pairs must be .* pairs, but one is 'a'"),
    (lambda: API.Pairs.of([("a", "b")]).first("x"), "count must be None or an integer of at least 0, not 'x'"),
    (lambda: API.Pairs(["a", "b"], ["c"]), "Got 2 sources and 1 target. Pass two lists of the same length"),
    (lambda: API.Attention.from_settings({}, 3, 3), "settings must be AttentionSettings, not dict"),
    (lambda: API.register_score("", print), "'' cannot be the name of a score. Use letters, digits"),
    (lambda: API.register_cell("a b", print), "'a b' cannot be the name of a cell"),
    (lambda: API.register_metric("m", compute, format_spec="zz"), "format_spec must be a format for numbers, .* 'zz'"),
    (lambda: API.register_metric("m", compute, unit=3), "unit of the metric 'm' must be of type str, not 3"),
    (lambda: API.register_metric("m", compute, higher_is_better="no"), "must be of type bool, not 'no'"),
    (lambda: API.register_corpus("c", compute, source_kind=3), "source_kind of the corpus 'c' must be of type str"),
    (lambda: API.MetricStatistics.average(None), "values must be a list with a number for each sentence"),
    (lambda: API.MetricStatistics.average(["x"]), "values must be a list"),
    (lambda: API.MetricStatistics.average([1.0]).confidence_interval("x"), "level must be a number between 0 and 1"),
    (
        lambda: API.MetricStatistics.average([1.0]).confidence_interval(2),
        "level must be a number between 0 and 1, not 2",
    ),
    (lambda: API.MetricStatistics.average([1.0]).confidence_interval(resamples=0), "resamples must be an integer"),
    (lambda: API.MetricStatistics.average([1.0]).confidence_interval(resamples="x"), "resamples must be an integer"),
    (lambda: API.MetricStatistics.average([1.0]).confidence_interval(seed=-1), "seed must be an integer of at least 0"),
    (lambda: API.MetricStatistics.average([1.0]).confidence_interval(seed="x"), "seed must be an integer"),
]


@pytest.mark.parametrize(("call", "message"), COMPARISONS)
def test_wrong_arguments_of_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(regard.RegardError, match=message):
        call()


@pytest.fixture(scope="module")
def model() -> Any:
    return build_untrained(MODELS["recurrent"], {})


USES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda model: model.align([("a b", "c")], reverse=model, symmetrize=3), "symmetrize must be one of .*, not 3"),
    (lambda model: model.align([("a b", "c")], reverse=model, symmetrize=None), "symmetrize must be one of"),
    (lambda model: model.align([("a b", "c")], symmetrize="grow"), "symmetrize must be one of .*, not 'grow'"),
    (lambda model: model.evaluate(["a"], torch.zeros(1)), r"references\[0\] must be a text .*, not Tensor"),
    (lambda model: model.predict("abc").view(attention=3), "attention must be a role or the name .*, not 3"),
    (lambda model: model.predict("abc").select(attention=None), "attention must be a role or the name .*, not None"),
    (lambda model: model.predict("abc").view(words=1), "words must be True or False, not 1"),
    (lambda model: model.predict("abc").view(kind="table"), "kind must be one of matrix, grid, lines, not 'table'"),
    (lambda model: model.predict("abc").view(kind=3), "kind must be one of matrix, grid, lines, not 3"),
    (lambda model: model.predict("abc").view(colors=3), "colors must be a text, not 3"),
    (lambda model: model.predict("abc").view(max_weight="x"), "max_weight must be a positive number, not 'x'"),
    (lambda model: model.predict("abc").view(title=3), "title must be a text, not 3"),
    (lambda model: model.predict("abc").view(style="round"), "style must be one of smooth, grid, not 'round'"),
    (lambda model: model.predict("abc").view(style=None), "style must be one of smooth, grid, not None"),
    (lambda model: model.attribute("abc", "d", method="attention").save(None), "path must be the path of a file"),
    (lambda model: model.attribute("abc", "d", method="attention").save(b"x"), "path must be the path of a file"),
    (lambda model: model.attribute("abc", "d", method="attention").view(kind=3), "kind must be one of"),
    (lambda model: explore(model, None), "sources must be a text .*, not NoneType"),  # type: ignore[arg-type]
    (lambda model: explore(model, 3), "sources must be a text .*, not int"),  # type: ignore[arg-type]
    (lambda model: explore(model, b"x"), "sources must be a text .*, not bytes"),  # type: ignore[arg-type]
    (lambda model: explore(model, [3]), r"sources\[0\] must be a text .*, not int"),  # type: ignore[list-item]
    (lambda model: explore(model, {"a": "b"}), "sources must be a text .*, not dict"),  # type: ignore[arg-type]
    (lambda model: explore(model, "abc", height="x"), "height must be an integer"),  # type: ignore[arg-type]
    (lambda model: explore(model, "abc", height=0), "height must be an integer of at least 1, not 0"),
    (lambda model: explore(model.network, "abc"), r"model must be a regard\.Model, not Seq2Seq"),
    (lambda _: explore(None, "abc"), r"model must be a regard\.Model, not NoneType"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), USES)
def test_wrong_arguments_of_models_and_views(model: Any, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(regard.RegardError, match=message):
        call(model)
