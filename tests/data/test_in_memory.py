"""Pairs in memory: every form gives the same pairs, and errors name the argument, the index and the remedy."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import regard
from regard.data.in_memory import collect_pairs, collect_splits

PAIRS = [("day", "Tag"), ("good night", "gute\tNacht"), ("two\nlines", "")]
SOURCES, TARGETS = (list(side) for side in zip(*PAIRS, strict=True))


class Frame:
    """Offers what a pandas DataFrame offers: `columns`, and access to a column by name. Iteration gives the names."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


class Dataset:
    """Offers what a Hugging Face Dataset offers: `column_names`, columns by name, and rows as dictionaries."""

    def __init__(self, rows: list[dict[str, Any]], *, streaming: bool = False) -> None:
        self._rows = rows
        self.column_names = None if streaming else list(rows[0])

    def __getitem__(self, name: str) -> list[Any]:
        return [row[name] for row in self._rows]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


TRANSLATIONS = [{"id": number, "translation": {"en": en, "de": de}} for number, (en, de) in enumerate(PAIRS)]
NAMED = [{"en": en, "de": de} for en, de in PAIRS]


@pytest.mark.parametrize(
    "data",
    [
        PAIRS,
        tuple(PAIRS),
        [list(pair) for pair in PAIRS],
        iter(PAIRS),
        (pair for pair in PAIRS),
        zip(SOURCES, TARGETS, strict=True),
        dict(PAIRS).items(),
        {"source": SOURCES, "target": TARGETS},
        {"target": TARGETS, "id": [1, 2, 3], "source": SOURCES},
        {"en": SOURCES, "de": tuple(TARGETS)},
        NAMED,
        iter(NAMED),
        Frame(en=SOURCES, de=TARGETS),
        Frame(index=[0, 1, 2], source=SOURCES, target=TARGETS),
        Dataset(NAMED),
        Dataset(NAMED, streaming=True),
        Dataset(TRANSLATIONS),
        Dataset(TRANSLATIONS, streaming=True),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_form_gives_the_same_pairs(data: Any) -> None:
    assert collect_pairs(data, "pairs") == PAIRS


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (Dataset(TRANSLATIONS), ("de", "en")),
        (Dataset(TRANSLATIONS), ("translation.de", "translation.en")),
        (Frame(id=[1, 2, 3], en=SOURCES, de=TARGETS, note=["x"] * 3), ["de", "en"]),
        ({"en": SOURCES, "de": TARGETS, "fr": TARGETS}, ("de", "en")),
    ],
)
def test_columns_choose_the_source_and_the_target(data: Any, columns: Any) -> None:
    assert collect_splits(data, columns=columns)["train"] == [(target, source) for source, target in PAIRS]


def test_a_real_data_frame_gives_the_same_pairs() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"en": SOURCES, "de": TARGETS})
    assert collect_pairs(frame, "pairs") == PAIRS
    assert collect_pairs(frame[frame.en != "day"], "pairs") == PAIRS[1:]


def test_a_dictionary_of_datasets_provides_all_splits() -> None:
    splits = {"train": Dataset(NAMED), "validation": Dataset(NAMED[:2]), "test": Dataset(NAMED[:1])}
    assert collect_splits(splits) == {"train": PAIRS, "dev": PAIRS[:2], "test": PAIRS[:1]}
    assert collect_splits(splits, dev=PAIRS[1:]) == {"train": PAIRS, "dev": PAIRS[1:], "test": PAIRS[:1]}
    assert collect_splits({"train": PAIRS}) == {"train": PAIRS}


class MissingValue:
    """A missing value that cannot be compared, such as pandas.NA."""

    def __ne__(self, other: object) -> Any:
        raise TypeError

    def __repr__(self) -> str:
        return "<NA>"


TYPES: list[tuple[Any, str]] = [
    (["day", "night"], r"pairs\[0\] must be a pair \(source, target\), not str \('day'\)"),
    ([("day", "Tag"), "ab"], r"pairs\[1\] must be a pair \(source, target\), not str \('ab'\)"),
    ([("day", "Tag"), None], r"pairs\[1\] must be a pair \(source, target\), not None \(a missing value\)"),
    ([{"day", "Tag"}], r"pairs\[0\] must be a pair \(source, target\), not set"),
    ([("day", "Tag"), ("night", 3)], r"pairs\[1\]: the target must be a text \(str\), not int \(3\)"),
    ([("day", "Tag"), (None, "Nacht")], r"pairs\[1\]: the source must be a text \(str\), not None \(a missing value\)"),
    ([(b"day", "Tag")], r"pairs\[0\]: the source must be a text \(str\), not bytes"),
    ([(["good", "day"], "Tag")], r"pairs\[0\]: the source must be a text \(str\), not list"),
    ({"source": ["a", "b"], "target": ["c", None]}, r"pairs\[1\]: the target must be .* Remove such pairs first"),
    ({"source": [None], "target": ["c"]}, r"pairs\[0\]: the source must be a text"),
    (Frame(en=["a", "b"], de=["c", float("nan")]), r"pairs\[1\]: the target \(de\) must be .*nan \(a missing value\)"),
    (Frame(en=["a", "b"], de=["c", MissingValue()]), r"pairs\[1\]: the target \(de\) must be .*<NA>"),
    ([{"en": "a", "de": "b"}, ("c", "d")], r"pairs\[1\] must be a dictionary, like the first item, not tuple"),
    ([{"en": "a", "de": "b"}, {"en": "c"}], r"pairs\[1\]: the target \(de\) must be a text \(str\), not None"),
    ("day\tTag", r"pairs must be an iterable of pairs, not str.*regard train --pairs FILE"),
    (b"day", "pairs must be an iterable of pairs, not bytes"),
    (3, "pairs must be an iterable of pairs, not int. Pass .source, target. pairs"),
    ({"source": "day", "target": "Tag"}, r"pairs\['source'\] must be a list of texts, not str"),
    ({"source": 3, "target": ["Tag"]}, r"pairs\['source'\] must be a list of texts, not int"),
]


@pytest.mark.parametrize(("data", "message"), TYPES)
def test_wrong_types_name_the_index_and_the_remedy(data: Any, message: str) -> None:
    with pytest.raises(regard.ArgumentTypeError, match=message):
        collect_pairs(data, "pairs")


VALUES: list[tuple[Any, Any, str]] = [
    ([("day", "Tag"), ("a", "b", "c")], None, r"pairs\[1\] has 3 items instead of 2. Pass \(source, target\)"),
    ([("day",)], None, r"pairs\[0\] has 1 item instead of 2"),
    ({"source": ["a", "b"], "target": ["c"]}, None, r"different lengths \('source' has 2, 'target' has 1\)"),
    ({"a": ["x"], "b": ["y"], "c": ["z"]}, None, r"the target. Choose two with columns=\(…, …\). Columns: a, b, c"),
    (
        {"word": ["x"], "form": ["y"]},
        ("word", "forms"),
        r"no column 'forms'. Did you mean 'form'\? Available: word, form",
    ),
    (PAIRS, ("en", "de"), r"columns=\('en', 'de'\): pairs has no columns"),
    (PAIRS, ("en",), r"columns must be two names, not \('en',\)"),
    (PAIRS, (1, 2), r"columns must be two names, not \(1, 2\)"),
]


@pytest.mark.parametrize(("data", "columns", "message"), VALUES)
def test_wrong_values_name_the_index_and_the_remedy(data: Any, columns: Any, message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        collect_splits(data, columns=columns)


@pytest.mark.parametrize("data", [[], (), iter([]), {}, {"source": [], "target": []}, Frame(en=[], de=[])])
def test_no_pairs_are_an_error(data: Any) -> None:
    with pytest.raises(regard.DataError, match="dev is empty"):
        collect_splits(PAIRS, dev=data)


def test_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(regard.DataError, match=r"pairs\[1\]: the target is not valid Unicode"):
        collect_pairs([("a", "b"), ("c", "\udce4")], "pairs")


def test_columns_of_a_string_are_rejected() -> None:
    with pytest.raises(regard.ArgumentTypeError, match=r"columns must be the names of two columns, not 'en'"):
        collect_splits(PAIRS, columns="en")


def test_an_exception_of_a_generator_is_not_changed() -> None:
    def broken() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        raise KeyError("from the generator")

    with pytest.raises(KeyError, match="from the generator"):
        collect_pairs(broken(), "pairs")


def test_a_mapping_that_is_not_a_dict_is_a_record() -> None:
    class Record(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            return {"source": "a", "target": "b"}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(("source", "target"))

        def __len__(self) -> int:
            return 2

    assert collect_pairs([Record()], "pairs") == [("a", "b")]
