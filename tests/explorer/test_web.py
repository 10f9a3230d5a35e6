"""The source of the pages: requests of the explorer have the types of the schemas, and the unit tests pass. The bundles
are the build, and contain everything that the pages need.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests_command import HANG

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
PACKAGE = ROOT / "src/regard"

BUNDLES = {
    "inspection/trace/static": ("index.html", "app.css", "app.js"),
    "serving/static": ("translate.html", "translate.css", "translate.js"),
}

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules").is_dir(),
    reason="Node or web/node_modules is missing; install Node 20 and run: make web",
)


def run(*command: str) -> str:
    """Run a command in the folder of the source, and return its output."""
    finished = subprocess.run(
        command, cwd=WEB, check=False, capture_output=True, text=True, encoding="utf-8", timeout=HANG
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_types_of_requests_are_those_of_the_schemas() -> None:
    written = run(sys.executable, "generate_requests.py")
    assert (WEB / "src/requests.ts").read_text("utf-8") == written, "requests.ts is outdated; run: make web"


@needs_node
def test_the_source_has_no_type_errors() -> None:
    run("node_modules/.bin/tsc", "--noEmit")


@needs_node
def test_the_unit_tests_of_the_page_pass() -> None:
    run("node", "test/run.mjs")


def test_the_page_of_the_explorer_is_small() -> None:
    """232,100 bytes are about 80 kB when compressed; how many exactly depends on the compressor."""
    [(folder, names), _] = BUNDLES.items()
    assert sum((PACKAGE / folder / name).stat().st_size for name in names) <= 232_100


@needs_node
def test_the_bundles_are_the_build_of_the_source(tmp_path: Path) -> None:
    run("node", "build.mjs", str(tmp_path))
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert built == {f"{folder}/{name}" for folder, names in BUNDLES.items() for name in names}
    for name in built:
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes(), f"{name} is outdated; run: make web"


@pytest.mark.parametrize("folder", BUNDLES)
def test_a_page_loads_its_own_files_only(folder: str) -> None:
    document, style, script = BUNDLES[folder]
    page = (PACKAGE / folder / document).read_text("utf-8")
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,", style, script]
    assert "<style" not in page
    for name in (script, style):
        hosts = set(re.findall(r"(?:https?:)//([\w.-]+)", (PACKAGE / folder / name).read_text("utf-8")))
        assert hosts <= {"www.w3.org"}, f"{name} names other hosts: {hosts}"


def test_versions_are_pinned_without_a_registry() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages
    assert all("integrity" in entry and "resolved" not in entry for entry in packages.values())
    declared = json.loads((WEB / "package.json").read_text("utf-8"))
    for name, version in {**declared["dependencies"], **declared["devDependencies"]}.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
