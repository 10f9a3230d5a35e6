"""What may be set in training, and the settings of a whole run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, Settings
from regard.data.settings import CharTokenizer, Data, FilesData, PairTokenizer, TokenizerChoice, sides
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.errors import ConfigError
from regard.evaluation.settings import Accuracy, Chrf, Loss, Metric, MetricChoice
from regard.models.settings import Model, RecurrentModel


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str | Path | dict) else value


class Shares(NamedTuple):
    """How much each part of the loss of two passes counts, the first of which gives p, the second q."""

    first: float
    """The first pass's cross-entropy."""
    second: float
    there: float
    """KL(p ‖ q)."""
    back: float
    """KL(q ‖ p)."""


class NoConsistency(Settings):
    """Each pair is seen once a step."""

    kind: Literal["none"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_written(cls, given: Any) -> Any:
        """Runs were once saved with a weight of 0."""
        if isinstance(given, dict) and given.get("weight") == 0:
            given = {key: value for key, value in given.items() if key != "weight"}
        return given


class _TwoPasses(Settings):
    """Each pair is seen twice a step."""

    start_step: NonNegativeInt = Field(0, description="so many steps are taken before it begins")


class RDrop(_TwoPasses):
    """Two passes under different dropout shall agree: (α/4)(KL(p‖q) + KL(q‖p)) is added to the mean of their losses
    (Liang et al. 2021).
    """

    kind: Literal["r-drop"] = "r-drop"
    alpha: NonNegativeFloat = 5.0

    @property
    def shares(self) -> Shares:
        return Shares(0.5, 0.5, self.alpha / 4, self.alpha / 4)


class SimCut(_TwoPasses):
    """A pass over the pair with a share of its tokens cut out shall agree with one over the whole: α KL(p‖q) is added
    (Gao et al. 2022).
    """

    kind: Literal["simcut"] = "simcut"
    alpha: NonNegativeFloat = 3.0
    cut: float = Field(0.05, ge=0, lt=1, description="share of the tokens that are cut out")

    @property
    def shares(self) -> Shares:
        return Shares(1.0, 0.0, self.alpha, 0.0)


Consistency = NoConsistency | RDrop | SimCut
ConsistencyChoice = Annotated[Consistency, Field(discriminator="kind"), BY_NAME]


def _in_letters(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


class Teachers(Settings):
    """Other runs teach: (1 − λ) of the cross-entropy counts, and λ Σ_t KL(p_t ‖ q_t), where p is the mean of what the
    teachers say of the pair and q what the student does (Hinton et al. 2015).
    """

    runs: Annotated[tuple[Annotated[str, BeforeValidator(_in_letters)], ...], BeforeValidator(_one_or_more)] = Field(
        min_length=1, description="their folders; they have the student's tokenizer"
    )
    weight: float = Field(0.5, gt=0, le=1, description="λ, how much the teachers count beside the data")

    def absolute(self) -> Self:
        return self.model_copy(update={"runs": tuple(map(os.path.abspath, self.runs))})

    @property
    def shares(self) -> Shares:
        return Shares(0.0, 1 - self.weight, self.weight, 0.0)


def _teachers_by_their_runs(value: Any) -> Any:
    return {"runs": value} if isinstance(value, str | Path | list | tuple) else value


class TrainingSettings(Settings):
    """The loop: how long, how fast, how often to look."""

    steps: PositiveInt = Field(1_000, description="length of the schedule; minutes and max_epochs rescale it")
    minutes: PositiveFloat | None = Field(
        None, description="deadline: the number of steps follows the speed measured while training"
    )
    max_epochs: PositiveFloat | None = Field(None, description="the most passes over the training pairs")
    batch_size: PositiveInt = Field(64, description="pairs in a batch")
    batch_tokens: PositiveInt | None = Field(
        None, description="in place of batch_size: tokens in a batch, on the longer side and with padding"
    )
    max_pair_length: PositiveInt | None = Field(
        None, description="pairs with more tokens on a side are left out of training; needs batch_tokens"
    )
    accumulate: PositiveInt = Field(1, description="batches that make one step")
    learning_rate: float = Field(1e-3, gt=0, le=1e30, description="at its peak")
    warmup: NonNegativeInt = Field(100, description="steps in which the learning rate rises to its peak")
    decay: Literal["cosine", "linear", "none", "inverse_sqrt", "plateau"] = Field(
        "cosine",
        description="cosine and linear fall to zero at the last step, inverse_sqrt goes with √(warmup / step), plateau "
        "falls when validation gets no better",
    )
    plateau_patience: PositiveInt = Field(3, description="validations without a better one before a plateau's fall")
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="what the learning rate is multiplied by then")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="Adam's memory of squared gradients")
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = Field(1.0, description="the largest norm of the gradient")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of the tokens given that become unknown")
    consistency: ConsistencyChoice = NoConsistency()
    teachers: Annotated[Teachers | None, BeforeValidator(_teachers_by_their_runs)] = Field(
        None, description="runs whose answers are learned from too, so that one model says what several do"
    )
    init_from: Annotated[str | None, BeforeValidator(_in_letters)] = Field(
        None,
        description="a run whose best weights this one starts from, with its tokenizers and its model (fine-tuning)",
    )
    ema_decay: float = Field(
        0.0, ge=0, lt=1, description="memory of a moving average of the weights, used in their place"
    )
    average_checkpoints: PositiveInt = Field(
        1, description="at the end, the mean of so many last checkpoints is tried, and used if it is better"
    )
    precision: Literal["float32", "bfloat16", "auto"] = Field(
        "float32", description="of matrix products; auto is bfloat16 where the device is made for it"
    )
    compile: bool = Field(False, description="let torch.compile work on the model; slow to start")
    cuda_graphs: bool = Field(
        True,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="on a GPU, record the work of a step for each shape of batch, and play it from then on",
    )
    validate_every: PositiveInt = 100
    metric: MetricChoice = Field(Accuracy(), description="by which the best checkpoint is chosen; ties by the loss")
    extra_metrics: Annotated[tuple[MetricChoice, ...], BeforeValidator(_one_or_more)] = Field(
        (), json_schema_extra=MAY_CHANGE_ON_RESUME, description="measures to be told beside it"
    )
    validation_search: SearchSettings = Field(SearchSettings(), description="how answers are looked for in validation")
    validation_pairs: PositiveInt | None = Field(None, description="the first so many dev pairs; by default all")
    patience: PositiveInt = Field(10, description="validations without a better one before training stops")
    save_every: PositiveInt = Field(100, json_schema_extra=MAY_CHANGE_ON_RESUME)
    keep_checkpoints: PositiveInt = Field(
        2, json_schema_extra=MAY_CHANGE_ON_RESUME, description="checkpoints kept beside the best"
    )
    log_every: PositiveInt = Field(20, json_schema_extra=MAY_CHANGE_ON_RESUME)
    track: Literal["tensorboard"] | None = Field(
        None,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="write the events for TensorBoard too, in RUN/tensorboard",
    )
    device: str = Field("auto", json_schema_extra=MAY_CHANGE_ON_RESUME, description="auto, cpu, cuda or cuda:N")
    threads: PositiveInt = Field(
        1,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="CPU threads; more than one is faster only for large models",
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"'{device}' is no device; write auto, cpu, cuda or cuda:N.")
        return device

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.max_pair_length is not None and self.batch_tokens is None:
            raise ValueError("max_pair_length: only batches by tokens leave long pairs out. Set batch_tokens too.")
        if self.ema_decay and self.average_checkpoints > 1:
            raise ValueError("ema_decay: a moving average of the weights and a mean of checkpoints exclude each other.")
        if self.teachers is not None and self.consistency.kind != "none":
            raise ValueError(
                "teachers: a student agrees with its teachers or with itself. Set training.consistency=none."
            )
        return self

    def absolute(self) -> Self:
        initial = {"init_from": os.path.abspath(self.init_from)} if self.init_from else {}
        return super().absolute().model_copy(update=initial)

    @property
    def metrics(self) -> list[Metric]:
        """All that validation works out, each but once; the loss always, since it decides between equals."""
        return list(dict.fromkeys([self.metric, *self.extra_metrics, Loss()]))

    @property
    def default_metrics(self) -> list[Metric]:
        """What a finished model is evaluated by where nothing is asked for in particular."""
        return list(dict.fromkeys([self.metric, *self.extra_metrics, Accuracy(), Chrf(), Loss()]))


def with_deadline(overrides: Mapping[str, Any], minutes: float | None) -> dict[str, Any]:
    """The overrides with a deadline, if one is given."""
    given = dict(overrides) if minutes is None else {**overrides, "training.minutes": minutes}
    if given.get("training.minutes") is not None and "training.steps" in given:
        raise ConfigError("A number of minutes and training.steps exclude each other: give one of them.")
    return given


class RunSettings(Settings):
    """Everything that makes a run what it is."""

    about: str = Field("", json_schema_extra=MAY_CHANGE_ON_RESUME, description="one line for people")
    seed: NonNegativeInt = 0
    data: Data
    tokenizer: TokenizerChoice = CharTokenizer()
    model: Model = RecurrentModel()
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _one_vocabulary_where_tokens_are_shared(self) -> Self:
        if self.model.shares_vocabulary and not self.tokenizer.shared:
            what = "ties all embeddings" if self.model.tied == "all" else "copies tokens (decoder.copy_source)"
            raise ValueError(f"model: it {what}, so source and target need one vocabulary. Set tokenizer.shared=true.")
        return self

    @model_validator(mode="after")
    def _tags_where_languages_are_told_apart(self) -> Self:
        if isinstance(self.data, FilesData) and self.data.has_tags and not sides(self.tokenizer)[0].tags:
            where = "tokenizer.source.tags" if isinstance(self.tokenizer, PairTokenizer) else "tokenizer.tags"
            raise ValueError(f"data.language: several languages are told apart by tags. Set {where}=true.")
        return self
