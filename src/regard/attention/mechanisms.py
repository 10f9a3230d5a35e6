"""The mechanisms of the literature by name: combinations of score, scope, selection and heads."""

from dataclasses import dataclass, field
from typing import Any

from regard.registry import load_installed_plugins

BAHDANAU = "Bahdanau, Cho & Bengio 2015, arXiv:1409.0473"
LUONG = "Luong, Pham & Manning 2015, arXiv:1508.04025"
VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"
XU = "Xu et al. 2015, arXiv:1502.03044"


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of the literature: its name, parts, equation and citation."""

    name: str
    equation: str
    citation: str
    score: str
    scope: str = "global"
    select: str = "softmax"
    heads: int = 1
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    use: str = ""
    """When to use it."""

    @property
    def parts(self) -> dict[str, Any]:
        """The settings of an attention with this mechanism."""
        kinds = {"score": self.score, "scope": self.scope, "select": self.select}
        return {
            **{part: {"kind": kind, **self.options.get(part, {})} for part, kind in kinds.items()},
            "heads": self.heads,
        }


_ALL = (
    Mechanism(
        "bahdanau",
        "e = vᵀ tanh(W q + U k)",
        BAHDANAU,
        "additive",
        use="The default. It also works if queries and keys have different sizes.",
    ),
    Mechanism(
        "luong-dot",
        "e = qᵀ k",
        LUONG,
        "dot",
        use="A score without parameters, for a decoder as wide as the memory.",
    ),
    Mechanism(
        "luong-general",
        "e = qᵀ W k",
        LUONG,
        "general",
        use="A dot product for a decoder and a memory of different sizes.",
    ),
    Mechanism(
        "luong-concat",
        "e = vᵀ tanh(W [k; q])",
        LUONG,
        "concat",
        use="To reproduce Luong et al.; it computes the same as bahdanau, with one matrix.",
    ),
    Mechanism(
        "luong-location",
        "e_j = (W q)_j",
        LUONG,
        "location",
        use="Sources in which the position alone determines what to read. It needs a maximum length.",
    ),
    Mechanism(
        "luong-local-m",
        "e = qᵀ W k, slots t − D … t + D",
        LUONG,
        "general",
        scope="local_m",
        use="Long sources that are read from left to right, at about one position for each output token.",
    ),
    Mechanism(
        "luong-local-p",
        "e = qᵀ W k, a = softmax(e) exp(−(j − p)² / 2σ²), slots p − D … p + D, p = S sigmoid(vᵀ tanh(W q))",
        LUONG,
        "general",
        scope="local_p",
        use="Long sources of which each output token needs only a short span, at any place.",
    ),
    Mechanism(
        "graves-content",
        "e = β cos(q, k)",
        "Graves, Wayne & Danihelka 2014, arXiv:1410.5401",
        "cosine",
        use="Compares directions only: use it if the norms of keys must not matter.",
    ),
    Mechanism(
        "chorowski",
        "e = vᵀ tanh(W q + U k + V (F ∗ a₋))",
        "Chorowski et al. 2015, arXiv:1506.07503",
        "location_aware",
        use="Sources that are read in order, such as speech: its scores depend on the previous weights.",
    ),
    Mechanism(
        "show-attend-tell-soft",
        "e = vᵀ tanh(W q + U k)",
        XU,
        "additive",
        use="Captions of images: each word attends to the cells of a grid.",
    ),
    Mechanism(
        "show-attend-tell-hard",
        "e = vᵀ tanh(W q + U k), j ~ softmax(e)",
        XU,
        "additive",
        select="hard",
        use="One slot at each step, to compare with soft attention. It samples, so it needs more training steps.",
    ),
    Mechanism(
        "scaled-dot",
        "e = qᵀ k / √d",
        VASWANI,
        "scaled_dot",
        use="A dot product whose softmax does not saturate for wide vectors. The fused kernels compute it.",
    ),
    Mechanism(
        "transformer",
        "e = (W_Q q)ᵀ (W_K k) / √d, values W_V v, 8 heads",
        VASWANI,
        "projected",
        heads=8,
        use="Several heads that attend to different positions at each step.",
    ),
    Mechanism(
        "simple-rnn-projected",
        "e = (W_Q q)ᵀ (W_K k), values W_V v",
        "after Vaswani et al. 2017, unscaled, one head",
        "projected",
        options={"score": {"scaled": False}},
        use="To measure the effect of the scale 1/√d: as `transformer`, but unscaled and with one head.",
    ),
    Mechanism(
        "sparsemax",
        "e = vᵀ tanh(W q + U k), a = argmin ‖a − e‖² on the simplex",
        "Martins & Astudillo 2016, arXiv:1602.02068",
        "additive",
        select="sparsemax",
        use="Weights that are exactly zero for most slots, so that a map is easy to read.",
    ),
    Mechanism(
        "entmax15",
        "e = vᵀ tanh(W q + U k), a = 1.5-entmax(e)",
        "Peters, Niculae & Martins 2019, arXiv:1905.05702",
        "additive",
        select="entmax15",
        use="Between softmax and sparsemax: exact zeros, but fewer than with sparsemax.",
    ),
    Mechanism(
        "straight-through",
        "e = vᵀ tanh(W q + U k), one-hot(argmax(e + Gumbel)), gradient of the soft sample",
        "Jang, Gu & Poole 2017, arXiv:1611.01144",
        "additive",
        select="straight_through",
        use="One slot at each step, trained as fast as soft attention. Its gradient is biased.",
    ),
    Mechanism(
        "exact-hard",
        "e = qᵀ W k, p(y) = Σ_j a_j p(y | v_j)",
        "Wu, Shapiro & Cotterell 2018, arXiv:1808.10024",
        "general",
        select="hard_exact",
        use="One slot at each step with an exact gradient, for short sources and small target vocabularies.",
    ),
    Mechanism(
        "hard-monotonic",
        "e = vᵀ tanh(W q + U k), p(y) = Σ over monotonic alignments",
        "Wu & Cotterell 2019, arXiv:1905.06319",
        "additive",
        select="hard_monotonic",
        use="Pronunciation and inflection with little data: the output follows the order of the source.",
    ),
)

MECHANISMS = {mechanism.name: mechanism for mechanism in _ALL}
"""The mechanisms of the literature. A registered score, scope or selection is a mechanism too: see `mechanisms`."""


def mechanisms() -> list[Mechanism]:
    """Return all named mechanisms: those of the literature, and one for each registered score, scope or selection."""
    load_installed_plugins()
    return [*MECHANISMS.values(), *_REGISTERED.values()]


def find_mechanism(name: str) -> Mechanism | None:
    """Return a mechanism by name, or None."""
    return MECHANISMS.get(name) or {mechanism.name: mechanism for mechanism in mechanisms()}.get(name)


_REGISTERED: dict[str, Mechanism] = {}


def add_mechanism(mechanism: Mechanism) -> None:
    """Make a registered part available as a mechanism, unless a mechanism of the literature has the same name."""
    if mechanism.name not in MECHANISMS:
        _REGISTERED[mechanism.name] = mechanism
