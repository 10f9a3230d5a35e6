"""The model of large runs: its equations by hand, and the tables of docs/scale.md."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from scale import format_bytes, format_duration, format_number, predict
from scale_model import (
    Constants,
    Link,
    Model,
    StepCost,
    best_save_interval_s,
    ddp_bytes,
    expected_maximum,
    exposed_s,
    fsdp_bytes,
    hierarchical_s,
    lost_share,
    processes_step_s,
    relative_tokens,
    replicated_bytes,
    ring_s,
    sharded_bytes,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_a_ring_takes_two_hops_less_than_twice_its_ranks() -> None:
    """Four ranks: six hops of 1 ms, each with 100 of 400 bytes at 1,000 bytes per second."""
    assert ring_s(400, 4, Link(0.001, 1_000)) == pytest.approx(6 * (0.001 + 0.1))
    assert ring_s(400, 1, Link(0.001, 1_000)) == 0


def test_nodes_sum_only_their_parts() -> None:
    """Two nodes of two GPUs: 2 · (1 s + 100 / 100 s) inside, 2 · (3 s + 50 / 10 s) between them."""
    inside, between = Link(1, 100), Link(3, 10)
    assert hierarchical_s(200, 2, 2, inside, between) == pytest.approx(2 * 2 + 2 * 8)
    assert hierarchical_s(200, 1, 2, inside, between) == ring_s(200, 2, inside)


def test_sharded_weights_are_sent_half_as_often_again() -> None:
    assert ddp_bytes(100, 4) == 150
    assert fsdp_bytes(100, 4) == 225
    assert ddp_bytes(100, 1) == fsdp_bytes(100, 1) == 0


def test_sharding_divides_the_state_but_not_the_layer_that_is_computed() -> None:
    """Per parameter: 4 bytes each for weights, gradients, two moments and buckets."""
    assert replicated_bytes(10) == 160 + 3 * 2**25
    assert sharded_bytes(10, ranks=8, layers=4) == 20 + 20


def test_communication_is_hidden_by_the_overlapping_share_of_the_backward_pass() -> None:
    assert exposed_s(5, 4, overlap=0) == 5
    assert exposed_s(5, 4, overlap=0.5) == 3
    assert exposed_s(1, 4, overlap=1) == 0


def test_expected_maximum_of_draws() -> None:
    """Two dice with the faces 1 and 3: the maximum is 1 in a quarter of the throws."""
    assert expected_maximum([3, 1], 2) == 0.25 * 1 + 0.75 * 3
    assert expected_maximum([3, 1], 1) == 2
    work, generator = [2, 3, 5, 8, 13], random.Random(0)
    sampled = [max(generator.choices(work, k=4)) for _ in range(20_000)]
    assert expected_maximum(work, 4) == pytest.approx(sum(sampled) / len(sampled), rel=0.01)


def test_the_time_of_a_step_is_a_line_through_two_measurements() -> None:
    cost = StepCost.fit((100, 3), (300, 5))
    assert cost == StepCost(2, 100)
    assert cost.seconds(500) == 7
    assert cost.seconds(500, max_tokens=250) == 2 * 2 + 5


def test_processes_share_the_cores() -> None:
    """Four processes with 100 of 400 tokens each: 2 + 1 s, twice as long on two cores; rings of 6 · 0.5 s."""
    cost, link = StepCost(2, 100), Link(0.5, math.inf)
    assert processes_step_s(cost, 400, 4, 4, 0, link) == 3 + 3 * 3
    assert processes_step_s(cost, 400, 4, 2, 0, link) == 6 + 3 * 3
    assert processes_step_s(cost, 400, 1, 2, 0, link) == 6


def test_a_batch_of_critical_size_needs_twice_the_tokens() -> None:
    assert relative_tokens(400, 400) == 2
    assert relative_tokens(0, 400) == 1


def test_no_other_interval_of_checkpoints_loses_less_time() -> None:
    assert best_save_interval_s(2, 100) == 20
    assert lost_share(2, 20, 100, restart_s=5) == pytest.approx(2 / 20 + 15 / 100)
    assert all(lost_share(2, other, 100, 5) > lost_share(2, 20, 100, 5) for other in (10, 19, 21, 40))


def test_a_step_on_one_gpu_is_the_measured_one() -> None:
    model = Model()
    step = model.step(model.full_batch_tokens, 1)
    assert step.seconds == pytest.approx(model.constants.large_batch_step_s)
    assert step.communication_s == step.waiting_s == 0


def test_a_step_waits_for_flags_only_if_they_take_longer_than_computing() -> None:
    """One of two exchanges runs while the GPU computes. With eight GPUs, an exchange has 14 hops."""
    fast, slow = (Model(replace(Constants(), gloo_hop_s=hop_s)).step(8 * 50_000, 8) for hop_s in (0.001, 0.01))
    assert fast.communication_s == pytest.approx(fast.reduce_s + 0.014)
    computing = slow.compute_s + slow.waiting_s
    assert slow.communication_s == pytest.approx(slow.reduce_s + 0.14 + (0.14 - computing))


def test_an_epoch_is_the_sum_of_its_parts() -> None:
    """One million pairs of 10 tokens, 1,000 steps of 10,000 tokens on one GPU."""
    constants = replace(
        Constants(), target_tokens_per_pair=10, text_bytes_per_pair=60, cache_bytes_per_pair=40, sha256_bytes_per_s=1e7,
        epoch_s_per_pair=1e-6, reading_core_s_per_pair=3e-6, tokenizing_core_s_per_pair=80e-6, cores_per_node=20,
        steps_between_checkpoints=500, validation_pairs=100, predicted_lines_per_s=50, checkpoint_bytes_per_s=1e6,
        parameters=1e6,
    )  # fmt: skip
    model = Model(constants)
    run = model.run(1_000_000, 10_000, 1)
    assert run.tokenizing_s == pytest.approx(4)
    assert run.start_s == pytest.approx(10 + 1)
    assert run.compute_s == pytest.approx(1_000 * model.step(10_000, 1).compute_s)
    assert run.validation_s == pytest.approx(2 * 2)
    assert run.saving_s == pytest.approx(2 * 12)
    assert run.seconds == pytest.approx(sum(run))
    assert run.limit == "saving"


def test_one_process_feeds_all_workers_of_a_corpus_job() -> None:
    model = Model(replace(Constants(), predicted_lines_per_s=100, driver_s_per_line=0.001))
    assert [model.lines_per_s(gpus) for gpus in (1, 8, 64)] == [100, 800, pytest.approx(1_000)]


def test_the_ranks_of_a_node_share_its_memory() -> None:
    model = Model(replace(Constants(), rank_bytes_per_pair=3, gpus_per_node=8))
    assert [model.node_bytes(10, gpus) for gpus in (1, 8, 64)] == [30, 240, 240]


def test_numbers_are_printed_with_two_digits() -> None:
    assert [format_number(value) for value in (0, 0.1234, 9.99, 12.3, 1234)] == ["0", "0.12", "10", "12", "1,200"]
    assert [format_duration(value) for value in (0.012, 3, 150, 7200, 200_000)] == [
        "12 ms", "3.0 s", "2.5 min", "2.0 h", "2.3 days",
    ]  # fmt: skip
    assert [format_bytes(value) for value in (5e3, 5.57e6, 3e12)] == ["5.0 kB", "5.6 MB", "3.0 TB"]


def test_the_tables_of_the_page_are_those_that_are_printed() -> None:
    page = (DOCS / "scale.md").read_text("utf-8")
    assert [title for title, rows in predict(Model()).items() if rows not in page] == []
