"""The loop: one readable function that trains any model of the house and survives what may happen to it."""

import contextlib
import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from regard.config import differences, write_yaml
from regard.data.batching import Batch, BatchOrder, Encoded
from regard.data.corpora import Corpus, load_corpus
from regard.data.tokenizers import TokenizerPair
from regard.decoding.translator import Translator
from regard.errors import ConfigError, DataError, DivergedError, Interrupted, ResourceError
from regard.models.seq2seq import Seq2Seq, build_model
from regard.training import card, checkpoint
from regard.training.checkpoint import Progress
from regard.training.events import EventLog, Narrator
from regard.training.folder import RunFolder, write_whole
from regard.training.losses import backward, is_out_of_memory
from regard.training.optim import build_optimizer, clip_gradients, learning_rate
from regard.training.settings import RunSettings
from regard.training.signals import stop_on_signals
from regard.training.validation import validate


def train(settings: RunSettings, folder: RunFolder) -> Progress:
    """Train in a folder, or go on where it stopped; the same command always ends with the same weights."""
    with _told_when_disk_fails(folder), folder.lock():
        if folder.all_checkpoints():
            _see_that_it_is_the_same(folder, settings)
        corpus = load_corpus(settings.data)
        folder.clear_remains()
        with _threads(settings.training.threads):
            return _Run.begin(settings, folder, corpus).finish()


def _see_that_it_is_the_same(folder: RunFolder, settings: RunSettings) -> None:
    changed = differences(folder.settings(), settings)
    if changed:
        listed = "; ".join(f"{key} was {old!r} and is now {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"{folder.path} was begun with other settings: {listed}. Give the same settings to go on, "
            f"choose another folder with --out, or remove {folder.path} to begin anew."
        )


@dataclass
class _Run:
    """What the loop holds in its hands."""

    settings: RunSettings
    folder: RunFolder
    corpus: Corpus
    data: Encoded
    order: BatchOrder
    model: Seq2Seq
    optimizer: torch.optim.Optimizer
    translator: Translator
    progress: Progress
    pieces: int = 1
    """In how many pieces a batch is worked out; doubled when memory gives out."""

    @classmethod
    def begin(cls, settings: RunSettings, folder: RunFolder, corpus: Corpus) -> "_Run":
        """A run at step 0, or where its newest whole checkpoint left it."""
        torch.manual_seed(settings.seed)
        tokenizers = TokenizerPair.build(settings.tokenizer, corpus.train.sources, corpus.train.targets)
        max_length = settings.tokenizer.max_length
        data = Encoded.of(corpus.train, tokenizers, max_length)
        lengths = np.array([len(source) for source in data.sources])
        model = build_model(settings.model, len(tokenizers.source), len(tokenizers.target))
        model = model.to(_device(settings.training.device)).train()
        optimizer = build_optimizer(model, settings.training)
        progress = Progress(data=corpus.fingerprint())
        newest = folder.newest()
        if newest is not None:
            before = newest.state["data"]
            if before != progress.data:
                raise DataError(
                    f"The data of {folder.path} has changed since it was begun (now {len(corpus.train):,} training "
                    f"and {len(corpus.dev):,} dev pairs, SHA-256 {progress.data[:12]}…, then {before[:12]}…). "
                    "Bring the old files back to go on, or choose another folder with --out."
                )
            progress = checkpoint.restore(model, optimizer, newest)
        # Only now that nothing can be refused any more is anything written.
        tokenizers.save(folder.path, write_whole)
        write_whole(folder.config, lambda path: write_yaml(path, settings))
        return cls(
            settings,
            folder,
            corpus,
            data,
            BatchOrder(lengths, settings.training.batch_size, settings.seed),
            model,
            optimizer,
            Translator(model, tokenizers, settings.decoding, max_length),
            progress,
        )

    @property
    def done(self) -> bool:
        training = self.settings.training
        return self.progress.step >= training.steps or self.progress.stale >= training.patience

    def finish(self) -> Progress:
        """Take steps until all are taken, no better model is in sight, or somebody asks to stop."""
        training, progress = self.settings.training, self.progress
        with (
            EventLog(self.folder.events, progress.step) as events,
            Narrator(training.steps, progress.step) as narrator,
            stop_on_signals() as stop,
        ):
            narrator.say(self._opening())
            since, tokens = time.monotonic(), 0
            while not self.done:
                loss, count = self._step()
                tokens += count
                if progress.step % training.log_every == 0:
                    speed = tokens / (time.monotonic() - since)
                    events.write("train", step=progress.step, loss=loss, tokens_per_second=round(speed))
                    narrator.step(progress.step, loss, speed)
                    since, tokens = time.monotonic(), 0
                validated = progress.step % training.validate_every == 0 or progress.step == training.steps
                if validated:
                    self._validate(events, narrator)
                    since, tokens = time.monotonic(), 0
                if stop or validated or self.done or progress.step % training.save_every == 0:
                    self._save()
                if stop:
                    assert stop.by is not None
                    raise Interrupted(
                        f"Stopped by {stop.by.name} after step {progress.step:,}; the state is saved. "
                        "Give the same command to go on."
                    )
            narrator.say(self._closing())
        card.write(self.folder, self.settings, progress, self.model)
        return progress

    def _step(self) -> tuple[float, int]:
        """One batch, one update → (loss, tokens)."""
        step = self.progress.step
        batch = self.data.batch(self.order.at(step), self.translator.device)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step + 1, self.settings.training)
        loss, tokens = self._gradient(batch)
        norm = clip_gradients(self.model, self.settings.training.clip)
        if norm is None or not np.isfinite(loss):
            raise DivergedError(
                f"Training diverged at step {step + 1:,}: the loss is {loss} and its gradient is no longer finite. "
                f"The weights were not updated. The batch holds the training pairs {_some(batch.ids)}. Try a lower "
                "training.learning_rate or a longer training.warmup."
            )
        self.optimizer.step()
        self.progress.step = step + 1
        return loss, tokens

    def _gradient(self, batch: Batch) -> tuple[float, int]:
        """The gradient of a batch, in halves, quarters … where memory does not hold the whole."""
        while True:
            try:
                return backward(self.model, batch, self.settings.training.label_smoothing, self.pieces)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.pieces >= len(batch.ids):
                    raise ResourceError(
                        f"Memory gave out at step {self.progress.step + 1:,} even with one pair at a time (the "
                        f"longest of the batch has {batch.source.tokens_BT.shape[1]} tokens). Make the model or "
                        "tokenizer.max_length smaller."
                    ) from None
                self.pieces *= 2

    def _validate(self, events: EventLog, narrator: Narrator) -> None:
        progress = self.progress
        scores = validate(self.translator, self.corpus.dev, self.settings.training)
        self.model.train()
        better = scores.better_than(progress.best, self.settings.training.metric)
        if better:
            progress.best, progress.best_step, progress.stale = scores, progress.step, 0
        else:
            progress.stale += 1
        events.write("validation", step=progress.step, best=better, **scores.to_json())
        mark = ", the best so far" if better else ""
        narrator.say(f"validation at step {progress.step:,}: {scores.told(self.settings.training.metric)}{mark}")

    def _save(self) -> None:
        checkpoint.save(self.folder, self.model, self.optimizer, self.progress)
        checkpoint.prune(self.folder, self.settings.training.keep, self.progress.best_step)

    def _opening(self) -> str:
        if self.done:
            return f"{self.folder.path} has already been trained."
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        start = f"from step {self.progress.step:,} " if self.progress.step else ""
        return (
            f"Training {parameters:,} parameters on {len(self.corpus.train):,} pairs {start}"
            f"in {self.folder.path}, on {self.translator.device}."
        )

    def _closing(self) -> str:
        progress = self.progress
        early = ""
        if progress.step < self.settings.training.steps:
            early = f"; stopped early, no better in {progress.stale} validations"
        best = progress.best.told(self.settings.training.metric) if progress.best else "not validated"
        return f"Best model: step {progress.best_step}, {best}{early}."


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"training.device={name}: there is no CUDA device here. Use cpu or auto.")
    return torch.device(name)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Small operations on many threads wait more than they work; the count is set for the run alone.

    So is the rounding of denormal numbers to zero: a sharp softmax is full of them, and each costs a CPU a hundred
    times the work of another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@contextlib.contextmanager
def _told_when_disk_fails(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}:
            raise
        raise ResourceError(
            f"{folder.path} could not be written: {error.strerror}. The checkpoints before are whole: free some "
            "space and give the same command to go on."
        ) from None


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown} … ({len(ids)} in all)" if len(ids) > 8 else shown
