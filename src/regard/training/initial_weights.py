"""The initial weights of a fine-tuned run, and their hash, which is saved with every checkpoint."""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from regard.config import differences
from regard.data.corpora import Corpus, Pairs
from regard.data.settings import token_differences
from regard.data.tokens.tokenizers import TokenizerPair, UnknownTokens
from regard.errors import ConfigError, ModelError
from regard.formatting import short_path
from regard.models.seq2seq import Seq2Seq
from regard.runs import checkpoints
from regard.runs.checkpoints import LoadedModel
from regard.runs.folder import INIT_FROM, open_initial_run
from regard.runs.settings import RunSettings

log = logging.getLogger(__name__)

_HASH_PREFIX = "initial weights of "
"""Prefix of the name of the initial weights in the hashes of the inputs of a run."""

_MAX_SEARCHED = 20_000
"""The number of training pairs that are searched for unknown tokens."""


class InitialWeights(NamedTuple):
    """The model whose weights a run starts from, and their hash. Both are empty without `training.init_from`."""

    loaded: LoadedModel | None = None
    fingerprint: Mapping[str, str] = {}

    @property
    def tokenizers(self) -> TokenizerPair | None:
        return None if self.loaded is None else self.loaded.tokenizers

    def initialize(self, model: Seq2Seq, settings: RunSettings) -> None:
        """Copy the initial weights, if any, into a model with parameters of the same shapes.

        Buffers that only one of the models has, such as the baseline of hard attention, keep their values.
        """
        if self.loaded is None:
            return
        shapes, initial_shapes = (
            {name: parameter.shape for name, parameter in module.named_parameters()}
            for module in (model, self.loaded.model)
        )
        if shapes != initial_shapes:
            changed = differences(self.loaded.settings.model, settings.model)
            listed = "; ".join(f"model.{key} is {old!r} there and {new!r} here" for key, (old, new) in changed.items())
            raise ConfigError(
                f"{INIT_FROM}: the weights of {settings.training.init_from} do not fit this model: {listed}. Use the "
                f"same model settings, or train a new model without {INIT_FROM}."
            )
        model.load_state_dict(self.loaded.model.state_dict(), strict=False)


def load_initial_weights(
    settings: RunSettings, corpus: Corpus, teacher_tokenizers: TokenizerPair | None
) -> InitialWeights:
    """Load the initial weights of a new run."""
    init_from = settings.training.init_from
    if init_from is None:
        return InitialWeights()
    folder, checkpoint = open_initial_run(init_from, accept_changes=settings.training.accept_changes)
    loaded = checkpoints.load_model(folder, checkpoint)
    changed = [f"tokenizer.{key}" for key in token_differences(loaded.settings.tokenizer, settings.tokenizer)]
    if changed:
        raise ConfigError(
            f"{INIT_FROM}: {init_from} was trained with a different {', '.join(changed)}, so its token ids do not "
            f"match. Copy `tokenizer:` from {folder.config}."
        )
    if teacher_tokenizers is not None and teacher_tokenizers.fingerprint() != loaded.tokenizers.fingerprint():
        raise ConfigError(
            f"{INIT_FROM}: {init_from} and training.teachers have different vocabularies. Use only one of them."
        )
    pairs = Pairs.of(islice(corpus.train, _MAX_SEARCHED))
    _warn_of_unknown_tokens("source", loaded.reader.find_unknown(pairs.sources))
    _warn_of_unknown_tokens("target", loaded.tokenizers.target.find_unknown(pairs.targets))
    return InitialWeights(loaded, {f"{_HASH_PREFIX}{init_from}": loaded.checkpoint.weights_hash})


def recall_initial_weights(settings: RunSettings, saved: Mapping[str, str]) -> InitialWeights:
    """Return the hash of the weights that a resumed run started from.

    The weights themselves are no longer needed: a resumed run loads its own checkpoint. They may have been deleted; if
    they have changed, log a warning.
    """
    init_from = settings.training.init_from
    if init_from is None:
        return InitialWeights()
    fingerprint = {name: value for name, value in saved.items() if name.startswith(_HASH_PREFIX)}
    try:
        _, checkpoint = open_initial_run(init_from, accept_changes=False)
    except ModelError:
        return InitialWeights(None, fingerprint)
    if checkpoint.weights_hash not in fingerprint.values():
        log.warning(
            "%s has changed since this run started from it. The run resumes from its own checkpoint.",
            short_path(init_from),
        )
    return InitialWeights(None, fingerprint)


def _warn_of_unknown_tokens(side: str, unknown_by_row: Sequence[Sequence[str]]) -> None:
    """Log a warning if sources or targets contain characters or words that are not in the inherited vocabulary."""
    unknown = UnknownTokens()
    for row in unknown_by_row:
        unknown.add(row)
    if unknown:
        log.warning(
            "The model has no token for %s (in %d of %d %ss).", unknown, unknown.texts, len(unknown_by_row), side
        )
