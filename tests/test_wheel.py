"""The wheel works where the source tree is not."""

import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
import torch

from regard.version import __version__
from regard.yaml_reader import load_yaml
from tests_command import HANG

ROOT = Path(__file__).parents[1]
CITATION, RELEASE = "CITATION.cff", ".github/workflows/release.yml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="The test starts programs of a folder bin, which Windows does not have"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files that git tracks."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("This is not a git repository, so the files of the project are not known")
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source]
    subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=HANG)
    [path] = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment with the wheel. Its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    run = [sys.executable, "-m", "venv", folder]
    subprocess.run(list(map(str, run)), check=True, timeout=HANG)
    programs = folder / "bin"
    install = [programs / "python", "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", wheel]
    subprocess.run(list(map(str, install)), capture_output=True, check=True, timeout=HANG)
    [site] = folder.glob("lib/python*/site-packages")
    # An added folder follows the installed wheel on the path, and its .pth files, such as regard's own, are not read.
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))
    return programs


def run(programs: Path, folder: Path, *words: str) -> str:
    """Run `regard …` of the wheel in a folder, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(programs / "regard"), *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_contains_the_pages_the_presets_and_the_gallery(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.removeprefix("src/") for name in tracked.split()} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_version_is_that_of_the_wheel_the_citation_and_the_tag(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == __version__
    citation, release = (load_yaml((ROOT / name).read_text("utf-8"))[0] for name in (CITATION, RELEASE))
    assert citation["version"] == __version__
    [check] = [
        step for step in release["jobs"]["build"]["steps"] if step.get("name", "").startswith("Check that the tag")
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for tag, code in ((f"v{__version__}", 0), (__version__, 1), (f"v{__version__}.1", 1)):
        command, variables = ["bash", "-ec", check["run"]], {**os.environ, "PATH": path, "GITHUB_REF_NAME": tag}
        assert subprocess.run(command, cwd=ROOT, env=variables, check=False, timeout=HANG).returncode == code


def test_the_wheel_writes_manual_pages_and_completion(installed: Path, tmp_path: Path) -> None:
    pages = [Path(line) for line in run(installed, tmp_path, "manual", "--out", "man").splitlines()]
    assert {"regard.1", "regard-train.1", "regard-explore.1"} <= {page.name for page in pages}
    for shell in ("bash", "zsh", "fish"):
        script = run(installed, tmp_path, "completion", shell)
        assert f"_REGARD_COMPLETE={shell}_complete" in script
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=HANG)


def test_the_wheel_trains_predicts_and_draws(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [installed / "python", "-c", "import regard; print(regard.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout).is_relative_to(installed.parent)
    assert "multi30k-gru" in run(installed, tmp_path, "presets")
    small = ("training.steps=4", "training.validate_every=4", "data.train=40", "data.dev=4", "data.test=4")
    run(installed, tmp_path, "train", "dates", *small, "--out", "run")
    run(installed, tmp_path, "look", "run", "3 mai 2009", "-o", "map.png", "-o", "map.html")
    assert (tmp_path / "map.png").is_file()
    assert (tmp_path / "map.html").is_file()


def test_the_wheel_opens_the_explorer(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "regard"), "explore", "--gallery", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            for name in ("", "app.js", "app.css"):
                with urllib.request.urlopen(f"{url}{name}", timeout=HANG) as response:
                    assert response.status == 200
        finally:
            server.terminate()
