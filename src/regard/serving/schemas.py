"""Requests of the API, from JSON bodies, forms and queries. A value may be a text, as in forms. Unknown fields are
ignored, because clients of LibreTranslate send fields that this server does not have.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from regard.decoding.settings import SearchSettings
from regard.formatting import parse_json
from regard.quantities import BeamSize
from regard.serving.models import Description, Wanted

MAX_BEAM: Final = 20
MAX_ALTERNATIVES: Final = 10
MAX_PHRASES: Final = 20
MAX_ITEMS: Final = 1_000
MAX_NAME: Final = 200
MAX_PHRASE: Final = 500
AUTO: Final = "auto"


def _parse_object(value: Any) -> Any:
    """A form contains an object as JSON."""
    return parse_json(value) if isinstance(value, str) else value


Code = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PHRASE)]
Texts = str | Annotated[list[str], Field(max_length=MAX_ITEMS)]


class Options(BaseModel):
    """What only regard offers: word alignments, scores, attention weights, the beam size, and constraints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    align: bool = False
    scores: bool = False
    attention: bool = False
    beam: Annotated[BeamSize, Field(le=MAX_BEAM)] | None = None
    prefix: Annotated[str, StringConstraints(max_length=MAX_PHRASE)] = ""
    must_contain: Annotated[list[Phrase], Field(max_length=MAX_PHRASES)] = []
    banned: Annotated[list[Phrase], Field(max_length=MAX_PHRASES)] = []


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    q: Texts
    api_key: str | None = None


class DetectRequest(_Body):
    """A text whose language is detected."""

    q: str


class _Prediction(_Body):
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    regard: Annotated[Options | None, BeforeValidator(_parse_object)] = None

    @property
    def options(self) -> Options:
        return self.regard or Options()

    def want(self, description: Description) -> Wanted:
        """Return what is computed, given the model. Raise ConfigError if the search settings cannot be combined."""
        options, search = self.options, dict(description.search)
        if options.beam is not None:
            search |= {"beam": options.beam, "nbest": min(search["nbest"], options.beam)}
        nbest = max(search["nbest"], 1 + self.alternatives)
        search |= {"nbest": nbest, "beam": max(search["beam"], nbest)}
        return Wanted(
            search=SearchSettings(**search),
            prefix=options.prefix,
            must_contain=tuple(options.must_contain),
            banned=tuple(options.banned),
            align=options.align,
            attention=options.attention,
        )


class TranslateRequest(_Prediction):
    """A text, or several, and their languages."""

    source: Code
    target: Code
    format: Literal["text", "html"] = "text"


class PredictRequest(_Prediction):
    """A source, or several, and the name of a model; it may be omitted if only one model predicts texts."""

    model: Annotated[str, StringConstraints(max_length=MAX_NAME)] = ""


class SentenceRequest(BaseModel):
    """One text: for a pair of languages, or for a model."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    q: str
    source: Annotated[str, StringConstraints(max_length=MAX_NAME)] = AUTO
    target: Annotated[str, StringConstraints(max_length=MAX_NAME)] = ""
    model: Annotated[str, StringConstraints(max_length=MAX_NAME)] = ""
    api_key: str | None = None
