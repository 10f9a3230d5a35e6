"""Security of the server: who may send requests, how large they are, and what the page may load.

A page of another site can send requests to a server on localhost. Therefore the Host header must name this server (a
rebound DNS name does not), the Origin of a POST must be this server, and a server that other machines can reach
requires a token.
"""

import ipaddress
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.explorer.schemas import MAX_BODY_BYTES, RequestError

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_WILDCARDS: Final = ("0.0.0.0", "[::]")

MAX_FIELDS: Final = 100
"""The maximum number of fields in the query of a URL."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The page loads its own script and style only, and no inline code."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response."""


@dataclass(frozen=True)
class Access:
    """Who may send requests.

    Attributes:
        host: The address that the server listens on.
        port: Its port.
        token: The token that every request needs; None for none.
        session: What the cookie contains after the token was given once.
    """

    host: str
    port: int
    token: str | None = None
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers send a cookie to all ports of a host, so the port is part of the name."""
        return f"regard_{self.port}"

    def check_site(self, method: str, headers: Headers) -> None:
        """Raise RequestError for a request from another site."""
        host = headers.get("host", "")
        if not self._is_own_host(host):
            raise RequestError(421, f"The Host header {host!r} does not name this server. Use the URL that it printed.")
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and origin != f"http://{host}":
            raise RequestError(403, f"The request comes from another origin, {origin!r}. Use the page of this server.")
        if headers.get("sec-fetch-site", "none") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            raise RequestError(403, "The request comes from another site. Use the page of this server.")

    def check_token(self, headers: Headers) -> None:
        """Raise RequestError for a request without the token."""
        if not self._has_token(headers):
            raise RequestError(401, "The token is missing or wrong. Open the URL that `regard explore` printed.")

    def accepts(self, token: bytes) -> bool:
        """Return whether this is the token, in UTF-8."""
        return self.token is not None and secrets.compare_digest(token, self.token.encode())

    def _is_own_host(self, host: str) -> bool:
        name, separator, port = host.rpartition(":")
        if not separator or name.endswith(":") or port != str(self.port):
            # A browser omits the default port of HTTP.
            name = host if self.port == 80 else ""
        if name in (*LOOPBACK, self.host):
            return True
        # A DNS name can be rebound to this machine, an address cannot.
        return self.host in _WILDCARDS and _is_address(name)

    def _has_token(self, headers: Headers) -> bool:
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Headers are decoded as Latin-1. Spaces are removed from the bytes, because a UTF-8 letter can end in \xa0.
        if scheme.lower() == "bearer" and self.accepts(given.encode("latin-1").strip()):
            return True
        try:
            session = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return session is not None and secrets.compare_digest(session.value.encode(), self.session.encode())


class SecurityMiddleware:
    """Checks each request before it is passed on to the application, and adds headers to each response.

    Args:
        app: The application.
        access: Who may send requests.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = self._answer(scope)
        secured = _add_headers(send)
        if response is not None:
            await response(scope, receive, secured)
            return
        await self._app(scope, _limit_body(receive), secured)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the response to a request that is not passed on to the application; otherwise None."""
        headers = Headers(scope=scope)
        try:
            self._access.check_site(scope["method"], headers)
            if scope["method"] == "GET" and scope["path"] == "/" and self._has_valid_query(scope):
                return self._start_session()
            self._access.check_token(headers)
            length = headers.get("content-length", "0")
            if length.isascii() and length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
                raise _too_large()
        except RequestError as error:
            return error.to_response()
        return None

    def _has_valid_query(self, scope: Scope) -> bool:
        try:
            query = parse_qs(scope["query_string"].decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
        except ValueError:
            raise RequestError(
                400, f"The URL has more than {MAX_FIELDS} fields. Open the URL that `regard explore` printed."
            ) from None
        return self._access.accepts(query.get("token", [""])[0].encode())

    def _start_session(self) -> Response:
        """Set a cookie, and redirect to the URL without the token, which must not remain in the browser history."""
        response = RedirectResponse("/", 303)
        response.set_cookie(self._access.cookie, self._access.session, httponly=True, samesite="strict")
        return response


def _add_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return send_with_headers


def _limit_body(receive: Receive) -> Receive:
    """Limit the size of a request, even if it does not declare its length."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return receive_limited


def _too_large() -> RequestError:
    return RequestError(
        413, f"The request is larger than {MAX_BODY_BYTES:,} bytes. Use a shorter text or a smaller image."
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
