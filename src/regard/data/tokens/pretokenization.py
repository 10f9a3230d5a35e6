"""Normalization and pre-tokenization of text. Tokens can be decoded to the normalized text.

Spaces are replaced with the mark `▁`, and each field of a text (fields are separated by tabs) starts with one: "to be"
becomes "▁to▁be". A mark in the text itself is escaped as `▂1`, and the escape character as `▂2`. A field that is empty
or starts with a symbol gets no mark. Character tokenizers need none of this: a space is an ordinary character.
"""

import json
import re

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from regard.data.settings import RESERVED, CharSide, TrainableSide, WordSide

MARK = "▁"
TAB = "\t"

MAX_WORD_LENGTH = 200
"""To learn subwords, longer words are split (BPE) or truncated (unigram), because the time grows with the length of
words. In text without spaces, words are as long as lines.
"""

_NORMALIZATION_FORMS: dict[str, list[normalizers.Normalizer]] = {
    "none": [],
    "nfc": [normalizers.NFC()],
    "nfd": [normalizers.NFD()],
    "nfkc": [normalizers.NFKC()],
}
_ESCAPES = [normalizers.Replace("▂", "▂2"), normalizers.Replace(MARK, "▂1")]
_COLLAPSE = [
    normalizers.Replace(Regex(r"[^\S\t]+"), " "),
    normalizers.Replace(Regex(r"\A | \z|(?<=\t) | (?=\t)"), ""),
]
_FIELD_START = r"(?<![^\t])"
"""Matches at the start of the text and after a tab."""

TAB_PATTERN, END_PATTERN = r"\t", r"\z"

_ADD_MARKS = [
    normalizers.Prepend(MARK),
    normalizers.Replace(TAB, TAB + MARK),
    normalizers.Replace(" ", MARK),
]
_REMOVE_MARKS = [decoders.Replace(Regex(f"{_FIELD_START}{MARK}"), ""), decoders.Replace(MARK, " ")]
_UNESCAPE = [decoders.Replace("▂1", MARK), decoders.Replace("▂2", "▂")]

_SPACE = " (?=[?!,.:])"
"""Matches a space before punctuation."""
PUNCTUATION = [
    normalizers.Replace("’", "'"),
    normalizers.Replace(Regex("[“”]"), '"'),
    normalizers.Replace("\u200b", ""),
    normalizers.Replace(Regex("[ \u3000]+"), " "),
    normalizers.Replace(Regex(_SPACE), ""),
    normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""),
]
"""The normalization of quotes and of spaces before punctuation in Joey NMT, after NFKC."""
JOIN_PUNCTUATION = decoders.Replace(Regex(_SPACE), "")

NORMALIZERS = [
    *(form for forms in _NORMALIZATION_FORMS.values() for form in forms),
    normalizers.Lowercase(),
    *_ESCAPES,
    *_COLLAPSE,
    *_ADD_MARKS,
    *PUNCTUATION,
]
"""All normalizers that a tokenizer may have, except the one of `is_mark_pattern`."""
DECODERS = [decoders.ByteFallback(), decoders.Fuse(), *_REMOVE_MARKS, *_UNESCAPE, JOIN_PUNCTUATION]
"""All decoders that a tokenizer may have."""

_ESCAPED_NAMES = re.compile(r"(?:(?:[^\\|()\[\]{}.*+?^$#&~\s-]|\\[\\|()\[\]{}.*+?^$#&~\s-])+\|)*")
"""Matches names as `escape_all` returns them, each followed by `|`."""


def _text_normalizers(options: TrainableSide) -> list[normalizers.Normalizer]:
    lower = [normalizers.Lowercase()] if options.lowercase else []
    escapes = [] if isinstance(options, CharSide) else _ESCAPES
    return [*_NORMALIZATION_FORMS[options.normalization], *lower, *escapes]


def normalized_symbols(options: TrainableSide) -> list[str]:
    """Return the user's symbols as they appear in normalized text. For a word tokenizer, they are ordinary words."""
    normalizer = normalizers.Sequence(_text_normalizers(options))
    mark = MARK if isinstance(options, WordSide) else ""
    return list(dict.fromkeys(mark + normalizer.normalize_str(symbol) for symbol in options.symbols))


def escape_all(names: list[str]) -> list[str]:
    """Return regular expressions for some names. Longer names come first, so that the longest match wins."""
    return [re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name))]


def build_normalizer(options: TrainableSide) -> normalizers.Normalizer:
    if isinstance(options, CharSide):
        return normalizers.Sequence(_text_normalizers(options))
    symbols = [] if isinstance(options, WordSide) else escape_all(normalized_symbols(options))
    return normalizers.Sequence(
        [
            *_text_normalizers(options),
            *(_COLLAPSE if isinstance(options, WordSide) else []),
            *_ADD_MARKS,
            normalizers.Replace(Regex(superfluous_mark(symbols)), ""),
        ]
    )


def superfluous_mark(symbols: list[str]) -> str:
    """Return a pattern for the mark of a field that is empty or starts with a symbol."""
    return f"{_FIELD_START}{MARK}(?={'|'.join([*symbols, TAB_PATTERN, END_PATTERN])})"


def is_mark_pattern(pattern: str) -> bool:
    """Whether a pattern is one of `superfluous_mark`, with any symbols."""
    start = superfluous_mark([]).partition(TAB_PATTERN + "|")[0]
    return pattern.startswith(start) and pattern == superfluous_mark(find_leading_names(pattern[len(start) :]))


def is_split_pattern(pattern: str) -> bool:
    """Whether a pattern is one that `build_pre_tokenizer` uses, with any symbols."""
    names = find_leading_names(pattern)
    return pattern in {
        _build_character_pattern(names),
        word_pattern([], "spaces"),
        *(_build_subword_pattern(names, split) for split in ("spaces", "classes")),
    }


def find_leading_names(pattern: str) -> list[str]:
    r"""Return the escaped names that a pattern starts with.

    >>> find_leading_names(r"<2de>|a\.b|[\s\S]")
    ['<2de>', 'a\\.b']
    """
    match = _ESCAPED_NAMES.match(pattern)
    text = match[0] if match else ""
    return re.findall(r"(?:[^\\|]|\\[\s\S])+", text)


def _build_character_pattern(symbols: list[str]) -> str:
    return "|".join([*symbols, r"[\s\S]"])


def _build_subword_pattern(symbols: list[str], split: str, max_length: int | None = None) -> str:
    # The name of a special token in the text is split, so that it does not match the special token.
    return word_pattern([*symbols, f"<(?={RESERVED[1:]})"], split, max_length)


def build_pre_tokenizer(options: TrainableSide, max_length: int | None = None) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits text into words, which tokens do not cross. A symbol is one word.

    For BPE and unigram tokenizers, words of more than `max_length` characters are split, if it is given.
    """
    symbols = escape_all(normalized_symbols(options))
    if isinstance(options, CharSide):
        pattern = _build_character_pattern(symbols)
    elif isinstance(options, WordSide):
        pattern = word_pattern([], "spaces")
    else:
        pattern = _build_subword_pattern(symbols, options.split, max_length)
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def word_pattern(atoms: list[str], split: str, max_length: int | None = None) -> str:
    r"""Return a pattern for words with their mark. Each atom, each white space, and a mark before either is one match.

    A match has at most `max_length` characters and a mark.

    >>> word_pattern([], "spaces")
    '[^\\S ]|▁?[^▁\\s]+|▁'
    """
    stop = f"(?!{'|'.join(atoms)})" if atoms else ""
    classes = {
        "spaces": [rf"[^{MARK}\s]"],
        "classes": [r"[\p{L}\p{M}]", r"\p{N}", rf"[^\p{{L}}\p{{M}}\p{{N}}{MARK}\s]"],
    }[split]
    repeat = "+" if max_length is None else f"{{1,{max_length}}}"
    runs = [f"(?:{stop}{class_}){repeat}" if stop else f"{class_}{repeat}" for class_ in classes]
    run = runs[0] if len(runs) == 1 else f"(?:{'|'.join(runs)})"
    return "|".join([*atoms, r"[^\S ]", f"{MARK}?{run}", MARK])


def build_decoder(options: TrainableSide) -> decoders.Decoder:
    byte_fallback = [decoders.ByteFallback()] if options.byte_fallback else []
    restore = [] if isinstance(options, CharSide) else [*_REMOVE_MARKS, *_UNESCAPE]
    return decoders.Sequence([*byte_fallback, decoders.Fuse(), *restore])


def segments_words_independently(inner: tokenizers.Tokenizer) -> bool:
    """Whether the tokens of a text are those of its space-separated words. This requires marks and no symbols, because
    a field that starts with a symbol has no mark.
    """
    parts = json.loads(inner.to_str())["normalizer"].get("normalizers", [])
    without_symbols, joins_words = (
        {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""} for pattern in (superfluous_mark([]), _SPACE)
    )
    return without_symbols in parts and joins_words not in parts


def decomposes(inner: tokenizers.Tokenizer) -> bool:
    """Whether letters are separated from their accents, so that decoded text must be composed again."""
    return "e\u0301" in inner.normalizer.normalize_str("\u00e9")
