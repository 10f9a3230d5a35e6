"""The interfaces of encoders and decoders. Search and training use only these, and do not depend on the model.

B rows, T target steps, S memory slots, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, final

import torch
from torch import Tensor, nn

from regard.arguments import (
    check_floating,
    check_integers,
    check_same_device,
    check_tensors,
    check_type,
    has_values,
)
from regard.attention.memory import repeat_rows
from regard.errors import ConfigError
from regard.formatting import quantity
from regard.ops.cost import CostPart

State = Any
"""Nested tuples, lists and dicts of tensors with rows on axis 0, and of objects with a method `reorder`."""

Keys = Any
"""What a decoder computes once per source. The hypotheses of a sentence share it, and search never reorders it."""


def move_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to another device; from CPU to GPU asynchronously, through pinned memory."""
    if device.type == "cuda" and tensor.is_cpu:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Source(ABC):
    """A batch of inputs for an encoder. Axis 0 of all its tensors is the batch.

    Batching, losses, CUDA graphs and search use only this interface, so that they work for every kind of source.
    """

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the source."""

    @abstractmethod
    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """Return a source of the same type with other tensors, in the order of the property `tensors`."""

    @property
    @abstractmethod
    def length_hint_B(self) -> Tensor:
        """The length of each row, for a text the number of tokens. Search computes the maximum length of a prediction
        from it. The prediction for a row of length 0 is empty.
        """

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all tensors. Sources of one shape can share a CUDA graph."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    def rows(self, index: slice | Tensor) -> Self:
        """Select rows."""
        return self.with_tensors(tensor[index] for tensor in self.tensors)

    def concatenate(self, other: Self) -> Self:
        """Append the rows of another source. All axes except the batch must have the same sizes."""
        return self.with_tensors(torch.cat(parts) for parts in zip(self.tensors, other.tensors, strict=True))

    def clone(self) -> Self:
        return self.with_tensors(tensor.clone() for tensor in self.tensors)

    def to(self, device: torch.device) -> Self:
        """Copy to another device; from CPU to GPU asynchronously, through pinned memory."""
        return self.with_tensors(move_tensor(tensor, device) for tensor in self.tensors)

    def pad_to_bucket(self, round_up: Callable[[int], int]) -> Self | None:
        """Append empty rows and padding up to rounded sizes, so that sources of similar sizes share a CUDA graph. By
        default, return None: the source cannot be padded without changing what is computed for its rows.
        """
        del round_up
        return None

    def corrupt(self, probability: float, unknown: int) -> Self:
        """Replace parts of the source at random during training: in a text, tokens with the token `unknown` (word
        dropout). By default, return the source unchanged.
        """
        del probability, unknown
        return self

    def occlude(self, hidden_BS: Tensor, unknown: int, layout: "Grid | None") -> Self:
        """Hide some parts of the source, True in `hidden_BS`: in a text, replace tokens with the token `unknown`; in an
        image with the slots in `layout`, fill their cells with the average color of the image.
        """
        del hidden_BS, unknown, layout
        raise ConfigError(
            f"{type(self).__name__} does not define how a part of a source is hidden, so the method occlusion cannot "
            "be used. Use another method, or implement `occlude`."
        )


@final
@dataclass(frozen=True, eq=False)
class Tokens(Source):
    """Rows of token ids, padded to the length of the longest row, and at least to 1."""

    tokens_BT: Tensor
    lengths_B: Tensor

    def __post_init__(self) -> None:
        check_integers("tokens", self.tokens_BT, "rows", "steps")
        check_integers("lengths", self.lengths_B, "rows")
        check_same_device("lengths", self.lengths_B, "tokens", self.tokens_BT.device)
        if self.lengths_B.shape[0] != self.tokens_BT.shape[0]:
            raise ConfigError(
                f"lengths has {quantity(len(self.lengths_B), 'row')}, but tokens has {len(self.tokens_BT)}. Pass one "
                "length for each row."
            )

    @classmethod
    def zeros(cls, length: int, device: torch.device) -> "Tokens":
        """Return a batch of one row of this length, for measurements."""
        tokens_BT = torch.zeros(1, length, dtype=torch.long, device=device)
        return cls(tokens_BT, torch.full((1,), length, device=device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.tokens_BT, self.lengths_B

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Tokens":
        return Tokens(*tensors)

    @property
    def length_hint_B(self) -> Tensor:
        return self.lengths_B

    @property
    def valid_BT(self) -> Tensor:
        """True for tokens, False for padding."""
        steps_T = torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return steps_T < self.lengths_B.unsqueeze(1)

    def pad_to_bucket(self, round_up: Callable[[int], int]) -> "Tokens":
        more_rows, more_steps = (round_up(size) - size for size in self.tokens_BT.shape)
        if not more_rows and not more_steps:
            return self
        tokens_BT = nn.functional.pad(self.tokens_BT, (0, more_steps, 0, more_rows))
        return Tokens(tokens_BT, nn.functional.pad(self.lengths_B, (0, more_rows)))

    def corrupt(self, probability: float, unknown: int) -> "Tokens":
        dropped_BT = torch.rand(self.tokens_BT.shape, device=self.tokens_BT.device) < probability
        return Tokens(self.tokens_BT.masked_fill(dropped_BT, unknown), self.lengths_B)

    def occlude(self, hidden_BS: Tensor, unknown: int, layout: "Grid | None") -> "Tokens":
        del layout
        return Tokens(self.tokens_BT.masked_fill(hidden_BS, unknown), self.lengths_B)


LossTerm = Callable[[Tensor, Tensor], Tensor]
"""A term that a mechanism adds to the loss: a function of the targets' log-probabilities (B, T) and of their mask."""


@dataclass(frozen=True)
class Decoded:
    """The output of a decoder for all steps: features, and the output layer that maps them to logits, so that a loss
    can compute the logits in chunks; and additional loss terms.
    """

    features: Tensor
    output: Callable[[Tensor], Tensor]
    vocabulary: int
    output_parameters: tuple[Tensor, ...] = ()
    """The parameters of the output layer."""
    loss_terms: tuple[LossTerm, ...] = ()
    alignment_BTS: Tensor | None = None
    """In training, the weights of the head that is supervised by word alignments, if there is one."""

    @classmethod
    def from_logits(cls, logits_BTV: Tensor, loss_terms: tuple[LossTerm, ...] = ()) -> "Decoded":
        """Wrap logits that are not a function of features alone."""
        return cls(logits_BTV, lambda logits: logits, logits_BTV.shape[-1], (), loss_terms)

    @cached_property
    def logits_BTV(self) -> Tensor:
        return self.output(self.features)


class Grid(NamedTuple):
    """Slots in rows and columns, numbered row by row, as an image encoder arranges them."""

    height: int
    width: int


class Memory(NamedTuple):
    """The output of an encoder."""

    slots_BSD: Tensor
    allowed_BS: Tensor
    summary_BD: Tensor
    tokens_BS: Tensor | None = None
    """The source tokens of the slots, if the source is a sequence of tokens."""
    layout: Grid | None = None
    """How the slots are arranged; None if they are a sequence."""
    cells_BSD: Tensor | None = None
    """The cell states of the slots, if the encoder keeps them on a tape (LSTMN)."""

    def pad(self, rows: int, slots: int) -> "Memory":
        """Append rows without visible slots, and masked slots unless the slots are arranged in a grid."""
        more_rows = rows - len(self.allowed_BS)
        more_slots = slots - self.allowed_BS.shape[1] if self.layout is None else 0
        if not more_rows and not more_slots:
            return self

        def pad(tensor: Tensor, *before_rows: int) -> Tensor:
            return nn.functional.pad(tensor, (*before_rows, 0, more_rows))

        return Memory(
            pad(self.slots_BSD, 0, 0, 0, more_slots),
            pad(self.allowed_BS, 0, more_slots),
            pad(self.summary_BD, 0, 0),
            None if self.tokens_BS is None else pad(self.tokens_BS, 0, more_slots),
            self.layout,
            None if self.cells_BSD is None else pad(self.cells_BSD, 0, 0, 0, more_slots),
        )


SourceT = TypeVar("SourceT", bound=Source)


class FrozenPart(NamedTuple):
    """The first part of an encoder, which training does not change. Its output is computed once for each source."""

    module: nn.Module
    """The part, in evaluation mode."""
    compute: Callable[[Any], Tensor]
    """Source → the output of the part, with rows on axis 0."""
    wrap: Callable[[Tensor], Source]
    """Output → a source that the encoder accepts in place of the first."""
    dtype: torch.dtype
    """The dtype in which outputs are stored."""


class Encoder(nn.Module, ABC, Generic[SourceT]):
    """Source → memory. An encoder reads one kind of source, its type parameter."""

    source_kind: ClassVar[str] = "text"
    """The name of the kind of source, which selects the source reader."""
    is_capturable: ClassVar[bool] = False
    """Whether `forward` reads `Tokens` and no values of tensors on the host, so that a CUDA graph can contain it."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The width of a memory slot, D."""

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """The embedding of source tokens, if there is one; it may be tied to that of the decoder."""
        return None

    @property
    def input_module(self) -> nn.Module | None:
        """The module that returns a vector for each part of the source, (B, S, D), by default the embedding of tokens.
        Gradients are attributed to its output.
        """
        return self.token_embedding

    @property
    def frozen_part(self) -> FrozenPart | None:
        """The part whose output training caches, if there is one."""
        return None

    @property
    def shardable_modules(self) -> tuple[nn.Module, ...]:
        """Modules whose parameters are used only in their `forward`. Sharded training gathers these parameters for the
        duration of a call (FSDP2), and all others for a whole step.
        """
        return ()

    @property
    def reads_backward(self) -> bool:
        """Whether recurrent layers read the source from its end. Memory slots are in the order of the source."""
        return False

    @property
    def fixed_slots(self) -> int | None:
        """The number of slots of every memory, such as the cells of a grid; None if it is the length of the source."""
        return None

    def example_source(self, length: int, device: torch.device) -> SourceT | None:
        """Return a batch of one source of this length, with which the cost is measured; None if it cannot be.

        An encoder of another kind of source than text overrides this method.
        """
        return Tokens.zeros(length, device) if self.source_kind == "text" else None  # type: ignore[return-value]

    def cost_parts(self) -> Sequence[CostPart]:
        """Return the parts whose multiply-adds and parameters are counted, by default the encoder as a whole."""
        return [CostPart(type(self).__name__, (self,))]

    def load_pretrained(self) -> None:
        """Load pretrained weights, if there are any. Called when a run starts; checkpoints contain all weights."""

    @abstractmethod
    def forward(self, source: SourceT) -> Memory: ...


class Decoder(nn.Module, ABC):
    """Memory and the tokens so far → the next token. `forward` equals chained `step`s.

    Keys belong to sentences, states to hypotheses. A step may receive several rows of state for each row of keys; the
    rows of one sentence are adjacent. A state may be used for one step only. A search on a GPU captures `begin` and
    `step` in CUDA graphs, so they must not read the values of tensors on the host.
    """

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """The embedding of target tokens, if there is one; it may be tied to that of the encoder."""
        return None

    @property
    def shardable_modules(self) -> tuple[nn.Module, ...]:
        """Modules whose parameters are used only in their `forward`. Sharded training gathers these parameters for the
        duration of a call (FSDP2), and all others for a whole step.
        """
        return ()

    @property
    def stepwise_modules(self) -> tuple[nn.Module, ...]:
        """The recurrent networks whose steps cannot run at once, because attention is computed between them."""
        return ()

    def cost_parts(self) -> Sequence[CostPart]:
        """Return the parts whose multiply-adds and parameters are counted, by default the decoder as a whole."""
        return [CostPart(type(self).__name__, (self,))]

    def supervise_attention(self, layer: int | None, head: int) -> None:
        """Return the weights of a head of the attention to the source in `Decoded.alignment_BTS`, in training mode.

        Layers and heads are counted from 1. If `layer` is None, the decoder chooses one.
        """
        del layer, head
        raise ConfigError(
            f"training.guided_alignment: {type(self).__name__} has no attention that can be supervised. Use another "
            "model, or set training.guided_alignment=null."
        )

    @abstractmethod
    def begin(self, memory: Memory) -> tuple[Keys, State]:
        """Return the keys of a source, which stay constant, and the initial state."""

    @abstractmethod
    def step(self, token_B: Tensor, state: State, keys: Keys) -> tuple[Tensor, State]:
        """Run one step from the previous token → (logits_BV, state). The caller may write to the logits."""

    @abstractmethod
    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        """Run all steps at once, given the target tokens (teacher forcing)."""


def check_supervised_head(layer: int, head: int, layers: int, heads: int) -> None:
    """Raise ConfigError if a decoder has no such layer or head, counted from 1."""
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if not 1 <= number <= count:
            raise ConfigError(
                f"training.guided_alignment.{name}: {number} is out of range. The decoder has "
                f"{quantity(count, name)}, counted from 1."
            )


def repeat_for_hypotheses(keys: Tensor, rows: int) -> Tensor:
    """Repeat each row of `keys` for the hypotheses of its sentence, to `rows` rows in total."""
    return keys if keys.shape[0] == rows else repeat_rows(keys, rows // keys.shape[0])


def reorder(state: State, rows: Tensor, *, block: int = 1, blocks: Tensor | None = None) -> State:
    """Select rows of a state by index, for any model.

    In a search, the rows form blocks of `block` rows, the hypotheses of a sentence, and no hypothesis leaves its block.
    The rows of new block b then come from the old block `blocks[b]`, or from block b if `blocks` is None. An object
    with a method `reorder(rows, block, blocks)` uses this to move less data.
    """
    blocks = rows if block == 1 and blocks is None else blocks

    def select(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.index_select(0, rows)
        return part.reorder(rows, block, blocks) if hasattr(part, "reorder") else part

    return map_state(state, select, "reorder")


def preallocate(state: State, steps: int) -> State:
    """Return the state with memory allocated for `steps` steps in total, so that its shapes stay constant until then.
    Only objects with a method `preallocate(steps)` change.
    """
    name = "preallocate"
    return map_state(state, lambda part: part.preallocate(steps) if hasattr(part, name) else part, name)


def map_state(state: State, function: Callable[[Any], Any], method: str | None = None) -> State:
    """Apply a function to each leaf of a state: all that is not a tuple, list or dict, or that has the named method."""
    if method is not None and hasattr(state, method):
        return function(state)
    if isinstance(state, dict):
        return {name: map_state(part, function, method) for name, part in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(map_state(part, function, method) for part in state))
    if isinstance(state, (tuple, list)):
        return type(state)(map_state(part, function, method) for part in state)
    return function(state)


def check_tokens_source(source: Any, embedding: nn.Embedding) -> None:
    """Raise an error unless a source is a batch of tokens on the device of an embedding, with lengths in range."""
    source = check_type("source", source, Tokens, "a regard.Tokens")
    check_same_device("source.tokens_BT", source.tokens_BT, "the encoder", embedding.weight.device)
    lengths_B, steps = source.lengths_B, source.tokens_BT.shape[1]
    if has_values(lengths_B) and len(lengths_B) and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= steps:
        raise ConfigError(
            f"source.lengths_B must be between 0 and the number of steps, {steps}, not {lengths_B.tolist()}."
        )


def check_memory(memory: Any, weight: Tensor, slot_size: int | None, summary_size: int | None) -> None:
    """Raise an error unless a memory has slots and a summary of these sizes, and matches a weight of the decoder. A
    size of None means that the decoder does not use this part.
    """
    memory = check_type("memory", memory, Memory, "a regard.Memory, as an encoder returns it")
    rows = None
    if slot_size is not None:
        slots_BSD = _check_part("memory.slots_BSD", memory.slots_BSD, ("rows", "slots", slot_size), weight)
        rows = slots_BSD.shape[0]
        allowed_BS: Any = memory.allowed_BS
        check_tensors(**{"memory.allowed_BS": allowed_BS})
        if allowed_BS.dtype != torch.bool or allowed_BS.shape != slots_BSD.shape[:2]:
            raise ConfigError(
                f"memory.allowed_BS must be boolean with the shape {tuple(slots_BSD.shape[:2])} (rows, slots), not "
                f"{allowed_BS.dtype} with the shape {tuple(allowed_BS.shape)}."
            )
    if summary_size is not None:
        _check_part("memory.summary_BD", memory.summary_BD, ("rows" if rows is None else rows, summary_size), weight)


def _check_part(name: str, part: Any, shape: tuple[str | int, ...], weight: Tensor) -> Tensor:
    """Raise an error unless a tensor is floating-point and has this shape; an axis with a name has any size."""
    tensor: Tensor = check_type(name, part, Tensor, "a tensor")
    matches = tensor.dim() == len(shape) and all(
        isinstance(size, str) or actual == size for actual, size in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        raise ConfigError(f"{name} must have the shape ({', '.join(map(str, shape))}), not {tuple(tensor.shape)}.")
    check_floating(weight, "the decoder is", **{name: tensor})
    return tensor


def check_targets(tokens_BT: Any, rows: int, embedding: nn.Embedding) -> None:
    """Raise an error unless tokens are (rows, steps) with the rows of the memory, on the device of an embedding."""
    check_integers("tokens", tokens_BT, "rows", "steps")
    _check_rows_and_device("tokens", tokens_BT, rows, "the memory", embedding)


def check_token(token_B: Any, rows: int, embedding: nn.Embedding) -> None:
    """Raise an error unless there is one token for each row of a state, on the device of an embedding."""
    check_integers("token", token_B, "rows")
    _check_rows_and_device("token", token_B, rows, "the state", embedding)


def check_step_types(state: object, keys: object, state_type: type, keys_type: type) -> None:
    """Raise an error unless the state and the keys of a step have the types that `begin` returns."""
    check_type("state", state, state_type, "what `begin` or the last step returned")
    check_type("keys", keys, keys_type, "what `begin` returned")


def _check_rows_and_device(name: str, tokens: Tensor, rows: int, owner: str, embedding: nn.Embedding) -> None:
    if tokens.shape[0] != rows:
        raise ConfigError(
            f"{name} has {quantity(tokens.shape[0], 'row')}, but {owner} has {rows}. Pass the same number of rows."
        )
    check_same_device(name, tokens, "the decoder", embedding.weight.device)
