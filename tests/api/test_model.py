"""A loaded model: its device and type, its mode, and the options of predictions."""

import datetime
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import regard
from regard.decoding.settings import PredictionOptions, SearchOptions, SearchSettings
from regard.ops import int8
from regard.runs.folder import RunFolder

SOURCES = ["3 mai 2009", "May 3, 2009", "2009年5月3日", ""]
DATES = [datetime.date(1990 + index, 1 + index % 12, 1 + index) for index in range(20)]
TARGETS = ["2009-05-03", "2009-05-03", "2010-01-01", "1"]


@pytest.fixture
def model(small_run: RunFolder) -> regard.Model:
    return regard.load(small_run.path, device="cpu")


def test_a_model_is_loaded_on_the_gpu_if_there_is_one(small_run: RunFolder) -> None:
    model = regard.load(small_run.path)
    assert model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert model.dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
@pytest.mark.parametrize("dtype", ["float64", torch.float64])
def test_device_and_type_may_be_names_or_objects(small_run: RunFolder, device: Any, dtype: Any) -> None:
    model = regard.load(small_run.path, device=device, dtype=dtype)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    assert "float64" in repr(model)
    assert regard.load(small_run.path).to(device, dtype).dtype == torch.float64


def test_to_returns_the_model_and_changes_only_what_is_given(model: regard.Model) -> None:
    assert model.to(dtype="float64") is model
    assert model.to("cpu").dtype == torch.float64
    assert model.to().dtype == torch.float64


def test_an_ensemble_has_the_device_and_type_of_load(small_run: RunFolder, second_run: RunFolder) -> None:
    ensemble = regard.load(small_run.path, second_run.path, device="cpu", dtype="float64")
    assert {parameter.dtype for parameter in ensemble.network.parameters()} == {torch.float64}
    assert isinstance(ensemble.predict("3 mai 2009", beam=2).text, str)


SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 3, "nbest": 2},
    {"beam": 2, "coverage_penalty": 0.2},
    {"sample": True, "nbest": 2},
    {"mbr_samples": 3},
    {"beam": 2, "prefix": ["20", "20", "", ""], "must_contain": [["05"], "09", [], ""], "banned": "1999"},
]


def test_int8_is_undone_by_another_type(model: regard.Model) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'regard[export]'")
    before = model.predict(SOURCES)
    assert model.to(dtype="int8").dtype == torch.int8
    assert "int8" in repr(model)
    assert model.to("cpu").to().dtype == torch.int8
    assert model.to(dtype="float32").dtype == torch.float32
    assert [each.score for each in model.predict(SOURCES)] == [each.score for each in before]
    assert model.to(dtype=torch.int8).to(dtype="float64").dtype == torch.float64


def test_most_predictions_are_the_same_in_int8(small_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'regard[export]'")
    monkeypatch.setattr(int8, "MIN_SIZE", 1)
    sources = [date.strftime(pattern) for date in DATES for pattern in ("%d.%m.%Y", "%B %d, %Y")]
    exact, rounded = (
        regard.load(small_run.path, device="cpu", dtype=dtype).predict(sources, attention=False)
        for dtype in ("float32", "int8")
    )
    same = sum(first.text == second.text for first, second in zip(exact, rounded, strict=True))
    assert same >= 0.8 * len(sources)
    assert [each.score for each in exact] != [each.score for each in rounded]
    model = regard.load(small_run.path, device="cpu")
    requested = model.predict(sources, attention=False, precision="int8")
    assert [each.score for each in requested] == [each.score for each in rounded]
    assert [each.score for each in model.predict(sources, attention=False)] == [each.score for each in exact]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int8"])
def test_predictions_work_in_every_type(
    model: regard.Model, dtype: str, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == "int8":
        pytest.importorskip("onnxruntime", reason="pip install 'regard[export]'")
        monkeypatch.setattr(int8, "MIN_SIZE", 1)
    for prediction in model.to(dtype=dtype).predict(SOURCES, **search):
        assert np.isfinite(prediction.score)
        weights = prediction.attention
        assert weights is not None
        assert weights.dtype == np.float32
        tolerance = 1e-5 if dtype in ("float64", "int8") else 0.02
        np.testing.assert_allclose(weights.sum(-1), np.ones(len(weights)) * bool(prediction.source), atol=tolerance)


def test_predicting_does_not_change_how_torch_computes(model: regard.Model) -> None:
    before = torch.backends.mkldnn.enabled
    for dtype in ("float32", "bfloat16", "float16"):
        model.to(dtype=dtype).predict(SOURCES)
        model.score(SOURCES, TARGETS)
    assert torch.backends.mkldnn.enabled == before


def test_scores_in_float64_agree_with_those_in_float32(model: regard.Model) -> None:
    expected = model.score(SOURCES, TARGETS)
    predictions = [prediction.score for prediction in model.predict(SOURCES, beam=3)]
    model.to(dtype="float64")
    assert model.score(SOURCES, TARGETS) == pytest.approx(expected, rel=1e-5)
    assert [prediction.score for prediction in model.predict(SOURCES, beam=3)] == pytest.approx(predictions, rel=1e-5)
    assert model.evaluate(SOURCES[:3], TARGETS[:3])["loss"] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_in_half_precision_are_close_to_those_in_float32(model: regard.Model, dtype: str) -> None:
    expected = model.score(SOURCES, TARGETS)
    assert model.to(dtype=dtype).score(SOURCES, TARGETS) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("argument", "value", "kind", "message"),
    [
        ("device", "gpu", regard.ConfigError, "device=gpu: not a supported device. Use cpu, cuda or cuda:N."),
        ("device", "meta", regard.ConfigError, "device=meta: not a supported device"),
        ("device", "cuda:99", regard.ConfigError, "device=cuda:99: (no CUDA device is available|there is no such GPU)"),
        ("device", 0, regard.ArgumentTypeError, "device must be a name .* or a torch.device, not int"),
        ("dtype", "float23", regard.ConfigError, "dtype=float23: not a supported dtype. Did you mean 'float32'"),
        ("dtype", torch.int64, regard.ConfigError, "dtype=int64: .* Available: float32, float64, bfloat16, float16"),
        ("dtype", float, regard.ArgumentTypeError, "dtype must be a torch.dtype or its name .*, not type"),
    ],
)
def test_unsupported_devices_and_types_name_the_argument(
    small_run: RunFolder, argument: str, value: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        regard.load(small_run.path, **{argument: value})
    with pytest.raises(kind, match=message):
        regard.load(small_run.path).to(**{argument: value})


def test_a_loaded_model_is_in_evaluation_mode(model: regard.Model) -> None:
    assert not model.network.training
    assert model.train() is model
    assert model.network.training
    assert model.eval() is model
    assert not model.network.training


@pytest.mark.parametrize("training", [True, False])
def test_every_method_computes_in_evaluation_mode_and_restores_the_mode(model: regard.Model, training: bool) -> None:
    for module in model.network.modules():
        if isinstance(module, torch.nn.Dropout) or type(module).__name__ == "Dropout":
            module.p = 0.5  # type: ignore[assignment]
    expected = model.score(SOURCES, TARGETS)
    model.train(training)
    assert model.score(SOURCES, TARGETS) == expected
    assert model.predict("3 mai 2009").text == model.trace("3 mai 2009").prediction.text
    assert model.evaluate(SOURCES[:2], TARGETS[:2])["loss"] == model.evaluate(SOURCES[:2], TARGETS[:2])["loss"]
    assert model.network.training == training
    with pytest.raises(regard.ConfigError):
        model.predict("3 mai 2009", must_contain="字")
    assert model.network.training == training


def test_keyword_arguments_match_the_search_settings() -> None:
    types = get_type_hints(SearchOptions)
    assert list(types) == list(SearchSettings.model_fields)
    for name, field in SearchSettings.model_fields.items():
        assert types[name] is field.annotation, name
    assert set(PredictionOptions.__annotations__) == {*types, "prefix", "must_contain", "banned"}


@pytest.mark.parametrize("method", ["predict", "trace", "evaluate"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"bem": 5}, "There is no search setting 'bem'. Did you mean 'beam'.* Available: beam, nbest"),
        ({"beam": 0}, "beam = 0: input should be greater than 0"),
        ({"temperature": -1.0, "sample": True}, "temperature"),
    ],
)
def test_unknown_search_settings_suggest_the_nearest_name(
    model: regard.Model, method: str, option: dict[str, Any], message: str
) -> None:
    arguments: list[Any] = [["x"], ["y"]] if method == "evaluate" else ["x"]
    with pytest.raises(regard.ConfigError, match=message):
        getattr(model, method)(*arguments, **option)


def test_a_misspelled_constraint_suggests_the_nearest_name(model: regard.Model) -> None:
    with pytest.raises(regard.ConfigError, match=r"'prefx'\. Did you mean 'prefix'"):
        model.predict("x", prefx="20")  # type: ignore[call-overload]


def test_trace_accepts_search_settings_and_constraints(model: regard.Model) -> None:
    trace = model.trace("3 mai 2009", beam=2, nbest=2, prefix="19")
    assert trace.prediction.text.startswith("19")
    assert len(trace.document["hypotheses"]) == 2


def test_a_text_is_accepted_as_a_single_phrase(model: regard.Model) -> None:
    assert "2008" in model.predict("3 mai 2009", must_contain="2008", beam=3).text
    assert model.predict("3 mai 2009", banned="2").text == model.predict("3 mai 2009", banned=["2"]).text
    both = model.predict(SOURCES[:2], must_contain=["2008", ["2007"]], beam=3)
    assert "2008" in both[0].text
    assert "2007" in both[1].text


@pytest.mark.parametrize("name", ["prefix", "must_contain"])
def test_one_value_for_several_texts_is_ambiguous(model: regard.Model, name: str) -> None:
    with pytest.raises(regard.ConfigError, match=f"{name}='20' is one value for a list of 2 texts. Pass a list"):
        model.predict(["x", "y"], **{name: "20"})  # type: ignore[call-overload]
    with pytest.raises(regard.ConfigError, match=f"{name} has 1 value for 2 texts"):
        model.predict(["x", "y"], **{name: ["20"]})  # type: ignore[call-overload]
    with pytest.raises(regard.ArgumentTypeError, match=f"{name} must be a list with one value for each text, not int"):
        model.predict(["x", "y"], **{name: 20})  # type: ignore[call-overload]


def test_a_forced_target_has_the_weights_and_the_score_of_the_same_prediction(model: regard.Model) -> None:
    sources = ["3 mai 2009", "May 3", ""]
    predictions = model.predict(sources)
    targets = [prediction.text for prediction in predictions]
    forced = model.force(sources, targets)
    assert [prediction.text for prediction in forced] == targets
    assert [prediction.score for prediction in forced] == pytest.approx(model.score(sources, targets))
    for given, predicted in zip(forced[:2], predictions[:2], strict=True):
        assert given.tokens == predicted.tokens
        assert given.attentions.keys() == predicted.attentions.keys()
        np.testing.assert_allclose(given.attention, predicted.attention, atol=1e-5)
    other = model.force(["3 mai 2009"], ["1999-12-31"])[0]
    assert other.attention.shape == (10, 10)
    with pytest.raises(regard.ConfigError, match="Got 2 sources and 1 target"):
        model.force(["a", "b"], ["c"])
