"""Sampled segmentations: the distributions worked by hand, whole words back, and a pure function of the seed."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from regard.data.ragged import Ragged
from regard.data.settings import BPESide, BPETokenizer, Sampling, UnigramTokenizer
from regard.data.tokens import pretokenization
from regard.data.tokens.segmentation import Sampled, Segmentations, choices, number_words
from regard.data.tokens.tokenizers import SPECIALS, UNKNOWN, Tokenizer, TokenizerPair
from regard.data.tokens.vocabularies import BYTES, Learned, build_model
from regard.errors import ConfigError, ModelError

LINES = [
    "the lowest of the low",
    "newer and newest, wider, widest",
    "a banana bandana anna",
    "<url> is a link 漢字",
] * 3
BPE = {"vocabulary": 330, "byte_fallback": True, "symbols": ["<url>"], "split": "spaces"}


def tokenizer_of(learned: Learned) -> Tokenizer:
    """A tokenizer whose merges or pieces are given."""
    inner = tokenizers.Tokenizer(build_model(list(SPECIALS), learned, byte_fallback=False))
    inner.normalizer, inner.pre_tokenizer = pretokenization.normalizer(BPESide()), pretokenization.cutter(BPESide())
    inner.decoder = pretokenization.decoder(BPESide())
    return Tokenizer(inner)


def learned(kind: Any, lines: Sequence[str] = LINES, **options: Any) -> Tokenizer:
    return TokenizerPair.build(kind(**{**BPE, **options}), lines, []).source


def drawn_by(tokenizer: Tokenizer, words: list[str], sampling: Sampling, seed: int = 0) -> list[list[list[int]]]:
    rows = Segmentations.draw(tokenizer, words, sampling, seed).table.rows()
    return [rows[start : start + sampling.drawn] for start in range(0, len(rows), sampling.drawn)]


def frequencies(tokenizer: Tokenizer, word: str, sampling: Sampling) -> dict[str, float]:
    [rows] = drawn_by(tokenizer, [word], sampling)
    counts = Counter(" ".join(tokenizer.tokens(row)) for row in rows)
    return {text: count / len(rows) for text, count in counts.items()}


def test_bpe_dropout_has_the_probabilities_worked_by_hand() -> None:
    """Of abc, ab is merged first with 1 - p, bc with p (1 - p); ab and c are merged then, a and bc cannot be."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    tokenizer = tokenizer_of(Learned(["a", "b", "c", "ab", "bc", "abc"], merges))
    found = frequencies(tokenizer, "abc", Sampling(20_000, dropout=0.3))
    expected = {"abc": 0.49, "ab c": 0.21, "a bc": 0.21, "a b c": 0.09}
    assert found == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.1])
def test_unigram_sampling_has_the_probabilities_worked_by_hand(alpha: float) -> None:
    p = {"a": 0.3, "b": 0.2, "ab": 0.25, "ba": 0.15, "aba": 0.1}
    tokenizer = tokenizer_of(Learned(list(p), scores={piece: float(np.log(share)) for piece, share in p.items()}))
    found = frequencies(tokenizer, "aba", Sampling(20_000, alpha=alpha))
    weights = {"aba": 0.1**alpha, "ab a": 0.075**alpha, "a ba": 0.045**alpha, "a b a": 0.018**alpha}
    expected = {path: weight / sum(weights.values()) for path, weight in weights.items()}
    assert found == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000))


WORDS = st.text(st.sampled_from("▁abdenwidstlor漢é"), min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, unique=True))
def test_without_dropout_it_is_the_plain_segmentation(words: list[str]) -> None:
    tokenizer = _bpe()
    plain = tokenizer.segment_words(words)
    assert drawn_by(tokenizer, words, Sampling(2, dropout=0.0)) == [[row, row] for row in plain]


@given(st.lists(WORDS, min_size=1, unique=True))
def test_with_all_merges_dropped_it_is_characters_and_bytes(words: list[str]) -> None:
    tokenizer = _bpe()
    for word, [row] in zip(words, drawn_by(tokenizer, words, Sampling(1, dropout=1.0)), strict=True):
        assert all(len(token) == 1 or token in BYTES for token in tokenizer.tokens(row))
        assert tokenizer.decode(row) == pretokenization.decoder(BPESide()).decode(list(word))


@given(st.lists(WORDS, min_size=1, unique=True))
def test_the_colder_the_nearer_to_the_likeliest_path(words: list[str]) -> None:
    tokenizer = _unigram()
    plain = tokenizer.segment_words(words)
    for row, ours in zip(plain, drawn_by(tokenizer, words, Sampling(1, alpha=1e4)), strict=True):
        assert tokenizer.decode(ours[0]) == tokenizer.decode(row)
        assert _score(tokenizer, ours[0]) == pytest.approx(_score(tokenizer, row), abs=1e-2)


def _score(tokenizer: Tokenizer, ids: list[int]) -> float:
    import json

    pieces = json.loads(tokenizer.inner.to_str())["model"]["vocab"]
    return sum(pieces[index][1] for index in ids)


_KEPT: dict[str, Tokenizer] = {}


def _bpe() -> Tokenizer:
    return _KEPT.setdefault("bpe", _KEPT.get("bpe") or learned(BPETokenizer))


def _unigram() -> Tokenizer:
    return _KEPT.setdefault("unigram", _KEPT.get("unigram") or learned(UnigramTokenizer))


@pytest.mark.parametrize(
    ("tokenizer", "sampling"),
    [(_bpe, Sampling(16, dropout=0.4)), (_unigram, Sampling(16, alpha=0.2))],
    ids=["bpe", "unigram"],
)
def test_every_drawn_text_decodes_to_itself_and_symbols_stay_whole(tokenizer: Any, sampling: Sampling) -> None:
    ours = tokenizer()
    texts = [*LINES, "never seen: ñandú 漢", " two  spaces ", "a\tb <url><url>"]
    numbers: dict[str, int] = {}
    sentences = number_words(ours, texts, numbers)
    table = Segmentations.draw(ours, list(numbers), sampling, seed=3)
    [url] = ours.ids(["<url>"])[0]
    different = 0
    for epoch in range(5):
        picked = choices(3, epoch, np.arange(len(texts)), np.diff(sentences.offsets), sampling.drawn)
        rows = table.segment(sentences, picked).rows()
        assert [ours.decode(row) for row in rows] == texts
        assert [row.count(url) for row in rows] == [text.count("<url>") for text in texts]
        assert all(UNKNOWN not in row for row in rows)
        assert all(len(row) <= most for row, most in zip(rows, table.longest(sentences), strict=True))
        different += rows != ours.ids(texts)
    assert different == 5


def test_characters_without_a_piece_are_one_unknown_token_as_when_nothing_is_drawn() -> None:
    tokenizer = learned(UnigramTokenizer, byte_fallback=False, vocabulary=80)
    word = "▁ñññanñ"
    for row in drawn_by(tokenizer, [word], Sampling(50, alpha=0.1))[0]:
        assert row.count(UNKNOWN) == 2
    assert tokenizer.segment_words([word])[0].count(UNKNOWN) == 2


def test_tags_are_not_drawn() -> None:
    tokenizer = learned(BPETokenizer, ["laufen\tV;PST", "gehen\tV"], tags=True, byte_fallback=False, vocabulary=40)
    words = ["\tV", "\tPST", "\tunheard"]
    assert drawn_by(tokenizer, words, Sampling(2, dropout=0.9)) == [
        [ids, ids] for ids in tokenizer.segment_words(words)
    ]


def test_the_same_seed_draws_the_same_and_words_do_not_disturb_each_other() -> None:
    words = ["▁banana", "▁widest", "▁newer"]
    sampling = Sampling(8, dropout=0.5)
    once = drawn_by(_bpe(), words, sampling, seed=5)
    assert once == drawn_by(_bpe(), words, sampling, seed=5)
    assert once[::-1] == drawn_by(_bpe(), words[::-1], sampling, seed=5)
    assert once != drawn_by(_bpe(), words, sampling, seed=6)


def test_choices_are_even_and_hang_on_seed_epoch_sentence_and_place_alone() -> None:
    lengths = np.full(2_000, 10)
    picked = choices(1, 0, np.arange(2_000), lengths, 8)
    counts = np.bincount(picked, minlength=8)
    assert counts.sum() == 20_000
    assert np.abs(counts - 2_500).max() < 5 * np.sqrt(2_500)
    for seed, epoch in ((2, 0), (1, 1)):
        assert np.mean(choices(seed, epoch, np.arange(2_000), lengths, 8) == picked) == pytest.approx(1 / 8, abs=0.02)
    alone = choices(1, 0, np.array([77, 3]), np.array([10, 4]), 8)
    assert alone.tolist() == [*picked[770:780], *picked[30:34]]
    neighbors = picked.reshape(2_000, 10)
    assert np.mean(neighbors[:, 1:] == neighbors[:, :-1]) == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.parametrize("at_once", [1, 5, 1 << 16])
def test_the_lengths_of_an_epoch_are_those_of_its_rows(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.tokens.segmentation._AT_ONCE", at_once)
    numbers: dict[str, int] = {}
    sentences = number_words(_bpe(), [*LINES, ""], numbers)
    table = Segmentations.draw(_bpe(), list(numbers), Sampling(8, dropout=0.5), 0)
    side = Sampled(sentences, table, seed=3, longest=25, ends=True)
    seen = [side.epoch_lengths(epoch).tolist() for epoch in range(3)]
    assert seen == [side.take(range(len(side)), epoch).lengths.tolist() for epoch in range(3)]
    assert max(map(max, seen)) == 26  # some are cut
    assert seen[0] != seen[1] != seen[2]


def test_empty_sentences_and_words_without_choices_are_kept() -> None:
    numbers: dict[str, int] = {}
    sentences = number_words(_bpe(), ["", "low", ""], numbers)
    table = Segmentations.draw(_bpe(), list(numbers), Sampling(1, dropout=0.0), 0)
    rows = table.segment(sentences, np.zeros(len(sentences.flat), dtype=np.int64)).rows()
    assert rows == [[], *_bpe().ids(["low"]), []]
    nothing = Ragged(np.zeros(0, dtype=np.int32), np.zeros(2, dtype=np.int64))
    assert table.segment(nothing, np.zeros(0, dtype=np.int64)).rows() == [[]]


def test_a_table_is_saved_and_loaded_without_pickle(tmp_path: Path) -> None:
    table = Segmentations.draw(_bpe(), ["▁banana", "▁low"], Sampling(4, dropout=0.3), 0)
    path = tmp_path / "words"
    table.save(path)
    again = Segmentations.load(path)
    assert again.drawn == 4
    assert again.table.rows() == table.table.rows()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ModelError, match="no table of segmentations"):
        Segmentations.load(path)


def test_a_table_with_a_pickle_in_it_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "words.npz", ids=np.array([Harmful()], dtype=object), offsets=np.zeros(2), drawn=np.int64(1))
    with pytest.raises(ModelError, match="no table of segmentations"):
        Segmentations.load(tmp_path / "words.npz")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(ConfigError, match="WordLevel tokenizer"):
        Segmentations.draw(Tokenizer.characters(["abc"]), ["a"], Sampling(1, dropout=0.1), 0)
    with pytest.raises(ConfigError, match="dropout is for BPE"):
        Segmentations.draw(_bpe(), ["a"], Sampling(1, alpha=0.1), 0)


@pytest.mark.parametrize(
    ("tokenizer", "sampling"), [(_bpe, Sampling(32, dropout=0.1)), (_unigram, Sampling(32, alpha=0.2))]
)
def test_drawing_keeps_up_with_a_corpus(tokenizer: Any, sampling: Sampling) -> None:
    """Some 100,000 a second on a quiet machine; a tenth of it is asked for on a busy one."""
    rng = np.random.default_rng(0)
    words = ["▁" + "".join(rng.choice(list("abdenwidstlor"), 7)) for _ in range(300)]
    begin = time.process_time()
    Segmentations.draw(tokenizer(), words, sampling, 0)
    speed = len(words) * sampling.drawn / (time.process_time() - begin)
    print(f"{speed:,.0f} segmentations a second")
    assert speed > 10_000
