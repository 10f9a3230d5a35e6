"""Does a run survive being killed? Kills training with SIGKILL at random moments, gives the same command again
each time, damages a checkpoint and the cache on the way, and compares the end with a run that was left alone, bit for
bit.

    python benchmarks/survival.py --kills 10
    python benchmarks/survival.py --kills 10 --recipe sampled
    python benchmarks/survival.py --kills 10 --recipe mean
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from regard.data.cache import sha256
from regard.runs.folder import RunFolder

SETTINGS = [
    "model.encoder.hidden=32",
    "model.decoder.hidden=32",
    "model.dropout=0.2",
    "training.steps=300",
    "training.warmup=20",
    "training.batch_size=32",
    "training.validate_every=75",
    "training.save_every=15",
    "training.log_every=1",
]

FILES = ["pairs", "data.train=train.tsv", "data.dev=dev.tsv"]

RECIPES = {
    "dates": ["dates", "data.train=2000", "data.dev=60"],
    "sampled": [
        *FILES,
        "tokenizer=bpe",
        "tokenizer.vocabulary=120",
        "tokenizer.dropout=0.1",
        "training.batch_tokens=400",
        "training.accumulate=2",
        "training.ema_decay=0.95",
        "training.decay=plateau",
        "training.plateau_patience=1",
        "training.consistency=simcut",
        "training.word_dropout=0.05",
    ],
    "mean": [
        *FILES,
        "tokenizer=unigram",
        "tokenizer.vocabulary=120",
        "tokenizer.alpha=0.2",
        "training.average_checkpoints=4",
    ],
}
"""What is trained on, and how; on files, the segmentation is drawn anew in each epoch."""


def write_corpus(place: Path) -> None:
    """Made-up words, a third of them inflected, and what they become in reverse."""
    rng = random.Random(0)
    stems = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(2)) for _ in range(60)]
    for name, count in (("train.tsv", 3_000), ("dev.tsv", 60)):
        words = [
            [rng.choice(stems) + rng.choice(["", "", "ing", "ed", "s"]) for _ in range(rng.randint(2, 6))]
            for _ in range(count)
        ]
        (place / name).write_text("".join(f"{' '.join(own)}\t{' '.join(own[::-1])}\n" for own in words))


class Trainer:
    """Trains by one command, given again and again, in a place with a cache of its own."""

    def __init__(self, place: Path, recipe: str) -> None:
        self.place = place
        self.cache = place / "cache"
        self.options = {"cwd": place, "text": True, "env": {**os.environ, "REGARD_CACHE": str(self.cache)}}
        self._settings = [RECIPES[recipe][0], *SETTINGS, *RECIPES[recipe][1:]]

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "regard", "train", *self._settings, "--out", str(out)]

    def train(self, out: Path) -> None:
        """Train to the end."""
        done = subprocess.run(self.command(out), capture_output=True, check=False, **self.options)
        if done.returncode != 0:
            sys.exit(f"training ended with {done.returncode}: {done.stderr}")


def train_and_kill(trainer: Trainer, out: Path, rng: random.Random) -> int | None:
    """Train, and kill it: mostly within moments of some step, sometimes while it is still setting up.

    The last step it spoke of, or None if it was done before the blow fell.
    """
    command = trainer.command(out)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, **trainer.options)
    assert process.stderr is not None
    step, steps_to_go = 0, rng.randint(0, 40)
    if rng.random() < 0.2:
        timer = threading.Timer(rng.uniform(0.1, 4.0), process.kill)
        timer.start()
    else:
        timer = threading.Timer(rng.uniform(0.0, 0.2), process.kill)
    for line in process.stderr:
        if line.startswith("step "):
            step = int(line.split()[1].split("/")[0].replace(",", ""))
            steps_to_go -= 1
        if line.startswith(("Training", "step ")) and steps_to_go <= 0 and timer.ident is None:
            timer.start()
    code = process.wait()
    timer.cancel()
    if code == -signal.SIGKILL:
        return step
    if code != 0:
        sys.exit(f"training ended with {code} before it was killed")
    return None


def damage(folder: RunFolder, rng: random.Random) -> int | None:
    """Flip one bit in the newest checkpoint, if there are two."""
    checkpoints = folder.all_checkpoints()
    if len(checkpoints) < 2:
        return None
    path = checkpoints[0].path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return checkpoints[0].step


def damage_cache(cache: Path, rng: random.Random) -> str | None:
    """Flip a bit in one of its files, or remove it all; what was done."""
    files = sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_size)
    chosen = rng.choice([None, None, "bit", "all"])
    if not files or chosen is None:
        return None
    if chosen == "all":
        shutil.rmtree(cache)
        return "the cache removed"
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"one bit flipped in {path.name} of the cache"


def fingerprint(folder: RunFolder) -> dict[str, object]:
    """The end of a run: every byte of its checkpoints, and its events without the clock."""
    files = {
        str(path.relative_to(folder.path)): sha256(path)
        for path in sorted(folder.checkpoints.rglob("*"))
        if path.is_file() and "damaged" not in str(path)
    }
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    timed = {"time", "tokens_per_second"}
    return {**files, "events": [{k: v for k, v in event.items() if k not in timed} for event in events]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--recipe", choices=RECIPES, default="dates")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    rng, meddler = random.Random(given.seed), random.Random(given.seed + 1)
    print(f"seed {given.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="regard-survival-"))
    try:
        write_corpus(place)
        trainer = Trainer(place, given.recipe)
        trainer.train(place / "undisturbed")
        folder = RunFolder(place / "killed")
        damaged = False
        for kill in range(given.kills):
            step = train_and_kill(trainer, folder.path, rng)
            if step is None:
                sys.exit(f"the run was done after {kill} kills; make it longer")
            print(f"kill {kill + 1}: at step {step}", flush=True)
            if (done := damage_cache(trainer.cache, meddler)) is not None:
                print(done, flush=True)
            if not damaged and kill >= given.kills // 2 and (spoilt := damage(folder, rng)) is not None:
                damaged = True
                print(f"one bit flipped in the checkpoint of step {spoilt}", flush=True)
                told = subprocess.run(
                    [sys.executable, "-m", "regard", "predict", str(folder.path), "x"], capture_output=True, text=True
                ).stderr
                if f"step-{spoilt}/model.safetensors is damaged" not in told:
                    sys.exit(f"the damage was not noticed: {told}")
        trainer.train(folder.path)
        if damaged and not list(folder.checkpoints.glob("damaged-*")):
            sys.exit("the damaged checkpoint was not set aside")
        if fingerprint(folder) != fingerprint(RunFolder(place / "undisturbed")):
            sys.exit("the killed run ended otherwise than the undisturbed one")
        print(f"{given.kills} kills, {'one damaged checkpoint' if damaged else 'no checkpoint to damage'}: ", end="")
        print("weights, optimizer, state and events are the same to the bit")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
