"""The experiments on local attention: variants of local-p differ as described, long sources are concatenated."""

import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import local_attention
import long_sources
from local_attention import LocalPVariant
from regard.attention.scopes import LocalPredictive, ScopeInput

BENCHMARKS = Path(local_attention.__file__).parent
TINY = [
    "training.steps=2", "training.validate_every=2", "training.save_every=2", "training.warmup=1",
    "tokenizer.vocabulary=80", "model.embedding=8", "model.encoder.hidden=4", "model.decoder.hidden=8",
]  # fmt: skip


def scope_input(query_size: int) -> ScopeInput:
    torch.manual_seed(0)
    positions = torch.arange(3).expand(2, 3)
    return ScopeInput(torch.randn(2, 3, query_size), positions, torch.tensor([20, 14]), torch.arange(20))


@pytest.mark.parametrize(("exponent", "scaled"), [(0.0, False), (0.5, True)])
def test_variants_compute_the_equation_of_local_p(exponent: float, scaled: bool) -> None:
    variant = LocalPVariant(exponent=exponent, query_size=8)
    reference = LocalPredictive(window=5, normalize=True, scaled=scaled, query_size=8)
    reference.load_state_dict(variant.published.state_dict())
    inputs = scope_input(8)
    output, expected = variant(inputs), reference(inputs)
    assert torch.equal(output.allowed_BTS, expected.allowed_BTS)
    assert torch.equal(output.bias_BTS, expected.bias_BTS)


def test_windows_start_in_the_middle_with_zero_and_are_opened_in_training_only() -> None:
    variant = LocalPVariant(window=2, zero=True, opened=True, query_size=8)
    inputs = scope_input(8)
    assert variant.train()(inputs).allowed_BTS is None
    expected = torch.stack([(torch.arange(20) - center).abs() <= 2 for center in (10, 7)])
    assert torch.equal(variant.eval()(inputs).allowed_BTS, expected.unsqueeze(1).expand(2, 3, 20))


def test_sentences_are_concatenated_once_in_the_order_of_their_translations() -> None:
    pairs = [(f"s{index}", f"t{index}") for index in range(7)]
    concatenated = long_sources.concatenate(pairs, 3, random.Random(0))
    sources, targets = ([text.split() for text in side] for side in zip(*concatenated, strict=True))
    assert [len(source) for source in sources] == [3, 3]
    assert len({word for source in sources for word in source}) == 6
    assert [[f"t{word[1:]}" for word in source] for source in sources] == targets


@pytest.mark.slow
@pytest.mark.parametrize(("script", "system"), [("local_attention", "local-p, scaled"), ("long_sources", "local-p")])
def test_a_tiny_run_prints_a_table(tmp_path: Path, script: str, system: str) -> None:
    folder = tmp_path / "data/multi30k/tok"
    folder.mkdir(parents=True)
    write_corpus(folder)
    overrides = [argument for override in TINY for argument in ("--set", override)]
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--data", str(tmp_path / "data"), "--seeds", "1"]
    command += ["--only", system, *overrides, "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert system in done.stdout


def write_corpus(folder: Path) -> None:
    """Write a corpus with the file names of Multi30k, in which the target repeats the source."""
    generator = random.Random(0)
    for split, size in (("train", 40), ("val", 8), ("test_2016_flickr", 8)):
        lines = "".join(f"{' '.join(generator.choices('abcdefgh', k=6))}\n" for _ in range(size))
        for language in ("en", "de"):
            with gzip.open(folder / f"{split}.lc.norm.tok.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(lines)
