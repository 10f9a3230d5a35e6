"""Characters by the million: the script and the traits of each, looked up in arrays that fill as characters are met."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

NO_SCRIPT = "none"
"""Digits, punctuation, signs, and marks that stand on the letters of any script."""

_UNMET = 255

_NAMES = {"CJK": "Han", "KATAKANA-HIRAGANA": "Katakana"}

_NO_NAMES = {"COMBINING", "FEMININE", "MASCULINE", "MATHEMATICAL", "MICRO", "MODIFIER", "SUPERSCRIPT", "VARIATION"}
"""First words of the names of letters that belong to no script, or to several."""

_INVISIBLE = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xAD, 0x200B, 0x2028, 0x2029, 0x2060, 0xFEFF}
"""Characters that nobody sees and a model would learn: soft hyphens, zero-width spaces, line and direction marks.
The joiners and the marks U+200E and U+200F are left out: several scripts are written with them.
"""


WINDOWS = "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
"""What Windows-1252 has where Latin-1 has control characters."""


class Trait(IntFlag):
    """What may have to be looked at in a text that has such a character."""

    SPACE = 1
    CONTROL = 2
    REPLACED = 4
    """U+FFFD: a byte that could not be read, long ago."""
    COMPOSED = 8
    """The text may not be in NFC."""
    MARKUP = 16
    LEAD = 32
    """What the first byte of a longer UTF-8 sequence becomes when it is read as Latin-1 …"""
    FOLLOWS = 64
    """… and what the others become, there or in Windows-1252. Of a text: one after the other."""
    SPACES = 128
    """Of a text: white space at its ends, or twice in a row."""


@dataclass(frozen=True)
class Profile:
    """Of each of N texts: its size, its traits, and how many letters of each script it has."""

    chars_N: NDArray[np.uint32]
    words_N: NDArray[np.uint32]
    traits_N: NDArray[np.uint8]
    letters_NK: NDArray[np.int64]
    counts: dict[int, int]
    """How often each character stands in all of them."""


class Characters:
    """Scripts by number, in the order in which they were met; number 0 is none."""

    def __init__(self) -> None:
        self.scripts = [NO_SCRIPT]
        self._script = np.full(0x110000, _UNMET, dtype=np.uint8)
        self._traits = np.zeros(0x110000, dtype=np.uint8)

    def profile(self, texts: Sequence[str]) -> Profile:
        """All texts at once; none may hold a line feed, which stands between them here."""
        joined = "\n".join([*texts, ""]).encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(joined, dtype=np.uint32)
        counts = np.bincount(codes)
        met = np.flatnonzero(counts)
        self._meet(met)
        ends = np.flatnonzero(codes == 10)
        starts = np.concatenate(([0], ends[:-1] + 1))
        chars_N = (ends - starts).astype(np.uint32)
        traits = self._traits[codes]
        space = (traits & np.uint8(Trait.SPACE)).astype(bool)
        # A word begins where something visible follows a blank or the beginning.
        begins = ~space & np.concatenate(([True], space[:-1]))
        between = space.copy()
        between[ends] = False
        doubled = between & np.concatenate((between[1:], [False]))
        doubled[starts] |= between[starts]
        doubled[np.maximum(ends - 1, starts)] |= between[np.maximum(ends - 1, starts)]
        follows = (traits & np.uint8(Trait.FOLLOWS)).astype(bool)
        follows[1:] &= (traits[:-1] & np.uint8(Trait.LEAD)).astype(bool)
        traits = traits & ~np.uint8(Trait.FOLLOWS)
        traits |= doubled * np.uint8(Trait.SPACES) | follows * np.uint8(Trait.FOLLOWS)
        rows = np.repeat(np.arange(len(texts)), chars_N + 1)
        kinds = len(self.scripts)
        letters = np.bincount(rows * kinds + self._script[codes], minlength=len(texts) * kinds)
        return Profile(
            chars_N,
            np.add.reduceat(begins, starts, dtype=np.uint32),
            np.bitwise_or.reduceat(traits, starts),
            letters.reshape(len(texts), kinds),
            {code: count for code, count in zip(met.tolist(), counts[met].tolist(), strict=True) if code != 10},
        )

    def script_of(self, character: str) -> str:
        return self.scripts[int(self._script[ord(character)])]

    def _meet(self, met: NDArray[np.intp]) -> None:
        for code in met[self._script[met] == _UNMET]:
            name = _script_name(chr(code))
            if name not in self.scripts:
                self.scripts.append(name)
            self._script[code] = self.scripts.index(name)
            self._traits[code] = traits_of(int(code))


def _script_name(character: str) -> str:
    """The script of a letter, as the first word of its name in Unicode tells it."""
    if unicodedata.category(character)[0] not in "LM":
        return NO_SCRIPT
    words = unicodedata.name(character, NO_SCRIPT).split()
    first = words[1] if words[0] in {"FULLWIDTH", "HALFWIDTH"} else words[0]
    if first in _NO_NAMES or first == NO_SCRIPT:
        return NO_SCRIPT
    return _NAMES.get(first, first.capitalize())


def traits_of(code: int) -> Trait:
    character = chr(code)
    traits = Trait(0)
    if character.isspace():
        traits |= Trait.SPACE
    if code in _INVISIBLE or (unicodedata.category(character) == "Cc" and character not in "\t\n"):
        traits |= Trait.CONTROL
    if code == 0xFFFD:
        traits |= Trait.REPLACED
    if code >= 0x300:  # every character before it is as composed as can be, whatever follows
        traits |= Trait.COMPOSED
    if character in "&<":
        traits |= Trait.MARKUP
    if 0xC2 <= code <= 0xF4:
        traits |= Trait.LEAD
    if 0x80 <= code < 0xC0 or character in WINDOWS:
        traits |= Trait.FOLLOWS
    return traits
