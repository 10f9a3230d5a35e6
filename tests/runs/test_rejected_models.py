"""A crafted model is rejected before its network is built, and a crafted tokenizer before the library reads it."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import yaml
from torch.nn.modules.module import register_module_parameter_registration_hook

import regard
from regard.data.tokens import tokenizer_file
from regard.runs.folder import RunFolder
from tests_shared import SMALL

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rejected") / "run"
    regard.train("dates", {**SMALL, "training.steps": 2, "training.validate_every": 2}, out=path)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@dataclass
class Built:
    """What was built while a model was loaded: it costs time and memory."""

    parameters: int = 0
    elements: int = 0
    """The elements of parameters for which memory was allocated."""
    tokenizers: int = 0


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    counts = Built()

    def count_parameter(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        counts.parameters += 1
        counts.elements += 0 if parameter.is_meta else parameter.numel()

    def count_tokenizer(text: str) -> tokenizers.Tokenizer:
        counts.tokenizers += 1
        return tokenizers.Tokenizer.from_str(text)

    monkeypatch.setattr(tokenizer_file, "parse_tokenizer", count_tokenizer)
    handle = register_module_parameter_registration_hook(count_parameter)
    yield counts
    handle.remove()


def check_rejected(run: Path, message: str) -> None:
    with pytest.raises(regard.ModelError) as rejection:
        regard.load(run, accept_changes=True)
    assert message in str(rejection.value)
    assert len(str(rejection.value)) < 5_000


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
def test_the_sizes_of_a_model_are_compared_with_its_weights(run: Path, built: Built, model: Tree) -> None:
    path = run / "config.yaml"
    settings = yaml.safe_load(path.read_text("utf-8"))
    settings["model"] = {**(settings["model"] if "kind" not in model else {}), **model}
    path.write_text(yaml.safe_dump(settings), "utf-8")
    check_rejected(run, "config.yaml")
    assert built.elements == 0
    assert built.parameters < 1_000


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
def test_a_tokenizer_that_regard_does_not_write_is_rejected(run: Path, built: Built, name: str) -> None:
    path = run / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    TOKENIZERS[name](document)
    path.write_text(json.dumps(document), "utf-8")
    check_rejected(run, "tokenizer.json")
    assert built == Built()


def test_json_that_is_nested_too_deeply_is_rejected(run: Path, built: Built) -> None:
    (run / "tokenizer.json").write_text('{"normalizer":' * 1_000_000, "utf-8")
    check_rejected(run, "tokenizer.json is damaged")
    assert built == Built()


def test_the_valid_model_is_built(trained: Path, built: Built) -> None:
    """The counts of the other tests can differ from 0."""
    assert RunFolder(trained).best().find_problem() is None
    assert regard.load(trained).step == 2
    assert built.elements > 0
    assert built.tokenizers == 2
