"""Blocks of lines in a terminal: images in half blocks, and blocks side by side."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from regard.inspection.views.pictures import PixelArray


def draw_half_blocks(pixels_HW3: PixelArray) -> list[Text]:
    """Draw an image of even height: the upper half of a character is the foreground, the lower half the background."""
    lines = []
    for upper, lower in zip(pixels_HW3[::2].tolist(), pixels_HW3[1::2].tolist(), strict=True):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
        lines.append(line)
    return lines


def arrange(blocks: Sequence[Sequence[Text]], width: int) -> Iterator[Text]:
    """Put blocks of lines side by side, up to a width, with a blank line between the rows of blocks."""
    widest = max((cell_len(line.plain) for block in blocks for line in block), default=0)
    height = max(map(len, blocks), default=0)
    per_row = max(1, (width + 2) // (widest + 2))
    for start in range(0, len(blocks), per_row):
        if start:
            yield Text()
        row = blocks[start : start + per_row]
        for index in range(height):
            line = Text()
            for block in row:
                part = block[index] if index < len(block) else Text()
                line.append_text(part)
                line.append(" " * (widest + 2 - cell_len(part.plain)))
            yield line
