"""A small Transformer, trained once for all exporters."""

import pytest

import regard
from tests_marian import train_transformer


@pytest.fixture(scope="session")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    return train_transformer(tmp_path_factory.mktemp("export") / "run")
