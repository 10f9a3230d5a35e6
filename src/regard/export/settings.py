"""The targets of an export, by name. No torch here."""

from typing import Any, ClassVar

from regard.config import Settings, resolve
from regard.registry import Choice, Registry, expand_label


class ExportTarget(Choice):
    """Base class of the targets of an export. Options can follow the name: `ct2:precision=int8`."""

    registry: ClassVar[Registry] = Registry("exporter", "regard.export.targets")

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand a label, `ct2:precision=int8`, into a mapping."""
        return expand_label(value)


class _Choice(Settings):
    to: ExportTarget


def parse_target(choice: Any) -> ExportTarget:
    """Parse a target: a label such as `ct2:precision=int8`, or a mapping with its `kind`."""
    return resolve(_Choice, {"to": choice}, {}).to
