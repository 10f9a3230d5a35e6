"""Alignment by forced decoding: which weights are used, and whether a trained model aligns words."""

from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data.pharaoh import GoldLinks
from regard.decoding.forced import ForcedPair, cross_attentions, map_forced
from regard.errors import ArgumentTypeError, ConfigError
from regard.evaluation.aligner import Aligner
from regard.evaluation.alignment import AlignmentSettings
from regard.runs.folder import RunFolder
from tests_shared import SMALL

PAIRS = [("3 mai 2009", "2009-05-03"), ("", "2009"), ("May 3", ""), ("Sunday, May 3, 2009", "2009-05 03")]

TRANSFORMER = {
    **{key: value for key, value in SMALL.items() if not key.startswith("model.")},
    "model": {"kind": "transformer", "size": 16, "heads": 2, "layers": 3, "feedforward": 32},
    "training.steps": 2,
}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    path = tmp_path_factory.mktemp("runs") / "transformer"
    regard.train("dates", TRANSFORMER, out=path, quiet=True)
    return regard.load(path)


@pytest.mark.parametrize("architecture", ["recurrent", "transformer"])
def test_forced_decoding_of_a_prediction_gives_its_weights(
    architecture: str, small_run: RunFolder, transformer: regard.Model
) -> None:
    model = transformer if architecture == "transformer" else regard.load(small_run.path)
    prediction = model.predict("Sunday, May 3, 2009")
    names = cross_attentions(model.network)

    def get(pair: ForcedPair) -> ForcedPair:
        return pair

    [pair] = map_forced(model.predictor, [(prediction.source, prediction.text)], names, get)
    for name in names:
        np.testing.assert_allclose(pair.weights[name][..., :-1, :], prediction.attentions[name], atol=1e-5)
        assert pair.weights[name].shape[-2:] == (len(prediction.tokens) + 1, len(prediction.source_tokens))


def test_the_alignment_of_a_pair_does_not_depend_on_its_batch(transformer: regard.Model) -> None:
    together = transformer.align(PAIRS * 3, batch_size=5, tokens=False)
    alone = [transformer.align([pair], batch_size=1, tokens=False)[0] for pair in PAIRS]
    assert together == alone * 3
    assert [str(alignment) for alignment in alone[1:3]] == ["", ""]
    assert {j for _, j in alone[3].links} == {0, 1}


def test_layers_and_heads_can_be_selected(transformer: regard.Model) -> None:
    def select(**options: object) -> Aligner:
        return Aligner.of(transformer.predictor, AlignmentSettings.model_validate(options))

    names = list(cross_attentions(transformer.network))
    assert select().head.attention == select(layer=3).head.attention == names[-1]
    assert select(attention=names[0]).head == select(layer=1).head
    assert select(layer=2, head=1).head == (names[1], 2, 1)
    ranking = select().rank_heads(PAIRS)
    assert len(ranking) == 3 * (2 + 1)
    assert [entry.entropy for entry in ranking] == sorted(entry.entropy for entry in ranking)
    reference = [GoldLinks.of(alignment.links) for alignment in transformer.align(PAIRS, layer=2, head=2)]
    rates = {entry.head: entry.score.aer for entry in select().rank_heads(PAIRS, reference)}
    assert rates[select(layer=2, head=2).head] == 0
    assert list(rates.values()) == sorted(rates.values())


def test_shifted_weights_are_those_of_the_step_that_reads_the_token(transformer: regard.Model) -> None:
    source, text = "3 mai 2009", "2009"
    names = cross_attentions(transformer.network)
    name = list(names)[-1]
    [rows_TS] = map_forced(transformer.predictor, [(source, text)], names, lambda pair: pair.weights[name].mean(0))
    words = [0, -1, 1, 1, 1, -1, 2, 2, 2, 2]
    by_word = [rows_TS[:, [index for index, word in enumerate(words) if word == n]].sum(1) for n in range(3)]
    for shift, rows in ((False, slice(0, 4)), (True, slice(1, 5))):
        largest = int(np.argmax([weights[rows].mean() for weights in by_word]))
        assert transformer.align([(source, text)], shift=shift, tokens=False)[0].links == {(largest, 0)}


def test_tokens_are_aligned_if_a_side_of_most_pairs_is_a_single_word(transformer: regard.Model) -> None:
    words = [("3 mai 2009", "2009-05-03"), ("", ""), ("1 mai 2009", "2009-05-01"), ("mai", "2009 05")]
    by_default = transformer.align(words)
    assert by_default == transformer.align(words, tokens=True)
    [names] = [list(cross_attentions(transformer.network))]
    weights = transformer.force(["3 mai 2009"], ["2009-05-03"])[0].attentions[names[-1]].mean(0)
    assert by_default[0].source_words == tuple("3 mai 2009")
    assert by_default[0].target_words == tuple("2009-05-03")
    assert by_default[0].links == {(int(row.argmax()), index) for index, row in enumerate(weights)}
    assert {alignment.unit for alignment in by_default} == {"tokens"}
    assert str(by_default[1]) == ""
    assert {alignment.unit for alignment in transformer.align(words, tokens=False)} == {"words"}
    assert {alignment.unit for alignment in transformer.align(PAIRS)} == {"words"}


def test_wrong_arguments_are_rejected(transformer: regard.Model, tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"pairs\[0\] must be a pair of texts"):
        transformer.align(["3 mai 2009"])  # type: ignore[list-item]
    with pytest.raises(ArgumentTypeError, match="pairs must be a list"):
        transformer.align("3 mai 2009")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method"):
        transformer.align(PAIRS, method="maximum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"layer: 4 is out of range\. The model has 3 layers"):
        transformer.align(PAIRS, layer=4)
    regard.train("dates", {**SMALL, "model": "fixed", "training.steps": 1}, out=tmp_path / "fixed", quiet=True)
    with pytest.raises(ConfigError, match="The model has no attention to the source"):
        regard.load(tmp_path / "fixed").align(PAIRS)
