"""What can be chosen for an attribution."""

from typing import Final, Literal, get_args

Method = Literal["gradient_x_input", "integrated_gradients", "occlusion", "value_zeroing", "attention"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

Baseline = Literal["zero", "unknown", "padding"]
BASELINES: Final[tuple[Baseline, ...]] = get_args(Baseline)
