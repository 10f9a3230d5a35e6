"""How long do commands take to start? Compares them with `import torch` in the same run.

    python benchmarks/startup.py

Prints the CPU time of each command (the shortest of five runs), and its ratio to that of `import torch`. Help, and
messages about unknown names and damaged models, do not import torch; the tests check that.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import regard

SETTINGS = {"training.steps": 2, "data.train": 100, "data.dev": 10}
TRAIN = f"""
import regard, tempfile
regard.train("dates", {SETTINGS}, out=tempfile.mkdtemp(dir=".") + "/run", quiet=True)
"""

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import torch'": ["-c", "import torch"],
    "regard --help": ["-m", "regard", "--help"],
    "regard train dates model.attention.score=aditive": [
        "-m",
        "regard",
        "train",
        "dates",
        "model.attention.score=aditive",
    ],
    "regard predict DAMAGED text": ["-m", "regard", "predict", "damaged", "3 mai 2009"],
    "regard.train('dates', …), two steps": ["-c", TRAIN],
    "regard predict MODEL text": ["-m", "regard", "predict", "model", "3 mai 2009"],
}


def measure_seconds(arguments: list[str], folder: Path) -> float:
    """Return the shortest CPU time of five runs of Python with these arguments."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=False)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in ("model", "damaged"):
            regard.train("dates", SETTINGS, out=folder / run, quiet=True)
        [weights] = (folder / "damaged").glob("checkpoints/*/model.safetensors")
        weights.write_bytes(weights.read_bytes()[:-1])
        seconds = {command: measure_seconds(arguments, folder) for command, arguments in COMMANDS.items()}
    torch = seconds["python -c 'import torch'"]
    for command, value in seconds.items():
        print(f"{command:50} {value:6.2f} s  {value / torch:5.2f} × import torch")


if __name__ == "__main__":
    main()
