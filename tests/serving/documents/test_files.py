import pytest

from regard.errors import DataError
from regard.serving.documents.files import FILE_FORMATS, MAX_BYTES, FileDocument, read_file
from regard.serving.documents.text import Translation

pytest.importorskip("sentencex", reason="sentencex is missing; install it with: pip install -e '.[test]'")


def identity(document: FileDocument) -> bytes:
    return document.join([Translation(sentence) for sentence in document.sentences])


SUBTITLES = """1
00:00:01,000 --> 00:00:02,500
I <i>believe
that</i> it is here.

2
00:00:03,000 --> 00:00:04,000 X1:0
- Hi & <b>bye</b>.
- Who are you?

3
00:00:05,000 --> 00:00:06,000
{\\an8}♪

"""


@pytest.mark.parametrize("name", ["a.txt", "b.HTML", "c/d.htm", "e.srt"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_identity_returns_the_same_file(name: str, mark: str, end: str) -> None:
    text = SUBTITLES if name.endswith("srt") else "<p>Ä text.</p>\n\n<p>More.</p>\n"
    content = (mark + text.replace("\n", end)).encode()
    assert identity(read_file(name, content).parse("en", 1000)) == content


def test_subtitles_are_translated_across_lines() -> None:
    document = read_file("x.srt", SUBTITLES.encode()).parse("en", 1000)
    assert document.sentences == ("I believe that it is here.", "- Hi & bye.", "- Who are you?")
    assert document.needs_links
    translations = ["Ich glaube, dass es hier ist.", "- Hallo & tschüs.", "- Wer sind Sie?"]
    lines = document.join([Translation(text) for text in translations]).decode().split("\n")
    assert lines[:4] == ["1", "00:00:01,000 --> 00:00:02,500", "Ich <i>glaube,", "dass</i> es hier ist."]
    assert lines[5:9] == ["2", "00:00:03,000 --> 00:00:04,000 X1:0", "- Hallo & <b>tschüs</b>.", "- Wer sind Sie?"]
    assert lines[10:] == SUBTITLES.split("\n")[10:]


@pytest.mark.parametrize(
    "text", ["", "1", "1\n0 --> 1", "0 --> 1\n\n\n-", "a\nb", "0 --> 1\n日本\n語。\n", "0-->1\n<i>a\n\nb</i>"]
)
def test_damaged_subtitles_are_kept(text: str) -> None:
    assert identity(read_file("x.srt", text.encode()).parse("en", 1000)) == text.encode()


@pytest.mark.parametrize("unit", ["a b\n", "<i", "{\\", "<i>a</i>\n", "- a\n"])
def test_long_subtitles_are_kept(unit: str) -> None:
    """Regular expressions that try each end of each tag would take minutes for more."""
    content = ("0 --> 1\n" + unit * 3_000).encode()
    assert len(identity(read_file("x.srt", content).parse("en", 1000))) == len(content)


def test_html_in_ascii_stays_ascii_unless_it_declares_utf8() -> None:
    translation = [Translation("Größe ☃")]
    assert read_file("x.html", b"<p>Size").parse("en", 99).join(translation) == b"<p>Gr&#246;&#223;e &#9731;"
    content = b'<meta charset="UTF-8"><p>Size'
    assert read_file("x.html", content).parse("en", 99).join(translation) == content[:-4] + "Größe ☃".encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.exe", b"", r"a\.exe: the format '\.exe' is not supported\. Use one of \.docx, .*, \.txt\."),
        ("a", b"", "the format '' is not supported"),
        ("a.txt", b"caf\xe9 x", r"a\.txt is not UTF-8: .* at byte 3 \(0xe9\)\. Save the file in the encoding UTF-8\."),
        ("a.txt", "Hi".encode("utf-16"), "at byte 0"),
        ("a.srt", b"a" * (MAX_BYTES + 1), r"has 10,485,761 bytes\. The maximum is 10,485,760"),
    ],
)
def test_a_file_that_cannot_be_translated_is_rejected(name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_file(name, content)


def test_formats_have_a_mime_type() -> None:
    assert all(extension.startswith(".") and "/" in form.media_type for extension, form in FILE_FORMATS.items())
