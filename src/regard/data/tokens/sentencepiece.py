"""Tokenizers that SentencePiece trained (Kudo & Richardson 2018), read from their `.model` files.

The file is a protocol buffer; the few fields that matter are read here. The special tokens come to our places, other
control pieces, which no text contains, are left out, and all other pieces keep their order. Texts are segmented as by
SentencePiece itself, but for some with several combining marks on one letter, which the library normalizes otherwise.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from regard.data.settings import RESERVED
from regard.data.tokens import pretokenization
from regard.data.tokens.vocabularies import BYTES, SPECIALS, Learned, Merges, build_model
from regard.errors import DataError

_NORMAL, _USER, _BYTE = 1, 4, 6
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_FOREIGN = "It must be the .model file that SentencePiece wrote, of a unigram or BPE model."

Field = tuple[int, int | bytes]


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """What a `.model` file says."""

    kind: str
    pieces: list[Piece]
    charsmap: bytes
    dummy_prefix: bool
    collapses: bool
    suffix: bool


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} (tokenizer.path) cannot be read: {error.strerror}. {_FOREIGN}") from None


def read_model(path: Path) -> SentencePieceModel:
    try:
        model = _parse(read_bytes(path))
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise DataError(f"{path} (tokenizer.path) is no SentencePiece model ({error}). {_FOREIGN}") from None
    if model.kind not in {"unigram", "bpe"} or model.suffix:
        what = "with spaces as suffixes" if model.suffix else f"of kind {model.kind}"
        raise DataError(f"{path} (tokenizer.path) is a SentencePiece model {what}, which cannot be read. {_FOREIGN}")
    return model


def build_tokenizer(model: SentencePieceModel, tags: set[str]) -> tokenizers.Tokenizer:
    """A tokenizer that segments as SentencePiece does with this model."""
    symbols = [piece.text for piece in model.pieces if piece.kind == _USER]
    by_bytes = any(piece.kind == _BYTE for piece in model.pieces)
    known = [*SPECIALS, *symbols, *(BYTES if by_bytes else [])]
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == _NORMAL}
    tokens = [*scores, *(pretokenization.TAB + tag for tag in sorted(tags))]
    learned = Learned(tokens, scores=scores) if model.kind == "unigram" else Learned(tokens, _merges(scores))
    inner = tokenizers.Tokenizer(build_model(known, learned, byte_fallback=by_bytes, fuse_unknown=True))
    inner.normalizer = _normalizer(model)
    inner.pre_tokenizer = _cutter(symbols, scores)
    prefix = [decoders.Replace(Regex(rf"\A{pretokenization.MARK}"), "")] if model.dummy_prefix else []
    inner.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), *prefix, decoders.Replace(pretokenization.MARK, " ")]
    )
    return inner


def _merges(scores: dict[str, float]) -> Merges:
    """Every pair of pieces that makes a piece, the best made first: SentencePiece keeps what is made, not of what."""
    made = sorted(scores, key=lambda piece: -scores[piece])
    cuts = ((piece[:at], piece[at:]) for piece in made for at in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in scores and right in scores]


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.collapses:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.dummy_prefix:
        steps.append(normalizers.Prepend(pretokenization.MARK))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", pretokenization.MARK)])


def _cutter(symbols: list[str], scores: dict[str, float]) -> pre_tokenizers.PreTokenizer:
    """Cuts at spaces, unless there are pieces that reach across them."""
    whole = "|".join([*pretokenization.either(symbols), f"<(?={RESERVED[1:]})"])
    if any(pretokenization.MARK in piece[1:] for piece in scores):
        pattern = rf"{whole}|(?:(?!{whole})[\s\S])+"
    else:
        pattern = f"{whole}|{pretokenization.MARK}?(?:(?!{whole})[^{pretokenization.MARK}])+|{pretokenization.MARK}"
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            fields = dict(_fields(_bytes(value)))
            [score] = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))
            pieces.append(Piece(_bytes(fields[1]).decode("utf-8"), score, int(fields.get(3, _NORMAL))))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not trainer:
        raise ValueError("it ends before it says of what kind it is")
    return SentencePieceModel(
        kind=_MODELS.get(int(trainer.get(3, 1)), "unknown"),
        pieces=pieces,
        charsmap=_bytes(normalizer.get(2, b"")),
        dummy_prefix=bool(normalizer.get(3, True)),
        collapses=bool(normalizer.get(4, True)),
        suffix=bool(trainer.get(24, False)),
    )


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a text should")
    return value


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of a message: numbers as numbers, everything else, of fixed size or not, as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire not in {1, 2, 5}:
            raise ValueError(f"byte {at} begins no field")
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + size > len(data):
            raise ValueError(f"it ends in the middle of a field, at byte {len(data)}")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"byte {at} begins no field")
