"""How a text is written before it is cut into tokens, so that nothing of it is lost and it can be read back.

A field of a text (fields stand between tabs) begins with a mark, `▁`, and spaces become marks: "to be" is "▁to▁be", and
a token tells whether a space stands before it. A mark in the text itself is escaped, `▂1`, and so is the sign that
escapes, `▂2`: every text comes back as it was. A field that is empty or begins with a symbol has no mark of its own.
Characters need none of this: a space is a character like any other.
"""

import json
import re

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from regard.data.settings import RESERVED, CharSide, SpelledSide, WordSide

MARK = "▁"
TAB = "\t"

_FORMS: dict[str, list[normalizers.Normalizer]] = {
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
_FIELD = r"(?<![^\t])"
"""Before this place stands nothing, or a tab."""

TAB_PATTERN, END_PATTERN = r"\t", r"\z"

UNMARKED = [decoders.Replace(Regex(f"{_FIELD}{MARK}"), ""), decoders.Replace(MARK, " ")]
_UNESCAPED = [decoders.Replace("▂1", MARK), decoders.Replace("▂2", "▂")]


def _spelling(options: SpelledSide) -> list[normalizers.Normalizer]:
    lower = [normalizers.Lowercase()] if options.lowercase else []
    escapes = [] if isinstance(options, CharSide) else _ESCAPES
    return [*_FORMS[options.normalization], *lower, *escapes]


def symbols(options: SpelledSide) -> list[str]:
    """The user's symbols as they read in a text that was normalized; among words, they are words like any other."""
    spelling = normalizers.Sequence(_spelling(options))
    mark = MARK if isinstance(options, WordSide) else ""
    return list(dict.fromkeys(mark + spelling.normalize_str(symbol) for symbol in options.symbols))


def either(names: list[str]) -> list[str]:
    """Patterns for some names, longer ones first: of two that fit, the longer is meant."""
    return [re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name))]


def normalizer(options: SpelledSide) -> normalizers.Normalizer:
    if isinstance(options, CharSide):
        return normalizers.Sequence(_spelling(options))
    apart = [] if isinstance(options, WordSide) else either(symbols(options))
    return normalizers.Sequence(
        [
            *_spelling(options),
            *(_COLLAPSE if isinstance(options, WordSide) else []),
            normalizers.Prepend(MARK),
            normalizers.Replace(TAB, TAB + MARK),
            normalizers.Replace(" ", MARK),
            normalizers.Replace(Regex(_unmarked(apart)), ""),
        ]
    )


def _unmarked(apart: list[str]) -> str:
    """The mark of a field that begins with one of these, or is empty."""
    return f"{_FIELD}{MARK}(?={'|'.join([*apart, TAB_PATTERN, END_PATTERN])})"


def cutter(options: SpelledSide) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words: no token reaches across their bounds, and a symbol is a word by itself."""
    names = either(symbols(options))
    if isinstance(options, CharSide):
        pattern = "|".join([*names, r"[\s\S]"])
    elif isinstance(options, WordSide):
        pattern = word_pattern([], "spaces")
    else:
        # A token of our own that is typed is cut, and thereby never taken for what it looks like.
        pattern = word_pattern([*names, f"<(?={RESERVED[1:]})"], options.split)
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def word_pattern(whole: list[str], split: str) -> str:
    r"""Words with the mark before them. What is `whole`, white space, and a mark before either stand alone.

    >>> word_pattern([], "spaces")
    '[^\\S ]|▁?[^▁\\s]+|▁'
    """
    stop = f"(?!{'|'.join(whole)})" if whole else ""
    classes = {
        "spaces": [rf"[^{MARK}\s]"],
        "classes": [r"[\p{L}\p{M}]", r"\p{N}", rf"[^\p{{L}}\p{{M}}\p{{N}}{MARK}\s]"],
    }[split]
    runs = [f"(?:{stop}{one})+" if stop else f"{one}+" for one in classes]
    run = runs[0] if len(runs) == 1 else f"(?:{'|'.join(runs)})"
    return "|".join([*whole, r"[^\S ]", f"{MARK}?{run}", MARK])


def decoder(options: SpelledSide) -> decoders.Decoder:
    bytes_ = [decoders.ByteFallback()] if options.byte_fallback else []
    read = [] if isinstance(options, CharSide) else [*UNMARKED, *_UNESCAPED]
    return decoders.Sequence([*bytes_, decoders.Fuse(), *read])


def cuts_at_spaces(inner: tokenizers.Tokenizer) -> bool:
    """Whether a text is the same as what stands between its spaces, segmented by itself: so it is with marks and
    without symbols, before which a field has no mark.
    """
    parts = json.loads(inner.to_str())["normalizer"].get("normalizers", [])
    plain = {"type": "Replace", "pattern": {"Regex": _unmarked([])}, "content": ""}
    return plain in parts


def takes_letters_apart(inner: tokenizers.Tokenizer) -> bool:
    """Whether a letter and its accent are two: a text must be composed again when it is read back."""
    return "e\u0301" in inner.normalizer.normalize_str("\u00e9")
