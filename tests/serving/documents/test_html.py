import html
import random
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tokens.tokenizers import find_words
from regard.serving.documents.html import parse_html
from regard.serving.documents.markup import MarkupDocument
from regard.serving.documents.text import Translation
from tests_documents import align

pytest.importorskip("sentencex", reason="sentencex is missing; install it with: pip install -e '.[test]'")


def identity(document: MarkupDocument) -> str:
    return document.join([Translation(sentence) for sentence in document.sentences])


@pytest.mark.parametrize(
    ("markup", "text", "links", "expected"),
    [
        (
            "The <a href='x'>red house</a> is <b>nice</b>.",
            "La maison rouge est belle.",
            "0-0 1-2 2-1 3-3 4-4",
            "La <a href='x'>maison rouge</a> est <b>belle</b>.",
        ),
        # The order changes, and the elements with it.
        ("<b>red</b> <i>house</i>", "maison rouge", "0-1 1-0", "<i>maison</i> <b>rouge</b>"),
        (
            "<b>the <i>red</i> house</b> is",
            "est la maison rouge",
            "0-1 1-3 2-2 3-0",
            "est <b>la maison <i>rouge</i></b>",
        ),
        # The longest sequence of aligned words.
        (
            "Switch <b>it off now</b>, please",
            "Bitte schalte es jetzt aus",
            "0-1 1-2 2-4 3-3 4-0",
            "Bitte schalte <b>es jetzt aus</b>",
        ),
        ("<b>give up</b> hope", "gib jede Hoffnung auf", "0-0 1-3 2-1 2-2", "<b>gib</b> jede Hoffnung auf"),
        # A word that is not aligned.
        ("Click <a>here</a> now", "Klicke jetzt", "0-0 2-1", "Klicke <a>jetzt</a>"),
        ("<i>New</i> <b>York</b>", "Neuyork", "0-0 1-0", "<i>Neuyork</i><b></b>"),
        # Tags without text.
        (
            "A <img src=1> house <!--c-->here<wbr>",
            "Hier ein Haus",
            "0-1 1-2 2-0",
            "Hier<wbr> ein <img src=1> Haus <!--c-->",
        ),
        ("Run <code>rm <b>x</b></code> now", "Jetzt starten", "0-1 1-0", "Jetzt starten <code>rm <b>x</b></code>"),
        # Punctuation.
        ("See “<a>this</a>”.", "Siehe «dies».", "0-0 1-1", "Siehe «<a>dies</a>»."),
        # Tags inside words.
        (
            "the un<b>belie</b>vable X<sub>2</sub>",
            "das unglaubliche X2",
            "0-0 1-1 2-2",
            "das <b>unglaubliche</b> X<sub>2</sub>",
        ),
        # No alignment: in proportion.
        ("<b>one two</b> three four", "eins zwei drei vier", "", "<b>eins zwei</b> drei vier"),
    ],
)
def test_tags_are_put_where_the_aligned_words_are(markup: str, text: str, links: str, expected: str) -> None:
    document = parse_html(f"<p>{markup}</p>", "en", 1000)
    (sentence,) = document.sentences
    assert document.needs_links
    assert document.join([align(sentence, text, links)]) == f"<p>{expected}</p>"


def test_an_element_of_several_sentences_contains_their_translations() -> None:
    document = parse_html("<b>One. Two.</b> <i>Three.</i>", "en", 1000)
    assert document.sentences == ("One.", "Two.", "Three.")
    assert not document.needs_links
    assert (
        document.join(list(map(Translation, ("Un <1>.", "Deux.", "Trois."))))
        == "<b>Un &lt;1&gt;. Deux.</b> <i>Trois.</i>"
    )


@pytest.mark.parametrize(
    ("markup", "sentences"),
    [
        ("<h1>Title</h1><ul><li>One<li>Two &amp; <b>three</b></ul>", ("Title", "One", "Two & three")),
        ("one<br>two<p>three<div>four", ("one", "two", "three", "four")),
        ("<title>A page</title><script>var x = '<p>no'</script><style>p {}</style>", ("A page",)),
        ("<pre>no</pre><textarea>no</textarea><svg><text>no</text></svg>yes", ("yes",)),
        ('<p translate="no">no <p>no</p></p><p>yes</p>', ("yes",)),
        ("<div class='x notranslate y'><div>no</div>no</div><p CLASS=translate>yes</p>", ("yes",)),
        ("Use <span translate=no>Regard</span> daily.", ("Use daily.",)),
        ("<!-- no --><!DOCTYPE html><?no?></ no><a title='>no'>yes</a>", ("yes",)),
        ("<a><div>one</div></a><b>two</p>three</b>", ("one", "two", "three")),
        ("&nbsp;\n&mdash;\n<b>&hellip;</b>", ()),
        ("caf&eacute; &#9731; &#x41;", ("café ☃ A",)),
        ("<SCRIPT>no</Script >yes", ("yes",)),
        ("yes<script>no", ("yes",)),
        ("yes<!-- no", ("yes",)),
        ('yes<a title="no>no', ("yes",)),
        ("</<a title='no>yes<br title='>'>", ("yes",)),
    ],
)
def test_only_visible_text_is_translated(markup: str, sentences: tuple[str, ...]) -> None:
    document = parse_html(markup, "en", 1000)
    assert document.sentences == sentences
    assert read(identity(document)) == read(markup)
    upper = document.join([Translation(sentence.upper()) for sentence in sentences])
    assert re.findall(r"<[^>]*>|no", upper) == re.findall(r"<[^>]*>|no", markup)


@pytest.mark.parametrize(
    "markup",
    [
        "\n<p  class = 'a'>\n\tText <B>with</B>\ttags.  </P >\n\n<hr/>&nbsp;&copy;\n",
        "<p>foo<b> bar </b>baz<i></i> x<u> </u>y",
        "<p>a <img> b <!-- x -->. — <i>“c</i>”!",
    ],
)
def test_markup_outside_of_translated_text_is_kept(markup: str) -> None:
    assert identity(parse_html(markup, "en", 1000)) == markup.replace("</B>\ttags", "</B> tags")


def test_text_is_normalized() -> None:
    markup = "<p>a\n  b &lt; c &quot;&eacute;&quot; < d</p>"
    assert identity(parse_html(markup, "en", 1000)) == '<p>a b &lt; c "é" &lt; d</p>'


def test_what_a_model_writes_is_text() -> None:
    document = parse_html("<p>Hello</p>", "en", 1000)
    assert document.join([Translation("<script>alert('&lt;')</script>")]) == (
        "<p>&lt;script&gt;alert('&amp;lt;')&lt;/script&gt;</p>"
    )


@pytest.mark.parametrize(
    "markup",
    ["<![x", "&#" + "9" * 5000 + ";", "<", "</", "<!", "<a =", "<a ='", "</>x", "<b/>" * 99, "<a x='<b y='z'>a'>"],
)
def test_malformed_markup_is_kept(markup: str) -> None:
    document = parse_html(markup, "en", 1000)
    assert read(identity(document))[0] == read(markup)[0]


def read(markup: str) -> tuple[list[str], str]:
    """The tags of HTML, and its text without white space, as a simple reader sees them."""
    markup = re.sub(r"&#\d{5000};", "", markup)
    pattern = r"<(?:!--.*?--|(?:[!?]|/(?![a-zA-Z]))[^>]*|/?[a-zA-Z](?>=\s*(?:\"[^\"]*\"|'[^']*')|[^>])*)>"
    return re.findall(pattern, markup), "".join(html.unescape(re.sub(pattern, "", markup)).split())


INLINE = ["b", "i", "a href='>'", "span class=x"]
TEXT = st.sampled_from(
    ["Hello", "world.", " ", "\n", "é", "你好。", "&amp;", "&lt;b&gt;", "&nbsp;", "1", "<", "x\t y", "—"]
)
LEAF = TEXT | st.sampled_from(
    ["<br>", "<img alt='x'>", "<!-- c -->", "<code>x <b>y</b></code>", "<i translate='no'>z</i>"]
)


def enclose(name: str, content: list[str]) -> str:
    return f"<{name}>{''.join(content)}</{name.split(maxsplit=1)[0]}>"


WELL_FORMED = st.recursive(
    LEAF,
    lambda inner: st.builds(enclose, st.sampled_from([*INLINE, "p", "div"]), st.lists(inner, max_size=6)),
    max_leaves=12,
).map(lambda part: part.replace("<<", "< <"))
TAG_SOUP = st.lists(
    LEAF
    | st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "</", "<!--", "-->", "<a x='", "<script>", "'>"])
).map("".join)


def check_balance(markup: str) -> None:
    opened: list[str] = []
    for tag in read(markup)[0]:
        match = re.match(r"<(/?)([a-zA-Z]\w*)", tag)
        if match is None:  # a comment
            continue
        slash, name = match.groups()
        if slash:
            assert opened.pop() == name, markup
        elif name not in {"br", "img"}:
            opened.append(name)
    assert not opened, markup


@given(WELL_FORMED | TAG_SOUP | st.text("<>!/-abp='\"& ;#[]?\n."))
@settings(max_examples=100)
def test_the_identity_keeps_tags_and_text(markup: str) -> None:
    from regard.serving.documents.html import _read_tokens

    def tokens(text: str) -> tuple[list[str], str]:
        parts = list(_read_tokens(text))
        texts = "".join(html.unescape(part.raw) for part in parts if part.kind == "text")
        return [part.raw for part in parts if part.kind != "text"], "".join(texts.split())

    document = parse_html(markup, "en", 30)
    assert tokens(identity(document)) == tokens(markup)
    assert "".join(part.raw for part in _read_tokens(markup)) == markup


@given(WELL_FORMED | TAG_SOUP, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_tags_occur_once_and_stay_balanced_under_any_alignment(markup: str, rng: random.Random) -> None:
    document = parse_html(markup, "en", 30)
    translations = []
    for sentence in document.sentences:
        source = find_words(sentence)
        words = [rng.choice([sentence[slice(*rng.choice(source))], "x", "<y>.", "。"]) for _ in range(rng.randrange(6))]
        text = " ".join(words)
        links = [(rng.choice(source), rng.choice(find_words(text))) for _ in range(rng.randrange(8)) if words]
        translations.append(Translation(text, tuple(links)))
    result = document.join(translations)
    assert sorted(read(result)[0]) == sorted(read(markup)[0])
    try:
        check_balance(markup)
    except (AssertionError, IndexError):
        return
    check_balance(result)


@given(st.permutations(range(6)))
@settings(max_examples=50)
def test_each_element_follows_its_word_in_any_order(order: list[int]) -> None:
    words = ["null", "one", "two", "three", "four", "five"]
    document = parse_html(" ".join(f"<b id={word}>{word}</b>" for word in words), "en", 1000)
    text = " ".join(words[index].upper() for index in order)
    links = " ".join(f"{source}-{target}" for target, source in enumerate(order))
    expected = " ".join(f"<b id={words[index]}>{words[index].upper()}</b>" for index in order)
    assert document.join([align(document.sentences[0], text, links)]) == expected


def count_calls(markup: str) -> int:
    """The number of calls of Python functions, and of functions in C, that parsing and joining take."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        identity(parse_html(markup, "en", 1000))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "unit",
    ["<b>", "<b>x</b>", "<a ", "<!--", '<a b="', "<", "</b>", "<b><i>x</b>", "a <img>", "<p>x.", "<code>", "&#9;"],
)
def test_the_work_is_linear_in_the_length_of_the_markup(unit: str) -> None:
    short = count_calls(unit * 200)
    assert count_calls(unit * 800) <= 6 * short + 1000
