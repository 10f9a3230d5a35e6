"""Source, presets and docs use the standard terms of the field.

`WRONG` lists words that are wrong in any context, and what to write instead.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

WRONG = {
    "told": "printed, reported, returned",
    "begun": "started",
    "worked out": "computed, derived analytically",
    "so many": "N, up to N",
    "so often": "N times",
    "gone on": "resumed, continued",
    "gave out": "ran out of memory",
    "each but once": "each once",
    "in the mean": "on average",
    "played again": "replayed (CUDA graph)",
    "passed over": "ignored, ignore_index",
    "in disguise": "equivalent to",
    "few shapes": "bucketed shapes",
    "the house": "the package",
    "roomy": "preallocated",
    "plainly": "reference mode",
    "wishes": "constraints, overrides",
    "wished": "requested",
    "likeliest": "most likely",
    "fewest": "minimum",
    "bolder": "more diverse",
    "freer": "more diverse",
    "afresh": "again, from scratch",
    "anew": "again, from scratch",
    "mended": "fixed",
    "shall": "must, should",
    "tokenise": "tokenize",
    "tokeniser": "tokenizer",
    "normalise": "normalize",
    "normalisation": "normalization",
    "initialise": "initialize",
    "optimise": "optimize",
    "optimiser": "optimizer",
    "colour": "color",
    "behaviour": "behavior",
    "neighbour": "neighbor",
}


def find_wrong_words(text: str) -> list[str]:
    """Match words in prose and in identifiers, also if they continue on the next line of a comment."""
    words = "|".join(words.replace(" ", r"[\s_#]+") for words in WRONG)
    matches = re.finditer(rf"(?<![A-Za-z])(?:{words})s?(?![A-Za-z])", text, re.IGNORECASE)
    return [f"{len(text[: match.end()].splitlines())}: {' '.join(match[0].split())}" for match in matches]


def test_text_uses_the_terms_of_the_field() -> None:
    texts = [path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*")]
    files = [path for path in (*ROOT.glob("*.md"), *texts) if path.suffix in {".py", ".md", ".yaml"}]
    assert not [f"{path}:{found}" for path in files for found in find_wrong_words(path.read_text("utf-8"))]


def test_wrong_words_are_found_in_prose_identifiers_and_across_lines() -> None:
    text = "The loss is told.\n# a gradient worked\n# out by hand: Colours, passed_over, shallow, untold."
    assert find_wrong_words(text) == ["1: told", "3: worked # out", "3: Colours", "3: passed_over"]
