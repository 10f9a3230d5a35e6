"""The source of the page: its requests have the types of the schemas, and its unit tests pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests_command import HANG

WEB = Path(__file__).parents[2] / "web"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules").is_dir(),
    reason="Node or web/node_modules is missing; install Node 20 and run: make web",
)


def test_the_types_of_requests_are_those_of_the_schemas() -> None:
    command = [sys.executable, str(WEB / "generate_requests.py")]
    written = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", timeout=HANG).stdout
    assert (WEB / "src/requests.ts").read_text("utf-8") == written, "requests.ts is outdated; run: make web"


@needs_node
@pytest.mark.parametrize("command", [("node_modules/.bin/tsc", "--noEmit"), ("node", "test/run.mjs")])
def test_the_types_are_correct_and_the_unit_tests_pass(command: tuple[str, str]) -> None:
    finished = subprocess.run(
        command, cwd=WEB, check=False, capture_output=True, text=True, encoding="utf-8", timeout=HANG
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
