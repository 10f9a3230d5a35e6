"""The output layer of recurrent decoders: from the decoder output and the context to the next token.

B rows, T target steps, S memory slots, D width, H hidden width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.models.contracts import Decoded, LossTerm
from regard.ops.cost import CostPart
from regard.ops.layers import Dropout


class CopyAttention(NamedTuple):
    """The attention weights (B, T, S) and source tokens (B, S) that a pointer-generator copies from."""

    weights_BTS: Tensor
    tokens_BS: Tensor


@contextmanager
def _fixed_summation_order() -> Iterator[None]:
    """Make `scatter_add` deterministic within the block. Otherwise, a GPU adds the weights of equal source tokens in
    varying order, and two runs with the same seed end with different weights.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


@final
class Readout(nn.Module):
    """p(y) = softmax(V tanh(U [inputs; context])).

    The inputs are the decoder output and, in some decoders, the previous token.

    With `copy`, a pointer-generator (See et al. 2017): g p(y) + (1 − g) Σ_{j: x_j = y} a_j with
    g = σ(w · [inputs; context]). Its logits are then log-probabilities.
    """

    def __init__(
        self, inputs: int, context: int, hidden: int, vocabulary: int, dropout: float = 0.0, *, copy: bool = False
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs + context, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        self.dropout = Dropout(dropout)
        self.generate = nn.Linear(inputs + context, 1) if copy else None
        if self.generate is not None:
            nn.init.constant_(self.generate.bias, 3.0)  # g = 0.95: untrained attention is not useful for copying

    def tie_to(self, embedding: nn.Embedding) -> None:
        """Tie the output matrix to an embedding (Press and Wolf 2017), initialized so that logits are small."""
        nn.init.normal_(embedding.weight, std=embedding.embedding_dim**-0.5)
        self.output.weight = embedding.weight

    def cost_parts(self, output: str = "output projection") -> list[CostPart]:
        gate = [] if self.generate is None else [CostPart("copy gate", (self.generate,))]
        return [CostPart("readout, hidden layer", (self,)), *gate, CostPart(output, (self.output,))]

    def features(self, inputs: Tensor, context: Tensor) -> Tensor:
        """Return the hidden layer, tanh(U [inputs; context])."""
        return torch.tanh(self.hidden(torch.cat([inputs, context], dim=-1)))

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dropout(features))
        return logits

    def decode(
        self,
        inputs_BTD: Tensor,
        context_BTD: Tensor,
        copy_attention: CopyAttention | None = None,
        loss_terms: tuple[LossTerm, ...] = (),
    ) -> Decoded:
        """Decode all steps of a target. Logits are computed later, if they depend on the features alone."""
        if self.generate is not None and copy_attention is not None:
            return Decoded.from_logits(self(inputs_BTD, context_BTD, copy_attention), loss_terms)
        parameters = tuple(self.output.parameters())
        return Decoded(
            self.features(inputs_BTD, context_BTD), self.logits, self.output.out_features, parameters, loss_terms
        )

    def forward(self, inputs: Tensor, context: Tensor, copy_attention: CopyAttention | None = None) -> Tensor:
        """Return the logits of the next token. A pointer-generator requires `copy_attention`."""
        logits = self.logits(self.features(inputs, context))
        if self.generate is None or copy_attention is None:
            return logits
        return self._mix(logits, self.generate(torch.cat([inputs, context], dim=-1)), copy_attention)

    def _mix(self, logits_BTV: Tensor, gate_BT1: Tensor, copy_attention: CopyAttention) -> Tensor:
        """Return log(g p + (1 − g) copied), computed in log space for numerical stability."""
        tokens_BTS = copy_attention.tokens_BS.unsqueeze(1).expand_as(copy_attention.weights_BTS)
        with _fixed_summation_order():
            copied_BTV = torch.zeros_like(logits_BTV).scatter_add(-1, tokens_BTS, copy_attention.weights_BTS)
        lowest = torch.finfo(logits_BTV.dtype).tiny
        generated_BTV = nn.functional.logsigmoid(gate_BT1) + logits_BTV.log_softmax(-1)
        return torch.logaddexp(generated_BTV, nn.functional.logsigmoid(-gate_BT1) + copied_BTV.clamp_min(lowest).log())

    def project_slots(self, slots_BSD: Tensor) -> Tensor:
        """Return U h_j for each slot: its contribution to the hidden layer if it were the context."""
        return nn.functional.linear(slots_BSD, self.hidden.weight[:, -slots_BSD.shape[-1] :])

    def log_probs_per_slot(self, inputs_BD: Tensor, slots_BSH: Tensor) -> Tensor:
        """Return log p(y | h_j), the prediction if slot j were the context → (B, S, V)."""
        hidden_BH = nn.functional.linear(inputs_BD, self.hidden.weight[:, : inputs_BD.shape[-1]], self.hidden.bias)
        return self.logits(torch.tanh(hidden_BH.unsqueeze(1) + slots_BSH)).log_softmax(-1)
