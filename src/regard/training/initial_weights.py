"""The initial weights of a fine-tuned run, and their hash, which a resumed run keeps."""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from regard.config import differences
from regard.data.corpora import Corpus, Pairs
from regard.data.settings import token_differences
from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer, TokenizerPair
from regard.errors import ConfigError, ModelError
from regard.formatting import short_path
from regard.models.seq2seq import Seq2Seq
from regard.runs import checkpoints
from regard.runs.checkpoints import LoadedModel
from regard.runs.settings import RunSettings
from regard.training.finetuning import INIT_FROM, open_initial

log = logging.getLogger(__name__)

_WEIGHTS_OF = "initial weights of "
"""Prefix of the initial weights' name among the hashes of what a run depends on."""

_MOST_SAMPLED, _MOST_NAMED = 20_000, 8
"""Training pairs that are searched for tokens unknown to the tokenizers, and how many of those tokens are named."""


class Initial(NamedTuple):
    """The model that a run starts from, and the hash of its weights; without `training.init_from`, nothing."""

    loaded: LoadedModel | None = None
    fingerprint: Mapping[str, str] = {}

    @property
    def tokenizers(self) -> TokenizerPair | None:
        return None if self.loaded is None else self.loaded.tokenizers

    def initialize(self, model: Seq2Seq, settings: RunSettings) -> None:
        """Copy the weights, if there are any, into a model of the same shape."""
        if self.loaded is None:
            return
        ours, theirs = (
            {name: part.shape for name, part in each.state_dict().items()} for each in (model, self.loaded.model)
        )
        if ours != theirs:
            changed = differences(self.loaded.settings.model, settings.model)
            listed = "; ".join(f"model.{key} is {old!r} there and {new!r} here" for key, (old, new) in changed.items())
            raise ConfigError(
                f"{INIT_FROM}: the weights of {settings.training.init_from} do not fit this model: {listed}. Use the "
                "same model settings, or train a new model without them."
            )
        model.load_state_dict(self.loaded.model.state_dict())


def load_initial(settings: RunSettings, corpus: Corpus, teachers: TokenizerPair | None) -> Initial:
    """Load what a new run starts from."""
    start = settings.training.init_from
    if start is None:
        return Initial()
    folder, chosen = open_initial(start)
    loaded = checkpoints.load_model(folder, chosen)
    changed = [f"tokenizer.{key}" for key in token_differences(loaded.settings.tokenizer, settings.tokenizer)]
    if changed:
        raise ConfigError(
            f"{INIT_FROM}: {start} was trained with a different {', '.join(changed)}, and its weights fit only its "
            f"own tokens. Copy `tokenizer:` from {folder.config}."
        )
    if teachers is not None and teachers.fingerprint() != loaded.tokenizers.fingerprint():
        raise ConfigError(
            f"{INIT_FROM}: {start} and training.teachers have different vocabularies. Use only one of them."
        )
    first = Pairs.of(islice(corpus.train, _MOST_SAMPLED))
    _report_unknown(loaded.tokenizers.source, "source", first.sources)
    _report_unknown(loaded.tokenizers.target, "target", first.targets)
    return Initial(loaded, {f"{_WEIGHTS_OF}{start}": loaded.checkpoint.weights_hash})


def recall_initial(settings: RunSettings, saved: Mapping[str, str] | str) -> Initial:
    """The hash of the weights that a run with a checkpoint started from.

    The weights themselves are not needed any more, so they may have changed or be gone; a change is reported.
    """
    start = settings.training.init_from
    if start is None or isinstance(saved, str):
        return Initial()
    fingerprint = {name: value for name, value in saved.items() if name.startswith(_WEIGHTS_OF)}
    try:
        _, chosen = open_initial(start)
    except ModelError:
        return Initial(None, fingerprint)
    if chosen.weights_hash not in fingerprint.values():
        log.warning(
            "%s has changed since this run started from it; it continues from its own checkpoint.", short_path(start)
        )
    return Initial(None, fingerprint)


def _report_unknown(tokenizer: Tokenizer, side: str, texts: Sequence[str]) -> None:
    """Report text that an inherited tokenizer has no token for, since the model cannot distinguish it."""
    odd = [text for text, ids in zip(texts, tokenizer.ids(texts), strict=True) if UNKNOWN in ids]
    if not odd:
        return
    unknown = dict.fromkeys(
        text[slice(*span)]
        for text, tokens in zip(odd, tokenizer.encode(odd), strict=True)
        for token, span in zip(tokens.ids, tokens.offsets, strict=True)
        if token == UNKNOWN
    )
    named = ", ".join(map(repr, islice(unknown, _MOST_NAMED))) + (" and others" if len(unknown) > _MOST_NAMED else "")
    log.warning("The model has no token for %s (in %d of %d %ss).", named, len(odd), len(texts), side)
