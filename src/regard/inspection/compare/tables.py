"""Tables as text, Markdown, LaTeX and HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from regard.formatting import table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "−": r"$-$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "*": r"$^{*}$",
}


@dataclass(frozen=True)
class Table:
    """A table with a title. The first column is text; the others are numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        return table(self.header, self.rows)

    def to_markdown(self) -> str:
        """Return a Markdown table whose columns are also aligned in the source."""
        from rich.cells import cell_len

        lines = [[cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in (self.header, *self.rows)]
        widths = [max(3, *(cell_len(line[column]) for line in lines)) for column in range(len(self.header))]

        def align(column: int, cell: str) -> str:
            padding = " " * (widths[column] - cell_len(cell))
            return cell + padding if column == 0 else padding + cell

        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        aligned = [[align(column, cell) for column, cell in enumerate(line)] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in (aligned[0], rule, *aligned[1:]))

    def to_latex(self) -> str:
        r"""Return a LaTeX table for the package `booktabs`. Special characters are escaped."""
        header, *rows = (" & ".join(escape_latex(cell) for cell in line) + r" \\" for line in (self.header, *self.rows))
        lines = [
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{escape_latex(self.title)}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"    \toprule",
            f"    {header}",
            r"    \midrule",
            *(f"    {row}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines)

    def to_html(self) -> str:
        def cells(tag: str, line: Sequence[str]) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line)

        rows = "".join(f"<tr>{cells('td', row)}</tr>" for row in self.rows)
        return (
            f"<table><caption>{html.escape(self.title)}</caption>"
            f"<thead><tr>{cells('th', self.header)}</tr></thead><tbody>{rows}</tbody></table>"
        )


def escape_latex(text: str) -> str:
    """Escape the characters that have a meaning in LaTeX, and replace symbols that need math mode."""
    return "".join(_LATEX.get(character, character) for character in text)
