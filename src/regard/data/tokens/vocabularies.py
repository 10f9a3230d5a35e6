"""Learn the vocabularies of tokenizers from text, which is read once and not stored.

A vocabulary contains the special tokens (ids 0 to 3), the user's symbols, the bytes, the learned tokens, and the tags.
The token of a tag starts with a tab, so that the tag V and the letter V are different tokens.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from regard.data.settings import BPESide, CharSide, TrainableSide, UnigramSide, WordSide
from regard.data.tokens import pretokenization, unigram
from regard.data.tokens.bpe_learner import learn_merges
from regard.data.tokens.pretokenization import MAX_WORD_LENGTH
from regard.errors import ConfigError, DataError
from regard.formatting import quantity
from regard.operating_system import call_in_forks

log = logging.getLogger(__name__)

# If the variable is set, the library does not warn when the process forks. A forked child has none of the library's
# threads, and must not use them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
call_in_forks(lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

PAD, UNKNOWN, START, END = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

_TAG = re.compile(r"[^;\s]+")

Merges = list[tuple[str, str]]


class LearnedTokens(NamedTuple):
    """Tokens in the order of their ids, with the merges of BPE or the log-probabilities of a unigram model."""

    tokens: list[str]
    merges: Merges | None = None
    scores: dict[str, float] | None = None


def learn(options: TrainableSide, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Learn a tokenizer from texts."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = pretokenization.build_normalizer(options)
    inner.pre_tokenizer = pretokenization.build_pre_tokenizer(options)
    fixed = [*SPECIALS, *pretokenization.normalized_symbols(options), *(BYTES if options.byte_fallback else [])]
    stream = _TextStream(texts, options.tags, {"bpe": "split", "unigram": "truncated"}.get(options.kind))
    match options:
        case CharSide():
            learned = _learn_characters(inner, stream)
        case WordSide():
            learned = _learn_words(options, inner, stream)
        case BPESide():
            learned = _learn_bpe(options, inner, stream, fixed)
        case UnigramSide():
            learned = _learn_unigram(options, inner, stream, fixed)
    reserved = set(fixed)
    rest = [
        *(token for token in learned.tokens if token not in reserved),
        *(pretokenization.TAB + tag for tag in sorted(stream.tags)),
    ]
    inner.model = build_model(fixed, learned._replace(tokens=rest), byte_fallback=options.byte_fallback)
    inner.decoder = pretokenization.build_decoder(options)
    return inner


def build_model(
    fixed: list[str], learned: LearnedTokens, *, byte_fallback: bool, fuse_unknown: bool = False
) -> models.Model:
    """Build the model of a tokenizer from its fixed and its learned tokens.

    A BPE model uses `ignore_merges`, so that a word in the vocabulary is one token: symbols have no merges. Without any
    merges, it looks words up, with fallback to bytes.
    """
    vocabulary = {token: index for index, token in enumerate([*fixed, *learned.tokens])}
    if learned.scores is not None:
        # Symbols have probability 1, so that no other segmentation is more likely.
        scored = [(token, learned.scores.get(token, 0.0)) for token in vocabulary]
        return models.Unigram(scored, unk_id=UNKNOWN, byte_fallback=byte_fallback)
    if learned.merges is None and not byte_fallback:
        return models.WordLevel(vocabulary, unk_token=SPECIALS[UNKNOWN])
    return models.BPE(
        vocabulary,
        learned.merges or [],
        unk_token=SPECIALS[UNKNOWN],
        byte_fallback=byte_fallback,
        fuse_unk=fuse_unknown,
        ignore_merges=True,
    )


MAX_TAGS = 200
"""The maximum number of distinct tags. Text that is mistaken for tags soon has more distinct values."""


class _TextStream:
    """Iterates over texts without their tags, which are collected and checked.

    `treatment` is what happens to words that are longer than `MAX_WORD_LENGTH` when subwords are learned: "split" or
    "truncated". At the end, a warning reports the number of such words.
    """

    def __init__(self, texts: Iterable[str], tagged: bool, treatment: str | None = None) -> None:
        self._texts, self._tagged, self._treatment = texts, tagged, treatment
        self.tags: set[str] = set()
        self._empty, self._with_tags, self._long_words = True, 0, 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self._empty = self._empty and not text
            head, tab, _ = text.partition(pretokenization.TAB) if self._tagged else (text, "", "")
            if tab:
                self._with_tags += 1
                self.tags.update(match[0] for match in find_tags(text, len(head)))
            if self._treatment and len(head) > MAX_WORD_LENGTH:
                self._long_words += sum(len(word) > MAX_WORD_LENGTH for word in head.split())
            yield replace_surrogates(head)
        self._check()

    def _check(self) -> None:
        if self._empty:
            raise DataError("There is no text to learn a vocabulary from. Check the files of data.train.")
        if self._tagged and not self.tags:
            raise DataError(
                "tokenizer.tags is true, but no source has tags. Tags follow the text after a tab, as in "
                "laufen<TAB>V;PST. Check the columns that are read, or set tokenizer.tags=false."
            )
        if self._long_words:
            log.warning(
                "The texts have %s of more than %d characters. To learn subwords, such words are %s; the training "
                "pairs do not change.",
                quantity(self._long_words, "word"),
                MAX_WORD_LENGTH,
                self._treatment,
            )
        if too_many_tags(self.tags, self._with_tags):
            log.warning(
                "There are unusually many tags: %d distinct ones in %d sources (%s …). Tags follow the text after a "
                "tab, as in laufen<TAB>V;PST. Check that the columns are not swapped.",
                len(self.tags),
                self._with_tags,
                ", ".join(sorted(self.tags)[:3]),
            )


def collect_tags(texts: Iterable[str]) -> set[str]:
    """Return the tags of texts, for a vocabulary that is not learned from them."""
    stream = _TextStream(texts, tagged=True)
    for _ in stream:
        pass
    return stream.tags


def too_many_tags(tags: Collection[str], sources: int) -> bool:
    """Whether there are too many distinct values for this number of sources to be tags."""
    return len(tags) > MAX_TAGS or (sources >= 20 and len(tags) > sources / 2)


def find_tags(text: str, start: int) -> Iterator[re.Match[str]]:
    """Find the tags of a text from a position on."""
    return _TAG.finditer(text, start)


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which cannot be encoded as UTF-8, with question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _learn_characters(inner: tokenizers.Tokenizer, texts: Iterable[str]) -> LearnedTokens:
    characters: set[str] = set()
    for text in texts:
        characters.update(inner.normalizer.normalize_str(text))
    return LearnedTokens(sorted(characters))


def _learn_words(options: WordSide, inner: tokenizers.Tokenizer, texts: Iterable[str]) -> LearnedTokens:
    counts = _count_words(inner, texts, options)
    frequent = (word for word, count in counts.items() if count >= options.min_count)
    return LearnedTokens(sorted(frequent, key=lambda word: (-counts[word], word))[: options.vocabulary])


def _count_words(inner: tokenizers.Tokenizer, texts: Iterable[str], options: TrainableSide) -> Counter[str]:
    """Count the occurrences of each word, except symbols."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.split(" "))
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(chunk)):
            words[word] += count
    for symbol in pretokenization.normalized_symbols(options):
        words.pop(symbol, None)
    return words


def _learn_bpe(options: BPESide, inner: tokenizers.Tokenizer, texts: Iterable[str], fixed: list[str]) -> LearnedTokens:
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = inner.normalizer
    learner.pre_tokenizer = split = pretokenization.build_pre_tokenizer(options, MAX_WORD_LENGTH)
    if options.symbols:
        remove_symbols = pre_tokenizers.Split(
            Regex("|".join(pretokenization.escape_all(pretokenization.normalized_symbols(options)))), "removed"
        )
        learner.pre_tokenizer = pre_tokenizers.Sequence([remove_symbols, split])
    size = max(options.vocabulary - len(fixed), 0)
    model = learn_merges(learner, texts, size=size, min_count=options.min_count, alphabet=[pretokenization.MARK])
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    _check_size(options.vocabulary, len(fixed), sum(len(token) == 1 for token in tokens), len(tokens))
    return LearnedTokens(tokens, [(left, right) for left, right in model["merges"]])


def _learn_unigram(
    options: UnigramSide, inner: tokenizers.Tokenizer, texts: Iterable[str], fixed: list[str]
) -> LearnedTokens:
    counts = _count_words(inner, texts, options)
    alphabet = {pretokenization.MARK, *(character for word in counts for character in word)}
    size = options.vocabulary - len(fixed)
    _check_size(options.vocabulary, len(fixed), len(alphabet), max(size, len(alphabet)))
    pieces = unigram.learn_pieces(counts, alphabet, size)
    _check_size(options.vocabulary, len(fixed), len(alphabet), len(pieces))
    return LearnedTokens([piece for piece, _ in pieces], scores=dict(pieces))


def _check_size(requested: int, fixed: int, alphabet: int, learned: int) -> None:
    """Raise an error if the vocabulary is smaller than the alphabet; warn if the text yields fewer tokens."""
    if fixed + alphabet > requested:
        raise ConfigError(
            f"tokenizer.vocabulary={requested:,} is too small: the text has {alphabet:,} different characters, and "
            f"{fixed:,} tokens are reserved (special tokens, symbols, bytes). Set it to more than {fixed + alphabet:,}."
        )
    if fixed + learned < requested:
        log.warning(
            "The vocabulary has %s tokens instead of %s, because the text contains no more.",
            f"{fixed + learned:,}",
            f"{requested:,}",
        )
