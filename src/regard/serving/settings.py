"""The settings of a server. Imports neither torch nor a web framework, so that help is fast."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from regard.config import Settings
from regard.decoding.settings import EngineName, Precision
from regard.errors import ConfigError
from regard.formatting import LANGUAGE_CODE
from regard.quantities import Count, OptionalCount, OptionalSeconds, Port, RequestRate, Seconds, WorkerCount

LogFormat = Literal["auto", "json", "text"]


class ModelAddress(Settings):
    """A model folder, and the languages that it translates; None if they are not given."""

    path: str
    languages: tuple[str, str] | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelAddress":
        """Parse FOLDER, or SOURCE:TARGET=FOLDER."""
        pair, separator, path = text.partition("=")
        if not separator or not re.fullmatch(r"[^/\\:=]*:[^/\\:=]*", pair):
            return cls(path=text)
        source, target = pair.split(":")
        for code in (source, target):
            if not LANGUAGE_CODE.fullmatch(code):
                raise ConfigError(f"{text}: '{code}' is not a language code. Use codes such as en or pt-BR.")
        return cls(path=path, languages=(source, target))


class Loading(Settings):
    """How models are loaded, and how they predict unless a request says otherwise."""

    models: tuple[ModelAddress, ...]
    engine: EngineName = "auto"
    precision: Precision = "float32"
    search: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of the search. By default, those of validation."""
    plugins: tuple[str, ...] = ()
    accept_changes: bool = False
    batch_wait: OptionalSeconds = 0.005
    """The longest time, in seconds, that a sentence waits for others while the model is free."""
    queue: Count = 1_000
    """The maximum number of sentences that wait for a model."""


class Replicas(Settings):
    """The number of copies of each model on a cluster, which depends on the load if it is a range."""

    minimum: WorkerCount = 1
    maximum: WorkerCount = 1

    @classmethod
    def parse(cls, text: str) -> "Replicas":
        """Parse N, or MIN-MAX."""
        match = re.fullmatch(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?", text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"--replicas {text}: expected a number, or MIN-MAX, for example 2 or 1-4.")
        return cls(minimum=int(match[1]), maximum=int(match[2] or match[1]))


class ClusterOptions(Settings):
    """Where models are deployed. `user` identifies the server, with all its processes."""

    address: str
    replicas: Replicas
    user: str


class AccessSettings(Settings):
    """Who may send requests, and how many."""

    keys: str | None = None
    """The file of the keys; None if requests need no key."""
    requests_per_minute: RequestRate | None = None
    """The rate of a key without its own rate. Without keys, the rate of an address."""


class RequestLimits(Settings):
    """The limits of a request."""

    max_body: Count = 20_000_000
    """The maximum size of a body, in bytes."""
    timeout: Seconds = 60
    """How many seconds may pass from the end of the request to the first byte of the response."""
    characters: OptionalCount = 5_000
    """The maximum number of characters; 0 for any number."""


class AppOptions(Settings):
    """The settings of the application."""

    loading: Loading
    access: AccessSettings = AccessSettings()
    limits: RequestLimits = RequestLimits()
    downloads: str = ""
    """The folder of translated files, which all workers share."""
    watch: OptionalSeconds = 5.0
    """How often the model folders are checked for new weights, in seconds; 0 for never."""
    log_texts: bool = False


class ServerOptions(Settings):
    """Where the server listens, and how long it waits for slow clients."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Port = 5_000
    """0 chooses a free port."""
    workers: WorkerCount = 1
    certificate: str | None = None
    """A file in PEM format with the certificate and those of its issuers. With it, the server speaks TLS."""
    private_key: str | None = None
    """The file of its key, without a password. By default, the key is read from the file of the certificate."""
    header_timeout: Seconds = 10
    body_timeout: Seconds = 30
    keep_alive: Seconds = 5
    """After how many seconds without a request a connection is closed."""
    drain: Seconds = 30
    """How long the server finishes requests after it was asked to stop."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose headers X-Forwarded-For and X-Forwarded-Proto are trusted."""
    log_format: LogFormat = "auto"
