"""The state of a training run: what a step reads and changes. Built for a new run, or restored from a checkpoint."""

import copy
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.record import attention_roles
from regard.config import to_yaml
from regard.data.batching import Batch, EncodedCorpus
from regard.data.corpora import Corpus
from regard.data.features import FeatureReader, cache_features
from regard.data.guidance import AlignmentFile
from regard.data.preparation import PreparationRequest, PreparedData, Report, prepare
from regard.data.sampler import BatchSampler
from regard.data.source_readers import find_reader
from regard.data.tokens.tokenizers import TokenizerPair
from regard.decoding.predictor import Predictor
from regard.errors import ConfigError, DataError
from regard.formatting import quantity
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.registry import plugins_of
from regard.runs import checkpoints
from regard.runs.checkpoints import SavedCheckpoint
from regard.runs.directory import LockedFolder
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress
from regard.runs.settings import RunSettings, TrainingSettings
from regard.runs.tensors import check_sizes
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.distillation import TEACHER, TeacherModels, load_teachers
from regard.training.distributed import ALONE, Group, assign_shares, shard_like
from regard.training.initial_weights import InitialWeights, load_initial_weights, recall_initial_weights
from regard.training.objective import LossModule, Objective
from regard.training.optim import MovingAverage, build_optimizer, get_local, learning_rate
from regard.training.resume import check_data_unchanged, check_model_unchanged
from regard.training.schedule import Deadline, build_batch_sampler, build_schedule

_ALIGNMENTS = "alignments "
"""Prefix of the name of an alignment file in the hashes of the inputs of a run."""


@dataclass(kw_only=True)
class TrainingState:
    """Everything that a training step reads or changes."""

    settings: RunSettings
    locked: LockedFolder | None
    """The run folder; None if another rank writes it."""
    group: Group
    device: torch.device
    data: PreparedData
    sampler: BatchSampler
    model: Seq2Seq
    compiled: Seq2Seq
    """The model as the loss is computed: itself, or compiled by `torch.compile`."""
    objective: Objective
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None
    predictor: Predictor
    progress: RunProgress
    update: Callable[[], Any]
    """A step of the optimizer: its own, or a CUDA graph."""
    sharded: LossModule | None = None
    """Computes the loss if the model is divided among the ranks; None if each rank has all of it."""
    gradient: GraphedGradient | None = None
    """Computes gradients with CUDA graphs; None if they are computed eagerly."""
    prefetched: dict[int, "StepBatches"] = field(default_factory=dict)
    """The batches of the next step, prepared while a GPU computes this one."""
    deadline: Deadline | None = None
    """Rescales the schedule so that the run ends on time."""

    @property
    def folder(self) -> RunFolder:
        assert self.locked is not None, "only rank 0 accesses the run folder"
        return RunFolder(self.locked.path)

    @property
    def is_finished(self) -> bool:
        return self.progress.is_finished(self.settings.training)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @cached_property
    def changing_buffers(self) -> list[Tensor]:
        """The buffers that a forward pass may change, if they must be the same on several ranks."""
        modules = self.model.modules() if self.group.size > 1 else ()
        return [
            buffer
            for module in modules
            if module.training
            for buffer in module.buffers(recurse=False)
            if buffer.is_floating_point()
        ]

    @cached_property
    def diagnosed_pairs(self) -> EncodedCorpus | None:
        """The dev pairs on which the attention weights are diagnosed; None if they are not."""
        count = self.settings.training.diagnostics
        if not count or not attention_roles(self.model):
            return None
        pairs = self.data.dev.first(self.settings.training.validation_pairs).first(count)
        return EncodedCorpus.of(pairs, self.predictor.reader, self.predictor.tokenizer, self.predictor.max_length)

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.progress.schedule.position(step), self.settings.training, self.progress.lr_reductions)

    def batches(self, step: int) -> "StepBatches":
        """Return the micro-batches of this rank in a step, a pure function of the seed and the step."""
        accumulate, seed = self.settings.training.accumulate, self.settings.seed
        bucketed = self.gradient is not None
        micro_batches, first = [], step * accumulate
        for share in assign_shares(self.group.rank, self.group.size, accumulate, self.progress.micro_batches):
            ids, epoch = self.sampler.at(first + share.batch), self.sampler.epoch_at(first + share.batch)
            rows = share.select(ids)
            if not rows and self.group.size == 1:
                continue
            # All ranks process the same number of micro-batches. One without rows contributes nothing to the loss.
            batch = self.data.train.batch(rows or ids[:1], self.device, epoch, bucketed_shapes=bucketed)
            tokens = batch.tokens if rows else 0
            micro_batches.append(batch._replace(tokens=tokens, seed=derive_seed(seed, step, share.batch, share.part)))
        if self.group.size == 1:
            return StepBatches(micro_batches, sum(batch.tokens for batch in micro_batches))
        indices = range(first, first + accumulate)
        count = self.data.train.count_target_tokens
        tokens = sum(count(self.sampler.at(index), self.sampler.epoch_at(index)) for index in indices)
        return StepBatches(micro_batches, tokens)

    def pairs(self, step: int) -> list[int]:
        """Return the indices of all training pairs of a step."""
        accumulate = self.settings.training.accumulate
        indices = range(step * accumulate, (step + 1) * accumulate)
        return [row for index in indices for row in self.sampler.at(index)]

    def release_cuda_graphs(self) -> None:
        """Compute eagerly from now on, and free the memory of the CUDA graphs."""
        self.gradient, self.update, self.prefetched = None, self.optimizer.step, {}
        if self.device.type == "cuda":
            cuda_graphs.release_graphs(self.device)


class StepBatches(NamedTuple):
    """The micro-batches of a rank in a step, and the number of target tokens of all ranks."""

    micro_batches: list[Batch]
    tokens: int


def derive_seed(*key: int) -> int:
    """Return a 64-bit hash of numbers."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())


def start_training(
    settings: RunSettings, locked: LockedFolder | None, corpus: Corpus, report: Report, group: Group = ALONE
) -> TrainingState:
    """Build the state of a new run, or restore that of its newest valid checkpoint.

    A rank without the folder receives the tokenizers, the weights and the state of the optimizer from rank 0.
    """
    training = settings.training
    device = group.choose_device(training.device)
    group = group.on(device)
    newest = None if locked is None else checkpoints.read_newest(RunFolder(locked.path))
    if locked is not None and newest is not None:
        check_model_unchanged(RunFolder(locked.path), newest.checkpoint, settings)
    resumed, finished = group.broadcast(
        (newest is not None, newest is not None and newest.progress.is_finished(training))
    )
    inputs = _load_inputs(settings, corpus, device, newest, group, finished=finished)
    if not finished:
        initial = inputs.initial.fingerprint  # only rank 0 reads the initial weights
        hashes = {name: value for name, value in inputs.hashes.items() if name not in initial}
        group.check_equal(hashes, DataError, "Copy the data of rank 0 to the machines of all ranks.")
    if locked is not None and newest is not None:
        check_data_unchanged(RunFolder(locked.path), newest.state["data"], inputs.hashes)
    torch.manual_seed(settings.seed)
    data = _prepare(inputs, settings, locked if resumed else None, report, group)
    if newest is not None:
        check_sizes(settings, data.tokenizers, newest.checkpoint)
    sampler = build_batch_sampler(data.train, settings)
    _check_enough_rows(len(data.train), sampler, training.accumulate, group.size)
    model = build_model(settings.model, len(data.tokenizers.source), len(data.tokenizers.target))
    if group.is_first and newest is None and training.init_from is None:
        model.encoder.load_pretrained()
    inputs.initial.initialize(model, settings)
    if training.guided_alignment is not None:
        model.decoder.supervise_attention(
            training.guided_alignment.find_layer(settings.model), training.guided_alignment.head
        )
    model = model.to(device).train()
    optimizer = build_optimizer(model, training)
    average = MovingAverage(model, training.ema_decay) if training.ema_decay else None
    schedule = build_schedule(sampler, training)
    progress = RunProgress(data=inputs.hashes, schedule=schedule, average_lengths=data.train.average_lengths)
    if newest is not None:
        progress = checkpoints.restore(model, optimizer, newest, average.weights if average else None)
        if progress.schedule.length != schedule.length:
            progress.schedule = schedule
    group.broadcast_training(model, optimizer, average.weights if average else None)
    sharded, full = None, model
    if training.shard and group.size > 1:
        group, full = replace(group, shards=True), copy.deepcopy(model) if group.is_first else model
        sharded = LossModule(model)
        optimizer, average = _shard(sharded, optimizer, average, training, group, device)
    progress = group.broadcast(progress)
    if progress.step and progress.ranks != group.size:
        report(_describe_other_ranks(progress.ranks, group.size))
    progress.ranks = group.size
    dev_reader = data.reader
    part = None if finished else model.encoder.frozen_part
    if part is not None:
        if corpus.augment is None and inputs.teachers.distillation is None:
            raw_sources = [source for source, _ in corpus.train]
            features = cache_features(part, data.train.sources, raw_sources, data.reader, device, report)
            data = data._replace(train=replace(data.train, sources=features))
        dev_reader = FeatureReader.of(part, data.reader, data.dev.sources, device, report)
    if locked is not None:  # nothing is written before all checks have passed
        _write_settings(settings, locked, None if resumed else data.tokenizers)
    objective = Objective.of(training, device, inputs.teachers.distillation)
    graphed = _uses_cuda_graphs(settings, device, progress)
    return TrainingState(
        settings=settings,
        locked=locked,
        group=group,
        device=device,
        data=data,
        sampler=sampler,
        model=model,
        compiled=torch.compile(model, dynamic=True) if training.compile else model,  # type: ignore[arg-type]
        objective=objective,
        optimizer=optimizer,
        average=average,
        sharded=sharded,
        predictor=Predictor(full, dev_reader, data.tokenizers.target, settings.decoding, settings.tokenizer.max_length),
        progress=progress,
        update=GraphedUpdate(optimizer) if graphed else optimizer.step,
        gradient=GraphedGradient(model, objective) if graphed else None,
    )


def _shard(
    loss: LossModule,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    training: TrainingSettings,
    group: Group,
    device: torch.device,
) -> tuple[torch.optim.AdamW, MovingAverage | None]:
    """Divide a model among the ranks, and return its optimizer and the moving average of its weights, also divided."""
    model = loss.model
    states = [dict(optimizer.state.get(parameter, {})) for parameter in model.parameters()]
    group.shard([*model.encoder.shardable_modules, *model.decoder.shardable_modules, loss], device)
    sharded = build_optimizer(model, training)
    for parameter, state in zip(model.parameters(), states, strict=True):
        if state:
            sharded.state[parameter] = {name: shard_like(value, parameter) for name, value in state.items()}
    if average is None:
        return sharded, None
    weights, average = average.weights, MovingAverage(model, average.decay)
    for name, parameter in model.named_parameters():
        get_local(average.weights[name]).copy_(get_local(shard_like(weights[name], parameter)))
    return sharded, average


def _prepare(
    inputs: "_Inputs", settings: RunSettings, locked: LockedFolder | None, report: Report, group: Group
) -> PreparedData:
    """Prepare the data, with the tokenizers of a resumed run from its folder. Rank 0 does so first, because it may
    learn the tokenizers, and because the other ranks on its machine then find the data in the cache.
    """
    data = None
    if group.is_first:
        tokenizers = inputs.tokenizers if locked is None else TokenizerPair.load(locked.path, settings.tokenizer)
        data = prepare(inputs.request, tokenizers, report)
    files: dict[str, bytes] = {}
    if data is not None:
        data.tokenizers.save(files.__setitem__)
    files = group.broadcast(files)
    if data is not None:
        return data
    with tempfile.TemporaryDirectory(prefix="regard.") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        return prepare(inputs.request, TokenizerPair.load(Path(folder), settings.tokenizer), report)


def _write_settings(settings: RunSettings, locked: LockedFolder, tokenizers: TokenizerPair | None) -> None:
    """Write the settings to the run folder, and the tokenizers of a new run."""
    if tokenizers is not None:
        tokenizers.save(locked.directory.write)
    folder = RunFolder(locked.path)
    recorded = settings.relative_to(folder.path).model_copy(update={"imports": tuple(plugins_of(settings))})
    locked.directory.write(folder.config.name, to_yaml(recorded).encode())


def _check_enough_rows(pairs: int, sampler: BatchSampler, accumulate: int, ranks: int) -> None:
    """Raise ConfigError if some ranks would have no rows in most steps."""
    rows = pairs * accumulate / max(1, sampler.steps_per_epoch)
    if rows < ranks:
        raise ConfigError(
            f"A step has {rows:.3g} pairs on average, too few for {ranks} ranks. Use fewer ranks (--devices N), or "
            "increase training.batch_size or training.batch_tokens."
        )


def _describe_other_ranks(before: int, now: int) -> str:
    return (
        f"The checkpoint was saved by {quantity(before, 'rank')}, and training resumes with {now}: the weights differ "
        "from those of an uninterrupted run in rounding and, with dropout, in its random numbers."
    )


class _Inputs(NamedTuple):
    """What a run reads: its corpus, teachers, initial weights and word alignments, with a hash of each of them."""

    request: PreparationRequest
    teachers: TeacherModels
    initial: InitialWeights
    hashes: dict[str, str]

    @property
    def tokenizers(self) -> TokenizerPair | None:
        """The tokenizers of the initial model or of the teachers, if there are any."""
        return self.initial.tokenizers or self.teachers.tokenizers


def _load_inputs(
    settings: RunSettings,
    corpus: Corpus,
    device: torch.device,
    newest: SavedCheckpoint | None,
    group: Group,
    *,
    finished: bool,
) -> _Inputs:
    """Load the inputs of a run. A finished run needs no teachers and no alignments."""
    guided = settings.training.guided_alignment
    teachers = TeacherModels() if finished else load_teachers(settings, device)
    if not group.is_first:  # the weights come from rank 0
        initial = InitialWeights()
    elif newest is None:
        initial = load_initial_weights(settings, corpus, teachers.tokenizers)
    else:
        initial = recall_initial_weights(settings, newest.state["data"])
    reader = find_reader(settings.model.encoder_settings)
    corpus_hashes = corpus.fingerprint(None if reader is None else reader.fingerprint)
    alignments = None if guided is None or finished else AlignmentFile(guided.file, guided.one_based, guided.shift)
    hashes = {} if alignments is None else {f"{_ALIGNMENTS}{alignments.path}": alignments.hash()}
    hashes |= teachers.fingerprint
    if newest is not None and finished:
        saved = newest.state["data"].items()
        hashes = {name: value for name, value in saved if name.startswith((_ALIGNMENTS, TEACHER))}
    request = PreparationRequest(
        corpus, corpus_hashes, settings.data, settings.tokenizer, settings.seed, reader, alignments
    )
    return _Inputs(request, teachers, initial, {**corpus_hashes, **hashes, **initial.fingerprint})


def _uses_cuda_graphs(settings: RunSettings, device: torch.device, progress: RunProgress) -> bool:
    training = settings.training
    if device.type != "cuda" or not training.cuda_graphs or training.compile or training.shard:
        return False
    # A model with gradient checkpointing is large, and gains nothing.
    return not (settings.model.recomputes_layers or progress.eager or progress.micro_batches > 1)
