"""The documentation site: the reference is complete, links lead somewhere, and the search works from a folder."""

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import regard
from reference_pages import list_sections, list_settings, render_commands, render_python, render_settings
from regard.attention.mechanisms import MECHANISMS
from regard.cli.verbs import VERBS
from regard.inspection.explain.facts import find_facts
from tests_browser import browser, check_accessibility, needs_axe, page

__all__ = ["browser", "page"]

ROOT = Path(__file__).parents[1]
LESSON = "course/lesson_1_fixed_context"
EXPLORER = re.compile(r"^gallery$|^explorer-page$|-trace-\d+$")
"""Pages of the explorer, which are not written by the generator of the site."""


def test_every_setting_has_a_meaning() -> None:
    settings = [(title, *row) for title, schema in list_sections() for row in list_settings(schema)]
    assert len(settings) > 300
    assert [(title, name) for title, name, _, _, meaning in settings if not meaning] == []


def test_every_part_has_its_settings_on_the_page() -> None:
    page = render_settings()
    assert "## model.attention.scope = local_p" in page
    assert re.search(r"^\| `learning_rate` \| number > 0.* \| `0.001` \| peak learning rate", page, re.MULTILINE)
    assert re.search(r"^\| `decay` \| `cosine`, `linear`, `none`", page, re.MULTILINE)


def test_every_public_name_is_described() -> None:
    assert [name for name in regard.__all__ if not inspect.getdoc(getattr(regard, name))] == []
    page = render_python()
    assert [name for name in regard.__all__ if f"\n## {name}\n" not in page] == []
    assert "### Model.predict" in page


def test_every_mechanism_says_when_to_use_it() -> None:
    assert [name for name, mechanism in MECHANISMS.items() if not mechanism.use.endswith(".")] == []


def test_every_command_has_its_options_on_the_page() -> None:
    page = render_commands()
    assert [verb for verb in VERBS if f"\n## regard {verb}\n" not in page] == []
    assert "| `--minutes M` | Deadline of each run" in page


def list_pages() -> dict[str, str]:
    """Return the texts of all pages by name."""
    paths = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "website" / "index.md"]
    written = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    generated = (render_commands, render_python, render_settings)
    return {**written, **{render.__name__: render() for render in generated}}


def test_the_first_sentence_of_every_page_says_who_needs_it() -> None:
    """Under the title is a paragraph, not a heading, a table or code. Its first sentence addresses the reader."""
    missing = []
    for name, text in list_pages().items():
        first = re.split(r"^# .*\n+", text, maxsplit=1, flags=re.MULTILINE)[1].partition("\n\n")[0].replace("\n", " ")
        sentence = re.match(r"\w[^|]*?[.:](?= |$)", first)
        if sentence is None or not re.search(
            r"\b(read this page|you|your|who|everyone)\b", sentence.group(), re.IGNORECASE
        ):
            missing.append((name, first[:80]))
    assert missing == []


class _Page(HTMLParser):
    """The links of a page, and the names that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        values = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := values.get(key))}
        self.links += [link for key in ("href", "src") if (link := values.get(key))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, executions: Path) -> Path:
    """The folder of the site, built from a copy of the files."""
    copy = tmp_path_factory.mktemp("site")
    for name in ("docs", "website"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.md"):
        shutil.copy(path, copy)
    command = [sys.executable, str(copy / "website" / "build_site.py"), "--executions", str(executions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "build" / "site" / "html"


@pytest.mark.slow
def test_no_link_is_broken(site: Path) -> None:
    pages = {
        path.resolve(): _Page(path)
        for path in site.rglob("*.html")
        if path.stem != "404" and not EXPLORER.search(path.stem)
    }
    assert len(pages) > 40
    broken = []
    for path, parsed in pages.items():
        for link in parsed.links:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            found = (path.parent / target).resolve() if target else path
            if not found.exists() or (anchor and found in pages and anchor not in pages[found].anchors):
                broken.append((path.name, link))
    assert broken == []


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|link)[^>]*(?:src|href)=[\"']?(https?://[^\"'\s>]+)", path.read_text("utf-8")
        )
        assert [link for link in loaded if not link.startswith("https://zensical.org")] == [], path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"), [("local-p", "luong-local-p"), ("beam", "Beam search"), ("exit code 5", "Guarantees")]
)
def test_the_search_works_from_a_folder_without_a_network(page: Any, site: Path, words: str, expected: str) -> None:
    page.context.set_offline(True)
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    search = page.get_by_role("dialog", name="Search")
    search.get_by_role("combobox").press_sequentially(words)
    search.get_by_role("option").filter(has_text=expected).first.wait_for()


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("name", ["index", "attention", "reference/settings", "guides/serve-models", "results", LESSON])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(page: Any, site: Path, name: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_selector("article h1")
    check_accessibility(page)


@pytest.mark.slow
def test_the_landing_page_shows_the_gallery(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="The numbers of luong-local-p").click()
    page.locator("equation-view #error").wait_for()
    assert page.get_by_label("Model").input_value() == str(list(MECHANISMS).index("luong-local-p"))


@pytest.mark.slow
def test_the_landing_page_shows_the_explorer(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    explorer = page.frame_locator("iframe.live")
    explorer.get_by_label("Model").select_option("transformer-model")
    explorer.get_by_role("tab", name="Attention").click()
    explorer.locator("attention-view canvas").first.wait_for()


@pytest.mark.slow
def test_the_table_of_mechanisms_is_complete_without_scripts_and_can_be_filtered(page: Any, site: Path) -> None:
    table = (site / "index.html").read_text("utf-8")
    assert [name for name in MECHANISMS if f'<td><a href="#{name}">{name}</a></td>' not in table] == []
    assert [name for name in MECHANISMS if f'<h3 id="{name}">' not in table] == []
    page.goto((site / "index.html").as_uri())
    page.get_by_label("gradient").select_option("exact")
    page.get_by_label("needs past").select_option("yes")
    expected = [name for name, mechanism in MECHANISMS.items() if find_facts(mechanism).needs_past]
    assert page.locator(".mechanisms tbody tr:visible td:first-child").all_inner_texts() == expected
    assert page.locator(".filter output").inner_text() == f"{len(expected)} of {len(MECHANISMS)} mechanisms"
    assert not page.locator("#bahdanau").is_visible()
    assert page.locator("#chorowski").is_visible()
