"""Settings that tests share."""

SMALL = {
    "data.train": 400,
    "data.dev": 40,
    "data.test": 40,
    "model.embedding": 16,
    "model.encoder.hidden": 16,
    "model.decoder.hidden": 16,
    "training.steps": 30,
    "training.batch_size": 32,
    "training.warmup": 5,
    "training.validate_every": 10,
    "training.save_every": 10,
    "training.log_every": 5,
}
"""Overrides that make of `dates` a run of a few seconds."""


def words(settings: dict[str, object]) -> list[str]:
    """Settings as the words of a command."""
    return [f"{key}={value}" for key, value in settings.items()]
