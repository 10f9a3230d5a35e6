"""The settings of training, and of a run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from regard.config import BY_NAME, MAY_CHANGE_ON_RESUME, PATH, Settings, find_preset, presets, resolve
from regard.data.images import settings as _image_corpora  # noqa: F401 - registers the settings of image corpora
from regard.data.settings import (
    CharTokenizer,
    DataSettings,
    FilesData,
    PairTokenizer,
    TokenizerChoice,
    sides,
)
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.errors import ArgumentTypeError, ConfigError
from regard.evaluation.settings import Metric, parse_metrics
from regard.models.settings import TEXT, ModelSettings
from regard.overrides import reject_ambiguous_kinds
from regard.quantities import (
    BatchSize,
    Count,
    DropoutProbability,
    Epochs,
    FractionBelowOne,
    Heads,
    Layers,
    LearningRate,
    Length,
    Minutes,
    OpenFraction,
    OptionalCount,
    PositiveFraction,
    PositiveNorm,
    PositiveWeight,
    Seed,
    Threads,
    Weight,
)
from regard.registry import default_choice
from regard.urls import is_url, join_path


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


class Teachers(Settings):
    """Knowledge distillation (Hinton et al. 2015): the loss is (1 − λ) times the cross-entropy plus λ Σ_t
    KL(p_t ‖ q_t), where p is the average of the teachers' distributions and q the student's.
    """

    runs: Annotated[tuple[str, ...], PATH, BeforeValidator(as_list)] = Field(
        min_length=1, description="the run folders of the teachers; they must have the student's tokenizers"
    )
    weight: PositiveFraction = Field(0.5, description="λ, the weight of the teachers relative to the data")

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

    file: Annotated[str, PATH] = Field(
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

    def find_layer(self, model: ModelSettings) -> int | None:
        """Return the supervised layer of a model; None if the number of its layers is not known."""
        layers = model.attention_layers
        return self.layer if layers is None else self.layer or max(1, layers - 1)


def _expand_guided_alignment(value: Any) -> Any:
    return {"file": value} if isinstance(value, str | Path) else value


GuidedAlignmentChoice = Annotated[GuidedAlignment, BeforeValidator(_expand_guided_alignment)]


class TrainingSettings(Settings):
    """The settings of the training loop."""

    steps: Count = Field(1_000, description="number of steps of the schedule; minutes and max_epochs rescale it")
    minutes: Minutes | None = Field(
        None, description="deadline in minutes; the number of steps is adapted to the speed measured while training"
    )
    max_epochs: Epochs | None = Field(None, description="maximum number of epochs")
    batch_size: BatchSize = Field(64, description="number of pairs in a batch")
    batch_tokens: BatchSize | None = Field(
        None, description="instead of batch_size: number of tokens in a batch, on the longer side and with padding"
    )
    max_pair_length: Length | None = Field(
        None, description="skip training pairs with more tokens on one side; requires batch_tokens"
    )
    accumulate: Count = Field(1, description="number of batches per step (gradient accumulation)")
    learning_rate: LearningRate = Field(1e-3, description="peak learning rate")
    warmup: OptionalCount = Field(100, description="number of steps of linear warm-up to the peak learning rate")
    decay: Literal["cosine", "linear", "none", "inverse_sqrt", "plateau"] = Field(
        "cosine",
        description="cosine and linear decay to zero at the last step; inverse_sqrt is proportional to "
        "√(warmup / step); plateau reduces the rate when validation stops improving",
    )
    plateau_patience: Count = Field(
        3, description="with decay=plateau: number of validations without improvement before the rate is reduced"
    )
    plateau_factor: OpenFraction = Field(0.5, description="with decay=plateau: factor by which the rate is reduced")
    adam_beta2: OpenFraction = Field(0.999, description="β₂ of Adam")
    weight_decay: Weight = Field(0.01, description="decoupled weight decay (AdamW)")
    max_grad_norm: PositiveNorm = Field(1.0, description="maximum norm of the gradient; larger gradients are clipped")
    label_smoothing: FractionBelowOne = Field(0.0, description="probability mass spread over all tokens")
    word_dropout: DropoutProbability = Field(
        0.0, description="probability that an input token is replaced by the unknown token"
    )
    consistency: ConsistencyChoice = Field(NoConsistency(), description="consistency loss: none, r-drop or simcut")
    teachers: TeachersChoice | None = Field(
        None, description="runs to distill: the model learns from their output distributions as well as from the data"
    )
    guided_alignment: GuidedAlignmentChoice | None = Field(
        None, description="word alignments of the training pairs, which supervise one attention head"
    )
    init_from: Annotated[str | None, PATH] = Field(
        None,
        description="a run to fine-tune: start from its best weights, with its tokenizers and its model settings",
    )
    accept_changes: bool = Field(
        False,
        description="accept models that have been edited since they were saved, for init_from and as teachers",
        json_schema_extra=MAY_CHANGE_ON_RESUME,
    )
    ema_decay: FractionBelowOne = Field(
        0.0,
        description="decay of an exponential moving average (EMA) of the weights, which is evaluated and saved",
    )
    average_checkpoints: Count = Field(
        1, description="at the end, average the last N checkpoints, and use the average if it is better"
    )
    precision: Literal["float32", "bfloat16", "auto"] = Field(
        "float32", description="precision of matrix products (autocast); auto: bfloat16 if the device supports it well"
    )
    compile: bool = Field(False, description="compile the model with torch.compile; slow to start")
    shard: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="with several ranks, divide the weights and the state of the optimizer among them (FSDP2)",
    )
    cuda_graphs: bool = Field(
        True,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="on a GPU, capture a CUDA graph for each batch shape, and replay it",
    )
    validate_every: Count = Field(100, description="number of steps between validations")
    metric: Metric = default_choice(
        "accuracy", description="metric that chooses the best checkpoint; the loss breaks ties"
    )
    extra_metrics: Annotated[tuple[Metric, ...], BeforeValidator(as_list)] = Field(
        (), json_schema_extra=MAY_CHANGE_ON_RESUME, description="more metrics to compute in validation"
    )
    validation_search: SearchSettings = Field(SearchSettings(), description="search settings of validation")
    validation_pairs: Count | None = Field(None, description="validate on the first N dev pairs; default: all")
    diagnostics: OptionalCount = Field(
        64,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="compute statistics of the attention weights on the first N dev pairs at each validation; 0: off",
    )
    patience: Count = Field(10, description="number of validations without improvement before training stops early")
    save_every: Count = Field(
        100, json_schema_extra=MAY_CHANGE_ON_RESUME, description="number of steps between checkpoints"
    )
    keep_checkpoints: Count = Field(
        2,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="number of newest checkpoints to keep in addition to the best",
    )
    log_every: Count = Field(
        20, json_schema_extra=MAY_CHANGE_ON_RESUME, description="number of steps between log lines"
    )
    track: Literal["tensorboard"] | None = Field(
        None,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="also write the events to RUN/tensorboard",
    )
    device: str = Field("auto", json_schema_extra=MAY_CHANGE_ON_RESUME, description="auto, cpu, cuda or cuda:N")
    threads: Threads = Field(
        1,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="number of CPU threads; more than one is faster only for large models",
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"'{device}' is not a device. Use auto, cpu, cuda or cuda:N.")
        return device

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.max_pair_length is not None and self.batch_tokens is None:
            raise ValueError("max_pair_length requires batch_tokens. Set batch_tokens as well.")
        if self.ema_decay and self.average_checkpoints > 1:
            raise ValueError("ema_decay and average_checkpoints cannot be combined. Set one of them.")
        if self.shard and self.compile:
            raise ValueError("shard and compile cannot be combined. Set one of them.")
        if self.teachers is not None and self.consistency.kind != "none":
            raise ValueError(
                "teachers: distillation and a consistency loss cannot be combined. Set training.consistency=none."
            )
        return self

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of validation, without duplicates. The loss is always included, since it breaks ties."""
        return parse_metrics([self.metric, *self.extra_metrics, "loss"])

    @property
    def default_metrics(self) -> list[Metric]:
        """The default metrics of `regard evaluate`."""
        return parse_metrics([self.metric, *self.extra_metrics, "accuracy", "chrf", "loss"])


def check_overrides(overrides: Any) -> dict[str, Any]:
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise ArgumentTypeError(
            f"overrides must be a mapping of settings, such as {{'training.steps': 500}}, not {overrides!r}."
        )
    reject_ambiguous_kinds(overrides)
    return dict(overrides)


def with_deadline(overrides: Mapping[str, Any], minutes: float | None) -> dict[str, Any]:
    """Return the overrides with a deadline, if there is one."""
    merged = check_overrides(overrides)
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float)):
        raise ArgumentTypeError(f"minutes must be a number, not {minutes!r}.")
    if minutes is not None:
        merged["training.minutes"] = minutes
    if merged.get("training.minutes") is not None and "training.steps" in merged:
        raise ConfigError("A deadline in minutes and training.steps cannot be combined. Set one of them.")
    return merged


class RunSettings(Settings):
    """All settings of a run."""

    about: str = Field("", json_schema_extra=MAY_CHANGE_ON_RESUME, description="a description in one line")
    seed: Seed = Field(0, description="seed of all random numbers")
    imports: tuple[str, ...] = Field(
        (),
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="plugins that registered parts of this run; not imported automatically: pass --import",
    )
    data: DataSettings
    tokenizer: TokenizerChoice = CharTokenizer()
    model: ModelSettings = default_choice("recurrent")
    training: TrainingSettings = default_choice({})
    decoding: DecodingSettings = DecodingSettings()

    @property
    def true_about(self) -> str:
        """`about`, unless it describes a preset whose tokenizer, model or training these settings have changed."""
        for name, about in presets().items():
            if about == self.about:
                preset = resolve(RunSettings, find_preset(name), {})
                described = ("tokenizer", "model", "training")
                return about if all(getattr(preset, part) == getattr(self, part) for part in described) else ""
        return self.about

    def within(self, run: Path) -> Self:
        """Return the settings with an absolute data folder. A relative one in config.yaml is inside the run folder."""
        if not isinstance(self.data, FilesData) or not self.data.folder:
            return self
        return self._with_data_folder(self.data, join_path(str(run.absolute()), self.data.folder))

    def relative_to(self, run: Path) -> Self:
        """Return the settings with a relative data folder if it is inside the run folder. The run can then be moved."""
        if not isinstance(self.data, FilesData) or not self.data.folder or is_url(self.data.folder):
            return self
        folder, root = Path(self.data.folder).resolve(), run.resolve()
        return self._with_data_folder(self.data, str(folder.relative_to(root))) if folder.is_relative_to(root) else self

    def _with_data_folder(self, data: FilesData, folder: str) -> Self:
        return self.model_copy(update={"data": data.model_copy(update={"folder": folder})})

    @model_validator(mode="after")
    def _check_source_kind(self) -> Self:
        kind, encoder = self.data.source_kind, self.model.encoder_settings
        if kind != encoder.source_kind:
            raise ValueError(
                f"model.encoder: '{encoder.kind}' reads sources of the kind '{encoder.source_kind}', but the sources "
                f"of data.kind={self.data.kind} are of the kind '{kind}'. Choose another encoder or other data."
            )
        if kind == TEXT:
            return self
        reason = self.model.shared_vocabulary_reason
        if reason:
            raise ValueError(
                f"the model {reason}, which requires text, but the sources are of the kind '{kind}'. Change this "
                "setting, or use other data."
            )
        if not self.tokenizer.shared:
            raise ValueError(
                f"tokenizer: sources of the kind '{kind}' are not tokenized, so the run has one tokenizer, for the "
                "targets. Set tokenizer.kind and tokenizer.shared=true."
            )
        return self

    @model_validator(mode="after")
    def _check_shared_vocabulary(self) -> Self:
        reason = self.model.shared_vocabulary_reason
        if reason and not self.tokenizer.shared:
            raise ValueError(f"the model {reason}, which requires a shared vocabulary. Set tokenizer.shared=true.")
        return self

    @model_validator(mode="after")
    def _check_guided_alignment(self) -> Self:
        if self.training.guided_alignment is None:
            return self
        if self.data.source_kind != TEXT:
            raise ValueError(
                f"training.guided_alignment: sources of the kind '{self.data.source_kind}' have no words. Set "
                "training.guided_alignment=null."
            )
        if self.model.attention_layers == 0:
            raise ValueError(
                f"training.guided_alignment: a {self.model.kind} model has no attention. Use model=recurrent or "
                "model=transformer."
            )
        return self

    @model_validator(mode="after")
    def _check_language_tags(self) -> Self:
        if isinstance(self.data, FilesData) and self.data.has_tags and not sides(self.tokenizer)[0].tags:
            key = "tokenizer.source.tags" if isinstance(self.tokenizer, PairTokenizer) else "tokenizer.tags"
            raise ValueError(f"data.language: several languages are distinguished by tags. Set {key}=true.")
        return self
