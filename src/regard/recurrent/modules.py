"""Recurrent networks as building blocks for other models: like those of torch.nn, batch first, with lengths.

B rows, T steps, D input width, H state width, L layers × directions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypedDict, Unpack, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.arguments import check_flag, check_floating, check_integer
from regard.config import resolve
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean
from regard.recurrent.cells import Cell
from regard.recurrent.fast import cudnn
from regard.recurrent.layers import Stack
from regard.recurrent.settings import RecurrentSettings

Lengths = Tensor | Sequence[int]


class Options(TypedDict, total=False):
    """The keyword options of every network."""

    variational: bool
    residual: bool
    layer_norm: bool
    learned_initial_state: bool


class _Network(nn.Module, ABC):
    """`outputs, state = network(x_BTD, lengths=lengths_B, state=None)`.

    The input is a tensor (rows, steps, input_size), of the dtype and on the device of the network. `lengths` is a
    tensor or a list with one integer for each row; by default all rows have all steps. Outputs past the length of a row
    are zero. The backward direction starts at the end of each row, and the final state is the state after its last
    step. A row of length 0 keeps its initial state.
    """

    torch_class: type[nn.RNNBase]
    torch_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The options of the cell that torch.nn has, too, with the names that it uses."""

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
        learned_initial_state: bool = False,
        variational: bool = False,
        residual: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("layers", layers)):
            check_integer(name, size)
        for name, flag in (
            ("bidirectional", bidirectional),
            ("learned_initial_state", learned_initial_state),
            ("variational", variational),
            ("residual", residual),
            ("layer_norm", layer_norm),
        ):
            check_flag(name, flag)
        config = {
            "cell": cell,
            "variant": variant,
            "hidden": hidden_size,
            "layers": layers,
            "dropout": dropout,
            "variational": variational,
            "residual": residual,
            "layer_norm": layer_norm,
        }
        settings = resolve(RecurrentSettings, config, {})
        self.input_size, self.hidden_size, self.bidirectional = input_size, hidden_size, bidirectional
        self.stack = Stack(
            settings, input_size, bidirectional=bidirectional, learned_initial_state=learned_initial_state
        )

    @property
    def output_size(self) -> int:
        return self.stack.output_size

    def _run(
        self, x_BTD: Tensor, lengths: Lengths | None, initial: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs, and each tensor of the state for all layers, (L, B, H), as torch.nn does."""
        self._check_input_type(x_BTD)
        if x_BTD.dim() != 3 or x_BTD.shape[-1] != self.input_size:
            raise ConfigError(
                f"{type(self).__name__} expects input of shape (rows, steps, {self.input_size}), "
                f"got {tuple(x_BTD.shape)}."
            )
        check_floating(next(self.parameters()), f"the {type(self).__name__} is", x=x_BTD)
        lengths_B = None if lengths is None else _check_lengths(lengths, x_BTD)
        state = None if initial is None else self._check_state(initial, x_BTD)
        outputs_BTH, final = self.stack(x_BTD, lengths_B, state)
        return outputs_BTH, tuple(torch.stack(parts) for parts in zip(*final, strict=True))

    def _check_input_type(self, x: object) -> None:
        if isinstance(x, Tensor):
            return
        name = type(self).__name__
        if isinstance(x, PackedSequence):
            raise ArgumentTypeError(
                f"{name} expects a padded tensor, not a PackedSequence. Unpack it with x, lengths = "
                "torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True), and call the network with "
                "(x, lengths=lengths)."
            )
        raise ArgumentTypeError(
            f"{name} expects a tensor of shape (rows, steps, {self.input_size}), not {type(x).__name__}."
        )

    def _check_state(self, state: Any, x_BTD: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """Check the type and shapes of a state, and convert it to the layout of the stack."""
        cell = self.stack.cells[0]
        assert isinstance(cell, Cell)
        expected = [(len(self.stack.cells), len(x_BTD), width) for width in cell.state_sizes]
        parts = state if isinstance(state, tuple | list) else [state]
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
        if shapes != expected:
            raise ConfigError(f"{type(self).__name__} expects a state of shape {expected}, got {shapes}.")
        matches = all(part.dtype == x_BTD.dtype and part.device == x_BTD.device for part in parts)
        if not matches and not torch.is_autocast_enabled(x_BTD.device.type):
            raise ConfigError(f"The state must be {x_BTD.dtype} on {x_BTD.device}, like the input.")
        return tuple(zip(*(part.unbind(0) for part in parts), strict=True))

    @classmethod
    def from_torch(cls, module: nn.RNNBase) -> Self:
        """Build a network from one of torch.nn, with the same weights. The result is always batch first.

        Args:
            module: A network of the corresponding class of torch.nn. If it has no biases, they are zero.

        Returns:
            The network, in the mode of the module.

        Raises:
            ConfigError: The module has projections (`proj_size`).
            ArgumentTypeError: The module is of another class.

        >>> lstm = regard.LSTM.from_torch(torch.nn.LSTM(64, 128))
        """
        if not isinstance(module, cls.torch_class):
            expected = f"torch.nn.{cls.torch_class.__name__}"
            described = type(module).__name__ if isinstance(module, nn.Module) else repr(module)
            raise ArgumentTypeError(f"{cls.__name__}.from_torch expects a {expected}, not {described}.")
        if getattr(module, "proj_size", 0):
            raise ConfigError("A torch.nn.LSTM with projections (proj_size) is not supported.")
        sizes = (module.input_size, module.hidden_size, module.num_layers, module.bidirectional, module.dropout)
        build: Any = cls
        options = {name: getattr(module, theirs) for name, theirs in cls.torch_options.items()}
        network: Self = build(*sizes, **options).to(module.weight_ih_l0)
        for cell, name in zip(network.stack.cells, _torch_suffixes(module), strict=True):
            assert isinstance(cell, Cell)
            weights = (getattr(module, f"weight_{part}_{name}") for part in ("ih", "hh"))
            zero = torch.zeros_like(cell.bias_input)
            biases = (getattr(module, f"bias_{part}_{name}", zero) for part in ("ih", "hh"))
            cudnn.load_torch_weights(cell, *weights, *biases)
        return network.train(module.training)

    def to_torch(self) -> nn.RNNBase:
        """Convert to a torch.nn network, batch first, with the same weights.

        Returns:
            The torch.nn network, in the same mode.

        Raises:
            ConfigError: torch.nn does not have the cell, or one of its options.

        >>> module = regard.LSTM(64, 128).to_torch()
        """
        settings = self.stack.settings
        first = self.stack.cells[0]
        assert isinstance(first, Cell)
        extras = [name for name in ("layer_norm", "residual", "variational") if getattr(settings, name)]
        if self.stack.learned_initial_state is not None:
            extras.append("learned_initial_state")
        reason = f"torch.nn does not support {', '.join(extras)}" if extras else first.torch_nn_unsupported_reason
        if reason:
            raise ConfigError(f"Cannot convert this network to torch.nn.{self.torch_class.__name__}: {reason}.")
        build: Any = self.torch_class
        module: nn.RNNBase = build(
            self.input_size,
            self.hidden_size,
            settings.layers,
            batch_first=True,
            bidirectional=self.bidirectional,
            dropout=settings.dropout if settings.layers > 1 else 0.0,
            **{theirs: getattr(settings.cell, name) for name, theirs in self.torch_options.items()},
        ).to(first.weight_input)
        with torch.no_grad():
            for cell, name in zip(self.stack.cells, _torch_suffixes(module), strict=True):
                assert isinstance(cell, Cell)
                parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                for part, values in zip(parts, cudnn.to_torch_weights(cell), strict=True):
                    getattr(module, f"{part}_{name}").copy_(values)
        return module.train(self.training)

    @abstractmethod
    def forward(self, x_BTD: Tensor, lengths: Lengths | None = None, state: Any = None) -> tuple[Tensor, Any]: ...


def _check_lengths(lengths: Lengths, x_BTD: Tensor) -> Tensor:
    """Check lengths, and convert them to a tensor on the device of the input."""
    rows, steps = x_BTD.shape[:2]
    lengths_B = lengths if isinstance(lengths, Tensor) else _convert_lengths(lengths, rows)
    if lengths_B.dtype not in {torch.int64, torch.int32, torch.int16} or lengths_B.shape != (rows,):
        raise ConfigError(
            f"lengths must be one integer for each of the {rows} rows, not {lengths_B.dtype} of shape "
            f"{tuple(lengths_B.shape)}."
        )
    if lengths_B.device.type == "meta" and x_BTD.device.type != "meta":
        raise ConfigError(f"lengths is on meta, but x is on {x_BTD.device}. Pass lengths with values.")
    if lengths_B.device.type == "cpu" and rows and not (lengths_B.min() >= 0 and lengths_B.max() <= steps):
        raise ConfigError(f"lengths must be between 0 and the number of steps, {steps}, not {lengths_B.tolist()}.")
    return lengths_B.to(x_BTD.device, torch.int64)


def _convert_lengths(lengths: Sequence[int], rows: int) -> Tensor:
    try:
        lengths_B = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"lengths must be a tensor or a list with one integer for each of the {rows} rows, not {lengths!r}."
        ) from None
    return lengths_B if lengths_B.numel() else lengths_B.long()  # torch converts an empty list to float32


_TORCH_NAMES = {"num_layers": "layers", "nonlinearity": "activation", "variants": "variant"}
"""Option names of torch.nn, and a likely mistake, with the names used here."""


def _check_options(kind: str, options: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Raise ConfigError for an option that does not exist, with the nearest name."""
    for name in options:
        if name not in valid:
            hint = f" Did you mean '{_TORCH_NAMES[name]}'?" if name in _TORCH_NAMES else did_you_mean(name, valid)
            if name == "batch_first":
                hint = " It is always batch first."
            raise ConfigError(f"regard.{kind} has no option '{name}'.{hint}")


def _torch_suffixes(module: nn.RNNBase) -> list[str]:
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{direction}" for layer in range(module.num_layers) for direction in directions]


class _SingleStateNetwork(_Network, ABC):
    """A network whose state is a single tensor, h."""

    def forward(
        self, x_BTD: Tensor, lengths: Lengths | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        outputs_BTH, (h_LBH,) = self._run(x_BTD, lengths, None if state is None else (state,))
        return outputs_BTH, h_LBH


@final
class RNN(_SingleStateNetwork):
    """A simple recurrent network, h' = φ(W x + R h + b). The state is h (L, B, H).

    Args:
        input_size: The width of the inputs.
        hidden_size: The width of the state.
        layers: The number of layers.
        bidirectional: Whether each layer has a second direction, from the end of each row to its start.
        dropout: The dropout probability between layers.
        activation: φ, "tanh" or "relu".
        options: `variational` (one dropout mask for all steps), `residual`, `layer_norm` and `learned_initial_state`,
            each True or False.

    Raises:
        ConfigError: A size is not positive, or an option is unknown or out of range.
        ArgumentTypeError: An argument has the wrong type.

    >>> outputs, h = regard.RNN(64, 128)(x, lengths=[9, 4])
    """

    torch_class = nn.RNN
    torch_options = MappingProxyType({"activation": "nonlinearity"})

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
        _check_options("RNN", options, Options.__annotations__)
        cell = {"kind": "rnn", "activation": activation}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, **options)


@final
class GRU(_SingleStateNetwork):
    """A network of gated recurrent units. The state is h (L, B, H).

    Args:
        input_size: The width of the inputs.
        hidden_size: The width of the state.
        layers: The number of layers.
        bidirectional: Whether each layer has a second direction, from the end of each row to its start.
        dropout: The dropout probability between layers.
        reset: Where the reset gate is applied: "after" the product with R, as in torch.nn, or "before" it.
        options: `variational` (one dropout mask for all steps), `residual`, `layer_norm` and `learned_initial_state`,
            each True or False.

    Raises:
        ConfigError: A size is not positive, or an option is unknown or out of range.
        ArgumentTypeError: An argument has the wrong type.

    >>> outputs, h = regard.GRU(64, 128, bidirectional=True)(x, lengths=[9, 4])
    """

    torch_class = nn.GRU

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
        _check_options("GRU", options, Options.__annotations__)
        cell = {"kind": "gru", "reset": reset}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, **options)


class Switches(TypedDict, total=False):
    """The switches of an LSTM. By default each is as in the variant."""

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
    """The keyword options of an LSTM."""


@final
class LSTM(_Network):
    """An LSTM network: the standard cell, a variant of Greff et al. (2015) by name, or any combination of switches.

    The state is (h, c), each (L, B, H); with gate recurrence it is (h, c, gates).

    Args:
        input_size: The width of the inputs.
        hidden_size: The width of the state.
        layers: The number of layers.
        bidirectional: Whether each layer has a second direction, from the end of each row to its start.
        dropout: The dropout probability between layers.
        variant: A variant of Greff et al.: "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG" or "FGR"; by default the
            standard cell.
        options: The switches of the cell (`Switches`), and `variational` (one dropout mask for all steps), `residual`,
            `layer_norm` and `learned_initial_state`, each True or False.

    Raises:
        ConfigError: A size is not positive, or an option is unknown or out of range.
        ArgumentTypeError: An argument has the wrong type.

    >>> outputs, (h, c) = regard.LSTM(64, 128, variant="CIFG")(x, lengths=[9, 4])
    """

    torch_class = nn.LSTM

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
        _check_options("LSTM", options, [*Options.__annotations__, *Switches.__annotations__])
        shared: dict[str, Any] = {name: value for name, value in options.items() if name in Options.__annotations__}
        switches = {name: value for name, value in options.items() if name not in shared}
        cell = {"kind": "lstm", **switches}
        super().__init__(cell, input_size, hidden_size, layers, bidirectional, dropout, variant, **shared)

    def forward(
        self, x_BTD: Tensor, lengths: Lengths | None = None, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self._run(x_BTD, lengths, state)
