"""Requests of the API, from JSON bodies, forms and queries. Values may be strings, as in forms. Unknown fields are
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
ApiKey = Annotated[str | None, Field(description="The API key, if the server requires one.")]
ModelName = Annotated[
    str,
    StringConstraints(max_length=MAX_NAME),
    Field(description="The name of the model, as in `/models`. It may be omitted if only one model fits."),
]


class Options(BaseModel):
    """Options that LibreTranslate does not have: word alignments, scores, attention weights, beam size, constraints."""

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

    q: Annotated[Texts, Field(description="The text, or a list of texts.")]
    api_key: ApiKey = None


class DetectRequest(_Body):
    """A text whose language is detected."""

    q: Annotated[str, Field(description="The text.")]


class _Prediction(_Body):
    alternatives: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_ALTERNATIVES,
            description="The number of other predictions. The beam size is at least one more.",
        ),
    ] = 0
    regard: Annotated[
        Options | None,
        BeforeValidator(_parse_object),
        Field(description="Options that LibreTranslate does not have; in a form, as JSON."),
    ] = None

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

    source: Annotated[Code, Field(description="The code of the source language, as in `/languages`, or `auto`.")]
    target: Annotated[Code, Field(description="The code of the target language.")]
    format: Annotated[
        Literal["text", "html"], Field(description="The format of `q`. That of a file depends on its extension.")
    ] = "text"


class PredictRequest(_Prediction):
    """A source, or several, and the name of a model; it may be omitted if only one model predicts texts."""

    model: ModelName = ""


class SentenceRequest(BaseModel):
    """One text: for a pair of languages, or for a model."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    q: Annotated[str, Field(description="The text.")]
    source: Annotated[
        str, StringConstraints(max_length=MAX_NAME), Field(description="The code of the source language, or `auto`.")
    ] = AUTO
    target: Annotated[
        str,
        StringConstraints(max_length=MAX_NAME),
        Field(description="The code of the target language. Without it, `model` predicts."),
    ] = ""
    model: ModelName = ""
    api_key: ApiKey = None
