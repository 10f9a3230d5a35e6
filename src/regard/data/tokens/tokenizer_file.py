"""Read tokenizer.json, and reject what regard does not write: a model folder may come from an untrusted source.

Some parts of the `tokenizers` library take arbitrary time or memory: nested normalizers, regular expressions with
exponential backtracking, a padding of fixed length, a token with the id 2³¹. So only the parts that regard itself uses
are accepted, and the file is checked before the library reads it.
"""

import json
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from regard.data.tokens import pretokenization, sentencepiece
from regard.data.tokens.vocabularies import SPECIALS, UNKNOWN
from regard.errors import ModelError
from regard.formatting import parse_json, quote, shorten
from regard.regular_files import read_regular

_MAX_UNIGRAM_TOKEN = 1_000
"""Maximum number of characters of a token of a unigram model, which allocates a hash map for each character."""
_MAX_CHARSMAP = 4_000_000
"""Maximum length of the normalization table of SentencePiece. The largest built-in one has about 400,000."""
_MAX_PATTERN = 1_000_000
"""Maximum length of a regular expression, which contains the user's symbols up to four times."""

_BOOLEANS, _ABSENT = (True, False), (None, "")
_MODEL_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "WordLevel": {"unk_token": (SPECIALS[UNKNOWN],)},
    "Unigram": {"unk_id": (UNKNOWN,), "byte_fallback": _BOOLEANS},
    "BPE": {
        "unk_token": (SPECIALS[UNKNOWN],),
        "fuse_unk": _BOOLEANS,
        "byte_fallback": _BOOLEANS,
        "ignore_merges": _BOOLEANS,
        "continuing_subword_prefix": _ABSENT,
        "end_of_word_suffix": _ABSENT,
    },
}
"""The options of each model, with the values that regard writes. Any other option must be null."""


parse_tokenizer = tokenizers.Tokenizer.from_str


class _RejectedError(ValueError):
    """A part of the file is not one that regard writes."""


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer that regard has written. Raise ModelError if it is missing, damaged or has other parts."""
    try:
        text = read_regular(path).decode("utf-8")
        _check_document(parse_json(text))
        inner = parse_tokenizer(text)
        inner.encode("a 1")  # some damage is noticed only when the tokenizer is used
    except FileNotFoundError:
        raise ModelError(f"{path} is missing. Copy it from the run folder in which the model was trained.") from None
    except _RejectedError as error:
        raise ModelError(
            f"{path} was not created by regard: {error}. Copy it again from the original run folder."
        ) from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # no more specific one: a panic of the library is not even an Exception
        raise ModelError(
            f"{path} is damaged: {shorten(str(error), 300)}. Copy it again from the original run folder."
        ) from None
    return inner


def _check_document(document: Any) -> None:
    if not isinstance(document, dict):
        raise _RejectedError("it is not a JSON object")
    known = {"version", "normalizer", "pre_tokenizer", "decoder", "post_processor", "model"}
    for name, value in document.items():
        if name not in known and value not in (None, []):
            _reject(name, value)
    _check_sequence("normalizer", document.get("normalizer"), "normalizers", _is_known_normalizer)
    _check_sequence("decoder", document.get("decoder"), "decoders", _DECODERS.__contains__)
    _check_pre_tokenizer(document.get("pre_tokenizer"))
    if document.get("post_processor") not in (None, _ADD_END):
        _reject("post_processor", document["post_processor"])
    _check_model(document.get("model"))


def _check_sequence(name: str, part: Any, key: str, is_known: Callable[[Any], bool]) -> None:
    """Check one known part, or a sequence of them. Each occurs at most once, so that repeated replacements cannot grow
    a text.
    """
    steps = part.get(key) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    if not isinstance(steps, list):
        _reject(name, part)
    for index, step in enumerate(steps):
        if not is_known(step) or step in steps[:index]:
            _reject(f"{name} {index + 1}", step)


def _dump_all(parts: Iterable[Any]) -> list[Any]:
    """Return parts of the library as they are in a file."""
    return [json.loads(part.__getstate__()) for part in parts]


_NORMALIZERS = _dump_all(chain(pretokenization.NORMALIZERS, sentencepiece.NORMALIZERS))
[_ADD_END] = _dump_all([sentencepiece.ADD_END])
_DECODERS = _dump_all(chain(pretokenization.DECODERS, sentencepiece.DECODERS))


def _is_known_normalizer(step: Any) -> bool:
    if not isinstance(step, dict):
        return False
    if step.get("type") == "Precompiled":
        charsmap = step.get("precompiled_charsmap")
        return isinstance(charsmap, str) and len(charsmap) <= _MAX_CHARSMAP
    pattern = _find_pattern(step)
    if step.get("type") == "Replace" and pattern is not None:
        return step in _NORMALIZERS or (step.get("content") == "" and pretokenization.is_mark_pattern(pattern))
    return step in _NORMALIZERS


def _check_pre_tokenizer(part: Any) -> None:
    pattern = _find_pattern(part)
    if (
        pattern is None
        or part != {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        or not (pretokenization.is_split_pattern(pattern) or sentencepiece.is_split_pattern(pattern))
    ):
        _reject("pre_tokenizer", part)


def _find_pattern(part: Any) -> str | None:
    """Return the regular expression of a part, if it has one that is not too long."""
    pattern = part.get("pattern") if isinstance(part, dict) else None
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    return expression if isinstance(expression, str) and len(expression) <= _MAX_PATTERN else None


def _check_model(model: Any) -> None:
    kind = model.get("type") if isinstance(model, dict) else None
    options = _MODEL_OPTIONS.get(kind) if isinstance(kind, str) else None
    if options is None:
        _reject("model", model)
    for name, value in model.items():
        if name not in {"type", "vocab", "merges"} and value is not None and value not in options.get(name, ()):
            _reject(f"model.{name}", value)
    vocabulary = model.get("vocab")
    if kind == "Unigram":
        _check_pieces(vocabulary)
    else:
        _check_ids(vocabulary)


def _check_pieces(pieces: Any) -> None:
    if not isinstance(pieces, list):
        _reject("model.vocab", pieces)
    for piece in pieces:
        match piece:
            case [str(token), int() | float()] if len(token) <= _MAX_UNIGRAM_TOKEN:
                pass
            case _:
                _reject("an entry of model.vocab", piece)


def _check_ids(vocabulary: Any) -> None:
    """Check that the ids are 0, 1, 2, … The library allocates memory up to the largest id."""
    if not isinstance(vocabulary, dict):
        _reject("model.vocab", vocabulary)
    seen = bytearray(len(vocabulary))
    for token, index in vocabulary.items():
        if type(index) is not int or not 0 <= index < len(vocabulary) or seen[index]:
            raise _RejectedError(
                f"the token {quote(token)} has the id {quote(index)}, but the ids of {len(vocabulary):,} tokens must "
                f"be the numbers from 0 to {len(vocabulary) - 1:,}"
            )
        seen[index] = True


def _reject(name: str, value: Any) -> NoReturn:
    raise _RejectedError(f"{name} is {quote(value)}, which regard does not write")
