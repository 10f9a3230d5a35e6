"""The registry of source readers: one for each kind of source.

An encoder declares the kind of source that it reads (`Encoder.source_kind`), and a corpus the kind of its sources. The
default is "text".
"""

from collections.abc import Callable
from inspect import signature

from regard.data.images.reader import ImageReader
from regard.data.sources import SourceReader
from regard.data.texts import TextReader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.errors import ArgumentTypeError, ConfigError
from regard.models.encoder_settings import TEXT, EncoderSettings
from regard.models.vision.settings import IMAGE

_READERS: dict[str, Callable[..., SourceReader]] = {IMAGE: ImageReader}


def register_reader(source_kind: str, reader: Callable[..., SourceReader]) -> None:
    """Register the reader of a kind of source: a subclass of `SourceReader`, or a function that builds one.

    It is called with the options of the encoder that it has parameters for. In this way, an option of the encoder can
    also control the preprocessing of its sources.

    >>> regard.register_reader("picture", PictureReader)
    """
    if not isinstance(source_kind, str) or not callable(reader):
        raise ArgumentTypeError(
            f"register_reader expects the name of a kind of source and a class or function, not {source_kind!r} and "
            f"{reader!r}."
        )
    if source_kind in {TEXT, IMAGE}:
        raise ConfigError(
            f"The reader of {source_kind} cannot be replaced. Choose another name for the kind of source."
        )
    _READERS[source_kind] = reader


def find_reader(encoder: EncoderSettings) -> SourceReader | None:
    """Build the reader that an encoder needs; None if it reads text, which needs a tokenizer."""
    if encoder.source_kind == TEXT:
        return None
    if encoder.source_kind not in _READERS:
        raise ConfigError(
            f"The encoder '{encoder.kind}' reads sources of the kind '{encoder.source_kind}', but no reader is "
            "registered for this kind. Register one with regard.register_reader."
        )
    build = _READERS[encoder.source_kind]
    return build(**encoder.options(frozenset(signature(build).parameters)))


def build_reader(encoder: EncoderSettings, tokenizers: TokenizerPair, max_length: int) -> SourceReader:
    """Build the reader that an encoder needs."""
    return find_reader(encoder) or TextReader(tokenizers.source, max_length)
