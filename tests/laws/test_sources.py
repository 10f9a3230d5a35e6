"""Laws of sources: training, search and scoring use only the interface of `Source`, so they give the same results for
the same model with another kind of source. Modules that must not depend on the kind of source are checked too.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import regard
from regard.config import resolve
from regard.data.batching import EncodedCorpus
from regard.data.corpora import Pairs, RawSource
from regard.data.settings import CharTokenizer
from regard.data.source_readers import TextReader
from regard.data.sources import LazySources, SourceItem, SourceReader
from regard.data.tokens.tokenizers import UNKNOWN, TokenizerPair
from regard.decoding.predictor import Predictor
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.evaluation.validation import compute_losses
from regard.models.contracts import Encoder, Memory, Source, Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.runs.settings import RDrop, RunSettings, SimCut
from regard.training.objective import Objective
from regard.training.step import compute_gradients

PAIRS = Pairs(["3 mai 2009", "May 3, 2009", "x", "12.11.1999", "le 4"], ["2009-05-03", "2009-05-03", "", "1999", "4"])
TOKENIZERS = TokenizerPair.build(CharTokenizer(shared=False), PAIRS.sources, PAIRS.targets)
LENGTH = 12
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Shifted(Source):
    """Another kind of source: the tokens plus 1,000, stored by position, and a mask instead of lengths."""

    shifted_BS1: Tensor
    mask_BS: Tensor

    @classmethod
    def of(cls, tokens: Tokens) -> "Shifted":
        return cls(tokens.tokens_BT.unsqueeze(-1) + 1_000, tokens.valid_BT)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.shifted_BS1, self.mask_BS

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Shifted":
        return Shifted(*tensors)

    @property
    def length_hint_B(self) -> Tensor:
        return self.mask_BS.sum(1)

    def corrupt(self, probability: float, unknown: int) -> "Shifted":
        return Shifted.of(self.to_tokens().corrupt(probability, unknown))

    def to_tokens(self) -> Tokens:
        return Tokens(self.shifted_BS1.squeeze(-1) - 1_000, self.mask_BS.sum(1))


class ShiftedEncoder(Encoder[Shifted]):
    """Reads `Shifted` with an encoder of tokens."""

    def __init__(self, inner: Encoder[Tokens]) -> None:
        super().__init__()
        self.inner = inner

    @property
    def size(self) -> int:
        return self.inner.size

    def forward(self, source: Shifted) -> Memory:
        memory: Memory = self.inner(source.to_tokens())
        return memory


@dataclass(frozen=True)
class ShiftedReader(SourceReader):
    """Reads texts as `Shifted`."""

    noun: ClassVar[str] = "text"
    accepts: ClassVar[str] = "str"

    texts: TextReader

    def is_source(self, value: object) -> bool:
        return self.texts.is_source(value)

    def read(self, sources: Sequence[RawSource]) -> Sequence[SourceItem]:
        return self.texts.read(sources)

    def collate(self, items: Sequence[Any]) -> Shifted:
        return Shifted.of(self.texts.collate(items))

    def encode(self, sources: Sequence[RawSource]) -> LazySources:
        return LazySources(self, sources, LENGTH)

    def fingerprint(self, source: RawSource) -> str:
        return self.texts.fingerprint(source)


READERS = (TextReader(TOKENIZERS.source, LENGTH), ShiftedReader(TextReader(TOKENIZERS.source, LENGTH)))


def build_pair(preset: str, **overrides: Any) -> tuple[Seq2Seq, Seq2Seq]:
    """Return a model that reads tokens, and the same model for `Shifted`; they share their parameters."""
    torch.manual_seed(0)
    settings = resolve(RunSettings, preset, {f"model.{name}": value for name, value in overrides.items()})
    model = build_model(settings.model, len(TOKENIZERS.source), len(TOKENIZERS.target))
    return model, Seq2Seq(ShiftedEncoder(model.encoder), model.decoder)


MODELS = {
    "recurrent": lambda: build_pair("dates", embedding=8, dropout=0.2),
    "transformer": lambda: build_pair("dates", kind="transformer", size=16, heads=2, layers=1, feedforward=16),
}


def encode(reader: SourceReader) -> EncodedCorpus:
    return EncodedCorpus.of(PAIRS, reader, TOKENIZERS.target, LENGTH)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(
    "objective",
    [Objective(0.1, 0.3), Objective(word_dropout=0.2, consistency=RDrop()), Objective(consistency=SimCut(cut=0.3))],
    ids=["word dropout", "r-drop", "simcut"],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_does_not_depend_on_the_kind_of_source(
    name: str, objective: Objective, micro_batches: int
) -> None:
    results = []
    for model, reader in zip(MODELS[name](), READERS, strict=True):
        model.train()
        torch.manual_seed(1)
        batches = [encode(reader).batch(range(len(PAIRS))[part::micro_batches], CPU) for part in range(micro_batches)]
        loss, tokens = compute_gradients(model, objective, batches), sum(batch.tokens for batch in batches)
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        results.append((loss, tokens, gradients))
    (loss, tokens, gradients), (other_loss, other_tokens, other_gradients) = results
    assert torch.equal(loss, other_loss)
    assert tokens == other_tokens
    assert len(gradients) == len(other_gradients) > 0
    assert all(torch.equal(one, other) for one, other in zip(gradients, other_gradients, strict=True))


@pytest.mark.parametrize(
    "search",
    [{}, {"beam": 3, "nbest": 2}, {"sample": True, "nbest": 2}, {"beam": 3, "coverage_penalty": 0.2}],
    ids=str,
)
@pytest.mark.parametrize("name", MODELS)
def test_search_does_not_depend_on_the_kind_of_source(name: str, search: dict[str, Any]) -> None:
    one, other = (
        Predictor(model.eval(), reader, TOKENIZERS.target, DecodingSettings(), LENGTH)
        for model, reader in zip(MODELS[name](), READERS, strict=True)
    )
    texts, settings = [*PAIRS.sources, ""], SearchSettings(**search)
    expected, actual = (
        predictor.predict(predictor.reader.read(texts), settings, batch_size=4, attention=True)
        for predictor in (one, other)
    )
    for nbest, other_nbest in zip(expected, actual, strict=True):
        assert [hypothesis.tokens for hypothesis in nbest] == [hypothesis.tokens for hypothesis in other_nbest]
        assert [hypothesis.score for hypothesis in nbest] == [hypothesis.score for hypothesis in other_nbest]
        weights, other_weights = (list(best[0].attentions.values()) for best in (nbest, other_nbest))
        assert [part.tolist() for part in weights] == [part.tolist() for part in other_weights]


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_losses_do_not_depend_on_the_kind_of_source(name: str) -> None:
    one, other = (
        Predictor(model.eval(), reader, TOKENIZERS.target, DecodingSettings(), LENGTH)
        for model, reader in zip(MODELS[name](), READERS, strict=True)
    )
    assert one.score(PAIRS.sources, PAIRS.targets) == other.score(PAIRS.sources, PAIRS.targets)
    # `LazySources` forms other batches, whose padding changes the rounding.
    torch.testing.assert_close(
        torch.tensor(compute_losses(one, PAIRS, 2)), torch.tensor(compute_losses(other, PAIRS, 2)), rtol=1e-5, atol=1e-5
    )


def test_the_shape_of_a_source_is_that_of_all_its_tensors() -> None:
    tokens = READERS[0].collate(READERS[0].read(PAIRS.sources))
    shifted = Shifted.of(tokens)
    assert tokens.shape == ((5, 11), (5,))
    assert shifted.shape == ((*tokens.shape[0], 1), tokens.shape[0])
    rows = shifted.rows(torch.tensor([4, 0]))
    assert rows.length_hint_B.tolist() == [4, 10]
    both = rows.concatenate(shifted.rows(slice(1, 2)))
    assert both.length_hint_B.tolist() == [4, 10, 11]
    copy = both.clone()
    copy.tensors[1].zero_()
    assert both.length_hint_B.tolist() == [4, 10, 11]


@dataclass(frozen=True, eq=False)
class Vectors(Source):
    """A source without words."""

    vectors_BD: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.vectors_BD,)

    def with_tensors(self, tensors: Iterable[Tensor]) -> "Vectors":
        return Vectors(*tensors)

    @property
    def length_hint_B(self) -> Tensor:
        return torch.ones(len(self.vectors_BD), dtype=torch.long)


def test_a_source_without_words_is_not_changed_by_word_dropout() -> None:
    source = Vectors(torch.ones(2, 3))
    assert source.corrupt(0.9, UNKNOWN) is source


INDEPENDENT = ("decoding", "evaluation", "training", "inspection")
"""Packages that must not depend on the kind of source."""

FILES = sorted(path for name in INDEPENDENT for path in (Path(regard.__file__).parent / name).rglob("*.py"))


def find_token_access(path: Path) -> list[str]:
    """Return the lines of a module that read the tokens of a source, or name a kind of source or reader."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            reads = node.attr in {"tokens_BT", "lengths_B", "valid_BT", "tokenized"} and owner == "source"
            found += [f"{node.lineno}: {ast.unparse(node)}"] if reads else []
        elif isinstance(node, ast.ImportFrom) and node.module == "regard.data.source_readers":
            named = {alias.name for alias in node.names} - {"build_reader", "find_reader"}
            found += [f"{node.lineno}: {ast.unparse(node)}"] if named else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "hasattr"}:
            checked = ast.unparse(node.args[0]).rpartition(".")[2]
            found += [f"{node.lineno}: {ast.unparse(node)}"] if checked == "source" else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_module_depends_on_the_kind_of_source(path: Path) -> None:
    assert find_token_access(path) == []


def test_the_test_of_modules_detects_every_form_of_access(tmp_path: Path) -> None:
    path = tmp_path / "search.py"
    path.write_text(
        "from regard.data.source_readers import TextReader\n"
        "def search(batch, source):\n"
        "    width = batch.source.tokens_BT.shape\n"
        "    isinstance(batch.source, Tokens)\n"
        "    return source.lengths_B, batch.target.tokens_BT\n"
    )
    assert len(find_token_access(path)) == 4
