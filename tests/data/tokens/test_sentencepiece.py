"""SentencePiece models: read without the package, and segmented as the package does."""

import os
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from regard.data import preparation
from regard.data.corpora import Corpus, Pairs
from regard.data.settings import DatesData, PairTokenizer, Sampling, SentencePieceTokenizer, sampling_by_side
from regard.data.tokens.segmentation import Segmentations
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


def read(path: Path, **options: Any) -> Tokenizer:
    return TokenizerPair.build(SentencePieceTokenizer(path=str(path), **options), [], []).source


def test_texts_are_segmented_and_read_back_as_by_sentencepiece(model: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ours = read(model)
    for text, tokens in zip(TEXTS, ours.encode(TEXTS), strict=True):
        # An unknown token is called <unk> by one, and by what it stands for by the other.
        names = [theirs.id_to_piece(index) for index in theirs.encode(text)]
        assert ours.tokens(tokens.ids) == names
        if "<unk>" not in names:
            assert ours.decode(tokens.ids) == theirs.decode(theirs.encode(text))


def test_special_tokens_are_ours_and_nothing_is_lost(model: Path, tmp_path: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ours = read(model)
    names = ours.tokens(range(len(ours)))
    assert tuple(names[:4]) == SPECIALS
    assert set(names) == {theirs.id_to_piece(index) for index in range(len(theirs))} | set(SPECIALS)
    assert len(set(names)) == len(names)
    (tmp_path / "tokenizer.json").write_bytes(ours.to_bytes())
    assert Tokenizer.load(tmp_path / "tokenizer.json").ids(TEXTS) == ours.ids(TEXTS)


def test_its_segmentations_can_be_sampled(model: Path) -> None:
    ours = read(model)
    sampling = Sampling(8, dropout=0.0) if "bpe" in str(ours.inner.model).lower() else Sampling(8, alpha=1e4)
    words = sorted({word for text in ours.words(TEXTS) for word in text})
    plain = ours.segment_words(words)
    rows = Segmentations.draw(ours, words, sampling, 0).table.rows()
    same = sum(rows[8 * index] == ids for index, ids in enumerate(plain))
    assert same >= 0.97 * len(words)  # of two paths that are as likely, either may be drawn
    wild = Sampling(8, dropout=0.5) if sampling.alpha is None else Sampling(8, alpha=0.1)
    for index, row in enumerate(Segmentations.draw(ours, words, wild, 0).table.rows()):
        assert ours.decode(row) == ours.decode(plain[index // 8])


def test_it_stands_on_one_side_and_takes_tags(model: Path) -> None:
    side = {"kind": "sentencepiece", "path": str(model), "tags": True, "dropout": 0.2, "segmentations": 4}
    settings = PairTokenizer.model_validate({"source": side, "target": "char"})
    assert sampling_by_side(settings) == (Sampling(4, dropout=0.2), None)
    pair = TokenizerPair.build(settings, ["Der Mann\tV;PST"], ["abc"])
    assert pair.source.encode(["Mann\tPST"])[0].texts[-1] == "\tPST"


def test_what_is_no_model_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.model \(tokenizer.path\) cannot be read: No such file"):
        read(tmp_path / "absent.model")
    for content in (
        b"",
        b"no model at all",
        model.read_bytes()[:-1],
        model.read_bytes()[:1_000],
        b"\xff" * 50,
        b"\x0a\x02\x08\x01",
    ):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(DataError, match="is no SentencePiece model"):
            read(tmp_path / "bad.model")


def test_models_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "lines.txt"), model_prefix=str(tmp_path / "m"), model_type="char", minloglevel=2
    )
    with pytest.raises(DataError, match="of kind char, which cannot be read"):
        read(tmp_path / "m.model")


def test_another_file_under_the_same_name_is_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            corpus, corpus.fingerprint(), DatesData(), SentencePieceTokenizer(path=str(path)), 0
        )
        sizes.append(len(preparation.prepare(request, None, str).tokenizers.source))
    assert sizes == [151, 91]  # with a token for padding, which SentencePiece has none of


class _Harmful:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["tokenizer.pkl", "tokenizer.model"])
def test_a_pickle_is_refused_and_runs_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(_Harmful(tmp_path / "ran")))
    with pytest.raises(DataError, match="is no SentencePiece model"):
        read(tmp_path / name)
    assert not (tmp_path / "ran").exists()
