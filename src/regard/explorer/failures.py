"""Failures of requests: each is a JSON object with a message, and the field that it is about."""

import logging
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from regard.errors import RegardError
from regard.formatting import to_json

log = logging.getLogger(__name__)


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
    def from_validation(cls, error: ValidationError) -> "RequestError":
        """Return the first problem that pydantic reports."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        message = first["msg"] if field is None else f"{field}: {first['msg']}"
        return cls(400 if first["type"] == "json_invalid" else 422, f"{message}.", field)

    @property
    def document(self) -> dict[str, Any]:
        """The failure as JSON."""
        return {"error": {"message": self.message, "field": self.field}}

    def to_response(self) -> Response:
        return Response(to_json(self.document), self.status, media_type="application/json")
