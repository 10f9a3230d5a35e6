"""Models that are exported to Transformers compute the same there, and the same again when they are imported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from marian_models import load_checkpoint, translate
from regard.data.settings import FilesData
from regard.export.hf import write_card
from regard.export.importing import import_model
from regard.export.sources import read_model
from regard.runs.folder import RunFolder
from tests_marian import make_checkpoint, make_pairs, train_transformer

TEXTS = [source for source, _ in make_pairs(200, seed=1)]


def import_exported(path: Path) -> regard.Model:
    return regard.load(import_model(read_model(path), path.with_name(f"{path.name}-imported")))


def assert_same_weights(first: regard.Model, second: regard.Model) -> None:
    weights, others = first.network.state_dict(), second.network.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def assert_same_everywhere(model: regard.Model, path: Path, texts: list[str]) -> None:
    """Export, load with Transformers, import again."""
    model.export(path, "hf")
    ours = [prediction.text for prediction in model.predict(texts, beam=5, length_penalty=0.0)]
    assert len(set(ours)) > len(texts) / 10
    assert translate(load_checkpoint(path), texts, num_beams=5) == ours
    imported = import_exported(path)
    assert_same_weights(model, imported)
    assert [one.text for one in imported.predict(texts, beam=5, length_penalty=0.0)] == ours
    assert imported.settings.tokenizer == model.settings.tokenizer


@pytest.mark.slow
def test_an_exported_model_gives_the_same_outputs_in_transformers_and_when_it_is_imported(
    trained_transformer: regard.Model, tmp_path: Path
) -> None:
    assert_same_everywhere(trained_transformer, tmp_path / "marian", TEXTS[:20])
    card = (tmp_path / "marian" / "README.md").read_text()
    assert "loss" in card
    assert "learning_rate: 0.006" in card


@pytest.mark.slow
def test_an_imported_model_can_be_exported_again(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "hf", codes=(">>deu<<",), missing=3)
    model = regard.load(import_model(read_model(checkpoint.path), tmp_path / "ours"))
    texts = [f">>deu<< {TEXTS[0]}", *TEXTS[1:20]]
    assert_same_everywhere(model, tmp_path / "marian", texts)
    assert translate(load_checkpoint(tmp_path / "marian"), texts, num_beams=5) == translate(
        checkpoint, texts, num_beams=5
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.norm": "pre"}, r"model\.norm=pre cannot be expressed\. The nearest is model\.norm=post\."),
        ({"model.positions": "rotary"}, r"The nearest is model\.positions=sinusoidal"),
        ({"model.normalization": "rms", "model.activation": "swiglu"}, r"normalization=layer.*activation=silu"),
        ({"model.cross_score": "additive"}, r"The nearest is model\.cross_score=scaled_dot"),
        ({"tokenizer.shared": False, "model.tied": "decoder"}, r"Use tokenizer\.shared=true"),
        ({"tokenizer.normalization": "nfd"}, r"Use tokenizer\.normalization=nfc"),
        ({"model.encoder": {"kind": "recurrent"}, "model.tied": "decoder"}, r"model\.encoder=recurrent"),
    ],
)
def test_what_marian_cannot_express_is_refused_with_the_nearest_setting(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    model = train_transformer(tmp_path / "run", **settings, **{"training.steps": 1})
    with pytest.raises(regard.ConfigError, match=message):
        model.export(tmp_path / "marian", "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_recurrent_model_is_refused(small_run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(regard.ConfigError, match=r"recurrent is not a Transformer\. Train one with model=transformer"):
        regard.load(small_run.path).export(tmp_path / "marian", "hf")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokenizer": {"kind": "unigram", "vocabulary": 120}, "model.tied": "decoder", "model.activation": "silu"},
        {"tokenizer": {"kind": "bpe", "byte_fallback": True, "vocabulary": 400}, "model.tied": "none"},
        {"tokenizer": "word", "model.output_bias": True, "model.activation": "gelu"},
    ],
)
def test_200_outputs_are_the_same_for_every_tokenizer(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert_same_everywhere(train_transformer(tmp_path / "run", **settings), tmp_path / "marian", TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["char", "word", {"kind": "unigram", "vocabulary": 120, "symbols": ["<url>"]}])
def test_texts_are_tokenized_and_decoded_as_in_regard(tmp_path: Path, tokenizer: Any) -> None:
    model = train_transformer(tmp_path / "run", tokenizer=tokenizer, **{"training.steps": 1})
    model.export(tmp_path / "marian", "hf")
    auto, ours = load_checkpoint(tmp_path / "marian").tokenizer, model.predictor.tokenizer
    texts = [*TEXTS, "  zzz 你好\u00a0<url> é é", "a▁b"]
    assert auto(texts)["input_ids"] == ours.ids(texts)
    assert auto.batch_decode(ours.ids(TEXTS), skip_special_tokens=True) == [ours.decode(ids) for ids in ours.ids(TEXTS)]


def test_exported_weights_are_those_of_marian(transformer: regard.Model, tmp_path: Path) -> None:
    transformer.export(tmp_path / "marian", "hf")
    weights = load_file(tmp_path / "marian" / "model.safetensors")
    ours = transformer.network.state_dict()["encoder.embedding.tokens.weight"]
    assert torch.equal(weights["model.shared.weight"][:, 1], ours[:, 2])
    assert torch.equal(weights["model.shared.weight"][:, 17], ours[:, 3])


def test_a_model_card_publishes_no_folder_of_this_machine(transformer: regard.Model) -> None:
    settings = transformer.settings.model_copy(
        update={"about": "a preset", "data": FilesData.model_validate({"train": "/home/me/en.tsv"})}
    )
    card = write_card(replace(transformer._trained, settings=settings))
    assert "path: en.tsv" in card
    assert "/home/me" not in card
    assert "a preset" not in card
