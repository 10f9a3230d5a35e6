"""Invalid settings: exit code 2 before data is read, with the key, the nearest name, the file and line."""

import itertools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.config import flatten, resolve
from regard.errors import ConfigError
from regard.overrides import parse_overrides
from regard.runs.settings import RunSettings, check_overrides

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainin.steps=5", "unknown setting 'trainin'. Did you mean 'training'?"),
        ("training.step=5", "unknown setting 'training.step'. Did you mean 'steps'?"),
        ("training.steps=many", "training.steps = 'many': input should be a valid integer"),
        ("training.steps=0", "training.steps = 0: input should be greater than 0"),
        ("model.dropout=1.5", "model.dropout = 1.5: input should be less than or equal to 0.999"),
        ("model.dropout=0.999999", "model.dropout = 0.999999: input should be less than or equal to 0.999"),
        ("model.attention=bahdanu", "model.attention"),
        ("model.attention.scope=locl_m", "Did you mean 'local_m'?"),
        ("model.encoder.cell=gruu", "Did you mean 'gru'?"),
        ("data.kind=dats", "Did you mean 'dates'?"),
        ("training.device=gpu", "Use auto, cpu, cuda or cuda:N"),
        ("training.steps", "Write key=value"),
        (
            "model.attention.heads=7",
            "decoder.hidden (128) and the size of the encoder states (128) must be divisible by the number of heads, 7",
        ),
        ("model.encoder.bidirectional=maybe", "model.encoder.bidirectional = 'maybe'"),
        ("model={kind: transformer, size: 64, heads: 7}", "the size 64 must be divisible by the number of heads, 7"),
        ("model={kind: transformer, tied: all}", "requires a shared vocabulary. Set tokenizer.shared=true"),
        ("training.learning_rate=.inf", "learning_rate"),
        ("seed=18446744073709551616", "seed = 18446744073709551616: input should be less than or equal to"),
        ("seed=true", "seed = True: expected a number"),
        ("seed=1:30", "seed = '1:30': input should be a valid integer"),
        ("model={kind: [a]}", "['a'] is not a valid model"),
        ("data.train=-5", "data.train = -5: input should be greater than 0"),
    ],
)
def test_an_invalid_override_is_reported_with_its_key(cli: Run, tmp_path: Path, override: str, message: str) -> None:
    done = cli("train", "dates", override)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_incompatible_sizes_are_reported_before_data_is_read(cli: Run, tmp_path: Path) -> None:
    done = cli("train", "dates", "model.attention=luong-dot", "model.encoder.hidden=50")
    assert done.returncode == 2
    assert "decoder.hidden is 128 and the encoder states have size 100" in done.stderr
    assert "use the score general" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_mechanism_gets_the_nearest_as_suggestion(cli: Run) -> None:
    assert "Did you mean 'bahdanau'?" in cli("train", "dates", "model.attention=bahdanu").stderr


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("steps", "'training.steps'"),
        ("batch_size", "'training.batch_size'"),
        ("beam", "'training.validation_search.beam'"),
        ("dropout", "'model.dropout' or 'model.encoder.dropout' or 'model.decoder.dropout'"),
        ("training.dropout", "'model.dropout' or 'model.encoder.dropout' or 'model.decoder.dropout'"),
        ("stps", "'training.steps'"),
        ("seeds", "'seed'"),
    ],
)
def test_a_setting_without_its_group_gets_the_full_key_as_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'. Did you mean {suggestion}[?]"):
        resolve(RunSettings, "dates", {name: 1})


def test_only_settings_of_the_chosen_kinds_are_suggested() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'vocabulary'. Available"):
        resolve(RunSettings, "dates", {"vocabulary": 100})
    with pytest.raises(ConfigError, match=r"Did you mean 'tokenizer.vocabulary'[?]"):
        resolve(RunSettings, "dates", {"tokenizer": "bpe", "vocabulary": 100})
    with pytest.raises(ConfigError, match=r"Did you mean 'tokenizer.vocabulary'[?]"):
        resolve(RunSettings, {"data": "dates", "tokenizer": "bpe", "vocabulary": 100}, {})


def test_for_a_file_without_settings_the_data_options_are_suggested(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\nun: deux: trois\n")
    (tmp_path / "words.en").write_text("one\n")
    for name, problem in (("words.txt", "words.txt:2 is not valid YAML"), ("words.en", "does not contain settings")):
        done = cli("train", name)
        assert done.returncode == 2
        assert problem in done.stderr
        assert f"To train on data, use --pairs {name}, or --source and --target" in done.stderr
    done = cli("train", "words.en", "words.txt")
    assert done.returncode == 2
    assert (
        "words.txt is not a KEY=VALUE setting. Pass training data with --pairs, or --source and --target,"
        in done.stderr
    )


def test_an_error_in_a_file_is_reported_with_its_line(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: dates\nmodel:\n  embeding: 32\ntraining: {steps: 5}\n")
    done = cli("train", "mine.yaml")
    assert done.returncode == 2
    assert "mine.yaml:3: unknown setting 'model.embeding'. Did you mean 'embedding'?" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: [", "mine.yaml:1 is not valid YAML"),
        ("- 1\n", "mine.yaml does not contain settings"),
        ("seed: 1\n", "the setting 'data' is required"),
        ("data: {kind: files, train: {source: a}}\n", "set either path (one file of pairs)"),
    ],
)
def test_an_invalid_file_is_reported(cli: Run, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    done = cli("train", "mine.yaml")
    assert done.returncode == 2
    assert message in done.stderr


def test_an_unknown_preset_is_reported(cli: Run) -> None:
    done = cli("train", "dats")
    assert done.returncode == 2
    assert "Did you mean 'dates'?" in done.stderr
    assert cli("train", "none.yaml").returncode == 2


@pytest.mark.parametrize(("word", "name"), [("datse", "dates"), ("iwslt", "iwslt15-lstm"), ("sequence", "sequences")])
def test_a_misspelled_or_shortened_preset_gets_the_nearest_as_suggestion(word: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{word}' is neither a preset nor a file. Did you mean '{name}'?"):
        resolve(RunSettings, word, {})


@pytest.mark.parametrize("word", ["foo", "data", "translate", "x", "my-model", "words"])
def test_a_word_unlike_any_preset_gets_no_suggestion(word: str) -> None:
    with pytest.raises(ConfigError, match=f"'{word}' is neither a preset nor a file. Presets: "):
        resolve(RunSettings, word, {})


def test_debug_prints_the_traceback(cli: Run) -> None:
    assert "Traceback" in cli("train", "dats", "--debug").stderr


def test_one_part_of_a_mechanism_can_be_changed() -> None:
    changed = {"model.attention": "luong-local-m", "model.attention.scope.window": 3}
    flat = flatten(resolve(RunSettings, "dates", changed))
    assert flat["model.attention.score.kind"] == "general"
    assert flat["model.attention.scope.window"] == 3
    files = {"data.train": "mine.jsonl", "data.train.columns": ["de", "en"]}
    flat = flatten(resolve(RunSettings, "pairs", files))
    assert (flat["data.train.path"], flat["data.train.columns"]) == ("mine.jsonl", ("de", "en"))
    flat = flatten(resolve(RunSettings, "dates", {"model.attention.score.hidden": 7}))
    assert flat["model.attention.score.hidden"] == 7


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ("dates model.attention.heads=3 model.encoder.bidirectional=true", "model.attention.heads=3"),
        (
            "dates training.ema_decay=0.9 training.average_checkpoints=5 training.learning_rate=0.1",
            "training.ema_decay=0.9 and training.average_checkpoints=5",
        ),
        ("dates model.tied=all tokenizer.max_length=90", "model.tied=all"),
        ("multi30k-transformer tokenizer.shared=false model.feedforward=100", "tokenizer.shared=False"),
        ("multi30k-transformer model.size=100 model.feedforward=100", "model.size=100"),
        ("sequences data.shortest=50 data.letters=10", "data.shortest=50"),
        ("sequences data.shortest=50 data.longest=40", "data.shortest=50"),
        ("sequences data.letters=2 data.longest=6", "data.letters=2 and data.longest=6"),
        ("dates data.kind=files", "data.kind=files"),
        ("dates data.kind=scenes training.steps=10", "data.kind=scenes"),
    ],
)
def test_the_override_that_causes_an_invalid_combination_is_blamed(words: str, blamed: str) -> None:
    preset, *overrides = words.split()
    with pytest.raises(ConfigError, match=f"^{re.escape(blamed)}: "):
        resolve(RunSettings, preset, parse_overrides(overrides))


@pytest.mark.parametrize("override", ["model.kind=fixed", "model=fixed"])
def test_another_kind_replaces_the_settings_of_the_old_one(cli: Run, override: str) -> None:
    done = cli("explain", "dates", override)
    assert done.returncode == 0, done.stderr
    assert "fixed model" in done.stdout


def test_another_kind_and_its_settings_can_be_given_together(cli: Run) -> None:
    done = cli("explain", "dates", "model.kind=transformer", "model.size=64", "tokenizer.shared=true")
    assert "encoder.layers.0–2.attention.attention (× 3): Dot × Global × Softmax, 4 heads" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model.attention.scope.kind=local_m model.attention.scope.window=3", {"model.attention.scope.window": 3}),
        ("model.attention.kind=luong-local-m model.attention.scope.window=3", {"model.attention.scope.window": 3}),
        ("model={attention:{kind:luong-local-m}} model.attention.scope.window=3", {"model.attention.scope.window": 3}),
        ("model=transformer model.layers=2", {"model.layers": 2}),
        ("model.kind=transformer model.layers=2 model.size=64", {"model.layers": 2, "model.size": 64}),
        (
            "model=transformer-base model.tied=all model.dropout=0.2 tokenizer.shared=true",
            {"model.tied": "all", "model.dropout": 0.2, "tokenizer.shared": True},
        ),
        ("tokenizer=bpe tokenizer.vocabulary=100 tokenizer.shared=true", {"tokenizer.vocabulary": 100}),
        ("data=files data.train=mine.tsv", {"data.train.path": "mine.tsv"}),
        (
            "data.kind=files data.train=mine.jsonl data.train.columns=[de,en]",
            {"data.train.path": "mine.jsonl", "data.train.columns": ("de", "en")},
        ),
        # Dot scores need equal sizes. The name of the mechanism is valid because another override replaces its score.
        (
            "model.attention=luong-dot model.attention.score=general model.encoder.hidden=50",
            {"model.attention.score.kind": "general", "model.encoder.hidden": 50},
        ),
        ("training={steps:5} training.steps=6", {"training.steps": 6}),
        ("training.metric=bleu:lowercase=true training.metric.smooth=none", {"training.metric.lowercase": True}),
    ],
)
def test_the_order_of_overrides_has_no_effect(words: str, expected: dict[str, object]) -> None:
    overrides = [word.replace(":", ": ") if "{" in word else word for word in words.split()]
    resolved = [
        resolve(RunSettings, "dates", check_overrides(parse_overrides(order)))
        for order in itertools.permutations(overrides)
    ]
    assert all(settings == resolved[0] for settings in resolved)
    assert flatten(resolved[0]).items() >= expected.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model=transformer model.kind=fixed", "model=transformer and model.kind=fixed both set model."),
        ("model={size:64} model.kind=transformer", "both set model. Remove model.kind, and set the kind in model."),
        ("model={attention:{heads:2}} model.attention.kind=luong-dot", "both set model.attention."),
        ("training=3 training.steps=5", "training = 3: input should be a valid dictionary"),
        ("model.attention=bahdanu model.attention.heads=2", "'bahdanu' is not a mechanism. Did you mean 'bahdanau'?"),
        ("training.steps=5 training.steps.x=1", "training.steps"),
    ],
)
def test_contradictory_overrides_are_rejected_in_every_order(words: str, message: str) -> None:
    overrides = [word.replace(":", ": ") for word in words.split()]
    for order in itertools.permutations(overrides):
        with pytest.raises(ConfigError, match=re.escape(message)):
            resolve(RunSettings, "dates", check_overrides(parse_overrides(order)))


@pytest.mark.parametrize(
    "command",
    [
        "train dates seed=5 seed=6",
        "train --pairs mine.tsv seed=5 seed=6",
        "explain dates seed=5 seed=6",
        "predict run text --set seed=5 --set seed=6",
        "evaluate run --set seed=5 --set seed=6",
        "compare run other --set seed=5 --set seed=6",
    ],
)
def test_a_setting_that_is_given_twice_is_rejected(cli: Run, command: str) -> None:
    done = cli(*command.split())
    assert done.returncode == 2
    assert "'seed' is set twice: seed=5 and seed=6. Set it once." in done.stderr
