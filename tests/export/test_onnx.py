"""Models that are exported to ONNX give the same outputs in ONNX Runtime, and hostile files are rejected."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.export.onnx_model import DECODER, DESCRIPTION, ENCODER, OnnxModel
from regard.models.contracts import Source, Tokens, reorder
from regard.models.vision.sources import LENGTH_HINT
from tests_marian import make_pairs
from tests_onnx import GRU, KINDS, RECURRENT, SEARCHED, train, train_captioner

onnx = pytest.importorskip("onnx", reason="onnx is missing; install it with: pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is missing; install it with: pip install -e '.[test]'")

EXAMPLE = Path(__file__).parents[2] / "examples/onnx_beam_search.py"
TEXTS = [source for source, _ in make_pairs(12, seed=1)]


@torch.no_grad()
def compare(model: regard.Model, exported: OnnxModel, source: Source, hypotheses: int, steps: int = 8) -> float:
    """Return the largest difference of the logits of several steps, between which hypotheses are reordered."""
    decoder, rows = model.network.decoder, len(source.length_hint_B)
    generator, worst = torch.Generator().manual_seed(0), 0.0
    keys, state = decoder.begin(model.network.encoder(source))
    onnx_keys, onnx_state = exported.begin([tensor.numpy() for tensor in source.tensors])
    repeated_N = torch.arange(rows).repeat_interleave(hypotheses)
    state = reorder(reorder(state, repeated_N), torch.arange(len(repeated_N)), block=hypotheses)
    onnx_state = tuple(part[repeated_N.numpy()] for part in onnx_state)
    for _ in range(steps):
        token_N = torch.randint(4, exported.description.vocabulary, (rows * hypotheses,), generator=generator)
        logits_NV, state = decoder.step(token_N, state, keys)
        onnx_logits_NV, onnx_state = exported.step(token_N.numpy(), onnx_state, onnx_keys)
        worst = max(worst, float((logits_NV - torch.from_numpy(onnx_logits_NV)).abs().max()))
        chosen_BK = torch.randint(hypotheses, (rows, hypotheses), generator=generator)
        rows_N = (torch.arange(rows).unsqueeze(1) * hypotheses + chosen_BK).flatten()
        state = reorder(state, rows_N, block=hypotheses)
        onnx_state = tuple(part[rows_N.numpy()] for part in onnx_state)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_of_each_step_and_the_text_of_the_example_are_the_same(tmp_path: Path, kind: str) -> None:
    is_searched = kind in SEARCHED
    model = train(tmp_path / "run", 200 if is_searched else 2, **KINDS[kind])
    model.network.eval()
    exported = OnnxModel(model.export(tmp_path / "onnx", "onnx"))
    for lengths, hypotheses in (([9, 4, 1, 0], 3), ([1], 1), ([6], 5)):
        tokens_BT = torch.randint(4, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
        assert compare(model, exported, Tokens(tokens_BT, torch.tensor(lengths)), hypotheses) < 1e-4
    if is_searched:
        ours = [prediction.text for prediction in model.predict(TEXTS, beam=5)]
        assert len(set(ours)) > 1
        command = [sys.executable, str(EXAMPLE), str(tmp_path / "onnx"), *TEXTS]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        assert printed == ours


@pytest.mark.slow
def test_a_captioner_gives_the_same_captions(tmp_path: Path) -> None:
    model = train_captioner(tmp_path / "run")
    model.export(tmp_path / "onnx", "onnx")
    images = [np.random.default_rng(seed).integers(256, size=(64, 64, 3), dtype=np.uint8) for seed in range(3)]
    pixels = np.stack(images).transpose(0, 3, 1, 2)
    source = model.network.encoder.example_source(0, torch.device("cpu"))
    assert source is not None
    exported = OnnxModel(tmp_path / "onnx")
    assert compare(model, exported, source.with_tensors([torch.from_numpy(pixels)]), hypotheses=5) < 1e-4
    beam_search = runpy.run_path(str(EXAMPLE))["beam_search"]
    for image, prediction in zip(images, model.predict(images, beam=5), strict=True):
        arrays = {"pixels": image.transpose(2, 0, 1)[None].astype(np.float32)}
        tokens = beam_search(tmp_path / "onnx", arrays, length=LENGTH_HINT)
        assert model.predictor.tokenizer.decode(tokens) == prediction.text


def refuse(path: Path, name: str, **settings: Any) -> str:
    model = train(path / "run", **settings)
    with pytest.raises(regard.ConfigError) as caught:
        model.export(path / name, "onnx")
    assert not (path / name).exists()
    return str(caught.value)


def test_what_cannot_be_expressed_is_refused_with_the_nearest_setting(tmp_path: Path) -> None:
    monotonic = {**GRU, "model.attention.select": "hard_monotonic"}
    assert "model.attention.select=hard_exact" in refuse(tmp_path / "a", "onnx", **monotonic)
    lstmn = {**RECURRENT, "model.encoder.cell": "lstmn"}
    assert "model.encoder.cell=lstm" in refuse(tmp_path / "b", "onnx", **lstmn)


def write_graph(path: Path, inputs: list[str], outputs: list[str], **changes: Any) -> None:
    """Write a graph that copies its first input to each output."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("Identity", inputs[:1], [name], domain=changes.get("domain", "")) for name in outputs]
    weight = helper.make_tensor("weight", floats, [4], np.zeros(4, np.float32).tobytes(), raw=True)
    if "location" in changes:
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=changes["location"])
    describe = [
        [helper.make_tensor_value_info(name, floats, ["rows"]) for name in names] for names in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "graph", *describe, initializer=[weight])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    path.write_bytes(model.SerializeToString()[: changes.get("size")])


def write_model(folder: Path, **changes: Any) -> Path:
    """Write a model without weights that is valid, except for some changes."""
    folder.mkdir()
    part = {"dtype": "float32", "shape": ["rows", "hypotheses"]}
    description = {
        "format": "regard-onnx-1",
        "source_kind": "text",
        "source": [{**part, "name": "tokens"}],
        "keys": [],
        "state": [{**part, "name": "state.h"}],
        "initial": ["state.h"],
        "vocabulary": 9,
        "start": 1,
        "end": 2,
        "suppressed": [0],
        "max_length_ratio": 2.0,
        "max_length_extra": 20,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description | changes.pop("description", {})))
    write_graph(folder / ENCODER, ["tokens"], ["state.h"], **changes)
    write_graph(folder / DECODER, ["token", "state.h"], ["logits", "next_state.h"])
    return folder


def test_a_valid_folder_is_loaded(tmp_path: Path) -> None:
    assert OnnxModel(write_model(tmp_path / "model")).description.vocabulary == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"location": "../outside.bin"}, "not a file in the same folder"),
        ({"location": "/etc/hostname"}, "not a file in the same folder"),
        ({"location": "link.bin"}, "not a file in the same folder"),
        ({"location": "missing.bin"}, "not a file in the same folder"),
        ({"domain": "other"}, "which are not those of ONNX"),
        ({"size": 40}, "is damaged|does not have the inputs"),
        ({"size": -30}, "is damaged|does not have the inputs"),
        ({"description": {"initial": []}}, "does not have the inputs and outputs"),
        ({"description": {"format": "other"}}, "was not written by regard export"),
        ({"description": {"start": "one"}}, "was not written by regard export"),
    ],
)
def test_hostile_files_are_rejected_before_anything_is_run(
    tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", None)
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    folder = write_model(tmp_path / "model", **changes)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(regard.ModelError, match=message) as caught:
        OnnxModel(folder)
    assert caught.value.exit_code == 4


def test_a_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(regard.ModelError, match="cannot be read"):
        OnnxModel(tmp_path)


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[export\]'"):
        OnnxModel(write_model(tmp_path / "model"))
