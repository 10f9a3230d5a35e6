"""Failures of requests, and their HTTP status codes: those of LibreTranslate where it has one."""

import logging
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from regard.errors import RegardError
from regard.formatting import to_json

log = logging.getLogger(__name__)


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        status: The HTTP status.
        message: What is wrong, and what to do.
        retry_after: After how many seconds the same request can succeed; None if it cannot.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    @classmethod
    def of(cls, error: Exception) -> "RequestError":
        """Return the failure of a request that raised an exception. Log the traceback of an unexpected one."""
        match error:
            case RequestError():
                return error
            case RegardError():
                return cls(400, str(error))
            case _:
                log.error("A request failed.", exc_info=error)
                return cls(500, f"This is a bug in regard: {type(error).__name__}. Please report it.")

    def to_response(self) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        content: dict[str, Any] = {"error": self.message}
        return Response(to_json(content, ensure_ascii=False), self.status, headers, media_type="application/json")


def raise_invalid(error: ValidationError, schema: type[BaseModel]) -> NoReturn:
    """Raise the first problem that pydantic reports in a request."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"] if part in schema.model_fields or len(first["loc"]) > 1)
    if first["type"] == "missing":
        raise RequestError(400, f"Invalid request: missing {name} parameter") from None
    raise RequestError(400, f"Invalid request: {name + ': ' if name else ''}{first['msg']}.") from None
