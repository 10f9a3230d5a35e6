"""What does local-p attention need to learn its positions? Variants of its parametrization, compared on the dev set.

    python benchmarks/local_attention.py --data corpora --parallel 8
    python benchmarks/local_attention.py --report runs/local_attention/results.json
    python benchmarks/local_attention.py --data corpora --only local-m --seeds 1 --set training.steps=20

Trains the LSTM encoder-decoders of `luong2015.py` (general score, input feeding) with three seeds. Local-p attention
predicts the slot p = S sigmoid(v_pᵀ tanh(W_p q)). All variants compute this equation. They differ in the parameter that
v_p is computed from and in its initial value, in the window and its weights, in the slots that are visible in training,
and in the encoder. The table shows BLEU on the dev set. The best variant is the default of the scope `local_p`, which
`luong2015.py` tests. The published runs use `--set training.steps=2000 --set training.warmup=200`.
"""

from typing import Annotated, final

from pydantic import Field
from torch import nn

from classics import Experiment, main
from luong2015 import LUONG, local
from regard.attention.scopes import LocalPredictive, Scope, ScopeInput, ScopeOutput, register_scope

KIND = "local_p_variant"


@final
class LocalPVariant(Scope):
    """Local-p attention with v_p = u / d^exponent. The learned parameter is u."""

    learned = True

    def __init__(
        self,
        window: int = 5,
        *,
        exponent: Annotated[float, Field(description="d^exponent divides the argument of the sigmoid")] = 0.0,
        zero: Annotated[bool, Field(description="start with v_p = 0, so that all windows are in the middle")] = False,
        opened: Annotated[bool, Field(description="in training, slots outside of the window are visible")] = False,
        normalize: Annotated[bool, Field(description="normalize the weights after the Gaussian is applied")] = True,
        query_size: int,
    ) -> None:
        super().__init__()
        self.published = LocalPredictive(window, normalize=normalize, scaled=False, query_size=query_size)
        self.published.scale = query_size**-exponent
        self.opened = opened
        if zero:
            nn.init.zeros_(self.published.outer.weight)

    def forward(self, inputs: ScopeInput) -> ScopeOutput:
        output: ScopeOutput = self.published(inputs)
        return output._replace(allowed_BTS=None) if self.opened and self.training else output


def variant(**options: object) -> dict[str, object]:
    """Return the settings of a variant of local-p attention with the general score."""
    return {**LUONG, "model.attention": {"score": "general", "scope": {"kind": KIND, **options}}}


STACKED = {
    "model.encoder.bidirectional": False,
    "model.encoder.reverse": True,
    "model.encoder.layers": 2,
    "model.encoder.hidden": 384,
    "model.decoder.layers": 2,
}
"""As in the paper: a stacked encoder that reads the source from its end to its start."""

SYSTEMS: dict[str, dict[str, object]] = {
    "global": {**LUONG, "model.attention": "luong-general"},
    "local-m": local("local_m", "general"),
    "local-p": variant(),
    "local-p, window 10": variant(window=10),
    "local-p, zero": variant(zero=True),
    "local-p, stacked": {**variant(), **STACKED},
    "local-p, opened": variant(opened=True),
    "local-p, scaled": variant(exponent=0.5),
    "local-p, scaled, opened": variant(exponent=0.5, opened=True),
    "local-p, scaled, window 10": variant(exponent=0.5, window=10),
    "local-p, scaled twice": variant(exponent=1.0),
    "local-p, not normalized": variant(normalize=False),
    "local-p, scaled, not normalized": variant(exponent=0.5, normalize=False),
    "local-p, scaled, not normalized, window 10": variant(exponent=0.5, normalize=False, window=10),
    "local-p, scaled twice, not normalized": variant(exponent=1.0, normalize=False),
}

EXPERIMENT = Experiment("local_attention", systems=SYSTEMS, contrasts=[], split="dev")

if __name__ == "__main__":
    register_scope(KIND, LocalPVariant)
    main(EXPERIMENT, __file__, __doc__)
