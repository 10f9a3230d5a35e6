"""Tables in plain text: columns aligned, nothing cut, the same on a terminal and in a pipe."""

from collections.abc import Sequence

from rich.cells import cell_len


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(cell_len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, *rows]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
