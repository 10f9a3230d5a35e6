"""Settings of the data: where the pairs come from, how their files are read, and how text is tokenized."""

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, PATH, Settings, differences
from regard.data.lines import STANDARD_INPUT
from regard.formatting import short_path
from regard.models.settings import TEXT
from regard.quantities import (
    Column,
    Count,
    Fraction,
    Length,
    PositiveWeight,
    VocabularySize,
)
from regard.registry import Choice, Registry
from regard.urls import join_path

Columns = tuple[tuple[str | int, ...], tuple[str | int, ...]]


class Files(Settings):
    """One file of pairs (`path`, or just the path itself), or two parallel files (`source` and `target`).

    Files may be moved before a run is resumed: only the hash of their content must stay the same.
    """

    path: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME, description="file of pairs")
    source: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME, description="file of sources")
    target: str | None = Field(None, json_schema_extra=MAY_CHANGE_ON_RESUME, description="file of targets")
    format: Literal["auto", "tsv", "csv", "jsonl", "dictionary", "fast_align"] = Field(
        "auto",
        description="by default inferred from the file; a dictionary line has a word, spaces, a pronunciation; a line "
        "of fast_align has a source, |||, a target",
    )
    columns: tuple[str | Column, str | Column] | None = Field(
        None,
        description="source and target: names, JSON keys such as translation.en, or numbers from 1; 1+3 joins two",
    )
    header: bool | Literal["auto"] = Field(
        "auto", description="whether line 1 names the columns; auto decides by comparing it with the lines below"
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="column separator of CSV; by default a comma, or the ; tab or | that splits all lines equally",
    )
    _languages: tuple[str, ...] = PrivateAttr(())
    """The values of {language} in the file names. Each one is added to its sources as a tag."""

    @model_validator(mode="after")
    def _one_or_two(self) -> Self:
        if (self.path is None) == (self.source is None or self.target is None):
            raise ValueError("set either path (one file of pairs), or source and target (two parallel files).")
        return self

    @model_validator(mode="after")
    def _named_columns_need_a_header(self) -> Self:
        names = [str(name) for side in self.fields or () for name in side if isinstance(name, str)]
        if names and self.header is False:
            raise ValueError(f"columns: {', '.join(names)} are names, but header is false. Give numbers from 1.")
        return self

    @field_validator("columns")
    @classmethod
    def _counted_from_1(cls, columns: tuple[str | int, str | int] | None) -> tuple[str | int, str | int] | None:
        for column in columns or ():
            if any(name.isdecimal() and not int(name) for name in str(column).split("+")):
                raise ValueError(f"there is no column 0 ('{column}'): columns are counted from 1.")
        return columns

    @property
    def fields(self) -> Columns | None:
        """The columns of the source and those of the target: names, or numbers from 1."""
        if self.columns is None:
            return None
        left, right = (
            tuple(int(name) if name.isdecimal() else name for name in str(column).split("+")) for column in self.columns
        )
        return left, right

    @property
    def by_language(self) -> "dict[str, Files]":
        """The files of each language. Without languages, the only key is ''."""
        if not self._languages:
            return {"": self}
        return {language: self.within("", language) for language in self._languages}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for files in self.by_language.values() for path in files.names.values())

    @property
    def names(self) -> dict[str, str]:
        """The paths that are set, by the name of the setting."""
        paths = {name: getattr(self, name) for name in ("path", "source", "target")}
        return {name: path for name, path in paths.items() if path is not None}

    def within(self, folder: str, language: str | tuple[str, ...]) -> "Files":
        """Return a copy with the paths in a folder, for one language or several."""
        paths = {name: join_path(folder, path) for name, path in self.names.items()}
        if isinstance(language, str):
            paths = {name: path.replace("{language}", language) for name, path in paths.items()}
        copy = self.model_copy(update=paths)
        copy._languages = () if isinstance(language, str) else language
        return copy

    def map_paths(self, function: Callable[[str], str]) -> Self:
        return self.model_copy(
            update={name: function(path) for name, path in self.names.items() if path != STANDARD_INPUT}
        )

    def read_like(self, other: "Files") -> "Files":
        """Return a copy that uses the columns and the header setting of another file, where these are not set.

        A file that is not JSON does not use the keys of a JSON file.
        """
        if self.path is None or other.path is None or (other.format == "jsonl" and not self._is_json):
            return self
        header = True if other.header is True and self.header == "auto" else self.header
        return self.model_copy(update={"columns": self.columns or other.columns, "header": header})

    @property
    def _is_json(self) -> bool:
        path = str(self.path).removesuffix(".gz")
        return self.format == "jsonl" or (self.format == "auto" and path.endswith((".jsonl", ".ndjson", ".json")))

    def __str__(self) -> str:
        return " and ".join(map(short_path, self.names.values()))


def _path(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


FilesChoice = Annotated[Files, BeforeValidator(_path)]


class DataSettings(Choice):
    """Where the pairs come from: a corpus of any kind. A corpus is declared as a function that loads it. The parameters
    of the function are the settings. Settings that other modules also use are declared as classes instead.
    """

    registry: ClassVar[Registry] = Registry("corpus", "regard.data.corpora")
    source_kind: ClassVar[str] = TEXT
    """The kind of the sources."""

    def check_options(self) -> None:
        """Raise a ValueError if the options cannot be combined. `register_corpus` can replace this function."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.check_options()
        return self


SplitName = Literal["train", "dev", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class FilesData(DataSettings):
    """Pairs from files. Without dev files, 5 % of the source sentences (of a large corpus, about 2,000) are held out
    for validation. Without dev and test files, a test set is held out too.
    """

    kind: Literal["files"] = "files"
    folder: str = Field("", json_schema_extra=MAY_CHANGE_ON_RESUME, description="folder of the files")
    language: str | tuple[str, ...] = Field(
        "", description="replaces {language} in file names; a list trains on all languages, each one a tag"
    )
    train: FilesChoice
    dev: FilesChoice | None = None
    test: FilesChoice | None = None
    test_split: bool = Field(
        True,
        description="without dev and test files, hold out a test set too: 5 %, at most about 1,000 pairs, if there "
        "are 1,000 pairs or more",
    )
    dev_unseen: bool = Field(False, description="validate only on dev pairs whose source is not in the training data")
    bad_lines: Literal["error", "skip"] = Field("error", description="how to handle lines that do not contain a pair")

    def files(self, split: SplitName) -> Files | None:
        """Return the files of a split, with folder and language applied to their names."""
        files: Files | None = getattr(self, split)
        return None if files is None else files.within(self.folder, self.language)

    def map_paths(self, function: Callable[[str], str]) -> Self:
        """Return the settings with other paths. Paths inside `folder` stay relative to it."""
        if self.folder:
            return self.model_copy(update={"folder": function(self.folder)})
        return super().map_paths(function)

    @property
    def has_tags(self) -> bool:
        """Whether the language is a tag of each source."""
        return not isinstance(self.language, str)

    def check_options(self) -> None:
        """Raise a ValueError if the languages are not valid tags, or if a file is not specific to a language."""
        if isinstance(self.language, str):
            return
        if not self.language or any(not re.fullmatch(r"[^\s;]+", name) for name in self.language):
            raise ValueError("language: give at least one, without white space or ';', which separate tags.")
        for split in SPLITS:
            files: Files | None = getattr(self, split)
            fixed = [path for path in (files.names.values() if files else ()) if "{language}" not in path]
            if fixed:
                raise ValueError(
                    f"{split}: {fixed[0]} would be read once for each language, with every tag. Write {{language}} in "
                    "the file name."
                )


TAGS = "treat text after a tab in a source as tags (V;PST), one token each"
MAX_LENGTH = "maximum number of tokens; longer texts are truncated"


class _TextSettings(Settings):
    """Text normalization and special tokens: settings of every tokenizer that is learned from the data."""

    normalization: Literal["none", "nfc", "nfd", "nfkc"] = Field(
        "nfc", description="Unicode normalization form; nfd separates letters from accents, and 한 into ㅎㅏㄴ"
    )
    lowercase: bool = Field(False, description="convert texts to lower case")
    byte_fallback: bool = Field(False, description="encode unseen characters as UTF-8 bytes instead of <unk>")
    symbols: tuple[str, ...] = Field((), description="strings that are never split, for example <url> or <2de>")
    tags: bool = Field(False, description=TAGS)

    @field_validator("symbols")
    @classmethod
    def _are_valid(cls, symbols: tuple[str, ...]) -> tuple[str, ...]:
        for symbol in symbols:
            if not symbol or re.search(r"\s", symbol):
                raise ValueError(f"{symbol!r} is not a valid symbol: it must not be empty or contain white space.")
            if re.fullmatch(RESERVED, symbol):
                raise ValueError(f"{symbol!r} is not a valid symbol: it is the name of a special token.")
        if len(set(symbols)) < len(symbols):
            raise ValueError("the list contains a symbol twice.")
        return symbols


RESERVED = "<(?:pad|unk|/?s|0x[0-9A-F]{2})>"
"""The names of the special tokens and the byte tokens, which never match text."""


class Sampling(NamedTuple):
    """The number of segmentations that are sampled for each word, and the parameter of their distribution."""

    segmentations: int
    dropout: float | None = None
    alpha: float | None = None


SEGMENTATIONS = Field(32, ge=1, le=1_000, description="segmentations to sample for each word, with dropout or alpha")
SPLIT = "spaces: split words at spaces; classes: also between letters, digits and other characters (for raw text)"


class CharSide(_TextSettings):
    """Every character is a token."""

    kind: Literal["char"] = "char"


class WordSide(_TextSettings):
    """Every word, separated by white space, is a token. Repeated white space becomes one space."""

    kind: Literal["word"] = "word"
    vocabulary: VocabularySize | None = Field(None, description="maximum number of words; the most frequent are kept")
    min_count: Count = Field(1, description="minimum count of a word; rarer words are unknown")


class BPESide(_TextSettings):
    """Byte-pair encoding: frequent pairs of tokens are merged, starting from characters (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    vocabulary: VocabularySize = Field(8_000, description="vocabulary size")
    min_count: Count = Field(2, description="minimum count of a pair to be merged")
    split: Literal["spaces", "classes"] = Field("classes", description=SPLIT)
    dropout: Fraction = Field(0.0, description="BPE-dropout in training (Provilkov et al. 2020)")
    segmentations: Count = SEGMENTATIONS

    @property
    def sampling(self) -> Sampling | None:
        return Sampling(self.segmentations, dropout=self.dropout) if self.dropout else None


class UnigramSide(_TextSettings):
    """The most likely segmentation under a unigram language model (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    vocabulary: VocabularySize = Field(8_000, description="vocabulary size")
    split: Literal["spaces", "classes"] = Field("classes", description=SPLIT)
    alpha: PositiveWeight | None = Field(
        None, description="sample segmentations in training with p^alpha: 0.1 to 0.5; smaller is more diverse"
    )
    segmentations: Count = SEGMENTATIONS

    @property
    def sampling(self) -> Sampling | None:
        return Sampling(self.segmentations, alpha=self.alpha) if self.alpha else None


class SentencePieceSide(Settings):
    """A unigram or BPE tokenizer from a .model file of SentencePiece."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    path: Annotated[str, PATH] = Field(
        description="the .model file; it is read when training starts, and not needed later"
    )
    tags: bool = Field(False, description=TAGS)
    dropout: Fraction = Field(0.0, description="for a BPE model: BPE-dropout in training")
    alpha: PositiveWeight | None = Field(None, description="for a unigram model: sample segmentations with p^alpha")
    segmentations: Count = SEGMENTATIONS

    @property
    def sampling(self) -> Sampling | None:
        if self.alpha:
            return Sampling(self.segmentations, alpha=self.alpha)
        return Sampling(self.segmentations, dropout=self.dropout) if self.dropout else None


TrainableSide = CharSide | WordSide | BPESide | UnigramSide
TextSide = TrainableSide | SentencePieceSide
SideChoice = Annotated[TextSide, Field(discriminator="kind"), BY_NAME]


class _BothSides(Settings):
    """Settings that apply to source and target together."""

    shared: bool = Field(True, description="use one vocabulary for source and target")
    max_length: Length = Field(1_000, json_schema_extra=MAY_CHANGE_ON_RESUME, description=MAX_LENGTH)


class _SampledSides(_BothSides):
    sampled: Literal["both", "source", "target"] = Field("both", description="sides whose segmentation is sampled")


class CharTokenizer(CharSide, _BothSides):
    __doc__ = CharSide.__doc__


class WordTokenizer(WordSide, _BothSides):
    __doc__ = WordSide.__doc__


class BPETokenizer(BPESide, _SampledSides):
    __doc__ = BPESide.__doc__


class UnigramTokenizer(UnigramSide, _SampledSides):
    __doc__ = UnigramSide.__doc__


class SentencePieceTokenizer(SentencePieceSide, _SampledSides):
    __doc__ = SentencePieceSide.__doc__


class PairTokenizer(Settings):
    """Different tokenizers for source and target, for example letters to phonemes: `{source: char, target: word}`."""

    kind: Literal["pair"] = "pair"
    source: SideChoice
    target: SideChoice
    max_length: Length = Field(1_000, json_schema_extra=MAY_CHANGE_ON_RESUME, description=MAX_LENGTH)
    shared: ClassVar[bool] = False


class ImportedTokenizer(Settings):
    """Base class of the settings of tokenizers that are imported with a model."""

    max_length: Length = Field(512, json_schema_extra=MAY_CHANGE_ON_RESUME, description=MAX_LENGTH)
    tags: ClassVar[bool] = False
    sampling: ClassVar[Sampling | None] = None


class MarianTokenizer(ImportedTokenizer):
    """The tokenizers of an imported Marian model: two SentencePiece models with one vocabulary."""

    kind: Literal["marian"] = "marian"
    shared: ClassVar[bool] = True


class JoeyTokenizer(ImportedTokenizer):
    """The tokenizers of an imported Joey NMT model: words, characters or SentencePiece models."""

    kind: Literal["joey"] = "joey"
    shared: bool = Field(True, description="source and target have the same vocabulary")


Side = TextSide | MarianTokenizer | JoeyTokenizer
TokenizerSettings = (
    CharTokenizer
    | WordTokenizer
    | BPETokenizer
    | UnigramTokenizer
    | SentencePieceTokenizer
    | PairTokenizer
    | MarianTokenizer
    | JoeyTokenizer
)


def _add_kind(value: Any) -> Any:
    """Allow `{source: …, target: …}` without a kind."""
    if isinstance(value, dict) and "kind" not in value and {"source", "target"} & set(value):
        return {"kind": "pair", **value}
    return value


TokenizerChoice = Annotated[TokenizerSettings, Field(discriminator="kind"), BeforeValidator(_add_kind), BY_NAME]


def sides(settings: TokenizerSettings) -> tuple[Side, Side]:
    """Return the settings of sources and of targets. Only sources have tags, unless the vocabulary is shared."""
    if isinstance(settings, PairTokenizer):
        return settings.source, settings.target
    return settings, settings if settings.shared else settings.model_copy(update={"tags": False})


def token_differences(one: TokenizerSettings, other: TokenizerSettings) -> list[str]:
    """Return the settings that differ and change the tokens. Settings of the sampling of segmentations do not."""
    sampling = {*Sampling._fields, "sampled"}
    return [key for key in differences(one, other) if key.split(".")[-1] not in sampling]


def sampling_by_side(settings: TokenizerSettings) -> tuple[Sampling | None, Sampling | None]:
    """Return how the segmentation of sources and that of targets is sampled in training; None if it is not."""
    source, target = (None if isinstance(side, CharSide | WordSide) else side.sampling for side in sides(settings))
    if isinstance(settings, _SampledSides):
        return source if settings.sampled != "target" else None, target if settings.sampled != "source" else None
    return source, target
