"""Models that are exported to CTranslate2 give the same outputs there."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.tokens.tokenizers import Tokenizer
from tests_marian import make_checkpoint, make_pairs, train_transformer

pytest.importorskip("ctranslate2", reason="ctranslate2 is missing; install it with: pip install -e '.[test]'")

ctranslate2: Any = importlib.import_module("ctranslate2")  # most of its functions have no types

TEXTS = [source for source, _ in make_pairs(200, seed=1)]


def translate(folder: Path, texts: list[str]) -> list[str]:
    """Translate with the exported files alone: both libraries rank hypotheses by log p."""
    translator = ctranslate2.Translator(str(folder), compute_type="default", inter_threads=1, intra_threads=1)
    source = Tokenizer.load(folder / "tokenizer.json")
    target = folder / "tokenizer.target.json"
    target_tokenizer = Tokenizer.load(target) if target.exists() else source
    batch = [source.tokens(ids) for ids in source.ids(texts)]
    results = translator.translate_batch(batch, beam_size=5, length_penalty=0, min_decoding_length=0)
    ids = target_tokenizer.inner.get_vocab()
    return [target_tokenizer.decode([ids[token] for token in result.hypotheses[0]]) for result in results]


def predict(model: regard.Model, texts: list[str]) -> list[str]:
    return [prediction.text for prediction in model.predict(texts, beam=5, length_penalty=0.0)]


@pytest.mark.slow
def test_float32_gives_the_same_outputs(trained_transformer: regard.Model, tmp_path: Path) -> None:
    trained_transformer.export(tmp_path / "ct2", "ct2")
    assert translate(tmp_path / "ct2", TEXTS[:40]) == predict(trained_transformer, TEXTS[:40])


@pytest.mark.slow
def test_lower_precision_is_smaller_and_gives_nearly_the_same_outputs(
    trained_transformer: regard.Model, tmp_path: Path
) -> None:
    sizes, ours = {}, predict(trained_transformer, TEXTS[:40])
    for precision in ("float32", "bfloat16", "int8"):
        trained_transformer.export(tmp_path / precision, f"ct2:precision={precision}")
        sizes[precision] = (tmp_path / precision / "model.bin").stat().st_size
        same = sum(a == b for a, b in zip(translate(tmp_path / precision, TEXTS[:40]), ours, strict=True))
        assert same >= 30, precision
    assert max(sizes["int8"], sizes["bfloat16"]) < sizes["float32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"model.norm": "pre", "model.tied": "decoder", "tokenizer.shared": False},
        {"model.activation": "silu", "model.tied": "none", "model.output_bias": True},
        {"model.activation": "gelu", "tokenizer": {"kind": "unigram", "vocabulary": 120}},
    ],
)
def test_200_outputs_are_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = train_transformer(tmp_path / "run", **settings)
    model.export(tmp_path / "ct2", "ct2")
    assert translate(tmp_path / "ct2", TEXTS) == predict(model, TEXTS)


@pytest.mark.slow
def test_an_imported_model_can_be_exported(tmp_path: Path) -> None:
    from regard.export.importing import import_model
    from regard.export.sources import read_model

    make_checkpoint(tmp_path / "hf")
    model = regard.load(import_model(read_model(tmp_path / "hf"), tmp_path / "ours"))
    model.export(tmp_path / "ct2", "ct2")
    assert translate(tmp_path / "ct2", TEXTS) == predict(model, TEXTS)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_exporting_does_not_change_the_model(transformer: regard.Model, tmp_path: Path, precision: str) -> None:
    before = {name: tensor.clone() for name, tensor in transformer.network.state_dict().items()}
    transformer.export(tmp_path / "ct2", f"ct2:precision={precision}")
    assert all(torch.equal(before[name], tensor) for name, tensor in transformer.network.state_dict().items())


def test_a_missing_package_is_reported_before_anything_is_written(
    transformer: regard.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[fast\]'"):
        transformer.export(tmp_path / "ct2", "ct2")
    assert not list(tmp_path.iterdir())


def test_rotary_positions_are_refused(tmp_path: Path) -> None:
    model = train_transformer(tmp_path / "run", **{"model.positions": "rotary", "training.steps": 1})
    with pytest.raises(regard.ConfigError, match=r"The nearest is model\.positions=sinusoidal"):
        model.export(tmp_path / "out", "ct2:precision=int8")
