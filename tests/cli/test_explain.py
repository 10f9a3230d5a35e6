"""`regard explain` prints what a config computes and why no faster path applies."""

import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_path_of_each_attention_is_printed_with_reasons(cli: Run) -> None:
    text = cli("explain", "dates", "model.attention=transformer").stdout
    assert "decoder.attention: Projected × Global × Softmax, 8 heads" in text
    assert "training and prediction: fused" in text
    assert "not fused: the weights are requested" in text
    text = cli("explain", "dates").stdout
    assert "vᵀ tanh(W q + U k)" in text
    assert "training and prediction: chunked" in text
    assert "not fused: the score Additive is not equivalent to a dot product" in text
    text = cli("explain", "dates", "model.attention=chorowski").stdout
    assert "runs step by step" in text
    text = cli("explain", "dates", "model.decoder.order=conditional").stdout
    assert text.count("attention is computed between the steps") == 2


def test_an_invalid_combination_is_rejected_with_the_reason(cli: Run) -> None:
    done = cli("explain", "dates", "model.attention=hard-monotonic", "model.attention.scope=local_p")
    assert done.returncode == 2
    assert "hard_monotonic restricts the visible slots itself" in done.stderr
    done = cli("train", "dates", "model.attention.scope=causal")
    assert done.returncode == 2
    assert "the decoder attends to the source" in done.stderr
