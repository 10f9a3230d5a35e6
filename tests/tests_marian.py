"""Marian models made with Transformers, and SentencePiece models trained on generated sentences."""

import importlib
import io
import json
import random
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch

import regard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = importlib.import_module("transformers")  # most of its functions have no types

_WORDS = {
    "the": "der", "a": "ein", "small": "kleine", "big": "große", "old": "alte", "young": "junge", "green": "grüne",
    "dog": "Hund", "man": "Mann", "woman": "Frau", "horse": "Pferd", "child": "Kind", "friend": "Freund",
    "sees": "sieht", "finds": "findet", "rides": "reitet", "loves": "liebt", "paints": "malt", "hears": "hört",
    "today": "heute", "often": "oft", "never": "nie", "slowly": "langsam", "quietly": "leise", ".": ".", "!": "!",
}  # fmt: skip


def make_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences of 5 to 9 words, with a word-by-word translation."""
    generator = random.Random(seed)
    articles, adjectives = ("the", "a"), ("small", "big", "old", "young", "green")
    nouns, verbs = (
        ("dog", "man", "woman", "horse", "child", "friend"),
        ("sees", "finds", "rides", "loves", "paints", "hears"),
    )
    pairs = []
    for _ in range(count):
        words = [
            generator.choice(articles),
            *generator.sample(adjectives, generator.randint(0, 2)),
            generator.choice(nouns),
        ]
        words += [generator.choice(verbs), generator.choice(articles), generator.choice(nouns)]
        words += generator.sample(("today", "often", "never", "slowly", "quietly"), generator.randint(0, 1))
        end = generator.choice(".!")
        pairs.append((" ".join(words) + end, " ".join(_WORDS[word] for word in words) + end))
    return pairs


def train_sentencepiece(sentences: list[str], size: int, **options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=size, minloglevel=2, **options
    )
    return model.getvalue()


class Checkpoint(NamedTuple):
    path: Path
    model: Any
    tokenizer: Any


def make_checkpoint(
    path: Path, *, steps: int = 60, codes: tuple[str, ...] = (), missing: int = 0, seed: int = 0, **config: Any
) -> Checkpoint:
    """Train a small Marian model for a few steps, and save it as Transformers does.

    `missing` pieces of each SentencePiece model are left out of vocab.json.
    """
    path.mkdir(parents=True, exist_ok=True)
    pairs = make_pairs(400)
    pieces: dict[str, None] = {}
    for name, side in (("source.spm", 0), ("target.spm", 1)):
        content = train_sentencepiece([pair[side] for pair in pairs], 90, hard_vocab_limit=False)
        (path / name).write_bytes(content)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        learned = [processor.id_to_piece(index) for index in range(3, len(processor))]
        pieces |= dict.fromkeys(learned[: len(learned) - missing])
    tokens = ["</s>", "<unk>", *pieces, *codes, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    options = {
        "vocab_size": len(tokens), "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "activation_function": "swish", "scale_embedding": True, "dropout": 0.0, "pad_token_id": len(tokens) - 1,
        "decoder_start_token_id": len(tokens) - 1, "eos_token_id": 0, "forced_eos_token_id": 0,
        "max_position_embeddings": 64, **config,
    }  # fmt: skip
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.MarianMTModel(transformers.MarianConfig(**options))
        tokenizer = transformers.MarianTokenizer(
            str(path / "source.spm"), str(path / "target.spm"), str(path / "vocab.json"), model_max_length=64
        )
        _train(model, tokenizer, pairs, steps)
        with torch.no_grad():
            model.final_logits_bias.normal_(std=0.1)
        model.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=options["decoder_start_token_id"], pad_token_id=options["pad_token_id"],
            eos_token_id=0, bad_words_ids=[[options["pad_token_id"]], [1]], max_length=64,
        )  # fmt: skip
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return Checkpoint(path, model.eval(), tokenizer)


def _train(model: Any, tokenizer: Any, pairs: list[tuple[str, str]], steps: int) -> None:
    with torch.no_grad():  # the initial weights of Transformers are too small to learn in a few steps
        for parameter in model.parameters():
            if parameter.dim() == 2 and parameter.requires_grad:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    for step in range(steps):
        batch = pairs[step * 32 % 384 :][:32]
        inputs = tokenizer(
            [source for source, _ in batch],
            text_target=[target for _, target in batch],
            return_tensors="pt",
            padding=True,
        )
        inputs["labels"][inputs["labels"] == tokenizer.pad_token_id] = -100
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def translate(checkpoint: Checkpoint, texts: list[str], **options: Any) -> list[str]:
    """Translate with `generate`. Without a length penalty, both libraries rank hypotheses by log p."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = checkpoint.tokenizer(texts, return_tensors="pt", padding=True)
        outputs = checkpoint.model.generate(**inputs, length_penalty=0.0, **options)
        decoded: list[str] = checkpoint.tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return decoded


MODEL = {
    "model": "transformer", "model.size": 32, "model.heads": 4, "model.layers": 2, "model.decoder_layers": 1,
    "model.feedforward": 48, "model.tied": "all",
}  # fmt: skip
TRAINING = {
    "training.steps": 240, "training.learning_rate": 0.006, "training.warmup": 40, "training.batch_size": 32,
    "training.decay": "cosine", "training.label_smoothing": 0.0, "training.validate_every": 120, "model.dropout": 0.0,
}  # fmt: skip


def train_transformer(path: Path, **settings: Any) -> regard.Model:
    """Train a small Transformer on generated sentences, with settings that Marian can express."""
    overrides = {"tokenizer": {"kind": "bpe", "vocabulary": 120}, **MODEL, **TRAINING, **settings}
    run = regard.train(pairs=make_pairs(300), dev=make_pairs(20, seed=9), overrides=overrides, out=path, quiet=True)
    return run.load(device="cpu")
