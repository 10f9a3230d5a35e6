"""Packages for Argos Translate: its tokenizer and CTranslate2, called as it calls them, give our tokens and outputs."""

import importlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

import regard
from marian_models import train_sentencepiece
from regard.config import resolve
from regard.data.settings import PairTokenizer
from regard.data.tokens.sentencepiece import build_tokenizer_of_ids, parse_model, to_model_file
from regard.data.tokens.tokenizers import SPECIALS, UNKNOWN, Tokenizer
from regard.runs.settings import RunSettings
from tests_marian import make_checkpoint, make_pairs, train_transformer

pytest.importorskip("ctranslate2", reason="ctranslate2 is missing; install it with: pip install -e '.[test]'")
ctranslate2: Any = importlib.import_module("ctranslate2")  # most of its functions have no types

TEXTS = [source for source, _ in make_pairs(40, seed=1)]
LANGUAGES = "argos:source=en,target=de"
FOLDER = "translate-en_de-1_10"


def install(model: regard.Model, path: Path, to: str = LANGUAGES) -> Path:
    """Export a model, and extract the package as `argostranslate.package.install_from_path` does."""
    package = model.export(path / "en-de.argosmodel", to)
    assert zipfile.is_zipfile(package)
    with zipfile.ZipFile(package) as archive:
        archive.extractall(path / "packages")
    [folder] = (path / "packages").iterdir()
    return folder


def translate(package: Path, texts: list[str], **options: Any) -> list[str]:
    """Translate as `argostranslate.translate.apply_packaged_translation` and its `SentencePieceTokenizer` do."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(package / "model"), inter_threads=1, intra_threads=1, **options)
    results = translator.translate_batch(
        [processor.encode(text, out_type=str) for text in texts],
        replace_unknowns=True, max_batch_size=32, batch_type="tokens", beam_size=4, num_hypotheses=1,
        length_penalty=0.2, return_scores=True,
    )  # fmt: skip
    decoded = [processor.decode_pieces(result.hypotheses[0]) for result in results]
    return [text.replace("▁", " ").replace("_", " ").removeprefix(" ") for text in decoded]


def predict(model: regard.Model, texts: list[str]) -> list[str]:
    return [prediction.text for prediction in model.predict(texts, beam=4, length_penalty=0.2)]


def test_a_package_contains_what_argos_translate_reads(transformer: regard.Model, tmp_path: Path) -> None:
    package = install(transformer, tmp_path)
    assert json.loads((package / "metadata.json").read_text()) == {
        "type": "translate", "package_version": "1.0", "argos_version": "1.10",
        "from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German",
    }  # fmt: skip
    assert "# English → German" in (package / "README.md").read_text()
    assert {path.name for path in package.iterdir()} == {"README.md", "metadata.json", "model", "sentencepiece.model"}
    assert {path.name for path in (package / "model").iterdir()} == {
        "model.bin", "config.json", "shared_vocabulary.json",
    }  # fmt: skip
    assert len(translate(package, TEXTS[:2])) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"en-de.argosmodel", "packages"}


def test_lines_are_not_split_into_sentences(transformer: regard.Model, tmp_path: Path) -> None:
    """MiniSBD runs the model with these inputs, and splits where the most likely class is not 0."""
    onnxruntime: Any = pytest.importorskip("onnxruntime", reason="pip install -e '.[test]'")
    import numpy as np

    package = install(transformer, tmp_path, f"{LANGUAGES},sentences=lines")
    session = onnxruntime.InferenceSession(package / "minisbd" / "lines.onnx", providers=["CPUExecutionProvider"])
    options = session.get_modelmeta().custom_metadata_map
    assert json.loads(options["config"])["feat_funcs"] == ["space_before"]
    assert json.loads(options["vocab"])["_unit2id"] == {"<PAD>": 0, "<UNK>": 1}
    features_BT1 = np.array([[[0.0], [1.0], [0.0]]], np.float32)
    [classes] = session.run(None, {"units": np.ones((1, 3), np.int64), "features": features_BT1})
    assert classes.argmax(2).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "bpe", "vocabulary": 120},
        {"kind": "bpe", "vocabulary": 380, "byte_fallback": True, "split": "spaces"},
        {"kind": "unigram", "vocabulary": 120},
        {"kind": "unigram", "vocabulary": 380, "byte_fallback": True},
        {"kind": "sentencepiece", "model_type": "bpe"},
        {"kind": "sentencepiece", "model_type": "unigram"},
    ],
)
def test_sentencepiece_gives_our_tokens(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    pairs = make_pairs(300)
    sentences = [text for pair in pairs for text in pair]
    if tokenizer["kind"] == "sentencepiece":
        (tmp_path / "spm").write_bytes(train_sentencepiece(sentences, 80, model_type=tokenizer["model_type"]))
        tokenizer = {"kind": "sentencepiece", "path": str(tmp_path / "spm")}
    settings = resolve(RunSettings, "dates", {"tokenizer": tokenizer}).tokenizer
    assert not isinstance(settings, PairTokenizer)
    ours = Tokenizer.of(settings, sentences)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=to_model_file(ours.inner))
    texts = [*TEXTS, *(word for text in TEXTS for word in text.split()), "Ärger: 12 €, oddly spelled", "  a  dog "]
    for text, ids in zip(texts, ours.ids(texts), strict=True):
        tokens = [piece if piece in ours.inner.get_vocab() else "<unk>" for piece in theirs.encode(text, out_type=str)]
        fused = [index for index, before in zip(ids, [None, *ids], strict=False) if (index, before) != (UNKNOWN,) * 2]
        assert tokens == ours.tokens(fused), text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_sentencepiece_model_of_an_imported_tokenizer_is_restored(kind: str) -> None:
    content = train_sentencepiece([text for pair in make_pairs(300) for text in pair], 80, model_type=kind)
    model = parse_model(content)
    tokens = [*SPECIALS, *(piece.text for piece in reversed(model.pieces[3:]))]
    restored = to_model_file(build_tokenizer_of_ids(model, tokens, add_end=True))
    before, after = (sentencepiece.SentencePieceProcessor(model_proto=file) for file in (content, restored))
    texts = [*TEXTS, "  Oddly  spelled ", "ﬁve dogs!"]
    assert before.encode(texts, out_type=str) == after.encode(texts, out_type=str)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"tokenizer": {"kind": "unigram", "vocabulary": 120}, "model.norm": "pre"}])
def test_outputs_are_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = train_transformer(tmp_path / "run", **settings)
    ours = predict(model, TEXTS)
    assert translate(install(model, tmp_path / "float32"), TEXTS) == ours
    int8 = translate(install(model, tmp_path / "int8", f"{LANGUAGES},precision=int8"), TEXTS)
    assert sum(map(str.__eq__, int8, ours)) >= 30


@pytest.mark.slow
def test_outputs_of_separate_vocabularies_and_of_imported_models_are_the_same(tmp_path: Path) -> None:
    from regard.export.importing import import_model
    from regard.export.sources import read_model

    make_checkpoint(tmp_path / "hf", missing=3)
    imported = regard.load(import_model(read_model(tmp_path / "hf"), tmp_path / "ours"))
    separate = train_transformer(tmp_path / "run", **{"tokenizer.shared": False, "model.tied": "decoder"})
    for name, model in (("imported", imported), ("separate", separate)):
        assert translate(install(model, tmp_path / name), TEXTS) == predict(model, TEXTS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.positions": "rotary"}, r"The nearest is model\.positions=sinusoidal"),
        ({"tokenizer": "char"}, r"a char tokenizer is not a SentencePiece model\. Use tokenizer=bpe"),
        ({"tokenizer.lowercase": True}, r"tokenizer\.lowercase=true cannot.* nearest is tokenizer\.lowercase=false"),
        ({"tokenizer.normalization": "nfkc"}, r"The nearest is tokenizer\.normalization=\"nfc\""),
        ({"tokenizer.symbols": ["<x>"]}, r"The nearest is tokenizer\.symbols=\[\]"),
    ],
)
def test_what_argos_translate_cannot_express_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    model = train_transformer(tmp_path / "run", **settings, **{"training.steps": 1})
    with pytest.raises(regard.ConfigError, match=message):
        model.export(tmp_path / "en-de.argosmodel", LANGUAGES)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("options", ["", ":source=en", ":source=en,target=../../de"])
def test_the_languages_are_required(transformer: regard.Model, tmp_path: Path, options: str) -> None:
    with pytest.raises(regard.ConfigError, match="Use --to argos:source=en,target=de"):
        transformer.export(tmp_path / "en-de.argosmodel", f"argos{options}")


def test_a_failed_export_leaves_no_file_and_replaces_none(
    transformer: regard.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(regard.ConfigError, match=r"pip install 'regard\[export\]'"):
        transformer.export(tmp_path / "new.argosmodel", f"{LANGUAGES},sentences=lines")
    (tmp_path / "old.argosmodel").write_text("mine")
    with pytest.raises(regard.ConfigError, match="exists already"):
        transformer.export(tmp_path / "old.argosmodel", LANGUAGES)
    assert [path.name for path in tmp_path.iterdir()] == ["old.argosmodel"]
    assert (tmp_path / "old.argosmodel").read_text() == "mine"
