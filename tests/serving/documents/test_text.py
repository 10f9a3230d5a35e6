import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.serving.documents.text import Document, TextDocument, Translation, find_sentences, parse_text

pytest.importorskip("sentencex", reason="sentencex is missing; install it with: pip install -e '.[test]'")


def translate(document: Document[str], translations: Sequence[str] | None = None) -> str:
    return document.join([Translation(text) for text in translations or document.sentences])


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "Dr. Smith arrived. He sat.", ("Dr. Smith arrived.", "He sat.")),
        ("en", '"Stop!" he said. Then left.', ('"Stop!" he said.', "Then left.")),
        ("de", "Am 3. Mai kam z. B. Dr. Müller. Er blieb.", ("Am 3. Mai kam z. B. Dr. Müller.", "Er blieb.")),
        ("zh", "你好。我是学生！你呢？", ("你好。", "我是学生！", "你呢？")),
        ("ar", "مرحبا. كيف حالك؟ بخير.", ("مرحبا.", "كيف حالك؟", "بخير.")),
        ("xx", "An unknown language. It works.", ("An unknown language.", "It works.")),
        (
            "en",
            "J.\u00a0Smith came.\u2028He sat.\0 😀 \u202eabc",
            ("J.\u00a0Smith came.", "He sat.", "\0 😀 \u202eabc"),
        ),
        ("en", "\ufeffTitle\r\n\r\n  A line\nof text \n* * *\n", ("Title", "A line", "of text")),
        ("en", "", ()),
        ("en", " \n\t-- ... \u00a0", ()),
    ],
)
def test_text_is_split_into_sentences(language: str, text: str, sentences: tuple[str, ...]) -> None:
    document = parse_text(text, language, 1000)
    assert document.sentences == sentences
    assert not document.needs_links
    assert all(text.startswith(part, start) for part, start in zip(sentences, document.starts, strict=True))
    assert translate(document) == text


def test_white_space_and_paragraphs_are_kept() -> None:
    document = parse_text("\n  One.  Two.\r\n\r\n***\n\tThree", "en", 1000)
    assert translate(document, ["Eins.", "Zwei.", "Drei"]) == "\n  Eins.  Zwei.\r\n\r\n***\n\tDrei"


def test_sentences_that_touch_in_chinese_are_separated_in_languages_with_spaces() -> None:
    document = parse_text("你好。再见。", "zh", 1000)
    assert translate(document, ["Hello.", "Bye."]) == "Hello. Bye."
    assert translate(document, ["今日は。", "では。"]) == "今日は。では。"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("one two three, four five six", ("one two three,", "four five six")),
        ("one two three 1,000.50", ("one two three", "1,000.50")),
        ("a" * 40, ("a" * 20, "a" * 20)),
        ("ab" * 9 + "e\u0301" * 4, ("ab" * 9 + "e\u0301", "e\u0301" * 3)),
        ("三个汉字，" * 6, ("三个汉字，" * 4, "三个汉字，" * 2)),
    ],
)
def test_a_long_sentence_is_split_at_the_best_boundary(text: str, sentences: tuple[str, ...]) -> None:
    document = parse_text(text, "en", 20)
    assert document.sentences == sentences
    assert translate(document) == text


PARTS = [
    "a",
    "Dr.",
    ". ",
    "?",
    "。",
    "你",
    "\n",
    "\r\n",
    " ",
    "\u00a0",
    "\u2028",
    "\x85",
    "\0",
    "é",
    "😀",
    "»",
    '"',
    "(",
    "9",
]
TEXTS = st.text() | st.lists(st.sampled_from(PARTS)).map("".join)


@given(TEXTS, st.sampled_from(["en", "zh", "ar", "fr", ""]), st.integers(1, 50))
@settings(max_examples=60)
def test_the_identity_returns_any_text(text: str, language: str, limit: int) -> None:
    document = parse_text(text, language, limit)
    assert translate(document) == text
    assert all(0 < len(sentence) <= limit and sentence == sentence.strip() for sentence in document.sentences)
    assert all(any(map(str.isalnum, sentence)) for sentence in document.sentences)


@pytest.mark.parametrize("unit", ["a. ", "你好。", "“Hello. There. ", "a", "Dr. ", " ", "e\u0301", "a\n", "A, "])
def test_no_part_of_a_text_is_split_more_than_a_few_times(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of sentencex is quadratic, so the characters that it reads must be bounded, and so must each call."""
    import sentencex

    read: list[int] = []
    segment = sentencex.segment

    def count(language: str, text: str) -> list[str]:
        read.append(len(text))
        sentences: list[str] = segment(language, text)
        return sentences

    monkeypatch.setattr(sentencex, "segment", count)
    text = unit * (30_000 // len(unit))
    spans = find_sentences(text, "zh", 100)
    assert sum(read) <= 2 * len(text) + 2000
    assert max(read) <= 2000
    assert len(spans) <= len(text)


def test_the_number_of_long_sentences_is_bounded() -> None:
    rng = random.Random(0)
    text = "".join(rng.choice(["a", "b", ", ", " "]) for _ in range(10_000))
    assert len(TextDocument(text, "en", 100).sentences) <= 2 * len(text) // 50
