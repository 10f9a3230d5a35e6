"""A crafted model is rejected before time or memory is spent on it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard.runs.folder import RunFolder
from tests_command import Measured, run_measured
from tests_shared import SMALL

MAX_SECONDS, MAX_BYTES = 1.0, 500e6
Tree = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rejected") / "run"
    regard.train("dates", {**SMALL, "training.steps": 2, "training.validate_every": 2}, out=path)
    return path


def predict(run: Path) -> Measured:
    return run_measured(["predict", str(run), "3 mai 2009", "--accept-changes"], b"", run.parent, 60)


@pytest.fixture(scope="module")
def baseline(trained: Path) -> Measured:
    predict(trained)  # the first process pays for caches of the system
    measured = predict(trained)
    assert measured.result.returncode == 0, measured.result.stderr
    return measured


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def assert_rejected_early(run: Path, baseline: Measured, message: str) -> None:
    measured = predict(run)
    assert measured.result.returncode == 4, measured.result.stderr
    assert message in measured.result.stderr
    assert len(measured.result.stderr) < 5_000
    assert measured.seconds - baseline.seconds < MAX_SECONDS
    assert measured.peak_bytes - baseline.peak_bytes < MAX_BYTES


@pytest.mark.parametrize(
    "model",
    [
        {"encoder": {"kind": "recurrent", "hidden": 16, "layers": 1_000}},
        {"encoder": {"kind": "recurrent", "hidden": 16, "layers": 100_000}},
        {"encoder": {"kind": "recurrent", "hidden": 2_048, "layers": 1_000}},
        {"encoder": {"kind": "recurrent", "hidden": 65_536}},
        {"embedding": 65_536},
        {"attention": {"score": {"kind": "location", "slots": 1_000_000}}},
        {"kind": "transformer", "size": 16, "layers": 1_000, "feedforward": 16},
        {"kind": "transformer", "size": 65_536, "heads": 1, "positions": "learned", "max_positions": 1_000_000},
    ],
    ids=str,
)
def test_the_sizes_of_a_model_are_compared_with_its_weights(run: Path, baseline: Measured, model: Tree) -> None:
    path = run / "config.yaml"
    settings = yaml.safe_load(path.read_text("utf-8"))
    settings["model"] = {**(settings["model"] if "kind" not in model else {}), **model}
    path.write_text(yaml.safe_dump(settings), "utf-8")
    assert_rejected_early(run, baseline, "config.yaml")


def set_id(index: int) -> Callable[[Tree], object]:
    return lambda document: document["model"]["vocab"].update(a=index)


def set_part(name: str, part: object) -> Callable[[Tree], object]:
    return lambda document: document.update({name: part})


def set_normalizers(*parts: object) -> Callable[[Tree], object]:
    return set_part("normalizer", {"type": "Sequence", "normalizers": list(parts)})


def nest(depth: int) -> Callable[[Tree], object]:
    part: Tree = {"type": "NFC"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return set_part("normalizer", part)


def replace(pattern: Tree, content: str) -> Tree:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str) -> Callable[[Tree], object]:
    return set_part(
        "pre_tokenizer", {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    )


LONG = "a" * 5_000_000
PREPEND = {"type": "Prepend", "prepend": "a" * 40}
SPECIALS = [[token, 0.0] for token in ("<pad>", "<unk>", "<s>", "</s>")]

TOKENIZERS: dict[str, Callable[[Tree], object]] = {
    "a large id": set_id(10**9),
    "an id beyond 32 bits": set_id(2**31),
    "an id that is used twice": set_id(0),
    "a negative id": set_id(-1),
    "nested normalizers": nest(100),
    "deeply nested normalizers": nest(400),
    "thousands of normalizers": set_normalizers(*[replace({"String": "a"}, "b")] * 5_000),
    "doubled text": set_normalizers(*[replace({"String": "a"}, "aa")] * 40),
    "repeated normalizers": set_normalizers(*[{"type": "NFC"}] * 2),
    "a long prefix": set_normalizers({"type": "Prepend", "prepend": LONG}),
    "a catastrophic normalizer": set_normalizers(PREPEND, replace({"Regex": "(a+)+b"}, "")),
    "a catastrophic pre-tokenizer": split("(a|a)*b|[\\s\\S]"),
    "a quantifier in a symbol": split("a+|[\\s\\S]"),
    "a long pattern": split(LONG),
    "a long decoder": set_part("decoder", {"type": "Replace", "pattern": {"String": "a"}, "content": LONG}),
    "padding to a fixed length": set_part(
        "padding",
        {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
         "pad_type_id": 0, "pad_token": "<pad>"},
    ),
    "an added token": set_part(
        "added_tokens",
        [{"id": 10**9, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": False}],
    ),
    "a long token": set_part(
        "model", {"type": "Unigram", "unk_id": 1, "vocab": [*SPECIALS, [LONG, 0.0]], "byte_fallback": False}
    ),
    "random segmentation": lambda document: document["model"].update(dropout=0.5),
    "a large file": set_part("about", LONG * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_regard_does_not_write_is_rejected(run: Path, baseline: Measured, name: str) -> None:
    path = run / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    TOKENIZERS[name](document)
    path.write_text(json.dumps(document), "utf-8")
    assert_rejected_early(run, baseline, "tokenizer.json")


def test_json_that_is_nested_too_deeply_is_rejected(run: Path, baseline: Measured) -> None:
    (run / "tokenizer.json").write_text('{"normalizer":' * 1_000_000, "utf-8")
    assert_rejected_early(run, baseline, "tokenizer.json is damaged")


def test_the_valid_model_is_used(trained: Path) -> None:
    assert RunFolder(trained).best().find_problem() is None
    assert regard.load(trained).step == 2
