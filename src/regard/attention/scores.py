"""Scores: how well a query matches a key. `prepare` computes what depends only on the keys, once per source;
`forward` compares queries with prepared keys.

B rows, T queries, S memory slots, D width, H heads, A hidden width of the score.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention import settings
from regard.attention.mechanisms import MECHANISMS, Mechanism, add_mechanism
from regard.config import TRAINING_ONLY
from regard.errors import ConfigError, DataError
from regard.ops.attention import additive_scores
from regard.quantities import Length, PositiveWeight, Width

HiddenWidth = Annotated[Width | None, Field(description="width of the hidden layer; default: that of the query")]


class HeadLinear(nn.Module):
    """One weight matrix per head: (…, H, N, D) → (…, H, N, A)."""

    def __init__(self, heads: int, size: int, width: int) -> None:
        super().__init__()
        bound = size**-0.5
        self.weight = nn.Parameter(torch.empty(heads, width, size).uniform_(-bound, bound))

    def forward(self, x_BHND: Tensor) -> Tensor:
        if self.weight.shape[0] == 1:  # one large product instead of many small ones
            return nn.functional.linear(x_BHND, self.weight[0])
        return x_BHND @ self.weight.transpose(-1, -2)


class Score(nn.Module, ABC):
    """e(q, k) for every query and slot. Queries and keys are split into `heads` parts of equal size."""

    equation: str = ""
    """The score as text, for `regard explain`."""
    chunkable: bool = False
    """Whether the score is computed in chunks of bounded memory, with `ops/attention.py`."""
    equal_sizes: bool = False
    """Whether queries and keys must have the same size."""
    uses_past: bool = False
    """Whether the score depends on the weights of previous steps, so that steps must run one by one."""
    sums_past: bool = False
    """Whether it uses the sum of all previous weights instead of the weights of the last step."""
    reads_keys: bool = True
    """Whether the score depends on the keys."""
    learns_positions: bool = False
    """Whether the score has parameters for the positions of slots."""

    def __init__(self, query_size: int, key_size: int, heads: int) -> None:
        super().__init__()
        for name, size in (("query", query_size), ("key", key_size)):
            if size % heads:
                raise ConfigError(f"The {name} size {size} is not divisible by {heads} heads. Change one of them.")
        if self.equal_sizes and query_size != key_size:
            raise ConfigError(
                f"The score {type(self).__name__} needs queries and keys of equal size, but their sizes are "
                f"{query_size} and {key_size}. Make the sizes equal, or use the score `general`."
            )
        self.heads = heads

    def split(self, x_BND: Tensor) -> Tensor:
        """(B, N, D) → (B, H, N, D / H)."""
        rows, steps, width = x_BND.shape
        return x_BND.view(rows, steps, self.heads, width // self.heads).transpose(1, 2)

    def values(self, values_BSD: Tensor) -> Tensor:
        """Split the values into heads; a score may project them first. Zeros must stay zeros: masked slots are zero."""
        return self.split(values_BSD)

    @abstractmethod
    def prepare(self, keys_BSD: Tensor) -> Tensor:
        """Compute the part of the score that depends only on the keys."""

    @abstractmethod
    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        """Return the scores (B, H, T, S) against prepared keys; `past_BHS` are the weights of previous steps."""


class InnerProduct(Score, ABC):
    """A score equivalent to a dot product, e = f query(q) · prepare(k), which fused attention kernels can compute."""

    factor: float = 1.0

    @abstractmethod
    def query(self, query_BTD: Tensor) -> Tensor:
        """Return the transformed query (B, H, T, D)."""

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        query_BHTD = self.query(query_BTD)
        return (query_BHTD if self.factor == 1 else query_BHTD * self.factor) @ prepared.transpose(-1, -2)


@final
class Dot(InnerProduct):
    """e = qᵀ k, or qᵀ k / √d if `scaled` (Luong et al. 2015; Vaswani et al. 2017)."""

    equation = "e = qᵀ k"
    equal_sizes = True

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, scaled: bool = False) -> None:
        super().__init__(query_size, key_size, heads)
        if scaled:
            self.equation = "e = qᵀ k / √d"
            self.factor = (query_size // heads) ** -0.5

    def query(self, query_BTD: Tensor) -> Tensor:
        return self.split(query_BTD)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)


def _build_dot(query_size: int, key_size: int, heads: int) -> Dot:
    return Dot(query_size, key_size, heads)


def _build_scaled_dot(query_size: int, key_size: int, heads: int) -> Dot:
    return Dot(query_size, key_size, heads, scaled=True)


@final
class General(InnerProduct):
    """e = qᵀ W k (Luong et al. 2015)."""

    equation = "e = qᵀ W k"

    def __init__(self, query_size: int, key_size: int, heads: int = 1) -> None:
        super().__init__(query_size, key_size, heads)
        self.key = HeadLinear(heads, key_size // heads, query_size // heads)

    def query(self, query_BTD: Tensor) -> Tensor:
        return self.split(query_BTD)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        prepared: Tensor = self.key(self.split(keys_BSD))
        return prepared


@final
class Cosine(InnerProduct):
    """e = β cos(q, k), β > 0 learned for each head (Graves et al. 2014, content-based addressing)."""

    equation = "e = β cos(q, k), β > 0 learned for each head"
    equal_sizes = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        heads: int = 1,
        *,
        sharpening: Annotated[
            PositiveWeight, Field(json_schema_extra=TRAINING_ONLY, description="initial value of β, which is learned")
        ] = 10.0,
    ) -> None:
        super().__init__(query_size, key_size, heads)
        self.log_sharpening = nn.Parameter(torch.full((heads, 1, 1), sharpening).log())

    def query(self, query_BTD: Tensor) -> Tensor:
        return nn.functional.normalize(self.split(query_BTD), dim=-1) * self.log_sharpening.exp()

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return nn.functional.normalize(self.split(keys_BSD), dim=-1)


@final
class Projected(InnerProduct):
    """e = (W_Q q)ᵀ (W_K k), divided by √d if `scaled`; values W_V v (Vaswani et al. 2017)."""

    equation = "e = (W_Q q)ᵀ (W_K k), divided by √d if scaled"

    def __init__(
        self,
        query_size: int,
        key_size: int,
        heads: int = 1,
        *,
        scaled: Annotated[bool, Field(description="divide by √d, where d is the width of a head")] = True,
        size: Annotated[
            Width | None, Field(description="width of the projected queries and keys; default: that of the query")
        ] = None,
    ) -> None:
        width = size or query_size
        super().__init__(width, key_size, heads)
        self.factor = (width // heads) ** -0.5 if scaled else 1.0
        self.to_query = nn.Linear(query_size, width, bias=False)
        self.to_key = nn.Linear(key_size, width, bias=False)
        self.to_value = nn.Linear(key_size, key_size, bias=False)

    def query(self, query_BTD: Tensor) -> Tensor:
        return self.split(self.to_query(query_BTD))

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(self.to_key(keys_BSD))

    def values(self, values_BSD: Tensor) -> Tensor:
        if values_BSD.shape[-1] != self.to_value.in_features:
            raise ConfigError(
                f"values has the size {values_BSD.shape[-1]}, but the score projects values of the size of the keys, "
                f"{self.to_value.in_features}. Use values of that size."
            )
        return self.split(self.to_value(values_BSD))


@final
class Additive(Score):
    """e = vᵀ tanh(W q + U k) (Bahdanau et al. 2015; their W_a, U_a, v_a). Luong's `concat`, vᵀ tanh(W [k; q]), is
    the same with W and U concatenated to one matrix.
    """

    equation = "e = vᵀ tanh(W q + U k)"
    chunkable = True

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, hidden: HiddenWidth = None) -> None:
        super().__init__(query_size, key_size, heads)
        width = hidden or query_size // heads
        self.query = HeadLinear(heads, query_size // heads, width)
        self.key = HeadLinear(heads, key_size // heads, width)
        self.v = nn.Parameter(torch.empty(heads, width).uniform_(-(width**-0.5), width**-0.5))

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        prepared: Tensor = self.key(self.split(keys_BSD))
        return prepared

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        return additive_scores(self.query(self.split(query_BTD)), prepared, self.v)


@final
class Concat(Score):
    """e = vᵀ tanh(W [k; q]) (Luong et al. 2015): an additive score with one matrix."""

    equation = "e = vᵀ tanh(W [k; q])"
    chunkable = True

    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, hidden: HiddenWidth = None) -> None:
        super().__init__(query_size, key_size, heads)
        width = hidden or query_size // heads
        self.key_size = key_size // heads
        self.both = HeadLinear(heads, (key_size + query_size) // heads, width)
        self.v = nn.Parameter(torch.empty(heads, width).uniform_(-(width**-0.5), width**-0.5))

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD) @ self.both.weight[..., : self.key_size].transpose(-1, -2)

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        query_BHTA = self.split(query_BTD) @ self.both.weight[..., self.key_size :].transpose(-1, -2)
        return additive_scores(query_BHTA, prepared, self.v)


@final
class Location(Score):
    """e_j = (W q)_j: depends only on the query and the slot (Luong et al. 2015)."""

    equation = "e_j = (W q)_j"
    reads_keys = False
    learns_positions = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        heads: int = 1,
        *,
        slots: Annotated[Length, Field(description="maximum length of the memory")] = 256,
    ) -> None:
        super().__init__(query_size, key_size, heads)
        self.slots = slots
        self.positions = HeadLinear(heads, query_size // heads, slots)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        if keys_BSD.shape[1] > self.slots:
            raise DataError(
                f"The score `location` supports {self.slots} slots, but this memory has {keys_BSD.shape[1]}. Train "
                "with a larger `slots`, or truncate the source (tokenizer.max_length)."
            )
        return keys_BSD

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        scores: Tensor = self.positions(self.split(query_BTD))[..., : prepared.shape[1]]
        return scores


@final
class LocationAware(Score):
    """e = vᵀ tanh(W q + U k + V f), f = F ∗ a₋: a convolution over the weights of the previous step (Chorowski et
    al. 2015). With `features="sum"`, the convolution is over the sum of all previous weights (coverage).
    """

    equation = "e = vᵀ tanh(W q + U k + V f), f = F ∗ a₋"
    chunkable = True
    uses_past = True
    learns_positions = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        heads: int = 1,
        *,
        hidden: HiddenWidth = None,
        filters: Annotated[Width, Field(description="number of filters of the convolution")] = 10,
        reach: Annotated[Length, Field(description="a filter covers this many slots on either side")] = 3,
        features: Annotated[
            Literal["last", "sum"],
            Field(description="convolve the weights of the last step, or the sum of all steps (coverage)"),
        ] = "last",
    ) -> None:
        super().__init__(query_size, key_size, heads)
        width = hidden or query_size // heads
        self.sums_past = features == "sum"
        self.query = HeadLinear(heads, query_size // heads, width)
        self.key = HeadLinear(heads, key_size // heads, width)
        self.convolution = nn.Conv1d(1, filters, 2 * reach + 1, padding=reach, bias=False)
        self.place = HeadLinear(heads, filters, width)
        self.v = nn.Parameter(torch.empty(heads, width).uniform_(-(width**-0.5), width**-0.5))

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        prepared: Tensor = self.key(self.split(keys_BSD))
        return prepared

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        assert past_BHS is not None
        filtered = self.convolution(past_BHS.flatten(0, 1).unsqueeze(1)).unflatten(0, past_BHS.shape[:2])
        location_BHSA = self.place(filtered.transpose(-1, -2))
        return additive_scores(self.query(self.split(query_BTD)), prepared + location_BHSA, self.v)


def register_score(name: str, score: Callable[..., Score]) -> None:
    """Register a score: a subclass of `Score`, or a function that builds one.

    It is called with the arguments `query_size`, `key_size` and `heads` that it has parameters for. Its other
    parameters are options. `score=name` and `score={"kind": name, option: value}` then work wherever built-in names do.

    >>> regard.register_score("bilinear", Bilinear)
    >>> regard.Attention(16, 16, score={"kind": "bilinear", "rank": 4})
    """
    if isinstance(score, type) and issubclass(score, Score) and not score.equation:
        raise ConfigError(
            f"The score '{name}' has no equation. Declare it as a class attribute of {score.__name__}, for example "
            'equation = "e = qᵀ W k".'
        )
    registry = settings.Score.registry
    registry.register(settings.Score, name, score)
    if name not in {mechanism.score for mechanism in MECHANISMS.values()}:
        equation = registry.settings[name].equation  # type: ignore[attr-defined] # of a Score
        add_mechanism(Mechanism(name, equation, f"registered by {registry.plugins.get(name, __name__)}", name))


register_score("dot", _build_dot)
register_score("scaled_dot", _build_scaled_dot)
register_score("general", General)
register_score("additive", Additive)
register_score("concat", Concat)
register_score("cosine", Cosine)
register_score("location", Location)
register_score("projected", Projected)
register_score("location_aware", LocationAware)
