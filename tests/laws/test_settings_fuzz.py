"""Settings with random mutations are valid, or rejected with a short message. The seed of a failure is printed."""

import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.config import flatten, resolve, to_yaml
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, ModelError
from regard.overrides import parse_override
from regard.runs.settings import RunSettings
from tests_seed import DAILY_SEED

CASES, FILES = 500, 50
MAX_MESSAGE = 10_000
PRESETS = ("dates", "scenes", "multi30k-transformer", "cmudict-lstm", "pronounce")

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**9, 2**31, 2**63, 2**64, -(2**64), 10**30, 10**400,
    0.0, 0.5, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"),
    "", " ", "auto", "none", "x", "é" * 200, "a" * 100_000, "\x00", "\u2028", "1e3", "0x10", "1:30", "yes", "../..",
    [], [[]], [None], [1, 2], ["a", "b"], [{"kind": "x"}], {}, {"kind": None}, {"kind": []}, {"kind": {}}, {"kind": 3},
    {"kind": "x" * 10_000}, {"": 1}, {1: 2}, {None: None}, {"kind": "additive", "kind ": 1}, [0] * 1_000, "\ud800",
]  # fmt: skip
TEXTS = [
    "2024-13-45", "!!int x", "0b_", "9" * 5_000, "[" * 3_000, "{" * 3_000, "!!python/object:os.system x", "&a [*a]",
    "*missing", "? [a]", "\t", "%YAML 1.2", "---\n---", "!!binary x", "- a\n- b", "<<: 1", "a: 1\na: 2", "\ud800",
    "\x07",
]  # fmt: skip


def nest(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def choose_key(rng: random.Random, keys: list[str]) -> str:
    key = rng.choice(keys)
    if rng.random() < 0.4:
        key = ".".join(key.split(".")[: rng.randint(1, 3)])
    if rng.random() < 0.1:
        key = rng.choice([f"{key}.kind", f"{key}.x", key[:-1] or "x", f".{key}", f"{key}.", "a" * 5_000])
    return key


def choose_value(rng: random.Random) -> Any:
    return nest(rng.choice([5, 100])) if rng.random() < 0.03 else rng.choice(VALUES)


def write_mutated(rng: random.Random, settings: RunSettings, path: Path) -> Path:
    """Write settings to a file, with lines left out, and text that is not YAML 1.2 or not a setting."""
    lines = [line for line in to_yaml(settings).splitlines() if rng.random() > 0.02]
    text = rng.choice(TEXTS)
    lines.insert(rng.randint(0, len(lines)), rng.choice(["", text, f"x: {text}", f"seed: {text}", f"model: {text}"]))
    path.write_text("\n".join(lines), "utf-8", "surrogatepass")
    return path


def attempts(
    rng: random.Random, settings: RunSettings, path: Path, *, with_file: bool
) -> Iterator[Callable[[], RunSettings | SearchSettings]]:
    tree = settings.model_dump(mode="json")
    keys = list(flatten(settings))
    overrides = {choose_key(rng, keys): choose_value(rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))}
    typed = dict([parse_override(f"{choose_key(rng, keys) or 'x'}={rng.choice(TEXTS)}")])
    search = {rng.choice(list(SearchSettings.model_fields)): choose_value(rng)}
    yield lambda: resolve(RunSettings, tree, overrides)
    yield lambda: resolve(RunSettings, tree, typed)
    yield lambda: resolve(SearchSettings, search, {})
    if with_file:
        file = write_mutated(rng, settings, path)
        yield lambda: resolve(RunSettings, file, {})


def find_failures(seed: int, settings: RunSettings, path: Path, *, with_file: bool) -> Iterator[str]:
    rng = random.Random(seed)
    for number, attempt in enumerate(attempts(rng, settings, path, with_file=with_file)):
        try:
            result = attempt()
            assert resolve(type(result), result.model_dump(mode="json"), {}) == result
        except (ConfigError, ModelError) as error:
            if len(str(error)) > MAX_MESSAGE:
                yield f"seed {seed}, attempt {number}: the message has {len(str(error))} characters"
        except Exception:
            yield f"seed {seed}, attempt {number}: {traceback.format_exc()[-2000:]}"


@pytest.mark.slow
def test_random_settings_are_valid_or_rejected_with_a_message(tmp_path: Path) -> None:
    bases = [resolve(RunSettings, name, {}) for name in PRESETS]
    start = DAILY_SEED * CASES
    path = tmp_path / "settings.yaml"
    failures = [
        failure
        for seed in range(start, start + CASES)
        for failure in find_failures(seed, bases[seed % len(bases)], path, with_file=seed < start + FILES)
    ]
    assert not failures, f"{len(failures)} failures; the first:\n{failures[0]}"
