"""Build the documentation site in build/site/html: `make docs`.

The pages are those of docs/, the README and the files for contributors. The landing page and the reference are
generated from the code.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from course_pages import render_lessons
from gallery_page import render_landing, select_live
from reference_pages import render_commands, render_python, render_settings
from regard.explorer.gallery import read_gallery
from regard.inspection.trace.page import render_page

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build" / "site"
PAGES: Final = BUILD / "pages"

ROOT_PAGES: Final = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside of docs/, and their names on the site."""

LINK: Final = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)]*)?(\))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--executions", type=Path, default=ROOT / "build" / "course", help="folder of the executed lessons"
    )
    executions = parser.parse_args().executions
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    shutil.copytree(Path(__file__).parent / "assets", PAGES / "assets")
    for page in (path for path in PAGES.rglob("*.md")):
        page.write_text(move_links(page.read_text("utf-8"), "../" * len(page.relative_to(PAGES).parts)), "utf-8")
    for name, target in ROOT_PAGES.items():
        (PAGES / target).write_text(move_links((ROOT / name).read_text("utf-8"), ""), "utf-8")
    gallery = read_gallery()
    (PAGES / "index.md").write_text(render_landing(gallery), "utf-8")
    (PAGES / "gallery.html").write_text(render_page(gallery), "utf-8")
    (PAGES / "explorer-page.html").write_text(render_page(select_live(gallery)), "utf-8")
    (PAGES / "reference").mkdir()
    for render in (render_commands, render_python, render_settings):
        name = render.__name__.removeprefix("render_")
        (PAGES / "reference" / f"{name}.md").write_text(render(), "utf-8")
    render_lessons(PAGES / "course", executions)
    shutil.copy(Path(__file__).with_name("zensical.toml"), BUILD)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=True)
    print(BUILD / "html" / "index.html")


def move_links(text: str, to_root: str) -> str:
    """Return a page with links to pages of the repository replaced by links to pages of the site.

    Args:
        text: The page, in Markdown.
        to_root: The relative path from the folder of the page to the root of the repository.
    """
    pages = to_root.removesuffix("../")

    def move(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups()
        if to_root and target.startswith(to_root):
            name = target.removeprefix(to_root)
            target = f"{pages}{ROOT_PAGES[name]}" if name in ROOT_PAGES else target
        elif not to_root:
            target = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        return f"{opening}{target}{anchor or ''}{closing}"

    return LINK.sub(move, text)


if __name__ == "__main__":
    main()
