"""The description of an attention, which `regard explain`, traces and models print."""

import pytest

from regard.attention.mechanisms import MECHANISMS
from regard.attention.settings import AttentionSettings


@pytest.mark.parametrize(
    ("mechanism", "changes", "description"),
    [
        ("bahdanau", {}, "additive attention"),
        ("bahdanau", {"heads": 2}, "additive attention with 2 heads"),
        ("hard-monotonic", {}, "hard-monotonic attention (additive score)"),
        ("luong-local-p", {}, "local-p attention (general score)"),
        ("luong-local-m", {"select": "sparsemax"}, "sparsemax local-m attention (general score)"),
        ("scaled-dot", {"scope": {"kind": "all_of", "scopes": ["global"]}}, "scaled-dot attention"),
    ],
)
def test_a_mechanism_is_described_by_selection_scope_and_score(
    mechanism: str, changes: dict[str, object], description: str
) -> None:
    settings = AttentionSettings.model_validate({**MECHANISMS[mechanism].parts, **changes})
    assert settings.description == description
