"""The settings of the training objective: consistency losses, knowledge distillation and guided alignment."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field

from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, Settings
from regard.models.settings import ModelSettings
from regard.quantities import FractionBelowOne, Heads, Layers, OptionalCount, PositiveFraction, PositiveWeight, Weight


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path | dict) else value


class LossWeights(NamedTuple):
    """The weights of the terms of the loss of two forward passes with the distributions p and q."""

    first: float
    """The weight of the cross-entropy of p."""
    second: float
    """The weight of the cross-entropy of q."""
    forward_kl: float
    """The weight of KL(p ‖ q)."""
    backward_kl: float
    """The weight of KL(q ‖ p)."""


class NoConsistency(Settings):
    """No consistency loss: one forward pass per step."""

    kind: Literal["none"] = "none"


class _TwoPasses(Settings):
    """Two forward passes per step."""

    start_step: OptionalCount = Field(0, description="number of steps without the consistency loss at the start")


class RDrop(_TwoPasses):
    """R-Drop (Liang et al. 2021): two passes with different dropout masks. The loss is their average loss plus
    (α/4)(KL(p‖q) + KL(q‖p)).
    """

    kind: Literal["r-drop"] = "r-drop"
    alpha: Weight = Field(5.0, description="α, the weight of the consistency loss")

    @property
    def loss_weights(self) -> LossWeights:
        return LossWeights(0.5, 0.5, self.alpha / 4, self.alpha / 4)


class SimCut(_TwoPasses):
    """SimCut (Gao et al. 2022): the second pass has a share of the input tokens cut out. α KL(p‖q) is added to the
    loss of the first pass.
    """

    kind: Literal["simcut"] = "simcut"
    alpha: Weight = Field(3.0, description="α, the weight of the consistency loss")
    cut: FractionBelowOne = Field(0.05, description="share of the tokens that are cut out")

    @property
    def loss_weights(self) -> LossWeights:
        return LossWeights(1.0, 0.0, self.alpha, 0.0)


Consistency = NoConsistency | RDrop | SimCut
ConsistencyChoice = Annotated[Consistency, Field(discriminator="kind"), BY_NAME]


def path_to_str(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


class Teachers(Settings):
    """Knowledge distillation (Hinton et al. 2015): the loss is (1 − λ) times the cross-entropy plus λ Σ_t
    KL(p_t ‖ q_t), where p is the average of the teachers' distributions and q the student's.
    """

    runs: Annotated[tuple[Annotated[str, BeforeValidator(path_to_str)], ...], BeforeValidator(as_list)] = Field(
        min_length=1, description="the run folders of the teachers; they must have the student's tokenizers"
    )
    weight: PositiveFraction = Field(0.5, description="λ, the weight of the teachers relative to the data")

    def absolute(self) -> Self:
        return self.model_copy(update={"runs": tuple(map(os.path.abspath, self.runs))})

    @property
    def loss_weights(self) -> LossWeights:
        return LossWeights(0.0, 1 - self.weight, self.weight, 0.0)


def _expand_teachers(value: Any) -> Any:
    return {"runs": value} if isinstance(value, str | Path | list | tuple) else value


TeachersChoice = Annotated[Teachers, BeforeValidator(_expand_teachers)]


class GuidedAlignment(Settings):
    """Guided alignment (Chen et al. 2016, Garg et al. 2019): −λ Σ_t Σ_j g_tj log a_tj is added to the loss, where a are
    the weights of one attention head, and g_t is uniform over the source tokens that are aligned with target token t.
    """

    file: Annotated[str, BeforeValidator(path_to_str)] = Field(
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="word alignments in Pharaoh format, with a line for each pair of the training files",
    )
    weight: PositiveWeight = Field(0.05, description="λ, the weight of the alignments relative to the data")
    layer: Layers | None = Field(
        None, description="decoder layer of the supervised attention, from 1; by default the second to last"
    )
    head: Heads = Field(1, description="supervised head, from 1")
    shift: bool = Field(
        False, description="supervise the step that reads a token, not the one that predicts it (Chen et al. 2020)"
    )
    one_based: bool = Field(False, description="words in the file are counted from 1")

    def absolute(self) -> Self:
        return self.model_copy(update={"file": os.path.abspath(self.file)})

    def find_layer(self, model: ModelSettings) -> int | None:
        """Return the supervised layer of a model; None if the number of its layers is not known."""
        layers = model.attention_layers
        return self.layer if layers is None else self.layer or max(1, layers - 1)


def _expand_guided_alignment(value: Any) -> Any:
    return {"file": value} if isinstance(value, str | Path) else value


GuidedAlignmentChoice = Annotated[GuidedAlignment, BeforeValidator(_expand_guided_alignment)]
