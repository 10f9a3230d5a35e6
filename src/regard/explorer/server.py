"""The server process: find a port, print the URL, open the browser, and serve until Ctrl-C."""

import errno
import ipaddress
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import click
import uvicorn
from starlette.types import ASGIApp

from regard.errors import ConfigError
from regard.explorer.security import Access

DEFAULT_PORT: Final = 7866
_SECONDS_TO_CLOSE: Final = 2


def serve(
    create: Callable[[Access], ASGIApp], host: str, port: int | None, token: str | None, *, browser: bool
) -> None:
    """Serve an application until the process is interrupted. Print its URL on stdout once requests are accepted."""
    listener = listen(host, port)
    with listener:
        name = f"[{host}]" if ":" in host else host
        access = Access(name, listener.getsockname()[1], token)
        url = build_url(access)
        click.echo(url)
        if browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        config = uvicorn.Config(
            create(access),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=_SECONDS_TO_CLOSE,
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has closed all connections
            uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that accepts connections. Without a port, use the default one, or a free one if it is taken."""
    try:
        return _bind(host, DEFAULT_PORT if port is None else port)
    except UnicodeError:  # the codec for host names rejects it
        raise ConfigError(f"--host {host!r} is not a host name. Use an address of this machine.") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"--host {host}: {error.strerror}. Use an address of this machine.") from None
        if port is not None:
            raise ConfigError(f"--port {port}: the port is in use. Choose another one, or omit --port.") from None
        return _bind(host, 0)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def build_url(access: Access) -> str:
    """Return the URL of the page. A browser cannot open the address 0.0.0.0, which means all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(access.host, access.host)
    query = "" if access.token is None else f"?token={quote(access.token, safe='')}"
    return f"http://{host}:{access.port}/{query}"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it, responses of two packets can take 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
