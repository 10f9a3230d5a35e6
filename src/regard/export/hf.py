"""Export to Hugging Face Transformers: a `MarianMTModel` with its tokenizer, which needs no code of regard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save
from torch import Tensor

from regard.config import to_yaml
from regard.data.settings import JoeyTokenizer, MarianTokenizer, PairTokenizer, TokenizerSettings, sides
from regard.data.tokens import pretokenization
from regard.data.tokens.sentencepiece import list_marian_tokens, to_model_file
from regard.data.tokens.tokenizers import END, PAD, SPECIALS, START, UNKNOWN
from regard.export.exporter import (
    Exporter,
    TrainedModel,
    count_positions,
    describe_training,
    find_transformer_obstacles,
)
from regard.export.marian import BIAS, EMBEDDINGS, alternate_positions, list_layer_parameters
from regard.export.marian_files import SAFETENSORS, SETTINGS
from regard.formatting import to_json
from regard.models.settings import TransformerModel
from regard.version import __version__


@final
class HuggingFaceExporter(Exporter):
    """A `MarianMTModel` of Transformers: a post-norm Transformer with sinusoidal positions."""

    def find_obstacle(self, model: TrainedModel) -> str | None:
        supported = {"norm": "post", "normalization": "layer", "epsilon": None, "positions": "sinusoidal"}
        obstacles = find_transformer_obstacles(model.settings.model, supported)
        return " ".join([*obstacles, *_find_tokenizer_obstacles(model)]) or None

    def write(self, model: TrainedModel, folder: Path) -> None:
        settings = model.settings.model
        assert isinstance(settings, TransformerModel)
        files = {
            "config.json": to_json(_describe_config(model, settings), indent=2).encode(),
            "generation_config.json": to_json(_describe_generation(model), indent=2).encode(),
            SAFETENSORS: save(_convert_weights(model, settings), {"format": "pt"}),
            SETTINGS: to_yaml(model.settings).encode(),
            "README.md": write_card(model).encode(),
            **_describe_tokenizers(model),
        }
        for name, content in files.items():
            (folder / name).write_bytes(content)


def _find_tokenizer_obstacles(model: TrainedModel) -> Iterator[str]:
    settings: TokenizerSettings = model.settings.tokenizer
    if not settings.shared:
        remedy = "one tokenizer" if isinstance(settings, PairTokenizer) else "tokenizer.shared=true"
        yield f"source and target have different vocabularies, and a fast tokenizer has one. Use {remedy}."
    if isinstance(settings, JoeyTokenizer):
        yield "sources end with </s> and targets do not, so they have two tokenizers. Train with another tokenizer."
        return
    if isinstance(settings, MarianTokenizer):
        return
    if any(side.tags for side in sides(settings)):
        yield "tags are not part of the tokenizers of Transformers. Use tokenizer.tags=false."
    if pretokenization.decomposes(model.tokenizers.target.inner):
        yield "decoded text is not composed again by Transformers. Use tokenizer.normalization=nfc instead of nfd."


def _describe_config(model: TrainedModel, settings: TransformerModel) -> dict[str, Any]:
    sizes = {
        "d_model": settings.size,
        "vocab_size": len(model.tokenizers.source),
        "decoder_vocab_size": len(model.tokenizers.target),
        "max_position_embeddings": count_positions(model.settings),
    }
    for side, layers in (("encoder", settings.layers), ("decoder", settings.attention_layers)):
        sizes |= {
            f"{side}_layers": layers,
            f"{side}_attention_heads": settings.heads,
            f"{side}_ffn_dim": settings.feedforward,
        }
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **sizes,
        "activation_function": settings.activation,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": settings.tied == "all",
        "tie_word_embeddings": settings.tied != "none",
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.activation_dropout,
        "is_encoder_decoder": True,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "decoder_start_token_id": START,
        "forced_eos_token_id": END,
        "dtype": "float32",
    }


def _describe_generation(model: TrainedModel) -> dict[str, Any]:
    """Return the defaults of `generate`. Like our search, it does not generate special tokens."""
    return {
        "pad_token_id": PAD,
        "eos_token_id": END,
        "decoder_start_token_id": START,
        "forced_eos_token_id": END,
        "suppress_tokens": [PAD, UNKNOWN, START],
        "max_length": count_positions(model.settings),
        "num_beams": 5,
    }


def _convert_weights(model: TrainedModel, settings: TransformerModel) -> dict[str, Tensor]:
    """Return the weights with the names of Transformers, and with dimensions in the order of Marian."""
    ours = {name: tensor.detach().cpu().float() for name, tensor in model.network.state_dict().items()}
    order_D = torch.argsort(alternate_positions(settings.size))
    weights = {theirs[0]: ours[name][:, order_D] for name, theirs in EMBEDDINGS[settings.tied].items()}
    for theirs, name, _, axis in list_layer_parameters(
        settings.size, settings.feedforward, settings.layers, settings.attention_layers
    ):
        weights[theirs] = ours[name] if axis is None else ours[name].index_select(axis, order_D)
    bias_V = ours["decoder.output.bias"] if settings.output_bias else torch.zeros(len(model.tokenizers.target))
    weights[BIAS] = bias_V.unsqueeze(0)
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def _describe_tokenizers(model: TrainedModel) -> dict[str, bytes]:
    """Return the files of the tokenizer: a fast tokenizer, or that of an imported Marian model."""
    special = {
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNKNOWN],
        "eos_token": SPECIALS[END],
        "model_max_length": model.settings.tokenizer.max_length,
        "clean_up_tokenization_spaces": False,
    }
    source, target = model.tokenizers
    if not isinstance(model.settings.tokenizer, MarianTokenizer):
        options = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[START], **special}
        return {"tokenizer.json": source.to_bytes(), "tokenizer_config.json": to_json(options, indent=2).encode()}
    options = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False, **special}
    vocabulary = {token: index for index, token in enumerate(list_marian_tokens(target.tokens(range(len(target)))))}
    return {
        "source.spm": to_model_file(source.inner),
        "target.spm": to_model_file(target.inner),
        "vocab.json": to_json(vocabulary, indent=0, ensure_ascii=False).encode(),
        "tokenizer_config.json": to_json(options, indent=2).encode(),
    }


def write_card(model: TrainedModel) -> str:
    """Return the model card: how to use the model, its metrics, data and settings."""
    return f"""---
library_name: transformers
pipeline_tag: translation
tags: [marian, regard]
---

A sequence-to-sequence model, trained with regard {__version__} and exported as a Marian model.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained(PATH), AutoModelForSeq2SeqLM.from_pretrained(PATH)
inputs = tokenizer([text], return_tensors="pt", padding=True, return_token_type_ids=False)
tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
```

{describe_training(model)}"""
