"""From the settings of a corpus to what training works on: tokenisers, token ids, and the pairs to choose by."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from regard.data.batching import Encoded
from regard.data.cache import key_of, remember
from regard.data.corpora import Corpus, Pairs
from regard.data.settings import Data, TokenizerChoice
from regard.data.tokenizers import TokenizerPair
from regard.errors import DataError

_FORMAT = 1
"""Raised when what is written to the cache changes."""

Say = Callable[[str], object]


class Prepared(NamedTuple):
    """What a run learns from, and what it is validated on."""

    tokenizers: TokenizerPair
    train: Encoded
    dev: Pairs


def prepare(
    corpus: Corpus,
    fingerprint: dict[str, str],
    data: Data,
    tokenizer: TokenizerChoice,
    given: TokenizerPair | None,
    say: Say,
) -> Prepared:
    """A corpus in token ids. One from files is tokenised once, and then mapped from the cache.

    A run that goes on gives its own tokenisers, so that no other can come to be used.
    """
    if not corpus.files:
        tokenizers = given or _learn(corpus, tokenizer)
        dev = Pairs.of(corpus.dev)
        return Prepared(tokenizers, Encoded.of(corpus.train, tokenizers, tokenizer.max_length), dev)
    made_of = (_FORMAT, fingerprint, data.model_dump(mode="json"))
    if given is None:
        learned = key_of(*made_of, tokenizer.model_dump(mode="json"))
        folder = remember("tokenizers", learned, lambda place: _save(_learn(corpus, tokenizer, say), place))
        given = TokenizerPair.load(folder, tokenizer)
    ids = key_of(*made_of, given.fingerprint(), tokenizer.max_length)
    folder = remember("corpora", ids, lambda place: _encode(corpus, given, tokenizer.max_length, place, say))
    train = Encoded.open(folder)
    dev = Pairs.of(json.loads((folder / "dev.json").read_text("utf-8")))
    if not len(train) or not len(dev):
        pairs = len(train) + len(dev)
        raise DataError(
            f"{corpus.files[0]}: {pairs} pairs are too few to hold some back for validation. Give dev files."
        )
    return Prepared(given, train, dev)


def _learn(corpus: Corpus, settings: TokenizerChoice, say: Say = lambda _: None) -> TokenizerPair:
    start = time.monotonic()
    sources, targets = (source for source, _ in corpus.train), (target for _, target in corpus.train)
    learned = TokenizerPair.build(settings, sources, targets)
    say(f"Tokeniser learned in {time.monotonic() - start:.1f} s.")
    return learned


def _save(tokenizers: TokenizerPair, place: Path) -> None:
    tokenizers.save(place, lambda path, save: save(path))


def _encode(corpus: Corpus, tokenizers: TokenizerPair, max_length: int, place: Path, say: Say) -> None:
    start = time.monotonic()
    Encoded.write(place, corpus.train, tokenizers, max_length)
    (place / "dev.json").write_text(json.dumps(list(corpus.dev), ensure_ascii=False), "utf-8")
    say(f"Corpus tokenised in {time.monotonic() - start:.1f} s; it is kept in {place.parent} for the next run.")
