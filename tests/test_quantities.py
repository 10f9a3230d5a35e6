"""Every number in the settings has a range, and `true` is not a number."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import annotated_types
import pytest
import torch
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from regard import quantities
from regard.config import Settings, resolve
from regard.decoding.edits import KINDS
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError
from regard.evaluation.alignment import AlignmentSettings
from regard.ops.layers import Dropout
from regard.runs.settings import RunSettings

SCHEMAS = (RunSettings, SearchSettings, AlignmentSettings, *KINDS.values())
"""Importing these declares all settings."""

LOWER = annotated_types.Gt | annotated_types.Ge
UPPER = annotated_types.Lt | annotated_types.Le


def subclasses(base: type[Settings]) -> Iterator[type[Settings]]:
    for settings in base.__subclasses__():
        yield settings
        yield from subclasses(settings)


def numbers(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the metadata of each int and float in an annotation."""
    if annotation in (int, float):
        yield metadata
    elif get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        parts = [part for item in extra for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        yield from numbers(inner, (*metadata, *parts))
    else:
        for part in get_args(annotation):
            yield from numbers(part)


NUMBERS = {
    f"{settings.__name__}.{name}": metadata
    for settings in subclasses(Settings)
    if settings.__module__.startswith("regard.")
    for name, field in settings.model_fields.items()
    for metadata in numbers(field.annotation, tuple(field.metadata))
    if f"{settings.__name__}.{name}" != "ForceToken.token"  # compared with the vocabulary of the model
}


def test_the_numbers_of_all_settings_are_found() -> None:
    found = {"TrainingSettings.steps", "GRU.hidden", "RecurrentSettings.hidden", "SetRow.weights", "Files.columns"}
    assert found - {"GRU.hidden"} <= set(NUMBERS)
    assert len(NUMBERS) > 100


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_every_number_has_a_range_and_rejects_true(name: str) -> None:
    metadata = NUMBERS[name]
    remedy = f"{name}: use a type of regard.quantities"
    assert any(isinstance(item, LOWER) for item in metadata), remedy
    assert any(isinstance(item, UPPER) for item in metadata), remedy
    assert any(isinstance(item, BeforeValidator) for item in metadata), remedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_dropout_probability_that_is_valid_can_be_computed(dtype: torch.dtype) -> None:
    # BPE-dropout selects merges and may be 1.
    names = [name for name in NUMBERS if re.match(r"(?!BPE|SentencePiece).*dropout$", name)]
    assert {"AttentionSettings.dropout", "RecurrentModel.output_dropout", "TrainingSettings.word_dropout"} <= set(names)
    for name in names:
        probability = TypeAdapter(Annotated[float, *NUMBERS[name]])
        assert probability.validate_python(0.9) == 0.9
        for p in (0.99, 0.999, 0.9999, 0.999999, 1 - 2**-53):
            with suppress(ValidationError):
                output = Dropout(probability.validate_python(p))(torch.ones(10_000, dtype=dtype))
                assert torch.isfinite(output).all(), name


@pytest.mark.parametrize(
    "override",
    [
        {"seed": 2**64},
        {"seed": 10**400},
        {"seed": True},
        {"model.encoder.hidden": 10**9},
        {"model.encoder.layers": 100_000},
        {"model.decoder.hidden": True},
        {"training.minutes": float("nan")},
        {"training.minutes": 10**400},
        {"training.threads": 10**9},
        {"training.batch_size": 2**63},
        {"training.steps": 1e300},
        {"data.train": 4_294_967_296},
        {"data.seed": 2**64},
        {"tokenizer.max_length": 10**12},
        {"decoding.max_length_ratio": 1e300},
    ],
    ids=str,
)
def test_a_number_out_of_range_is_rejected(override: dict[str, Any]) -> None:
    (key,) = override
    with pytest.raises(ConfigError, match=key) as failure:
        resolve(RunSettings, "dates", override)
    assert len(str(failure.value)) < 1_000


@pytest.mark.parametrize("search", [{"beam": 100_000_000}, {"sample": True, "temperature": 1e-300}, {"seed": 2**64}])
def test_a_search_setting_out_of_range_is_rejected(search: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        resolve(SearchSettings, search, {})


def test_the_largest_seed_is_valid(tmp_path: Path) -> None:
    assert TypeAdapter(quantities.Seed).validate_python(2**63 - 1) == 2**63 - 1
    with pytest.raises(ValidationError):
        TypeAdapter(quantities.Seed).validate_python(2**63)
