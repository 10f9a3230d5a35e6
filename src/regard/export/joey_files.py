"""The files of a Joey NMT model (Kreutzer et al. 2019): read and checked without torch, without running anything in
them, and without following paths out of the folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.data.tokens import joey
from regard.data.tokens.sentencepiece import build_tokenizer_of_ids, parse_model, restrict_pieces
from regard.data.tokens.tokenizers import SPECIALS, Tokenizer, TokenizerPair
from regard.errors import ModelError
from regard.export.foreign import ForeignModel, check_pickle_file, read_file, reject
from regard.export.joey_options import (
    CONFIG,
    RecurrentModelOptions,
    Symbols,
    TextOptions,
    TransformerModelOptions,
    read_options,
)

if TYPE_CHECKING:
    from torch import Tensor

    from regard.export.foreign_weights import ForeignWeights

_MAX_LENGTH = 1_000
_MOSES = "none. Tokenize texts with sacremoses yourself, set it to none, and detokenize predictions"


@final
@dataclass(frozen=True)
class JoeyFolder(ForeignModel):
    """A model folder of Joey NMT 2."""

    options: RecurrentModelOptions | TransformerModelOptions
    source_ids: list[int]
    """The id in Joey NMT of each of our source tokens."""
    target_ids: list[int]

    config = CONFIG
    weights_key = "model_state"

    @classmethod
    def read(cls, path: Path) -> "JoeyFolder":
        options, data = read_options(path)
        symbols = data.special_symbols
        if symbols.sep_token or symbols.lang_tags:
            key = "sep_token" if symbols.sep_token else "lang_tags"
            reject(
                path / CONFIG, f"data.special_symbols.{key}", getattr(symbols, key), "none: prompts are not imported"
            )
        sides = []
        for side, name in ((data.src, "src"), (data.trg, "trg")):
            vocabulary = _read_vocabulary(path / f"{name}_vocab.txt", symbols)
            ids = [*symbols.ids, *(index for index in range(len(vocabulary)) if index not in symbols.ids)]
            tokens = [*SPECIALS, *(vocabulary[index] for index in ids[len(SPECIALS) :])]
            sides.append((tokens, ids, _read_tokenizer(path, f"data.{name}", side, tokens, is_source=name == "src")))
        (source, source_ids, source_tokenizer), (target, target_ids, target_tokenizer) = sides
        settings = {
            "about": f"Imported from {path.resolve().name}, a Joey NMT model",
            "data": "unknown",
            "tokenizer": {"kind": "joey", "shared": source == target, "max_length": _MAX_LENGTH},
            "training": {"metric": "bleu"},
        }
        pair = TokenizerPair(source_tokenizer, target_tokenizer)
        return cls(path, pair, settings, _find_weights(path), options, source_ids, target_ids)

    def convert(self, weights: "ForeignWeights") -> "tuple[dict[str, Any], dict[str, Tensor]]":
        from regard.export import joey as conversion

        ids = self.source_ids, self.target_ids
        if isinstance(self.options, RecurrentModelOptions):
            return conversion.convert_recurrent(self.options, weights, *ids)
        return conversion.convert_transformer(self.options, weights, *ids)


def _read_vocabulary(path: Path, symbols: Symbols) -> list[str]:
    """Return the tokens in the order of their ids. As in Joey NMT, special tokens come first, and each occurs once."""
    try:
        lines = read_file(_stay_inside(path)).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8: {error}. Copy it again.") from None
    tokens = list(dict.fromkeys([*symbols.names, *lines]))
    expected = [symbols.pad_token, symbols.unk_token, symbols.bos_token, symbols.eos_token]
    if [tokens[index] if 0 <= index < len(tokens) else None for index in symbols.ids] != expected:
        raise ModelError(f"{path}: the ids of the special tokens are not those of {CONFIG} (data.special_symbols).")
    return tokens


def _read_tokenizer(path: Path, key: str, side: TextOptions, tokens: list[str], *, is_source: bool) -> Tokenizer:
    if side.tokenizer_cfg.pretokenizer.lower() != "none":
        reject(path / CONFIG, f"{key}.tokenizer_cfg.pretokenizer", side.tokenizer_cfg.pretokenizer, _MOSES)
    kind = side.tokenizer_type or side.bpe_type
    if side.level != "bpe":
        inner = joey.build_tokenizer(side.level, tokens)
    elif kind == "sentencepiece":
        file = _stay_inside(path / Path(side.tokenizer_cfg.model_file).name)
        try:
            model = restrict_pieces(parse_model(read_file(file)), tokens)
        except ValueError as error:
            raise ModelError(f"{file} {error}.") from None
        inner = build_tokenizer_of_ids(model, tokens, add_end=False)
    else:
        reject(path / CONFIG, f"{key}.tokenizer_type", kind, "sentencepiece, and the levels word and char")
    inner = joey.add_steps(inner, lowercase=side.lowercase, normalize=side.normalize, add_end=is_source)
    tokenizer = Tokenizer(inner)
    if len(tokenizer) != len(tokens):
        raise ModelError(f"{path}: the vocabulary of {key} contains a token twice, so it cannot be imported.")
    return tokenizer


def _find_weights(folder: Path) -> Path:
    names = ["best.ckpt", "latest.ckpt"]
    numbered = sorted(
        (path for path in folder.glob("*.ckpt") if path.stem.isdecimal()), key=lambda path: int(path.stem)
    )
    paths = [*(folder / name for name in names), *reversed(numbered)]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise ModelError(f"{folder} has no best.ckpt, latest.ckpt or N.ckpt. Copy a checkpoint into it.")
    check_pickle_file(_stay_inside(path), "Use a checkpoint from a source that you trust.")
    return path


def _stay_inside(path: Path) -> Path:
    """Raise ModelError if a link leads out of the folder."""
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise ModelError(f"{path} is a link to a file outside of the folder. Copy the file into the folder.")
    return path
