"""Sampled segmentations: hand-computed distributions, lossless decoding, and a pure function of the seed."""

import os
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
from regard.data.settings import BPESide, BPETokenizer, CharSide, Sampling, UnigramTokenizer
from regard.data.tokens import pretokenization
from regard.data.tokens.segmentation import SampledSide, SegmentationTable, choose_segmentations, number_words
from regard.data.tokens.tokenizers import SPECIALS, UNKNOWN, Tokenizer, TokenizerPair
from regard.data.tokens.vocabularies import BYTES, LearnedTokens, build_model
from regard.errors import ConfigError

LINES = [
    "the lowest of the low",
    "newer and newest, wider, widest",
    "a banana bandana anna",
    "<url> is a link 漢字",
] * 3
BPE = {"vocabulary": 330, "byte_fallback": True, "symbols": ["<url>"], "split": "spaces"}


def build_tokenizer(learned: LearnedTokens) -> Tokenizer:
    """Build a tokenizer from given merges or log-probabilities."""
    inner = tokenizers.Tokenizer(build_model(list(SPECIALS), learned, byte_fallback=False))
    inner.normalizer = pretokenization.build_normalizer(BPESide())
    inner.pre_tokenizer = pretokenization.build_pre_tokenizer(BPESide())
    inner.decoder = pretokenization.build_decoder(BPESide())
    return Tokenizer(inner)


def learn(kind: Any, lines: Sequence[str] = LINES, **options: Any) -> Tokenizer:
    return TokenizerPair.build(kind(**{**BPE, **options}), lines, []).source


def sample_rows(tokenizer: Tokenizer, words: list[str], sampling: Sampling, seed: int = 0) -> list[list[list[int]]]:
    rows = SegmentationTable.sample(tokenizer, words, sampling, seed).table.rows()
    return [rows[start : start + sampling.segmentations] for start in range(0, len(rows), sampling.segmentations)]


def frequencies(tokenizer: Tokenizer, word: str, sampling: Sampling) -> dict[str, float]:
    [rows] = sample_rows(tokenizer, [word], sampling)
    counts = Counter(" ".join(tokenizer.tokens(row)) for row in rows)
    return {text: count / len(rows) for text, count in counts.items()}


def test_bpe_dropout_matches_hand_computed_probabilities() -> None:
    """In abc, ab is merged first with probability 1 - p, and bc with p (1 - p). Only ab can then be merged with c."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    tokenizer = build_tokenizer(LearnedTokens(["a", "b", "c", "ab", "bc", "abc"], merges))
    frequency = frequencies(tokenizer, "abc", Sampling(20_000, dropout=0.3))
    expected = {"abc": 0.49, "ab c": 0.21, "a bc": 0.21, "a b c": 0.09}
    assert frequency == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.1])
def test_unigram_sampling_matches_hand_computed_probabilities(alpha: float) -> None:
    p = {"a": 0.3, "b": 0.2, "ab": 0.25, "ba": 0.15, "aba": 0.1}
    tokenizer = build_tokenizer(
        LearnedTokens(list(p), scores={piece: float(np.log(share)) for piece, share in p.items()})
    )
    frequency = frequencies(tokenizer, "aba", Sampling(20_000, alpha=alpha))
    weights = {"aba": 0.1**alpha, "ab a": 0.075**alpha, "a ba": 0.045**alpha, "a b a": 0.018**alpha}
    expected = {path: weight / sum(weights.values()) for path, weight in weights.items()}
    assert frequency == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000))


WORDS = st.text(st.sampled_from("▁abdenwidstlor漢é"), min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, unique=True))
def test_without_dropout_the_segmentation_is_deterministic(words: list[str]) -> None:
    tokenizer = _bpe()
    expected_rows = tokenizer.segment_words(words)
    assert sample_rows(tokenizer, words, Sampling(2, dropout=0.0)) == [[row, row] for row in expected_rows]


@given(st.lists(WORDS, min_size=1, unique=True))
def test_with_all_merges_dropped_the_tokens_are_characters_and_bytes(words: list[str]) -> None:
    tokenizer = _bpe()
    for word, [row] in zip(words, sample_rows(tokenizer, words, Sampling(1, dropout=1.0)), strict=True):
        assert all(len(token) == 1 or token in BYTES for token in tokenizer.tokens(row))
        assert tokenizer.decode(row) == pretokenization.build_decoder(BPESide()).decode(list(word))


@given(st.lists(WORDS, min_size=1, unique=True))
def test_a_large_alpha_samples_the_most_likely_path(words: list[str]) -> None:
    tokenizer = _unigram()
    expected_rows = tokenizer.segment_words(words)
    for row, sampled in zip(expected_rows, sample_rows(tokenizer, words, Sampling(1, alpha=1e4)), strict=True):
        assert tokenizer.decode(sampled[0]) == tokenizer.decode(row)
        assert _score(tokenizer, sampled[0]) == pytest.approx(_score(tokenizer, row), abs=1e-2)


def _score(tokenizer: Tokenizer, ids: list[int]) -> float:
    import json

    pieces: list[tuple[str, float]] = json.loads(tokenizer.inner.to_str())["model"]["vocab"]
    return sum(pieces[index][1] for index in ids)


_TOKENIZERS: dict[str, Tokenizer] = {}


def _bpe() -> Tokenizer:
    return _TOKENIZERS.setdefault("bpe", _TOKENIZERS.get("bpe") or learn(BPETokenizer))


def _unigram() -> Tokenizer:
    return _TOKENIZERS.setdefault("unigram", _TOKENIZERS.get("unigram") or learn(UnigramTokenizer))


@pytest.mark.parametrize(
    ("get_tokenizer", "sampling"),
    [(_bpe, Sampling(16, dropout=0.4)), (_unigram, Sampling(16, alpha=0.2))],
    ids=["bpe", "unigram"],
)
def test_sampled_texts_decode_to_themselves_and_symbols_are_not_split(get_tokenizer: Any, sampling: Sampling) -> None:
    tokenizer = get_tokenizer()
    texts = [*LINES, "never lengths: ñandú 漢", " two  spaces ", "a\tb <url><url>"]
    numbers: dict[str, int] = {}
    sentences = number_words(tokenizer, texts, numbers)
    table = SegmentationTable.sample(tokenizer, list(numbers), sampling, seed=3)
    [url] = tokenizer.ids(["<url>"])[0]
    different = 0
    for epoch in range(5):
        choices = choose_segmentations(
            3, epoch, np.arange(len(texts)), np.diff(sentences.offsets), sampling.segmentations
        )
        rows = table.segment(sentences, choices).rows()
        assert [tokenizer.decode(row) for row in rows] == texts
        assert [row.count(url) for row in rows] == [text.count("<url>") for text in texts]
        assert all(UNKNOWN not in row for row in rows)
        different += rows != tokenizer.ids(texts)
    assert different == 5


def test_consecutive_unknown_characters_are_one_token_with_and_without_sampling() -> None:
    tokenizer = learn(UnigramTokenizer, byte_fallback=False, vocabulary=80)
    word = "▁ñññanñ"
    for row in sample_rows(tokenizer, [word], Sampling(50, alpha=0.1))[0]:
        assert row.count(UNKNOWN) == 2
    assert tokenizer.segment_words([word])[0].count(UNKNOWN) == 2


def test_tags_are_not_sampled() -> None:
    tokenizer = learn(BPETokenizer, ["laufen\tV;PST", "gehen\tV"], tags=True, byte_fallback=False, vocabulary=40)
    words = ["\tV", "\tPST", "\tunheard"]
    assert sample_rows(tokenizer, words, Sampling(2, dropout=0.9)) == [
        [ids, ids] for ids in tokenizer.segment_words(words)
    ]


def test_segmentations_depend_only_on_the_seed_and_the_word() -> None:
    words = ["▁banana", "▁widest", "▁newer"]
    sampling = Sampling(8, dropout=0.5)
    first = sample_rows(_bpe(), words, sampling, seed=5)
    assert first == sample_rows(_bpe(), words, sampling, seed=5)
    assert first[::-1] == sample_rows(_bpe(), words[::-1], sampling, seed=5)
    assert first != sample_rows(_bpe(), words, sampling, seed=6)


def test_choices_are_uniform_and_depend_only_on_seed_epoch_sentence_and_position() -> None:
    lengths = np.full(2_000, 10)
    choices = choose_segmentations(1, 0, np.arange(2_000), lengths, 8)
    counts = np.bincount(choices, minlength=8)
    assert counts.sum() == 20_000
    assert np.abs(counts - 2_500).max() < 5 * np.sqrt(2_500)
    for seed, epoch in ((2, 0), (1, 1)):
        assert np.mean(choose_segmentations(seed, epoch, np.arange(2_000), lengths, 8) == choices) == pytest.approx(
            1 / 8, abs=0.02
        )
    subset = choose_segmentations(1, 0, np.array([77, 3]), np.array([10, 4]), 8)
    assert subset.tolist() == [*choices[770:780], *choices[30:34]]
    neighbors = choices.reshape(2_000, 10)
    assert np.mean(neighbors[:, 1:] == neighbors[:, :-1]) == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.parametrize("chunk", [1, 5, 1 << 16])
def test_the_lengths_of_an_epoch_match_its_rows(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.tokens.segmentation._CHUNK", chunk)
    numbers: dict[str, int] = {}
    sentences = number_words(_bpe(), [*LINES, ""], numbers)
    table = SegmentationTable.sample(_bpe(), list(numbers), Sampling(8, dropout=0.5), 0)
    side = SampledSide(sentences, table, seed=3, max_length=25, has_end=True)
    lengths = [side.epoch_lengths(epoch).tolist() for epoch in range(3)]
    assert lengths == [side.take(range(len(side)), epoch).lengths.tolist() for epoch in range(3)]
    assert max(map(max, lengths)) == 26  # some are truncated
    assert lengths[0] != lengths[1] != lengths[2]


def test_empty_sentences_are_segmented_as_empty_rows() -> None:
    numbers: dict[str, int] = {}
    sentences = number_words(_bpe(), ["", "low", ""], numbers)
    table = SegmentationTable.sample(_bpe(), list(numbers), Sampling(1, dropout=0.0), 0)
    rows = table.segment(sentences, np.zeros(len(sentences.flat), dtype=np.int64)).rows()
    assert rows == [[], *_bpe().ids(["low"]), []]
    empty = Ragged(np.zeros(0, dtype=np.int32), np.zeros(2, dtype=np.int64))
    assert table.segment(empty, np.zeros(0, dtype=np.int64)).rows() == [[]]


def test_a_table_is_saved_and_loaded_without_pickle(tmp_path: Path) -> None:
    table = SegmentationTable.sample(_bpe(), ["▁banana", "▁low"], Sampling(4, dropout=0.3), 0)
    path = tmp_path / "words"
    table.save(path)
    loaded = SegmentationTable.load(path)
    assert loaded.samples == 4
    assert loaded.table.rows() == table.table.rows()


def test_a_table_that_contains_a_pickle_is_rejected_without_running_it(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "words.npz", ids=np.array([Harmful()], dtype=object), offsets=np.zeros(2), samples=np.int64(1))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        SegmentationTable.load(tmp_path / "words.npz")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_does_not_support_the_sampling_is_rejected() -> None:
    with pytest.raises(ConfigError, match="WordLevel tokenizer"):
        SegmentationTable.sample(Tokenizer.of(CharSide(), ["abc"]), ["a"], Sampling(1, dropout=0.1), 0)
    with pytest.raises(ConfigError, match="use dropout for BPE"):
        SegmentationTable.sample(_bpe(), ["a"], Sampling(1, alpha=0.1), 0)


def test_a_very_long_word_has_one_segmentation() -> None:
    """Sampling takes time that is quadratic in the length of a word."""
    tokenizer = Tokenizer.of(BPETokenizer(vocabulary=20), ["abc cab bca " * 5])
    long = "▁" + "abc" * 20_000
    table = SegmentationTable.sample(tokenizer, [long, "▁abcabc"], Sampling(8, dropout=0.5), seed=0)
    rows = table.table.rows()
    assert rows[:8] == tokenizer.segment_words([long]) * 8
    assert len({tuple(row) for row in rows[8:]}) > 1
