"""Two small translation models, English ↔ German, and sentences that they translate without errors."""

import random
from pathlib import Path

import regard

_WORDS = {
    "the": "das", "house": "Haus", "car": "Auto", "book": "Buch", "is": "ist", "very": "sehr", "small": "klein",
    "old": "alt", "new": "neu",
}  # fmt: skip
_SETTINGS = {
    "model.embedding": 24, "model.encoder.hidden": 24, "model.decoder.hidden": 24, "training.steps": 150,
    "training.batch_size": 32, "training.warmup": 10, "training.learning_rate": 0.01, "training.validate_every": 1_000,
    "training.save_every": 1_000, "data.test_split": False,
}  # fmt: skip


def make_sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Return English sentences and their German translations, word by word."""
    chosen, pairs = random.Random(seed), []
    for _ in range(count):
        adverb = ["very"] if chosen.random() < 0.5 else []
        words = ["the", chosen.choice(["house", "car", "book"]), "is", *adverb, chosen.choice(["small", "old", "new"])]
        pairs.append((" ".join(words) + ".", " ".join(map(_WORDS.__getitem__, words)) + "."))
    return pairs


def train_translators(folder: Path) -> list[Path]:
    """Train a model for each direction. Their folders have the names en-de and de-en."""
    train, dev = make_sentences(400, seed=0), make_sentences(20, seed=1)
    for name, step in (("en-de", 1), ("de-en", -1)):
        pairs, held_out = ([pair[::step] for pair in each] for each in (train, dev))
        regard.train(pairs=pairs, dev=held_out, overrides=_SETTINGS, out=folder / name, quiet=True)
    return [folder / "en-de", folder / "de-en"]
