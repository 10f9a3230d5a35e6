"""API keys and rates. The time is an argument."""

import hashlib
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from regard.errors import ConfigError
from regard.serving.errors import RequestError
from regard.serving.keys import Access, Rates, read_keys
from regard.serving.settings import AccessSettings

CLIENT = ("192.0.2.1", 50_000)


def write_keys(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys"
    path.write_text(text)
    return str(path)


def find_status(access: Access, fields: Mapping[str, Any], now: float, client: Any = CLIENT) -> tuple[int, int | None]:
    """Return the status of a request, and after how many seconds it can be sent again."""
    try:
        access.check(fields, {}, client, now)
    except RequestError as error:
        return error.status, error.retry_after
    return 200, None


def test_a_bucket_contains_the_tokens_of_a_minute_and_is_refilled_steadily() -> None:
    """With 6 requests per minute, a token is added every 10 s, and the bucket holds 6."""
    rates = Rates(None)
    assert [rates.spend("a", 6, now=100) for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]
    assert rates.spend("a", 6, now=104) == 6  # 0.4 tokens
    assert rates.spend("a", 6, now=110) == 0  # 1 token, which is taken
    assert rates.spend("a", 6, now=125) == 0  # 1.5 tokens; 0.5 remain
    assert rates.spend("a", 6, now=126) == 4  # 0.6 tokens
    assert rates.spend("b", 6, now=126) == 0  # another bucket
    assert [rates.spend("a", 6, now=1_000_000) for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]


def test_a_rate_below_one_per_minute_allows_one_request() -> None:
    """With half a request per minute, a token is added every 120 s."""
    rates = Rates(None)
    assert [rates.spend("a", 0.5, now) for now in (0, 30, 120)] == [0, 90, 0]


def test_if_the_table_is_full_the_bucket_that_was_used_least_recently_is_replaced() -> None:
    rates = Rates(None, slots=8)
    for number in range(8):
        rates.spend(str(number), 1, now=number)
    assert rates.spend("7", 1, now=8) > 0
    rates.spend("new", 1, now=8)
    assert rates.spend("7", 1, now=8) > 0
    assert rates.spend("0", 1, now=8) == 0


def spend_tokens(path: Path, count: int) -> int:
    rates = Rates(path)
    return sum(rates.spend("a", 100, now=0) == 0 for _ in range(count))


@pytest.mark.slow
def test_processes_share_the_buckets(tmp_path: Path) -> None:
    with get_context("spawn").Pool(3) as pool:
        spent = pool.starmap(spend_tokens, [(tmp_path / "rates", 80)] * 3)
    assert sum(spent) == 100


def test_each_key_has_its_own_rate(tmp_path: Path) -> None:
    path = write_keys(tmp_path, "# our keys\nalice secret-a 2\nbob secret#b  # the general rate\n")
    access = Access(AccessSettings(keys=path, requests_per_minute=1))
    alice, bob = {"api_key": "secret-a"}, {"api_key": "secret#b"}
    assert access.check(alice, {}, CLIENT, 0) == "alice"
    assert [find_status(access, alice, 0) for _ in range(2)] == [(200, None), (429, 30)]
    assert [find_status(access, bob, 0) for _ in range(2)] == [(200, None), (429, 60)]
    assert find_status(access, alice, 30) == (200, None)


def test_a_missing_or_wrong_key_is_rejected_as_libretranslate_does(tmp_path: Path) -> None:
    access = Access(AccessSettings(keys=write_keys(tmp_path, "alice secret")))
    for fields, message in (
        ({}, "Please contact the server operator to get an API key"),
        ({"api_key": ""}, "Please contact the server operator to get an API key"),
        ({"api_key": 1}, "Please contact the server operator to get an API key"),
        ({"api_key": "Secret"}, "Invalid API key"),
        ({"api_key": "\ud800"}, "Invalid API key"),
    ):
        with pytest.raises(RequestError, match=message) as failure:
            access.check(fields, {}, CLIENT)
        assert failure.value.status == 403


def test_a_key_can_be_in_a_header_and_its_hash_in_the_file(tmp_path: Path) -> None:
    digest = hashlib.sha256("schlüssel".encode()).hexdigest()
    access = Access(AccessSettings(keys=write_keys(tmp_path, f"alice sha256:{digest}")))
    header = "Bearer schlüssel".encode().decode("latin-1")  # as servers decode headers
    assert access.check({}, {"authorization": header}, CLIENT) == "alice"
    with pytest.raises(RequestError, match="Invalid API key"):
        access.check({"api_key": f"sha256:{digest}"}, {}, CLIENT)


def test_without_keys_the_rate_is_that_of_an_address() -> None:
    """The addresses of an IPv6 network of a client (/64) count as one."""
    access = Access(AccessSettings(requests_per_minute=1))
    clients = [("192.0.2.1", 1), ("192.0.2.1", 2), ("192.0.2.2", 1), ("::ffff:192.0.2.2", 1), ("2001:db8::1", 1),
               ("2001:db8::2", 1), ("2001:db8:0:1::1", 1), None]  # fmt: skip
    assert [find_status(access, {}, 0, client)[0] for client in clients] == [200, 429, 200, 429, 200, 429, 200, 200]
    unlimited = Access(AccessSettings())
    assert {find_status(unlimited, {}, 0)[0] for _ in range(100)} == {200}


def test_keys_are_read_again_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    access = Access(AccessSettings(keys=write_keys(tmp_path, "alice secret")))
    write_keys(tmp_path, "bob other")
    access.reload()
    assert access.check({"api_key": "other"}, {}, CLIENT) == "bob"
    write_keys(tmp_path, "bob")
    with pytest.raises(ConfigError, match="line 1"):
        access.reload()
    assert access.check({"api_key": "other"}, {}, CLIENT) == "bob"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice", "line 1: expected NAME KEY \\[REQUESTS-PER-MINUTE\\], but found 1 words"),
        ("\nalice secret many", "line 2: 'many' is not a number of requests per minute"),
        ("alice secret 0", "'0' is not a number"),
        ("alice secret nan", "'nan' is not a number"),
        ("alice a\nalice b", "line 2: the name or the key is used twice"),
        ("alice a\nbob a", "line 2: the name or the key is used twice"),
        ("alice sha256:12", "expected 64 hexadecimal digits"),
        ("# nobody", "the file has no key"),
    ],
)
def test_a_file_that_is_not_valid_is_rejected_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_keys(write_keys(tmp_path, text))


def test_a_file_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file cannot be read: No such file"):
        read_keys(str(tmp_path / "missing"))
