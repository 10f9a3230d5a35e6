"""The source of the page: its requests have the types of the schemas, and its unit tests pass. The bundle is its build,
and contains everything that the page needs.
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
STATIC = ROOT / "src/regard/inspection/trace/static"

FILES = ("index.html", "app.js", "app.css")

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


@needs_node
def test_the_bundle_is_the_build_of_the_source(tmp_path: Path) -> None:
    run("node", "build.mjs", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (STATIC / name).read_bytes(), f"{name} is outdated; run: make web"


def test_the_page_loads_its_own_files_only() -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,", "app.css", "app.js"]
    assert "<style" not in page
    for name in ("app.js", "app.css"):
        hosts = set(re.findall(r"(?:https?:)//([\w.-]+)", (STATIC / name).read_text("utf-8")))
        assert hosts <= {"www.w3.org"}, f"{name} names other hosts: {hosts}"


def test_versions_are_pinned_without_a_registry() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages
    assert all("integrity" in entry and "resolved" not in entry for entry in packages.values())
    declared = json.loads((WEB / "package.json").read_text("utf-8"))
    for name, version in {**declared["dependencies"], **declared["devDependencies"]}.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
