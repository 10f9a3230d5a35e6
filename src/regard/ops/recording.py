"""Recording of what modules compute. A module that is not recorded runs at full speed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor, nn

Parts = dict[str, list[Tensor]]
"""The tensors of each call of a module, by the name of the part."""


@dataclass
class ModuleRecord:
    """What is recorded of one module."""

    parts: Parts = field(default_factory=dict)
    detailed: bool = False
    """Whether the module records everything that its result is computed from."""
    has_hypotheses: bool = False
    """Whether a search with several hypotheses was recorded: a row is not the same hypothesis at each step."""


_records: ContextVar[dict[nn.Module, list[ModuleRecord]] | None] = ContextVar("records", default=None)


def is_recording() -> bool:
    """Whether any recording is active."""
    return _records.get() is not None


def mark_hypotheses() -> None:
    """Note in every active recording that a search keeps several hypotheses, and reorders the rows between steps."""
    for records in (_records.get() or {}).values():
        for record in records:
            record.has_hypotheses = True


def mark_recorded() -> Callable[[], None]:
    """Return a function that removes what was recorded since this call from every active recording."""
    active = [record.parts for records in (_records.get() or {}).values() for record in records]
    marked = [(parts, {name: len(calls) for name, calls in parts.items()}) for parts in active]

    def discard() -> None:
        for parts, counts in marked:
            for name, calls in parts.items():
                del calls[counts.get(name, 0) :]

    return discard


@contextmanager
def record_modules(records: Mapping[nn.Module, ModuleRecord]) -> Iterator[None]:
    """Fill the record of each module within the block, in this thread only, in addition to other active recordings."""
    active = {module: list(others) for module, others in (_records.get() or {}).items()}
    for module, record in records.items():
        active.setdefault(module, []).append(record)
    token = _records.set(active)
    try:
        yield
    finally:
        _records.reset(token)


class RecordableModule(nn.Module):
    """A module that can be recorded."""

    @property
    def is_recorded(self) -> bool:
        """Whether this module is being recorded."""
        records = _records.get()
        return records is not None and self in records

    @property
    def records_details(self) -> bool:
        """Whether everything that the result is computed from is being recorded."""
        records = _records.get()
        return records is not None and any(record.detailed for record in records.get(self, ()))

    def record_part(self, name: str, tensor: Tensor) -> None:
        """Append a tensor to every active recording of this module."""
        records = _records.get()
        if records is not None:
            for record in records.get(self, ()):
                record.parts.setdefault(name, []).append(tensor.detach())

    def record_details(self, parts: Mapping[str, Tensor | None]) -> None:
        """Append tensors to every active recording of details. None is skipped."""
        for record in (_records.get() or {}).get(self, ()):
            for name, tensor in parts.items():
                if record.detailed and tensor is not None:
                    record.parts.setdefault(name, []).append(tensor.detach())
