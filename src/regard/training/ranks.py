"""How this process was started as one of several ranks, read from the environment variables of torchrun.

No torch here: error messages name the rank, also before torch is imported.
"""

import os
from typing import NamedTuple

from regard.errors import ConfigError

TIMEOUT_VARIABLE = "REGARD_RANK_TIMEOUT"
"""The environment variable with the number of seconds after which a rank that does not respond is lost."""

_DEFAULT_TIMEOUT = 600.0

_REMEDY = "Start all ranks with torchrun, or with regard train --devices N."


class Launch(NamedTuple):
    """How this process was started as a rank, read from the environment variables of torchrun."""

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    attempt: str
    """The number of restarts by torchrun."""
    has_agent: bool
    """Whether torchrun provides the store in which ranks find each other. If not, rank 0 does."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def read_launch() -> Launch | None:
    """Return how this process was started as one of several ranks; None if it is the only one.

    Raise ConfigError if the environment variables are incomplete or wrong.
    """
    variables = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if not any(variables.values()):
        return None
    missing = [name for name, value in variables.items() if not value]
    if missing:
        given = next(name for name in variables if name not in missing)
        raise ConfigError(
            f"The environment variable {given} is set, but {missing[0]} is not. {_REMEDY} To train with one process, "
            f"unset {given}."
        )
    rank, size = _read_number("RANK"), _read_number("WORLD_SIZE", at_least=1)
    if rank >= size:
        raise ConfigError(f"RANK={rank}, but WORLD_SIZE={size}: ranks are numbered from 0 to {size - 1}. {_REMEDY}")
    if size == 1:
        return None
    host = os.environ.get("MASTER_ADDR")
    if not host:
        raise ConfigError(f"The environment variable MASTER_ADDR, the address of rank 0, is not set. {_REMEDY}")
    return Launch(
        rank,
        size,
        _read_number("LOCAL_RANK") if os.environ.get("LOCAL_RANK") else rank,
        host,
        _read_number("MASTER_PORT", at_least=1, at_most=65_535),
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _read_number(variable: str, at_least: int = 0, at_most: int = 1_000_000) -> int:
    value = os.environ.get(variable, "")
    if not value.isdecimal() or not at_least <= int(value) <= at_most:
        raise ConfigError(
            f"The environment variable {variable} must be a number from {at_least} to {at_most}, not {value!r}. "
            f"{_REMEDY}"
        )
    return int(value)


def read_timeout() -> float:
    """Return the seconds after which a rank that does not respond is lost."""
    value = os.environ.get(TIMEOUT_VARIABLE)
    try:
        seconds = float(value) if value else _DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e6:
        raise ConfigError(
            f"The environment variable {TIMEOUT_VARIABLE} must be a number of seconds from 1 to 1000000, not {value!r}."
        )
    return seconds


def count_ranks() -> int:
    """Return the number of ranks; 1 without torchrun."""
    launch = read_launch()
    return 1 if launch is None else launch.size


def get_rank() -> int:
    """Return the number of this process among all ranks; 0 if it is the only one, or if the variables are wrong."""
    try:
        launch = read_launch()
    except ConfigError:
        return 0
    return 0 if launch is None else launch.rank
