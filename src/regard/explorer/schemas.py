"""Requests of the page, with limits: a request that is too large is rejected before the model computes anything.

A request that fails is answered with a message, and the field that it is about.
"""

import logging
from collections.abc import Sequence
from typing import Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)
from starlette.responses import Response

from regard.decoding.settings import SearchFields
from regard.errors import RegardError
from regard.formatting import did_you_mean, to_json
from regard.inspection.attribution.settings import METHODS, Baseline, Method
from regard.quantities import BeamSize, OptionalLength, SampleCount

log = logging.getLogger(__name__)

MAX_TEXT: Final = 2_000
"""The maximum number of characters of a text."""

MAX_IMAGE_BYTES: Final = 20_000_000
"""The maximum size of an image file."""

MAX_BODY_BYTES: Final = MAX_IMAGE_BYTES * 4 // 3 + 1_000_000
"""The maximum size of a request: an image in base64, and the other fields."""

MAX_BEAM: Final = 20
MAX_CANDIDATES: Final = 50
MAX_PHRASES: Final = 20
MAX_ROWS: Final = 2_000
MAX_EDITS: Final = 50
MAX_MODELS: Final = 20

MAX_EDITS_SIZE: Final = 200_000
"""The maximum number of characters of all edits, as JSON."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Phrases = Annotated[list[Text], Field(max_length=MAX_PHRASES)]


def _check_size(edits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(to_json(edits)) > MAX_EDITS_SIZE:
        raise ValueError(f"The edits have more than {MAX_EDITS_SIZE:,} characters. Use fewer edits or shorter texts")
    return edits


Edits = Annotated[list[dict[str, Any]], Field(max_length=MAX_EDITS), AfterValidator(_check_size)]
"""Edits as `Model.trace` accepts them, which also checks them."""


class Request(BaseModel):
    """A request. Unknown fields, NaN and infinity are rejected, and no value is converted to another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class TextSource(Request):
    """A text."""

    text: Text


class ImageSource(Request):
    """An image file (PNG, JPEG or WebP), as base64."""

    image: Annotated[str, Field(max_length=MAX_IMAGE_BYTES * 4 // 3 + 4)]


class ExampleSource(Request):
    """A source of the run's test set, or of its dev set if it has none, by its index."""

    example: Annotated[int, Field(ge=0, lt=MAX_ROWS)]


Source = TextSource | ImageSource | ExampleSource


class SearchRequest(SearchFields):
    """The settings of the search and the constraints of `Model.predict`, with limits."""

    model_config = Request.model_config

    beam: Annotated[BeamSize, Field(le=MAX_BEAM)] = 1
    nbest: Annotated[BeamSize, Field(le=MAX_BEAM)] = 1
    groups: Annotated[BeamSize, Field(le=MAX_BEAM)] = 1
    mbr_samples: Annotated[SampleCount, Field(le=MAX_BEAM)] = 0
    min_length: Annotated[OptionalLength, Field(le=MAX_TEXT)] = 0
    prefix: Text = ""
    must_contain: Phrases = Field([])
    banned: Phrases = Field([])

    @property
    def options(self) -> dict[str, Any]:
        """The options that the request contains, as keyword arguments of `Model.predict`."""
        return self.model_dump(exclude_unset=True)


class TraceRequest(Request):
    """What to trace, and what the document contains."""

    model: Annotated[str, Field(max_length=20)]
    source: Source
    search: SearchRequest = SearchRequest()
    target: Text | None = None
    edits: Edits = []
    queries: bool = False
    states: bool = False
    candidates: Annotated[PositiveInt, Field(le=MAX_CANDIDATES)] = 10
    summary: bool = False


class AttentionRequest(TraceRequest):
    """A trace, and the names of the attentions whose weights are requested."""

    names: Annotated[list[Text], Field(max_length=1_000)]


class Contrast(Request):
    """Another token at a step, counted from 0."""

    step: NonNegativeInt
    token: Text


class AttributionRequest(Request):
    """What to explain, with which methods, and which token or target to contrast it with."""

    model: Annotated[str, Field(max_length=20)]
    source: Source
    search: SearchRequest = SearchRequest()
    target: Text | None = None
    methods: Annotated[list[Method], Field(min_length=1, max_length=len(METHODS))] = ["gradient_x_input"]
    contrast: Text | Contrast | None = None
    baseline: Baseline = "zero"
    integration_steps: Annotated[PositiveInt, Field(le=200)] = 50
    previous: bool = False
    normalize: bool = False


class HeadsRequest(Request):
    """The prediction whose heads are ablated."""

    model: Annotated[str, Field(max_length=20)]
    source: Source
    search: SearchRequest = SearchRequest()
    edits: Edits = []


class CorpusRequest(Request):
    """How many pairs of the test set (or the dev set) to predict, and how."""

    model: Annotated[str, Field(max_length=20)]
    search: SearchRequest = SearchRequest()
    limit: Annotated[PositiveInt, Field(le=MAX_ROWS)] = 200


class MetricsRequest(Request):
    """Rows of the corpus that were predicted before, and the models to evaluate on them. Others are compared with the
    first.
    """

    models: Annotated[list[Annotated[str, Field(max_length=20)]], Field(min_length=1, max_length=MAX_MODELS)]
    search: SearchRequest = SearchRequest()
    indices: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_ROWS)]], Field(min_length=1, max_length=MAX_ROWS)]


class NeighborsRequest(Request):
    """A source, and the ids of the output tokens after which the state of the decoder is compared with those of
    training pairs.
    """

    model: Annotated[str, Field(max_length=20)]
    source: Source
    tokens: Annotated[list[NonNegativeInt], Field(max_length=MAX_TEXT)] = []


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    @classmethod
    def of(cls, error: Exception) -> "RequestError":
        """Return the failure of a request that raised an exception. Log the traceback of an unexpected one."""
        match error:
            case RequestError():
                return error
            case RegardError():
                return cls(422, str(error))
            case _:
                log.error("A request failed", exc_info=error)
                return cls(500, f"This is a bug in regard: {type(error).__name__}. Please report it.")

    @classmethod
    def from_validation(cls, error: ValidationError, schema: type[BaseModel]) -> "RequestError":
        """Return the first problem that pydantic reports in a request."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        message = first["msg"] if field is None else f"{field}: {first['msg']}"
        if first["type"] == "extra_forbidden":
            *path, name = map(str, first["loc"])
            known = list(_find_owner(schema, path).model_fields)
            message = f"{field}: unknown field.{did_you_mean(name, known)} Available: {', '.join(known)}"
        return cls(400 if first["type"] == "json_invalid" else 422, f"{message}.", field)

    @property
    def document(self) -> dict[str, Any]:
        """The failure as JSON."""
        return {"error": {"message": self.message, "field": self.field}}

    def to_response(self) -> Response:
        return Response(to_json(self.document), self.status, media_type="application/json")


def _find_owner(schema: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """Return the schema of the object at a path. In the path, a member of a union has the name of its class."""
    nested: Any = schema
    for part in path:
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            schema, nested = nested, nested.model_fields[part].annotation
        else:
            nested = next(each for each in get_args(nested) if getattr(each, "__name__", "") == part)
    return nested if isinstance(nested, type) and issubclass(nested, BaseModel) else schema
