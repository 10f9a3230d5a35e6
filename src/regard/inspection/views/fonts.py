"""Figures of matplotlib: their formats, and fonts that contain the characters of their text."""

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

log = logging.getLogger(__name__)

FORMATS = (".svg", ".png", ".pdf")
"""The extensions of figures."""

DEFAULT = "DejaVu Sans"
"""Distributed with matplotlib."""

_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}


@contextmanager
def drawing_settings(text: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Draw with font families that contain the characters of a text. A character that no installed font contains is
    drawn as a box, with one warning. Text stays text in SVG and PDF, and is not parsed as mathematics.

    Args:
        text: All characters that are drawn.
        settings: Other settings of matplotlib.
    """
    from matplotlib import rc_context

    # Spaces, joiners and direction marks are invisible, so no font needs to have them.
    visible = frozenset(character for character in text if unicodedata.category(character) not in _INVISIBLE)
    with _silent_matplotlib():
        families = _families(visible)
        # Publishers reject the Type 3 fonts that are matplotlib's default in PDF, but fonts with PostScript outlines
        # cannot be embedded as TrueType (42).
        font_type = 42 if all(map(_has_truetype_outlines, families)) else 3
        drawn: dict[Any, Any] = {
            "font.family": list(families),
            "pdf.fonttype": font_type,
            "svg.fonttype": "none",
            "svg.hashsalt": "regard",
            "text.parse_math": False,
            **settings,
        }
        with rc_context(drawn):
            yield


@contextmanager
def _silent_matplotlib() -> Iterator[None]:
    """Suppress matplotlib's own messages about missing characters and about families without a regular weight."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield
    finally:
        logger.setLevel(level)


@cache
def _families(characters: frozenset[str]) -> tuple[str, ...]:
    families, missing = _cover(characters, _known_families(characters))
    if missing and _add_new_fonts():
        families, missing = _cover(characters, _known_families(characters))
    if missing:
        log.warning(
            "No installed font contains %s, so figures may show boxes instead. Install fonts that do, for example: "
            "apt-get install %s",
            " ".join(sorted(missing)),
            " ".join(sorted({_package(character) for character in missing})),
        )
    return families


def _cover(characters: frozenset[str], families: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the first families that together contain the characters, and the characters that none contains."""
    used, missing = [DEFAULT], characters - _supported(DEFAULT, characters)
    for family in families:
        if not missing:
            break
        if supported := _supported(family, missing):
            used.append(family)
            missing -= supported
    return tuple(used), missing


def _supported(family: str, characters: frozenset[str]) -> frozenset[str]:
    """Return the characters that a family contains."""
    from matplotlib import ft2font

    try:
        file = _find_file(family)
        font = ft2font.FT2Font(file.path, face_index=file.face_index)
    except (OSError, RuntimeError, ValueError):  # removed or damaged since it was listed
        return frozenset()
    return frozenset(character for character in characters if font.get_char_index(ord(character)))


def _find_file(family: str) -> Any:
    """Return the path of a family's font, and its index in the file."""
    from matplotlib import font_manager

    # A bare name would be parsed as a fontconfig pattern, in which "-" and ":" have a meaning.
    return font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)


@cache
def _has_truetype_outlines(family: str) -> bool:
    from fontTools.ttLib import TTFont

    file = _find_file(family)
    with TTFont(file.path, fontNumber=file.face_index, lazy=True) as font:
        return "glyf" in font


def _known_families(characters: frozenset[str]) -> list[str]:
    """Return the families that matplotlib knows, sans-serif Noto fonts first: they are designed to be used together.

    The same Chinese characters have different shapes in China, Japan and Korea, so fonts for the region of a text come
    before those for others.
    """
    from matplotlib import font_manager

    names = {font.name for font in font_manager.fontManager.ttflist}
    # Last-resort fonts have a box for every character.
    families = (name for name in names if not name.replace(" ", "").lower().lstrip(".").startswith("lastresort"))
    region = _find_region(characters)
    return sorted(families, key=lambda name: (not name.startswith("Noto Sans"), not name.endswith(region), name))


def _find_region(characters: frozenset[str]) -> str:
    """Return the region of the font for Chinese characters: Japan with kana, Korea with Hangul, otherwise China."""
    names = [unicodedata.name(character, "") for character in characters]
    if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        return " JP"
    return " KR" if any(name.startswith("HANGUL") for name in names) else " SC"


def _add_new_fonts() -> bool:
    """Add fonts that were installed after matplotlib wrote its list of fonts; return whether there were any."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    new = set(font_manager.findSystemFonts()) - {font.fname for font in manager.ttflist}
    for path in sorted(new):
        with suppress(OSError, RuntimeError, ValueError, KeyError):  # a file that is not a scalable font
            manager.addfont(path)
    return bool(new)


def _package(character: str) -> str:
    """Return the Debian package with a font for a character."""
    is_emoji = 0x1F000 <= ord(character) <= 0x1FAFF
    if is_emoji or unicodedata.category(character) == "So":  # matplotlib cannot draw the bitmaps of color fonts
        return "fonts-symbola"
    wide = unicodedata.east_asian_width(character) in {"W", "F"}
    return "fonts-noto-cjk" if wide else "fonts-noto-core"


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Save a figure in the format that the extension of the file selects. An SVG file does not contain the date, so
    that the same figure always results in the same file.
    """
    figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else {}, **options)
