"""Held-out pairs: the shares of a corpus without dev and test files that are used for validation and testing."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import compress
from typing import NamedTuple

import numpy as np

from regard.data.settings import SPLITS, SplitName

DEV_SHARE, MIN_DEV_PAIRS, MAX_DEV_PAIRS = 0.05, 50, 2_000
"""Without dev files: the share of the training pairs that is held out for validation, and its approximate minimum and
maximum in pairs. At most a fifth of a small corpus is held out.
"""

TEST_SHARE, MIN_PAIRS_FOR_TEST, MAX_TEST_PAIRS = 0.05, 1_000, 1_000
"""Without dev and test files: the share of the training pairs that is held out for testing, the minimum size of a
corpus for this, and the approximate maximum in pairs.
"""

PairBlock = tuple[list[str], list[str]]
"""The sources and the targets of consecutive pairs."""


class HeldOutShares(NamedTuple):
    """The shares of the sources that are held out for validation and for testing."""

    dev: float
    test: float

    @classmethod
    def of(cls, pairs: int, *, dev: bool, test: bool) -> "HeldOutShares":
        """Return the shares for a number of pairs: 5 % for validation; more for a small corpus, and about
        `MAX_DEV_PAIRS` pairs for a large one. Without `dev`, nothing is held out.
        """
        if not dev:
            return cls(0.0, 0.0)
        pairs = max(1, pairs)
        dev_share = min(max(DEV_SHARE, min(0.2, MIN_DEV_PAIRS / pairs)), MAX_DEV_PAIRS / pairs)
        has_test = test and pairs >= MIN_PAIRS_FOR_TEST
        return cls(dev_share, min(TEST_SHARE, MAX_TEST_PAIRS / pairs) if has_test else 0.0)

    def split_of(self, source: str) -> SplitName:
        """Return the split of a source, by a hash of it: no source is in two splits, and the order does not matter."""
        value = hash_to_unit_interval(source)
        return "dev" if value < self.dev else "test" if value >= 1 - self.test else "train"

    def split_block(self, block: PairBlock) -> dict[SplitName, PairBlock]:
        """Split a block of pairs. This is faster than `split_of`, because the hashes are compared at once."""
        sources, targets = block
        values_N = np.frombuffer(b"".join(map(_hash, sources)), ">u8") / 2**64
        is_dev_N, is_test_N = values_N < self.dev, values_N >= 1 - self.test
        masks = {"train": ~(is_dev_N | is_test_N), "dev": is_dev_N, "test": is_test_N & ~is_dev_N}
        selected = {split: mask_N.tolist() for split, mask_N in masks.items()}
        return {
            split: (list(compress(sources, selected[split])), list(compress(targets, selected[split])))
            for split in SPLITS
        }


class UnsplitPairs(NamedTuple):
    """All pairs of the training files, in blocks, and the shares of them that are held out."""

    read: Callable[[], Iterator[PairBlock]]
    shares: HeldOutShares

    def sample(self, step: int) -> Iterator[tuple[str, str]]:
        """Yield the training pairs among every n-th pair."""
        skipped = 0
        for sources, targets in self.read():
            block = sources[skipped::step], targets[skipped::step]
            skipped = (skipped - len(sources)) % step
            yield from zip(*self.shares.split_block(block)["train"], strict=True)


def hash_to_unit_interval(text: str) -> float:
    """Map a text to a number in [0, 1), the same in every process."""
    return int.from_bytes(_hash(text), "big") / 2**64


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
