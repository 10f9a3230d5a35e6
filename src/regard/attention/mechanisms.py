"""The mechanisms of the literature by name: points in the space score × scope × selection."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mechanism:
    """A name of the literature, its parts, its equation and where it comes from."""

    name: str
    equation: str
    citation: str
    score: str
    scope: str = "global"
    select: str = "softmax"
    options: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, dict[str, object]]:
        """The settings of an attention that is this mechanism."""
        kinds = {"score": self.score, "scope": self.scope, "select": self.select}
        return {part: {"kind": kind, **self.options.get(part, {})} for part, kind in kinds.items()}


_ALL = (
    Mechanism("bahdanau", "vᵀ tanh(W q + U k)", "Bahdanau, Cho & Bengio 2015, arXiv:1409.0473", "additive"),
    Mechanism("luong-dot", "qᵀ k", "Luong, Pham & Manning 2015, arXiv:1508.04025", "dot"),
    Mechanism("luong-general", "qᵀ W k", "Luong, Pham & Manning 2015, arXiv:1508.04025", "general"),
    Mechanism(
        "luong-local-m",
        "qᵀ W k, slots t − D … t + D",
        "Luong, Pham & Manning 2015, arXiv:1508.04025",
        "general",
        scope="local_m",
    ),
    Mechanism("scaled-dot", "qᵀ k / √d", "Vaswani et al. 2017, arXiv:1706.03762", "scaled_dot"),
)

MECHANISMS = {mechanism.name: mechanism for mechanism in _ALL}


def mechanisms() -> list[Mechanism]:
    """Every mechanism that can be asked for by name."""
    return list(MECHANISMS.values())
