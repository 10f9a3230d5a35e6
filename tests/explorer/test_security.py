"""Requests of other sites, without the token, or too large are rejected, and the page may not load anything else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from regard.explorer.app import create_app
from regard.explorer.schemas import MAX_BODY_BYTES
from regard.explorer.security import Access
from regard.explorer.server import build_url
from tests_explorer import ACCESS, ORIGIN, post, send

REQUEST = {"model": "0", "source": {"text": "3 mai 2009"}}


@pytest.mark.parametrize("host", ["127.0.0.1:7866", "localhost:7866", "[::1]:7866"])
def test_the_server_is_reached_under_its_own_names(app: FastAPI, host: str) -> None:
    assert send(app, "GET", "/api/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:7866", "evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:7866.evil.example", "", ":7866"],
)
def test_a_rebound_host_name_is_rejected(app: FastAPI, host: str) -> None:
    response = send(app, "GET", "/api/models", headers={"Host": host})
    assert response.status_code == 421
    assert "does not name this server" in response.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:7867", "https://127.0.0.1:7866"])
@pytest.mark.parametrize("path", ["/api/trace", "/api/attention", "/api/corpus"])
def test_a_request_of_another_origin_is_rejected(app: FastAPI, path: str, origin: str) -> None:
    response = send(app, "POST", path, json=REQUEST, headers={"Origin": origin})
    assert response.status_code == 403
    assert "another origin" in response.json()["error"]["message"]


def test_a_form_or_a_script_of_another_site_is_rejected(app: FastAPI) -> None:
    form = send(app, "POST", "/api/trace", content=b'{"model": "0"}', headers={"Content-Type": "text/plain"})
    assert form.status_code == 415
    included = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert send(app, "GET", "/api/models", headers=included).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert send(app, "GET", "/", headers=link).status_code != 403


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/none"])
def test_every_response_has_the_headers_of_security(app: FastAPI, path: str) -> None:
    headers = send(app, "GET", path).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_token_is_given_once_in_the_url_or_with_every_request() -> None:
    access = Access("127.0.0.1", 7866, token="secret")
    app = create_app([], access)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "secret"},
        {"Cookie": "regard_7866=secret"},
    ):
        assert send(app, "GET", "/api/models", headers=headers).status_code == 401
        assert send(app, "POST", "/api/trace", json=REQUEST, headers=headers).status_code == 401
    assert send(app, "GET", "/api/models", headers={"Authorization": "Bearer secret"}).json() == []
    assert send(app, "GET", "/?token=wrong").status_code == 401
    response = send(app, "GET", "/?token=secret")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "secret" not in cookie
    session = cookie.partition(";")[0]
    assert send(app, "GET", "/api/models", headers={"Cookie": session}).json() == []
    assert send(app, "GET", "/?token=secret", headers={"Host": "evil.example:7866"}).status_code == 421


@pytest.mark.parametrize("token", ["clé-à", "ключ", "鍵", "a b+c%20&d"])
def test_a_token_may_contain_letters_of_any_script(token: str) -> None:
    """In the URL that is printed, in a URL that is typed, and as a header."""
    access = Access("127.0.0.1", 7866, token=token)
    app = create_app([], access)
    printed = build_url(access).removeprefix(ORIGIN)
    assert send(app, "GET", printed).status_code == 303
    if "&" not in token:
        assert answer_raw_query(app, f"token={token}".encode()) == 303
    header = {"Authorization": f"Bearer {token}".encode()}
    assert send(app, "GET", "/api/models", headers=header).json() == []
    assert send(app, "GET", "/api/models", headers={"Authorization": b"Bearer \xff"}).status_code == 401


def answer_raw_query(app: FastAPI, query: bytes) -> int:
    """Send a URL with bytes that httpx would encode, and return the status."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def keep(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1:7866")],
    }
    asyncio.run(app(scope, receive, keep))  # type: ignore[arg-type]
    return int(sent[0]["status"])


def test_a_url_with_many_fields_is_rejected_after_the_host_is_checked() -> None:
    app = create_app([], Access("127.0.0.1", 7866, token="secret"))
    path = f"/?{'&'.join(['a=1'] * 101)}&token=secret"
    assert send(app, "GET", path, headers={"Host": "evil.example:7866"}).status_code == 421
    response = send(app, "GET", path)
    assert response.status_code == 400
    assert "more than 100 fields" in response.json()["error"]["message"]
    assert "content-security-policy" in response.headers


def test_a_server_on_all_addresses_accepts_addresses_but_no_names() -> None:
    app = create_app([], Access("0.0.0.0", 7866, token="secret"))
    token = {"Authorization": "Bearer secret"}
    assert send(app, "GET", "/api/models", headers={"Host": "192.168.1.7:7866", **token}).status_code == 200
    assert send(app, "GET", "/api/models", headers={"Host": "evil.example:7866", **token}).status_code == 421
    assert send(create_app([], ACCESS), "GET", "/api/models", headers={"Host": "192.168.1.7:7866"}).status_code == 421


def test_a_request_that_is_too_large_is_rejected(app: FastAPI) -> None:
    """By its declared length, or by the bytes that arrive without one."""
    declared = send(app, "POST", "/api/trace", content=b"x" * (MAX_BODY_BYTES + 1))
    assert declared.status_code == 413

    async def send_chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1_000_000 + 2):
            yield b"x" * 1_000_000

    headers = {"Content-Type": "application/json", "Origin": ORIGIN}
    chunked = send(app, "POST", "/api/trace", content=send_chunks(), headers=headers)
    assert chunked.status_code == 413
    assert "larger than" in chunked.json()["error"]["message"]


def test_no_model_beyond_those_at_start_can_be_used() -> None:
    app = create_app([], ACCESS)
    for model in ("0", "runs/other", "../runs/other", "/etc"):
        assert post(app, "/api/trace", {**REQUEST, "model": model}).status_code == 404
