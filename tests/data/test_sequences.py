"""The built-in tasks: correct targets, and no string in two splits."""

from collections.abc import Callable

import pytest

import regard
from regard.config import resolve
from regard.data.corpora import Pairs, load_corpus
from regard.data.settings import DataSettings
from regard.runs.settings import RunSettings

TASKS: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}


@pytest.mark.parametrize(("task", "compute_target"), TASKS.items())
def test_targets_are_correct_and_splits_are_disjoint(task: str, compute_target: Callable[[str], str]) -> None:
    sizes = {"train": 500, "dev": 50, "test": 50, "longest": 9}
    settings = DataSettings.parse({"kind": "sequences", "task": task, **sizes})
    corpus = load_corpus(settings)
    splits = [split for split in (corpus.train, corpus.dev, corpus.test) if isinstance(split, Pairs)]
    assert [len(split) for split in splits] == [500, 50, 50]
    for split in splits:
        assert split.targets == [compute_target(text) for text in split.sources]
        assert {len(text) for text in split.sources} <= set(range(5, 10))
    strings = [text for split in splits for text in split.sources]
    assert len(set(strings)) == len(strings)
    again = load_corpus(settings).train
    assert isinstance(again, Pairs)
    assert again.sources == splits[0].sources


def test_too_few_strings_are_rejected() -> None:
    with pytest.raises(regard.ConfigError, match="only 32 strings"):
        resolve(RunSettings, {"data": {"kind": "sequences", "letters": 2, "shortest": 5, "longest": 5}}, {})
