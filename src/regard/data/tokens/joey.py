"""Tokenizers of Joey NMT (Kreutzer et al. 2019), with its vocabularies."""

import json
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from regard.data.settings import CharSide, WordSide
from regard.data.tokens import pretokenization
from regard.data.tokens.sentencepiece import ADD_END
from regard.data.tokens.vocabularies import SPECIALS, LearnedTokens, build_model
from regard.formatting import to_json


def build_tokenizer(level: Literal["word", "char"], vocabulary: list[str]) -> tokenizers.Tokenizer:
    """Build a tokenizer that looks up words or characters. The vocabulary starts with the special tokens."""
    rest = vocabulary[len(SPECIALS) :]
    options: CharSide | WordSide
    if level == "char":
        options = CharSide(normalization="none")
        tokens = [" " if token == pretokenization.MARK else token for token in rest]
    else:
        options = WordSide(normalization="none")
        escapes = str.maketrans({"▂": "▂2", pretokenization.MARK: "▂1"})
        tokens = [pretokenization.MARK + token.translate(escapes) for token in rest]
    inner = tokenizers.Tokenizer(build_model([*SPECIALS], LearnedTokens(tokens), byte_fallback=False))
    inner.normalizer = pretokenization.build_normalizer(options)
    inner.pre_tokenizer = pretokenization.build_pre_tokenizer(options)
    inner.decoder = pretokenization.build_decoder(options)
    return inner


def add_steps(inner: tokenizers.Tokenizer, *, lowercase: bool, normalize: bool, add_end: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer that first applies the normalization of Joey NMT, and then its own."""
    steps = [normalizers.NFKC(), *pretokenization.PUNCTUATION] if normalize else []
    steps += [normalizers.Lowercase()] if lowercase else []
    document: dict[str, Any] = json.loads(inner.to_str())
    document["normalizer"]["normalizers"][:0] = [json.loads(step.__getstate__()) for step in steps]
    if normalize:
        document["decoder"]["decoders"].append(json.loads(pretokenization.JOIN_PUNCTUATION.__getstate__()))
    changed = tokenizers.Tokenizer.from_str(to_json(document))
    if add_end:
        changed.post_processor = ADD_END
    return changed
