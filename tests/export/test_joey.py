"""Imported Joey NMT models compute what Joey NMT computes, and hostile files run nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from marian_models import train_sentencepiece
from regard.data.batching import pad
from regard.data.tokens.sentencepiece import parse_model
from regard.export.importing import import_model
from regard.export.sources import read_model
from regard.yaml_reader import dump_yaml, read_yaml
from tests_command import find_imports
from tests_joey import END, START, WORDS, make_model, translate
from tests_marian import make_pairs

IDS = {word: index for index, word in enumerate(WORDS, start=4)}
SOURCES = ["the dog sees a man", "a horse today. zzz", "green ▁x"]
TARGET = "the old man sees a dog"


def _recurrent(**changes: Any) -> dict[str, Any]:
    embedding = {"embedding_dim": 8, "scale": False}
    encoder = {"type": "recurrent", "rnn_type": "gru", "hidden_size": 6, "num_layers": 1, "embeddings": embedding}
    decoder = {
        "type": "recurrent", "rnn_type": "gru", "hidden_size": 7, "num_layers": 1, "attention": "bahdanau",
        "init_hidden": "bridge", "input_feeding": True, "embeddings": embedding,
    }  # fmt: skip
    return _change({"encoder": encoder, "decoder": decoder}, changes)


def _transformer(**changes: Any) -> dict[str, Any]:
    part = {
        "type": "transformer", "hidden_size": 8, "ff_size": 12, "num_layers": 2, "num_heads": 2, "layer_norm": "pre",
        "activation": "relu", "embeddings": {"embedding_dim": 8, "scale": True},
    }  # fmt: skip
    return _change({"encoder": part, "decoder": part, "tied_embeddings": False, "tied_softmax": False}, changes)


def _change(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with other values: `encoder__hidden_size=4`."""
    copied = {key: _change(value, {}) if isinstance(value, dict) else value for key, value in tree.items()}
    for name, value in changes.items():
        *parents, last = name.split("__")
        node = copied
        for parent in parents:
            node = node[parent]
        node[last] = value
    return copied


def import_folder(path: Path) -> regard.Model:
    return regard.load(import_model(read_model(path), path.with_name("ours")))


MODELS = {
    "gru": _recurrent(),
    "lstm, 2 layers, luong, scaled": _recurrent(
        encoder__rnn_type="lstm", decoder__rnn_type="lstm", encoder__num_layers=2, decoder__num_layers=2,
        decoder__attention="luong", decoder__embeddings__scale=True,
    ),
    "lstm, last state, no input feeding": _recurrent(
        encoder__rnn_type="lstm", decoder__rnn_type="lstm", decoder__init_hidden="last", decoder__hidden_size=6,
        decoder__input_feeding=False,
    ),
    "gru, zero state": _recurrent(decoder__init_hidden="zero", decoder__num_layers=2),
    "pre-norm": _transformer(),
    "post-norm, tied": _transformer(
        encoder__layer_norm="post", decoder__layer_norm="post", tied_embeddings=True, tied_softmax=True,
        encoder__activation="gelu", decoder__activation="gelu",
    ),
    "other encoder, tied, not scaled": _transformer(
        encoder__num_heads=4, encoder__activation="swish", encoder__num_layers=1, tied_softmax=True,
        decoder__embeddings__scale=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_an_imported_model_computes_what_joey_nmt_computes(tmp_path: Path, name: str) -> None:
    network = make_model(tmp_path / "joey", MODELS[name])
    model = import_folder(tmp_path / "joey")
    predictor = model.predictor
    for source, prediction in zip(SOURCES, model.predict(SOURCES, loop_guard=False), strict=True):
        ids = [*(IDS.get(word, 0) for word in source.split()), END]
        limit = int(len(ids) * predictor.limits.max_length_ratio + predictor.limits.max_length_extra)
        expected = translate(network, ids, limit)
        assert prediction.text.split() == [WORDS[index - 4] for index in expected]
        forced = [*(IDS[word] for word in TARGET.split()), END]
        with torch.no_grad():
            logits_TV, weights_TS = network(torch.tensor(ids), torch.tensor([START, *forced[:-1]]))
        log_p = logits_TV.log_softmax(-1)[range(len(forced)), forced].sum()
        assert model.score(source, TARGET) == pytest.approx(float(log_p), abs=1e-4)
        tokens = pad([[START, *predictor.tokenizer.ids([TARGET])[0]]]).tokens_BT
        with regard.record(model) as recording, torch.inference_mode():
            model.network(predictor.collate(predictor.reader.read([source])), tokens)
        [weights] = [value[0] for key, value in recording.weights.items() if _reads_source(key)][-1:]
        ours_TS = weights if weights.dim() == 2 else weights.mean(0)
        torch.testing.assert_close(ours_TS, weights_TS, atol=1e-5, rtol=0)


def _reads_source(name: str) -> bool:
    return name.startswith("decoder.attention") or "cross_attention" in name


def test_characters_and_normalization(tmp_path: Path) -> None:
    make_model(tmp_path / "joey", _recurrent(), {"level": "char", "lowercase": True, "normalize": True})
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (tmp_path / "joey" / name).write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *"▁?\"ab'cdef"]) + "\n")
    model = import_folder(tmp_path / "joey")
    tokenizer = model.predictor.tokenizer
    ids = tokenizer.ids(["  “A\u200bB”  c ?"])[0]
    assert tokenizer.tokens(ids) == ['"', "a", "b", '"', " ", "c", "?"]
    assert tokenizer.decode(ids) == '"ab" c?'
    assert model.predict("a b").source_tokens == ["a", " ", "b", "</s>"]


def test_pieces_that_the_vocabulary_does_not_have_are_not_used(tmp_path: Path) -> None:
    sentences = [source for source, _ in make_pairs(200)]
    side = {"level": "bpe", "tokenizer_cfg": {"model_file": "elsewhere/sp.model"}}
    make_model(tmp_path / "joey", _recurrent(), side)
    content = train_sentencepiece(sentences, 60, hard_vocab_limit=False)
    pieces = [piece.text for piece in parse_model(content).pieces if len(piece.text) > 1][3:]
    characters = sorted({character for sentence in sentences for character in sentence.replace(" ", "▁")})
    kept = [*pieces[:3], *characters[:6], "7"]
    (tmp_path / "joey" / "sp.model").write_bytes(content)
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (tmp_path / "joey" / name).write_text("".join(f"{piece}\n" for piece in kept))
    tokenizer = import_folder(tmp_path / "joey").predictor.tokenizer
    assert {token for row in tokenizer.ids(sentences) for token in tokenizer.tokens(row)} <= {*kept, "<unk>"}
    assert tokenizer.tokens(tokenizer.ids(["7"])[0])[-1] == "7"
    (tmp_path / "joey" / "sp.model").write_bytes(train_sentencepiece(sentences, 60, model_type="bpe"))
    with pytest.raises(regard.ModelError, match=r"is a BPE model with .* pieces that are not in the vocabulary"):
        read_model(tmp_path / "joey")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _plant_bomb(folder: Path) -> None:
    torch.save({"model_state": Bomb(folder.parent / "exploded")}, folder / "7.ckpt")


def _link_outside(folder: Path) -> None:
    (folder / "src_vocab.txt").unlink()
    (folder / "src_vocab.txt").symlink_to("/etc/passwd")


def _edit(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tree, _ = read_yaml(folder / "config.yaml")
        (folder / "config.yaml").write_text(dump_yaml(_change(tree, changes)))

    return edit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joey") / "joey"
    make_model(path, _transformer())
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [(_plant_bomb, "could run code"), (_link_outside, "a link to a file outside of the folder")],
)
def test_hostile_files_are_rejected_without_torch_and_run_nothing(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "joey", symlinks=True)
    change(copy)
    done = find_imports("import", str(copy), "--out", str(tmp_path / "ours"))
    assert done.result.returncode == 4, done.result.stderr
    assert message in done.result.stderr
    assert "torch" not in done.modules
    assert [path.name for path in tmp_path.iterdir()] == ["joey"]


SENTENCEPIECE = {"data__src__level": "bpe", "data__src__tokenizer_cfg": {"model_file": "/etc/passwd"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edit(model__encoder__alpha=0.8), "model.encoder.alpha: Input should be greater than or equal to 1"),
        (_edit(model__decoder__type="recurrent"), "model.decoder.type is 'recurrent', which is not supported"),
        (_edit(model__decoder__activation="tanh"), "model.decoder.activation: Input should be 'relu', 'gelu'"),
        (_edit(model__decoder__hidden_size=16), "model.decoder.hidden_size is 16"),
        (_edit(model__decoder__ff_size=13), r"has the shape \(12, 8\), but config.yaml requires \(13, 8\)"),
        (_edit(model__decoder__layer_norm="post"), "has tensors that.*: decoder.layer_norm.bias"),
        (_edit(data__src__tokenizer_cfg={"pretokenizer": "moses"}), "pretokenizer is 'moses'"),
        (_edit(data__src__level="bpe", data__src__tokenizer_type="subword-nmt"), "tokenizer_type is 'subword-nmt'"),
        (_edit(data__special_symbols={"lang_tags": ["<de>"]}), "lang_tags is .*prompts are not imported"),
        (_edit(data__special_symbols={"pad_id": 9}), "the ids of the special tokens are not those"),
        (_edit(**SENTENCEPIECE), "joey/passwd is missing"),
        (_edit(data__src="de"), "the sections src and trg of Joey NMT 2"),
        (lambda folder: (folder / "7.ckpt").unlink(), "has no best.ckpt"),
        (lambda folder: (folder / "config.yaml").write_text("a: ["), "config.yaml is damaged"),
        (lambda folder: (folder / "config.yaml").unlink(), "it has no config.json or config.yaml"),
    ],
)
def test_parts_that_are_not_supported_or_damaged_are_named(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "joey", symlinks=True)
    change(copy)
    with pytest.raises(regard.ModelError, match=message):
        import_folder(copy)
    assert [path.name for path in tmp_path.iterdir()] == ["joey"]
