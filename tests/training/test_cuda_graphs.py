"""CUDA graphs compute the same gradients and updates as eager execution, for every attention mechanism."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.attention.mechanisms import MECHANISMS
from regard.config import resolve
from regard.data.batching import Batch, EncodedCorpus, EncodedTexts, pad_ragged
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.ops.reference_mode import cpu_has_bfloat16
from regard.runs.settings import NoConsistency, RDrop, RunSettings, SimCut, TrainingSettings
from regard.training import loop
from regard.training import objective as objective_module
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.objective import Objective
from regard.training.optim import build_optimizer, set_learning_rate
from regard.training.state import TrainingState, start_training
from regard.training.step import compute_gradients
from tests_shared import SMALL, make_distillation, stop_at, thin

V = 11
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class FakeGraphPool:
    """Replaces graph capture on a CPU: the captured function runs at replay."""

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], torch.Tensor]:
        output = torch.zeros(())

        def replay() -> None:
            result = work()
            if isinstance(result, torch.Tensor):
                output.copy_(result)

        return replay, output


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "cpu":
        monkeypatch.setattr(cuda_graphs, "graph_pool", lambda _: FakeGraphPool())
    return name


SMALL_RECURRENT = {"model.embedding": 16, "model.encoder.hidden": 8, "model.decoder.hidden": 16}
SMALL_SIZES = {
    "recurrent": SMALL_RECURRENT,
    "fixed": SMALL_RECURRENT,
    "transformer": {"model.size": 16, "model.feedforward": 32, "model.heads": 2},
}
"""Sizes for a CPU by kind of model. A GPU computes the sizes of the presets, for which it has kernels."""


def make_model(overrides: dict[str, object], device: str) -> Seq2Seq:
    torch.manual_seed(0)
    overrides = {"tokenizer.shared": True, **overrides, "model.dropout": 0.2}
    settings = resolve(RunSettings, "dates", overrides)
    if device == "cpu":
        settings = resolve(RunSettings, "dates", {**overrides, **SMALL_SIZES[settings.model.kind]})
    return build_model(settings.model, V, V).to(device).train()


def make_batches(device: str, shape: tuple[int, int, int] = (6, 5, 7)) -> list[Batch]:
    """Make three batches of one shape with different tokens and lengths."""
    generator = torch.Generator().manual_seed(1)
    rows, source_width, target_width = shape

    def make_side(width: int, end: list[int]) -> Ragged:
        lengths = torch.randint(1, width + 1, (rows,), generator=generator).tolist()
        lengths[0] = width
        return Ragged.of(
            [*torch.randint(4, V, (length - len(end),), generator=generator).tolist(), *end] for length in lengths
        )

    return [
        EncodedCorpus(EncodedTexts(make_side(source_width, [])), EncodedTexts(make_side(target_width, [END]))).batch(
            range(rows), torch.device(device)
        )
        for _ in range(3)
    ]


def compute_all(
    model: Seq2Seq, objective: Objective, graphed: GraphedGradient | None, batches: list[Batch] | None = None
) -> list[torch.Tensor]:
    """Compute the losses and gradients of all batches."""
    torch.manual_seed(3)
    results = []
    for batch in batches or make_batches(next(model.parameters()).device.type):
        loss = compute_gradients(model, objective, [batch, batch._replace(seed=1)], graphed=graphed)
        grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        results += [loss, *grads]
    return results


MODELS: dict[str, dict[str, object]] = {
    **{name: {"model.attention": name} for name in MECHANISMS},
    "lstm": {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm", "model.decoder.order": "luong"},
    "deep": {"model.encoder.layers": 2, "model.decoder.layers": 2, "model.encoder.dropout": 0.2},
    "copying": {"model.decoder.copy_source": True},
    "fixed": {"model": "fixed"},
    "transformer": {"model": "transformer-tiny"},
    "learned": {"model": "transformer-tiny", "model.positions": "learned"},
}


@pytest.mark.parametrize("name", thin(MODELS))
def test_graphed_gradients_equal_eager_gradients(name: str, device: str) -> None:
    overrides = MODELS[name]
    expected = compute_all(make_model(overrides, device), Objective(0.1), None)
    model = make_model(overrides, device)
    graphed = GraphedGradient(model, Objective(0.1))
    results = compute_all(model, Objective(0.1), graphed)
    assert len(graphed.graphs) == 2, "one graph writes the gradients, and one adds to them"
    assert all(graphed.graphs.values())
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("consistency", [RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("bfloat16", [False, True])
def test_graphed_gradients_include_consistency_and_mixed_precision(
    consistency: RDrop | SimCut, bfloat16: bool, device: str
) -> None:
    objective = Objective(0.1, consistency=consistency, bfloat16=bfloat16)
    expected = compute_all(make_model({}, device), objective, None)
    model = make_model({}, device)
    results = compute_all(model, objective, GraphedGradient(model, objective))
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-2 if bfloat16 else 1e-4, atol=1e-4 if bfloat16 else 1e-6)


@pytest.mark.parametrize("overrides", [{}, {"model.norm": "pre", "model.tied": "all"}], ids=["post-norm", "pre-norm"])
def test_weights_that_are_cast_once_per_batch_get_the_gradients_of_autocast(
    overrides: dict[str, object], device: str
) -> None:
    objective, settings = Objective(0.1, bfloat16=True), {"model": "transformer-tiny", **overrides}
    expected = compute_all(make_model(settings, device), objective, None)
    model = make_model(settings, device)
    results = compute_all(model, objective, GraphedGradient(model, objective))
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, reference, rtol=1e-2, atol=1e-4)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weights_that_are_cast_follow_the_updates(device: str) -> None:
    model, objective = make_model({"model": "transformer-tiny"}, device), Objective(0.1, bfloat16=True)
    graphed, batch = GraphedGradient(model, objective), make_batches(device)[0]
    losses = []
    for factor in (1.0, 1.0, 3.0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)
        torch.manual_seed(0)
        loss = compute_gradients(model, objective, [batch], graphed=graphed)
        losses.append(loss)
    torch.manual_seed(0)
    expected = compute_gradients(model, objective, [batch])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=0)
    torch.testing.assert_close(losses[2], expected, rtol=1e-2, atol=0)
    assert abs(losses[2] - losses[1]) > 0.1 * losses[1]


def test_a_parameter_that_the_objective_no_longer_uses_has_no_gradient(device: str) -> None:
    model, objective = make_model({"model": "transformer-tiny"}, device), Objective(0.1)
    unused = torch.nn.Parameter(torch.ones(3, device=device))
    model.decoder.register_parameter("unused", unused)
    unused.grad = torch.ones(3, device=device)  # of an earlier objective
    compute_gradients(model, objective, make_batches(device)[:1], graphed=GraphedGradient(model, objective))
    assert unused.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["bahdanau", "luong-dot", "transformer"])
def test_graphed_gradients_include_guided_alignment(name: str, device: str) -> None:
    objective = Objective(0.1, alignment_weight=0.5)
    generator = torch.Generator().manual_seed(2)
    batches = [
        batch._replace(alignment_BTS=torch.rand(6, 7, 5, generator=generator).softmax(-1).to(device))
        for batch in make_batches(device)
    ]

    def make_guided_model() -> Seq2Seq:
        model = make_model(MODELS[name], device)
        model.decoder.supervise_attention(None, 1)
        return model

    expected = compute_all(make_guided_model(), objective, None, batches)
    model = make_guided_model()
    results = compute_all(model, objective, GraphedGradient(model, objective), batches)
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-6)
    unguided = compute_all(make_guided_model(), objective, None)
    assert all(loss != without for loss, without in zip(expected[:1], unguided[:1], strict=True))


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("name", thin(MODELS))
def test_graphed_gradients_include_distillation(name: str, bfloat16: bool, device: str) -> None:
    if bfloat16 and device == "cpu" and name not in {"bahdanau", "transformer"} and not cpu_has_bfloat16():
        pytest.skip("bfloat16 is slow on a CPU without its instructions; two models are tested here, all on other CPUs")
    teachers = make_distillation(make_model(MODELS[name], device), make_model({}, device))
    objective = Objective(0.1, bfloat16=bfloat16, distillation=teachers)
    expected = compute_all(make_model({}, device), objective, None)
    model = make_model({}, device)
    graphed = GraphedGradient(model, objective)
    results = compute_all(model, objective, graphed)
    assert all(graphed.graphs.values())
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-2 if bfloat16 else 1e-4, atol=1e-4 if bfloat16 else 1e-6)


@pytest.mark.parametrize("consistency", [NoConsistency(), RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_ignored_padding_gives_the_same_loss_and_gradients_as_removed_padding(
    kind: str, consistency: NoConsistency | RDrop | SimCut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU padding is ignored (`ignore_index`); on a CPU it is removed."""
    overrides = {"model": kind, "model.dropout": 0.2, **({"model.output_dropout": 0.0} if kind == "recurrent" else {})}
    model = build_model(resolve(RunSettings, "dates", overrides).model, V, V)
    rows = Ragged.of([[5, 6, 7, END], [8, END], [9, 4, END]])
    batch = EncodedCorpus(EncodedTexts(rows), EncodedTexts(rows)).batch([0, 1, 2], torch.device("cpu"))
    objective = Objective(0.1, consistency=consistency)

    def compute() -> list[torch.Tensor]:
        torch.manual_seed(0)
        loss = compute_gradients(model, objective, [batch])
        return [loss, *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]

    expected = compute()
    monkeypatch.setattr(objective_module, "select_tokens", objective_module.flatten_with_ignore_index)
    for result, reference in zip(compute(), expected, strict=True):
        torch.testing.assert_close(result, reference)


def test_bucketed_shapes_add_padding_up_to_the_longest_row() -> None:
    rows = Ragged.of([[5] * 16 + [END], [6] * 20 + [END], [7] * 18 + [END]])
    pairs = EncodedCorpus(EncodedTexts(rows), EncodedTexts(rows))
    targets = [pairs.batch([row], torch.device("cpu"), bucketed_shapes=True).target for row in range(3)]
    assert targets[0].tokens_BT.tolist() == [[5] * 16 + [END, 0]]
    assert [target.tokens_BT.shape[1] for target in targets] == [18, 21, 20]
    assert [int(target.lengths_B) for target in targets] == [17, 21, 19]


@pytest.mark.parametrize(("length", "width"), [(20, 20), (21, 21), (22, 22), (23, 24), (24, 24), (25, 26)])
def test_rows_longer_than_the_known_maximum_have_bucketed_shapes_too(length: int, width: int) -> None:
    assert pad_ragged(Ragged.of([[5] * length]), 21).tokens_BT.shape[1] == width


class OutOfMemoryGradient:
    """Raises an out-of-memory error instead of computing gradients with CUDA graphs."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def zero_grad(self) -> None: ...

    def __call__(self, batch: Batch, tokens: int) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"CUDA out of memory for {tokens} tokens of {len(batch.ids)} pairs")


def test_without_memory_for_cuda_graphs_a_run_continues_eagerly_with_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[TrainingState] = []

    def start_without_memory(*args: Any) -> TrainingState:
        states.append(start_training(*args))
        states[0].gradient = OutOfMemoryGradient(states[0].objective)  # type: ignore[assignment]
        return states[0]

    monkeypatch.setattr(loop, "start_training", start_without_memory)
    run = regard.train("dates", {**SMALL, "training.steps": 2}, out=tmp_path / "run")
    assert states[0].gradient is None
    assert states[0].progress.micro_batches == 1
    assert run.load().predict("1 May 2026").text is not None


@needs_gpu
def test_a_device_without_an_index_has_the_pool_of_its_tensors() -> None:
    device = torch.device("cuda")
    pool = cuda_graphs.graph_pool(torch.zeros(1, device=device).device)
    assert cuda_graphs.graph_pool(device) is pool
    cuda_graphs.release_graphs(device)
    assert cuda_graphs.graph_pool(torch.zeros(1, device=device).device) is not pool


@needs_gpu
def test_a_run_on_a_gpu_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n:04d}\t{n:04d}\n" for n in range(400)), "utf-8")
    overrides = {
        "data": {"kind": "files", "train": str(pairs)}, "training.steps": 60, "training.validate_every": 20,
        "training.save_every": 20, "training.precision": "auto", "training.ema_decay": 0.9, "model.dropout": 0.1,
        "training.consistency": {"kind": "simcut", "start_step": 35},
    }  # fmt: skip
    uninterrupted = regard.train("pairs", overrides, out=tmp_path / "uninterrupted").load()
    with stop_at(30, monkeypatch):
        regard.train("pairs", overrides, out=tmp_path / "stopped")
    resumed = regard.train("pairs", overrides, out=tmp_path / "stopped").load()
    for parameter, reference in zip(resumed.network.parameters(), uninterrupted.network.parameters(), strict=True):
        torch.testing.assert_close(parameter, reference)


def test_graphed_updates_equal_eager_updates(device: str) -> None:
    def train(*, use_graphs: bool) -> list[torch.Tensor]:
        model, objective = make_model({}, device), Objective(0.1)
        optimizer = build_optimizer(model, TrainingSettings(weight_decay=0.1))
        graphed = GraphedGradient(model, objective) if use_graphs else None
        update = GraphedUpdate(optimizer)
        torch.manual_seed(3)
        for step, batch in enumerate(make_batches(device) * 2):
            set_learning_rate(optimizer, 0.01 / (step + 1))
            compute_gradients(model, objective, [batch], graphed=graphed)
            update() if use_graphs else optimizer.step()
        assert (update.replay is not None) == use_graphs
        return [parameter.detach().clone() for parameter in model.parameters()]

    for parameter, reference in zip(train(use_graphs=True), train(use_graphs=False), strict=True):
        torch.testing.assert_close(parameter, reference, rtol=1e-4, atol=1e-5)
