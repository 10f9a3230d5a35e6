"""`regard explain` says what a config computes and why no faster path serves it."""

import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_path_of_each_attention_is_told_with_the_reasons(cli: Run) -> None:
    told = cli("explain", "dates", "model.attention=transformer").stdout
    assert "decoder.attention: Projected × Global × Softmax, 8 heads" in told
    assert "training and prediction: fused" in told
    assert "not fused: its weights are requested" in told
    told = cli("explain", "dates").stdout
    assert "vᵀ tanh(W q + U k)" in told
    assert "training and prediction: chunked" in told
    assert "not fused: the score Additive is not equivalent to a dot product" in told
    told = cli("explain", "dates", "model.attention=chorowski").stdout
    assert "runs step by step" in told
    told = cli("explain", "dates", "model.decoder.order=conditional").stdout
    assert told.count("attention is computed between the steps") == 2


def test_a_combination_without_meaning_is_refused_with_the_reason(cli: Run) -> None:
    done = cli("explain", "dates", "model.attention=hard-monotonic", "model.attention.scope=local_p")
    assert done.returncode == 2
    assert "hard_monotonic moves its own window along the memory" in done.stderr
    done = cli("train", "dates", "model.attention.scope=causal")
    assert done.returncode == 2
    assert "a target attends to a source" in done.stderr
