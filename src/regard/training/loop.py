"""The loop: one readable function that trains any model of the house and survives what may happen to it."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import graphs
from regard.config import to_yaml
from regard.data.batching import Batch, Encoded
from regard.data.corpora import Corpus, load_corpus
from regard.data.order import ByPairs, ByTokens, Order, padding_share
from regard.data.pinning import pin_data
from regard.data.preparation import Prepared, Request, prepare
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.translator import Translator
from regard.errors import DataError, DivergedError, Interrupted, ResourceError, RunInUseError, quantity
from regard.models.seq2seq import Seq2Seq, build_model
from regard.training import card, checkpoint, tracking
from regard.training.checkpoint import Progress
from regard.training.events import EventLog, Narrator
from regard.training.folder import Checkpoint, RunFolder
from regard.training.graphs import RecordedGradient, RecordedUpdate
from regard.training.initial import load_initial, recall_initial
from regard.training.lock import LockedFolder
from regard.training.losses import Objective, backward
from regard.training.machine import device_named, kept_for_a_run, told_when_disk_fails
from regard.training.optim import build_optimizer, clip_gradients, learning_rate, set_rate
from regard.training.resume import check_data_unchanged, check_settings_unchanged
from regard.training.settings import RunSettings
from regard.training.signals import stop_on_signals
from regard.training.teaching import Staff, staff_of, teachers_in
from regard.training.validation import validate
from regard.training.weights import MovingAverage, mean_in_place

log = logging.getLogger(__name__)


def train(settings: RunSettings, folder: RunFolder) -> Progress:
    """Train in a folder, or go on where it stopped; the same command always ends with the same weights."""
    settings = settings.absolute().model_copy(update={"data": pin_data(settings.data)})
    tracking.require(settings.training)
    with told_when_disk_fails(folder), folder.lock() as locked:
        folder.reject_foreign()
        if folder.all_checkpoints():
            check_settings_unchanged(folder, settings)
        corpus = load_corpus(settings.data)
        checkpoint.clear_remains(locked)
        with kept_for_a_run(settings.training.threads), Narrator() as narrator:
            return Training.begin(settings, locked, corpus, narrator).finish(narrator)


@dataclass
class Training:
    """What the loop holds in its hands."""

    settings: RunSettings
    locked: LockedFolder
    data: Prepared
    order: Order
    model: Seq2Seq
    worked: Seq2Seq
    """The model as its loss is worked out: itself, or compiled."""
    objective: Objective
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None
    translator: Translator
    progress: Progress
    update: Callable[[], Any]
    """A step of the optimiser: its own, or recorded."""
    recorder: RecordedGradient | None = None
    """What works out gradients on a GPU, where memory has room for whole batches."""
    ahead: dict[int, list[Batch]] = field(default_factory=dict)
    """The batches of the next step, where they are made while a GPU works."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.locked.path)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @classmethod
    def begin(cls, settings: RunSettings, locked: LockedFolder, corpus: Corpus, narrator: Narrator) -> "Training":
        """A run at step 0, or where its newest whole checkpoint left it."""
        training, device = settings.training, device_named(settings.training.device)
        folder = RunFolder(locked.path)
        newest = checkpoint.read_newest(folder)
        over = newest is not None and training.is_over(newest.state["step"], newest.state["stale"])
        staff, fingerprint = Staff() if over else staff_of(settings, device), corpus.fingerprint()
        if newest is None:
            initial = load_initial(settings, corpus, staff.tokenizers)
        else:
            initial = recall_initial(settings, newest.state["data"])
        learned_from = {**fingerprint, **staff.fingerprint, **initial.fingerprint}
        if newest is not None:
            if over:  # nobody is asked any more what the teachers say
                learned_from |= teachers_in(newest.state["data"])
            check_data_unchanged(folder, newest.state["data"], learned_from)
            newest.checkpoint.see_that_tokenizers_are_those_saved()
        torch.manual_seed(settings.seed)
        inherited = initial.tokenizers or staff.tokenizers
        own = TokenizerPair.load(folder.path, settings.tokenizer) if newest is not None else inherited
        request = Request(corpus, fingerprint, settings.data, settings.tokenizer, settings.seed)
        data = prepare(request, own, narrator.say)
        order = order_of(data.train, settings)
        model = build_model(settings.model, len(data.tokenizers.source), len(data.tokenizers.target))
        initial.initialize(model, settings)
        model = model.to(device).train()
        optimizer = build_optimizer(model, training)
        average = MovingAverage(model, training.ema) if training.ema else None
        progress = Progress(data=learned_from)
        if newest is not None:
            progress = checkpoint.restore(model, optimizer, newest, average)
        # Only now that nothing can be refused any more is anything written.
        if newest is None:
            data.tokenizers.save(locked.directory.write)
        locked.directory.write(folder.config.name, to_yaml(settings).encode())
        translator = Translator(model, data.tokenizers, settings.decoding, settings.tokenizer.max_length)
        objective = Objective.of(training, device, staff.teaching)
        worked: Seq2Seq = torch.compile(model, dynamic=True) if training.compile else model  # type: ignore[assignment]
        # What is recomputed for its gradient is large, and gains nothing.
        plain = training.compile or getattr(settings.model, "recompute", False) or progress.eager or progress.pieces > 1
        recorded = device.type == "cuda" and training.graphs and not plain
        held = (settings, locked, data, order, model, worked, objective, optimizer, average, translator, progress)
        if not recorded:
            return cls(*held, optimizer.step)
        return cls(*held, RecordedUpdate(optimizer), RecordedGradient(model, objective))

    @property
    def done(self) -> bool:
        return self.settings.training.is_over(self.progress.step, self.progress.stale)

    def finish(self, narrator: Narrator) -> Progress:
        """Take steps until all are taken, no better model is in sight, or somebody asks to stop."""
        training, progress = self.settings.training, self.progress
        listeners = tracking.listeners(training, self.locked.directory, progress.step)
        with EventLog(self.locked.directory, self._has_happened, listeners) as events, stop_on_signals() as stop:
            narrator.say(self._opening())
            narrator.begin(training.steps, progress.step)
            progress.averaged = progress.averaged and self.done  # an extended run averages its new last checkpoints
            since, tokens = time.monotonic(), 0
            while not self.done:
                loss, count = self.take_step()
                tokens += count
                if progress.step % training.log_every == 0:
                    speed = tokens / (time.monotonic() - since)
                    rate = self._rate(progress.step)
                    events.write(
                        "train", step=progress.step, loss=loss, learning_rate=rate, tokens_per_second=round(speed)
                    )
                    narrator.step(progress.step, loss, speed)
                    since, tokens = time.monotonic(), 0
                if progress.step % training.validate_every == 0 or progress.step == training.steps:
                    self._validate(events, narrator)
                    since, tokens = time.monotonic(), 0
                before, moved = self.folder.path, self.locked.follow()
                if stop or moved or self._saved_at(progress.step):
                    self._save()
                if moved:
                    raise RunInUseError(
                        f"{before} was moved to {moved} while it was being trained. The state after step "
                        f"{progress.step:,} is saved there: resume with `regard train {moved}`."
                    )
                if stop:
                    assert stop.by is not None
                    raise Interrupted(
                        f"Stopped by {stop.by.name} after step {progress.step:,}; the state is saved. "
                        "Give the same command to go on."
                    )
            if progress.averaged:
                self._see_that_the_mean_is_whole()
            elif training.average > 1:
                self._try_mean(events, narrator)
            self.stop_recording()
            narrator.say(self._closing())
        card.write(self.locked, self.settings, progress, self.model)
        return progress

    def batches(self, step: int) -> list[Batch]:
        """What is learned from at a step."""
        first = step * self.settings.training.accumulate
        places = range(first, first + self.settings.training.accumulate)
        device, order, few = self.translator.device, self.order, self.recorder is not None
        return [
            self.data.train.batch(order.at(place), device, order.epoch_at(place), few_shapes=few) for place in places
        ]

    def take_step(self) -> tuple[float, int]:
        """One update → (loss, tokens)."""
        step, training = self.progress.step, self.settings.training
        batches = self.ahead.pop(step, None) or self.batches(step)
        set_rate(self.optimizer, self._rate(step + 1))
        random = checkpoint.random_state(self.translator.device)
        gradient = self._gradient(batches)
        if gradient is None:
            self._use_less_memory(batches, random)
            return self.take_step()
        share, tokens = gradient
        norm = clip_gradients(self.parameters, training.clip)
        if self.translator.device.type == "cuda" and step + 1 < training.steps:
            self.ahead = {step + 1: self.batches(step + 1)}  # while the GPU works
        loss, norm = torch.stack([share, norm]).tolist()
        if not np.isfinite([loss, norm]).all():
            raise DivergedError(
                f"Training diverged at step {step + 1:,}: the loss is {loss} and its gradient is no longer finite. "
                f"The weights were not updated. The batch holds the training pairs {_some(batches)}. Try a lower "
                "training.learning_rate or a longer training.warmup."
            )
        self.update()
        self.progress.step = step + 1
        if self.average is not None:
            self.average.update(step + 1)
        return loss, tokens

    def stop_recording(self) -> None:
        """Go on by telling the device all, and give the memory of recordings back."""
        self.recorder, self.update, self.ahead = None, self.optimizer.step, {}
        if self.translator.device.type == "cuda":
            graphs.forget(self.translator.device)

    def _rate(self, step: int) -> float:
        return learning_rate(step, self.settings.training, self.progress.falls)

    def _gradient(self, batches: list[Batch]) -> tuple[torch.Tensor, int] | None:
        """The gradient of batches → (loss, tokens); None if it needs more memory than there is."""
        progress, objective = self.progress, self.objective.at(self.progress.step)
        if self.recorder is not None and self.recorder.objective != objective:
            self.recorder = RecordedGradient(self.model, objective)
        try:
            return backward(self.worked, batches, objective, progress.pieces, self.recorder)
        except RuntimeError as error:
            if not graphs.is_out_of_memory(error):
                raise
            return None

    def _use_less_memory(self, batches: list[Batch], random: dict[str, torch.Tensor]) -> None:
        """After memory ran out: do without CUDA graphs, or else halve the micro-batches.

        Both change the rounding, and which random numbers meet which pair. So the step starts again as if it had not
        been tried, and the state is saved first: a run that is killed resumes in the same way.
        """
        progress = self.progress
        if self.recorder is not None:
            progress.eager = True
            self.stop_recording()
            remedy = "CUDA graphs are not used any more"
        elif progress.pieces >= max(len(batch.ids) for batch in batches):
            longest = max(batch.source.tokens_BT.shape[1] for batch in batches)
            raise ResourceError(
                f"Memory gave out at step {progress.step + 1:,} even with one pair at a time (the "
                f"longest of the batch has {longest} tokens). Make the model or "
                "tokenizer.max_length smaller."
            )
        else:
            progress.pieces *= 2
            remedy = f"each batch is processed as {progress.pieces} micro-batches"
        log.warning(
            "Out of memory at step %d: from here on %s. The weights differ in rounding from those of a run with more "
            "memory.", progress.step + 1, remedy,
        )  # fmt: skip
        checkpoint.set_random_state(random, self.translator.device)
        self._save()

    def _validate(self, events: EventLog, narrator: Narrator) -> None:
        training, progress = self.settings.training, self.progress
        with self.average.in_place_of(self.model) if self.average is not None else contextlib.nullcontext():
            better = self._judge(events, narrator)
        if better:
            progress.stale = progress.waited = 0
            return
        progress.stale, progress.waited = progress.stale + 1, progress.waited + 1
        if training.decay == "plateau" and progress.waited >= training.plateau_patience:
            progress.waited, progress.falls = 0, progress.falls + 1

    def _judge(self, events: EventLog, narrator: Narrator, name: str | None = None) -> bool:
        """Score the model as it is, and say whether it is the best so far."""
        progress = self.progress
        scores = validate(self.translator, self.data.dev, self.settings.training)
        self.model.train()
        better = scores.better_than(progress.best, self.settings.training.metric)
        if better:
            progress.best, progress.best_step, progress.best_name = scores, progress.step, name
        of = {"of": name} if name else {}
        events.write("validation", step=progress.step, **of, best=better, **scores.to_json())
        mark = ", the best so far" if better else ""
        narrator.say(f"validation at step {progress.step:,}: {scores.told(self.settings.training.metric)}{mark}")
        return better

    def _saved_at(self, step: int) -> bool:
        """Whether a run that nobody stops is saved after this step."""
        training = self.settings.training
        regular = step % training.validate_every == 0 or step % training.save_every == 0 or step == training.steps
        return step > 0 and regular

    def _has_happened(self, event: dict[str, Any]) -> bool:
        """Whether an event belongs to what the run goes on from; the mean is tried after the last step."""
        step: int = event.get("step", 0)
        return step < self.progress.step or (
            step == self.progress.step and (self.progress.averaged or "of" not in event)
        )

    def _save(self) -> None:
        training = self.settings.training
        checkpoint.save(self.locked, self.model, self.optimizer, self.progress, self.average)
        checkpoint.prune(self.locked, max(training.keep, training.average), self.progress.best_step, self._saved_at)

    def _try_mean(self, events: EventLog, narrator: Narrator) -> None:
        """Use the mean of the last checkpoints if validation finds it better than each."""
        last = self._last_checkpoints()
        narrator.say(f"the mean of the last {quantity(len(last), 'checkpoint')}:")
        self.progress.averaged = True
        with mean_in_place(self.model, last):
            if self._judge(events, narrator, f"mean-{self.progress.step}"):
                checkpoint.save_mean(self.locked, self.model, self.progress)
        self._save()

    def _see_that_the_mean_is_whole(self) -> None:
        """A mean that was lost or damaged since is made again."""
        name = self.progress.best_name
        if name is not None and Checkpoint(self.folder.checkpoints / name).problem() is not None:
            with mean_in_place(self.model, self._last_checkpoints()):
                checkpoint.save_mean(self.locked, self.model, self.progress)

    def _last_checkpoints(self) -> list[Checkpoint]:
        """Those that the mean is of: the same whether or not a signal had the run saved at other steps too."""
        own = (entry for entry in self.folder.all_checkpoints() if self._saved_at(entry.step))
        return [entry for entry in own if entry.problem() is None][: self.settings.training.average]

    def _opening(self) -> str:
        if self.done:
            progress, training = self.progress, self.settings.training
            early = progress.step < training.steps
            how = f"Raise training.patience ({training.patience}) to continue." if early else ""
            return f"{self.folder.path} has already been trained. {how}".rstrip()
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        start = f"from step {self.progress.step:,} " if self.progress.step else ""
        return (
            f"Training {parameters:,} parameters on {quantity(len(self.data.train), 'pair')} {start}"
            f"in {self.folder.path}, on {self.translator.device}{self.objective.told()}. {self._told_of_batches()}"
        )

    def _told_of_batches(self) -> str:
        sides = self.data.train.lengths_in(0).T
        padding = sum(padding_share(self.order, lengths) for lengths in sides) / 2
        steps = -(-self.order.steps_per_epoch // self.settings.training.accumulate)
        return f"An epoch has {quantity(steps, 'step')}; {padding:.0%} of the batches is padding."

    def _closing(self) -> str:
        progress = self.progress
        early = ""
        if progress.step < self.settings.training.steps:
            early = f"; stopped early, no better in {quantity(progress.stale, 'validation')}"
        best = progress.best.told(self.settings.training.metric) if progress.best else "not validated"
        which = "the mean of the last checkpoints" if progress.best_name else f"step {progress.best_step}"
        return f"Best model: {which}, {best}{early}."


def order_of(data: Encoded, settings: RunSettings) -> Order:
    """Which pairs a run learns from at which step."""
    training = settings.training
    if training.batch_tokens is None:
        return ByPairs(data.sources.lengths, training.batch_size, settings.seed, data.sources.lengths_in)
    longest = min(training.longest or training.batch_tokens, training.batch_tokens)
    lengths_N2 = data.lengths_N2
    order = ByTokens(lengths_N2, training.batch_tokens, settings.seed, longest, data.lengths_in)
    left_out = int((lengths_N2.max(1) > longest).sum())
    if left_out == len(data):
        raise DataError(
            f"Every training pair has more than {longest:,} tokens on a side. Raise training.batch_tokens"
            f"{' or training.longest' if training.longest else ''}."
        )
    if left_out:
        log.warning("%s of more than %d tokens on a side left out of training.", quantity(left_out, "pair"), longest)
    return order


def _some(batches: list[Batch]) -> str:
    ids = [index for batch in batches for index in batch.ids]
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown} … ({len(ids)} in all)" if len(ids) > 8 else shown
