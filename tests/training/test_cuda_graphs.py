"""Recorded steps on a GPU: the same gradients as those worked out afresh, for every mechanism."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.attention.mechanisms import MECHANISMS
from regard.config import resolve
from regard.data.batching import Batch, EncodedCorpus, pad_ragged
from regard.data.ragged import Ragged
from regard.data.tokens.tokenizers import END
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops import cuda_graphs
from regard.runs.settings import NoConsistency, RDrop, RunSettings, SimCut, TrainingSettings
from regard.training import loop
from regard.training import objective as objective_module
from regard.training.cuda_graphs import GraphedGradient, GraphedUpdate
from regard.training.objective import Objective
from regard.training.optim import build_optimizer, set_learning_rate
from regard.training.step import compute_gradients
from tests_shared import SMALL, teaching

V = 11
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")


class Later:
    """Stands in for a GPU: what is recorded is worked out when it is played."""

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], torch.Tensor]:
        given = torch.zeros(())

        def replay() -> None:
            found = work()
            if isinstance(found, torch.Tensor):
                given.copy_(found)

        return replay, given


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_a_gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "cpu":
        monkeypatch.setattr(cuda_graphs, "graph_pool", lambda _: Later())
    return name


def model(overrides: dict[str, object], device: str) -> Seq2Seq:
    torch.manual_seed(0)
    wishes = {"tokenizer.shared": True, **overrides, "model.dropout": 0.2}
    return build_model(resolve(RunSettings, "dates", wishes).model, V, V).to(device).train()


def batches(device: str, shape: tuple[int, int, int] = (6, 5, 7)) -> list[Batch]:
    """Three of one shape with other tokens and lengths in each."""
    generator = torch.Generator().manual_seed(1)
    rows, longest_source, longest_target = shape

    def side(longest: int, end: list[int]) -> Ragged:
        lengths = torch.randint(1, longest + 1, (rows,), generator=generator).tolist()
        lengths[0] = longest
        return Ragged.of(
            [*torch.randint(4, V, (length - len(end),), generator=generator).tolist(), *end] for length in lengths
        )

    everything = range(rows)
    return [
        EncodedCorpus(side(longest_source, []), side(longest_target, [END])).batch(everything, torch.device(device))
        for _ in range(3)
    ]


def gradients(net: Seq2Seq, objective: Objective, recorder: GraphedGradient | None) -> list[torch.Tensor]:
    torch.manual_seed(3)
    found = []
    for batch in batches(next(net.parameters()).device.type):
        loss, _ = compute_gradients(net, objective, [batch, batch], 1, recorder)
        grads = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        found += [loss, *grads]
    return found


CHOICES: dict[str, dict[str, object]] = {
    **{name: {"model.attention": name} for name in MECHANISMS},
    "lstm": {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm", "model.decoder.order": "luong"},
    "deep": {"model.encoder.layers": 2, "model.decoder.layers": 2, "model.encoder.dropout": 0.2},
    "copying": {"model.decoder.copy_source": True},
    "fixed": {"model": "fixed"},
    "transformer": {"model": "transformer-tiny"},
    "learned": {"model": "transformer-tiny", "model.positions": "learned"},
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_recorded_gradient_is_the_gradient(name: str, device: str) -> None:
    overrides = CHOICES[name]
    expected = gradients(model(overrides, device), Objective(0.1), None)
    net = model(overrides, device)
    recorder = GraphedGradient(net, Objective(0.1))
    found = gradients(net, Objective(0.1), recorder)
    assert len(recorder.graphs) == 1
    assert all(recorder.graphs.values())
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("consistency", [RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("halved", [False, True])
def test_consistency_and_half_precision_are_recorded_too(
    consistency: RDrop | SimCut, halved: bool, device: str
) -> None:
    objective = Objective(0.1, consistency=consistency, bfloat16=halved)
    expected = gradients(model({}, device), objective, None)
    net = model({}, device)
    for ours, reference in zip(gradients(net, objective, GraphedGradient(net, objective)), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-2 if halved else 1e-4, atol=1e-4 if halved else 1e-6)


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_what_is_learned_from_teachers_is_recorded_too(name: str, halved: bool, device: str) -> None:
    teachers = teaching(model(CHOICES[name], device), model({}, device))
    objective = Objective(0.1, bfloat16=halved, distillation=teachers)
    expected = gradients(model({}, device), objective, None)
    net = model({}, device)
    recorder = GraphedGradient(net, objective)
    found = gradients(net, objective, recorder)
    assert all(recorder.graphs.values())
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-2 if halved else 1e-4, atol=1e-4 if halved else 1e-6)


@pytest.mark.parametrize("consistency", [NoConsistency(), RDrop(), SimCut()], ids=lambda choice: choice.kind)
@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_padding_that_stays_counts_for_nothing(
    kind: str, consistency: NoConsistency | RDrop | SimCut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU padding is passed over where on a CPU it is left out: the same loss, the same gradient."""
    wishes = {"model": kind, "model.dropout": 0.2, **({"model.output_dropout": 0.0} if kind == "recurrent" else {})}
    net = build_model(resolve(RunSettings, "dates", wishes).model, V, V)
    rows = Ragged.of([[5, 6, 7, END], [8, END], [9, 4, END]])
    batch = EncodedCorpus(rows, rows).batch([0, 1, 2], torch.device("cpu"))
    objective = Objective(0.1, consistency=consistency)

    def found() -> list[torch.Tensor]:
        torch.manual_seed(0)
        loss, _ = compute_gradients(net, objective, [batch])
        return [loss, *(parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None)]

    expected = found()
    monkeypatch.setattr(objective_module, "select_tokens", objective_module.flatten_with_ignore_index)
    for ours, reference in zip(found(), expected, strict=True):
        torch.testing.assert_close(ours, reference)


def test_few_shapes_hold_the_same_tokens_and_none_is_wider_than_the_longest() -> None:
    rows = Ragged.of([[5] * 16 + [END], [6] * 20 + [END], [7] * 18 + [END]])
    pairs = EncodedCorpus(rows, rows)
    few = [pairs.batch([row], torch.device("cpu"), bucketed_shapes=True).target for row in range(3)]
    assert few[0].tokens_BT.tolist() == [[5] * 16 + [END, 0, 0, 0]]
    assert [target.tokens_BT.shape[1] for target in few] == [20, 21, 20]
    assert [int(target.lengths_B) for target in few] == [17, 21, 19]


def test_rows_that_are_longer_than_was_known_have_few_shapes_too() -> None:
    assert [pad_ragged(Ragged.of([[5] * length]), 21).tokens_BT.shape[1] for length in (20, 21, 22, 23, 24, 25)] == [
        20, 21, 24, 24, 24, 28
    ]  # fmt: skip


class Scarce:
    """A machine that has no memory left for recordings."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def zero_grad(self) -> None: ...

    def __call__(self, batch: Batch, tokens: int) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"CUDA out of memory for {tokens} tokens of {len(batch.ids)} pairs")


def test_without_memory_for_recordings_a_run_goes_on_with_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = loop.start_training
    begun: list[loop.TrainingState] = []

    def scarce(*given: Any) -> loop.TrainingState:
        begun.append(begin(*given))
        begun[0].gradient = Scarce(begun[0].objective)  # type: ignore[assignment]
        return begun[0]

    monkeypatch.setattr(loop, "start_training", scarce)
    run = regard.train("dates", {**SMALL, "training.steps": 2}, out=tmp_path / "run")
    assert begun[0].gradient is None
    assert begun[0].progress.micro_batches == 1
    assert run.load().predict("1 May 2026").text is not None


@needs_a_gpu
def test_a_run_on_a_gpu_goes_on_where_it_stopped(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n:04d}\t{n:04d}\n" for n in range(400)), "utf-8")
    wishes = {
        "data": {"kind": "files", "train": str(pairs)}, "training.steps": 60, "training.validate_every": 20,
        "training.save_every": 20, "training.precision": "auto", "training.ema_decay": 0.9, "model.dropout": 0.1,
        "training.consistency": {"kind": "simcut", "start_step": 35},
    }  # fmt: skip
    whole = regard.train("pairs", wishes, out=tmp_path / "whole").load()
    with pytest.MonkeyPatch.context() as patch:
        take = loop.take_step

        def until_30(training: loop.TrainingState) -> tuple[float, int]:
            if training.progress.step == 30:
                raise KeyboardInterrupt
            return take(training)

        patch.setattr(loop, "take_step", until_30)
        with pytest.raises(KeyboardInterrupt):
            regard.train("pairs", wishes, out=tmp_path / "parts")
    parts = regard.train("pairs", wishes, out=tmp_path / "parts").load()
    for ours, reference in zip(parts.network.parameters(), whole.network.parameters(), strict=True):
        torch.testing.assert_close(ours, reference)


def test_a_recorded_update_is_the_update(device: str) -> None:
    def trained(*, recorded: bool) -> list[torch.Tensor]:
        net, objective = model({}, device), Objective(0.1)
        optimizer = build_optimizer(net, TrainingSettings(weight_decay=0.1))
        recorder = GraphedGradient(net, objective) if recorded else None
        update = GraphedUpdate(optimizer)
        torch.manual_seed(3)
        for step, batch in enumerate(batches(device) * 2):
            set_learning_rate(optimizer, 0.01 / (step + 1))
            compute_gradients(net, objective, [batch], 1, recorder)
            update() if recorded else optimizer.step()
        assert (update.replay is not None) == recorded
        return [parameter.detach().clone() for parameter in net.parameters()]

    for ours, reference in zip(trained(recorded=True), trained(recorded=False), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
