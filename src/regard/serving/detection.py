"""The language of a text.

py3langid ships its model in the package. Restricted to the languages that are served, its probabilities are
calibrated for texts of five words and more. For shorter texts, the result is right more often than its confidence
suggests. A text in a language that is not served gets the confidence of the most similar language that is.
"""

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, TypedDict

from regard.errors import ConfigError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_MAX_CHARACTERS = 4000
"""More text costs time, and does not change the result."""

_SAME = {"nb": "no", "pb": "pt", "iw": "he", "in": "id", "zt": "zh", "fil": "tl"}
"""Language codes, and those that py3langid uses for the same languages."""


class Detection(TypedDict):
    language: str
    confidence: float
    """In percent."""


def detect(text: str, languages: Collection[str] = ()) -> list[Detection]:
    """Return the languages that a text may be written in, the most probable one first.

    Args:
        text: A text. Without letters that are known, all languages are equally probable.
        languages: Codes of languages, to which the result is restricted, such as `en` or `pt-BR`. Codes that are not
            known are ignored. By default, all languages that are known.
    """
    scores = dict(_load().rank(text[:_MAX_CHARACTERS]))
    found = {code: scores[known] for code in languages or scores if (known := _find_known(code, scores)) is not None}
    total = sum(found.values()) or 1.0
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [{"language": code, "confidence": round(100 * score / total, 1)} for code, score in ranked]


def _find_known(code: str, known: Collection[str]) -> str | None:
    language = code.replace("_", "-").partition("-")[0].lower()
    return next((name for name in (code, language, _SAME.get(language)) if name in known), None)


@cache
def _load() -> "LanguageIdentifier":
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise ConfigError("Detecting a language needs py3langid: pip install 'regard[serve]'") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
