import subprocess
import sys

import pytest

from regard.serving.detection import detect

pytest.importorskip("py3langid", reason="py3langid is missing; install it with: pip install -e '.[test]'")

TEXTS = {
    "en": "The weather is nice today, so we go for a walk.",
    "de": "Das Wetter ist heute schön, also gehen wir spazieren.",
    "fr": "Il fait beau aujourd'hui, alors nous allons nous promener.",
    "zh": "今天天气很好，所以我们去散步。",
    "ru": "Сегодня хорошая погода, поэтому мы идём гулять.",
}


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("languages", [(), tuple(TEXTS)])
def test_the_language_of_a_sentence_is_detected(language: str, languages: tuple[str, ...]) -> None:
    best = detect(TEXTS[language], languages)[0]
    assert best["language"] == language or (language == "zh" and not languages)
    assert best["confidence"] > 95 or not languages


def test_the_result_is_restricted_to_the_languages_that_are_served() -> None:
    found = detect(TEXTS["fr"], ["en", "de", "nb", "tlh", "zh-Hant"])
    assert {detection["language"] for detection in found} == {"en", "de", "nb", "zh-Hant"}
    assert sum(detection["confidence"] for detection in found) == pytest.approx(100, abs=0.2)
    assert [detection["confidence"] for detection in found] == sorted(
        (detection["confidence"] for detection in found), reverse=True
    )
    assert detect("text", ["tlh"]) == []


@pytest.mark.parametrize("text", ["", "\0", "😀", "12345", " ", "\u202e", "a" * 100_000])
def test_any_text_has_a_result(text: str) -> None:
    assert {detection["language"] for detection in detect(text, ["en", "de"])} == {"en", "de"}


def test_a_text_without_letters_may_be_in_any_language() -> None:
    assert [detection["confidence"] for detection in detect("", ["en", "de"])] == [50.0, 50.0]


@pytest.mark.slow
def test_the_package_imports_without_warnings_and_only_if_it_is_used() -> None:
    code = (
        "import sys; from regard.serving.detection import detect; from regard.serving.documents import files\n"
        "assert not {'py3langid', 'sentencex', 'torch', 'numpy'} & set(sys.modules)\n"
        "detect('text', ['en']); files.read_file('a.txt', b'Text.')"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
