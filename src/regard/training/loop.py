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

from regard.config import to_yaml
from regard.data.batching import Batch
from regard.data.corpora import Corpus, load_corpus
from regard.data.pinning import pin_data
from regard.data.preparation import Prepared, Request, prepare
from regard.data.sampler import BatchSampler
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.predictor import Predictor
from regard.errors import DivergedError, Interrupted, ResourceError, RunInUseError
from regard.evaluation.validation import validate
from regard.formatting import quantity
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.runs import card, checkpoints
from regard.runs.checkpoints import RunProgress
from regard.runs.events import EventLog, ProgressDisplay
from regard.runs.folder import Checkpoint, RunFolder
from regard.runs.lock import LockedFolder
from regard.runs.schedule import Schedule
from regard.runs.settings import RunSettings
from regard.training import tracking
from regard.training.averaging import MovingAverage, mean_in_place
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.distillation import TeacherModels, load_teachers, teachers_in
from regard.training.initial_weights import load_initial, recall_initial
from regard.training.machine import configure_torch, report_disk_failures, resolve_device
from regard.training.messages import describe_end, describe_pairs, describe_start
from regard.training.objective import Objective, backward
from regard.training.optim import build_optimizer, clip_gradients, learning_rate, set_rate
from regard.training.resume import check_data_unchanged, check_settings_unchanged
from regard.training.schedule import Deadline, build_batch_sampler, build_deadline, build_schedule
from regard.training.signals import stop_on_signals

log = logging.getLogger(__name__)


def train(settings: RunSettings, folder: RunFolder, started: float | None = None) -> RunProgress:
    """Train in a folder, or resume; the same command always ends with the same weights.

    A deadline (`training.minutes`) counts from `started`, a reading of `time.monotonic`, by default now. A resumed run
    follows the schedule that it was stopped with.
    """
    started = time.monotonic() if started is None else started
    settings = settings.absolute().model_copy(update={"data": pin_data(settings.data)})
    tracking.require(settings.training)
    with report_disk_failures(folder), folder.lock() as locked:
        folder.reject_foreign()
        if folder.all_checkpoints():
            check_settings_unchanged(folder, settings)
        corpus = load_corpus(settings.data)
        checkpoints.remove_unfinished(locked)
        with configure_torch(settings.training), ProgressDisplay() as narrator:
            training = Training.begin(settings, locked, corpus, narrator)
            training.set_deadline(started)
            return training.finish(narrator)


@dataclass
class Training:
    """What the loop holds in its hands."""

    settings: RunSettings
    locked: LockedFolder
    data: Prepared
    order: BatchSampler
    model: Seq2Seq
    worked: Seq2Seq
    """The model as its loss is worked out: itself, or compiled."""
    objective: Objective
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None
    predictor: Predictor
    progress: RunProgress
    update: Callable[[], Any]
    """A step of the optimizer: its own, or recorded."""
    recorder: GraphedGradient | None = None
    """What works out gradients on a GPU, where memory has room for whole batches."""
    ahead: dict[int, list[Batch]] = field(default_factory=dict)
    """The batches of the next step, where they are made while a GPU works."""
    deadline: Deadline | None = None
    """Rescales the schedule so that the run ends on time."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.locked.path)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @classmethod
    def begin(
        cls, settings: RunSettings, locked: LockedFolder, corpus: Corpus, narrator: ProgressDisplay
    ) -> "Training":
        """A run at step 0, or where its newest whole checkpoint left it."""
        training, device = settings.training, resolve_device(settings.training.device)
        folder = RunFolder(locked.path)
        newest = checkpoints.read_newest(folder)
        over = newest is not None and newest.progress.is_over(training)
        staff, fingerprint = TeacherModels() if over else load_teachers(settings, device), corpus.fingerprint()
        if newest is None:
            initial = load_initial(settings, corpus, staff.tokenizers)
        else:
            initial = recall_initial(settings, newest.state["data"])
        learned_from = {**fingerprint, **staff.fingerprint, **initial.fingerprint}
        if newest is not None:
            if over:  # the teachers are not needed any more
                learned_from |= teachers_in(newest.state["data"])
            check_data_unchanged(folder, newest.state["data"], learned_from)
            newest.checkpoint.see_that_tokenizers_are_those_saved()
        torch.manual_seed(settings.seed)
        inherited = initial.tokenizers or staff.tokenizers
        own = TokenizerPair.load(folder.path, settings.tokenizer) if newest is not None else inherited
        request = Request(corpus, fingerprint, settings.data, settings.tokenizer, settings.seed)
        data = prepare(request, own, narrator.say)
        order = build_batch_sampler(data.train, settings)
        model = build_model(settings.model, len(data.tokenizers.source), len(data.tokenizers.target))
        initial.initialize(model, settings)
        model = model.to(device).train()
        optimizer = build_optimizer(model, training)
        average = MovingAverage(model, training.ema_decay) if training.ema_decay else None
        schedule = build_schedule(order, training)
        progress = RunProgress(data=learned_from, schedule=schedule)
        if newest is not None:
            progress = checkpoints.restore(model, optimizer, newest, average.weights if average else None)
            if progress.schedule.length != schedule.length:
                progress.schedule = schedule
        # Only now that nothing can be refused any more is anything written.
        if newest is None:
            data.tokenizers.save(locked.directory.write)
        locked.directory.write(folder.config.name, to_yaml(settings).encode())
        predictor = Predictor(model, data.tokenizers, settings.decoding, settings.tokenizer.max_length)
        objective = Objective.of(training, device, staff.teaching)
        worked: Seq2Seq = torch.compile(model, dynamic=True) if training.compile else model  # type: ignore[assignment]
        # What is recomputed for its gradient is large, and gains nothing.
        plain = (
            training.compile
            or getattr(settings.model, "gradient_checkpointing", False)
            or progress.eager
            or progress.pieces > 1
        )
        recorded = device.type == "cuda" and training.cuda_graphs and not plain
        held = (settings, locked, data, order, model, worked, objective, optimizer, average, predictor, progress)
        if not recorded:
            return cls(*held, optimizer.step)
        return cls(*held, GraphedUpdate(optimizer), GraphedGradient(model, objective))

    @property
    def done(self) -> bool:
        return self.progress.is_over(self.settings.training)

    def set_deadline(self, started: float) -> None:
        """Set the deadline of a new run, if there is one. A resumed run follows its saved schedule."""
        training = self.settings.training
        if training.minutes is not None and self.progress.step == 0:
            self.deadline = build_deadline(training, started, self.order, len(self.data.train), len(self.data.dev))
        else:
            torch.set_num_threads(min(self.progress.schedule.current.threads or training.threads, training.threads))

    def finish(self, narrator: ProgressDisplay) -> RunProgress:
        """Take steps until all are taken, no better model is in sight, or somebody asks to stop."""
        training, progress = self.settings.training, self.progress
        listeners = tracking.listeners(training, self.locked.directory, progress.step)
        with EventLog(self.locked.directory, self._has_happened, listeners) as events, stop_on_signals() as stop:
            narrator.say(describe_start(self))
            narrator.begin(progress.schedule.end, progress.step)
            progress.averaged = progress.averaged and self.done  # an extended run averages its new last checkpoints
            since, tokens = time.monotonic(), 0
            while not self.done:
                loss, count = self._take_timed_step(events, narrator)
                tokens += count
                if progress.step % training.log_every == 0:
                    speed = tokens / (time.monotonic() - since)
                    rate = self._rate(progress.step)
                    events.write(
                        "train", step=progress.step, loss=loss, learning_rate=rate, tokens_per_second=round(speed)
                    )
                    narrator.step(progress.step, loss, speed)
                    since, tokens = time.monotonic(), 0
                stepped = time.monotonic()
                validates = progress.schedule.validates(progress.step, training.validate_every)
                if validates:
                    self._validate(events, narrator)
                before, moved = self.folder.path, self.locked.follow()
                if stop or moved or self._saved_at(progress.step):
                    self._save()
                if moved:
                    raise RunInUseError(
                        f"{before} was moved to {moved} while it was being trained. The state after step "
                        f"{progress.step:,} is saved there: resume with `regard train {moved}`."
                    )
                if validates:
                    if self.deadline is not None:
                        self.deadline.note_validation(time.monotonic() - stepped)
                    since, tokens = time.monotonic(), 0
                if stop:
                    assert stop.by is not None
                    raise Interrupted(
                        f"Stopped by {stop.by.name} after step {progress.step:,}; the state is saved. "
                        "Give the same command to go on."
                    )
            if progress.averaged:
                self._see_that_the_mean_is_whole()
            elif training.average_checkpoints > 1:
                self._try_mean(events, narrator)
            self.stop_recording()
            narrator.say(describe_end(self))
        card.write(self.locked, self.settings, progress, self.model)
        return progress

    def batches(self, step: int) -> list[Batch]:
        """What is learned from at a step."""
        first = step * self.settings.training.accumulate
        places = range(first, first + self.settings.training.accumulate)
        device, order, few = self.predictor.device, self.order, self.recorder is not None
        return [
            self.data.train.batch(order.at(place), device, order.epoch_at(place), bucketed_shapes=few)
            for place in places
        ]

    def _take_timed_step(self, events: EventLog, narrator: ProgressDisplay) -> tuple[float, int]:
        """One update, before which the schedule is rescaled if it would miss the deadline → (loss, tokens)."""
        deadline, progress = self.deadline, self.progress
        if deadline is None:
            return self.take_step()
        if deadline.is_due():
            before = progress.schedule
            progress.schedule = deadline.revise(before, progress.step, self.settings.training.validate_every)
            if progress.schedule is not before:
                self._announce_schedule(before, events, narrator)
        begun = time.monotonic()
        taken = self.take_step()
        deadline.note_step(time.monotonic() - begun)
        return taken

    def _announce_schedule(self, before: Schedule, events: EventLog, narrator: ProgressDisplay) -> None:
        schedule, step = self.progress.schedule, self.progress.step
        assert self.deadline is not None
        assert self.deadline.pace is not None
        torch.set_num_threads(schedule.current.threads or self.settings.training.threads)
        pace = float(f"{self.deadline.pace:.3g}")
        events.write("schedule", step=step, end=schedule.end, seconds_per_step=pace, threads=torch.get_num_threads())
        narrator.set_steps(schedule.end)
        if abs(schedule.end - before.end) > 0.1 * (before.end - step):
            narrator.say(f"At {pace:g} s per step, {schedule.end:,} steps fit the deadline (before: {before.end:,}).")

    def take_step(self) -> tuple[float, int]:
        """One update → (loss, tokens)."""
        step, training = self.progress.step, self.settings.training
        batches = self.ahead.pop(step, None) or self.batches(step)
        set_rate(self.optimizer, self._rate(step + 1))
        random = checkpoints.random_state(self.predictor.device)
        gradient = self._gradient(batches)
        if gradient is None:
            self._use_less_memory(batches, random)
            return self.take_step()
        share, tokens = gradient
        norm = clip_gradients(self.parameters, training.max_grad_norm)
        if self.predictor.device.type == "cuda" and step + 1 < self.progress.schedule.end:
            self.ahead = {step + 1: self.batches(step + 1)}  # while the GPU works
        loss, norm = torch.stack([share, norm]).tolist()
        if not np.isfinite([loss, norm]).all():
            raise DivergedError(
                f"Training diverged at step {step + 1:,}: the loss is {loss} and its gradient is no longer finite. "
                f"The weights were not updated. The batch holds the training pairs {describe_pairs(batches)}. "
                "Try a lower training.learning_rate or a longer training.warmup."
            )
        self.update()
        self.progress.step = step + 1
        if self.average is not None:
            self.average.update(step + 1)
        return loss, tokens

    def stop_recording(self) -> None:
        """Go on by telling the device all, and give the memory of recordings back."""
        self.recorder, self.update, self.ahead = None, self.optimizer.step, {}
        if self.predictor.device.type == "cuda":
            cuda_graphs.forget(self.predictor.device)

    def _rate(self, step: int) -> float:
        return learning_rate(self.progress.schedule.position(step), self.settings.training, self.progress.falls)

    def _gradient(self, batches: list[Batch]) -> tuple[torch.Tensor, int] | None:
        """The gradient of batches → (loss, tokens); None if it needs more memory than there is."""
        progress = self.progress
        objective = self.objective.at(progress.schedule.position(progress.step))
        if self.recorder is not None and self.recorder.objective != objective:
            self.recorder = GraphedGradient(self.model, objective)
        try:
            return backward(self.worked, batches, objective, progress.pieces, self.recorder)
        except RuntimeError as error:
            if not cuda_graphs.is_out_of_memory(error):
                raise
            return None

    def _use_less_memory(self, batches: list[Batch], random: dict[str, torch.Tensor]) -> None:
        """After memory ran out: do without CUDA graphs, or else halve the micro-batches.

        Both change the rounding, and which random numbers are used for which pair. So the random state before the step
        is restored and the state is saved before the step is repeated: a run that is killed resumes in the same way.
        """
        progress = self.progress
        if self.recorder is not None:
            progress.eager = True
            self.stop_recording()
            remedy = "CUDA graphs are not used any more"
        elif progress.pieces >= max(len(batch.ids) for batch in batches):
            longest = max(batch.source.tokens_BT.shape[1] for batch in batches)
            raise ResourceError(
                f"Out of memory at step {progress.step + 1:,}, even with a batch of one pair (the longest has "
                f"{longest} tokens). Use a smaller model or a smaller tokenizer.max_length."
            )
        else:
            progress.pieces *= 2
            remedy = f"each batch is processed as {progress.pieces} micro-batches"
        log.warning(
            "Out of memory at step %d: from now on, %s. The weights differ in rounding from those of a run with more "
            "memory.", progress.step + 1, remedy,
        )  # fmt: skip
        checkpoints.set_random_state(random, self.predictor.device)
        self._save()

    def _validate(self, events: EventLog, narrator: ProgressDisplay) -> None:
        training, progress = self.settings.training, self.progress
        with self.average.in_place_of(self.model) if self.average is not None else contextlib.nullcontext():
            better = self._judge(events, narrator)
        if better:
            progress.stale = progress.waited = 0
            return
        progress.stale, progress.waited = progress.stale + 1, progress.waited + 1
        if training.decay == "plateau" and progress.waited >= training.plateau_patience:
            progress.waited, progress.falls = 0, progress.falls + 1

    def _judge(self, events: EventLog, narrator: ProgressDisplay, name: str | None = None) -> bool:
        """Score the model as it is, and say whether it is the best so far."""
        progress = self.progress
        dev, training = self.data.dev, self.settings.training
        scores = validate(
            self.predictor, dev.first(training.validation_pairs), training.metrics, training.validation_search
        )
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
        training, schedule = self.settings.training, self.progress.schedule
        return step > 0 and any(
            schedule.reaches(step, every) for every in (training.validate_every, training.save_every)
        )

    def _has_happened(self, event: dict[str, Any]) -> bool:
        """Whether an event belongs to what the run goes on from; the mean is tried after the last step."""
        step: int = event.get("step", 0)
        return step < self.progress.step or (
            step == self.progress.step and (self.progress.averaged or "of" not in event)
        )

    def _save(self) -> None:
        training = self.settings.training
        averaged = self.average.weights if self.average else None
        checkpoints.save(self.locked, self.model, self.optimizer, self.progress, averaged)
        checkpoints.prune(
            self.locked,
            max(training.keep_checkpoints, training.average_checkpoints),
            self.progress.best_step,
            self._saved_at,
        )

    def _try_mean(self, events: EventLog, narrator: ProgressDisplay) -> None:
        """Use the mean of the last checkpoints if validation finds it better than each."""
        last = self._last_checkpoints()
        narrator.say(f"Average of the last {quantity(len(last), 'checkpoint')}:")
        self.progress.averaged = True
        with mean_in_place(self.model, last):
            if self._judge(events, narrator, f"mean-{self.progress.step}"):
                checkpoints.save_average(self.locked, self.model, self.progress)
        self._save()

    def _see_that_the_mean_is_whole(self) -> None:
        """A mean that was lost or damaged since is made again."""
        name = self.progress.best_name
        if name is not None and Checkpoint(self.folder.checkpoints / name).problem() is not None:
            with mean_in_place(self.model, self._last_checkpoints()):
                checkpoints.save_average(self.locked, self.model, self.progress)

    def _last_checkpoints(self) -> list[Checkpoint]:
        """Those that the mean is of: the same whether or not a signal had the run saved at other steps too."""
        own = (entry for entry in self.folder.all_checkpoints() if self._saved_at(entry.step))
        return [entry for entry in own if entry.problem() is None][: self.settings.training.average_checkpoints]
