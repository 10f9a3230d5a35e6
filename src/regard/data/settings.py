"""What may be set in the data: where the pairs come from, and how text becomes tokens."""

import os
import re
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, Settings, differences
from regard.data.files import Files, FilesChoice


class DatesData(Settings):
    """Dates as people write them in dozens of languages → YYYY-MM-DD; built in, a pure function of its seed."""

    kind: Literal["dates"] = "dates"
    train: PositiveInt = 20_000
    dev: PositiveInt = 500
    test: PositiveInt = 1_000
    seed: NonNegativeInt = 0


class SequencesData(Settings):
    """Strings of letters to be copied, reversed or sorted; built in, a pure function of its seed."""

    kind: Literal["sequences"] = "sequences"
    task: Literal["copy", "reverse", "sort"] = "reverse"
    letters: int = Field(26, ge=2, le=26, description="how many letters there are")
    shortest: PositiveInt = 5
    longest: PositiveInt = 30
    train: PositiveInt = 20_000
    dev: PositiveInt = 500
    test: PositiveInt = 1_000
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _has_enough_strings(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest: {self.shortest} is more than longest, {self.longest}.")
        lengths = range(self.shortest, min(self.longest, self.shortest + 12) + 1)
        strings = sum(self.letters**length for length in lengths)
        if strings < 4 * (self.train + self.dev + self.test):
            raise ValueError(f"letters: there are only {strings} strings of these lengths. Allow longer ones.")
        return self


class PronounceData(Settings):
    """English words → their phones (HH AH L OW), from CMUdict; all pronunciations of a word stand in one split."""

    kind: Literal["pronounce"] = "pronounce"
    path: str | None = Field(None, description="a dictionary of the same form; by default the package cmudict's")
    stress: bool = Field(False, description="keep the marks of stress on the vowels (AH0, OW1)")
    letters_only: bool = Field(True, description="drop words with other characters, as in a.m. and can't")
    dev: float = Field(0.05, gt=0, lt=0.5, description="the share of the words to choose by")
    test: float = Field(0.1, gt=0, lt=0.5, description="the share of the words to be judged on")

    def absolute(self) -> Self:
        return self.model_copy(update={"path": os.path.abspath(self.path)}) if self.path else self


SplitName = Literal["train", "dev", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class FilesData(Settings):
    """Pairs from files. Without dev files, one source sentence in twenty (of a large corpus, about 2,000 in all) is
    held back from training for validation. Without dev and test files, so is a test set.
    """

    kind: Literal["files"] = "files"
    folder: str = Field("", json_schema_extra=MAY_CHANGE_ON_RESUME, description="where the files are, if not here")
    language: str | tuple[str, ...] = Field(
        "", description="what stands for {language} in their names; several are learned together, each one a tag"
    )
    train: FilesChoice
    dev: FilesChoice | None = None
    test: FilesChoice | None = None
    test_split: bool = Field(
        True,
        description="without dev and test files, hold back a test set too: 5 %, at most about 1,000 pairs, if there "
        "are 1,000 pairs or more",
    )
    dev_unseen: bool = Field(
        False, description="validate on those dev pairs alone whose source does not stand in the training data"
    )
    bad_lines: Literal["error", "skip"] = Field("error", description="what to do with a line that is no pair")

    def files(self, split: SplitName) -> Files | None:
        """The files of a split, with folder and language in their names."""
        given: Files | None = getattr(self, split)
        return None if given is None else given.within(self.folder, self.language)

    def absolute(self) -> Self:
        """Paths inside a folder stay relative to it."""
        if self.folder:
            return self.model_copy(update={"folder": os.path.abspath(self.folder)})
        return super().absolute()

    @property
    def has_tags(self) -> bool:
        """Whether sources are marked with their language."""
        return not isinstance(self.language, str)

    @model_validator(mode="after")
    def _languages_can_be_told_apart(self) -> Self:
        if isinstance(self.language, str):
            return self
        if not self.language or any(not re.fullmatch(r"[^\s;]+", name) for name in self.language):
            raise ValueError("language: give one at least, each without white space and ';', which part tags.")
        for split in SPLITS:
            given: Files | None = getattr(self, split)
            lacking = [path for path in (given.names.values() if given else ()) if "{language}" not in path]
            if lacking:
                raise ValueError(
                    f"{split}: {lacking[0]} would be read once for each language, under every tag. Write {{language}} "
                    "where its name has it."
                )
        return self


Data = Annotated[DatesData | SequencesData | PronounceData | FilesData, Field(discriminator="kind"), BY_NAME]


class _Spelling(Settings):
    """What every kind of tokenizer does with a text before it is cut into tokens."""

    normalization: Literal["none", "nfc", "nfd", "nfkc"] = Field(
        "nfc", description="the Unicode form of the text; nfd takes letters and accents apart, and 한 into ㅎㅏㄴ"
    )
    lowercase: bool = False
    byte_fallback: bool = Field(False, description="write characters never seen as bytes, so that none is unknown")
    symbols: tuple[str, ...] = Field((), description="never split, for example <url> or <2de>")
    tags: bool = Field(False, description="what follows a tab in a source are tags (V;PST), each of them one token")

    @field_validator("symbols")
    @classmethod
    def _can_be_told_apart(cls, symbols: tuple[str, ...]) -> tuple[str, ...]:
        for symbol in symbols:
            if not symbol or re.search(r"\s", symbol):
                raise ValueError(f"{symbol!r} cannot be a symbol: it must not be empty or hold white space.")
            if re.fullmatch(RESERVED, symbol):
                raise ValueError(f"{symbol!r} cannot be a symbol: it is the name of a token of our own.")
        if len(set(symbols)) < len(symbols):
            raise ValueError("a symbol is given twice.")
        return symbols


RESERVED = "<(?:pad|unk|/?s|0x[0-9A-F]{2})>"
"""The names of tokens that cannot be typed: the special ones and the bytes."""


class Sampling(NamedTuple):
    """How many segmentations of each word are drawn, and from what distribution."""

    drawn: int
    dropout: float | None = None
    alpha: float | None = None


DRAWN = Field(32, ge=1, le=1_000, description="segmentations drawn for each word, where they are sampled")
SPLIT = "where words end: at spaces, or also between letters, digits and other signs, as is right for raw text"


class CharSide(_Spelling):
    """Every character is a token."""

    kind: Literal["char"] = "char"


class WordSide(_Spelling):
    """Every word between white space is a token. Runs of white space become one space."""

    kind: Literal["word"] = "word"
    vocabulary: PositiveInt | None = Field(None, description="keep at most so many words, the most frequent")
    min_count: PositiveInt = Field(1, description="words seen less often are unknown")


class BPESide(_Spelling):
    """Byte-pair encoding: characters, merged as often as the vocabulary allows (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    vocabulary: PositiveInt = Field(8_000, description="tokens in all")
    min_count: PositiveInt = Field(2, description="pairs seen less often are not merged")
    split: Literal["spaces", "classes"] = Field("classes", description=SPLIT)
    dropout: float = Field(0.0, ge=0, le=1, description="merges left out at random in training (Provilkov et al. 2020)")
    segmentations: int = DRAWN

    @property
    def sampling(self) -> Sampling | None:
        return Sampling(self.segmentations, dropout=self.dropout) if self.dropout else None


class UnigramSide(_Spelling):
    """The likeliest segmentation under a unigram language model of pieces (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"
    vocabulary: PositiveInt = Field(8_000, description="tokens in all")
    split: Literal["spaces", "classes"] = Field("classes", description=SPLIT)
    alpha: PositiveFloat | None = Field(
        None, description="sample segmentations in training with p^alpha: 0.1 to 0.5, the smaller the wilder"
    )
    segmentations: int = DRAWN

    @property
    def sampling(self) -> Sampling | None:
        return Sampling(self.segmentations, alpha=self.alpha) if self.alpha else None


class SentencePieceSide(Settings):
    """A unigram or BPE tokenizer that SentencePiece trained, from its .model file."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    path: str = Field(description="the .model file; it is read when training begins, and not needed later")
    tags: bool = Field(False, description="what follows a tab in a source are tags (V;PST), each of them one token")
    dropout: float = Field(0.0, ge=0, le=1, description="for a BPE model: merges left out at random in training")
    alpha: PositiveFloat | None = Field(None, description="for a unigram model: sample segmentations with p^alpha")
    segmentations: int = DRAWN

    def absolute(self) -> Self:
        return self.model_copy(update={"path": os.path.abspath(self.path)})

    @property
    def sampling(self) -> Sampling | None:
        if self.alpha:
            return Sampling(self.segmentations, alpha=self.alpha)
        return Sampling(self.segmentations, dropout=self.dropout) if self.dropout else None


SpelledSide = CharSide | WordSide | BPESide | UnigramSide
Side = SpelledSide | SentencePieceSide
SideChoice = Annotated[Side, Field(discriminator="kind"), BY_NAME]


class _BothSides(Settings):
    """What is set for source and target together."""

    shared: bool = Field(True, description="one vocabulary for source and target")
    max_length: PositiveInt = Field(1_000, json_schema_extra=MAY_CHANGE_ON_RESUME, description="longer sources are cut")


class _Sampled(_BothSides):
    sampled: Literal["both", "source", "target"] = Field("both", description="the sides whose segmentation is sampled")


class CharTokenizer(CharSide, _BothSides):
    __doc__ = CharSide.__doc__


class WordTokenizer(WordSide, _BothSides):
    __doc__ = WordSide.__doc__


class BPETokenizer(BPESide, _Sampled):
    __doc__ = BPESide.__doc__


class UnigramTokenizer(UnigramSide, _Sampled):
    __doc__ = UnigramSide.__doc__


class SentencePieceTokenizer(SentencePieceSide, _Sampled):
    __doc__ = SentencePieceSide.__doc__


class PairTokenizer(Settings):
    """Another tokenizer for each side, for example letters to phones: `{source: char, target: word}`."""

    kind: Literal["pair"] = "pair"
    source: SideChoice
    target: SideChoice
    max_length: PositiveInt = Field(1_000, json_schema_extra=MAY_CHANGE_ON_RESUME, description="longer sources are cut")

    @property
    def shared(self) -> bool:
        return False


TokenizerSettings = (
    CharTokenizer | WordTokenizer | BPETokenizer | UnigramTokenizer | SentencePieceTokenizer | PairTokenizer
)


def _two_sides(value: Any) -> Any:
    """`{source: …, target: …}` needs no kind."""
    if isinstance(value, dict) and "kind" not in value and {"source", "target"} & set(value):
        return {"kind": "pair", **value}
    return value


TokenizerChoice = Annotated[TokenizerSettings, Field(discriminator="kind"), BeforeValidator(_two_sides), BY_NAME]


def sides(settings: TokenizerSettings) -> tuple[Side, Side]:
    """How the sources and how the targets become tokens. Tags belong to sources, unless the vocabulary is shared."""
    if isinstance(settings, PairTokenizer):
        return settings.source, settings.target
    return settings, settings if settings.shared else settings.model_copy(update={"tags": False})


def token_differences(one: TokenizerSettings, other: TokenizerSettings) -> list[str]:
    """The settings in which two differ that decide what a token is; how segmentations are sampled does not."""
    sampled = {*Sampling._fields, "sampled"}
    return [key for key in differences(one, other) if key.split(".")[-1] not in sampled]


def sampling_by_side(settings: TokenizerSettings) -> tuple[Sampling | None, Sampling | None]:
    """How the segmentation of each side is sampled in training; None where it is not."""
    source, target = (None if isinstance(side, CharSide | WordSide) else side.sampling for side in sides(settings))
    if isinstance(settings, _Sampled):
        return source if settings.sampled != "target" else None, target if settings.sampled != "source" else None
    return source, target
