"""Tokenizers: text ↔ ids, on the `tokenizers` library; where each token stood in the text is kept."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import tokenizers

from regard.data.settings import CharSide, SentencePieceSide, Side, TokenizerSettings, sides
from regard.data.tokens import pretokenization
from regard.data.tokens.sentencepiece import build_tokenizer, read_model
from regard.data.tokens.vocabularies import (
    END,
    PAD,
    SPECIALS,
    START,
    UNKNOWN,
    collect_tags,
    find_tags,
    learn,
    whole_characters,
)
from regard.errors import ModelError

__all__ = ["END", "PAD", "SPECIALS", "START", "UNKNOWN", "Tokenizer", "TokenizerPair", "Tokens"]

Span = tuple[int, int]

_UNUSUAL = re.compile(rf"[^\S ]|  |^ | $|[{pretokenization.MARK}▂]")
"""White space other than single spaces between words, and signs that are escaped."""

_MOST_KNOWN = 1 << 20


class Tokens(NamedTuple):
    """A text in tokens: their ids, how they read, and the span of the text that each stands for.

    The space before a word is no part of its span. The bytes of a character all have its span.
    """

    ids: list[int]
    texts: list[str]
    offsets: list[Span]

    def by_word(self, text: str) -> list[tuple[Span, list[int]]]:
        """The words of the text that was encoded, each with its span and the places of its tokens; a tag is a word."""
        spans = [found.span() for found in re.finditer(r"\S+", text)]
        tags = {span for span, token in zip(self.offsets, self.texts, strict=True) if _is_tag(token)}
        if tags:
            first = min(tags)[0]
            spans = [*(span for span in spans if span[1] < first), *sorted(tags)]
        words: list[tuple[Span, list[int]]] = [(span, []) for span in spans]
        at = 0
        for place, (start, end) in enumerate(self.offsets):
            while at < len(spans) and spans[at][1] <= start:
                at += 1
            if at < len(spans) and max(end, start + 1) > spans[at][0]:
                words[at][1].append(place)
        return words


class Tokenizer:
    """Text to ids and back. The special tokens cannot be typed: "<s>" in a text is what it reads."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self._tags = {token[1:]: index for token, index in inner.get_vocab().items() if _is_tag(token)}
        self._tag_names = {index: tag for tag, index in self._tags.items()}
        self._segmented: dict[str, list[int]] | None = {} if pretokenization.cuts_at_spaces(inner) else None
        """What stands between spaces, with its ids, as far as it has been met."""
        self._composes = pretokenization.takes_letters_apart(inner)

    @classmethod
    def characters(cls, texts: Iterable[str]) -> "Tokenizer":
        """One token for each character that occurs; the text is first composed (NFC)."""
        return cls(learn(CharSide(), texts))

    @classmethod
    def of(cls, options: Side, texts: Iterable[str]) -> "Tokenizer":
        """Learned from some texts, which are read once, or read from a file of SentencePiece."""
        if isinstance(options, SentencePieceSide):
            model = read_model(Path(options.path))
            return cls(build_tokenizer(model, collect_tags(texts) if options.tags else set()))
        return cls(learn(options, texts))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        if not path.exists():
            raise ModelError(f"{path} is missing, and the model cannot read text without it. Copy it beside the model.")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more particular
            raise ModelError(f"{path} is damaged: {error}. Copy it again from where it was trained.") from None
        if tuple(map(inner.id_to_token, range(len(SPECIALS)))) != SPECIALS:
            raise ModelError(f"{path} does not begin with {' '.join(SPECIALS)}: it was not made by regard.")
        return cls(inner)

    def to_bytes(self) -> bytes:
        """The content of a file for `load`."""
        text: str = self._inner.to_str(pretty=True)
        return text.encode()

    def to_json(self) -> str:
        text: str = self._inner.to_str()
        return text

    def __len__(self) -> int:
        size: int = self._inner.get_vocab_size()
        return size

    @property
    def inner(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library; it knows nothing of tags."""
        return self._inner

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids alone, which is quicker for a whole corpus."""
        heads = [whole_characters(self._head(text)) for text in texts]
        found = self._by_words(heads) if self._segmented is not None else self._whole(heads)
        if not self._tags:
            return found
        return [
            [*ids, *(self._tag(tag[0]) for tag in self._tags_in(text))] for ids, text in zip(found, texts, strict=True)
        ]

    def _whole(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._inner.encode_batch_fast(texts)]

    def _by_words(self, texts: list[str]) -> list[list[int]]:
        """No token reaches across a space: what stands between spaces is segmented when it is first met."""
        known = self._segmented
        assert known is not None
        plain = [text.split(" ") if text and not _UNUSUAL.search(text) else None for text in texts]
        new = list({word for words in plain if words for word in words if word not in known})
        if len(known) + len(new) > _MOST_KNOWN:
            known.clear()
            new = list({word for words in plain if words for word in words})
        known.update(zip(new, self._whole(new), strict=True))
        rest = iter(self._whole([text for text, words in zip(texts, plain, strict=True) if words is None]))
        return [[index for word in words for index in known[word]] if words else next(rest) for words in plain]

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        found = self._inner.encode_batch([whole_characters(self._head(text)) for text in texts])
        encoded = []
        for text, encoding in zip(texts, found, strict=True):
            spans = [_trim(text, token, span) for token, span in zip(encoding.tokens, encoding.offsets, strict=True)]
            tokens = Tokens(encoding.ids, encoding.tokens, spans)
            for tag in self._tags_in(text):
                tokens.ids.append(self._tag(tag[0]))
                tokens.texts.append(pretokenization.TAB + tag[0])
                tokens.offsets.append(tag.span())
            encoded.append(tokens)
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        names = [self._tag_names[index] for index in ids if index in self._tag_names]
        head = [index for index in ids if index not in self._tag_names] if names else list(ids)
        text: str = self._inner.decode(head, skip_special_tokens=False)
        if self._composes:
            text = unicodedata.normalize("NFC", text)
        return f"{text}{pretokenization.TAB}{';'.join(names)}" if names else text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [str(self._inner.id_to_token(index)) for index in ids]

    def words(self, texts: Sequence[str]) -> list[list[str]]:
        """The words that each text is cut into before they are segmented, as they are written; a tag is a word."""
        normalize, cut = self._inner.normalizer.normalize_str, self._inner.pre_tokenizer.pre_tokenize_str
        return [
            [
                *(word for word, _ in cut(normalize(whole_characters(self._head(text))))),
                *(pretokenization.TAB + tag[0] for tag in self._tags_in(text)),
            ]
            for text in texts
        ]

    def segment_words(self, words: Iterable[str]) -> list[list[int]]:
        """The ids of each word; those of a text's words, one after the other, are the text's."""
        segment = self._inner.model.tokenize
        return [[self._tag(word[1:])] if _is_tag(word) else [token.id for token in segment(word)] for word in words]

    def _head(self, text: str) -> str:
        return text.partition(pretokenization.TAB)[0] if self._tags else text

    def _tags_in(self, text: str) -> Iterable[re.Match[str]]:
        return find_tags(text, len(self._head(text))) if self._tags else ()

    def _tag(self, tag: str) -> int:
        return self._tags.get(tag, UNKNOWN)


def _is_tag(token: str) -> bool:
    return len(token) > 1 and token[0] == pretokenization.TAB


def _trim(text: str, token: str, span: Span) -> Span:
    """The span without the space that a mark stands for; nothing where the mark was put there by us."""
    start, end = span
    if end - start > 1 and text[start].isspace():
        return start + 1, end
    ours = (
        token == pretokenization.MARK
        and end > start
        and not text[start].isspace()
        and text[start] != pretokenization.MARK
    )
    return (start, start) if ours else span


class TokenizerPair(NamedTuple):
    """The tokenizer of the sources and that of the targets; one and the same where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def build(cls, settings: TokenizerSettings, sources: Iterable[str], targets: Iterable[str]) -> "TokenizerPair":
        """Learned from texts that are read once each."""
        source, target = sides(settings)
        if settings.shared:
            shared = Tokenizer.of(source, chain(sources, targets))
            return cls(shared, shared)
        return cls(Tokenizer.of(source, sources), Tokenizer.of(target, targets))

    @classmethod
    def load(cls, folder: Path, settings: TokenizerSettings) -> "TokenizerPair":
        source = Tokenizer.load(folder / "tokenizer.json")
        return cls(source, source if settings.shared else Tokenizer.load(folder / "tokenizer.target.json"))

    def fingerprint(self) -> list[str]:
        """A hash of each side's tokenizer."""
        return [hashlib.sha256(side.to_json().encode()).hexdigest() for side in self]

    def save(self, write: Callable[[str, bytes], object]) -> None:
        """Save through `write(name, content)`, which decides where the files are and how they are written."""
        write("tokenizer.json", self.source.to_bytes())
        if self.target is not self.source:
            write("tokenizer.target.json", self.target.to_bytes())
