"""How fast does training go? Target tokens a second of presets on their corpora, from files to weights.

    python benchmarks/training.py --data ../shared/data --only multi30k-transformer multi30k-gru
    python benchmarks/training.py --data ../shared/data --only multi30k-gru --against training.cuda_graphs=false

Each preset is trained for some steps by the command that a user gives; what is told is the speed over the last hundred,
when all that is done once has been done. With `--against`, it is trained again with these settings, for the ratio.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quality import QUESTIONS


def speed(name: str, args: argparse.Namespace, settings: list[str]) -> int:
    """Target tokens a second."""
    question = QUESTIONS[name]
    wishes = [
        *question.settings(args.data, question.languages[0]), f"training.steps={args.steps}", "training.log_every=100",
        f"training.validate_every={args.steps}", f"training.save_every={args.steps}", "training.validation_pairs=8",
        "training.average_checkpoints=1", *args.set, *settings,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "regard", "train", question.preset, *wishes, "--out", str(run)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    speeds: list[int] = [event["tokens_per_second"] for event in events if event["event"] == "train"]
    return speeds[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of the corpora")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for every training")
    parser.add_argument("--against", nargs="+", metavar="KEY=VALUE", help="settings to compare with")
    args = parser.parse_args()
    for name in args.only:
        try:
            found = speed(name, args, [])
            line = f"| {name} | {found:,} |"
            if args.against:
                other = speed(name, args, args.against)
                line += f" {other:,} | {found / other:.2f} |"
            print(line, flush=True)
        except subprocess.CalledProcessError as error:
            print(f"| {name} | {error.stderr.strip()[-2000:]} |", flush=True)


if __name__ == "__main__":
    main()
