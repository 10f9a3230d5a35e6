"""What may be set in training, and the settings of a whole run."""

import re
from typing import Annotated, Any, Literal, Self

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

from regard.config import HARMLESS, Settings
from regard.data.settings import CharTokenizer, Data, TokenizerChoice
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.models.settings import FixedModel, Model, RecurrentModel
from regard.training.measures import Accuracy, Chrf, Loss, Measure, MeasureChoice


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str | dict) else value


class TrainingSettings(Settings):
    """The loop: how long, how fast, how often to look."""

    steps: PositiveInt = 1_000
    batch_size: PositiveInt = Field(64, description="pairs in a batch")
    learning_rate: float = Field(1e-3, gt=0, le=1e30, description="at its peak")
    warmup: NonNegativeInt = Field(100, description="steps in which the learning rate rises to its peak")
    decay: Literal["cosine", "linear", "none"] = Field("cosine", description="from the peak to zero at the last step")
    weight_decay: NonNegativeFloat = 0.01
    clip: PositiveFloat = Field(1.0, description="the largest norm of the gradient")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    validate_every: PositiveInt = 100
    metric: MeasureChoice = Field(Accuracy(), description="by which the best checkpoint is chosen; ties by the loss")
    also: Annotated[tuple[MeasureChoice, ...], BeforeValidator(_one_or_more)] = Field(
        (), json_schema_extra=HARMLESS, description="measures to be told beside it"
    )
    validation: SearchSettings = Field(SearchSettings(), description="how answers are looked for in validation")
    validation_pairs: PositiveInt | None = Field(None, description="the first so many dev pairs; by default all")
    patience: PositiveInt = Field(10, description="validations without a better one before training stops")
    save_every: PositiveInt = Field(100, json_schema_extra=HARMLESS)
    keep: PositiveInt = Field(2, json_schema_extra=HARMLESS, description="checkpoints kept beside the best")
    log_every: PositiveInt = Field(20, json_schema_extra=HARMLESS)
    device: str = Field("auto", json_schema_extra=HARMLESS, description="auto, cpu, cuda or cuda:N")
    threads: PositiveInt = Field(1, description="CPU threads; more than one pays for large models alone")

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"'{device}' is no device; write auto, cpu, cuda or cuda:N.")
        return device

    @property
    def measures(self) -> list[Measure]:
        """All that validation works out, each but once; the loss always, since it decides between equals."""
        return list(dict.fromkeys([self.metric, *self.also, Loss()]))

    @property
    def usual_measures(self) -> list[Measure]:
        """What a finished model is evaluated by where nothing is asked for in particular."""
        return list(dict.fromkeys([self.metric, *self.also, Accuracy(), Chrf(), Loss()]))


class RunSettings(Settings):
    """Everything that makes a run what it is."""

    about: str = Field("", json_schema_extra=HARMLESS, description="one line for people")
    seed: NonNegativeInt = 0
    data: Data
    tokenizer: TokenizerChoice = CharTokenizer()
    model: Model = RecurrentModel()
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _one_vocabulary_where_tokens_are_shared(self) -> Self:
        if not isinstance(self.model, FixedModel) and self.model.shares_vocabulary and not self.tokenizer.shared:
            what = "copies tokens (decoder.copy_source)" if self.model.kind == "recurrent" else "ties all embeddings"
            raise ValueError(f"model: it {what}, so source and target need one vocabulary. Set tokenizer.shared=true.")
        return self
