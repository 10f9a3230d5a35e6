"""Layers: any cell, deep, in one direction or both, over rows of their own lengths.

B rows, T steps, D width of the input, H width of the state, G width of a cell's gates.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.ops.dropout import Dropout
from regard.recurrent import cells, dispatch, scan
from regard.recurrent.cells import Cell
from regard.recurrent.settings import RecurrentSettings

State = tuple[cells.State, ...]
"""The state of each layer and direction: layer 0 forward, layer 0 backward, layer 1 …"""


class Masks(NamedTuple):
    """The dropout of a cell that is the same at every step: on its input, and on the output before."""

    input_BD: Tensor | None
    keep_BH: Tensor | None


def reverse_within(x_BTD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Each row's own steps in reverse order; what lies beyond its length stays where it is."""
    if lengths_B is None:
        return x_BTD.flip(1)
    steps_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = lengths_B.unsqueeze(1) - 1 - steps_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, steps_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))


@final
class Stack(nn.Module):
    """Recurrent layers on top of each other, of one direction or two.

    Beyond a row's length its outputs are zero; its backward pass starts at its own end; its final state is the one
    after its last step. A row of length 0 keeps the state it started with. With residual connections a layer's output
    is x + f(x), from the second layer on. Dropout lies between the layers; variational dropout (Gal and Ghahramani
    2016) has one mask for all steps, and another on the output on its way back.
    """

    def __init__(
        self, settings: RecurrentSettings, input_size: int, *, bidirectional: bool = False, learned_start: bool = False
    ) -> None:
        super().__init__()
        self.settings = settings
        self.directions = 2 if bidirectional else 1
        self.output_size = settings.hidden * self.directions
        sizes = [input_size] + [self.output_size] * (settings.layers - 1)
        built = [cells.build_cell(settings, size) for size in sizes for _ in range(self.directions)]
        self.cells = nn.ModuleList(built)
        self.dropout = Dropout(settings.dropout)
        start_size = settings.start_size * self.directions
        self.learned_start = nn.Parameter(torch.zeros(start_size)) if learned_start else None

    def start(self, rows: int, like: Tensor) -> State:
        """The states before the first step: zero, or as learned."""
        if self.learned_start is not None:
            return self.start_from(self.learned_start.expand(rows, -1))
        return tuple(cell.start(rows, like) for cell in self._cells())

    def start_from(self, start_BX: Tensor) -> State:
        """The states before the first step, made of one vector of the settings' `start_size`, for each direction."""
        parts = start_BX.chunk(len(self.cells), dim=-1)
        return tuple(cell.start_from(part) for cell, part in zip(self._cells(), parts, strict=True))

    def masks(self, rows: int, like: Tensor) -> tuple[Masks, ...]:
        """One for each cell, to be used at every step."""
        if not (self.settings.variational and self.training and self.settings.dropout):
            return (Masks(None, None),) * len(self.cells)
        drawn = []
        for index, cell in enumerate(self._cells()):
            # What enters a layer is dropped once, for both its directions.
            enters = index >= self.directions and index % self.directions == 0
            between = self.dropout(like.new_ones(rows, cell.input_size)) if enters else None
            drawn.append(Masks(between, self.dropout(like.new_ones(rows, cell.hidden_size))))
        return tuple(drawn)

    def forward(self, x_BTD: Tensor, lengths: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        rows, steps = x_BTD.shape[:2]
        before = self.start(rows, x_BTD) if state is None else state
        masks = self.masks(rows, x_BTD)
        outputs, beyond_BT1 = x_BTD, None
        if lengths is not None:
            beyond_BT1 = (torch.arange(steps, device=x_BTD.device) >= lengths.unsqueeze(1)).unsqueeze(-1)
            outputs = x_BTD.masked_fill(beyond_BT1, 0.0)
        after: list[cells.State] = []
        for first in range(0, len(self.cells), self.directions):
            lanes = []
            x = self._drop(outputs, masks[first].input_BD, first > 0)
            for index in range(first, first + self.directions):
                facing = x if index == first else reverse_within(x, lengths)
                lanes.append(scan.Lane(self._cells()[index], facing, before[index], masks[index].keep_BH))
            swept = dispatch.run(lanes, lengths)
            forward, *backward = (lane.outputs_BTH for lane in swept)
            made = torch.cat([forward, *(reverse_within(lane, lengths) for lane in backward)], dim=-1)
            made = made if beyond_BT1 is None else made.masked_fill(beyond_BT1, 0.0)
            outputs = outputs + made if first and self.settings.residual else made
            after += [lane.state for lane in swept]
        return outputs, tuple(after)

    def project(self, x: Tensor) -> Tensor:
        """The share of the input's first columns in the first layer's gates, for all steps at once."""
        return self._cells()[0].project(x)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """The gates with the share of the input's last columns, known only at a step, added."""
        return self._cells()[0].add_projection(gates_BG, x_BD)

    def step(self, gates_BG: Tensor, state: State, masks: tuple[Masks, ...]) -> tuple[Tensor, State]:
        """One step of a one-directional stack, from the gates of its first layer → (output_BH, state)."""
        output_BH: Tensor | None = None
        after = []
        for cell, before, mask in zip(self._cells(), state, masks, strict=True):
            if output_BH is not None:
                gates_BG = cell.project(self._drop(output_BH, mask.input_BD, True))
            after.append(dispatch.step(cell, cell.admit(gates_BG), before, mask.keep_BH))
            made_BH = after[-1][0]
            output_BH = made_BH if output_BH is None or not self.settings.residual else output_BH + made_BH
        assert output_BH is not None
        return output_BH, tuple(after)

    def _drop(self, x: Tensor, mask_BD: Tensor | None, between: bool) -> Tensor:
        """Dropout between layers, of the kind that is set."""
        if mask_BD is not None:
            return x * (mask_BD if x.dim() == 2 else mask_BD.unsqueeze(1))
        dropped: Tensor = self.dropout(x) if between and not self.settings.variational else x
        return dropped

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]
