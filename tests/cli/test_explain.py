"""`regard explain` prints what a config computes and why no faster path applies."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.runs.folder import RunFolder

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


def test_the_cost_is_printed_as_formulas_and_numbers(cli: Run) -> None:
    text = cli("explain", "dates", "--source", "50", "--target", "20", "--beam", "5").stdout
    assert "cross-attention        32,896      16,384·S + 16,384·T + 256·S·T" in text
    assert "S = 50, T = 20" in text
    assert "Growth: O(S·T) with attention, O(S + T) without its terms of degree 2" in text
    assert "crossover: they exceed all other terms from S = T = " in text
    assert "beam of 5" in text
    fixed = cli("explain", "dates", "model=fixed").stdout
    assert "Growth: O(S + T), linear in the lengths, because there is no attention" in fixed


def test_identical_layers_are_printed_once(cli: Run) -> None:
    text = cli("explain", "multi30k-transformer").stdout
    layers = r"layers 1–(\d+) \(× \1\): self-attention"
    assert len(re.findall(layers, text)) == 2
    assert len(re.findall(r"self_attention\.attention \(× \d+\): Dot × Causal × Softmax", text)) == 1


def test_a_run_is_explained_with_its_vocabulary_and_average_lengths(cli: Run, small_run: RunFolder) -> None:
    explained = json.loads(cli("explain", small_run.path, "--json").stdout)
    model = regard.load(small_run.path, device="cpu")
    assert explained["parameters"] == sum(parameter.numel() for parameter in model.network.parameters())
    assert explained["vocabularies"]["target"] == len(model.predictor.tokenizer)
    assert not explained["vocabularies"]["assumed"]
    # Dates have 10 characters and an end.
    assert explained["lengths"]["target"] == 11
    assert 5 < explained["lengths"]["source"] < 40
    forward = explained["multiply_adds"]["forward"]
    source, target = explained["lengths"]["source"], 11
    terms = forward["formula"]
    assert forward["value"] == terms["1"] + terms["S"] * source + terms["T"] * target + terms["S·T"] * source * target


@pytest.mark.slow
def test_predicted_and_measured_cost_are_drawn(cli: Run, small_run: RunFolder, tmp_path: Path) -> None:
    done = cli("explain", small_run.path, "--plot", "cost.svg")
    assert done.returncode == 0, done.stderr
    assert re.search(r"wrote cost.svg: measured up to .* ms at length [\d,]+, with 1 thread", done.stderr)
    figure = (tmp_path / "cost.svg").read_text("utf-8")
    for label in ("predicted: ", "measured: ", "1 thread", "length S = T (tokens)"):
        assert label in figure


def test_a_plot_that_cannot_be_written_is_rejected_at_once(cli: Run) -> None:
    done = cli("explain", "dates", "--plot", "cost.gif")
    assert done.returncode == 2
    assert "--plot cost.gif: use one of the extensions .svg, .png, .pdf." in done.stderr
    done = cli("explain", "dates", "--plot", "missing/cost.svg")
    assert done.returncode == 2
    assert "there is no folder missing" in done.stderr
    assert cli("explain", "dates", "--source", "0").returncode == 2
