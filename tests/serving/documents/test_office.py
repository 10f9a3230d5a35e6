import io
import re
import zipfile
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import DataError
from regard.serving.documents.files import MAX_BYTES, MAX_UNPACKED, FileDocument, read_file
from regard.serving.documents.office import OPEN_DOCUMENT, PRESENTATION, WORD, OfficeDocument
from regard.serving.documents.text import Translation
from regard.serving.documents.xml import MAX_DEPTH
from tests_documents import align, pack, unpack

pytest.importorskip("sentencex", reason="sentencex is missing; install it with: pip install -e '.[test]'")

WORD_XMLNS = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
BOLD = "<w:rPr><w:b/></w:rPr>"


def run(text: str, form: str = "") -> str:
    return f'<w:r>{form}<w:t xml:space="preserve">{text}</w:t></w:r>'


def parse_word(content: str) -> OfficeDocument:
    return OfficeDocument(f"<w:p>{content}</w:p>", "en", 1000, WORD)


def join(document: FileDocument, translations: Mapping[str, str]) -> dict[str, bytes]:
    return unpack(document.join([Translation(translations[sentence]) for sentence in document.sentences]))


@pytest.mark.parametrize(
    ("content", "text", "links", "expected"),
    [
        # Runs of most characters are the text, and others are elements, wherever the words are.
        (
            run("The ") + run("red", BOLD) + run(" house is nice."),
            "La maison rouge est belle.",
            "0-0 1-2 2-1 3-3 4-4",
            run("La maison ") + run("rouge", BOLD) + run(" est belle."),
        ),
        # Adjacent runs of the same format are one, also if a proofing mark separates them.
        (
            '<w:r w:rsidR="1">' + "<w:t>A d</w:t></w:r><w:proofErr/><w:r><w:t>og</w:t></w:r>" + run(" runs", BOLD),
            "Ein Hund läuft",
            "0-0 1-1 2-2",
            run("Ein Hund") + run(" läuft", BOLD),
        ),
        # A link is one element, and keeps the format of its text.
        (
            run("Click ") + '<w:hyperlink r:id="1">' + run("here", BOLD) + "</w:hyperlink>" + run(" now, please"),
            "Bitte jetzt hier klicken",
            "0-3 1-2 2-1 3-0",
            run("Bitte jetzt ") + '<w:hyperlink r:id="1">' + run("hier", BOLD) + "</w:hyperlink>" + run(" klicken"),
        ),
        # The start, the instruction and the end of a field stay in order.
        (
            run("A ")
            + '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>REF x</w:instrText></w:r>'
            + '<w:r><w:fldChar w:fldCharType="separate"/></w:r>'
            + run("red")
            + '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
            + run(" house"),
            "maison rouge",
            "0-0 1-1 2-0",
            run("maison ")
            + '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>REF x</w:instrText></w:r>'
            + '<w:r><w:fldChar w:fldCharType="separate"/></w:r>'
            + run("rouge")
            + '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
        ),
        # A footnote follows its word.
        (
            run("red") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + run(" house"),
            "maison rouge",
            "0-1 1-0",
            run("maison rouge") + '<w:r><w:footnoteReference w:id="2"/></w:r>',
        ),
        # Properties stay at the start. Deleted text and formulas are copied.
        (
            '<w:pPr><w:jc w:val="left"/></w:pPr><w:del>'
            + "<w:r><w:delText>x</w:delText></w:r></w:del>"
            + run("two words")
            + "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>",
            "zwei Wörter",
            "0-0 1-1",
            '<w:pPr><w:jc w:val="left"/></w:pPr><w:del><w:r><w:delText>x</w:delText></w:r></w:del>'
            + run("zwei Wörter")
            + "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>",
        ),
        # Characters that XML cannot contain are removed, and others are escaped.
        (run("a &amp; b"), "a\x00 & <b>\x01", "", run("a &amp; &lt;b&gt;")),
    ],
)
def test_formats_follow_the_aligned_words(content: str, text: str, links: str, expected: str) -> None:
    document = parse_word(content)
    [sentence] = document.sentences
    assert document.join([align(sentence, text, links)]) == f"<w:p>{expected}</w:p>"


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        (run("One.") + "<w:r><w:br/></w:r>" + run("Two"), ("One.", "Two")),
        ("<w:r><w:t>a b</w:t><w:tab/><w:t>c</w:t></w:r>", ("a b", "c")),
        (
            run("a ") + f"<w:r><w:pict><w:p>{run('in the box')}</w:p></w:pict></w:r>" + run("b"),
            ("a", "in the box", "b"),
        ),
        ("<w:sdt><w:sdtPr><w:id/></w:sdtPr><w:sdtContent>" + run("a") + "</w:sdtContent></w:sdt>", ("a",)),
        ('<w:r><w:fldChar w:fldCharType="end"/></w:r>' + run("a"), ("a",)),
        (run("—") + "<w:r/>", ()),
        ("", ()),
    ],
)
def test_the_identity_returns_the_same_paragraph(content: str, sentences: tuple[str, ...]) -> None:
    document = parse_word(content)
    assert document.sentences == sentences
    joined = document.join([Translation(sentence) for sentence in sentences])
    assert joined.replace(' xml:space="preserve"', "") == f"<w:p>{content}</w:p>".replace(' xml:space="preserve"', "")


def test_slides_end_paragraphs_with_properties() -> None:
    source = (
        '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en" dirty="0"/><a:t>the </a:t></a:r>'
        '<a:r><a:rPr lang="en" err="1"/><a:t>dog</a:t></a:r><a:fld><a:t>3</a:t></a:fld><a:endParaRPr/></a:p>'
    )
    document = OfficeDocument(source, "en", 99, PRESENTATION)
    assert document.sentences == ("the dog",)
    assert document.join([Translation("der Hund")]) == (
        '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en"/><a:t>der Hund</a:t></a:r>'
        "<a:fld><a:t>3</a:t></a:fld><a:endParaRPr/></a:p>"
    )


def test_paragraphs_of_open_document_are_text_with_elements() -> None:
    source = (
        "<x><number:text>Copy</number:text><text:p>A <text:span>red</text:span> house<text:s/> "
        "<text:date>now</text:date><text:note><dc:creator>me</dc:creator><text:p>A note</text:p></text:note></text:p>"
        '<table:table-cell office:value-type="float"><text:p>1 EUR</text:p></table:table-cell>'
        '<table:table-cell office:value-type="string"><text:p>cell</text:p></table:table-cell>'
        "<office:annotation><text:p>Copy</text:p></office:annotation></x>"
    )
    document = OfficeDocument(source, "en", 99, OPEN_DOCUMENT)
    assert document.sentences == ("A red house", "A note", "cell")
    assert document.join([Translation(sentence) for sentence in document.sentences]) == source
    first = align("A red house", "Une maison rouge", "0-0 1-2 2-1")
    joined = document.join([first, Translation("Note"), Translation("cell")])
    assert "<text:p>Une maison<text:s/> <text:date>now</text:date><text:span>rouge</text:span> <text:note>" in joined


XHTML = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html><head><title/><script src="x"/></head>
<body><p><a id="x"/>A <i>book</i><img src="y"/>.<br/>B</p><style><![CDATA[a > b]]></style><![CDATA[a > b]]></body>
</html>
"""


@pytest.mark.parametrize(
    ("name", "member", "source", "sentences"),
    [
        ("a.docx", "word/document.xml", f"<w:document {WORD_XMLNS}><w:p>{run('Text')}</w:p></w:document>", ("Text",)),
        ("a.pptx", "ppt/slides/slide12.xml", "<x><p><r><t>Text</t></r></p></x>", ("Text",)),
        ("a.ODT", "content.xml", "<x><p>Text</p><p/></x>", ("Text",)),
        ("a.epub", "OEBPS/a.xhtml", XHTML, ("A book.", "B")),
        ("a.epub", "toc.ncx", "<ncx><navLabel><text>Text</text></navLabel><content src='x'/></ncx>", ("Text",)),
    ],
)
def test_other_members_of_an_archive_are_copied(
    name: str, member: str, source: str, sentences: tuple[str, ...]
) -> None:
    members: dict[str, str | bytes] = {"mimetype": "x", "media/": "", "a.bin": b"\x00\xff", member: "\ufeff" + source}
    file = read_file(name, pack(members))
    document = file.parse("en", 1000)
    assert document.sentences == sentences
    content = document.join([Translation(sentence) for sentence in sentences])
    found = unpack(content)
    assert list(found) == list(members)
    assert {key: value for key, value in found.items() if key != member} == {
        "mimetype": b"x", "media/": b"", "a.bin": b"\x00\xff"
    }  # fmt: skip
    if name != "a.pptx":
        assert found[member].decode() == members[member]
    changed = join(document, {sentence: f"{sentence} ü" for sentence in sentences})[member]
    assert changed.decode().count("ü") == len(sentences)
    ElementTree.fromstring(changed)
    assert file.sample.split()[0] == sentences[0].split()[0]


def test_members_keep_their_compression_and_time() -> None:
    with io.BytesIO() as content:
        with zipfile.ZipFile(content, "w") as archive:
            for name, method in (("mimetype", zipfile.ZIP_STORED), ("content.xml", zipfile.ZIP_DEFLATED)):
                info = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6))
                info.compress_type, info.external_attr = method, 0o640 << 16
                archive.writestr(info, "<p>Text</p>")
        document = read_file("a.odt", content.getvalue()).parse("en", 99)
        with (
            zipfile.ZipFile(io.BytesIO(document.join([Translation("Other")]))) as joined,
            zipfile.ZipFile(content) as old,
        ):
            for after, before in zip(joined.infolist(), old.infolist(), strict=True):
                for attribute in ("filename", "compress_type", "date_time", "external_attr"):
                    assert getattr(after, attribute) == getattr(before, attribute)


def encrypt(content: bytes) -> bytes:
    """Set the flag of the first member, as a program that encrypts does."""
    at = content.index(b"PK\x01\x02") + 8
    return content[:at] + bytes([content[at] | 1]) + content[at + 1 :]


DOCTYPE = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><x><p>&b;</p></x>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged: File is not a zip file"),
        (b"PK\x03\x04 but no archive", "is damaged"),
        (pack({"content.xml": "<p>Text</p>"})[:-30], "is damaged"),
        (pack({"content.xml": "<p>Text</p>" * 9}).replace(b"\x9c", b"\x9d").replace(b"<p", b"<q"), "is damaged|valid"),
        (pack({"content.xml": "<p>Text</p>"}, zipfile.ZIP_STORED).replace(b"Text", b"Next"), "is damaged: Bad CRC"),
        (pack({"content.xml": "<p>Text</p>"}, zipfile.ZIP_BZIP2), "an unknown method"),
        (encrypt(pack({"content.xml": "<p>Text</p>"})), "is encrypted. Save it without a password"),
        (pack({"other.xml": "<p>Text</p>"}), "contains no text at the places of this format"),
        (pack({"content.xml": "<p>Text"}), "content.xml is not valid XML: no element found: line 1, column 7"),
        (pack({"content.xml": "<p>&nbsp;</p>"}), "not valid XML: undefined entity"),
        (pack({"content.xml": "<text:p>a</text:p>"}), "not valid XML: unbound prefix"),
        (pack({"content.xml": DOCTYPE}), "defines entities or elements in its DOCTYPE"),
        (pack({"content.xml": "<p>ü</p>".encode("latin-1")}), "content.xml is not valid XML: not well-formed"),
        (pack({"content.xml": '<?xml version="1.0" encoding="latin-1"?><p>a</p>'}), "has the encoding latin-1"),
        (pack({"content.xml": "<p>Text</p>".encode("utf-16")}), "is not UTF-8"),
        (pack({"content.xml": "<p>" * 201 + "</p>" * 201}), f"nested more than {MAX_DEPTH} levels deep"),
        (pack({"content.xml": "<p>Text</p>", "../x": ""}), r"the name of its member '\.\./x' is not valid"),
        (pack({"content.xml": "<p>Text</p>", "/etc/x": ""}), "the name of its member '/etc/x' is not valid"),
        (pack({"content.xml": "<p>Text</p>", "a\\x": ""}), r"the name of its member 'a\\x' is not valid"),
        (pack({"content.xml": "<p>Text</p>", "b": b"a" * (MAX_UNPACKED + 1)}), "unpacked, has .* The maximum is"),
        (pack({"content.xml": b"a" * (MAX_BYTES + 1)}), r"The text of a\.odt has 10,485,761 bytes"),
    ],
)
def test_an_archive_that_cannot_be_translated_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_file("a.odt", content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_members_of_a_name_is_rejected() -> None:
    with io.BytesIO() as content:
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("content.xml", "<p>a</p>")
            archive.writestr("content.xml", "<p>b</p>")
        with pytest.raises(DataError, match=r"the name of its member 'content\.xml' is not valid"):
            read_file("a.odt", content.getvalue())


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_a_damaged_archive_is_read_or_rejected(data: st.DataObject) -> None:
    content = bytearray(pack({"content.xml": "<x><p>A text</p></x>", "other": b"x" * 50}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    try:
        document = read_file("a.odt", bytes(content)).parse("en", 99)
    except DataError:
        return
    unpack(document.join([Translation(sentence) for sentence in document.sentences]))


@st.composite
def word_content(draw: st.DrawFn, depth: int = 2) -> str:
    """What a paragraph contains: runs, links, fields, objects and text boxes."""
    text = st.text(alphabet="ab &<.", max_size=6).map(lambda each: each.replace("&", "&amp;").replace("<", "&lt;"))
    form = st.sampled_from(["", "", BOLD, "<w:rPr><w:i/></w:rPr>"])
    runs = st.builds(run, text, form)
    objects = st.sampled_from([
        '<w:bookmarkStart w:id="1"/>', "<w:r><w:drawing/></w:r>", "<w:r><w:tab/></w:r>", "<w:proofErr/>", "<!--c-->",
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>', '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
        '<w:pPr><w:jc w:val="left"/></w:pPr>', "\n ", f"<w:r>{BOLD}<w:t>x</w:t><w:br/><w:t>y</w:t></w:r>",
    ])  # fmt: skip
    nested = st.nothing()
    if depth:
        inner = word_content(depth=depth - 1)
        nested = st.one_of(
            inner.map(lambda each: f"<w:hyperlink>{each}</w:hyperlink>"),
            inner.map(lambda each: f"<w:r><w:pict><w:p>{each}</w:p></w:pict></w:r>"),
            inner.map(lambda each: f"<w:sdt><w:sdtPr/><w:sdtContent>{each}</w:sdtContent></w:sdt>"),
            inner.map(lambda each: f"<w:del>{each}</w:del>"),
        )
    return "".join(draw(st.lists(runs | runs | objects | nested, max_size=6)))


@pytest.mark.slow
@given(content=word_content(), data=st.data())
@settings(deadline=None, max_examples=1000)
def test_any_translation_of_a_word_document_has_its_text_in_runs_and_its_objects_once(
    content: str, data: st.DataObject
) -> None:
    document = parse_word(content)
    translations = []
    for sentence in document.sentences:
        text = " ".join(data.draw(st.lists(st.sampled_from(["a", "B", "ü.", "<&"]), max_size=5)))
        count, other = len(sentence.split()), len(text.split())
        pairs = st.tuples(st.integers(0, count - 1), st.integers(0, max(0, other - 1)))
        links = data.draw(st.lists(pairs, max_size=4 if other else 0))
        translations.append(align(sentence, text, " ".join(f"{i}-{j}" for i, j in links)))
    joined = document.join(translations)
    before, after = (
        ElementTree.fromstring(f"<x {WORD_XMLNS}>{each}</x>") for each in (f"<w:p>{content}</w:p>", joined)
    )
    prefix = f"{{{WORD_XMLNS[9:-1]}}}"
    for name in (
        "bookmarkStart",
        "drawing",
        "tab",
        "br",
        "fldChar",
        "pPr",
        "hyperlink",
        "pict",
        "p",
        "sdtContent",
        "del",
    ):
        assert len(list(after.iter(prefix + name))) == len(list(before.iter(prefix + name))), name
    parents = {child: parent for parent in after.iter() for child in parent}
    for element in after.iter():
        if (element.text or "").strip():
            assert element.tag == f"{prefix}t"
        if element.tag == f"{prefix}t":
            assert parents[element].tag == f"{prefix}r"
        if element.tag == f"{prefix}r":
            names = {"p", "hyperlink", "sdtContent", "del"}
            assert parents[element].tag in {prefix + name for name in names}
        assert not (element.tail or "").strip()
    assert not re.search("[\x01-\x04]", joined)
