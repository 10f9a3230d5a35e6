"""API keys, and how many requests per minute a key or an address may send."""

import hashlib
import hmac
import ipaddress
import math
import mmap
import os
import re
import struct
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from regard.errors import ConfigError
from regard.operating_system import shared_lock
from regard.regular_files import read_regular
from regard.serving.errors import RequestError
from regard.serving.settings import AccessSettings

_HASH: Final = "sha256:"
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_SLOT: Final = struct.Struct("Qdd")
_SLOTS: Final = 16_384
_PROBES: Final = 8


class Key(NamedTuple):
    """An API key: its name, its hash, and its rate; None for the general rate."""

    name: str
    digest: bytes
    rate: float | None


def read_keys(path: str) -> tuple[Key, ...]:
    """Read a file with a line `NAME KEY [REQUESTS-PER-MINUTE]` for each key. Instead of KEY, it may contain
    `sha256:` and the hash of the key in hexadecimal digits. Raise ConfigError if it is not valid.
    """
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--keys {path}: the file cannot be read: {reason}. Check the path.") from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).split()
        if words:
            key = _parse_key(words, f"{path}, line {number}")
            if any(key.name == other.name or key.digest == other.digest for other in keys):
                raise ConfigError(f"{path}, line {number}: the name or the key is used twice. Remove one line.")
            keys.append(key)
    if not keys:
        raise ConfigError(f"--keys {path}: the file has no key. Add a line NAME KEY.")
    return tuple(keys)


def _parse_key(words: list[str], place: str) -> Key:
    if len(words) not in (2, 3):
        raise ConfigError(f"{place}: expected NAME KEY [REQUESTS-PER-MINUTE], but found {len(words)} words.")
    name, secret = words[:2]
    digest = hash_key(secret)
    if secret.startswith(_HASH):
        if not re.fullmatch("[0-9a-fA-F]{64}", secret.removeprefix(_HASH)):
            raise ConfigError(f"{place}: after {_HASH}, expected 64 hexadecimal digits. Use the output of sha256sum.")
        digest = bytes.fromhex(secret.removeprefix(_HASH))
    if len(words) == 2:
        return Key(name, digest, None)
    try:
        rate = float(words[2])
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1_000_000:
        raise ConfigError(f"{place}: '{words[2]}' is not a number of requests per minute. Use a number such as 60.")
    return Key(name, digest, rate)


def hash_key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def find_key(keys: tuple[Key, ...], secret: str) -> Key | None:
    """Return the key of a request. All keys are compared, so that the time does not depend on which one it is."""
    digest = hash_key(secret)
    found = [key for key in keys if hmac.compare_digest(key.digest, digest)]
    return found[0] if found else None


@final
class Access:
    """Checks the key and the rate of a request.

    Args:
        settings: The file of the keys, and the general rate.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._keys: tuple[Key, ...] = ()
        self._rates = Rates.of_server()
        self.reload()

    @property
    def requires_key(self) -> bool:
        return self._settings.keys is not None

    def reload(self) -> None:
        """Read the file of the keys again. If it is not valid, raise ConfigError, and keep the keys."""
        if self._settings.keys is not None:
            self._keys = read_keys(self._settings.keys)

    def check(
        self,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        client: tuple[str, int] | None,
        now: float | None = None,
    ) -> str | None:
        """Return the name of the key, or None if no key is required. Raise RequestError(403) without a valid key, and
        RequestError(429) if the rate is exceeded.

        Args:
            fields: The fields of the body and of the query. The field `api_key` contains the key.
            headers: The headers. Instead of the field, `Authorization: Bearer KEY` may contain the key.
            client: The address and the port of the client.
            now: The current time, in seconds.
        """
        now = time.monotonic() if now is None else now
        if not self.requires_key:
            if self._settings.requests_per_minute is not None:
                self._spend(f"address {_group(client)}", self._settings.requests_per_minute, now)
            return None
        secret = fields.get("api_key") or _read_bearer(headers)
        if not isinstance(secret, str) or not secret:
            raise RequestError(403, "Please contact the server operator to get an API key")
        key = find_key(self._keys, secret)
        if key is None:
            raise RequestError(403, "Invalid API key")
        rate = key.rate or self._settings.requests_per_minute
        if rate is not None:
            self._spend(f"key {key.name}", rate, now)
        return key.name

    def _spend(self, owner: str, rate: float, now: float) -> None:
        seconds = self._rates.spend(owner, rate, now)
        if seconds > 0:
            raise RequestError(
                429, f"More than {rate:g} requests per minute. Try again later.", retry_after=math.ceil(seconds)
            )


def _read_bearer(headers: Mapping[str, str]) -> str:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    # Servers decode headers as Latin-1, but keys are UTF-8.
    return secret.strip().encode("latin-1", "replace").decode("utf-8", "replace")


def _group(client: tuple[str, int] | None) -> str:
    """Return the address of a client. An IPv6 client has a network of 2⁶⁴ addresses, which count as one."""
    if client is None:
        return "unknown"
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@final
class Rates:
    """A token bucket for each key or address, in memory that workers can share.

    A bucket contains up to R tokens, for a rate of R requests per minute (at least one), and receives R tokens per
    minute. A request takes a token. The table has a fixed size: if it is full, the bucket that was used least recently
    is replaced.

    Args:
        path: A file that all workers share; None if there is one process.
        slots: The size of the table.
    """

    def __init__(self, path: Path | None, slots: int = _SLOTS) -> None:
        self._slots, self._file = slots, -1
        self._table: bytearray | mmap.mmap = bytearray(slots * _SLOT.size)
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.truncate(self._file, slots * _SLOT.size)  # a new file consists of zeros: empty slots
            self._table = mmap.mmap(self._file, slots * _SLOT.size)

    @classmethod
    def of_server(cls) -> "Rates":
        """Return the rates that the workers of this server share."""
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        return cls(None if folder is None else Path(folder, "rates"))

    def spend(self, owner: str, rate: float, now: float) -> float:
        """Take a token of an owner. Return 0, or after how many seconds there will be one.

        Args:
            owner: Identifies the bucket.
            rate: Tokens per minute.
            now: The current time, in seconds. The processes of a machine share the clock `time.monotonic`.
        """
        identity = int.from_bytes(hashlib.blake2b(owner.encode("utf-8", "replace"), digest_size=8).digest()) or 1
        capacity = max(1.0, rate)
        # The kernel unlocks the file if the process is killed.
        with nullcontext() if self._file < 0 else shared_lock(self._file):
            offset, tokens, last = self._find(identity, capacity, now)
            tokens = min(capacity, tokens + max(0.0, now - last) * rate / 60)
            wait = max(0.0, 1 - tokens) * 60 / rate
            _SLOT.pack_into(self._table, offset, identity, tokens if wait else tokens - 1, now)
        return wait

    def _find(self, identity: int, capacity: float, now: float) -> tuple[int, float, float]:
        """Return the position of a bucket in the table, its tokens, and the time at which it was used last."""
        oldest = (0, math.inf)
        for probe in range(_PROBES):
            offset = (identity + probe) % self._slots * _SLOT.size
            owner, tokens, last = _SLOT.unpack_from(self._table, offset)
            if owner == identity:
                return offset, tokens, last
            if not owner:
                return offset, capacity, now
            oldest = min(oldest, (offset, last), key=lambda slot: slot[1])
        return oldest[0], capacity, now
