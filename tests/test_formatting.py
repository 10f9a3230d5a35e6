"""Text for messages: articles; and standard JSON, without NaN and infinity."""

import json
import math

import pytest

from regard.formatting import add_article, to_json


@pytest.mark.parametrize(("noun", "expected"), [("text", "a text"), ("image", "an image"), ("Item", "an Item")])
def test_the_article_agrees_with_the_noun(noun: str, expected: str) -> None:
    assert add_article(noun) == expected


def test_nan_and_infinity_become_null() -> None:
    value = {"score": -math.inf, "attention": [[0.5, math.nan], (math.inf, 1)], "text": "3 mai", "none": None}
    text = to_json(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "score": None,
        "attention": [[0.5, None], [None, 1]],
        "text": "3 mai",
        "none": None,
    }


def test_finite_values_are_serialized_as_by_the_standard_library() -> None:
    value = {"a": [1, 2.5, True, None], "b": "漢\n"}
    assert to_json(value) == json.dumps(value)
    assert to_json(value, ensure_ascii=False, indent=1) == json.dumps(value, ensure_ascii=False, indent=1)
