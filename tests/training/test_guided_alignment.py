"""Guided alignment: word alignments supervise an attention head, in every model with attention."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.attention.record import record
from regard.config import resolve
from regard.data.batching import Batch
from regard.data.pharaoh import GoldLinks
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import score_alignments
from regard.models.seq2seq import Seq2Seq, build_model
from regard.ops.reference_mode import reference_mode
from regard.runs.folder import RunFolder
from regard.runs.settings import GuidedAlignment, RDrop, RunSettings
from regard.training.objective import Objective, alignment_loss
from tests_shared import make_short_batch, stop_at

V = 11

MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {},
    "luong": {"model.decoder.order": "luong"},
    "parallel": {"model.decoder.order": "luong", "model.decoder.input_feeding": False, "model.attention.heads": 2},
    "conditional": {"model.decoder.order": "conditional"},
    "copying": {"model.decoder.copy_source": True, "tokenizer.shared": True},
    "marginal": {"model.attention": "exact-hard"},
    "transformer": {"model": "transformer-tiny", "tokenizer.shared": True},
    "checkpointed": {"model": "transformer-tiny", "tokenizer.shared": True, "model.gradient_checkpointing": True},
}


def make_model(overrides: dict[str, Any]) -> Seq2Seq:
    torch.manual_seed(0)
    settings = resolve(RunSettings, "dates", {**overrides, "model.dropout": 0.0})
    return build_model(settings.model, V, V).train()


def make_batch(*ids: int) -> Batch:
    """Return a batch in which the first source token is aligned with every target token except the end."""
    batch = make_short_batch(*(ids or (0, 1, 2)))
    alignment_BTS = torch.zeros(len(batch.ids), batch.target.tokens_BT.shape[1], batch.source.tensors[0].shape[1])
    for row, length in enumerate(batch.target.lengths_B.tolist()):
        alignment_BTS[row, : length - 1, 0] = 1.0
    return batch._replace(alignment_BTS=alignment_BTS)


def test_the_loss_is_the_cross_entropy_of_the_weights() -> None:
    weights = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]]])
    gold = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    expected = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25) + math.log(0.9))
    assert float(alignment_loss(weights, gold)) == pytest.approx(expected)
    assert math.isfinite(float(alignment_loss(weights, torch.tensor([[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0] * 3]]))))
    with pytest.raises(ConfigError, match="has 3 memory slots for sources of 2 tokens"):
        alignment_loss(weights, gold[..., :2])


@pytest.mark.parametrize("name", MODELS)
def test_the_decoder_returns_the_weights_of_the_supervised_head(name: str) -> None:
    model, batch = make_model(MODELS[name]), make_batch()
    assert model(batch.source, batch.decoder_inputs).alignment_BTS is None
    head = 2 if name in {"parallel", "transformer", "checkpointed"} else 1
    model.decoder.supervise_attention(None, head)
    with record(model) as recording:
        alignment_BTS = model(batch.source, batch.decoder_inputs).alignment_BTS
    cross = [weights for key, weights in recording.weights.items() if recording.roles[key] == "cross"]
    recorded = cross[max(0, len(cross) - 2)]
    torch.testing.assert_close(alignment_BTS, recorded if recorded.dim() == 3 else recorded[:, head - 1])
    assert model.eval()(batch.source, batch.decoder_inputs).alignment_BTS is None


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_supervision_moves_attention_to_the_aligned_tokens(name: str) -> None:
    model, batch = make_model(MODELS[name]), make_batch()
    model.decoder.supervise_attention(None, 1)
    objective = Objective(alignment_weight=5.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    gold = batch.alignment_BTS
    assert gold is not None

    def mass() -> float:
        weights = model(batch.source, batch.decoder_inputs).alignment_BTS
        return float((weights.detach() * gold).sum() / gold.sum())

    before = mass()
    for _ in range(15):
        optimizer.zero_grad()
        objective(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert mass() > before + 0.2


def test_the_distribution_of_a_sampled_position_is_supervised() -> None:
    model, batch = make_model({"model.attention": "show-attend-tell-hard"}), make_batch()
    model.decoder.supervise_attention(None, 1)
    weights = model(batch.source, batch.decoder_inputs).alignment_BTS
    assert weights.requires_grad
    assert ((weights > 0.01) & (weights < 0.99)).any()


def test_the_loss_of_micro_batches_and_of_the_reference_are_the_same() -> None:
    model, batch = make_model(MODELS["transformer"]), make_batch()
    model.decoder.supervise_attention(2, 1)
    objective = Objective(alignment_weight=0.3)
    total = objective(model, batch)
    torch.testing.assert_close(sum(objective(model, make_batch(row)) for row in range(3)), total)
    with reference_mode():
        torch.testing.assert_close(objective(model, batch), total)
    without = Objective()(model, batch)
    decoded = model(batch.source, batch.decoder_inputs)
    assert batch.alignment_BTS is not None
    expected = 0.3 * alignment_loss(decoded.alignment_BTS, batch.alignment_BTS)
    torch.testing.assert_close(total - without, expected, rtol=1e-3, atol=1e-4)
    # Without dropout, both passes of R-Drop are the same, and their average loss is that of one.
    torch.testing.assert_close(Objective(alignment_weight=0.3, consistency=RDrop())(model, batch), total)


def test_a_missing_layer_or_head_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"guided_alignment\.layer: 5 is out of range\. The decoder has 4 layers"):
        make_model(MODELS["transformer"]).decoder.supervise_attention(5, 1)
    with pytest.raises(ConfigError, match=r"guided_alignment\.head: 2 is out of range\. The decoder has 1 head,"):
        make_model({}).decoder.supervise_attention(None, 2)
    with pytest.raises(ConfigError, match="has no attention that can be supervised"):
        make_model({"model": "fixed"}).decoder.supervise_attention(None, 1)


def test_settings_that_cannot_be_guided_are_rejected() -> None:
    def fail(overrides: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as error:
            resolve(RunSettings, "dates", {"training.guided_alignment": "links", **overrides})
        return str(error.value)

    assert "a fixed model has no attention" in fail({"model": "fixed"})
    assert "guided_alignment" in fail({"training.guided_alignment": {"weight": 1}})
    with pytest.raises(ConfigError, match="have no words"):
        resolve(RunSettings, "scenes", {"training.guided_alignment": "links"})


def test_the_default_layer_is_the_last_but_one() -> None:
    guided = GuidedAlignment(file="links")
    settings = resolve(RunSettings, "dates", {"model": "transformer-tiny", "tokenizer.shared": True})
    assert guided.find_layer(settings.model) == 3
    assert guided.find_layer(resolve(RunSettings, "dates", {}).model) == 1
    assert GuidedAlignment(file="links", layer=2).find_layer(settings.model) == 2


def write_reversal(folder: Path, pairs: int = 1200) -> tuple[list[tuple[str, str]], list[GoldLinks]]:
    """Write pairs whose target is the translated source, reversed, and their alignment."""
    generator = random.Random(0)
    words = [f"{letter}{digit}" for letter in "abcdefg" for digit in "123"]
    texts, gold = [], []
    for _ in range(pairs):
        source = [generator.choice(words) for _ in range(generator.randint(2, 7))]
        texts.append((" ".join(source), " ".join(word.upper() for word in reversed(source))))
        gold.append(GoldLinks.of((i, len(source) - 1 - i) for i in range(len(source))))
    (folder / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    (folder / "train.links").write_text(
        "".join(" ".join(f"{i}-{j}" for i, j in sorted(links.sure)) + "\n" for links in gold)
    )
    return texts, gold


REVERSAL: dict[str, Any] = {
    "tokenizer": {"kind": "word", "shared": False},
    "model": {"kind": "recurrent", "embedding": 24, "encoder": {"hidden": 24}, "decoder": {"hidden": 24}},
    "training": {"batch_size": 32, "learning_rate": 0.01, "warmup": 10, "validate_every": 1000, "log_every": 1000},
}


def train_reversal(folder: Path, out: str, **training: Any) -> regard.Model:
    settings = {
        "data": {"kind": "files", "train": str(folder / "train.tsv")},
        **REVERSAL,
        "training": {**REVERSAL["training"], **training},
    }
    regard.train(settings, out=folder / out, quiet=True)
    return regard.load(folder / out)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]], list[GoldLinks]]:
    folder = tmp_path_factory.mktemp("reversal")
    return folder, *write_reversal(folder)


Reversal = tuple[Path, list[tuple[str, str]], list[GoldLinks]]


def error_rate(model: regard.Model, pairs: list[tuple[str, str]], gold: list[GoldLinks]) -> float:
    return score_alignments([alignment.links for alignment in model.align(pairs)], gold).aer


@pytest.mark.slow
def test_a_trained_model_aligns_words_and_a_guided_one_sooner(corpus: Reversal) -> None:
    folder, pairs, gold = corpus
    links = {"file": str(folder / "train.links"), "weight": 1.0}
    test = pairs[:200], gold[:200]
    unguided = error_rate(train_reversal(folder, "unguided", steps=60), *test)
    guided = error_rate(train_reversal(folder, "guided", steps=60, guided_alignment=links), *test)
    assert guided < unguided - 0.2
    assert error_rate(train_reversal(folder, "longer", steps=300), *test) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [REVERSAL["tokenizer"], {"kind": "bpe", "vocabulary": 60, "dropout": 0.2}])
def test_a_guided_run_resumes_with_identical_weights(
    corpus: Reversal, tokenizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = corpus
    monkeypatch.setitem(REVERSAL, "tokenizer", tokenizer)
    options: dict[str, Any] = {
        "steps": 12,
        "save_every": 4,
        "guided_alignment": {"file": str(folder / "train.links"), "shift": True},
    }
    names = f"complete-{tokenizer['kind']}", f"stopped-{tokenizer['kind']}"
    train_reversal(folder, names[0], **options)
    with stop_at(6, monkeypatch):
        train_reversal(folder, names[1], **options)
    train_reversal(folder, names[1], **options)
    complete, resumed = (
        load_file(RunFolder(folder / name).all_checkpoints()[-1].path / "model.safetensors") for name in names
    )
    assert complete.keys() == resumed.keys()
    assert all(torch.equal(complete[name], resumed[name]) for name in complete)


def test_changed_alignments_are_rejected_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reversal(tmp_path, 150)
    options: dict[str, Any] = {"steps": 8, "save_every": 2, "guided_alignment": str(tmp_path / "train.links")}
    with stop_at(4, monkeypatch):
        train_reversal(tmp_path, "run", **options)
    links = tmp_path / "train.links"
    original = links.read_text()
    links.write_text(original.replace("0-1", "0-0", 1))
    with pytest.raises(DataError, match=r"train\.links: the data has changed"):
        train_reversal(tmp_path, "run", **options)
    links.write_text(original)
    train_reversal(tmp_path, "run", **options)
    # A finished run does not need the alignments any more.
    links.unlink()
    train_reversal(tmp_path, "run", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-2], r"train\.links has 148 lines, but the training data has 150 pairs"),
        (lambda lines: [*lines, "0-0"], r"train\.links has 151 lines, but the training data has 150 pairs"),
        (
            lambda lines: ["0-0 9-1"] * len(lines),
            r"train\.links:\d+: the link 9-1 refers to a word",
        ),
        (lambda lines: ["0-0", "x", *lines[2:]], r"train\.links:2: 'x' is not a link"),
    ],
)
def test_alignments_that_do_not_match_the_pairs_are_rejected(tmp_path: Path, change: Any, message: str) -> None:
    write_reversal(tmp_path, 150)
    links = tmp_path / "train.links"
    links.write_text("\n".join(change(links.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match=message):
        train_reversal(tmp_path, "run", steps=1, guided_alignment=str(links))
    assert not (tmp_path / "run" / "config.yaml").exists()
