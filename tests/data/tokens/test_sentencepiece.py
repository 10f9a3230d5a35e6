"""SentencePiece models: loaded without the package, with the same segmentations as the package."""

import os
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from regard.data import preparation
from regard.data.corpora import Corpus, Pairs
from regard.data.settings import DataSettings, PairTokenizer, Sampling, SentencePieceTokenizer, sampling_by_side
from regard.data.tokens.segmentation import SegmentationTable
from regard.data.tokens.tokenizers import SPECIALS, Tokenizer, TokenizerPair
from regard.errors import DataError

SYLLABLES = list(product(("be", "ver", "un", "ab"), ("geh", "lauf", "stell", "red"), ("en", "ung", "bar", "lich")))
LINES = [
    f"{who} {what} {where}{end}"
    for who in ("Der alte Mann", "Eine junge Frau", "The old man", "A young woman", "Zwei Kinder")
    for what in ("läuft", "spielt", "is running", "war gegangen", "doesn't play")
    for where in ("am Strand", "in the park", "auf der Straße", "im 21. Jahrhundert", "at 10:30")
    for end in (".", "!", ", wirklich?")
]
LINES += [f"{number * 7919 % 1000} {first}{second}{third}" for number, (first, second, third) in enumerate(SYLLABLES)]
TEXTS = [
    *LINES[::7],
    "Unseen words: Straßenbahnhaltestelle, unbelievably",
    "  two  spaces and more   ",
    "a <url> b<url>c",
    "<url>",
    "ａｂｃ ½ ﬁne …",
    "漢字 かな 🙂🙂",
    "tab\there and no-break\u00a0space",
    "aaaaaaaaaaaaaaa",
    "e\u0301 combined",
    "",
    " ",
]


@pytest.fixture(
    scope="module",
    params=[
        {"model_type": "unigram"},
        {"model_type": "bpe"},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 420},
        {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420},
        {"model_type": "unigram", "normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"model_type": "bpe", "remove_extra_whitespaces": False, "pad_id": 3},
        {"model_type": "unigram", "split_by_whitespace": False},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spm")
    (folder / "lines.txt").write_text("\n".join(LINES), "utf-8")
    options: dict[str, Any] = {"vocab_size": 150, **request.param}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"),
        model_prefix=str(folder / "spm"),
        user_defined_symbols=["<url>"],
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return folder / "spm.model"


def load(path: Path, **options: Any) -> Tokenizer:
    return TokenizerPair.build(SentencePieceTokenizer(path=str(path), **options), [], []).source


def test_segmentation_and_decoding_match_sentencepiece(model: Path) -> None:
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = load(model)
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        # SentencePiece returns the text of an unknown token as a piece, but `id_to_piece` returns <unk>.
        names = [reference.id_to_piece(index) for index in reference.encode(text)]
        assert tokenizer.tokens(tokens.ids) == names
        if "<unk>" not in names:
            assert tokenizer.decode(tokens.ids) == reference.decode(reference.encode(text))


def test_the_vocabulary_is_that_of_the_model_with_our_special_tokens(model: Path, tmp_path: Path) -> None:
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = load(model)
    names = tokenizer.tokens(range(len(tokenizer)))
    assert tuple(names[:4]) == SPECIALS
    assert set(names) == {reference.id_to_piece(index) for index in range(len(reference))} | set(SPECIALS)
    assert len(set(names)) == len(names)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.to_bytes())
    assert Tokenizer.load(tmp_path / "tokenizer.json").ids(TEXTS) == tokenizer.ids(TEXTS)


def test_segmentations_can_be_sampled(model: Path) -> None:
    tokenizer = load(model)
    sampling = Sampling(8, dropout=0.0) if "bpe" in str(tokenizer.inner.model).lower() else Sampling(8, alpha=1e4)
    words = sorted({word for text in tokenizer.words(TEXTS) for word in text})
    expected = tokenizer.segment_words(words)
    rows = SegmentationTable.sample(tokenizer, words, sampling, 0).table.rows()
    same = sum(rows[8 * index] == ids for index, ids in enumerate(expected))
    assert same >= 0.97 * len(words)  # ties between equally likely paths may be broken differently
    diverse = Sampling(8, dropout=0.5) if sampling.alpha is None else Sampling(8, alpha=0.1)
    for index, row in enumerate(SegmentationTable.sample(tokenizer, words, diverse, 0).table.rows()):
        assert tokenizer.decode(row) == tokenizer.decode(expected[index // 8])


def test_a_model_can_be_used_for_one_side_and_with_tags(model: Path) -> None:
    side = {"kind": "sentencepiece", "path": str(model), "tags": True, "dropout": 0.2, "segmentations": 4}
    settings = PairTokenizer.model_validate({"source": side, "target": "char"})
    assert sampling_by_side(settings) == (Sampling(4, dropout=0.2), None)
    pair = TokenizerPair.build(settings, ["Der Mann\tV;PST"], ["abc"])
    assert pair.source.encode(["Mann\tPST"])[0].texts[-1] == "\tPST"


def test_invalid_model_files_are_rejected(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.model \(tokenizer.path\) cannot be read: No such file"):
        load(tmp_path / "absent.model")
    for content in (
        b"",
        b"no model at all",
        model.read_bytes()[:-1],
        model.read_bytes()[:1_000],
        b"\xff" * 50,
        b"\x0a\x02\x08\x01",
    ):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(DataError, match="is not a SentencePiece model"):
            load(tmp_path / "bad.model")


def test_unsupported_model_types_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "lines.txt"), model_prefix=str(tmp_path / "m"), model_type="char", minloglevel=2
    )
    with pytest.raises(DataError, match="of type char, which is not supported"):
        load(tmp_path / "m.model")


def test_a_changed_model_file_is_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    corpus = Corpus(Pairs(LINES, LINES), Pairs(LINES[:1], LINES[:1]))
    (tmp_path / "lines.txt").write_text("\n".join(LINES), "utf-8")
    path = tmp_path / "my.model"
    sizes = []
    for vocabulary in (150, 90):
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "lines.txt"), model_prefix=str(tmp_path / "my"), vocab_size=vocabulary, minloglevel=2
        )
        request = preparation.PreparationRequest(
            corpus, corpus.fingerprint(), DataSettings.parse("dates"), SentencePieceTokenizer(path=str(path)), 0
        )
        sizes.append(len(preparation.prepare(request, None, str).tokenizers.source))
    assert sizes == [151, 91]  # with <pad>, which SentencePiece models do not have by default


class _Harmful:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["tokenizer.pkl", "tokenizer.model"])
def test_a_pickle_is_rejected_without_running_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(_Harmful(tmp_path / "ran")))
    with pytest.raises(DataError, match="is not a SentencePiece model"):
        load(tmp_path / name)
    assert not (tmp_path / "ran").exists()
