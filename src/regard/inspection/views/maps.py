"""Attention maps: which attention weights of a prediction are shown, and how heads, layers and tokens are combined.

Attention rollout (Abnar and Zuidema 2020) is how much each output depends on each source token, through all layers.

A Transformer layer adds the output of its attention to its input, so half of each row is the position itself:

    Ã_l = ½ A_l + ½ I          R_l = Ã_l R_(l-1),  R_0 = I

for the self-attention A_l of layer l, with rows that are normalized to 1. R_L is the rollout of a self-attention.

A decoder layer has a self-attention A_l and a cross-attention B_l, which reads the rollout E of the encoder (E = I if
the encoder has no self-attention). The dependence of the target positions on the source, C_l, and on the decoder input,
D_l, are

    C_l = ½ Ã_l C_(l-1) + ½ B_l E,  C_0 = 0          D_l = ½ Ã_l D_(l-1),  D_0 = I

The rows of C_l and D_l together sum to 1. The rollout of the cross-attention is C_L with its rows normalized to 1. A
recurrent decoder has no residual connections: its rollout is B E for its last cross-attention B.

S memory slots, T target positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regard.arguments import check_flag
from regard.attention.attention import ROLES, Role
from regard.decoding.search import AttentionWeights
from regard.errors import ArgumentTypeError, ConfigError
from regard.evaluation.alignment import merge_words
from regard.formatting import did_you_mean, quantity
from regard.inspection.views.labels import Span

Reduction = Literal["mean", "max"]
Layer = int | Literal["mean", "max", "rollout", "all"]
Head = int | Literal["mean", "max", "all"]

ROLE_NAMES: dict[Role, str] = {
    "encoder-self": "Encoder self-attention",
    "decoder-self": "Decoder self-attention",
    "cross": "Cross-attention",
}
_REDUCTIONS: dict[str, str] = {"mean": "average of", "max": "maximum of"}


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one layer and head, or of several combined. Layers and heads are counted from 1."""

    weights_TS: AttentionWeights
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """The layer and the head."""
        parts = [(name, number) for name, number in (("layer", self.layer), ("head", self.head)) if number is not None]
        return ", ".join(f"{name} {number}" for name, number in parts)


@dataclass(frozen=True)
class MapSelection:
    """Which attention weights are shown.

    Attributes:
        attention: A role (`cross`, `encoder-self` or `decoder-self`), or the name of an attention in the model.
        layer: A layer of this role, counted from 1; `mean` or `max` over the layers; `rollout`, the product of the
            weights of all layers (Abnar and Zuidema 2020); `all`. By default the last layer.
        head: A head, counted from 1; `mean` or `max` over the heads; `all`. By default `mean`.
        words: Whether to combine the tokens of each word: rows are averaged, and columns are summed, so that each row
            still sums to 1.
    """

    attention: str = "cross"
    layer: Layer | None = None
    head: Head | None = None
    words: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.attention, str):
            raise ArgumentTypeError(f"attention must be a role or the name of an attention, not {self.attention!r}.")
        check_flag("words", self.words)
        for name, value, choices in (
            ("layer", self.layer, ("mean", "max", "rollout", "all")),
            ("head", self.head, ("mean", "max", "all")),
        ):
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and value not in choices and not is_number:
                raise ConfigError(f"{name} must be a number from 1, {' or '.join(choices)}, not {value!r}.")

    def find_role(self, roles: Mapping[str, Role]) -> Role:
        """Return the role of the selected attention, given the role of each attention of a model."""
        for role in ROLES:
            if role == self.attention:
                return role
        if self.attention in roles:
            return roles[self.attention]
        names = [*ROLES, *roles]
        raise ConfigError(
            f"The model has no attention '{self.attention}'.{did_you_mean(self.attention, names)} Use one of "
            f"{', '.join(names)}."
        )

    def select_maps(
        self, attentions: Mapping[str, AttentionWeights], roles: Mapping[str, Role]
    ) -> tuple[list[AttentionMap], str]:
        """Return the selected maps, and a title that describes them."""
        role = self.find_role(roles)
        layers = _find_layers(attentions, roles, role)
        if not layers:
            available = sorted({roles[name] for name in attentions})
            raise ConfigError(
                f"The model has no {ROLE_NAMES[role].lower()}. "
                + (f"Select one of {', '.join(available)}." if available else "It has no attention.")
            )
        if self.layer == "rollout":
            return [AttentionMap(self._roll_out(attentions, roles))], self._describe(role, layers, [])
        numbers = self._find_numbers(role, layers, attentions)
        maps = [part for number in numbers for part in self._select_heads(layers[number - 1], number)]
        if self.layer in get_args(Reduction):
            maps = _reduce_layers(maps, self.layer)
        return maps, self._describe(role, layers, numbers)

    def _find_numbers(
        self, role: Role, layers: Sequence[AttentionWeights], attentions: Mapping[str, AttentionWeights]
    ) -> list[int]:
        """Return the numbers of the selected layers."""
        count = len(layers)
        if self.attention in attentions:
            if self.layer is not None:
                raise ConfigError(
                    f"{self.attention} is a single layer, so `layer` cannot be selected. Use a role such as {role}."
                )
            return [next(number for number, part in enumerate(layers, 1) if part is attentions[self.attention])]
        if self.layer is None:
            return [count]
        if not isinstance(self.layer, int):
            return list(range(1, count + 1))
        if self.layer > count:
            raise ConfigError(
                f"There is no layer {self.layer}: the model has {quantity(count, 'layer')} of "
                f"{ROLE_NAMES[role].lower()}. Layers are counted from 1."
            )
        return [self.layer]

    def _select_heads(self, weights: AttentionWeights, layer: int) -> Iterator[AttentionMap]:
        """Yield the selected heads of a layer, or their combination."""
        weights_HTS = _with_heads(weights)
        count = len(weights_HTS)
        if self.head == "all":
            yield from (AttentionMap(part, layer, head) for head, part in enumerate(weights_HTS, 1))
        elif isinstance(self.head, int):
            if self.head > count:
                raise ConfigError(
                    f"There is no head {self.head}: the attention has {quantity(count, 'head')}. Heads are counted "
                    "from 1."
                )
            yield AttentionMap(weights_HTS[self.head - 1], layer, self.head)
        else:
            yield AttentionMap(_reduce(weights_HTS, self.head or "mean"), layer)

    def _roll_out(self, attentions: Mapping[str, AttentionWeights], roles: Mapping[str, Role]) -> AttentionWeights:
        role = self.find_role(roles)
        if self.head == "all" or self.attention in attentions:
            raise ConfigError(
                "Attention rollout combines all layers of a role. Select a role, and one head, or mean or max over the "
                "heads."
            )
        parts = {
            part: [
                next(self._select_heads(weights, number)).weights_TS
                for number, weights in enumerate(_find_layers(attentions, roles, part), 1)
            ]
            for part in ROLES
        }
        if role != "cross":
            return roll_out(parts[role])
        encoder, decoder, cross = parts["encoder-self"], parts["decoder-self"], parts["cross"]
        if not encoder and not decoder:
            raise ConfigError(
                "Attention rollout is defined for Transformers: this model has no self-attention. Select a layer."
            )
        if decoder and len(decoder) != len(cross):
            raise ConfigError(
                "Attention rollout needs a self-attention and a cross-attention in each layer of the decoder: this "
                f"model has {len(decoder)} and {len(cross)}. Select a layer."
            )
        return roll_out_cross(encoder, decoder, cross)

    def _describe(self, role: Role, layers: Sequence[AttentionWeights], numbers: Sequence[int]) -> str:
        """Describe the selected weights, without layers or heads if there is only one."""
        parts = ["Attention rollout" if self.layer == "rollout" else ROLE_NAMES[role]]
        if self.layer == "rollout" and role != "cross":
            parts.append(ROLE_NAMES[role].lower())
        if len(layers) > 1 and self.layer in get_args(Reduction):
            parts.append(f"{_REDUCTIONS[str(self.layer)]} {len(layers)} layers")
        elif len(layers) > 1 and len(numbers) == 1:
            parts.append(f"layer {numbers[0]} of {len(layers)}")
        heads = len(_with_heads(layers[-1]))
        if heads > 1 and isinstance(self.head, int):
            parts.append(f"head {self.head} of {heads}")
        elif heads > 1 and self.head != "all":
            parts.append(f"{_REDUCTIONS[str(self.head or 'mean')]} {heads} heads")
        return ", ".join(parts)


def _find_layers(
    attentions: Mapping[str, AttentionWeights], roles: Mapping[str, Role], role: Role
) -> list[AttentionWeights]:
    return [weights for name, weights in attentions.items() if roles[name] == role]


def _with_heads(weights: AttentionWeights) -> AttentionWeights:
    return weights if weights.ndim == 3 else weights[None]


def _reduce(weights: AttentionWeights, how: str) -> AttentionWeights:
    reduced: AttentionWeights = weights.max(0) if how == "max" else weights.mean(0)
    return reduced


def _reduce_layers(maps: Sequence[AttentionMap], how: object) -> list[AttentionMap]:
    """Combine the maps of each head over the layers."""
    if len({part.weights_TS.shape for part in maps}) > 1:
        raise ConfigError(
            "The layers attend to different numbers of slots, so they cannot be combined. Select a layer."
        )
    by_head: dict[int | None, list[AttentionWeights]] = {}
    for part in maps:
        by_head.setdefault(part.head, []).append(part.weights_TS)
    return [AttentionMap(_reduce(np.stack(parts), str(how)), head=head) for head, parts in by_head.items()]


def combine_words(weights_TS: AttentionWeights, rows: Sequence[Span], columns: Sequence[Span]) -> AttentionWeights:
    """Average the rows of each word, and sum the columns of each word. The spans cover all rows and columns."""
    return merge_words(weights_TS, *map(_index_words, (rows, columns))).astype(np.float32)


def _index_words(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the index of the word of each token."""
    return np.repeat(np.arange(len(spans)), [end - start for start, end in spans])


def roll_out(layers: Sequence[AttentionWeights]) -> AttentionWeights:
    """Return the rollout R_L of a self-attention, given the weights of its layers."""
    rollout = np.eye(layers[0].shape[-1])
    for weights in layers:
        rollout = _add_residual(weights) @ rollout
    return rollout.astype(np.float32)


def roll_out_cross(
    encoder: Sequence[AttentionWeights], decoder: Sequence[AttentionWeights], cross: Sequence[AttentionWeights]
) -> AttentionWeights:
    """Return the rollout of the cross-attention, given the weights of the layers of each attention.

    `encoder` and `decoder` may be empty: a recurrent encoder or decoder has no self-attention.
    """
    targets, slots = cross[-1].shape
    encoder_SS = roll_out(encoder) if encoder else np.eye(slots)
    if not decoder:
        return _normalize(cross[-1] @ encoder_SS).astype(np.float32)
    source_TS = np.zeros((targets, slots))
    for self_TT, cross_TS in zip(decoder, cross, strict=True):
        source_TS = 0.5 * _add_residual(self_TT) @ source_TS + 0.5 * _normalize(cross_TS) @ encoder_SS
    return _normalize(source_TS).astype(np.float32)


def _add_residual(weights: AttentionWeights) -> NDArray[np.float64]:
    return 0.5 * _normalize(weights) + 0.5 * np.eye(len(weights))


def _normalize(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Divide each row by its sum. The maximum over several heads, for example, does not sum to 1."""
    sums = weights.sum(-1, keepdims=True, dtype=np.float64)
    normalized: NDArray[np.float64] = np.divide(weights, sums, out=np.zeros(weights.shape), where=sums > 0)
    return normalized
