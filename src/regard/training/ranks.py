"""The number of this process, its rank, among those that `torchrun` started. No torch here: errors name the rank."""

import os

from regard.errors import ConfigError


def count_ranks() -> int:
    """Return the number of ranks that torchrun started; 1 without torchrun."""
    return read_number("WORLD_SIZE") if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def get_rank() -> int:
    return read_number("RANK") if count_ranks() > 1 else 0


def read_number(variable: str) -> int:
    """Return the value of an environment variable that torchrun sets."""
    value = os.environ.get(variable, "")
    if not value.isdecimal():
        raise ConfigError(
            f"The environment variable {variable} must be a number, not {value!r}. Start several ranks with torchrun, "
            "or with --devices."
        )
    return int(value)
