"""Marian models made with Transformers, and SentencePiece models trained on generated sentences."""

import random
import warnings
from pathlib import Path
from typing import Any

import torch

import regard
from marian_models import Checkpoint, build_model, train_model, train_tokenizer

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


def make_checkpoint(
    path: Path, *, steps: int = 60, codes: tuple[str, ...] = (), missing: int = 0, seed: int = 0, **config: Any
) -> Checkpoint:
    """Train a small Marian model for a few steps, and save it as Transformers does.

    `missing` pieces of each SentencePiece model are left out of vocab.json.
    """
    pairs = make_pairs(400)
    tokenizer = train_tokenizer(path, pairs, 90, max_length=64, codes=codes, missing=missing)
    torch.manual_seed(seed)
    model = build_model(tokenizer, size=32, layers=(2, 1), feedforward=48, **{"dropout": 0.0, **config})
    batches = (pairs[step * 32 % 384 :][:32] for step in range(steps))
    for _ in train_model(model, tokenizer, batches, 3e-3, lambda _: 1.0):
        pass
    with torch.no_grad():
        model.final_logits_bias.normal_(std=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return Checkpoint(path, model.eval(), tokenizer)


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
