"""Recording of attention weights, and on request of what they are computed from, and of recurrent states."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from regard.errors import ArgumentTypeError, ConfigError
from regard.ops.arguments import check_flag
from regard.ops.recording import ModuleRecord, Parts, RecordableModule, record_modules

Role = Literal["encoder-self", "decoder-self", "cross"]
"""What attends to what: the source to itself, the target to itself, or the target to the source."""

ROLES: tuple[Role, ...] = get_args(Role)


@runtime_checkable
class HasModules(Protocol):
    """A model whose modules have names: a torch module, or a `regard.Model`."""

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]: ...


class Recordable(RecordableModule):
    """A module whose weights can be recorded, with its role in the model."""

    def __init__(self, role: Role = "cross") -> None:
        super().__init__()
        if role not in ROLES:
            raise ConfigError(f"{role!r} is not a valid role. Available: {', '.join(ROLES)}.")
        self.role: Role = role

    def record_weights(self, weights: Tensor) -> None:
        """Append the weights to every active recording of this module."""
        self.record_part("weights", weights)


@dataclass
class Recording:
    """The weights of each attention in a model, before dropout, under the attention's name in the model.

    Attributes:
        calls: The weights of each call of each attention.
        roles: The role of each attention: `encoder-self`, `decoder-self` or `cross`.
        inputs: If requested, what the weights of each attention are computed from, call by call: `query`, `key`, ...
        states: If requested, the states and gates of each recurrent cell, call by call: `state.h`, `gate.update`, ...
    """

    calls: dict[str, list[Tensor]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    inputs: dict[str, Parts] = field(default_factory=dict)
    states: dict[str, Parts] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """A tensor (B, T, S) or (B, H, T, S) for each name: all recorded calls, concatenated along the queries."""
        return {name: torch.cat(calls, dim=-2) for name, calls in self.calls.items() if calls}


@contextmanager
def record(
    model: HasModules,
    chosen: Callable[[str], bool] = lambda _: True,
    *,
    queries: bool = False,
    states: bool = False,
) -> Iterator[Recording]:
    """Record the attention weights of `model` within the block, in this thread only.

    Args:
        model: A `regard.Model`, or a torch module.
        chosen: Selects attentions and cells by their name in the model. The others run at full speed.
        queries: Whether to record everything that the weights are computed from: queries, keys, scores, masks.
        states: Whether to record the states and gates of recurrent cells.

    Returns:
        A context manager that returns the recording.

    Raises:
        ArgumentTypeError: `model` is not a model, or `chosen` is not a function.

    >>> with regard.record(model) as recording:
    ...     model.predict("3 mai 2009")
    >>> recording.weights
    """
    if not isinstance(model, HasModules) or isinstance(model, type):
        raise ArgumentTypeError(f"model must be a regard.Model or a torch.nn.Module, not {type(model).__name__}.")
    if not callable(chosen):
        raise ArgumentTypeError(f"chosen must be a function of a name, not {type(chosen).__name__}.")
    check_flag("queries", queries)
    check_flag("states", states)
    recording = Recording()
    records: dict[nn.Module, ModuleRecord] = {}
    for name, module in model.named_modules():
        if isinstance(module, Recordable) and chosen(name):
            calls: list[Tensor] = []
            records[module] = ModuleRecord({"weights": calls}, detailed=queries)
            recording.calls[name], recording.roles[name] = calls, module.role
            recording.inputs |= {name: records[module].parts} if queries else {}
        elif isinstance(module, RecordableModule) and states and chosen(name):
            records[module] = ModuleRecord(detailed=True)
            recording.states[name] = records[module].parts
    with record_modules(records):
        yield recording


def attention_roles(model: HasModules) -> dict[str, Role]:
    """Return the role of each attention of a model, by its name in the model."""
    return {name: module.role for name, module in _recordable_modules(model)}


def _recordable_modules(model: HasModules) -> Iterator[tuple[str, Recordable]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Recordable))
