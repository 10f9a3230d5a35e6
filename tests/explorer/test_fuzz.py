"""Malformed requests: each response is a result or an error with a message, never a failure of the server."""

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, reject, seed, settings

import explorer_fuzz
from regard.decoding.edits import KINDS
from tests_explorer import ORIGIN, post, send
from tests_seed import DAILY_SEED

pytestmark = pytest.mark.slow


@seed(DAILY_SEED)
@settings(max_examples=200, suppress_health_check=list(HealthCheck), database=None)
@given(explorer_fuzz.calls())
def test_a_malformed_call_is_answered_or_rejected(app: FastAPI, call: explorer_fuzz.Call) -> None:
    headers = {name: value.encode() for name, value in call.headers}
    try:
        url = httpx.URL(f"{ORIGIN}{call.path}")
    except httpx.InvalidURL:  # httpx does not send it; benchmarks/explorer_fuzz.py writes it to a socket
        reject()
    response = send(app, call.method, str(url), content=call.body, headers=headers)
    assert explorer_fuzz.check_response(call, response.status_code, response.content) is None


def test_undamaged_calls_are_valid(app: FastAPI) -> None:
    """Damaged calls differ from valid ones in a few places, so that they reach all parts of the server."""
    answered = set()
    for model, attention in explorer_fuzz.ATTENTIONS.items():
        source = (explorer_fuzz.IMAGES if model == "2" else explorer_fuzz.SOURCES)[0]
        for edit in explorer_fuzz.list_edits(attention):
            response = post(app, "/api/trace", {"model": model, "source": source, "edits": [edit]})
            answered |= {edit["kind"]} if response.status_code == 200 else set()
    assert answered == set(KINDS)
    for search in (explorer_fuzz.SEARCH, explorer_fuzz.SAMPLING):
        request = {"model": "0", "source": explorer_fuzz.SOURCES[0], "search": search}
        assert post(app, "/api/trace", request).status_code == 200
