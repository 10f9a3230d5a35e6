"""Settings chosen from pairs: each kind of data gets its tokenizer and measure, the time is kept, and wishes stand."""

import random
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from regard.config import resolve
from regard.data.settings import FilesData, sides
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.training.autoconfig import choose
from regard.training.budget import Pace, fit, shrink
from regard.training.lr_finder import find_pace

GENERATOR = random.Random(0)
WORDS = ["the", "old", "man", "saw", "a", "white", "dog", "near", "river", "house"]


def sentences(count: int = 300) -> list[tuple[str, str]]:
    drawn = [" ".join(GENERATOR.choices(WORDS, k=GENERATOR.randint(4, 9))) for _ in range(count)]
    return [(text, text.upper()) for text in drawn]


def spelled(count: int = 300) -> list[tuple[str, str]]:
    """Words, and a sound for each letter."""
    drawn = ["".join(GENERATOR.choices("abcdefghij", k=GENERATOR.randint(3, 8))) for _ in range(count)]
    return [(word, " ".join(f"{letter.upper()}H" for letter in word)) for word in drawn]


def names(count: int = 300) -> list[tuple[str, str]]:
    return [(word, word.translate(str.maketrans("abcdefghij", "абцдефгхиж"))) for word, _ in spelled(count)]


def files(tmp_path: Path, pairs: list[tuple[str, str]]) -> FilesData:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return resolve(FilesData, {"train": str(path)}, {})


@pytest.mark.parametrize(
    ("pairs", "tokenizer", "metric"),
    [
        pytest.param(sentences(), {"kind": "bpe", "shared": True}, "bleu", id="sentences"),
        pytest.param(spelled(), {"kind": "pair"}, "wer", id="pronunciations"),
        pytest.param(names(), {"kind": "char", "shared": False}, "accuracy", id="names in two scripts"),
    ],
)
def test_each_kind_of_pairs_has_its_tokenizer_and_measure(
    tmp_path: Path, pairs: list[tuple[str, str]], tokenizer: dict[str, Any], metric: str
) -> None:
    chosen = choose(files(tmp_path, pairs), {}, cuda=False)
    found = chosen.settings.tokenizer.model_dump()
    assert {key: found[key] for key in tokenizer} == tokenizer
    assert chosen.settings.training.metric.kind == metric
    told = " ".join(chosen.reasons)
    for word in ("300 pairs", "Tokenizer", "Model", "Training"):
        assert word in told


def test_phonemes_are_read_as_they_stand_and_letters_one_by_one(tmp_path: Path) -> None:
    chosen = choose(files(tmp_path, spelled()), {}, cuda=False).settings.tokenizer.model_dump()
    assert (chosen["source"]["kind"], chosen["target"]["kind"]) == ("char", "word")


def test_syllables_of_korean_are_taken_apart(tmp_path: Path) -> None:
    syllables = ["".join(chr(0xAC00 + GENERATOR.randrange(11_172)) for _ in range(3)) for _ in range(300)]
    spoken = [(word, "H AH N") for word in syllables]
    chosen = choose(files(tmp_path, spoken), {}, cuda=False)
    assert chosen.settings.tokenizer.model_dump()["source"]["normalization"] == "nfd"
    assert "Tokenizer: letters that 한 is taken apart into, ㅎㅏㄴ → symbols as they stand." in chosen.reasons
    written = [(word, latin) for word, (latin, _) in zip(syllables, names(), strict=True)]
    for pairs, forms in ((written, ("nfd", "nfc")), ([pair[::-1] for pair in written], ("nfc", "nfd"))):
        found = choose(files(tmp_path, pairs), {}, cuda=False).settings.tokenizer.model_dump()
        assert (found["source"]["normalization"], found["target"]["normalization"]) == forms


@pytest.mark.parametrize("cuda", [False, True])
def test_sounds_follow_letters(tmp_path: Path, cuda: bool) -> None:
    spoken = spelled()
    for pairs in (spoken, [pair[::-1] for pair in spoken]):
        chosen = choose(files(tmp_path, pairs), {}, cuda=cuda)
        assert chosen.settings.model.attention.select.kind == "hard_monotonic"  # type: ignore[union-attr]
        assert "hard monotonic attention" in " ".join(chosen.reasons)
    turned = [(sounds, " ".join(sounds.split()[::-1])) for _, sounds in spoken]
    assert "monotonic" not in " ".join(choose(files(tmp_path, turned), {}, cuda=cuda).reasons)


@pytest.mark.parametrize("cuda", [False, True])
def test_inflected_forms_follow_their_lemmas_and_tags_are_tokens(tmp_path: Path, cuda: bool) -> None:
    lemmas = [word for word, _ in names(100)]
    forms = {"V;PST": "ed", "V;PTCP PRS": "ing", "V;3;SG": "s"}
    pairs = [(lemma, lemma + ending) for lemma in lemmas for ending in forms.values()]
    chosen = choose(marked(tmp_path, pairs, *forms), {}, cuda=cuda)
    assert chosen.settings.tokenizer.model_dump()["tags"]
    assert chosen.settings.model.attention.select.kind == "hard_monotonic"  # type: ignore[union-attr]
    assert chosen.settings.training.metric.kind == "accuracy"
    assert "Data: 300 pairs of words in Latin script, with 6 different tags after a tab." in chosen.reasons
    assert "Tokenizer: characters, one alphabet, each tag a token." in chosen.reasons


def marked(tmp_path: Path, pairs: list[tuple[str, str]], *tags: str) -> FilesData:
    """Pairs with tags, which take turns."""
    rows = (f"{left}\t{tag}\t{right}\n" for (left, right), tag in zip(pairs, cycle(tags), strict=False))
    (tmp_path / "marked.tsv").write_text("".join(rows))
    return resolve(FilesData, {"train": {"path": str(tmp_path / "marked.tsv"), "columns": ["1+2", 3]}}, {})


def test_tags_alone_are_no_sign_of_order(tmp_path: Path) -> None:
    for pairs in (sentences(), names()):
        chosen = choose(marked(tmp_path, pairs, "formal", "plain"), {}, cuda=False)
        assert chosen.settings.tokenizer.model_dump()["tags"]
        assert "monotonic" not in " ".join(chosen.reasons)


@pytest.mark.parametrize("wish", [{"tokenizer": "bpe"}, {"tokenizer.kind": "word"}, {"tokenizer.shared": False}])
def test_another_tokenizer_reads_the_tags_too_unless_that_is_not_wished(tmp_path: Path, wish: dict[str, Any]) -> None:
    data = marked(tmp_path, sentences(), "formal", "plain")
    assert sides(choose(data, wish, cuda=False).settings.tokenizer)[0].tags
    assert not sides(choose(data, {**wish, "tokenizer.tags": False}, cuda=False).settings.tokenizer)[0].tags
    spoken = choose(marked(tmp_path, spelled(), "old"), {"tokenizer.source.lowercase": True}, cuda=False)
    assert [side.tags for side in sides(spoken.settings.tokenizer)] == [True, False]


@pytest.mark.parametrize("pairs", [sentences(), names()])
def test_where_there_is_a_gpu_the_model_is_a_transformer(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    assert choose(files(tmp_path, pairs), {}, cuda=True).settings.model.kind == "transformer"


def test_wishes_stand_and_are_told(tmp_path: Path) -> None:
    wishes = {"model.encoder.cell": "lstm", "training.steps": 7}
    chosen = choose(files(tmp_path, names()), wishes, cuda=False)
    assert chosen.settings.training.steps == 7
    assert chosen.settings.model.encoder.cell.kind == "lstm"  # type: ignore[union-attr]
    assert "Set by you: training.steps=7." in chosen.reasons
    fitted = fit(chosen, Pace({1: 1.0}, 3.0), None, 60.0, wishes).settings.training
    assert (fitted.steps, fitted.minutes, fitted.max_epochs) == (7, None, None)


def test_steps_fill_the_time_that_is_given_on_the_faster_threads(tmp_path: Path) -> None:
    chosen = choose(files(tmp_path, names()), {}, cuda=False)
    pace = Pace({1: 0.5, 2: 0.3}, 3.0)
    for minutes in (1.0, 1e3):
        fitted = fit(chosen, pace, minutes, 60 * minutes, {}).settings.training
        assert (fitted.threads, fitted.minutes, fitted.max_epochs) == (2, minutes, None)
        assert fitted.steps == int(0.85 * 60 * minutes / 0.3)


def test_without_a_time_small_data_trains_for_enough_passes_and_at_most_ten_minutes(tmp_path: Path) -> None:
    chosen = choose(files(tmp_path, names()), {}, cuda=False)
    quick = fit(chosen, Pace({1: 0.01}, 3.0), None, 600.0, {}).settings.training
    assert (quick.steps, quick.minutes, quick.max_epochs) == (500, 10.0, pytest.approx(500 / 3))
    slow = fit(chosen, Pace({1: 10.0}, 3.0), None, 600.0, {}).settings.training
    assert (slow.steps, slow.minutes) == (51, 10.0)


def test_where_time_is_short_batches_are_smaller_and_then_the_model_too(tmp_path: Path) -> None:
    chosen, slow = choose(files(tmp_path, sentences(6_000)), {}, cuda=False), Pace({1: 1.0}, 200.0)
    small = shrink(chosen, slow, 60.0, {})
    assert (small.settings.model.embedding, small.settings.training.batch_tokens) == (128, 512)  # type: ignore[union-attr]
    assert "The time allows about 51 steps, 0.26 passes" in small.reasons[-1]
    assert "embedding" not in shrink(chosen, slow, 60.0, {"model.embedding": 256}).reasons[-1]
    several = shrink(chosen, slow, 600.0, {})  # 510 steps, 2.6 passes
    assert (several.settings.model.embedding, several.settings.training.batch_tokens) == (256, 512)  # type: ignore[union-attr]
    assert shrink(chosen, slow, 1_200.0, {}) is chosen


def test_too_little_time_is_reported_with_what_more_would_bring(tmp_path: Path) -> None:
    chosen = choose(files(tmp_path, names()), {}, cuda=False)
    short = fit(chosen, Pace({1: 1.0}, 102.0), 2.0, 120.0, {})  # 102 steps: one pass
    assert "--minutes 4 gives about 2 passes, --minutes 20 about 10" in short.reasons[-1]
    assert "Note" not in " ".join(fit(chosen, Pace({1: 1.0}, 10.0), 2.0, 120.0, {}).reasons)


def test_a_newcomer_trains_on_a_file_and_goes_on_with_the_same_command(cli: Callable[..., Any], tmp_path: Path) -> None:
    files(tmp_path, names(200))
    command = ["train", "--pairs", "pairs.tsv", "training.steps=20", "training.batch_tokens=256"]
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/pairs\n"
    assert "Tokenizer: characters, an alphabet for each script." in done.stderr
    folder = RunFolder(tmp_path / "runs" / "pairs")
    assert isinstance(folder.settings(), RunSettings)
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    assert "has already been trained" in again.stderr
    predicted = cli("predict", "runs/pairs", "abc")
    assert predicted.returncode == 0


def test_several_seeds_are_trained_one_after_the_other_and_summed_up(cli: Callable[..., Any], tmp_path: Path) -> None:
    files(tmp_path, names(200))
    done = cli("train", "--pairs", "pairs.tsv", "training.steps=20", "training.batch_tokens=256", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/pairs/seed-0\nruns/pairs/seed-1\n"
    settings = [RunFolder(tmp_path / "runs" / "pairs" / f"seed-{seed}").settings() for seed in (0, 1)]
    assert [own.seed for own in settings] == [0, 1]
    assert "loss: " in done.stderr
    assert " ± " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Name a preset"),
        (["train", "training.steps=3"], "Name a preset"),
        (["train", "--source", "a"], "--source and --target"),
        (["train", "--pairs", "a", "--source", "b", "--target", "c"], "--source and --target"),
        (["train", "dates", "--dev", "x"], "--dev, --test, --columns and --header go with"),
    ],
)
def test_what_does_not_fit_together_is_a_usage_error(
    cli: Callable[..., Any], arguments: list[str], message: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_other_files_in_a_run_that_was_begun_are_refused(cli: Callable[..., Any], tmp_path: Path) -> None:
    files(tmp_path, names(200))
    arguments = ["training.steps=20", "training.batch_tokens=256", "--out", "run"]
    assert cli("train", "--pairs", "pairs.tsv", *arguments).returncode == 0
    (tmp_path / "other.tsv").write_text("a\tb\n")
    done = cli("train", "--pairs", "other.tsv", *arguments)
    assert done.returncode == 2
    assert "was started with other files (pairs.tsv)" in done.stderr


def test_what_is_set_as_a_whole_stands(tmp_path: Path) -> None:
    wishes = {"model": {"kind": "recurrent", "dropout": 0.4}, "training": {"steps": 500, "warmup": 7}}
    chosen = choose(files(tmp_path, names()), wishes, cuda=False)
    fitted = fit(chosen, Pace({1: 100.0}, 3.0), None, 60.0, wishes).settings
    assert (fitted.model.dropout, fitted.training.steps, fitted.training.warmup) == (0.4, 500, 7)


def test_pairs_that_are_seen_a_few_times_need_little_dropout_anywhere(tmp_path: Path) -> None:
    chosen = choose(files(tmp_path, spelled()), {}, cuda=False)
    seldom = fit(chosen, Pace({1: 10.0}, 10.0), 1.0, 60.0, {})
    assert (seldom.settings.model.dropout, seldom.settings.model.encoder.dropout) == (0.1, 0.1)  # type: ignore[union-attr]
    often = fit(chosen, Pace({1: 1e-3}, 10.0), None, 600.0, {}).settings.model
    assert (often.dropout, often.encoder.dropout) == (0.4, 0.4)  # type: ignore[union-attr]
    for wish, expected in (
        ({"model.encoder.dropout": 0.35}, (0.1, 0.35)),
        ({"model.encoder": {"cell": "lstm", "dropout": 0.35}}, (0.1, 0.35)),
        ({"model.dropout": 0.35}, (0.35, 0.4)),
    ):
        chosen = choose(files(tmp_path, spelled()), wish, cuda=False)
        wished = fit(chosen, Pace({1: 10.0}, 10.0), 1.0, 60.0, wish).settings.model
        assert (wished.dropout, wished.encoder.dropout) == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("pairs", [names(), spelled()])
def test_passes_are_counted_in_the_batches_that_training_has(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    overrides = {"training.batch_tokens": 256, "training.accumulate": 2}
    settings = choose(files(tmp_path, pairs), overrides, cuda=False).settings
    pace = find_pace(settings, budget=0.1)
    tokens = sum(1 + max(len(source), len(target.split())) for source, target in pairs) * 0.85  # some are held back
    assert tokens / 512 <= pace.steps_per_epoch <= 1.3 * tokens / 512


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_that_the_environment_asks_for_is_not_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    overrides = {"training.batch_tokens": 256, "training.device": "cpu"}
    settings = choose(files(tmp_path, names()), overrides, cuda=False).settings
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    assert max(find_pace(settings, budget=0.1).seconds) == threads


def test_pairs_that_reverse_their_source_get_no_monotonic_attention(tmp_path: Path) -> None:
    turned = [(word, " ".join(sounds.split()[::-1])) for word, sounds in spelled()]
    assert "monotonic" not in " ".join(choose(files(tmp_path, turned), {}, cuda=False).reasons)
    days = [(f"day {number}", str(number)[::-1]) for number in range(100, 400)]
    chosen = choose(files(tmp_path, days), {}, cuda=False)
    assert chosen.settings.tokenizer.kind == "char"
    assert "monotonic" not in " ".join(chosen.reasons)


def test_a_typo_is_told_without_the_settings_that_were_chosen(cli: Callable[..., Any], tmp_path: Path) -> None:
    files(tmp_path, names(200))
    done = cli("train", "--pairs", "pairs.tsv", "model.atention=x", "training.device=cpu")
    assert done.returncode == 2
    assert "model.atention=x: there is no setting 'model.atention'. Did you mean 'attention'?" in done.stderr


def test_several_seeds_from_another_on_are_gone_on_with(cli: Callable[..., Any], tmp_path: Path) -> None:
    files(tmp_path, names(200))
    command = [
        "train",
        "--pairs",
        "pairs.tsv",
        "training.batch_tokens=256",
        "--minutes",
        "0.02",
        "--seeds",
        "2",
        "seed=5",
    ]
    assert cli(*command).returncode == 0
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    assert "seed-5 was started before" in again.stderr
