"""Does a run survive being killed? Kills training with SIGKILL at random moments, gives the same command again
each time, damages a checkpoint on the way, and compares the end with a run that was left alone, bit for bit.

    python benchmarks/survival.py --kills 10
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from regard.training.folder import RunFolder, sha256

SETTINGS = [
    "data.train=2000",
    "data.dev=60",
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


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "regard", "train", "dates", *SETTINGS, "--out", str(out)]


def train(out: Path) -> str:
    """Train to the end; what was said on stderr."""
    done = subprocess.run(command(out), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"training ended with {done.returncode}: {done.stderr}")
    return done.stderr


def train_and_kill(out: Path, rng: random.Random) -> int | None:
    """Train, and kill it: mostly within moments of its first step, sometimes while it is still setting up.

    The last step it spoke of, or None if it was done before the blow fell.
    """
    process = subprocess.Popen(command(out), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    step = 0
    if rng.random() < 0.2:
        timer = threading.Timer(rng.uniform(0.1, 4.0), process.kill)
    else:
        timer = threading.Timer(rng.uniform(0.0, 1.5), process.kill)
        for line in process.stderr:
            if line.startswith("Training"):
                break
    timer.start()
    for line in process.stderr:
        if line.startswith("step "):
            step = int(line.split()[1].split("/")[0].replace(",", ""))
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
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    print(f"seed {given.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="regard-survival-"))
    try:
        train(place / "undisturbed")
        folder = RunFolder(place / "killed")
        damaged = False
        for kill in range(given.kills):
            step = train_and_kill(folder.path, rng)
            if step is None:
                sys.exit(f"the run was done after {kill} kills; make it longer")
            print(f"kill {kill + 1}: at step {step}", flush=True)
            if not damaged and kill >= given.kills // 2 and (spoilt := damage(folder, rng)) is not None:
                damaged = True
                print(f"one bit flipped in the checkpoint of step {spoilt}", flush=True)
                told = subprocess.run(
                    [sys.executable, "-m", "regard", "evaluate", str(folder.path)], capture_output=True, text=True
                ).stderr
                if f"step-{spoilt}/model.safetensors is damaged" not in told:
                    sys.exit(f"the damage was not noticed: {told}")
        train(folder.path)
        if damaged and not list(folder.checkpoints.glob("damaged-*")):
            sys.exit("the damaged checkpoint was not set aside")
        if fingerprint(folder) != fingerprint(RunFolder(place / "undisturbed")):
            sys.exit("the killed run ended otherwise than the undisturbed one")
        print(f"{given.kills} kills, {'one damaged checkpoint' if damaged else 'no checkpoint to damage'}: ", end="")
        print("weights, optimiser, state and events are the same to the bit")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
