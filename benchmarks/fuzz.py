"""Is malformed input rejected with a clear error? Random settings, data files, model folders and API calls.

    python benchmarks/fuzz.py --cases 5000
    python benchmarks/fuzz.py --only models --cases 300 --seed 7
    python benchmarks/fuzz.py --only models --seed 7 --first 17 --cases 1 --verbose   # repeat one case

A case depends only on the seed and its number. It fails if a command ends with a traceback or the exit code of a bug
(70), if an API call raises anything but an exception of regard, if either uses more than 10 seconds of CPU time or does
not end within a minute, or if a file outside of the run folder and the cache is created, changed or removed. Prints the
failures, and exits with 1 if there are any.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

import regard
from regard.config import flatten, presets, resolve, to_yaml
from regard.errors import RegardError
from regard.runs.settings import RunSettings

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from tests_command import run_preloaded

CPU_SECONDS, ELAPSED_SECONDS = 10, 60
BUG = 70
CHANGED = "files outside of the run were changed"
SMALL = {
    "data.train": 64, "data.dev": 8, "data.test": 8, "model.embedding": 8, "model.encoder.hidden": 8,
    "model.decoder.hidden": 8, "training.steps": 2, "training.batch_size": 16, "training.warmup": 1,
    "training.validate_every": 1, "training.save_every": 1,
}  # fmt: skip

SCALARS = (
    "", "~", "null", "true", "yes", "0", "1", "-1", "2", "3", "0.5", "1e308", "-1e-300", "1e999", ".nan", "-.inf",
    "nan", str(2**31), str(2**64), str(10**9), "9" * 5_000, "0x10", "0b_", "0100", "1:30", "2024-13-45", "2024-01-01",
    "!!int x", "!!binary x", "!!python/object/apply:os.system [id]", "&a [*a]", "*a", "[" * 3_000, "[]", "{}",
    "[1, 2]", "{kind: x}", "{kind: [1]}", "{? [a] : b}", "a: b: c", "'", '"\\x00"', "\u202e", "🙂", "é" * 300, "\x07",
    "%", "@", "`", "softmax", "gru", "../..", "/", "/dev/null", "/dev/zero", "~/x", "CON", "a\tb", "<<", "{<<: 1}",
)  # fmt: skip
"""Values in YAML that are wrong for most settings."""

JSON_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**64, 10**40, 1e308, -0.5, "", "x", "\ud800", "é" * 300, [], [[]], {}, [1, 2],
    ["x"] * 50, {"x": None}, {"": {}},
)  # fmt: skip

ARGUMENTS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**64, 0.0, 0.5, 1.5, -1.0, 1e-300, 1e308, math.nan, math.inf, "", "x",
    "20", "3 mai 2009", "\ud800", "\x00", "a" * 40, b"3 mai", [], ["3 mai"], ["3 mai", ""], ["3 mai", None],
    [1, 2], (), (1,), {}, {"a": 1}, {"3 mai"}, object(), int, lambda: 0, range(3), [("3 mai", "2009")], [("3 mai",)],
    ["20", "20"], Path("nowhere"), slice(1), 3 + 4j,
)  # fmt: skip


class Command(NamedTuple):
    """A call of `regard` in the folder of a case."""

    words: list[str]
    stdin: bytes = b""


class Failure(NamedTuple):
    """A case that did not end as it should."""

    kind: str
    number: int
    reason: str
    detail: str


class Sandbox:
    """A folder with a trained model, in which the cases run. `work` is the present directory of commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, self.run, self._around = folder / "work", folder / "work" / "run", folder / "around"
        self.work.mkdir()
        self._around.mkdir()
        (self._around / "other.txt").write_text("do not touch\n")
        self.trained = Path(regard.train("dates", SMALL, out=folder / "trained", quiet=True).path)

    @cached_property
    def model(self) -> regard.Model:
        return regard.load(self.trained)

    def copy_run(self) -> Path:
        """Copy the trained model into the present directory."""
        shutil.copytree(self.trained, self.run)
        return self.run

    def clear(self) -> None:
        """Remove the files of the last case."""
        shutil.rmtree(self.work)
        self.work.mkdir()

    def hash_surroundings(self) -> str:
        """Return a hash of all files that a command must not change: all but those of the runs and the cache."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            place = path.relative_to(self.folder).parts
            if place[:2] in (("work", "run"), ("work", "runs")) or place[0] == "cache":
                continue
            digest.update(repr(place).encode("utf-8", "surrogateescape"))
            if path.is_file() and not path.is_symlink():
                digest.update(path.read_bytes())
        return digest.hexdigest()


def make_settings(rng: random.Random, sandbox: Sandbox) -> Command:
    """Explain a preset with wrong overrides, or a damaged settings file; sometimes, train with them."""
    preset = rng.choice(list_presets())
    settings = resolve_preset(preset)
    keys = list(flatten(settings))
    if rng.random() < 0.6:
        overrides = [f"{_choose_key(rng, keys)}={rng.choice(SCALARS)}" for _ in range(rng.choice((1, 1, 2, 3)))]
        if rng.random() < 0.1:  # `training={}` must not lead to a long training
            changed = {override.partition("=")[0] for override in overrides}
            small = [f"{key}={value}" for key, value in SMALL.items() if key not in changed]
            return Command(["train", "dates", *overrides, *small, "--out", "run"])
        return Command(["explain", preset, *overrides])
    lines = to_yaml(settings).splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        _damage_line(rng, lines)
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    (sandbox.work / "settings.yaml").write_bytes(_damage_bytes(rng, text) if rng.random() < 0.2 else text)
    return Command(["explain", "settings.yaml"])


@cache
def list_presets() -> list[str]:
    return list(presets())


@cache
def resolve_preset(name: str) -> RunSettings:
    return resolve(RunSettings, name, {})


def _choose_key(rng: random.Random, keys: Sequence[str]) -> str:
    key = rng.choice(keys)
    match rng.randrange(8):
        case 0:
            return key + rng.choice(("x", ".x", ".0", "."))
        case 1:
            return key.rpartition(".")[0] or key
        case 2:
            return key[: rng.randrange(len(key))] + key[rng.randrange(len(key)) :]
        case _:
            return key


def _damage_line(rng: random.Random, lines: list[str]) -> None:
    index = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            lines.insert(index, lines[index])
        case 1:
            del lines[index]
            lines.append("")
        case 2:
            lines[index] = " " * rng.randrange(5) + lines[index]
        case 3:
            lines[index] += rng.choice(SCALARS)
        case _:
            lines[index] = f"{lines[index].partition(':')[0]}: {rng.choice(SCALARS)}"


def _damage_bytes(rng: random.Random, content: bytes) -> bytes:
    position = rng.randrange(len(content) + 1)
    match rng.randrange(6):
        case 0:
            return content[:position]
        case 1:
            return content[:position] + rng.randbytes(rng.randrange(1, 20)) + content[position:]
        case 2:
            return (
                content[:position] + bytes([rng.choice((0, 9, 10, 13, 34, 44, 92, 128, 255))]) + content[position + 1 :]
            )
        case 3:
            return b""
        case 4:
            return content + content[: rng.randrange(len(content) + 1)]
        case _:
            return rng.randbytes(rng.randrange(200))


TEXTS = (
    "a",
    "der hund",
    "",
    " ",
    "x\u2028y",
    "日本",
    "مايو",
    "🙂",
    "e\u0301",
    "\ufeffa",
    '"',
    '""a"',
    "a|b",
    "|||",
    "\x1c",
    "\x00",
)


def make_data(rng: random.Random, sandbox: Sandbox) -> Command:
    """Check, evaluate, align, predict or train with a damaged file of pairs."""
    pairs = [(rng.choice(TEXTS), rng.choice(TEXTS)) for _ in range(rng.choice((0, 1, 5, 30)))]
    pairs += [(f"wort {number}", f"word {number}") for number in range(rng.choice((0, 10, 40)))]
    rng.shuffle(pairs)
    extension, text = _format_pairs(rng, pairs)
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.6:
        content = _damage_bytes(rng, content)
    if rng.random() < 0.15:
        content = gzip.compress(content)[: rng.choice((None, 15, -3))]
        extension += ".gz"
    (sandbox.work / f"pairs{extension}").write_bytes(content)
    file = f"pairs{extension}"
    match rng.randrange(8):
        case 0 | 1:
            return Command(["data", "check", file])
        case 2 | 3:
            return Command(["data", "stats", file])
        case 4:
            return Command(["evaluate", str(sandbox.trained), "--pairs", file])
        case 5:
            return Command(["align", str(sandbox.trained), "--pairs", file])
        case 6:
            return Command(["predict", str(sandbox.trained)], content)
        case _:
            small = [f"{key}={value}" for key, value in SMALL.items() if not key.startswith(("data", "model"))]
            return Command(["train", "--pairs", file, "--out", "run", *small])


def _format_pairs(rng: random.Random, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    match rng.randrange(4):
        case 0:
            return ".tsv", "".join(f"{source}\t{target}\n" for source, target in pairs)
        case 1:
            header = rng.choice(("source,target\n", "a,a\n", ""))
            return ".csv", header + "".join(f'"{source}","{target}"\n' for source, target in pairs)
        case 2:
            return ".txt", "".join(f"{source} ||| {target}\n" for source, target in pairs)
        case _:
            rows = [json.dumps({"source": source, "target": target}) for source, target in pairs]
            if rng.random() < 0.5:
                odd = (
                    '{"source": "\\ud800", "target": "x"}',
                    "[" * 5_000,
                    '{"source": ' + "9" * 5_000 + "}",
                    "NaN",
                    "1",
                )
                rows.insert(rng.randrange(len(rows) + 1), rng.choice(odd))
            return ".jsonl", "".join(f"{row}\n" for row in rows)


def make_models(rng: random.Random, sandbox: Sandbox) -> Command:
    """Predict with, explain or resume a damaged run."""
    run = sandbox.copy_run()
    for _ in range(rng.choice((1, 1, 2))):
        files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"]
        if files:
            _damage_file(rng, rng.choice(files))
    if rng.random() < 0.5:
        _hash_again(run)
    match rng.randrange(6):
        case 0:
            return Command(["explain", "run"])
        case 1:
            small = [f"{key}={value}" for key, value in SMALL.items()]
            return Command(["train", "dates", *small, "--out", "run"])
        case _:
            return Command(["predict", "run", "3 mai 2009"])


def _damage_file(rng: random.Random, path: Path) -> None:
    content = path.read_bytes()
    choice = rng.random()
    if choice < 0.08:
        path.unlink()
    elif choice < 0.12:
        path.unlink()
        path.mkdir()
    elif choice < 0.15:
        path.unlink()
        path.symlink_to(path.name)
    elif choice < 0.7 and path.suffix == ".json" and is_json(content):
        path.write_text(json.dumps(_damage_json(rng, json.loads(content))), "utf-8")
    elif choice < 0.8 and path.suffix == ".yaml":
        lines = content.decode("utf-8", "replace").splitlines() or [""]
        _damage_line(rng, lines)
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(_damage_bytes(rng, content))


def is_json(content: bytes) -> bool:
    """Whether a file is still JSON after it was damaged once."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _damage_json(rng: random.Random, value: Any) -> Any:
    """Replace, remove or repeat a random part of a document."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(JSON_VALUES)
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.15:
        return {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[:key]
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = _damage_json(rng, value[key])
    return changed


def _hash_again(run: Path) -> None:
    """Write the hashes of the damaged files into the manifests, as far as these can be read."""
    for path in run.rglob("manifest.json"):
        try:
            manifest = json.loads(path.read_text("utf-8"))
            for name in manifest["files"]:
                manifest["files"][name] = hashlib.sha256((path.parent / name).read_bytes()).hexdigest()
        except (OSError, ValueError, TypeError, KeyError):
            continue
        path.write_text(json.dumps(manifest), "utf-8")


OPTIONS: dict[str, tuple[str, ...]] = {
    "predict": (
        "batch_size", "attention", "beam", "nbest", "length_penalty", "sample", "temperature", "top_k", "top_p", "seed",
        "prefix", "must_contain", "banned", "min_length", "groups", "mbr_samples", "no_repeat_ngram", "unknown_option",
    ),
    "score": ("batch_size",),
    "trace": ("queries", "states", "candidates", "edits", "beam", "nbest"),
    "attribute": ("method", "contrast", "integration_steps", "previous", "normalize", "progress", "beam"),
    "align": ("reverse", "symmetrize", "batch_size", "method", "threshold", "layer", "head"),
    "evaluate": ("metrics", "batch_size", "beam", "length_penalty"),
}  # fmt: skip
"""The options of each method of a model."""


def make_call(rng: random.Random, sandbox: Sandbox) -> Callable[[], object]:
    """Return a call of the Python API with wrong arguments."""
    choice = rng.random()
    if choice < 0.05:
        return lambda: regard.load(rng.choice(ARGUMENTS), device=rng.choice(("cpu", *ARGUMENTS)))
    if choice < 0.1:
        return lambda: regard.train("dates", {**SMALL, rng.choice(list(SMALL)): rng.choice(ARGUMENTS)}, out=sandbox.run)
    name = rng.choice(list(OPTIONS))
    method = getattr(sandbox.model, name)
    valid: dict[str, list[Any]] = {
        "predict": ["3 mai 2009"], "score": ["3 mai 2009", "2009-05-03"], "trace": ["3 mai 2009"],
        "attribute": ["3 mai 2009", "2009"], "align": [[("3 mai 2009", "2009-05-03")]],
        "evaluate": [[("3 mai 2009", "2009-05-03")]],
    }  # fmt: skip
    arguments = valid[name]
    if rng.random() < 0.5:
        arguments[rng.randrange(len(arguments))] = rng.choice(ARGUMENTS)
    options = {
        option: rng.choice(ARGUMENTS)
        for option in rng.sample(OPTIONS[name], rng.randrange(min(3, len(OPTIONS[name]) + 1)))
    }
    return lambda: method(*arguments, **options)


COMMANDS = {"settings": make_settings, "data": make_data, "models": make_models}
KINDS = (*COMMANDS, "api")


def run_case(kind: str, seed: int, number: int, sandbox: Sandbox, *, verbose: bool = False) -> Failure | None:
    """Run one case. Return its failure; None if it ended as it should."""
    rng = random.Random(f"{kind}-{seed}-{number}")
    sandbox.clear()
    if kind == "api":
        call, before = make_call(rng, sandbox), sandbox.hash_surroundings()
        with chdir(sandbox.work):
            failure = _check_call(number, call)
        changed = sandbox.hash_surroundings() != before
        return failure or (Failure(kind, number, CHANGED, "") if changed else None)
    command = COMMANDS[kind](rng, sandbox)
    before = sandbox.hash_surroundings()
    shown = repr([word if len(word) < 200 else f"{word[:200]}…" for word in command.words])
    try:
        result = run_preloaded(command.words, command.stdin, sandbox.work, ELAPSED_SECONDS, CPU_SECONDS)
    except subprocess.TimeoutExpired:
        return Failure(kind, number, f"did not finish within {ELAPSED_SECONDS} s", shown)
    output = result.stderr[-2_000:]
    if verbose:
        print(f"{shown}\nexit code {result.returncode}\n{result.stdout[-500:]}{output}")
    if result.returncode == -signal.SIGXCPU:
        return Failure(kind, number, f"more than {CPU_SECONDS} s of CPU time", shown)
    if result.returncode in (BUG, -signal.SIGSEGV, -signal.SIGABRT) or "Traceback" in result.stderr:
        return Failure(kind, number, f"exit code {result.returncode}", f"{shown}\n{output}")
    if len(result.stderr) > 20_000:
        return Failure(kind, number, f"{len(result.stderr):,} characters of messages", shown)
    if sandbox.hash_surroundings() != before:
        return Failure(kind, number, CHANGED, shown)
    return None


def _check_call(number: int, call: Callable[[], object]) -> Failure | None:
    try:
        with limit_time():
            call()
    except RegardError:
        return None
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            return None
        return Failure("api", number, repr(error)[:200], traceback.format_exc()[-1_500:])
    except Exception as error:  # anything else is a failure
        return Failure("api", number, repr(error)[:200], traceback.format_exc()[-1_500:])
    return None


@contextmanager
def limit_time() -> Iterator[None]:
    """Raise TimeoutError in a block that uses too much CPU time, or does not end."""

    def stop(*_: object) -> NoReturn:
        raise TimeoutError(f"more than {CPU_SECONDS} s of CPU time, or not finished within {ELAPSED_SECONDS} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, CPU_SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, ELAPSED_SECONDS))
    previous = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextmanager
def open_sandbox(folder: Path) -> Iterator[Sandbox]:
    """Within the block, home and the caches of regard and its libraries are in the sandbox, too."""
    cache = folder / "cache"
    changed = {
        "HOME": folder / "around",
        "REGARD_CACHE": cache,
        "MPLCONFIGDIR": cache / "matplotlib",
        "TRITON_CACHE_DIR": cache / "triton",
        "CUDA_CACHE_PATH": cache / "cuda",
        "XDG_CACHE_HOME": cache / "torch",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update({name: str(path) for name, path in changed.items()})
    try:
        yield Sandbox(folder)
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--cases", type=int, default=5_000, help="number of cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print the command and the output of each case")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other use CPU time
    torch.set_num_threads(1)
    failures: list[Failure] = []
    with tempfile.TemporaryDirectory() as folder, open_sandbox(Path(folder)) as sandbox:
        for kind in args.only:
            started, before = time.monotonic(), len(failures)
            for number in range(args.first, args.first + args.cases):
                failure = run_case(kind, args.seed, number, sandbox, verbose=args.verbose)
                if failure is not None:
                    failures.append(failure)
                    print(f"{kind} {number}: {failure.reason}\n{failure.detail}\n", file=sys.stderr, flush=True)
            seconds = time.monotonic() - started
            print(
                f"{kind}: {args.cases:,} cases (seed {args.seed}), {len(failures) - before} failed, {seconds:.0f} s",
                flush=True,
            )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
