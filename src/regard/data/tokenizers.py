"""Tokenisers: text ↔ ids, on the `tokenizers` library; where each token stood in the text is kept."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from regard.data.settings import CharTokenizer
from regard.errors import ModelError

PAD, UNKNOWN, START, END = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


class Tokens(NamedTuple):
    """A text in tokens: their ids, how they read, and the span of the text that each stands for."""

    ids: list[int]
    texts: list[str]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Text to ids and back. The special tokens cannot be typed: "<s>" in a text is three characters."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner

    @classmethod
    def characters(cls, texts: Iterable[str]) -> "Tokenizer":
        """One token for each character that occurs; the text is first composed (NFC)."""
        compose = normalizers.NFC()
        seen = set().union(*(compose.normalize_str(text) for text in texts))
        vocabulary = {token: index for index, token in enumerate((*SPECIALS, *sorted(seen)))}
        inner = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token=SPECIALS[UNKNOWN]))
        inner.normalizer = compose
        inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        return cls(inner)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        if not path.exists():
            raise ModelError(f"{path} is missing, and the model cannot read text without it. Copy it beside the model.")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing more particular
            raise ModelError(f"{path} is damaged: {error}. Copy it again from where it was trained.") from None

    def save(self, path: Path) -> None:
        self._inner.save(str(path))

    def to_json(self) -> str:
        text: str = self._inner.to_str()
        return text

    def __len__(self) -> int:
        size: int = self._inner.get_vocab_size()
        return size

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids alone, which is quicker for a whole corpus."""
        return [found.ids for found in self._inner.encode_batch_fast(_whole_characters(texts))]

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [
            Tokens(found.ids, found.tokens, found.offsets)
            for found in self._inner.encode_batch(_whole_characters(texts))
        ]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [str(self._inner.id_to_token(index)) for index in ids]


def _whole_characters(texts: Sequence[str]) -> list[str]:
    """Half of a surrogate pair is no character, and becomes a question mark."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


class TokenizerPair(NamedTuple):
    """The tokeniser of the sources and that of the targets; one and the same where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def build(cls, settings: CharTokenizer, sources: Iterable[str], targets: Iterable[str]) -> "TokenizerPair":
        if settings.shared:
            shared = Tokenizer.characters([*sources, *targets])
            return cls(shared, shared)
        return cls(Tokenizer.characters(sources), Tokenizer.characters(targets))

    @classmethod
    def load(cls, folder: Path, settings: CharTokenizer) -> "TokenizerPair":
        source = Tokenizer.load(folder / "tokenizer.json")
        return cls(source, source if settings.shared else Tokenizer.load(folder / "tokenizer.target.json"))

    def fingerprint(self) -> list[str]:
        """A hash of each side's tokeniser."""
        return [hashlib.sha256(side.to_json().encode()).hexdigest() for side in self]

    def save(self, folder: Path, write: Callable[[Path, Callable[[Path], object]], object]) -> None:
        """Save through `write(path, save)`, which decides how a file comes to its place."""
        write(folder / "tokenizer.json", self.source.save)
        if self.target is not self.source:
            write(folder / "tokenizer.target.json", self.target.save)
