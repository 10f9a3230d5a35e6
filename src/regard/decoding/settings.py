"""What may be set in decoding."""

from pydantic import Field, NonNegativeInt, PositiveFloat

from regard.config import HARMLESS, Settings


class DecodingSettings(Settings):
    """An answer has at most `ratio` · (source length) + `extra` tokens."""

    ratio: PositiveFloat = Field(2.0, json_schema_extra=HARMLESS)
    extra: NonNegativeInt = Field(20, json_schema_extra=HARMLESS)
