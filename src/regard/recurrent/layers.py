"""Stacks of recurrent layers: any cell, one direction or both, over padded rows of different lengths.

B rows, T steps, D input width, H state width, G width of a cell's gates.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.attention.attention import Role
from regard.ops.cost import CostPart
from regard.ops.layers import Dropout
from regard.recurrent import cells, dispatch, scan
from regard.recurrent.cells import Cell
from regard.recurrent.settings import RecurrentSettings

State = tuple[cells.State, ...]
"""The state of each layer and direction: layer 0 forward, layer 0 backward, layer 1 forward, …"""


class DropoutMasks(NamedTuple):
    """The dropout masks of a cell that are the same at every step: on its input, and on its recurrent state."""

    input_BD: Tensor | None
    state_BH: Tensor | None


def reverse_rows(x_BTD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Reverse the steps of each row up to its length. The padding stays in place."""
    if lengths_B is None:
        return x_BTD.flip(1)
    steps_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = lengths_B.unsqueeze(1) - 1 - steps_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, steps_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))


@final
class Stack(nn.Module):
    """A stack of recurrent layers, unidirectional or bidirectional.

    Outputs past the length of a row are zero. The backward direction starts at the end of each row, and the final state
    is the state after its last step. A row of length 0 keeps its initial state. With residual connections the output of
    a layer is x + f(x), from the second layer on. Dropout is applied between layers. Variational dropout (Gal and
    Ghahramani 2016) uses one mask for all steps, and another on the recurrent state.
    """

    def __init__(
        self,
        settings: RecurrentSettings,
        input_size: int,
        *,
        bidirectional: bool = False,
        learned_initial_state: bool = False,
        role: Role = "encoder-self",
    ) -> None:
        super().__init__()
        self.settings = settings
        self.directions = 2 if bidirectional else 1
        self.output_size = settings.hidden * self.directions
        sizes = [input_size] + [self.output_size] * (settings.layers - 1)
        self.cells = nn.ModuleList(
            cells.build_cell(settings, size, role) for size in sizes for _ in range(self.directions)
        )
        self.dropout = Dropout(settings.dropout)
        initial_size = settings.initial_state_size * self.directions
        self.learned_initial_state = nn.Parameter(torch.zeros(initial_size)) if learned_initial_state else None

    def init_state(self, rows: int, like: Tensor) -> State:
        """Return the initial states of all cells: zero, or learned."""
        if self.learned_initial_state is not None:
            return self.init_state_from(self.learned_initial_state.expand(rows, -1))
        return tuple(cell.init_state(rows, like) for cell in self._cells())

    def init_state_from(self, initial_BX: Tensor) -> State:
        """Return the initial states of all cells from one vector, `initial_state_size` wide for each direction."""
        parts = initial_BX.chunk(len(self.cells), dim=-1)
        return tuple(cell.init_state_from(part) for cell, part in zip(self._cells(), parts, strict=True))

    def sample_masks(self, rows: int, like: Tensor) -> tuple[DropoutMasks, ...]:
        """Sample the masks of variational dropout, one pair for each cell, which are used at every step."""
        if not (self.settings.variational and self.training and self.settings.dropout):
            return (DropoutMasks(None, None),) * len(self.cells)
        masks = []
        for index, cell in enumerate(self._cells()):
            # Both directions of a layer share the mask on their input.
            has_input_mask = index >= self.directions and index % self.directions == 0
            input_BD = self.dropout(like.new_ones(rows, cell.input_size)) if has_input_mask else None
            masks.append(DropoutMasks(input_BD, self.dropout(like.new_ones(rows, cell.hidden_size))))
        return tuple(masks)

    def forward(self, x_BTD: Tensor, lengths: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        rows, steps = x_BTD.shape[:2]
        initial = self.init_state(rows, x_BTD) if state is None else state
        masks = self.sample_masks(rows, x_BTD)
        outputs, padding_BT1 = x_BTD, None
        if lengths is not None:
            padding_BT1 = (torch.arange(steps, device=x_BTD.device) >= lengths.unsqueeze(1)).unsqueeze(-1)
            outputs = x_BTD.masked_fill(padding_BT1, 0.0)
        final: list[cells.State] = []
        for first in range(0, len(self.cells), self.directions):
            inputs = []
            x = self._drop(outputs, masks[first].input_BD, first > 0)
            for index in range(first, first + self.directions):
                x_direction = x if index == first else reverse_rows(x, lengths)
                inputs.append(scan.CellInput(self._cells()[index], x_direction, initial[index], masks[index].state_BH))
            scanned = dispatch.scan_layer(inputs, lengths)
            forward, *backward = (output.outputs_BTH for output in scanned)
            layer_output = torch.cat(
                [forward, *(reverse_rows(reversed_BTH, lengths) for reversed_BTH in backward)], dim=-1
            )
            layer_output = layer_output if padding_BT1 is None else layer_output.masked_fill(padding_BT1, 0.0)
            outputs = outputs + layer_output if first and self.settings.residual else layer_output
            final += [output.state for output in scanned]
        return outputs, tuple(final)

    def project(self, x: Tensor) -> Tensor:
        """Project the first columns of the input to the gates of the first layer, for all steps at once."""
        return self._cells()[0].project(x)

    def add_projection(self, gates_BG: Tensor, x_BD: Tensor) -> Tensor:
        """Add the projection of the last columns of the input, which are known only at their step, to the gates."""
        return self._cells()[0].add_projection(gates_BG, x_BD)

    def step(self, gates_BG: Tensor, state: State, masks: tuple[DropoutMasks, ...]) -> tuple[Tensor, State]:
        """Run one step of a unidirectional stack, from the gates of its first layer → (output_BH, state)."""
        output_BH: Tensor | None = None
        next_state = []
        for cell, previous, mask in zip(self._cells(), state, masks, strict=True):
            if output_BH is not None:
                gates_BG = cell.project(self._drop(output_BH, mask.input_BD, True))
            next_state.append(dispatch.step(cell, cell.normalize_projection(gates_BG), previous, mask.state_BH))
            layer_BH = next_state[-1][0]
            output_BH = layer_BH if output_BH is None or not self.settings.residual else output_BH + layer_BH
        assert output_BH is not None
        return output_BH, tuple(next_state)

    def cost_parts(self) -> list[CostPart]:
        """Return a part for each layer. A learned initial state belongs to the first."""
        name = self.settings.cell.kind.upper() + (", 2 directions" if self.directions > 1 else "")
        layers = [tuple(self.cells[i : i + self.directions]) for i in range(0, len(self.cells), self.directions)]
        if len(layers) == 1:
            return [CostPart(name, (self,))]
        layers[0] = (self, *layers[0])
        return [CostPart(name, cells, number) for number, cells in enumerate(layers, start=1)]

    def _drop(self, x: Tensor, mask_BD: Tensor | None, between: bool) -> Tensor:
        """Apply the dropout between layers: the variational mask, or ordinary dropout."""
        if mask_BD is not None:
            return x * (mask_BD if x.dim() == 2 else mask_BD.unsqueeze(1))
        dropped: Tensor = self.dropout(x) if between and not self.settings.variational else x
        return dropped

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]
