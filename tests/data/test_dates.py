"""The built-in corpus of dates: many languages, no ambiguity, no leakage, deterministic."""

import datetime
import re

import pytest

from regard.data import dates


def test_dates_in_several_languages() -> None:
    date = datetime.date(2009, 5, 3)
    assert dates.write(date, "fr", "long") == "3 mai 2009"
    assert dates.write(date, "en", "full") == "Sunday, May 3, 2009"
    assert dates.write(date, "ja", "long") == "2009年5月3日"
    assert dates.write(date, "fa", "medium", native=True) == "۳ مه ۲۰۰۹"
    assert dates.write(date, "hi", "long", native=True) == "३ मई २००९"


def test_covers_many_languages_and_formats() -> None:
    assert len(set(dates.LOCALES)) >= 40
    for locale in dates.LOCALES:
        assert {"long", "full"} & set(dates.unambiguous_formats(locale)), locale


def test_numeric_months_are_excluded_unless_the_year_comes_first() -> None:
    assert "medium" not in dates.unambiguous_formats("de")  # 03.05.2009
    assert "medium" not in dates.unambiguous_formats("cs")  # 3. 5. 2009
    assert "medium" in dates.unambiguous_formats("ja")  # 2009/05/03


@pytest.mark.slow
def test_no_string_is_ambiguous() -> None:
    meanings: dict[str, datetime.date] = {}
    day = datetime.date(2012, 1, 1)
    while day.year == 2012:
        for locale in dates.LOCALES:
            for format_ in dates.unambiguous_formats(locale):
                assert meanings.setdefault(dates.write(day, locale, format_), day) == day
        day += datetime.timedelta(1)
    assert len(meanings) > 30_000


def test_samples_are_a_pure_function_of_the_seed() -> None:
    assert dates.sample("train", 200, seed=3) == dates.sample("train", 200, seed=3)
    assert dates.sample("train", 200, seed=3) != dates.sample("train", 200, seed=4)
    assert dates.sample("train", 200, seed=3)[:100] == dates.sample("train", 100, seed=3)


def test_samples_are_pairs_in_range() -> None:
    pairs = dates.sample("dev", 500, seed=0)
    assert len({source for source, _ in pairs}) == 500
    for _, target in pairs:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", target)
        assert dates.FIRST <= datetime.date.fromisoformat(target) <= dates.LAST
    scripts = "".join(source for source, _ in pairs)
    assert re.search("[٠-٩۰-۹০-৯०-९၀-၉๐-๙]", scripts)


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)])
def test_splits_share_no_source(seeds: tuple[int, int, int]) -> None:
    train, dev, test = (
        {source for source, _ in dates.sample(split, size, seed)}
        for split, size, seed in zip(("train", "dev", "test"), (5000, 1000, 1000), seeds, strict=True)
    )
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_sampled_dates_know_how_they_are_written() -> None:
    written = dates.sample_dates("dev", 50, seed=1)
    assert dates.sample("dev", 50, seed=1) == [(text, date.date.isoformat()) for text, date in written.items()]
    assert all(text == date.text for text, date in written.items())
