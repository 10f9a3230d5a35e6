"""Edits of a trace, which the model decodes again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

import regard
from regard.data.sources import DeleteSource
from regard.decoding.edits import KINDS, Edit, ForceToken
from regard.models.ensemble import ensemble
from tests_shared import build_untrained, thin

RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 12}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{mechanism.name: (RECURRENT, {"attention": mechanism.name}) for mechanism in regard.mechanisms()},
    "heads": (RECURRENT, {"attention": {"score": "additive", "heads": 2}}),
    "parallel": (RECURRENT, {"decoder.order": "luong", "decoder.input_feeding": False, "attention.score": "dot"}),
    "copy": (RECURRENT, {"decoder.copy_source": True}),
    "transformer": (TRANSFORMER, {}),
    "rotary": (TRANSFORMER, {"positions": "rotary", "norm": "pre"}),
    "past": (TRANSFORMER, {"cross_score": "location_aware"}),
}
SOURCE = "abc def ghij"
TARGET = "bcdefa"
SEARCHES: list[dict[str, Any]] = [{}, {"beam": 3, "nbest": 2}, {"sample": True, "seed": 3}]


@pytest.fixture(params=thin(MODELS))
def model(request: pytest.FixtureRequest) -> regard.Model:
    return build_untrained(*MODELS[request.param])


@pytest.fixture(params=["general", "transformer"])
def small(request: pytest.FixtureRequest) -> regard.Model:
    """A recurrent model, and a Transformer."""
    changes = {"attention": "bahdanau"} if request.param == "general" else {}
    return build_untrained(TRANSFORMER if request.param == "transformer" else RECURRENT, changes)


def cross(model: regard.Model) -> str:
    """Return the name of the first attention to the source."""
    return next(name for name, role in model.predictor.attention_roles.items() if role == "cross")


def rows(trace: regard.Trace, name: str) -> Any:
    """Return the weights of an attention, heads × queries × keys."""
    weights = trace.prediction.attentions[name]
    return weights if weights.ndim == 3 else weights[None]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_no_edits_give_the_same_trace(small: regard.Model, search: dict[str, Any]) -> None:
    trace = small.trace(SOURCE, edits=[], **search)
    assert trace.document == small.trace(SOURCE, **search).document
    assert (trace.edits, trace.changes) == ([], None)


@pytest.mark.parametrize("search", [{}, {"beam": 2}], ids=str)
def test_rows_that_are_set_are_the_weights_of_the_trace(model: regard.Model, search: dict[str, Any]) -> None:
    name, slots = cross(model), len(SOURCE)
    row = [1.0] * (slots - 2) + [0.0, 2.0]
    edits = [{"kind": "set_row", "attention": name, "step": 1, "weights": row}]
    trace = model.trace(SOURCE, edits=edits, min_length=4, **search)
    expected = np.array(row) / slots
    np.testing.assert_allclose(
        rows(trace, name)[:, 1], np.broadcast_to(expected, rows(trace, name)[:, 1].shape), atol=1e-6
    )
    assert trace.changes is not None
    assert trace.changes.variation[name][0] == 0
    assert trace.changes.variation[name][1] > 0.01
    # The score of the search is that of the trace, so that both have used the edited weights.
    assert sum(step.log_prob for step in trace.steps[0]) == pytest.approx(trace.prediction.score, abs=1e-4)


def test_the_search_uses_the_edited_weights(model: regard.Model) -> None:
    """Greedy search with edits chooses the most likely token of each step of its trace."""
    edits: list[dict[str, Any]] = [
        {"kind": "uniform_row", "attention": cross(model)},
        {"kind": "mask_keys", "attention": cross(model), "step": 2, "keys": [0, 1]},
    ]
    trace = model.trace(SOURCE, edits=edits, min_length=4)
    for step in trace.steps[0][:4]:
        likely = [candidate for candidate in step.top if candidate.token not in {"<pad>", "<unk>", "<s>", "</s>"}]
        assert step.log_prob == pytest.approx(likely[0].log_prob, abs=1e-5)
    weights = rows(trace, cross(model))
    assert (weights[:, 2, :2] == 0).all()


@pytest.mark.parametrize("kind", ["set_row", "uniform_row", "mask_keys"])
def test_earlier_steps_of_a_given_target_do_not_change(model: regard.Model, kind: str) -> None:
    name = cross(model)
    options = {"set_row": {"weights": [1] + [0] * (len(SOURCE) - 1)}, "mask_keys": {"keys": [0, 2, 4]}}
    edit = {"kind": kind, "attention": name, "step": 3, **options.get(kind, {})}
    before, after = model.trace(SOURCE, TARGET), model.trace(SOURCE, TARGET, edits=[edit])
    for old, new in zip(before.steps[0][:3], after.steps[0][:3], strict=True):
        assert new.log_prob == pytest.approx(old.log_prob, abs=1e-5)
    for attention in before.prediction.attentions:
        if before.prediction.roles[attention] != "encoder-self":
            np.testing.assert_allclose(rows(after, attention)[:, :3], rows(before, attention)[:, :3], atol=1e-6)
    assert after.changes is not None
    assert after.changes.first_step is None
    assert after.changes.variation[name][:3] == [0, 0, 0]


def test_self_attention_is_edited_in_steps_and_in_the_trace() -> None:
    model = build_untrained(*MODELS["transformer"])
    name = "decoder.layers.0.self_attention.attention"
    edits = [
        {"kind": "set_row", "attention": name, "head": 0, "step": 2, "weights": [0, 3, 1]},
        {"kind": "uniform_row", "attention": name, "head": 1, "step": 3},
        {"kind": "uniform_row", "attention": "encoder.layers.1.attention.attention", "step": 11},
    ]
    for search in SEARCHES[:2]:
        trace = model.trace(SOURCE, edits=edits, min_length=4, **search)
        weights = rows(trace, name)
        np.testing.assert_allclose(weights[0, 2, :3], [0, 0.75, 0.25])
        np.testing.assert_allclose(weights[1, 3, :4], [0.25] * 4)
        assert (np.triu(weights[0], 1) == 0).all()
        np.testing.assert_allclose(rows(trace, "encoder.layers.1.attention.attention")[:, 11], 1 / 12)
        assert sum(step.log_prob for step in trace.steps[0]) == pytest.approx(trace.prediction.score, abs=1e-4)


def test_an_ablated_head_is_a_projection_without_its_columns() -> None:
    model = build_untrained(*MODELS["transformer"])
    name = "decoder.layers.1.cross_attention"
    ablated = model.trace(SOURCE, TARGET, edits=[{"kind": "ablate_head", "attention": f"{name}.attention", "head": 1}])
    projection = model.network.get_submodule(f"{name}.output")
    weight: Any = projection.weight
    weight.data[:, 8:] = 0  # the second of two heads of width 8
    expected = model.trace(SOURCE, TARGET)
    assert ablated.prediction.score == pytest.approx(expected.prediction.score, abs=1e-5)
    assert ablated.changes is not None
    assert abs(ablated.changes.score - ablated.prediction.score) > 1e-3


@pytest.mark.parametrize("search", SEARCHES[:2], ids=str)
def test_a_forced_token_is_a_prefix(small: regard.Model, search: dict[str, Any]) -> None:
    best = small.predict(SOURCE, min_length=4, **search)
    token = "k" if best.tokens[2] != "k" else "l"
    trace = small.trace(SOURCE, edits=[{"kind": "force_token", "step": 2, "token": token}], min_length=4, **search)
    prefix = "".join([*best.tokens[:2], token])
    expected = small.trace(SOURCE, prefix=prefix, min_length=4, **search)
    assert trace.prediction.tokens == expected.prediction.tokens
    assert trace.steps == expected.steps
    assert trace.beam == expected.beam
    assert trace.changes is not None
    assert (trace.changes.text, trace.changes.first_step) == (best.text, 2)
    index = small.predictor.tokenizer.inner.token_to_id(token)
    by_id = small.trace(SOURCE, edits=[ForceToken(step=2, token=index)], min_length=4, **search)
    assert by_id.prediction.text == trace.prediction.text


def test_forced_tokens_follow_each_other(small: regard.Model) -> None:
    first = {"kind": "force_token", "step": 1, "token": "k"}
    once = small.trace(SOURCE, edits=[first], min_length=5).prediction.tokens
    twice = small.trace(SOURCE, edits=[first, {"kind": "force_token", "step": 3, "token": "m"}], min_length=5)
    assert twice.prediction.tokens[:4] == [*once[:3], "m"]
    ended = small.trace(SOURCE, edits=[first, {"kind": "force_token", "step": 3, "token": "</s>"}], min_length=5)
    assert ended.prediction.tokens[1] == "k"
    assert len(ended.prediction.tokens) == 3
    assert not ended.prediction.truncated


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ([{"kind": "replace_source", "position": 1, "text": "klm k"}], "abc klm k ghij"),
        ([{"kind": "delete_source", "position": 0}], "def ghij"),
        ([{"kind": "delete_source", "position": 2}], "abc def"),
        ([{"kind": "replace_source", "position": 4, "text": "k", "unit": "token"}], "abc kef ghij"),
        ([{"kind": "delete_source", "position": 0}, {"kind": "replace_source", "position": 0, "text": "a"}], "a ghij"),
    ],
    ids=str,
)
def test_an_edited_source_is_predicted_as_if_it_were_given(
    small: regard.Model, search: dict[str, Any], edits: list[dict[str, Any]], text: str
) -> None:
    trace, expected = small.trace(SOURCE, edits=edits, **search), small.trace(text, **search)
    assert trace.prediction.source == text
    assert trace.prediction.text == expected.prediction.text
    assert trace.steps == expected.steps
    assert trace.changes is not None
    assert trace.changes.text == small.predict(SOURCE, **search).text


def test_masked_words_are_unknown_tokens(small: regard.Model) -> None:
    # "z" is not in the vocabulary.
    trace = small.trace(SOURCE, edits=[{"kind": "mask_source", "position": 1}])
    expected = small.trace("abc zzz ghij")
    assert trace.steps == expected.steps
    assert (trace.prediction.source, trace.prediction.unknown) == (SOURCE, [" "])
    assert small.trace("abc dzf ghij", edits=[{"kind": "mask_source", "position": 0}]).prediction.unknown == [" ", "z"]
    moved = [{"kind": "mask_source", "position": 1}, {"kind": "replace_source", "position": 0, "text": "klmk"}]
    assert small.trace(SOURCE, edits=moved).steps == small.trace("klmk zzz ghij").steps
    one = small.trace(SOURCE, edits=[{"kind": "mask_source", "position": 5, "unit": "token"}])
    assert one.steps == small.trace("abc dzf ghij").steps


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    path = tmp_path_factory.mktemp("runs") / "captioner"
    sizes = {"data.train": 16, "data.dev": 4, "data.test": 4, "model.decoder.hidden": 16, "model.embedding": 8}
    settings = {**sizes, "model.encoder.channels": [4, 4], "training.steps": 5, "training.validate_every": 5}
    regard.train("scenes", settings, out=path, quiet=True)
    return regard.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES[:2], ids=str)
def test_a_masked_region_is_captioned_as_if_the_picture_were_given(
    captioner: regard.Model, search: dict[str, Any]
) -> None:
    reader: Any = captioner.predictor.reader
    picture = np.random.default_rng(0).integers(0, 255, (reader.height, reader.width, 3), np.uint8)
    unedited = captioner.trace(picture, **search)
    rows, columns = unedited.document["source"]["grid"]
    edited = captioner.trace(picture, edits=[{"kind": "mask_region", "cells": [0, rows * columns - 1]}], **search)
    masked = picture.copy()
    height, width = reader.height // rows, reader.width // columns
    color = picture.mean((0, 1), dtype=np.float64).round().astype(np.uint8)
    masked[:height, :width] = masked[-height:, -width:] = color
    expected = captioner.trace(masked, **search)
    np.testing.assert_array_equal(edited.prediction.pixels, masked)
    assert edited.steps == expected.steps
    assert edited.changes is not None
    assert edited.changes.score == pytest.approx(unedited.prediction.score)
    assert max(edited.changes.variation[cross(captioner)]) > 0
    uniform = captioner.trace(picture, edits=[{"kind": "uniform_row", "attention": cross(captioner)}], **search)
    weights = uniform.prediction.attentions[cross(captioner)]
    np.testing.assert_allclose(weights, 1 / (rows * columns), rtol=1e-5)
    assert weights.size


def test_words_of_a_picture_and_cells_outside_the_grid_are_rejected(captioner: regard.Model) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(regard.ConfigError, match="this edit changes texts, but the model reads images"):
        captioner.trace(picture, edits=[{"kind": "delete_source", "position": 0}])
    with pytest.raises(regard.ConfigError, match=r"edits\[0\]: there is no cell 9999: "):
        captioner.trace(picture, edits=[{"kind": "mask_region", "cells": [9999]}])


def test_an_empty_source_has_an_empty_prediction(small: regard.Model) -> None:
    trace = small.trace("abc", edits=[{"kind": "delete_source", "position": 0}])
    assert trace.prediction.text == ""
    assert trace.steps == [[]]
    assert trace.changes is not None
    assert trace.changes.first_step == 0


def test_edits_of_an_ensemble_change_one_member() -> None:
    members = [build_untrained(*MODELS[name]) for name in ("transformer", "heads")]
    network = ensemble([member.network for member in members]).eval()
    model = regard.Model(replace(members[0].predictor, model=network), members[0].settings, step=0, members=2)
    names = [name for name, role in model.predictor.attention_roles.items() if role == "cross"]
    trace = model.trace(SOURCE, TARGET, edits=[{"kind": "uniform_row", "attention": names[-1]}])
    assert trace.changes is not None
    assert max(trace.changes.variation[names[-1]]) > 0.01
    assert max(trace.changes.variation[names[0]]) == 0


def test_the_document_contains_edits_and_changes(small: regard.Model, tmp_path: Path) -> None:
    edits: list[Any] = [DeleteSource(position=0), {"kind": "mask_keys", "attention": cross(small), "keys": (1, 2)}]
    trace = small.trace(SOURCE, edits=edits, beam=2)
    trace.save(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert document["edits"] == [
        {"kind": "delete_source", "position": 0},
        {"kind": "mask_keys", "attention": cross(small), "keys": [1, 2]},
    ]
    assert document["changes"]["text"] == small.predict(SOURCE, beam=2).text
    assert regard.Trace.load(tmp_path / "trace.json") == trace
    again = small.trace(SOURCE, edits=document["edits"], beam=2)
    assert again.document == trace.document


def test_the_text_of_a_trace_shows_the_edits(small: regard.Model) -> None:
    trace = small.trace("abc </b>", edits=[{"kind": "replace_source", "position": 1, "text": "<i>"}])
    before = small.predict("abc </b>").text
    assert f"without 1 edit: {before!r}" in repr(trace)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_edits_have_the_same_effect_on_a_gpu(small: regard.Model) -> None:
    edits: list[dict[str, Any]] = [
        {"kind": "mask_keys", "attention": cross(small), "keys": [0, 5]},
        {"kind": "set_row", "attention": cross(small), "step": 2, "weights": [1] * 12},
        {"kind": "force_token", "step": 1, "token": "k"},
    ]
    for search in SEARCHES[:2]:
        on_cpu = small.to("cpu").trace(SOURCE, edits=edits, min_length=5, **search)
        on_gpu = small.to("cuda").trace(SOURCE, edits=edits, min_length=5, **search)
        assert on_gpu.prediction.text == on_cpu.prediction.text
        assert on_gpu.prediction.score == pytest.approx(on_cpu.prediction.score, abs=1e-3)


def test_every_kind_is_in_the_union() -> None:
    schema = TypeAdapter(Edit).json_schema()
    assert set(schema["discriminator"]["mapping"]) == set(KINDS)


CROSS = "decoder.layers.0.cross_attention.attention"
SELF = "decoder.layers.0.self_attention.attention"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"kind": "forcetoken"}, "'forcetoken' is not a kind of edit. Did you mean 'force_token'?"),
        ({"step": 1}, "edits[0] has no `kind`"),
        ({"kind": "force_token", "stp": 1, "token": "a"}, "unknown setting 'stp'. Did you mean 'step'?"),
        ({"kind": "force_token", "step": 99, "token": "a"}, "Use step 0 to 6, counted from 0."),
        ({"kind": "force_token", "step": 0, "token": "xyz"}, "no token 'xyz'"),
        ({"kind": "force_token", "step": 0, "token": 99}, "Use an id from 0 to "),
        ({"kind": "force_token", "step": 0, "token": "<unk>"}, "never contains <unk>"),
        ({"kind": "set_row", "attention": CROSS, "weights": [1, 1]}, "2 weights, but " + CROSS + " has 12 keys"),
        ({"kind": "set_row", "attention": CROSS, "weights": [0] * 12}, "cannot be normalized"),
        ({"kind": "set_row", "attention": CROSS, "weights": [-1] * 12}, "greater than or equal to 0"),
        ({"kind": "set_row", "attention": SELF, "weights": [1]}, "Set `step`"),
        ({"kind": "set_row", "attention": SELF, "step": 1, "weights": [1, 0, 1]}, "a later key has a weight"),
        ({"kind": "mask_keys", "attention": SELF, "step": 1, "keys": [2]}, "Use key 0 to 1, counted from 0."),
        ({"kind": "mask_keys", "attention": SELF, "keys": [9]}, "Use key 0 to 6, counted from 0."),
        ({"kind": "mask_keys", "attention": CROSS, "keys": [12]}, "Use key 0 to 11, counted from 0."),
        ({"kind": "uniform_row", "attention": CROSS, "step": 40}, "Use step 0 to 6, counted from 0."),
        ({"kind": "uniform_row", "attention": CROSS, "head": 2}, "has 2 heads. Use head 0 to 1, counted from 0."),
        ({"kind": "uniform_row", "attention": "decoder.layer"}, "'decoder.layer' is not an attention of the model."),
        ({"kind": "uniform_row", "attention": CROSS[1:]}, f"Did you mean '{CROSS}'?"),
        (
            {"kind": "uniform_row", "attention": "encoder.layers.0.attention.attention", "step": 12},
            "Use step 0 to 11, counted from 0.",
        ),
        ({"kind": "delete_source", "position": 3}, "the source has 3 words. Use position 0 to 2, counted from 0."),
        ({"kind": "mask_source", "position": 12, "unit": "token"}, "Use position 0 to 11, counted from 0."),
        ({"kind": "replace_source", "position": 0, "text": ""}, "at least 1 character"),
        (
            {"kind": "mask_region", "cells": [0]},
            "this edit changes images, but the model reads texts. Use replace_source",
        ),
    ],
    ids=str,
)
def test_wrong_edits_are_rejected_with_the_valid_range(edit: dict[str, Any], message: str) -> None:
    model = build_untrained(*MODELS["transformer"])
    with pytest.raises(regard.ConfigError) as error:
        model.trace(SOURCE, edits=[edit], min_length=6)
    assert message in str(error.value)
    assert str(error.value).startswith("edits[0]")


def test_edits_that_do_not_fit_together_are_rejected(small: regard.Model) -> None:
    row = {"kind": "set_row", "attention": cross(small), "weights": [1] * 12}
    with pytest.raises(regard.ConfigError, match=r"edits\[0\]: there are 12 weights, but .* has 8 keys"):
        small.trace(SOURCE, edits=[row, {"kind": "delete_source", "position": 0}])
    with pytest.raises(regard.ConfigError, match="no effect on a given target"):
        small.trace(SOURCE, TARGET, edits=[{"kind": "force_token", "step": 0, "token": "a"}])
    with pytest.raises(regard.ConfigError, match="the source is empty"):
        small.trace("", edits=[{"kind": "force_token", "step": 0, "token": "a"}])
    for wrong in ("force_token", {"kind": "force_token"}, 3):
        with pytest.raises(regard.ArgumentTypeError, match="edits must be a list"):
            small.trace(SOURCE, edits=wrong)  # type: ignore[arg-type]
    with pytest.raises(regard.ArgumentTypeError, match=r"edits\[0\] must be a mapping or an edit, not str"):
        small.trace(SOURCE, edits=["force_token"])  # type: ignore[list-item]
