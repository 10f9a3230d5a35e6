"""The output layer: from what a decoder knows and has read to the next token.

B rows, T target steps, S memory slots, D width, H hidden width, V vocabulary.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.models.contracts import Decoded, LossTerm
from regard.ops.dropout import Dropout


class Pointed(NamedTuple):
    """Where the decoder looked, (B, T, S), and which tokens stand there, (B, S)."""

    weights_BTS: Tensor
    tokens_BS: Tensor


@final
class Readout(nn.Module):
    """p(y) = softmax(V tanh(U [known; context])).

    With `copy`, a pointer-generator (See et al. 2017): g p(y) + (1 − g) Σ_{j: x_j = y} a_j with
    g = σ(w · [known; context]); its logits are then log-probabilities.
    """

    def __init__(
        self, known: int, context: int, hidden: int, vocabulary: int, dropout: float = 0.0, *, copy: bool = False
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(known + context, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        self.dropout = Dropout(dropout)
        self.generate = nn.Linear(known + context, 1) if copy else None
        if self.generate is not None:
            nn.init.constant_(self.generate.bias, 3.0)  # g = 0.95: what is copied at first is of no use

    def share(self, embedding: nn.Embedding) -> None:
        """Give the output layer the matrix of an embedding (Press and Wolf 2017), drawn so that logits are small."""
        nn.init.normal_(embedding.weight, std=embedding.embedding_dim**-0.5)
        self.output.weight = embedding.weight

    def features(self, known: Tensor, context: Tensor) -> Tensor:
        """The hidden layer, tanh(U [known; context])."""
        return torch.tanh(self.hidden(torch.cat([known, context], dim=-1)))

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dropout(features))
        return logits

    def decoded(
        self,
        known_BTD: Tensor,
        context_BTD: Tensor,
        pointed: Pointed | None = None,
        terms: tuple[LossTerm, ...] = (),
    ) -> Decoded:
        """All steps of a target; the logits are left to be worked out where they can be."""
        if self.generate is not None and pointed is not None:
            return Decoded.of_logits(self(known_BTD, context_BTD, pointed), terms)
        weights = tuple(self.output.parameters())
        return Decoded(self.features(known_BTD, context_BTD), self.logits, self.output.out_features, weights, terms)

    def forward(self, known: Tensor, context: Tensor, pointed: Pointed | None = None) -> Tensor:
        """What comes next; `pointed` is needed where tokens may be copied."""
        logits = self.logits(self.features(known, context))
        if self.generate is None or pointed is None:
            return logits
        return self._mix(logits, self.generate(torch.cat([known, context], dim=-1)), pointed)

    def _mix(self, logits_BTV: Tensor, gate_BT1: Tensor, pointed: Pointed) -> Tensor:
        """log(g p + (1 − g) copied), worked out so that neither share can vanish in rounding."""
        copied_BTV = torch.zeros_like(logits_BTV).scatter_add(
            -1, pointed.tokens_BS.unsqueeze(1).expand_as(pointed.weights_BTS), pointed.weights_BTS
        )
        lowest = torch.finfo(logits_BTV.dtype).tiny
        generated_BTV = nn.functional.logsigmoid(gate_BT1) + logits_BTV.log_softmax(-1)
        return torch.logaddexp(generated_BTV, nn.functional.logsigmoid(-gate_BT1) + copied_BTV.clamp_min(lowest).log())

    def slots(self, slots_BSD: Tensor) -> Tensor:
        """Each slot's share of the hidden layer, as if it were the context."""
        return nn.functional.linear(slots_BSD, self.hidden.weight[:, -slots_BSD.shape[-1] :])

    def of_each_slot(self, known_BD: Tensor, shares_BSH: Tensor) -> Tensor:
        """Log p(y | h_j): what would be said if slot j were read → (B, S, V)."""
        known_BH = nn.functional.linear(known_BD, self.hidden.weight[:, : known_BD.shape[-1]], self.hidden.bias)
        return self.logits(torch.tanh(known_BH.unsqueeze(1) + shares_BSH)).log_softmax(-1)
