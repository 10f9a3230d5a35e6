"""Does a run survive being killed? Kills training with SIGKILL at random times, repeats the same command each time,
damages a checkpoint and the cache in between, and compares the result bit by bit with an uninterrupted run. With
several ranks, a random one is killed, and all others must end with its number.

    python benchmarks/survival.py --kills 10
    python benchmarks/survival.py --kills 20 --ranks 2
    python benchmarks/survival.py --kills 10 --recipe sampled
    python benchmarks/survival.py --kills 10 --recipe averaged
    python benchmarks/survival.py --kills 3 --recipe scenes    # images; on a CPU, this takes long
    python benchmarks/survival.py --kills 3 --recipe captcha --captcha corpora/captcha
    python benchmarks/survival.py --kills 200   # half an hour
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from regard.data.cache import sha256
from regard.errors import ConfigError, RankError
from regard.runs.folder import RunFolder

SETTINGS = [
    "model.dropout=0.2",
    "training.warmup=20",
    "training.batch_size=32",
    "training.validate_every=75",
    "training.save_every=15",
    "training.log_every=1",
]

NARROW = ["model.encoder.hidden=32", "model.decoder.hidden=32"]
FILES = ["pairs", "data.train=train.tsv", "data.dev=dev.tsv", *NARROW]

RECIPES = {
    "dates": ["dates", "data.train=2000", "data.dev=60", *NARROW],
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
    "averaged": [
        *FILES,
        "tokenizer=unigram",
        "tokenizer.vocabulary=120",
        "tokenizer.alpha=0.2",
        "training.average_checkpoints=4",
    ],
    "scenes": ["scenes", "data.train=500", "data.dev=20", "data.augmentation={flip: 0.5, crop: 0.7}"],
    "captcha": ["captcha"],
}
"""Data and settings by name. Runs on files sample the segmentation in each epoch; runs on images augment the images."""


def write_corpus(folder: Path) -> None:
    """Write sentences of synthetic, partly inflected words. Targets have the words in reverse order."""
    rng = random.Random(0)
    stems = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(2)) for _ in range(60)]
    for name, count in (("train.tsv", 3_000), ("dev.tsv", 60)):
        sentences = [
            [rng.choice(stems) + rng.choice(["", "", "ing", "ed", "s"]) for _ in range(rng.randint(2, 6))]
            for _ in range(count)
        ]
        (folder / name).write_text("".join(f"{' '.join(line)}\t{' '.join(line[::-1])}\n" for line in sentences))


class Trainer:
    """Runs one training command repeatedly, in a folder with its own cache."""

    def __init__(self, folder: Path, recipe: str, steps: int, captcha: Path | None, ranks: int) -> None:
        self.cache, self.ranks = folder / "cache", ranks
        self._folder = folder
        images = [f"data.folder={captcha.resolve()}"] if captcha else []
        self._settings = [RECIPES[recipe][0], *SETTINGS, f"training.steps={steps}", *RECIPES[recipe][1:], *images]

    def start(self, out: Path) -> list[subprocess.Popen[str]]:
        """Start the training command in all ranks. The messages of rank 0 are piped, those of the others stored."""
        command = [sys.executable, "-m", "regard", "train", *self._settings, "--out", str(out)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        processes = []
        for rank in range(self.ranks):
            env = {**os.environ, "REGARD_CACHE": str(self.cache)}
            if self.ranks > 1:
                env |= address | {"RANK": str(rank), "WORLD_SIZE": str(self.ranks), "REGARD_RANK_TIMEOUT": TIMEOUT}
            with open(self._folder / f"messages-{rank}", "w", encoding="utf-8") as messages:
                stderr = messages if rank else subprocess.PIPE
                processes.append(
                    subprocess.Popen(
                        command, cwd=self._folder, env=env, stdout=subprocess.DEVNULL, stderr=stderr, text=True
                    )
                )
        return processes

    def train(self, out: Path) -> None:
        """Train to the end."""
        processes = self.start(out)
        assert processes[0].stderr is not None
        messages = processes[0].stderr.read()
        if any(process.wait() for process in processes):
            codes = [process.returncode for process in processes]
            sys.exit(f"training failed with the exit codes {codes}: {messages}")

    def check_survivors(self, processes: list[subprocess.Popen[str]], killed: int, messages: str) -> None:
        """Exit unless all ranks but the killed one have ended with its number."""
        for rank, process in enumerate(processes):
            if rank == killed:
                continue
            text = messages if rank == 0 else (self._folder / f"messages-{rank}").read_text()
            if process.returncode not in {ConfigError.exit_code, RankError.exit_code} or f"ank {killed} " not in text:
                sys.exit(f"rank {rank} ended with exit code {process.returncode}: {text}")


TIMEOUT = "30"
"""The seconds after which a rank that does not respond is lost."""


class Kill(NamedTuple):
    rank: int
    step: int
    """The last step that was logged."""


def train_and_kill(trainer: Trainer, out: Path, rng: random.Random) -> Kill | None:
    """Train, and kill a rank: mostly shortly after a random step, sometimes during setup. Return None if training
    finished before the kill.
    """
    processes, rank = trainer.start(out), rng.randrange(trainer.ranks)
    first, victim = processes[0], processes[rank]
    assert first.stderr is not None
    step, remaining_steps, messages = 0, rng.randint(0, 40), ""
    if rng.random() < 0.2:
        timer = threading.Timer(rng.uniform(0.1, 4.0), victim.kill)
        timer.start()
    else:
        timer = threading.Timer(rng.uniform(0.0, 0.2), victim.kill)
    for line in first.stderr:
        messages += line
        if line.startswith("step "):
            step = int(line.split()[1].split("/")[0].replace(",", ""))
            remaining_steps -= 1
        if line.startswith(("Training", "step ")) and remaining_steps <= 0 and timer.ident is None:
            timer.start()
    codes = [process.wait() for process in processes]
    timer.cancel()
    if codes[rank] == -signal.SIGKILL:
        trainer.check_survivors(processes, rank, messages)
        return Kill(rank, step)
    if any(codes):
        sys.exit(f"training failed with the exit codes {codes} before it was killed: {messages}")
    return None


def damage_checkpoint(folder: RunFolder, rng: random.Random) -> int | None:
    """Flip one bit in the newest checkpoint, if there are at least two; return its step."""
    checkpoints = folder.all_checkpoints()
    if len(checkpoints) < 2:
        return None
    path = checkpoints[0].path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return checkpoints[0].step


def damage_cache(cache: Path, rng: random.Random) -> str | None:
    """Flip a bit in a file of the cache, or remove the cache, or do nothing; return what was done."""
    files = sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_size)
    action = rng.choice([None, None, "flip", "remove"])
    if not files or action is None:
        return None
    if action == "remove":
        shutil.rmtree(cache)
        return "removed the cache"
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"flipped one bit in {path.name} of the cache"


def fingerprint(folder: RunFolder) -> dict[str, object]:
    """Return hashes of all checkpoint files of a run, and its events without times."""
    files = {
        str(path.relative_to(folder.path)): sha256(path)
        for path in sorted(folder.checkpoints.rglob("*"))
        if path.is_file() and "damaged" not in str(path)
    }
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    ignored = {"time", "tokens_per_second"}
    return {**files, "events": [{k: v for k, v in event.items() if k not in ignored} for event in events]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, help="steps of the run; by default 30 for each kill, and at least 300")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--recipe", choices=RECIPES, default="dates")
    parser.add_argument("--captcha", type=Path, help="folder of the recipe captcha")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    if (args.recipe == "captcha") != (args.captcha is not None):
        parser.error("--recipe captcha needs the folder of the corpus: --captcha FOLDER")
    steps = args.steps or max(300, 30 * args.kills)
    rng, cache_rng = random.Random(args.seed), random.Random(args.seed + 1)
    print(f"seed {args.seed}", flush=True)
    workspace = Path(tempfile.mkdtemp(prefix="regard-survival-"))
    try:
        write_corpus(workspace)
        trainer = Trainer(workspace, args.recipe, steps, args.captcha, args.ranks)
        trainer.train(workspace / "uninterrupted")
        folder = RunFolder(workspace / "killed")
        damaged = False
        for kill in range(args.kills):
            killed = train_and_kill(trainer, folder.path, rng)
            if killed is None:
                sys.exit(f"training finished after {kill} kills; increase --steps")
            print(f"kill {kill + 1}: rank {killed.rank} at step {killed.step}", flush=True)
            if (action := damage_cache(trainer.cache, cache_rng)) is not None:
                print(action, flush=True)
            if not damaged and kill >= args.kills // 2 and (damaged_step := damage_checkpoint(folder, rng)) is not None:
                damaged = True
                print(f"flipped one bit in the checkpoint of step {damaged_step}", flush=True)
                stderr = subprocess.run(
                    [sys.executable, "-m", "regard", "predict", str(folder.path), "x"], capture_output=True, text=True
                ).stderr
                if f"step-{damaged_step}/model.safetensors is damaged" not in stderr:
                    sys.exit(f"the damage was not detected: {stderr}")
        trainer.train(folder.path)
        if damaged and not list(folder.checkpoints.glob("damaged-*")):
            sys.exit("the damaged checkpoint was not set aside")
        if fingerprint(folder) != fingerprint(RunFolder(workspace / "uninterrupted")):
            sys.exit("the killed run differs from the uninterrupted one")
        print(f"{args.kills} kills, {'one damaged checkpoint' if damaged else 'no checkpoint to damage'}: ", end="")
        print("weights, optimizer, state and events are bit-identical")
    finally:
        shutil.rmtree(workspace)


if __name__ == "__main__":
    main()
