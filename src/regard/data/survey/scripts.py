"""Per-character properties of large texts: scripts and traits, looked up in arrays that are filled on demand."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from fontTools.unicodedata import script, script_name
from numpy.typing import NDArray

NO_SCRIPT = "none"
"""The script of digits, punctuation, symbols, and letters and marks that are used in several scripts."""

_UNKNOWN = 255
"""Marks entries of the lookup table that have not been filled yet."""

_SHARED = {"Zyyy", "Zinh", "Zzzz"}
"""ISO 15924 codes of characters without a script: common, inherited, unknown."""

_INVISIBLE = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xAD, 0x200B, 0x2028, 0x2029, 0x2060, 0xFEFF}
"""Invisible characters: soft hyphens, zero-width spaces, line separators and bidirectional controls.
The joiners and the marks U+200E and U+200F are not included, because several scripts require them.
"""

CP1252_ONLY = "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
"""The characters that Windows-1252 has instead of the control characters of Latin-1."""


class Trait(IntFlag):
    """Properties of characters, and of texts that contain such characters."""

    SPACE = 1
    CONTROL = 2
    REPLACED = 4
    """U+FFFD: the replacement for bytes that could not be decoded."""
    COMPOSED = 8
    """The text may not be in NFC."""
    MARKUP = 16
    LEAD = 32
    """A possible lead byte of a UTF-8 sequence, decoded as Latin-1."""
    CONTINUATION = 64
    """A possible continuation byte, decoded as Latin-1 or Windows-1252. For a text: one that follows a lead byte."""
    SPACES = 128
    """For a text: leading, trailing or repeated white space."""


@dataclass(frozen=True)
class Profile:
    """The lengths and traits of N texts, and the number of letters of each of K scripts."""

    chars_N: NDArray[np.uint32]
    words_N: NDArray[np.uint32]
    traits_N: NDArray[np.uint8]
    letters_NK: NDArray[np.int64]
    counts: dict[int, int]
    """The number of occurrences of each character, by code point."""


class Characters:
    """Computes profiles of texts. Scripts are numbered in order of first occurrence; number 0 is `NO_SCRIPT`."""

    def __init__(self) -> None:
        self.scripts = [NO_SCRIPT]
        self._script = np.full(0x110000, _UNKNOWN, dtype=np.uint8)
        self._traits = np.zeros(0x110000, dtype=np.uint8)

    def profile(self, texts: Sequence[str]) -> Profile:
        """Compute the profile of a batch of texts. They must not contain line feeds, which separate them here."""
        joined = "\n".join([*texts, ""]).encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(joined, dtype=np.uint32)
        counts = np.bincount(codes)
        distinct = np.flatnonzero(counts)
        self._look_up(distinct)
        ends = np.flatnonzero(codes == 10)
        starts = np.concatenate(([0], ends[:-1] + 1))
        chars_N = (ends - starts).astype(np.uint32)
        traits = self._traits[codes]
        space = (traits & np.uint8(Trait.SPACE)).astype(bool)
        # A word starts at each visible character that is first or follows white space.
        word_starts = ~space & np.concatenate(([True], space[:-1]))
        inner_space = space.copy()
        inner_space[ends] = False
        doubled = inner_space & np.concatenate((inner_space[1:], [False]))
        doubled[starts] |= inner_space[starts]
        doubled[np.maximum(ends - 1, starts)] |= inner_space[np.maximum(ends - 1, starts)]
        continuation = (traits & np.uint8(Trait.CONTINUATION)).astype(bool)
        continuation[1:] &= (traits[:-1] & np.uint8(Trait.LEAD)).astype(bool)
        traits = traits & ~np.uint8(Trait.CONTINUATION)
        traits |= doubled * np.uint8(Trait.SPACES) | continuation * np.uint8(Trait.CONTINUATION)
        rows = np.repeat(np.arange(len(texts)), chars_N + 1)
        script_count = len(self.scripts)
        letters = np.bincount(rows * script_count + self._script[codes], minlength=len(texts) * script_count)
        return Profile(
            chars_N,
            np.add.reduceat(word_starts, starts, dtype=np.uint32),
            np.bitwise_or.reduceat(traits, starts),
            letters.reshape(len(texts), script_count),
            {code: count for code, count in zip(distinct.tolist(), counts[distinct].tolist(), strict=True)
             if code != 10},
        )  # fmt: skip

    def script_of(self, character: str) -> str:
        return self.scripts[int(self._script[ord(character)])]

    def _look_up(self, codes: NDArray[np.intp]) -> None:
        """Fill the lookup tables for characters that occur for the first time."""
        for code in codes[self._script[codes] == _UNKNOWN]:
            name = _script_of_letter(chr(code))
            if name not in self.scripts:
                self.scripts.append(name)
            self._script[code] = self.scripts.index(name)
            self._traits[code] = compute_traits(int(code))


def _script_of_letter(character: str) -> str:
    """Return the Unicode name of the script of a letter or mark; `NO_SCRIPT` for all other characters."""
    if unicodedata.category(character)[0] not in "LM" or script(character) in _SHARED:
        return NO_SCRIPT
    return str(script_name(script(character)))


def compute_traits(code: int) -> Trait:
    character = chr(code)
    traits = Trait(0)
    if character.isspace():
        traits |= Trait.SPACE
    if code in _INVISIBLE or (unicodedata.category(character) == "Cc" and character not in "\t\n"):
        traits |= Trait.CONTROL
    if code == 0xFFFD:
        traits |= Trait.REPLACED
    if code >= 0x300:  # below U+0300, all text is in NFC
        traits |= Trait.COMPOSED
    if character in "&<":
        traits |= Trait.MARKUP
    if 0xC2 <= code <= 0xF4:
        traits |= Trait.LEAD
    if 0x80 <= code < 0xC0 or character in CP1252_ONLY:
        traits |= Trait.CONTINUATION
    return traits
