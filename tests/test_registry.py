"""Registries: parts are registered by name, and described by their constructors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import registry
from regard.attention.settings import Score as ScoreSettings
from regard.config import resolve
from regard.evaluation.settings import Metric
from regard.registry import import_plugins, plugins_of
from regard.runs.settings import RunSettings


class Constant(regard.Score):
    """Every slot has the same score."""

    equation = "e = 0"

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)

    def forward(self, query_BTD: Tensor, prepared: Tensor, past_BHS: Tensor | None) -> Tensor:
        del past_BHS
        return self.split(query_BTD).sum(-1, keepdim=True) * 0 + prepared.sum(-1).unsqueeze(2) * 0


class Reserved(Constant):
    def __init__(self, query_size: int, key_size: int, heads: int = 1, *, absolute: bool = True) -> None:
        super().__init__(query_size, key_size, heads)
        self.absolute = absolute


class AnyOptions(Constant):
    def __init__(self, query_size: int, key_size: int, heads: int = 1, **options: Any) -> None:
        super().__init__(query_size, key_size, heads)
        self.options = options


class NoEquation(Constant):
    equation = ""


@pytest.mark.parametrize(
    ("name", "score", "message"),
    [
        ("additive", Constant, "'additive' is the name of a built-in score. Choose another name."),
        ("reserved", Reserved, "The score 'reserved' has an option 'absolute', a reserved name. Rename it."),
        ("options", AnyOptions, r"its parameter \*\*options: Any cannot be set by name"),
        ("equation", NoEquation, "The score 'equation' has no equation. Declare it as a class attribute of NoEquation"),
    ],
)
def test_a_part_that_cannot_be_registered_is_rejected(name: str, score: type[regard.Score], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        regard.register_score(name, score)
    assert name == "additive" or name not in ScoreSettings.registry.settings


@pytest.mark.parametrize("arguments", [(3, Constant), ("x", "not callable"), (None, None)])
def test_a_registration_of_the_wrong_types_is_a_type_error(arguments: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="register_score expects a name and a class or function"):
        regard.register_score(*arguments)


def test_a_name_belongs_to_the_plugin_that_registered_it_first() -> None:
    regard.register_score("constant", Constant)
    regard.register_score("constant", Constant)  # a notebook cell may run twice

    class Other(Constant):
        equation = "e = 0"

    Other.__module__ = "another_plugin"
    with pytest.raises(regard.ConfigError, match="The score 'constant' is already registered by "):
        regard.register_score("constant", Other)


def test_a_function_can_build_a_part() -> None:
    def build(query_size: int, key_size: int, trained: bool = True) -> regard.Score:
        return Constant(query_size, key_size, 1).train(trained)

    regard.register_score("built", build)
    attention = regard.Attention(4, 4, score={"kind": "built", "trained": False})
    assert not attention.score.training
    _, weights = attention(torch.randn(1, 2, 4), torch.randn(1, 5, 4))
    torch.testing.assert_close(weights, torch.full((1, 2, 5), 0.2))


def test_plugins_of_settings_are_those_of_all_their_parts() -> None:
    regard.register_score("constant", Constant)
    plain = resolve(RunSettings, "dates", {})
    assert plugins_of(plain) == []
    changed = resolve(RunSettings, "dates", {"model.attention.score": "constant"})
    assert plugins_of(changed) == [Constant.__module__]


PLUGIN = """
import random
from regard import register_metric

assert random.Random(0).random() > 0  # the standard module, whatever the name of this file

def longest(outputs):
    raise NotImplementedError

def register_another():
    register_metric("longest2", longest)

register_metric("longest", longest)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin with the name of a standard module. Its parts are removed after the test."""
    for name in ("settings", "builders", "plugins"):
        monkeypatch.setattr(Metric.registry, name, dict(getattr(Metric.registry, name)))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "random.py"
    path.write_text(PLUGIN)
    return path


def test_a_plugin_with_the_name_of_a_standard_module_does_not_replace_it(plugin: Path) -> None:
    standard = sys.modules["random"]
    import_plugins("./random.py")
    assert sys.modules["random"] is standard
    assert Metric.registry.plugins["longest"] == "./random.py"
    loaded = sys.modules[Metric.registry.builders["longest"].__module__]
    loaded.register_another()
    assert Metric.registry.plugins["longest2"] == "./random.py"
    assert loaded.__file__ is not None
    assert Path(loaded.__file__).samefile(plugin)


def test_a_plugin_is_imported_once_by_path_and_by_name(plugin: Path) -> None:
    plugin = plugin.rename("parts_of_a_test.py")
    import_plugins([str(plugin), "parts_of_a_test.py", "parts_of_a_test"])
    assert Metric.registry.plugins["longest"] == str(plugin)


@pytest.mark.parametrize("error", ["1 / 0", "raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_a_plugin_that_could_not_be_imported_fails_again_until_it_is_corrected(plugin: Path, error: str) -> None:
    plugin.write_text(PLUGIN + error)
    for _ in range(2):
        with pytest.raises((regard.ConfigError, KeyboardInterrupt)):
            import_plugins("random.py")
    plugin.write_text(PLUGIN + "corrected = True\n")
    import_plugins("random.py")
    assert sys.modules[Metric.registry.builders["longest"].__module__].corrected


def test_an_installed_plugin_that_could_not_be_imported_fails_again(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plugin.rename("installed_parts_of_a_test.py").write_text("1 / 0")
    (package := plugin.parent / "parts-1.0.dist-info").mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[regard.plugins]\nparts = installed_parts_of_a_test\n")
    monkeypatch.syspath_prepend(plugin.parent)
    registry._find_entry_points.cache_clear()
    request.addfinalizer(registry._find_entry_points.cache_clear)
    for _ in range(2):
        with pytest.raises(regard.ConfigError, match="The plugin installed_parts_of_a_test could not be imported"):
            resolve(RunSettings, "dates", {"model.attention.score": "of-an-installed-plugin"})


SCORE = '''
@final
class Negated(InnerProduct):
    """The negated dot product."""

    equation = "e = −qᵀ k"
    equal_sizes = True
    factor = -1.0

    def query(self, query_BTD: Tensor) -> Tensor:
        return self.split(query_BTD)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return self.split(keys_BSD)


register_score("negated", Negated)
'''

CELL = '''
@final
class Accumulator(Cell):
    """h' = h + W x."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm=False)

    def step(self, gates_BG: Tensor, state: State, mask_BH: Tensor | None = None) -> State:
        return (state[0] + gates_BG,)


register_cell("accumulator", Accumulator)
'''

FAMILY = '''
import torch
from torch import nn

from regard.models.contracts import Decoded, Decoder, Memory


class BagDecoder(Decoder):
    """Predicts every token from the summary of the source alone."""

    def __init__(self, vocabulary: int, memory_size: int) -> None:
        super().__init__()
        self.output = nn.Linear(memory_size, vocabulary)

    def begin(self, memory):
        return (), memory.summary_BD

    def step(self, token_B, state, keys):
        return self.output(state), state

    def forward(self, tokens_BT, memory):
        return Decoded.from_logits(self.output(memory.summary_BD).unsqueeze(1).expand(-1, tokens_BT.shape[1], -1))
'''

USE = """
import torch, regard
from regard.config import resolve
from regard.models.seq2seq import build_model
from regard.runs.settings import RunSettings

changes = {"model.attention.score": "negated", "model.encoder.cell": "accumulator", "model.decoder.hidden": 128}
settings = resolve(RunSettings, "dates", changes)
model = build_model(settings.model, 10, 10)
assert type(model.encoder.layers.cells[0]).__name__ == "Accumulator"
assert model.decoder.attention.fused
attention = regard.Attention(2, 2, score="negated")
query, keys = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
assert attention.score(query, attention.prepare(keys).prepared, None).flatten().tolist() == [-1.0, 0.0]
assert "negated" in [mechanism.name for mechanism in regard.mechanisms()]
family = resolve(RunSettings, "dates", {"model": "bag"})
assert type(build_model(family.model, 10, 10).decoder).__name__ == "BagDecoder"
"""


@pytest.mark.slow
def test_a_score_or_a_cell_is_added_in_one_file_and_a_model_family_in_two(tmp_path: Path) -> None:
    """The parts are found by name and validated, although no other file of the package mentions them."""
    package = Path(shutil.copytree(Path(regard.__file__).parent, tmp_path / "regard"))
    for file, content in {
        "attention/scores.py": SCORE,
        "recurrent/cells.py": CELL,
        "models/bag.py": FAMILY,
        "models/seq2seq.py": '\nfrom regard.models.bag import BagDecoder\nregister_decoder("bag", BagDecoder)\n',
    }.items():
        with (package / file).open("a", encoding="utf-8") as opened:
            opened.write(content)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
