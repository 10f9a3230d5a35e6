"""How fast is training? Target tokens per second of presets on their corpora, from files to weights.

    python benchmarks/training.py --data corpora --only multi30k-transformer multi30k-gru
    python benchmarks/training.py --data corpora --only multi30k-gru --against training.cuda_graphs=false

Each preset is trained with `regard train`. Prints the speed over the last hundred steps, when compilation and warm-up
are finished. With `--against`, the preset is trained again with these settings, and the ratio is printed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quality import TASKS


def measure_speed(name: str, args: argparse.Namespace, settings: list[str]) -> int:
    """Train a preset, and return its target tokens per second."""
    task = TASKS[name]
    overrides = [
        *task.settings(args.data, task.languages[0]), f"training.steps={args.steps}", "training.log_every=100",
        f"training.validate_every={args.steps}", f"training.save_every={args.steps}", "training.validation_pairs=8",
        "training.average_checkpoints=1", *args.set, *settings,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "regard", "train", task.preset, *overrides, "--out", str(run)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    speeds: list[int] = [event["tokens_per_second"] for event in events if event["event"] == "train"]
    return speeds[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the corpora")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    parser.add_argument("--against", nargs="+", metavar="KEY=VALUE", help="settings to compare with")
    args = parser.parse_args()
    for name in args.only:
        try:
            speed = measure_speed(name, args, [])
            line = f"| {name} | {speed:,} |"
            if args.against:
                baseline = measure_speed(name, args, args.against)
                line += f" {baseline:,} | {speed / baseline:.2f} |"
            print(line, flush=True)
        except subprocess.CalledProcessError as error:
            print(f"| {name} | {error.stderr.strip()[-2000:]} |", flush=True)


if __name__ == "__main__":
    main()
