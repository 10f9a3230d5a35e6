"""Tokenizers from `.model` files of SentencePiece (Kudo & Richardson 2018).

A `.model` file is a protocol buffer, of which a few fields are parsed here. The sentencepiece package does not expose
them without protobuf, and neither package is otherwise needed. Special tokens get the ids of this project, other
control pieces are dropped, and all other pieces keep their order. Texts are segmented as by SentencePiece, except some
with several combining marks on one letter, which the `tokenizers` library normalizes differently.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

from regard.data.remote_files import fetch
from regard.data.settings import RESERVED
from regard.data.tokens import pretokenization
from regard.data.tokens.vocabularies import BYTES, END, SPECIALS, START, UNKNOWN, LearnedTokens, Merges, build_model
from regard.errors import DataError
from regard.regular_files import read_regular
from regard.urls import is_url

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_REQUIRED = "Use the .model file of a unigram or BPE model that was trained with SentencePiece."

_COLLAPSE = [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
_REMOVE_PREFIX = decoders.Replace(Regex(rf"\A{pretokenization.MARK}"), "")

_STRIP_MARKS = decoders.Replace(Regex(rf"\A{pretokenization.MARK}+|{pretokenization.MARK}+\z"), "")
_REMOVE_SPACES = decoders.Replace(" ", "")

_SEPARATE_CODE = normalizers.Replace(Regex(r"\A>>[^<]*<<\K(?!\z)"), " ")
"""The text after a language code (`>>fra<<`) is segmented as if it were at the start, with or without a space."""

NORMALIZERS = [*_COLLAPSE, _SEPARATE_CODE]
"""The normalizers that only SentencePiece tokenizers use, except `Precompiled`, whose table depends on the model."""
DECODERS = [_REMOVE_PREFIX, _REMOVE_SPACES, _STRIP_MARKS]
"""The decoders that only SentencePiece tokenizers use."""
ADD_END = processors.TemplateProcessing(single=f"$A {SPECIALS[END]}", special_tokens=[(SPECIALS[END], END)])
"""Appends the end token. The sources of Marian models have one."""

UNKNOWN_PIECES = "<unknown pieces>"
"""The tokens after this one in a vocabulary are pieces without an id: text is segmented into them, and they are
unknown. It contains a space, and so does not match text.
"""

Field = tuple[int, int | bytes]


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """The content of a `.model` file."""

    kind: str
    pieces: list[Piece]
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    treat_whitespace_as_suffix: bool


def read_bytes(path: str | Path) -> bytes:
    try:
        return read_regular(fetch(str(path)) if is_url(path) else path)
    except OSError as error:
        raise DataError(f"{path} (tokenizer.path) cannot be read: {error.strerror}. {_REQUIRED}") from None


def read_model(path: str | Path) -> SentencePieceModel:
    try:
        return parse_model(read_bytes(path))
    except ValueError as error:
        raise DataError(f"{path} (tokenizer.path) {error}. {_REQUIRED}") from None


def parse_model(content: bytes) -> SentencePieceModel:
    """Parse the content of a `.model` file. Raise ValueError, with a text that follows the name of the file."""
    try:
        model = _parse(content)
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise ValueError(f"is not a SentencePiece model ({error})") from None
    if model.kind not in {"unigram", "bpe"} or model.treat_whitespace_as_suffix:
        kind = "with treat_whitespace_as_suffix" if model.treat_whitespace_as_suffix else f"of type {model.kind}"
        raise ValueError(f"is a SentencePiece model {kind}, which is not supported")
    return model


def restrict_pieces(model: SentencePieceModel, vocabulary: Sequence[str]) -> SentencePieceModel:
    """Return a model that uses only the pieces of a vocabulary and single characters, like `SetVocabulary` of
    SentencePiece. Characters of the vocabulary that the model does not have are added as pieces.

    A BPE model is returned unchanged. Raise ValueError if one of its pieces of several characters is not in the
    vocabulary: SentencePiece would split it into the pieces that it was merged from, which is not supported.
    """
    used = set(vocabulary)
    pieces = [piece for piece in model.pieces if piece.kind != _NORMAL or piece.text in used or len(piece.text) == 1]
    missing = len(model.pieces) - len(pieces)
    if missing and model.kind == "bpe":
        raise ValueError(
            f"is a BPE model with {missing:,} pieces that are not in the vocabulary of the network, which is not "
            "supported. Supported: a unigram model, or a vocabulary with all pieces"
        )
    if model.kind == "bpe":
        return model
    # Joey NMT looks up the text of unknown pieces, too. SentencePiece gives an unknown character this score.
    known = {character for piece in model.pieces for character in piece.text}
    unknown_score = min((piece.score for piece in pieces if piece.kind == _NORMAL), default=0.0) - 10
    characters = [token for token in vocabulary if len(token) == 1 and token not in known]
    return model._replace(pieces=[*pieces, *(Piece(token, unknown_score, _NORMAL) for token in characters)])


def build_tokenizer(model: SentencePieceModel, tags: set[str]) -> tokenizers.Tokenizer:
    """Build a tokenizer that segments text as SentencePiece does with this model."""
    symbols = [piece.text for piece in model.pieces if piece.kind == _USER_DEFINED]
    byte_fallback = any(piece.kind == _BYTE for piece in model.pieces)
    fixed = [*SPECIALS, *symbols, *(BYTES if byte_fallback else [])]
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == _NORMAL}
    tokens = [*scores, *(pretokenization.TAB + tag for tag in sorted(tags))]
    learned = (
        LearnedTokens(tokens, scores=scores) if model.kind == "unigram" else LearnedTokens(tokens, _merges(scores))
    )
    inner = tokenizers.Tokenizer(build_model(fixed, learned, byte_fallback=byte_fallback, fuse_unknown=True))
    inner.normalizer = _build_normalizer(model)
    inner.pre_tokenizer = _build_pre_tokenizer(symbols, scores)
    prefix = [_REMOVE_PREFIX] if model.add_dummy_prefix else []
    inner.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), *prefix, decoders.Replace(pretokenization.MARK, " ")]
    )
    return inner


def build_tokenizer_of_ids(
    model: SentencePieceModel, vocabulary: Sequence[str], *, add_end: bool
) -> tokenizers.Tokenizer:
    """Build a tokenizer that segments text as SentencePiece does, with the ids of another vocabulary, as in Marian.

    The vocabulary starts with the special tokens. It may contain tokens that are not pieces of this model, which get a
    space in front so that they do not match text, and language codes (`>>fra<<`), which are never split. Pieces that
    it does not contain are unknown.
    """
    codes = [token for token in vocabulary if is_language_code(token)]
    symbols = [*codes, *(piece.text for piece in model.pieces if piece.kind == _USER_DEFINED)]
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == _NORMAL}
    byte_pieces = [piece.text for piece in model.pieces if piece.kind == _BYTE]
    matching = {*symbols, *scores, *byte_pieces}.difference(SPECIALS)
    rest = vocabulary[len(SPECIALS) :]
    missing = sorted(matching.difference(rest))
    tokens = [
        *SPECIALS,
        *(token if token in matching else f" {token}" for token in rest),
        *([UNKNOWN_PIECES, *missing] if missing else []),
    ]
    learned = LearnedTokens([], scores=scores) if model.kind == "unigram" else LearnedTokens([], _merges(scores))
    inner = tokenizers.Tokenizer(build_model(tokens, learned, byte_fallback=bool(byte_pieces), fuse_unknown=True))
    inner.normalizer = _build_normalizer(model, codes)
    inner.pre_tokenizer = _build_pre_tokenizer(symbols, scores)
    inner.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            _REMOVE_SPACES,
            _STRIP_MARKS,
            decoders.Replace(pretokenization.MARK, " "),
        ]
    )
    if add_end:
        inner.post_processor = ADD_END
    return inner


def is_language_code(token: str) -> bool:
    """Whether a token of Marian selects the target language: `>>fra<<`."""
    return token.startswith(">>") and token.endswith("<<")


def list_marian_tokens(tokens: Sequence[str]) -> list[str]:
    """Return the tokens of a tokenizer of `build_tokenizer_of_ids` without the spaces in front."""
    taken = set(tokens)
    return [token if token[1:] in taken else token.removeprefix(" ") for token in tokens]


def to_model_file(inner: tokenizers.Tokenizer) -> bytes:
    """Return the content of a `.model` file for a unigram or BPE tokenizer that segments text at marked spaces.

    Unicode normalization and the escapes of learned tokenizers are not part of it.
    """
    document = json.loads(inner.to_str())
    symbols = set(pretokenization.find_leading_names(document["pre_tokenizer"]["pattern"]["Regex"]))
    steps = {step["type"]: step for step in document["normalizer"]["normalizers"]}
    collapses = any(json.loads(step.__getstate__()) in document["normalizer"]["normalizers"] for step in _COLLAPSE)
    pieces = [
        Piece(SPECIALS[UNKNOWN], 0.0, _UNKNOWN),
        *(Piece(SPECIALS[index], 0.0, _CONTROL) for index in (START, END)),
    ]
    for text, score in _list_scores(document["model"])[len(SPECIALS) :]:
        if " " not in text and not is_language_code(text):
            kind = _BYTE if text in BYTES else _USER_DEFINED if re.escape(text) in symbols else _NORMAL
            pieces.append(Piece(text, score, kind))
    charsmap = base64.b64decode(steps["Precompiled"]["precompiled_charsmap"]) if "Precompiled" in steps else b""
    trainer = _encode(3, 1 if document["model"]["type"] == "Unigram" else 2) + _encode(4, len(pieces))
    if any(piece.kind == _BYTE for piece in pieces):
        trainer += _encode(35, 1)
    normalizer = _encode(2, charsmap) + _encode(3, int("Prepend" in steps)) + _encode(4, int(collapses))
    return b"".join(
        [
            *(
                _encode(1, _encode(1, text.encode()) + _encode(2, struct.pack("<f", score), 5) + _encode(3, kind))
                for text, score, kind in pieces
            ),
            _encode(2, trainer),
            _encode(3, normalizer),
        ]
    )


def _list_scores(model: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the tokens of a model in the order of their ids, with their scores: log-probabilities or, for BPE, the
    order of merges. SentencePiece merges any two pieces whose concatenation is a piece, the best score first.
    """
    if model["type"] == "Unigram":
        return [(text, score) for text, score in model["vocab"]]
    merges = model["merges"]
    ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(merges)))}
    return [(text, float(-ranks.get(text, len(merges)))) for text in sorted(model["vocab"], key=model["vocab"].get)]


def _merges(scores: dict[str, float]) -> Merges:
    """Return all pairs of pieces that can be merged, the best first. SentencePiece stores only the merged pieces."""
    by_score = sorted(scores, key=lambda piece: -scores[piece])
    splits = ((piece[:index], piece[index:]) for piece in by_score for index in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in scores and right in scores]


def _build_normalizer(model: SentencePieceModel, codes: Sequence[str] = ()) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [_SEPARATE_CODE] if codes else []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += _COLLAPSE
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(pretokenization.MARK))
    steps.append(normalizers.Replace(" ", pretokenization.MARK))
    if codes:
        pattern = pretokenization.superfluous_mark(pretokenization.escape_all(list(codes)))
        steps.append(normalizers.Replace(Regex(pattern), ""))
    return normalizers.Sequence(steps)


def _build_pre_tokenizer(symbols: list[str], scores: dict[str, float]) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits at spaces, unless there are pieces that contain spaces."""
    crosses_spaces = any(pretokenization.MARK in piece[1:] for piece in scores)
    pattern = _build_split_pattern(pretokenization.escape_all(symbols), crosses_spaces=crosses_spaces)
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _build_split_pattern(symbols: list[str], *, crosses_spaces: bool) -> str:
    atoms = "|".join([*symbols, f"<(?={RESERVED[1:]})"])
    if crosses_spaces:
        return rf"{atoms}|(?:(?!{atoms})[\s\S])+"
    return f"{atoms}|{pretokenization.MARK}?(?:(?!{atoms})[^{pretokenization.MARK}])+|{pretokenization.MARK}"


def is_split_pattern(pattern: str) -> bool:
    """Whether a pattern is one that a tokenizer from a `.model` file uses, with any symbols."""
    names = pretokenization.find_leading_names(pattern)
    return pattern in {_build_split_pattern(names, crosses_spaces=crosses) for crosses in (True, False)}


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
        raise ValueError("it has no trainer_spec")
    return SentencePieceModel(
        kind=_MODEL_TYPES.get(int(trainer.get(3, 1)), "unknown"),
        pieces=pieces,
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, True)),
        remove_extra_whitespaces=bool(normalizer.get(4, True)),
        treat_whitespace_as_suffix=bool(trainer.get(24, False)),
    )


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field contains a number instead of bytes")
    return value


def _fields(data: bytes) -> Iterator[Field]:
    """Yield the number and value of each field of a message: varints as integers, all other types as bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type not in {1, 2, 5}:
            raise ValueError(f"there is no valid field at byte {position}")
        size, position = _varint(data, position) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], position)
        if position + size > len(data):
            raise ValueError(f"it ends in the middle of a field, at byte {len(data)}")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError(f"there is no valid field at byte {position}")


def _encode(number: int, value: int | bytes, wire_type: int | None = None) -> bytes:
    """Encode a field: an integer as a varint, bytes with their length, or bytes of the fixed size of a wire type."""
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    if wire_type is None:
        return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value
    return _encode_varint(number << 3 | wire_type) + value


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
