"""Failures of requests: each is a JSON object with a message, and the field that it is about."""

import logging
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from regard.errors import RegardError
from regard.formatting import did_you_mean, to_json

log = logging.getLogger(__name__)


def _find_owner(schema: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """Return the schema of the object at a path. In the path, a member of a union has the name of its class."""
    nested: Any = schema
    for part in path:
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            schema, nested = nested, nested.model_fields[part].annotation
        else:
            nested = next(each for each in get_args(nested) if getattr(each, "__name__", "") == part)
    return nested if isinstance(nested, type) and issubclass(nested, BaseModel) else schema


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
