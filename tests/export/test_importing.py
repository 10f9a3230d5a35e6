"""Imported Marian models compute what Transformers computes, and hostile files run nothing."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from marian_models import Checkpoint, translate
from regard.data.batching import pad
from regard.data.tokens.tokenizers import START
from regard.export.importing import import_model
from regard.export.sources import read_model
from tests_command import Result, find_imports
from tests_marian import make_checkpoint, make_pairs

CODE = ">>deu<<"
UNUSUAL = [f"{CODE} the dog sees a man.", "zzz  你好 the dog\u00a0sees ﬁve men!", "", "Ein >>deu<< .!"]


def import_checkpoint(folder: Path, out: Path) -> regard.Model:
    return regard.load(import_model(read_model(folder), out))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model with a language code, and pieces of the SentencePiece models that are not in vocab.json."""
    return make_checkpoint(tmp_path_factory.mktemp("marian") / "hf", codes=(CODE,), missing=3)


@pytest.fixture(scope="module")
def imported(checkpoint: Checkpoint) -> regard.Model:
    return import_checkpoint(checkpoint.path, checkpoint.path.parent / "ours")


def test_predictions_of_an_imported_model_are_those_of_transformers(
    checkpoint: Checkpoint, imported: regard.Model
) -> None:
    texts = [source for source, _ in make_pairs(17, seed=1)] + [text for text in UNUSUAL if text][:2]
    predictions = imported.predict(texts, beam=5, length_penalty=0.0)
    assert [prediction.text for prediction in predictions] == translate(checkpoint, texts, num_beams=5)
    assert imported.predict("").text == ""


def test_attention_weights_and_log_probabilities_are_those_of_transformers(
    checkpoint: Checkpoint, imported: regard.Model
) -> None:
    source, target = make_pairs(1, seed=2)[0]
    inputs = checkpoint.tokenizer([source], text_target=[target], return_tensors="pt")
    checkpoint.model.set_attn_implementation("eager")
    with torch.inference_mode():
        theirs = checkpoint.model(**inputs, output_attentions=True)
    predictor = imported.predictor
    tokens = pad([[START, *predictor.tokenizer.ids([target])[0]]]).tokens_BT
    with regard.record(imported) as recording, torch.inference_mode():
        imported.network(predictor.collate(predictor.reader.read([source])), tokens)
    weights = recording.weights
    for layer, expected in enumerate(theirs.encoder_attentions):
        torch.testing.assert_close(weights[f"encoder.layers.{layer}.attention.attention"], expected, atol=1e-5, rtol=0)
    for kind, all_expected in (("self", theirs.decoder_attentions), ("cross", theirs.cross_attentions)):
        for layer, expected in enumerate(all_expected):
            name = f"decoder.layers.{layer}.{kind}_attention.attention"
            torch.testing.assert_close(weights[name], expected, atol=1e-5, rtol=0)
    log_p = theirs.logits.log_softmax(-1).gather(-1, inputs["labels"].unsqueeze(-1)).sum()
    assert imported.score(source, target) == pytest.approx(float(log_p), abs=1e-4)


def test_texts_are_tokenized_as_by_the_marian_tokenizer(checkpoint: Checkpoint, imported: regard.Model) -> None:
    texts = [*UNUSUAL[:3], f"{CODE}the dog", f"{CODE}  a man", CODE, *(source for source, _ in make_pairs(50, seed=3))]
    texts.append(" ".join(texts[-9:]))  # too long: the end token remains
    texts = [text for text in texts if text]
    targets = [target for _, target in make_pairs(50, seed=3)]
    ids = {token: index for index, token in enumerate(_names(imported.predictor.tokenizer))}
    encoder: dict[str, int] = checkpoint.tokenizer.encoder
    ours = [0] * len(encoder)
    for token, index in encoder.items():
        ours[index] = ids[token]
    their_sources = checkpoint.tokenizer(texts, truncation=True)["input_ids"]
    their_targets = checkpoint.tokenizer(text_target=targets)["input_ids"]
    sources = imported.predictor.reader.encode(texts).batch(range(len(texts)), 0)
    assert isinstance(sources, regard.Tokens)
    rows = [row[:length].tolist() for row, length in zip(sources.tokens_BT, sources.lengths_B, strict=True)]
    assert rows == [[ours[index] for index in row] for row in their_sources]
    assert imported.predictor.tokenizer.ids(targets) == [[ours[index] for index in row[:-1]] for row in their_targets]
    assert "<unk>" in imported.predictor.tokenizer.tokens(rows[1])
    assert len(rows[-1]) == imported.settings.tokenizer.max_length
    [item] = imported.predictor.reader.read(texts[-1:])
    assert item.tokens[-2:] == ["▁the", "</s>"]
    assert item.offsets[-1] == (len(texts[-1]), len(texts[-1]))


def _names(tokenizer: Any) -> list[str]:
    return [token.removeprefix(" ") for token in tokenizer.tokens(range(len(tokenizer)))]


def test_an_imported_model_can_be_inspected(imported: regard.Model) -> None:
    pairs = make_pairs(6, seed=4)
    source, target = pairs[0]
    assert imported.predict(source).source_tokens[-1] == "</s>"
    trace = imported.trace(source, beam=2, edits=[{"kind": "delete_source", "position": 0}])
    assert len(trace.prediction.source_tokens) == len(imported.predict(source).source_tokens) - 1
    scores = imported.attribute(source, target, method="value_zeroing").scores
    assert scores.shape[1] == len(imported.predict(source).source_tokens)
    [alignment] = imported.align([(source, target)])
    assert max(link[0] for link in alignment.links) < len(source.split())
    assert imported.evaluate(pairs)["bleu"] >= 0


def test_weights_in_a_pickle_give_the_same_model(
    checkpoint: Checkpoint, imported: regard.Model, tmp_path: Path
) -> None:
    for name, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
        folder = shutil.copytree(checkpoint.path, tmp_path / name)
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin", **options)
        (folder / "model.safetensors").unlink()
        weights = import_checkpoint(folder, tmp_path / f"{name}-ours").network.state_dict()
        assert all(torch.equal(weights[key], value) for key, value in imported.network.state_dict().items())


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _plant_bomb(folder: Path, protocol: int, *, zipped: bool) -> None:
    (folder / "model.safetensors").unlink()
    bomb = {"model.shared.weight": Bomb(folder.parent / "exploded")}
    if zipped:
        torch.save(bomb, folder / "pytorch_model.bin", pickle_protocol=protocol)
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(bomb, protocol))


def _duplicate_id(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary[list(vocabulary)[5]] = 4
    (folder / "vocab.json").write_text(json.dumps(vocabulary))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "code in a zip": (lambda folder: _plant_bomb(folder, 2, zipped=True), "could run code"),
    "code in a pickle": (lambda folder: _plant_bomb(folder, 4, zipped=False), "could run code"),
    "duplicate ids": (_duplicate_id, "has the id 4"),
    "truncated spm": (lambda folder: _truncate(folder / "target.spm"), "is not a SentencePiece model"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_rejected_without_torch_and_run_nothing(
    checkpoint: Checkpoint, tmp_path: Path, case: str
) -> None:
    change, message = HOSTILE[case]
    folder = shutil.copytree(checkpoint.path, tmp_path / "hf")
    change(folder)
    done = find_imports("import", str(folder), "--out", str(tmp_path / "ours"))
    assert done.result.returncode == 4, done.result.stderr
    assert message in done.result.stderr
    assert "torch" not in done.modules
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def _edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return edit


def _edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return edit


def _transpose_first_layer(weights: dict[str, torch.Tensor]) -> None:
    name = "model.encoder.layers.0.fc1.weight"
    weights[name] = weights[name].t().contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edit_config(normalize_before=True), "normalize_before is True, which is not supported"),
        (_edit_config(scale_embedding=False), "scale_embedding is False, which is not supported"),
        (_edit_config(model_type="bart"), "model_type is 'bart'"),
        (_edit_config(activation_function="tanh"), "activation_function is 'tanh'"),
        (_edit_config(decoder_ffn_dim=7), "decoder_ffn_dim is 7"),
        (_edit_config(encoder_layers="2"), "encoder_layers: Input should be a valid integer"),
        (_edit_config(encoder_layers=900), "no tensor model.encoder.layers.2.self_attn.q_proj.weight"),
        (_edit_config(d_model=65_536), r"has the shape \(86, 32\), but config.json requires \(86, 65536\)"),
        (_edit_config(d_model=-32), "d_model: Input should be greater than"),
        (_edit_config(encoder_ffn_dim=10**18), "encoder_ffn_dim: Input should be less than"),
        (_edit_config(vocab_size=10**18), "vocab_size"),
        (_edit_config(max_position_embeddings=-1), "max_position_embeddings: Input should be greater than"),
        (_edit_config(pad_token_id=-1), "pad_token_id is not the id of one of the 86 tokens"),
        (_edit_config(dropout=float("nan")), "config.json"),
        (_edit_weights(_transpose_first_layer), r"fc1\.weight has the shape \(32, 48\), but config.json requires"),
        (_edit_weights(lambda weights: weights.update(adapter=torch.zeros(2))), "does not have.*: adapter"),
        (_edit_weights(lambda weights: weights["model.shared.weight"].fill_(torch.nan)), "contains NaN"),
        (_edit_weights(lambda weights: weights.pop("model.decoder.layers.0.fc1.bias")), "no tensor model.decoder"),
        (lambda folder: _truncate(folder / "model.safetensors"), "model.safetensors is damaged"),
        (lambda folder: _truncate(folder / "config.json"), "is not valid JSON"),
        (lambda folder: (folder / "source.spm").unlink(), "source.spm is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "weights in several files, are not supported"),
    ],
)
def test_parts_that_are_not_supported_or_damaged_are_named(
    checkpoint: Checkpoint, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    folder = shutil.copytree(checkpoint.path, tmp_path / "hf")
    change(folder)
    with pytest.raises(regard.ModelError, match=message):
        import_checkpoint(folder, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"activation_function": "relu", "share_encoder_decoder_embeddings": False},
        {"activation_function": "gelu", "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    ],
)
def test_200_predictions_of_an_imported_model_are_those_of_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    checkpoint = make_checkpoint(tmp_path / "hf", **config)
    texts = [source for source, _ in make_pairs(200, seed=1)]
    predictions = import_checkpoint(tmp_path / "hf", tmp_path / "ours").predict(texts, beam=5, length_penalty=0.0)
    assert [prediction.text for prediction in predictions] == translate(checkpoint, texts, num_beams=5)


@pytest.mark.slow
def test_fine_tuning_an_imported_model_with_its_own_vocabulary_improves_it(
    checkpoint: Checkpoint, imported: regard.Model, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in make_pairs(500, seed=5)))
    options = ["training.steps=80", "training.batch_size=32", "training.learning_rate=0.003"]
    done = cli("train", "--from", checkpoint.path.parent / "ours", "--pairs", pairs, "--out", "tuned", *options)
    assert done.returncode == 0, done.stderr
    tuned = regard.load(tmp_path / "tuned")
    before, after = (model.evaluate(make_pairs(100, seed=6)) for model in (imported, tuned))
    assert after["bleu"] > before["bleu"] + 20
    assert after["loss"] < before["loss"] / 2
    assert tuned.predictor.tokenizer.to_json() == imported.predictor.tokenizer.to_json()


def test_marian_tokenizers_cannot_be_learned(tmp_path: Path) -> None:
    with pytest.raises(regard.ConfigError, match="regard train --from MODEL"):
        regard.train("dates", {"tokenizer": "marian", "data.train": 100}, out=tmp_path / "run")
