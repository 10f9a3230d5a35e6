"""The state of a training run: what a step reads and changes. Built for a new run, or restored from a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.arguments import check_device
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
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.registry import plugins_of
from regard.runs import checkpoints
from regard.runs.checkpoints import SavedCheckpoint
from regard.runs.directory import LockedFolder
from regard.runs.folder import RunFolder
from regard.runs.progress import RunProgress
from regard.runs.settings import RunSettings
from regard.runs.tensors import check_sizes
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.distillation import TEACHER, TeacherModels, load_teachers
from regard.training.initial_weights import InitialWeights, load_initial_weights, recall_initial_weights
from regard.training.objective import Objective
from regard.training.optim import MovingAverage, build_optimizer, learning_rate
from regard.training.resume import check_data_unchanged, check_model_unchanged
from regard.training.schedule import Deadline, build_batch_sampler, build_schedule

_ALIGNMENTS = "alignments "
"""Prefix of the name of an alignment file in the hashes of the inputs of a run."""


@dataclass(kw_only=True)
class TrainingState:
    """Everything that a training step reads or changes."""

    settings: RunSettings
    locked: LockedFolder
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
    gradient: GraphedGradient | None = None
    """Computes gradients with CUDA graphs; None if they are computed eagerly."""
    prefetched: dict[int, list[Batch]] = field(default_factory=dict)
    """The batches of the next step, prepared while a GPU computes this one."""
    deadline: Deadline | None = None
    """Rescales the schedule so that the run ends on time."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.locked.path)

    @property
    def is_finished(self) -> bool:
        return self.progress.is_finished(self.settings.training)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

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

    def batches(self, step: int) -> list[Batch]:
        """Return the batches of a step, a pure function of the seed and the step."""
        accumulate = self.settings.training.accumulate
        bucketed = self.gradient is not None
        return [
            self.data.train.batch(
                self.sampler.at(index), self.device, self.sampler.epoch_at(index), bucketed_shapes=bucketed
            )
            for index in range(step * accumulate, (step + 1) * accumulate)
        ]

    def release_cuda_graphs(self) -> None:
        """Compute eagerly from now on, and free the memory of the CUDA graphs."""
        self.gradient, self.update, self.prefetched = None, self.optimizer.step, {}
        if self.device.type == "cuda":
            cuda_graphs.release_graphs(self.device)


def start_training(settings: RunSettings, locked: LockedFolder, corpus: Corpus, report: Report) -> TrainingState:
    """Build the state of a new run, or restore that of its newest valid checkpoint."""
    training, folder = settings.training, RunFolder(locked.path)
    device = check_device(training.device, "training.device")
    newest = checkpoints.read_newest(folder)
    if newest is not None:
        check_model_unchanged(folder, newest.checkpoint, settings)
    finished = newest is not None and newest.progress.is_finished(training)
    inputs = _load_inputs(settings, corpus, device, newest, finished=finished)
    if newest is not None:
        check_data_unchanged(folder, newest.state["data"], inputs.hashes)
    torch.manual_seed(settings.seed)
    tokenizers = inputs.tokenizers if newest is None else TokenizerPair.load(folder.path, settings.tokenizer)
    data = prepare(inputs.request, tokenizers, report)
    if newest is not None:
        check_sizes(settings, data.tokenizers, newest.checkpoint)
    sampler = build_batch_sampler(data.train, settings)
    model = build_model(settings.model, len(data.tokenizers.source), len(data.tokenizers.target))
    if newest is None and training.init_from is None:
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
    dev_reader = data.reader
    part = None if finished else model.encoder.frozen_part
    if part is not None:
        if corpus.augment is None and inputs.teachers.distillation is None:
            raw_sources = [source for source, _ in corpus.train]
            features = cache_features(part, data.train.sources, raw_sources, data.reader, device, report)
            data = data._replace(train=replace(data.train, sources=features))
        dev_reader = FeatureReader.of(part, data.reader, data.dev.sources, device, report)
    # Nothing is written before all checks have passed.
    if newest is None:
        data.tokenizers.save(locked.directory.write)
    recorded = settings.relative_to(folder.path).model_copy(update={"imports": tuple(plugins_of(settings))})
    locked.directory.write(folder.config.name, to_yaml(recorded).encode())
    objective = Objective.of(training, device, inputs.teachers.distillation)
    graphed = _uses_cuda_graphs(settings, device, progress)
    return TrainingState(
        settings=settings,
        locked=locked,
        device=device,
        data=data,
        sampler=sampler,
        model=model,
        compiled=torch.compile(model, dynamic=True) if training.compile else model,  # type: ignore[arg-type]
        objective=objective,
        optimizer=optimizer,
        average=average,
        predictor=Predictor(
            model, dev_reader, data.tokenizers.target, settings.decoding, settings.tokenizer.max_length
        ),
        progress=progress,
        update=GraphedUpdate(optimizer) if graphed else optimizer.step,
        gradient=GraphedGradient(model, objective) if graphed else None,
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
    settings: RunSettings, corpus: Corpus, device: torch.device, newest: SavedCheckpoint | None, *, finished: bool
) -> _Inputs:
    """Load the inputs of a run. A finished run needs no teachers and no alignments."""
    guided = settings.training.guided_alignment
    teachers = TeacherModels() if finished else load_teachers(settings, device)
    if newest is None:
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
    if device.type != "cuda" or not settings.training.cuda_graphs or settings.training.compile:
        return False
    # A model with gradient checkpointing is large, and gains nothing.
    return not (settings.model.recomputes_layers or progress.eager or progress.micro_batches > 1)
