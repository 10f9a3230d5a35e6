"""Tokenizers: text ↔ ids, with the span of each token in the text. Based on the `tokenizers` library."""

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar, final

import numpy as np
import tokenizers

from regard.data.ragged import Ragged, compute_offsets
from regard.data.settings import (
    ImportedTokenizer,
    JoeyTokenizer,
    MarianTokenizer,
    SentencePieceSide,
    Side,
    TokenizerSettings,
    sides,
)
from regard.data.tokens import pretokenization
from regard.data.tokens.bpe_learner import split_by_length
from regard.data.tokens.sentencepiece import UNKNOWN_PIECES, build_tokenizer, read_model
from regard.data.tokens.tokenizer_file import read_tokenizer
from regard.data.tokens.vocabularies import (
    END,
    PAD,
    SPECIALS,
    START,
    UNKNOWN,
    collect_tags,
    find_tags,
    learn,
    replace_surrogates,
)
from regard.errors import ConfigError, ModelError

__all__ = ["END", "PAD", "SPECIALS", "START", "UNKNOWN", "TokenizedText", "Tokenizer", "TokenizerPair"]

Span = tuple[int, int]
T = TypeVar("T")

_UNUSUAL = re.compile(rf"[^\S ]|  |^ | $|[{pretokenization.MARK}▂]")
"""White space other than single spaces between words, and characters that are escaped."""

_MAX_CACHED_WORDS = 1 << 20

_MAX_NATIVE = 1_000_000
"""The approximate number of characters that are encoded in one native call, which signals cannot interrupt."""


class TokenizedText(NamedTuple):
    """The tokens of a text: their ids, their texts, and their spans in the text.

    The space before a word is not part of its span. All bytes of a character have its span.
    """

    ids: list[int]
    texts: list[str]
    offsets: list[Span]

    def by_word(self, text: str) -> list[tuple[Span, list[int]]]:
        """Return the span of each word of the encoded text, and the indices of its tokens. A tag is a word."""
        spans = find_words(text)
        tags = {span for span, token in zip(self.offsets, self.texts, strict=True) if _is_tag(token)}
        if tags:
            first = min(tags)[0]
            spans = [*(span for span in spans if span[1] < first), *sorted(tags)]
        words: list[tuple[Span, list[int]]] = [(span, []) for span in spans]
        for index, word in enumerate(_assign_to_words(self.offsets, spans)):
            if word >= 0:
                words[word][1].append(index)
        return words


class Tokenizer:
    """Encodes text as ids and decodes ids. Special tokens never match text: "<s>" in a text is ordinary text."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        vocabulary = inner.get_vocab()
        self._size: int = vocabulary.get(UNKNOWN_PIECES, len(vocabulary))
        self._adds_end = inner.post_processor is not None
        self._has_all_ids = self._size == len(vocabulary) and not self._adds_end
        self._tags = {token[1:]: index for token, index in vocabulary.items() if _is_tag(token)}
        self._tag_names = {index: tag for tag, index in self._tags.items()}
        self._word_cache: dict[str, list[int]] | None = (
            {} if pretokenization.segments_words_independently(inner) and not self._adds_end else None
        )
        """The ids of words that have been encoded, if words are segmented independently."""
        self._decomposes = pretokenization.decomposes(inner)

    @classmethod
    def of(cls, options: Side, texts: Iterable[str]) -> "Tokenizer":
        """Learn a tokenizer from texts, which are read once, or load one from a SentencePiece file."""
        if isinstance(options, MarianTokenizer | JoeyTokenizer):
            raise ConfigError(
                f"tokenizer: {options.kind} is the tokenizer of imported models. Start from such a model with "
                "training.init_from (regard train --from MODEL), or choose another tokenizer."
            )
        if isinstance(options, SentencePieceSide):
            model = read_model(options.path)
            return cls(build_tokenizer(model, collect_tags(texts) if options.tags else set()))
        return cls(learn(options, texts))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        inner = read_tokenizer(path)
        if tuple(map(inner.id_to_token, range(len(SPECIALS)))) != SPECIALS:
            raise ModelError(
                f"{path} was not created by regard: its first tokens are not {' '.join(SPECIALS)}. Copy it again from "
                "the original run folder."
            )
        return cls(inner)

    def to_bytes(self) -> bytes:
        """Return the content of a file for `load`."""
        text: str = self._inner.to_str(pretty=True)
        return text.encode()

    def to_json(self) -> str:
        text: str = self._inner.to_str()
        return text

    def __len__(self) -> int:
        return self._size

    @property
    def inner(self) -> tokenizers.Tokenizer:
        """The tokenizer of the `tokenizers` library, which does not handle tags."""
        return self._inner

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts without spans."""
        heads = [self._head(text) for text in texts] if self._tags else texts
        if self._word_cache is None:
            encoded = self._encode_texts([replace_surrogates(head) for head in heads])
        else:
            encoded = self._encode_by_word(heads).rows()
        if not self._tags:
            return encoded
        return [
            [*ids, *(self._tag_id(tag[0]) for tag in self._find_tags(text))]
            for ids, text in zip(encoded, texts, strict=True)
        ]

    def rows(self, texts: Sequence[str]) -> Ragged:
        """Encode texts as the rows of an array, which is faster for a corpus."""
        if self._word_cache is None or self._tags:
            return Ragged.of(self.ids(texts))
        return self._encode_by_word(texts)

    def _encode_texts(self, texts: list[str]) -> list[list[int]]:
        encode = self._inner.encode_batch_fast
        rows = [encoding.ids for batch in split_by_length(texts, _MAX_NATIVE) for encoding in encode(batch)]
        return rows if self._has_all_ids else list(map(self._replace_unknown, rows))

    def _replace_unknown(self, ids: list[int]) -> list[int]:
        """Replace pieces without an id. A text without tokens has no end token either."""
        if self._adds_end and len(ids) == 1:
            return []
        return [index if index < self._size else UNKNOWN for index in ids]

    def _encode_by_word(self, texts: Sequence[str]) -> Ragged:
        """Encode texts word by word with a cache. No token crosses a space. An unusual text is encoded in one part."""
        cache = self._word_cache
        assert cache is not None
        parts, counts = _split_at_spaces(texts)
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__  # a new part gets the next number
        numbers_N = np.fromiter(map(numbers.__getitem__, parts), np.int64, len(parts))
        cached = list(map(cache.get, numbers))  # read once, because another thread may clear the cache
        new = [part for part, ids in zip(numbers, cached, strict=True) if ids is None]
        encoded = dict(zip(new, self._encode_texts(new), strict=True))
        table = Ragged.of(encoded[part] if ids is None else ids for part, ids in zip(numbers, cached, strict=True))
        if len(cache) + len(new) > _MAX_CACHED_WORDS:
            cache.clear()
        cache.update((part, ids) for part, ids in encoded.items() if not _UNUSUAL.search(part))
        by_part = table.take(numbers_N)
        return Ragged(by_part.flat, by_part.offsets[compute_offsets(counts)])

    def truncate(self, tokens: list[T], length: int) -> list[T]:
        """Return the first tokens of a text. If the tokenizer appends an end token, it remains the last one."""
        if self._adds_end and len(tokens) > length:
            return [*tokens[: length - 1], tokens[-1]]
        return tokens[:length]

    def encode(self, texts: Sequence[str]) -> list[TokenizedText]:
        encodings = self._inner.encode_batch([replace_surrogates(self._head(text)) for text in texts])
        encoded = []
        for text, encoding in zip(texts, encodings, strict=True):
            spans = [
                _trim_span(text, token, span) for token, span in zip(encoding.tokens, encoding.offsets, strict=True)
            ]
            tokens = TokenizedText(encoding.ids, encoding.tokens, spans)
            if not self._has_all_ids:
                ids = self._replace_unknown(encoding.ids)
                if self._adds_end:
                    spans[-1] = len(text), len(text)
                tokens = TokenizedText(ids, encoding.tokens[: len(ids)], spans[: len(ids)])
            for tag in self._find_tags(text):
                tokens.ids.append(self._tag_id(tag[0]))
                tokens.texts.append(pretokenization.TAB + tag[0])
                tokens.offsets.append(tag.span())
            encoded.append(tokens)
        return encoded

    def find_unknown(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the parts of each text that have no token, without duplicates."""
        unknown: list[list[str]] = [[] for _ in texts]
        affected = [row for row, ids in enumerate(self.ids(texts)) if UNKNOWN in ids]
        for row, tokens in zip(affected, self.encode([texts[row] for row in affected]), strict=True):
            spans = [span for token, span in zip(tokens.ids, tokens.offsets, strict=True) if token == UNKNOWN]
            unknown[row] = list(dict.fromkeys(texts[row][slice(*span)] for span in spans))
        return unknown

    def decode(self, ids: Sequence[int]) -> str:
        names = [self._tag_names[index] for index in ids if index in self._tag_names]
        head = [index for index in ids if index not in self._tag_names] if names else list(ids)
        text: str = self._inner.decode(head, skip_special_tokens=False)
        if self._decomposes:
            text = unicodedata.normalize("NFC", text)
        return f"{text}{pretokenization.TAB}{';'.join(names)}" if names else text

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode rows of ids, in parallel if no row contains tags."""
        if self._tags:
            return [self.decode(ids) for ids in rows]
        texts: list[str] = self._inner.decode_batch(rows, skip_special_tokens=False)
        return [unicodedata.normalize("NFC", text) for text in texts] if self._decomposes else texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [str(self._inner.id_to_token(index)) for index in ids]

    def words(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pre-tokenized words of each text. A tag is a word."""
        normalize, pre_tokenize = self._inner.normalizer.normalize_str, self._inner.pre_tokenizer.pre_tokenize_str
        return [
            [
                *(word for word, _ in pre_tokenize(normalize(replace_surrogates(self._head(text))))),
                *(pretokenization.TAB + tag[0] for tag in self._find_tags(text)),
            ]
            for text in texts
        ]

    def segment_words(self, words: Iterable[str]) -> list[list[int]]:
        """Return the ids of each word. Concatenated over the words of a text, they are the ids of the text."""
        segment = self._inner.model.tokenize
        return [[self._tag_id(word[1:])] if _is_tag(word) else [token.id for token in segment(word)] for word in words]

    def _head(self, text: str) -> str:
        """Return the text without its tags."""
        return text.partition(pretokenization.TAB)[0] if self._tags else text

    def _find_tags(self, text: str) -> Iterable[re.Match[str]]:
        return find_tags(text, len(self._head(text))) if self._tags else ()

    def _tag_id(self, tag: str) -> int:
        return self._tags.get(tag, UNKNOWN)


def _split_at_spaces(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Split texts at spaces. Return the parts of all texts, and their number in each text. An unusual text is one part.

    Texts without unusual characters are split together, which is faster: the others are found by bisection.
    """
    joined = " ".join(texts)
    if _is_usual(joined):
        return joined.split(" "), [text.count(" ") + 1 for text in texts]
    if len(texts) > 8:
        middle = len(texts) // 2
        (first, first_counts), (second, second_counts) = map(_split_at_spaces, (texts[:middle], texts[middle:]))
        return first + second, first_counts + second_counts
    replaced = map(replace_surrogates, texts)
    parts_by_text = [[text] if _UNUSUAL.search(text) else text.split(" ") for text in replaced]
    return list(chain.from_iterable(parts_by_text)), list(map(len, parts_by_text))


def _is_usual(text: str) -> bool:
    """Whether a text consists of printable words with single spaces between them, and no characters that are escaped.
    White space other than the space is not printable, nor are surrogates.
    """
    return (
        text.isprintable()
        and "  " not in text
        and text[:1] != " "
        and text[-1:] != " "
        and pretokenization.MARK not in text
        and "▂" not in text
    )


def _is_tag(token: str) -> bool:
    return len(token) > 1 and token[0] == pretokenization.TAB


def _trim_span(text: str, token: str, span: Span) -> Span:
    """Remove the space before a word from the span of a token. The span of an inserted mark is empty."""
    start, end = span
    if end - start > 1 and text[start].isspace():
        return start + 1, end
    inserted = (
        token == pretokenization.MARK
        and end > start
        and not text[start].isspace()
        and text[start] != pretokenization.MARK
    )
    return (start, start) if inserted else span


class TokenizerPair(NamedTuple):
    """The tokenizers of sources and targets; the same object if the vocabulary is shared. Sources that are not text are
    not tokenized: the pair then contains the tokenizer of the targets, as if it were shared.
    """

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def build(cls, settings: TokenizerSettings, sources: Iterable[str], targets: Iterable[str]) -> "TokenizerPair":
        """Learn the tokenizers from texts, which are read once."""
        source, target = sides(settings)
        if settings.shared:
            shared = Tokenizer.of(source, chain(sources, targets))
            return cls(shared, shared)
        return cls(Tokenizer.of(source, sources), Tokenizer.of(target, targets))

    @classmethod
    def load(cls, folder: Path, settings: TokenizerSettings) -> "TokenizerPair":
        source = Tokenizer.load(folder / "tokenizer.json")
        has_one = settings.shared and not isinstance(settings, ImportedTokenizer)
        return cls(source, source if has_one else Tokenizer.load(folder / "tokenizer.target.json"))

    def fingerprint(self) -> list[str]:
        """Return a hash of each tokenizer."""
        return [hashlib.sha256(side.to_json().encode()).hexdigest() for side in self]

    def save(self, write: Callable[[str, bytes], object]) -> None:
        """Save the tokenizers by calling `write(name, content)` for each file."""
        write("tokenizer.json", self.source.to_bytes())
        if self.target is not self.source:
            write("tokenizer.target.json", self.target.to_bytes())


def index_words(text: str, offsets: Sequence[Span]) -> list[int]:
    """Return the index in `text.split()` of the word of each token, given the spans of tokens; −1 for white space.

    A token that contains several words belongs to the first.
    """
    return _assign_to_words(offsets, find_words(text))


def find_words(text: str) -> list[Span]:
    """Return the spans of the words of a text, which white space separates."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def _assign_to_words(tokens: Sequence[Span], words: Sequence[Span]) -> list[int]:
    ends = [end for _, end in words]
    indices = []
    for start, end in tokens:
        word = bisect_right(ends, start)
        # The span of a mark that was inserted before a word is empty.
        belongs = word < len(words) and max(end, start + 1) > words[word][0]
        indices.append(word if belongs else -1)
    return indices


def index_pretokenized(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the index in `text.split()` of the word that each pre-tokenized word (`Tokenizer.words`) is part of.

    White space has the index −1. So have words whose index is not known: all words of a text in which normalization
    adds or removes white space, and pre-tokenized words that contain white space.
    """
    indices = []
    for text, words in zip(texts, tokenizer.words(texts), strict=True):
        spelled = [word.replace(pretokenization.MARK, " ") for word in words]
        ends = list(accumulate(map(len, spelled)))
        spans = [(end - len(word.lstrip() or word), end) for word, end in zip(spelled, ends, strict=True)]
        normalized = "".join(spelled)
        found = index_words(normalized, spans)
        known = len(normalized.split()) == len(text.split())
        indices.append(
            [index if known and len(word.split()) == 1 else -1 for index, word in zip(found, spelled, strict=True)]
        )
    return indices


MAX_NAMED = 8
"""The maximum number of unknown tokens named in a message."""


@final
@dataclass
class UnknownTokens:
    """The first distinct unknown tokens, which a message names, and the number of texts with unknown tokens."""

    texts: int = 0
    _distinct: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, unknown: Iterable[str]) -> "UnknownTokens":
        """Return the unknown tokens of one text."""
        collected = cls()
        collected.add(unknown)
        return collected

    def add(self, unknown: Iterable[str]) -> None:
        """Add the unknown tokens of a text."""
        found = dict.fromkeys(unknown)
        self.texts += bool(found)
        if len(self._distinct) <= MAX_NAMED:
            self._distinct |= found

    @property
    def names(self) -> list[str]:
        """The tokens that a message names, and one more if there are others."""
        return list(islice(self._distinct, MAX_NAMED + 1))

    def __bool__(self) -> bool:
        return bool(self._distinct)

    def __str__(self) -> str:
        """Return the names of the tokens."""
        more = " and others" if len(self._distinct) > MAX_NAMED else ""
        return ", ".join(map(repr, islice(self._distinct, MAX_NAMED))) + more
