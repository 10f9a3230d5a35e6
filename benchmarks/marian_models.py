"""Marian models of Transformers, without code of regard: train them, load them and translate."""

import importlib
import io
import json
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = importlib.import_module("transformers")  # most of its functions have no types

Pairs = Sequence[tuple[str, str]]


class Checkpoint(NamedTuple):
    """A Marian model and its folder."""

    path: Path
    model: Any
    tokenizer: Any


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a model. Raise ValueError if a weight is missing or unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(path, output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if any(report.values()):
        raise ValueError(f"{path}: {report}")
    return Checkpoint(path, model.eval(), tokenizer)


def translate(checkpoint: Checkpoint, texts: list[str], **options: Any) -> list[str]:
    """Translate with `generate`. Without a length penalty, both libraries rank hypotheses by log p."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = checkpoint.tokenizer(texts, return_tensors="pt", padding=True)
        outputs = checkpoint.model.generate(**inputs, length_penalty=0.0, **options)
        decoded: list[str] = checkpoint.tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return decoded


def train_sentencepiece(sentences: Iterable[str], size: int, **options: Any) -> bytes:
    """Return a SentencePiece model with at most `size` pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=size, minloglevel=2, **options
    )
    return model.getvalue()


def train_tokenizer(
    path: Path, pairs: Pairs, size: int, *, max_length: int, codes: Sequence[str] = (), missing: int = 0
) -> Any:
    """Write a SentencePiece model of each side and their joint vocab.json, and return the tokenizer.

    `codes` are added to the vocabulary. `missing` pieces of each SentencePiece model are left out of it.
    """
    path.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, None] = {}
    for name, side in (("source.spm", 0), ("target.spm", 1)):
        content = train_sentencepiece(
            [pair[side] for pair in pairs], size, hard_vocab_limit=False, character_coverage=1.0
        )
        (path / name).write_bytes(content)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        learned = [processor.id_to_piece(index) for index in range(3, len(processor))]
        pieces |= dict.fromkeys(learned[: len(learned) - missing])
    tokens = ["</s>", "<unk>", *pieces, *codes, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.MarianTokenizer(
            *(str(path / name) for name in ("source.spm", "target.spm", "vocab.json")), model_max_length=max_length
        )


def build_model(tokenizer: Any, *, size: int, layers: tuple[int, int], feedforward: int, **config: Any) -> Any:
    """Build a Marian model with the options of OPUS-MT. Weights are drawn from torch's random numbers."""
    last = len(tokenizer) - 1
    options = {"vocab_size": last + 1, "d_model": size, "max_position_embeddings": tokenizer.model_max_length}
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        options |= {f"{side}_layers": count, f"{side}_attention_heads": 4, f"{side}_ffn_dim": feedforward}
    special = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0}
    options |= {"activation_function": "swish", "scale_embedding": True, "forced_eos_token_id": 0, **special, **config}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.MarianMTModel(transformers.MarianConfig(**options))
    model.generation_config = transformers.GenerationConfig(
        **special, bad_words_ids=[[last], [1]], max_length=tokenizer.model_max_length
    )
    with torch.no_grad():  # the initial weights of Transformers are too small to learn in a few steps
        for parameter in model.parameters():
            if parameter.dim() == 2 and parameter.requires_grad:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model


def shuffle_batches(pairs: Pairs, size: int, seed: int, window: int = 32) -> Iterator[Pairs]:
    """Yield batches without end: in each epoch, pairs are shuffled, and sorted by length within windows of batches."""
    generator = random.Random(seed)
    while True:
        shuffled = generator.sample(pairs, len(pairs))
        windows = (shuffled[start : start + window * size] for start in range(0, len(pairs), window * size))
        for ordered in (sorted(each, key=lambda pair: len(pair[0])) for each in windows):
            batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
            yield from generator.sample(batches, len(batches))


def compute_loss(model: Any, tokenizer: Any, batch: Pairs) -> torch.Tensor:
    """Return the cross-entropy of a batch, averaged over target tokens."""
    sources, targets = ([pair[side] for pair in batch] for side in (0, 1))
    inputs = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True, truncation=True)
    inputs["labels"][inputs["labels"] == tokenizer.pad_token_id] = -100
    loss: torch.Tensor = model(**inputs.to(model.device)).loss
    return loss


def train_model(
    model: Any, tokenizer: Any, batches: Iterable[Pairs], learning_rate: float, schedule: Any
) -> Iterator[float]:
    """Train on the batches with Adam, and yield the loss of each step. `schedule` scales the learning rate."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for batch in batches:
        model.train()
        loss = compute_loss(model, tokenizer, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
        yield loss.item()
