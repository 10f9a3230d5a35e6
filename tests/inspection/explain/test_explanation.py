"""`regard.explain` from Python."""

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.inspection.explain import cost_plot


def test_an_explanation_can_be_printed_evaluated_and_serialized() -> None:
    explanation = regard.explain("dates", {"model.attention": "luong-general"}, source=30, target=12, beam=4)
    assert explanation.lengths == (30, 12, 4)
    forward = explanation.cost.forward
    document = explanation.to_json()
    assert document["multiply_adds"]["forward"]["value"] == forward(source=30, target=12)
    assert document["growth"] == "O(S·T)"
    assert sum(part["parameters"] for part in document["parts"]) == document["parameters"]
    assert str(forward) in str(explanation)
    assert "luong" not in repr(explanation)
    assert "<pre>" in explanation._repr_html_()


def test_a_mapping_of_settings_is_explained() -> None:
    explanation = regard.explain({"data": "dates", "model": {"kind": "fixed"}})
    assert explanation.cost.growth == "O(S + T)"
    assert not explanation.cost.weights


def test_a_slow_model_is_measured_at_five_lengths_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_plot, "TOTAL_SECONDS", 0.0)
    small = {"model.embedding": 8, "model.encoder.hidden": 8, "model.decoder.hidden": 8}
    measured = regard.explain("dates", small).plot(tmp_path / "cost.png")
    assert measured.lengths == (2, 3, 4, 6, 8)
    assert len(measured.seconds) == 5


@pytest.mark.slow
def test_the_plot_returns_what_was_measured(tmp_path: Path) -> None:
    small = {"model.embedding": 8, "model.encoder.hidden": 8, "model.decoder.hidden": 8}
    measured = regard.explain("dates", small).plot(tmp_path / "cost.png")
    assert measured.lengths[:2] == (8, 16)
    assert len(measured.seconds) == len(measured.lengths)
    assert all(seconds > 0 for seconds in measured.seconds)
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(regard.ConfigError, match=r"drawn as \.svg, \.png, \.pdf"):
        regard.explain("dates", small).plot(tmp_path / "cost.txt")


@pytest.mark.parametrize("arguments", [{"source": 0}, {"target": -1}, {"beam": 0}])
def test_lengths_must_be_positive(arguments: dict[str, Any]) -> None:
    with pytest.raises(regard.ConfigError):
        regard.explain("dates", **arguments)


def test_arguments_of_the_wrong_type_are_rejected() -> None:
    with pytest.raises(regard.ArgumentTypeError, match="config must be a name, a path or a mapping, not int"):
        regard.explain(3)  # type: ignore[arg-type]
    with pytest.raises(regard.ArgumentTypeError):
        regard.explain("dates", source="long")  # type: ignore[arg-type]
