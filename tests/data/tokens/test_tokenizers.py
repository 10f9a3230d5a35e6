"""Every kind of tokenizer: round trips, spans, special tokens, tags, and error messages."""

import logging
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.config import resolve
from regard.data.settings import (
    BPESide,
    BPETokenizer,
    CharSide,
    CharTokenizer,
    PairTokenizer,
    Side,
    TokenizerSettings,
    UnigramTokenizer,
    WordSide,
    WordTokenizer,
    sampling_by_side,
    token_differences,
)
from regard.data.tokens import bpe_learner
from regard.data.tokens.tokenizers import SPECIALS, UNKNOWN, Tokenizer, TokenizerPair, index_words
from regard.errors import ConfigError, DataError, ModelError
from regard.runs.settings import RunSettings
from tests_command import HANG

LINES = ["the old man and the sea", "the sea, the sea!", "an old  man's 1,000 seas ", "low lower lowest ▁ ▂1"]
SYMBOLS = ("<url>", "<2de>")
KINDS: dict[str, Any] = {"char": CharTokenizer, "word": WordTokenizer, "bpe": BPETokenizer, "unigram": UnigramTokenizer}


def build(kind: str, texts: list[str] = LINES, **options: Any) -> Tokenizer:
    if kind in {"bpe", "unigram"}:
        options = {"vocabulary": 360 if options.get("byte_fallback") else 80, **options}
    return TokenizerPair.build(KINDS[kind](**options), texts, []).source


@pytest.fixture(scope="module", params=list(KINDS))
def with_bytes(request: pytest.FixtureRequest) -> Tokenizer:
    return build(request.param, byte_fallback=True, symbols=SYMBOLS)


def collapse_spaces(text: str) -> str:
    """Return a text as a word tokenizer decodes it: with single spaces between words, except tabs."""
    return "\t".join(" ".join(re.split(r"[^\S\x1c-\x1f]+", field)).strip(" ") for field in text.split("\t"))


@pytest.mark.slow
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_characters_round_trip_after_nfc(texts: list[str]) -> None:
    if any(texts):
        tokenizer = Tokenizer.of(CharSide(), texts)
        for text, tokens in zip(texts, tokenizer.encode(texts), strict=True):
            assert tokenizer.decode(tokens.ids) == unicodedata.normalize("NFC", text)
            assert UNKNOWN not in tokens.ids


@pytest.mark.parametrize("split", ["spaces", "classes"])
@pytest.mark.parametrize("kind", list(KINDS))
@given(
    text=st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\n")),
        st.text(st.sampled_from(" \t▁▂12a漢<0x41>s/é")),
        st.lists(st.sampled_from(["<url>", "<2de>", "<s>", "</s>", "<0x41>", " ", "\t", "▁", "sea", "ſ"])).map("".join),
    )
)
@example(text="  two  spaces  ")
@example(text="\t\t a\t")
@example(text="<2de> <url><url> x<url>")
def test_with_byte_fallback_every_text_round_trips_and_nothing_is_unknown(kind: str, split: str, text: str) -> None:
    tokenizer = _with_bytes(kind, split)
    [ids] = tokenizer.ids([text])
    expected = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(ids) == (collapse_spaces(expected) if kind == "word" else expected)
    assert min(ids, default=4) >= len(SPECIALS)
    [words] = tokenizer.words([text])
    assert [index for word in tokenizer.segment_words(words) for index in word] == ids


@cache
def _with_bytes(kind: str, split: str) -> Tokenizer:
    options: dict[str, Any] = {"split": split} if kind in {"bpe", "unigram"} else {}
    return build(kind, byte_fallback=True, symbols=SYMBOLS, **options)


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
@given(text=st.text(st.sampled_from(sorted(set("".join(LINES))))))
def test_text_in_a_known_alphabet_round_trips_without_byte_fallback(kind: str, text: str) -> None:
    tokenizer = _with_defaults(kind)
    [ids] = tokenizer.ids([text])
    assert tokenizer.decode(ids) == text
    assert UNKNOWN not in ids


@cache
def _with_defaults(kind: str) -> Tokenizer:
    return build(kind)


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram"])
@pytest.mark.parametrize("split", ["spaces", "classes"])
@given(text=st.text(st.sampled_from("ab cäÄß \t▁▂1<s>Σς́ ")) | st.text(st.characters(codec="utf-8")))
@example(text="a  b")
@example(text=" a")
@example(text="e\u0301 \u0301e")
@example(text="Ας ΑΣ ΣΑΣ Α")
def test_cached_words_have_the_ids_of_the_uncached_text(kind: str, split: str, text: str) -> None:
    tokenizer = _without_symbols(kind, split)
    assert tokenizer._word_cache is not None
    encoded = [tokens.ids for tokens in tokenizer.encode([text, text.lower()])]
    assert tokenizer.ids([text, text.lower()]) == encoded
    assert tokenizer.ids([text, text.lower()]) == encoded


@cache
def _without_symbols(kind: str, split: str) -> Tokenizer:
    options: dict[str, Any] = {} if kind == "word" else {"split": split}
    return build(kind, byte_fallback=True, **options)


def test_symbols_are_found_anywhere_in_the_text() -> None:
    tokenizer = build("bpe", symbols=["<url>"])
    text = "<url> low <url>low low"
    assert tokenizer.ids([text]) == [tokenizer.encode([text])[0].ids]


def test_spans_of_characters() -> None:
    tokenizer = Tokenizer.of(CharSide(), ["3 mai 五月"])
    [tokens] = tokenizer.encode(["五 mai!"])
    assert tokens.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert tokens.ids[5] == UNKNOWN


def test_spans_exclude_the_space_before_a_word_and_bytes_have_the_span_of_their_character(
    with_bytes: Tokenizer,
) -> None:
    text = "the  sea 漢 <url>"
    [tokens] = with_bytes.encode([text])
    for token, (start, end) in zip(tokens.texts, tokens.offsets, strict=True):
        if token.startswith("▁") and len(token) > 1:
            assert text[start:end] == token[1:]
        if token in {"<0xE6>", "<0xBC>", "<0xA2>"}:
            assert "漢" in text[start:end]
        if token == "<url>":
            assert (start, end) == (11, 16)
    covered = {index for start, end in tokens.offsets for index in range(start, end)}
    assert {index for index, character in enumerate(text) if not character.isspace()} <= covered


def test_tokens_are_grouped_by_word(with_bytes: Tokenizer) -> None:
    text = " the 漢 <url>  sea"
    [tokens] = with_bytes.encode([text])
    words = tokens.by_word(text)
    assert [text[start:end] for (start, end), _ in words] == text.split()
    for (start, end), indices in words:
        assert indices
        assert all(tokens.offsets[index][0] < end and tokens.offsets[index][1] >= start for index in indices)
    used = [index for _, indices in words for index in indices]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("kind", list(KINDS))
def test_special_tokens_and_bytes_never_match_text(kind: str) -> None:
    """Not even if the training text contains them."""
    text = "</s> <pad> <0x41> x<s>"
    tokenizer = build(kind, [text] * 9, byte_fallback=True, **({"split": "spaces"} if kind[0] in "bu" else {}))
    [ids] = tokenizer.ids([text])
    assert tokenizer.tokens([0, 1, 2, 3]) == list(SPECIALS)
    assert min(ids) >= len(SPECIALS) + 256
    assert tokenizer.decode(ids) == text


def test_bpe_merges_match_hand_computed_ones() -> None:
    """Low, lower, newest, widest, as in Sennrich et al. (2016): es (9 times), then est, then lo (7), low."""
    lines = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
    tokenizer = build("bpe", lines, vocabulary=4 + 11 + 3)
    assert tokenizer.tokens(range(15, 18)) == ["es", "est", "lo"]
    [tokens] = tokenizer.encode(["lowest"])
    assert tokens.texts == ["▁", "lo", "w", "est"]


def letters(count: int) -> str:
    return "".join(random.Random(0).choices("abcdefghij", k=count))


def test_a_word_as_long_as_a_file_takes_little_longer_than_short_words() -> None:
    """The time of BPE grows with the length of words, which are therefore split to learn from them."""
    text = letters(60_000)

    def seconds(words: list[str]) -> float:
        before = os.times()
        Tokenizer.of(BPETokenizer(vocabulary=4_000), [" ".join(words)])
        return sum(os.times()[:4]) - sum(before[:4])

    short = seconds([text[start : start + 100] for start in range(0, len(text), 100)])
    assert seconds([text]) < 5 * short


@pytest.mark.parametrize(("kind", "treatment"), [("bpe", "split"), ("unigram", "truncated")])
def test_long_words_are_reported_once_and_encoded_completely(
    kind: str, treatment: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = letters(1_000)
    tokenizer = Tokenizer.of(KINDS[kind](vocabulary=30), [long] * 2)
    [message] = [record.getMessage() for record in caplog.records if "200 characters" in record.getMessage()]
    assert message.startswith("The texts have 2 words of more than 200 characters.")
    assert f"such words are {treatment}" in message
    assert tokenizer.decode(tokenizer.ids([long])[0]) == long


def test_bpe_learns_the_same_in_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["low low low lower lowest new newer " * 3, "<url> wide ▁"] * 20
    options = BPETokenizer(vocabulary=60, symbols=("<url>",))
    here = Tokenizer.of(options, texts).to_json()
    monkeypatch.setattr(bpe_learner, "_MAX_CHARACTERS", 0)
    monkeypatch.setattr(bpe_learner, "_MESSAGE_CHARACTERS", 100)
    assert Tokenizer.of(options, texts).to_json() == here


def test_unigram_finds_the_morphemes_of_the_text() -> None:
    lines = ["undo", "redo", "unpack", "repack", "pack", "do"] * 20
    tokenizer = build("unigram", lines, vocabulary=4 + 10 + 6)
    [tokens] = tokenizer.encode(["repack undo"])
    assert tokens.texts in (["▁re", "pack", "▁un", "do"], ["▁repack", "▁undo"])


@pytest.mark.slow
def test_a_unigram_vocabulary_is_the_same_in_every_process() -> None:
    code = (
        "import sys; from regard.data.tokens.tokenizers import *; from regard.data.settings import *\n"
        "lines = [f'{n * n} times {n} and {n + 3} ' for n in range(200)]\n"
        "pair = TokenizerPair.build(UnigramTokenizer(vocabulary=90), lines, [])\n"
        "print(pair.source.inner.to_str())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in "12"
    ]
    assert runs[0] == runs[1]
    assert b"times" in runs[0]


def test_words_are_ordered_by_count() -> None:
    tokenizer = build("word", ["a b b c c c d", "<url>"], vocabulary=2, symbols=("<url>",))
    assert tokenizer.tokens(range(len(tokenizer))) == [*SPECIALS, "▁<url>", "▁c", "▁b"]
    assert build("word", ["a b b c c c d"], min_count=2).ids(["a b"]) == [[UNKNOWN, 5]]


def test_normalization_and_case() -> None:
    assert build("bpe", lowercase=True).ids(["THE Sea"]) == build("bpe").ids(["the sea"])
    wide = build("char", ["abc"], normalization="nfkc")
    assert wide.decode(wide.ids(["ａｂｃ"])[0]) == "abc"
    raw = build("char", ["e\u0301"], normalization="none")
    assert len(raw.ids(["e\u0301"])[0]) == 2


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_nfd_tokens_decode_to_nfc(kind: str, tmp_path: Path) -> None:
    learned = build(kind, ["한국 café", "나라 naïve"], normalization="nfd")
    (tmp_path / "tokenizer.json").write_bytes(learned.to_bytes())
    for tokenizer in (learned, Tokenizer.load(tmp_path / "tokenizer.json")):
        tokens = tokenizer.encode(["한국 나"])[0]
        assert tokenizer.decode(tokens.ids) == "한국 나"
        assert UNKNOWN not in tokenizer.ids(["학 é"])[0]  # their parts occur, but never together
        if kind == "char":
            assert tokens.texts == list("\u1112\u1161\u11ab\u1100\u116e\u11a8 \u1102\u1161")
            assert tokens.offsets == [(0, 1)] * 3 + [(1, 2)] * 3 + [(2, 3)] + [(3, 4)] * 2


@pytest.mark.parametrize("options", [{}, {"normalization": "nfd"}, {"tags": True}])
@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_texts_decode_together_as_they_do_alone(kind: str, options: dict[str, Any]) -> None:
    texts = [*(f"{line}\tV;PST" if options.get("tags") else line for line in [*LINES, "한국 café"]), ""]
    tokenizer = build(kind, texts, **options)
    rows = tokenizer.ids(texts)
    assert tokenizer.decode_all(rows) == [tokenizer.decode(ids) for ids in rows]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_symbol_is_one_token_at_any_position(kind: str) -> None:
    tokenizer = build(kind, [*LINES, "<2de>the<url>"], symbols=SYMBOLS)
    first, second = (tokenizer.ids([symbol])[0] for symbol in SYMBOLS)
    assert (len(first), len(second)) == (1, 1)
    assert tokenizer.ids(["<2de> the"])[0][0] == second[0]
    if kind != "word":
        assert tokenizer.ids(["the<url>sea"])[0].count(first[0]) == 1
        assert tokenizer.decode(tokenizer.ids(["<2de>the <url>sea"])[0]) == "<2de>the <url>sea"


TAGGED = ["laufen\tV;PST", "Vase\tN;PL", "gehen\tV;PRS"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_tag_is_one_token(kind: str) -> None:
    tokenizer = build(kind, TAGGED, tags=True, **({"vocabulary": 40} if kind[0] in "bu" else {}))
    [tokens] = tokenizer.encode(["laufen\tV;PL PST"])
    assert tokens.texts[-3:] == ["\tV", "\tPL", "\tPST"]
    assert tokens.offsets[-3:] == [(7, 8), (9, 11), (12, 15)]
    assert tokenizer.decode(tokens.ids) == "laufen\tV;PL;PST"
    assert tokenizer.ids(["laufen\tV;PL PST"]) == [tokens.ids]
    assert tokenizer.ids(["laufen\tV;ZZ"])[0][-1] == UNKNOWN
    assert tokens.by_word("laufen\tV;PL PST")[-1] == ((12, 15), [len(tokens.ids) - 1])
    [words] = tokenizer.words(["laufen\tV;PST"])
    assert [index for word in tokenizer.segment_words(words) for index in word] == tokenizer.ids(["laufen\tV;PST"])[0]
    if kind == "char":
        [letter] = tokenizer.ids(["V"])[0]
        assert letter != tokens.ids[-3]


def test_only_sources_have_tags_and_several_target_fields_round_trip(tmp_path: Path) -> None:
    settings = CharTokenizer(shared=False, tags=True)
    pair = TokenizerPair.build(settings, TAGGED, ["lief\tläuft"])
    assert pair.target.decode(pair.target.ids(["lief\tläuft"])[0]) == "lief\tläuft"
    pair.save(lambda name, content: (tmp_path / name).write_bytes(content))
    again = TokenizerPair.load(tmp_path, settings)
    assert again.source.ids(TAGGED) == pair.source.ids(TAGGED)
    for kind in ("word", "bpe", "unigram"):
        several = build(kind, ["lief fort\tläuft fort"] * 3, **({"vocabulary": 24} if kind[0] in "bu" else {}))
        assert "\t" in several.encode(["lief\tläuft"])[0].texts
        assert several.decode(several.ids(["lief fort\tläuft"])[0]) == "lief fort\tläuft"


def test_letters_to_phones() -> None:
    settings = PairTokenizer.model_validate({"source": "char", "target": "word"})
    pair = TokenizerPair.build(settings, ["HELLO"], ["HH AH0 L OW1"])
    assert pair.source.encode(["HELLO"])[0].texts == list("HELLO")
    assert pair.target.encode(["HH AH0"])[0].texts == ["▁HH", "▁AH0"]
    assert pair.target.decode(pair.target.ids(["L OW1"])[0]) == "L OW1"


@pytest.mark.parametrize(
    "settings",
    [
        CharTokenizer(),
        CharTokenizer(shared=False),
        BPETokenizer(vocabulary=350, byte_fallback=True, symbols=SYMBOLS),
        UnigramTokenizer(vocabulary=90, shared=False, split="spaces"),
        WordTokenizer(shared=False, byte_fallback=True),
    ],
    ids=lambda settings: f"{settings.kind}-{settings.shared}",
)
def test_saving_and_loading_preserves_tokenizers(tmp_path: Path, settings: TokenizerSettings) -> None:
    pair = TokenizerPair.build(settings, LINES, [line[::-1] for line in LINES])
    pair.save(lambda name, content: (tmp_path / name).write_bytes(content))
    again = TokenizerPair.load(tmp_path, settings)
    for text in (*LINES, "cab\n 漢 <url>"):
        assert again.source.encode([text]) == pair.source.encode([text])
        assert again.target.decode(again.target.ids([text])[0]) == pair.target.decode(pair.target.ids([text])[0])
    assert (again.source is again.target) == settings.shared


def test_a_file_of_the_tokenizers_library_loads(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER_FILE, "utf-8")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.ids(["ba\tc e\u0301"]) == [[6, 5, UNKNOWN, UNKNOWN, 4, 7]]
    assert tokenizer.decode([6, 5, 4, 7]) == "ba é"


TOKENIZER_FILE = """{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
"normalizer": {"type": "NFC"},
"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\\\s\\\\S]"}, "behavior": "Isolated", "invert": false},
"post_processor": null, "decoder": {"type": "Fuse"},
"model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, " ": 4, "a": 5, "b": 6, "é": 7},
"unk_token": "<unk>"}}"""


def test_a_missing_damaged_or_foreign_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(path)
    path.write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(path)
    path.write_text(TOKENIZER_FILE.replace("<pad>", "[PAD]"))
    with pytest.raises(ModelError, match="its first tokens are not <pad>"):
        Tokenizer.load(path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_smaller_than_the_alphabet_is_rejected(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"vocabulary=9 is too small: the text has 6 different .* more than 10"):
        build(kind, ["abcde"], vocabulary=9)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_larger_than_the_text_allows_is_reported(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = build(kind, ["aaaa bb"] * 3, vocabulary=500)
    assert f"has {len(tokenizer)} tokens instead of 500" in caplog.text


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_training_on_empty_text_is_an_error(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn a vocabulary from"):
        build(kind, texts)


def test_tags_without_tagged_sources_are_an_error() -> None:
    with pytest.raises(DataError, match="no source has tags"):
        build("char", ["laufen"], tags=True)


def test_text_in_place_of_tags_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    lemmas = [f"{first}{second}en" for first in "abdfgh" for second in "aeiou"]
    with caplog.at_level(logging.WARNING):
        build("char", [f"{lemma}\tV;PST" for lemma in lemmas], tags=True)
        assert not caplog.text
        build("char", [f"V;PST\t{lemma}" for lemma in lemmas], tags=True)
    assert "unusually many tags: 30 distinct ones in 30 sources (aaen, aeen, aien" in caplog.text
    assert "Check that the columns are not swapped" in caplog.text


@pytest.mark.parametrize(
    ("symbol", "message"),
    [("a b", "white space"), ("", "empty"), ("<s>", "special token"), ("<0x41>", "special token")],
)
def test_invalid_symbols_are_rejected(symbol: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(RunSettings, "dates", {"tokenizer.symbols": [symbol]})


def test_short_forms_of_settings() -> None:
    assert resolve(RunSettings, "dates", {"tokenizer": "bpe", "tokenizer.dropout": 0.1}).tokenizer == BPETokenizer(
        dropout=0.1
    )
    pair = resolve(RunSettings, "dates", {"tokenizer": {"source": "char", "target": {"kind": "word"}}}).tokenizer
    assert isinstance(pair, PairTokenizer)
    assert not pair.shared
    assert (
        resolve(
            RunSettings, "dates", {"tokenizer.kind": "pair", "tokenizer.source": "char", "tokenizer.target": "word"}
        ).tokenizer
        == pair
    )
    with pytest.raises(ConfigError, match="Did you mean 'bpe'"):
        resolve(RunSettings, "dates", {"tokenizer": "bpo"})
    with pytest.raises(ConfigError, match=r"unknown setting 'tokenizer.target.vocabluary'. Did you mean 'vocabulary'"):
        resolve(RunSettings, "dates", {"tokenizer": {"source": "char", "target": {"kind": "word", "vocabluary": 5}}})


def test_sampling_by_side() -> None:
    both = sampling_by_side(BPETokenizer(dropout=0.1))
    assert both[0] == both[1] == (32, 0.1, None)
    assert sampling_by_side(UnigramTokenizer(alpha=0.2, sampled="source")) == ((32, None, 0.2), None)
    assert sampling_by_side(CharTokenizer()) == (None, None)
    one = PairTokenizer.model_validate({"source": {"kind": "bpe", "dropout": 0.1, "segmentations": 8}, "target": "bpe"})
    assert sampling_by_side(one) == ((8, 0.1, None), None)


def test_settings_of_the_sampling_do_not_change_the_tokens() -> None:
    sampled = BPETokenizer(dropout=0.1, segmentations=8, sampled="source")
    assert token_differences(BPETokenizer(), sampled) == []
    assert token_differences(BPETokenizer(), BPETokenizer(vocabulary=500)) == ["vocabulary"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_text_is_read_once_and_not_stored(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are released while others are read, so that memory does not grow with the text."""
    monkeypatch.setattr(bpe_learner, "_MAX_CHARACTERS", 0)
    monkeypatch.setattr(bpe_learner, "_MESSAGE_CHARACTERS", 1_000)
    alive = most = read = 0

    class Line(str):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def read_lines() -> Iterator[str]:
        nonlocal alive, most, read
        for number in range(20_000):
            read, alive = read + 1, alive + 1
            most = max(most, alive)
            yield Line(f"{number % 97:05} ")

    settings = resolve(RunSettings, "dates", {"tokenizer": kind}).tokenizer
    TokenizerPair.build(settings, read_lines(), ["another"])
    assert read == 20_000
    assert most < read / 4


@pytest.mark.slow
def test_a_forked_child_can_tokenize_without_a_warning() -> None:
    code = (
        "import os\nfrom regard.data.settings import CharSide\nfrom regard.data.tokens.tokenizers import Tokenizer\n"
        "t = Tokenizer.of(CharSide(), ['abc'])\nt.ids(['abc'] * 1000)\npid = os.fork()\n"
        "if pid == 0:\n    t.ids(['abc'] * 1000)\n    os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    # Python 3.12 warns about any fork with threads; this test is about what the tokenizers library prints.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    completed = subprocess.run(command, capture_output=True, env=environment, timeout=HANG, check=True)
    assert completed.stderr == b""


TEXTS = ["the sea , the 2nd sea-side", "all the seas are sea", "theatre 2 sea"]


@pytest.mark.parametrize(
    "side",
    [
        CharSide(),
        WordSide(),
        WordSide(min_count=2),
        BPESide(vocabulary=40),
        BPESide(vocabulary=290, split="spaces", byte_fallback=True),
        BPESide(vocabulary=40, normalization="nfd", lowercase=True),
    ],
)
@pytest.mark.parametrize("text", [*TEXTS, "  the   sea\u00a0unseen ", "The Sé\u0301a 漢字 the", "sea", ""])
def test_tokens_belong_to_the_words_that_they_are_part_of(side: Side, text: str) -> None:
    tokenizer = Tokenizer.of(side, TEXTS)
    [tokens] = tokenizer.encode([text])
    indices = index_words(text, tokens.offsets)
    words = text.split()
    assert set(indices) - {-1} == set(range(len(words)))
    assert sorted(index for index in indices if index >= 0) == [index for index in indices if index >= 0]
    for index, (start, end) in zip(indices, tokens.offsets, strict=True):
        spelled = text[start:end].strip()
        assert (index == -1 and not spelled) or spelled in words[index]


def test_a_token_that_contains_several_words_belongs_to_the_first() -> None:
    assert index_words("to be or", [(0, 5), (6, 8)]) == [0, 2]
    assert index_words("to be", [(0, 0), (0, 2), (2, 3), (3, 5)]) == [0, 0, -1, 1]
