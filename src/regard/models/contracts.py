"""The contracts that encoders and decoders keep, so that search and training never ask which model they serve.

B rows, T target steps, S memory slots, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

State = Any
"""Any nesting of tuples, lists and dicts of tensors with rows on axis 0, and of parts that can be `reordered`."""

Keys = Any
"""What a decoder works out once per source; shared by the hypotheses of a sentence, never reordered."""


class Padded(NamedTuple):
    """Rows of token ids, filled up to the longest with padding; the width is at least 1."""

    tokens_BT: Tensor
    lengths_B: Tensor

    @property
    def valid_BT(self) -> Tensor:
        """True where a token stands, False where padding does."""
        steps_T = torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return steps_T < self.lengths_B.unsqueeze(1)

    def to(self, device: torch.device) -> "Padded":
        """On another device; a GPU fetches it when it comes to it, and nobody waits."""
        if device.type == "cuda" and self.tokens_BT.is_cpu:
            return Padded(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in self))
        return Padded(self.tokens_BT.to(device), self.lengths_B.to(device))


LossTerm = Callable[[Tensor, Tensor], Tensor]
"""What a mechanism adds to the loss: a function of the targets' log-probabilities (B, T) and of where they count."""


@dataclass(frozen=True)
class Decoded:
    """What follows each given token: features and the output layer that makes logits of them, so that the logits need
    not all be there at once; and what the mechanisms behind them add to the loss.
    """

    features: Tensor
    output: Callable[[Tensor], Tensor]
    vocabulary: int
    weights: tuple[Tensor, ...] = ()
    """What the output layer learns."""
    terms: tuple[LossTerm, ...] = ()

    @classmethod
    def of_logits(cls, logits_BTV: Tensor, terms: tuple[LossTerm, ...] = ()) -> "Decoded":
        """Where logits are no function of features alone."""
        return cls(logits_BTV, lambda logits: logits, logits_BTV.shape[-1], (), terms)

    @cached_property
    def logits_BTV(self) -> Tensor:
        return self.output(self.features)


class Memory(NamedTuple):
    """What an encoder made of a source."""

    slots_BSD: Tensor
    allowed_BS: Tensor
    summary_BD: Tensor
    tokens_BS: Tensor | None = None
    """What stands in the slots, where tokens do."""


class Encoder(nn.Module, ABC):
    """Source → memory."""

    @abstractmethod
    def forward(self, source: Padded) -> Memory: ...


class Decoder(nn.Module, ABC):
    """Memory and the tokens so far → the next token. `forward` equals chained `step`s.

    Keys belong to sentences, states to hypotheses: a step may be given several rows for each row of the keys, those of
    one sentence next to each other. A state belongs to the step that is taken next with it, and to no other after.
    """

    @abstractmethod
    def begin(self, memory: Memory) -> tuple[Keys, State]:
        """What is fixed for a source, and the state before the first step."""

    @abstractmethod
    def step(self, token_B: Tensor, state: State, keys: Keys) -> tuple[Tensor, State]:
        """One step from the token before → (logits_BV, state). The logits are the caller's, who may write to them."""

    @abstractmethod
    def forward(self, tokens_BT: Tensor, memory: Memory) -> Decoded:
        """All steps at once, given the tokens."""


def share(keys: Tensor, rows: int) -> Tensor:
    """What belongs to sentences as so many hypotheses of them see it, those of one sentence next to each other."""
    return keys if len(keys) == rows else keys.repeat_interleave(rows // len(keys), dim=0)


def reorder(state: State, rows: Tensor, *, block: int = 1, blocks: Tensor | None = None) -> State:
    """The state with its rows picked and ordered by index; the model behind it is not asked.

    Search knows more: its rows lie in blocks, the hypotheses of a sentence, and none leaves its block. With `block`
    above 1, so many rows each, the rows of new block b come from the old block `blocks[b]`, or where that is None from
    block b itself. A part with a method `reordered(rows, block, blocks)` is moved by that, which may move less.
    """
    blocks = rows if block == 1 and blocks is None else blocks

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.index_select(0, rows)
        return part.reordered(rows, block, blocks) if hasattr(part, "reordered") else part

    return mapped(state, moved, "reordered")


def preallocated(state: State, steps: int) -> State:
    """The state with room for so many steps in all, so that its shapes stay the same until they are taken: a part with
    a method `preallocated(steps)` is made so by that, and others are as they are.
    """
    return mapped(state, lambda part: part.preallocated(steps) if hasattr(part, "roomy") else part, "roomy")


def mapped(state: State, change: Callable[[Any], Any], method: str | None = None) -> State:
    """The state with everything in it changed that is no tuple, list or dict, or that has a method of that name."""
    if method is not None and hasattr(state, method):
        return change(state)
    if isinstance(state, dict):
        return {name: mapped(part, change, method) for name, part in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(mapped(part, change, method) for part in state))
    if isinstance(state, (tuple, list)):
        return type(state)(mapped(part, change, method) for part in state)
    return change(state)
