"""Diagnostics are averaged by role, described in words, and written to JSON and read again without a loss."""

import json
import math

from regard.evaluation.attention_diagnostics import AttentionDiagnostics, AttentionStatistics, HeadStatistics
from regard.formatting import to_json


def make_head(entropy: float = 0.5, top_position: int = 0, top_weight: float = 0.3) -> HeadStatistics:
    return HeadStatistics(entropy, 0.8, 0.7, math.nan, top_position, top_weight)


DEAD = make_head(entropy=0.1, top_weight=0.95)
UNIFORM = make_head(entropy=0.995)
DIAGNOSTICS = AttentionDiagnostics(
    64,
    (
        AttentionStatistics("encoder.layers.0.attention", "encoder-self", 1, 0.4, (make_head(), UNIFORM)),
        AttentionStatistics("decoder.layers.0.cross", "cross", 1, 0.2, (make_head(0.25), DEAD)),
        AttentionStatistics("decoder.layers.1.cross", "cross", 2, math.nan, (make_head(0.25, -1, 0.9), make_head(0.4))),
    ),
)


def test_averages_are_over_the_heads_of_a_role() -> None:
    assert DIAGNOSTICS.roles == ["encoder-self", "cross"]
    assert DIAGNOSTICS.averages("cross") == {
        "entropy": 0.25,
        "coverage": 0.8,
        "monotonicity": 0.7,
        "redundancy": 0.2,
        "dead_heads": 2,
    }


def test_dead_heads_are_named() -> None:
    assert DIAGNOSTICS.describe_dead_heads() == (
        "2 of 6 heads attend to one position only: cross layer 1 head 2 (first), cross layer 2 head 1 (last). "
        "1 of 6 heads has uniform weights: encoder-self layer 1 head 2."
    )
    alive = AttentionDiagnostics(64, (AttentionStatistics("a", "cross", 1, math.nan, (make_head(),)),))
    assert alive.describe_dead_heads() == ""
    many = AttentionDiagnostics(64, (AttentionStatistics("a", "cross", 1, 1.0, (UNIFORM,) * 7),))
    assert many.describe_dead_heads().endswith("cross layer 1 head 4, and 3 more.")


def test_a_document_is_standard_json_and_is_read_again() -> None:
    document = json.loads(to_json(DIAGNOSTICS.to_json()))
    assert document["cross/entropy"] == 0.25
    assert document["attentions"][1]["heads"][1]["dead"] == "one position"
    assert document["attentions"][0]["heads"][0]["diagonal_distance"] is None
    read = AttentionDiagnostics.from_json(document)
    assert read.to_json() == DIAGNOSTICS.to_json()
    assert read.dead_heads[0].head == 2
