"""Small Transformers, trained once for all exporters."""

import pytest

import regard
from tests_marian import train_transformer


@pytest.fixture(scope="session")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    """A model with arbitrary weights."""
    return train_transformer(tmp_path_factory.mktemp("export") / "run", **{"training.steps": 1})


@pytest.fixture(scope="session")
def trained_transformer(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    """A model whose predictions end: at a length limit, other libraries give other predictions."""
    return train_transformer(tmp_path_factory.mktemp("export") / "run")
