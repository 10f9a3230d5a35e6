"""How the vocabulary of each kind of tokenizer is learned from text, which is read once and not kept.

A vocabulary holds the special tokens (ids 0 to 3), the user's symbols, the bytes, what was learned, and the tags. A
tag's token begins with a tab, which no word does: the tag V and the letter V are two tokens.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from regard.data.settings import BPESide, CharSide, SpelledSide, UnigramSide, WordSide
from regard.data.tokens import pretokenization, unigram
from regard.errors import ConfigError, DataError

log = logging.getLogger(__name__)

# Said outright, the library does not warn when the process forks; a child has none of its threads, and does without.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

PAD, UNKNOWN, START, END = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

_TAG = re.compile(r"[^;\s]+")

Merges = list[tuple[str, str]]


class Learned(NamedTuple):
    """Tokens in the order of their ids, with the merges that make them or their log-probabilities."""

    tokens: list[str]
    merges: Merges | None = None
    scores: dict[str, float] | None = None


def learn(options: SpelledSide, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A tokenizer of the kind that is set, made from some text."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer, inner.pre_tokenizer = pretokenization.normalizer(options), pretokenization.cutter(options)
    known = [*SPECIALS, *pretokenization.symbols(options), *(BYTES if options.byte_fallback else [])]
    stream = _Stream(texts, options.tags)
    match options:
        case CharSide():
            learned = _characters(inner, stream)
        case WordSide():
            learned = _words(options, inner, stream)
        case BPESide():
            learned = _bpe(options, inner, stream, known)
        case UnigramSide():
            learned = _unigram(options, inner, stream, known)
    own = set(known)
    rest = [
        *(token for token in learned.tokens if token not in own),
        *(pretokenization.TAB + tag for tag in sorted(stream.tags)),
    ]
    inner.model = build_model(known, learned._replace(tokens=rest), byte_fallback=options.byte_fallback)
    inner.decoder = pretokenization.decoder(options)
    return inner


def build_model(known: list[str], learned: Learned, *, byte_fallback: bool, fuse_unknown: bool = False) -> models.Model:
    """The model over some known tokens and those that were learned.

    A BPE takes a word that is a token whole, as it must take a symbol, which no merges lead to. Without merges, it
    looks words up and falls back on bytes.
    """
    vocabulary = {token: index for index, token in enumerate([*known, *learned.tokens])}
    if learned.scores is not None:
        # No path over learned pieces, each less likely than 1, is likelier than a symbol's.
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
"""No language has so many; texts that were taken for tags soon have more."""


class _Stream:
    """Texts to learn from, counted as they pass; their tags are set aside."""

    def __init__(self, texts: Iterable[str], tagged: bool) -> None:
        self._texts, self._tagged = texts, tagged
        self.tags: set[str] = set()
        self._empty, self._with_tags = True, 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self._empty = self._empty and not text
            head, tab, _ = text.partition(pretokenization.TAB) if self._tagged else (text, "", "")
            if tab:
                self._with_tags += 1
                self.tags.update(found[0] for found in find_tags(text, len(head)))
            yield whole_characters(head)
        self._check()

    def _check(self) -> None:
        if self._empty:
            raise DataError("There is no text to learn a vocabulary from. Check the files of data.train.")
        if self._tagged and not self.tags:
            raise DataError(
                "tokenizer.tags is set, and no source has tags. They follow the text after a tab, as in "
                "laufen<TAB>V;PST: check the columns that are read, or set tokenizer.tags=false."
            )
        if too_many_tags(self.tags, self._with_tags):
            log.warning(
                "%d different tags in %d sources are many: %s … Tags follow the text after a tab, as in "
                "laufen<TAB>V;PST; do the columns stand the other way round?",
                len(self.tags),
                self._with_tags,
                ", ".join(sorted(self.tags)[:3]),
            )


def collect_tags(texts: Iterable[str]) -> set[str]:
    """The tags of some texts, for a vocabulary that is not learned from them."""
    stream = _Stream(texts, tagged=True)
    for _ in stream:
        pass
    return stream.tags


def too_many_tags(tags: Collection[str], sources: int) -> bool:
    """Whether so many different ones in so many sources can hardly be tags."""
    return len(tags) > MAX_TAGS or (sources >= 20 and len(tags) > sources / 2)


def find_tags(text: str, start: int) -> Iterator[re.Match[str]]:
    """The tags in a text from some place on."""
    return _TAG.finditer(text, start)


def whole_characters(text: str) -> str:
    """Half of a surrogate pair is no character, and becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _characters(inner: tokenizers.Tokenizer, texts: Iterable[str]) -> Learned:
    seen: set[str] = set()
    for text in texts:
        seen.update(inner.normalizer.normalize_str(text))
    return Learned(sorted(seen))


def _words(options: WordSide, inner: tokenizers.Tokenizer, texts: Iterable[str]) -> Learned:
    counts = _count(inner, texts, options)
    frequent = (word for word, count in counts.items() if count >= options.min_count)
    return Learned(sorted(frequent, key=lambda word: (-counts[word], word))[: options.vocabulary])


def _count(inner: tokenizers.Tokenizer, texts: Iterable[str], options: SpelledSide) -> Counter[str]:
    """How often each word occurs, symbols left out."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.split(" "))
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(chunk)):
            words[word] += count
    for symbol in pretokenization.symbols(options):
        words.pop(symbol, None)
    return words


def _bpe(options: BPESide, inner: tokenizers.Tokenizer, texts: Iterable[str], known: list[str]) -> Learned:
    room = options.vocabulary - len(known)
    trainer = trainers.BpeTrainer(
        vocab_size=max(room, 0),
        min_frequency=options.min_count,
        initial_alphabet=[pretokenization.MARK],
        show_progress=False,
    )
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = inner.normalizer, inner.pre_tokenizer
    if options.symbols:
        without = pre_tokenizers.Split(
            Regex("|".join(pretokenization.either(pretokenization.symbols(options)))), "removed"
        )
        learner.pre_tokenizer = pre_tokenizers.Sequence([without, inner.pre_tokenizer])
    learner.train_from_iterator(texts, trainer)
    found = json.loads(learner.to_str())["model"]
    tokens = sorted(found["vocab"], key=found["vocab"].__getitem__)
    _check_size(options.vocabulary, len(known), sum(len(token) == 1 for token in tokens), len(tokens))
    return Learned(tokens, [(left, right) for left, right in found["merges"]])


def _unigram(options: UnigramSide, inner: tokenizers.Tokenizer, texts: Iterable[str], known: list[str]) -> Learned:
    counts = _count(inner, texts, options)
    alphabet = {pretokenization.MARK, *(character for word in counts for character in word)}
    room = options.vocabulary - len(known)
    _check_size(options.vocabulary, len(known), len(alphabet), max(room, len(alphabet)))
    pieces = unigram.learn_pieces(counts, alphabet, room)
    _check_size(options.vocabulary, len(known), len(alphabet), len(pieces))
    return Learned([piece for piece, _ in pieces], scores=dict(pieces))


def _check_size(wanted: int, known: int, alphabet: int, reached: int) -> None:
    """Refuse a vocabulary without room for every character; say where a text does not fill it."""
    if known + alphabet > wanted:
        raise ConfigError(
            f"tokenizer.vocabulary={wanted:,} is too small: the text has {alphabet:,} different characters, and "
            f"{known:,} tokens are set aside (specials, symbols, bytes). Set it to more than {known + alphabet:,}."
        )
    if known + reached < wanted:
        log.warning(
            "The vocabulary has %s tokens, not the %s that were asked for: the text does not give more.",
            f"{known + reached:,}",
            f"{wanted:,}",
        )
