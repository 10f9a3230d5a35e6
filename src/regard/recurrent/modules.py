"""The networks that users put into their own models: like torch.nn's, batch first, with lengths.

B rows, T steps, D width of the input, H width of the state, L layers × directions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.config import resolve
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean
from regard.recurrent.cells import Cell
from regard.recurrent.fast import cudnn
from regard.recurrent.layers import Stack
from regard.recurrent.settings import RecurrentSettings

Lengths = Tensor | Sequence[int]


class Options(TypedDict, total=False):
    """What every network takes besides its sizes."""

    variational: bool
    residual: bool
    layer_norm: bool
    learned_start: bool


class _Network(nn.Module, ABC):
    """`outputs, state = network(x_BTD, lengths=lengths_B, state=None)`.

    Beyond a row's length its outputs are zero; its backward pass starts at its own end; its final state is the one
    after its last step. A row of length 0 keeps the state it started with.
    """

    theirs: type[nn.RNNBase]

    def __init__(
        self,
        cell: dict[str, Any],
        input_size: int,
        hidden_size: int,
        layers: int,
        bidirectional: bool,
        dropout: float,
        variant: str | None = None,
        *,
        learned_start: bool = False,
        variational: bool = False,
        residual: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(bidirectional, bool):
            raise ConfigError(f"bidirectional is True or False, and not {bidirectional!r}.")
        if not isinstance(input_size, int) or input_size < 1:
            raise ConfigError(f"input_size is a whole number from 1 up, and not {input_size!r}.")
        chosen = {
            "cell": cell,
            "variant": variant,
            "hidden": hidden_size,
            "layers": layers,
            "dropout": dropout,
            "variational": variational,
            "residual": residual,
            "layer_norm": layer_norm,
        }
        settings = resolve(RecurrentSettings, chosen, {})
        self.input_size, self.hidden_size, self.bidirectional = input_size, hidden_size, bidirectional
        self.stack = Stack(settings, input_size, bidirectional=bidirectional, learned_start=learned_start)

    @property
    def output_size(self) -> int:
        return self.stack.output_size

    def _run(
        self, x_BTD: Tensor, lengths: Lengths | None, given: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs, and each part of the state for all layers: (L, B, H), as torch.nn has them."""
        self._check_input_type(x_BTD)
        if x_BTD.dim() != 3 or x_BTD.shape[-1] != self.input_size:
            raise ConfigError(
                f"{type(self).__name__} takes (rows, steps, {self.input_size}), and was given {tuple(x_BTD.shape)}."
            )
        ends = None if lengths is None else _checked_lengths(lengths, x_BTD)
        state = None if given is None else self._checked_state(given, x_BTD)
        outputs_BTH, after = self.stack(x_BTD, ends, state)
        return outputs_BTH, tuple(torch.stack(parts) for parts in zip(*after, strict=True))

    def _check_input_type(self, x: object) -> None:
        if isinstance(x, Tensor):
            return
        name = type(self).__name__
        if isinstance(x, PackedSequence):
            raise ArgumentTypeError(
                f"{name} takes a padded tensor, not a PackedSequence. Unpack it with x, lengths = "
                "torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True), and call the network with "
                "(x, lengths=lengths)."
            )
        raise ArgumentTypeError(
            f"{name} takes a tensor of the shape (rows, steps, {self.input_size}), not {type(x).__name__}."
        )

    def _checked_state(self, given: Any, x_BTD: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """A state as the stack takes it; one of another kind or shape is refused."""
        cell = self.stack.cells[0]
        assert isinstance(cell, Cell)
        expected = [(len(self.stack.cells), len(x_BTD), width) for width in cell.parts]
        parts = given if isinstance(given, tuple | list) else [given]
        found = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
        if found != expected:
            raise ConfigError(f"The state of this {type(self).__name__} has the shape {expected}, and not {found}.")
        same = all(part.dtype == x_BTD.dtype and part.device == x_BTD.device for part in parts)
        if not same and not torch.is_autocast_enabled(x_BTD.device.type):
            raise ConfigError(f"The state must be {x_BTD.dtype} on {x_BTD.device}, as the input is.")
        return tuple(zip(*(part.unbind(0) for part in parts), strict=True))

    @classmethod
    def from_torch(cls, module: nn.RNNBase) -> Self:
        """The same network with the same weights, from torch.nn's; whichever way round its batches lie.

        Where it has no biases, ours start at zero.
        """
        if not isinstance(module, cls.theirs):
            raise ConfigError(f"{cls.__name__}.from_torch takes a torch.nn.{cls.theirs.__name__}, not {module!r}.")
        if getattr(module, "proj_size", 0):
            raise ConfigError("A torch.nn.LSTM with projections (proj_size) has no counterpart here.")
        sizes = (module.input_size, module.hidden_size, module.num_layers, module.bidirectional, module.dropout)
        build: Any = cls
        network: Self = build(*sizes, **cls._options_of(module)).to(module.weight_ih_l0)
        for cell, name in zip(network.stack.cells, _torch_names(module), strict=True):
            assert isinstance(cell, Cell)
            weights = (getattr(module, f"weight_{part}_{name}") for part in ("ih", "hh"))
            zero = torch.zeros_like(cell.bias_input)
            biases = (getattr(module, f"bias_{part}_{name}", zero) for part in ("ih", "hh"))
            cudnn.take_torch_weights(cell, *weights, *biases)
        return network.train(module.training)

    def to_torch(self) -> nn.RNNBase:
        """torch.nn's network, batch first, with the same weights; refused where torch has no such cell."""
        settings = self.stack.settings
        first = self.stack.cells[0]
        assert isinstance(first, Cell)
        extras = [name for name in ("layer_norm", "residual", "variational") if getattr(settings, name)]
        if self.stack.learned_start is not None:
            extras.append("learned_start")
        reason = f"it has no {', '.join(extras)}" if extras else cudnn.unknown_to_torch(first)
        if reason:
            raise ConfigError(f"torch.nn.{self.theirs.__name__} cannot hold this network: {reason}.")
        build: Any = self.theirs
        module: nn.RNNBase = build(
            self.input_size,
            self.hidden_size,
            settings.layers,
            batch_first=True,
            bidirectional=self.bidirectional,
            dropout=settings.dropout if settings.layers > 1 else 0.0,
            **self._torch_options(),
        ).to(first.weight_input)
        with torch.no_grad():
            for cell, name in zip(self.stack.cells, _torch_names(module), strict=True):
                assert isinstance(cell, Cell)
                parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                for part, values in zip(parts, cudnn.torch_weights(cell), strict=True):
                    getattr(module, f"{part}_{name}").copy_(values)
        return module.train(self.training)

    @classmethod
    def _options_of(cls, module: nn.RNNBase) -> dict[str, Any]:  # noqa: ARG003
        return {}

    def _torch_options(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def forward(self, x_BTD: Tensor, lengths: Lengths | None = None, state: Any = None) -> tuple[Tensor, Any]: ...


def _checked_lengths(lengths: Lengths, x_BTD: Tensor) -> Tensor:
    """Lengths as a tensor beside the input; what cannot be lengths is refused."""
    rows, steps = x_BTD.shape[:2]
    lengths_B = lengths if isinstance(lengths, Tensor) else _lengths_from_list(lengths, rows)
    if lengths_B.dtype not in {torch.int64, torch.int32, torch.int16} or lengths_B.shape != (rows,):
        raise ConfigError(
            f"lengths are one whole number for each of the {rows} rows, and not {lengths_B.dtype} of the shape "
            f"{tuple(lengths_B.shape)}."
        )
    if lengths_B.device.type == "cpu" and rows and not (lengths_B.min() >= 0 and lengths_B.max() <= steps):
        raise ConfigError(f"lengths lie between 0 and the {steps} steps there are, and not {lengths_B.tolist()}.")
    return lengths_B.to(x_BTD.device, torch.int64)


def _lengths_from_list(lengths: Sequence[int], rows: int) -> Tensor:
    try:
        lengths_B = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"lengths must be a tensor or a list with one integer for each of the {rows} rows, not {lengths!r}."
        ) from None
    return lengths_B if lengths_B.numel() else lengths_B.long()  # torch converts an empty list to float32


_ELSEWHERE = {"num_layers": "layers", "nonlinearity": "activation", "variants": "variant"}
"""What torch.nn calls it, and what it is called here."""


def _check_names(kind: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in options:
        if name not in known:
            near = f" Did you mean '{_ELSEWHERE[name]}'?" if name in _ELSEWHERE else did_you_mean(name, known)
            first = " It is batch first, always." if name == "batch_first" else ""
            raise ConfigError(f"regard.{kind} takes no '{name}'.{first or near}")


def _torch_names(module: nn.RNNBase) -> list[str]:
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{direction}" for layer in range(module.num_layers) for direction in directions]


class _OneState(_Network, ABC):
    """A network whose state is its output alone, one tensor."""

    def forward(
        self, x_BTD: Tensor, lengths: Lengths | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        outputs_BTH, (h_LBH,) = self._run(x_BTD, lengths, None if state is None else (state,))
        return outputs_BTH, h_LBH


@final
class RNN(_OneState):
    """Layers of simple recurrent networks, h' = φ(W x + R h + b) with φ = tanh or relu; the state is h (L, B, H)."""

    theirs = nn.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        *,
        activation: str = "tanh",
        **options: Unpack[Options],
    ) -> None:
        _check_names("RNN", options, Options.__annotations__)
        cell = {"kind": "rnn", "activation": activation}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, **options)

    @classmethod
    def _options_of(cls, module: nn.RNNBase) -> dict[str, Any]:
        return {"activation": module.nonlinearity}

    def _torch_options(self) -> dict[str, Any]:
        return {"nonlinearity": getattr(self.stack.settings.cell, "activation", None)}


@final
class GRU(_OneState):
    """Layers of gated recurrent units, reset after the product with R or before; the state is h (L, B, H)."""

    theirs = nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        *,
        reset: str = "after",
        **options: Unpack[Options],
    ) -> None:
        _check_names("GRU", options, Options.__annotations__)
        cell = {"kind": "gru", "reset": reset}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, **options)


class Switches(TypedDict, total=False):
    """The parts of an LSTM, each by itself; what is not given is as the variant has it."""

    input_gate: bool
    forget_gate: bool
    output_gate: bool
    coupled: bool
    input_activation: str
    output_activation: str
    peepholes: bool
    gate_recurrence: bool
    forget_bias: float


class LSTMOptions(Switches, Options, total=False):
    """What an LSTM takes besides its sizes."""


@final
class LSTM(_Network):
    """Layers of LSTMs: the usual cell, a variant of the Odyssey by name, or switches of your own.

    The state is (h, c), (L, B, H) each; with gate recurrence (h, c, gates).
    """

    theirs = nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        *,
        variant: str | None = None,
        **options: Unpack[LSTMOptions],
    ) -> None:
        _check_names("LSTM", options, [*Options.__annotations__, *Switches.__annotations__])
        rest: dict[str, Any] = {name: value for name, value in options.items() if name in Options.__annotations__}
        switches = {name: value for name, value in options.items() if name not in rest}
        cell = {"kind": "lstm", **switches}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, variant, **rest)

    def forward(
        self, x_BTD: Tensor, lengths: Lengths | None = None, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self._run(x_BTD, lengths, state)
