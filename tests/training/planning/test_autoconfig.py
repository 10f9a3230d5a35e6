"""Automatic configuration: the tokenizer and metric suit the data, the time budget is used, overrides are kept."""

import random
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from regard.config import flatten, resolve
from regard.data.corpora import load_corpus
from regard.data.settings import FilesData, sides
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings
from regard.training.planning import autoconfig, choosing
from regard.training.planning.autoconfig import VOCABULARIES, ChosenSettings, choose
from regard.training.planning.budget import TrainingSpeed, fit_schedule, shrink
from regard.training.planning.trials import measure_speed

Pairs = list[tuple[str, str]]

WORDS = ["the", "old", "man", "saw", "a", "white", "dog", "near", "river", "house"]


def sentences(count: int = 300) -> Pairs:
    rng = random.Random(count)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]
    return [(text, text.upper()) for text in texts]


def pronunciations(count: int = 300) -> Pairs:
    """Words, and one phoneme for each letter."""
    rng = random.Random(count)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 8))) for _ in range(count)]
    return [(word, " ".join(f"{letter.upper()}H" for letter in word)) for word in words]


def transliterations(count: int = 300) -> Pairs:
    """Words in Latin and in Cyrillic script."""
    return [(word, word.translate(str.maketrans("abcdefghij", "абцдефгхиж"))) for word, _ in pronunciations(count)]


def write_pairs(tmp_path: Path, pairs: Pairs) -> FilesData:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return resolve(FilesData, {"train": str(path)}, {})


def write_tagged_pairs(tmp_path: Path, pairs: Pairs, *tags: str) -> FilesData:
    """Write pairs whose sources have one of the tags in turn."""
    rows = (f"{left}\t{tag}\t{right}\n" for (left, right), tag in zip(pairs, cycle(tags), strict=False))
    (tmp_path / "tagged.tsv").write_text("".join(rows))
    return resolve(FilesData, {"train": {"path": str(tmp_path / "tagged.tsv"), "columns": ["1+2", 3]}}, {})


def is_monotonic(chosen: ChosenSettings) -> bool:
    """Whether hard monotonic attention was chosen; the reasons must say the same."""
    attention = getattr(chosen.settings.model, "attention", None)
    monotonic = attention is not None and attention.select.kind == "hard_monotonic"
    assert monotonic == ("hard monotonic attention" in " ".join(chosen.reasons))
    return monotonic


@pytest.mark.parametrize(
    ("pairs", "tokenizer", "metric"),
    [
        pytest.param(sentences(), {"kind": "bpe", "shared": True}, "bleu", id="sentences"),
        pytest.param(pronunciations(), {"kind": "pair"}, "ser", id="pronunciations"),
        pytest.param(transliterations(), {"kind": "char", "shared": False}, "accuracy", id="names in two scripts"),
    ],
)
def test_tokenizer_and_metric_depend_on_the_kind_of_pairs(
    tmp_path: Path, pairs: Pairs, tokenizer: dict[str, Any], metric: str
) -> None:
    chosen = choose(write_pairs(tmp_path, pairs), {}, cuda=False)
    settings = chosen.settings.tokenizer.model_dump()
    assert {key: settings[key] for key in tokenizer} == tokenizer
    assert chosen.settings.training.metric.kind == metric
    reasons = " ".join(chosen.reasons)
    for word in ("300 pairs", "Tokenizer", "Model", "Training"):
        assert word in reasons


def test_words_are_split_into_characters_and_pronunciations_into_phonemes(tmp_path: Path) -> None:
    tokenizer = choose(write_pairs(tmp_path, pronunciations()), {}, cuda=False).settings.tokenizer.model_dump()
    assert (tokenizer["source"]["kind"], tokenizer["target"]["kind"]) == ("char", "word")


def test_hangul_syllables_are_decomposed_into_letters(tmp_path: Path) -> None:
    rng = random.Random(0)
    syllables = ["".join(chr(0xAC00 + rng.randrange(11_172)) for _ in range(3)) for _ in range(300)]
    chosen = choose(write_pairs(tmp_path, [(word, "H AH N") for word in syllables]), {}, cuda=False)
    assert chosen.settings.tokenizer.model_dump()["source"]["normalization"] == "nfd"
    assert "Tokenizer: Hangul letters (한 → ㅎㅏㄴ) → space-separated symbols." in chosen.reasons
    romanized = [(word, latin) for word, (latin, _) in zip(syllables, transliterations(), strict=True)]
    for pairs, expected in ((romanized, ("nfd", "nfc")), ([pair[::-1] for pair in romanized], ("nfc", "nfd"))):
        tokenizer = choose(write_pairs(tmp_path, pairs), {}, cuda=False).settings.tokenizer.model_dump()
        assert (tokenizer["source"]["normalization"], tokenizer["target"]["normalization"]) == expected


@pytest.mark.parametrize("cuda", [False, True])
def test_pronunciations_get_monotonic_attention(tmp_path: Path, cuda: bool) -> None:
    pairs = pronunciations()
    for direction in (pairs, [pair[::-1] for pair in pairs]):
        assert is_monotonic(choose(write_pairs(tmp_path, direction), {}, cuda=cuda))
    reversed_phonemes = [(phonemes, " ".join(phonemes.split()[::-1])) for _, phonemes in pairs]
    assert not is_monotonic(choose(write_pairs(tmp_path, reversed_phonemes), {}, cuda=cuda))


@pytest.mark.parametrize("cuda", [False, True])
def test_inflections_get_monotonic_attention_and_a_token_per_tag(tmp_path: Path, cuda: bool) -> None:
    lemmas = [word for word, _ in transliterations(100)]
    endings = {"V;PST": "ed", "V;PTCP PRS": "ing", "V;3;SG": "s"}
    pairs = [(lemma, lemma + ending) for lemma in lemmas for ending in endings.values()]
    chosen = choose(write_tagged_pairs(tmp_path, pairs, *endings), {}, cuda=cuda)
    assert chosen.settings.tokenizer.model_dump()["tags"]
    assert is_monotonic(chosen)
    assert chosen.settings.training.metric.kind == "accuracy"
    assert "Data: 300 pairs of words in Latin script, with 6 distinct tags after a tab." in chosen.reasons
    assert "Tokenizer: characters, shared vocabulary, one token per tag." in chosen.reasons


@pytest.mark.parametrize("pairs", [sentences(), transliterations()], ids=["sentences", "words"])
def test_tags_alone_do_not_imply_monotonic_attention(tmp_path: Path, pairs: Pairs) -> None:
    chosen = choose(write_tagged_pairs(tmp_path, pairs, "formal", "plain"), {}, cuda=False)
    assert chosen.settings.tokenizer.model_dump()["tags"]
    assert not is_monotonic(chosen)


@pytest.mark.parametrize("override", [{"tokenizer": "bpe"}, {"tokenizer.kind": "word"}, {"tokenizer.shared": False}])
def test_an_overridden_tokenizer_reads_tags_unless_they_are_turned_off(
    tmp_path: Path, override: dict[str, Any]
) -> None:
    data = write_tagged_pairs(tmp_path, sentences(), "formal", "plain")
    assert sides(choose(data, override, cuda=False).settings.tokenizer)[0].tags
    assert not sides(choose(data, {**override, "tokenizer.tags": False}, cuda=False).settings.tokenizer)[0].tags
    tagged = write_tagged_pairs(tmp_path, pronunciations(), "old")
    chosen = choose(tagged, {"tokenizer.source.lowercase": True}, cuda=False)
    assert [side.tags for side in sides(chosen.settings.tokenizer)] == [True, False]


@pytest.mark.parametrize("pairs", [sentences(), transliterations()], ids=["sentences", "words"])
def test_on_a_gpu_the_model_is_a_transformer(tmp_path: Path, pairs: Pairs) -> None:
    assert choose(write_pairs(tmp_path, pairs), {}, cuda=True).settings.model.kind == "transformer"


def test_one_long_pair_does_not_change_the_sizes_of_batches(tmp_path: Path) -> None:
    pairs = sentences(50)
    usual = choose(write_pairs(tmp_path, pairs), {}, cuda=False).settings.training
    longest = choose(write_pairs(tmp_path, [*pairs, ("a " * 50_000, "A " * 50_000)]), {}, cuda=False).settings.training
    assert (longest.max_pair_length, usual.max_pair_length) == (256, 256)
    assert longest.batch_tokens == 2_048


def test_overrides_are_kept_and_reported(tmp_path: Path) -> None:
    overrides = {"model.encoder.cell": "lstm", "training.steps": 7}
    chosen = choose(write_pairs(tmp_path, transliterations()), overrides, cuda=False)
    assert chosen.settings.training.steps == 7
    assert flatten(chosen.settings)["model.encoder.cell.kind"] == "lstm"
    assert "Set by you: training.steps=7." in chosen.reasons
    fitted = fit_schedule(chosen, TrainingSpeed({1: 1.0}, 3.0), None, 60.0, overrides).settings.training
    assert (fitted.steps, fitted.minutes, fitted.max_epochs) == (7, None, None)


@pytest.mark.parametrize("minutes", [1.0, 1e3])
def test_steps_fill_the_minutes_with_the_fastest_number_of_threads(tmp_path: Path, minutes: float) -> None:
    chosen = choose(write_pairs(tmp_path, transliterations()), {}, cuda=False)
    fitted = fit_schedule(chosen, TrainingSpeed({1: 0.5, 2: 0.3}, 3.0), minutes, 60 * minutes, {}).settings.training
    assert (fitted.threads, fitted.minutes, fitted.max_epochs) == (2, minutes, None)
    assert fitted.steps == int(0.85 * 60 * minutes / 0.3)


def test_without_minutes_training_ends_after_enough_epochs_or_ten_minutes(tmp_path: Path) -> None:
    chosen = choose(write_pairs(tmp_path, transliterations()), {}, cuda=False)
    fast = fit_schedule(chosen, TrainingSpeed({1: 0.01}, 3.0), None, 600.0, {}).settings.training
    assert (fast.steps, fast.minutes) == (500, 10.0)
    assert fast.max_epochs == pytest.approx(500 / 3)
    slow = fit_schedule(chosen, TrainingSpeed({1: 10.0}, 3.0), None, 600.0, {}).settings.training
    assert (slow.steps, slow.minutes) == (51, 10.0)


def test_if_time_is_short_batches_are_smaller_and_with_few_tokens_the_model_too(tmp_path: Path) -> None:
    chosen, speed = choose(write_pairs(tmp_path, sentences(6_000)), {}, cuda=False), TrainingSpeed({1: 1.0}, 200.0)
    small = shrink(chosen, speed, 60.0, {})
    assert (small.settings.model.embedding_size, small.settings.training.batch_tokens) == (64, 256)
    assert "The time allows about 51 steps (0.26 epochs)" in small.reasons[-1]
    assert "embedding" not in shrink(chosen, speed, 60.0, {"model.embedding": 256}).reasons[-1]
    several = shrink(chosen, speed, 600.0, {})  # 510 steps, 2.6 epochs
    assert (several.settings.model.embedding_size, several.settings.training.batch_tokens) == (256, 512)
    assert shrink(chosen, speed, 1_200.0, {}) is chosen


@pytest.mark.parametrize(("seconds", "batch", "rate", "width"), [(165.0, 256, 0.004, 64), (180.0, 512, 0.002, 256)])
@pytest.mark.parametrize("steps_per_epoch", [50.0, 2_000.0])
def test_few_tokens_get_a_small_model_small_batches_and_a_high_rate_whatever_share_of_an_epoch_they_are(
    tmp_path: Path, seconds: float, batch: int, rate: float, width: int, steps_per_epoch: float
) -> None:
    chosen = choose(write_pairs(tmp_path, sentences(6_000)), {}, cuda=False)
    settings = shrink(chosen, TrainingSpeed({1: 1.0}, steps_per_epoch), seconds, {}).settings
    assert (settings.training.batch_tokens, settings.training.learning_rate) == (batch, rate)
    assert settings.model.embedding_size == width


def test_below_one_epoch_hard_monotonic_attention_gets_more_updates(tmp_path: Path) -> None:
    chosen = choose(write_pairs(tmp_path, pronunciations(2_000)), {}, cuda=False)
    assert is_monotonic(chosen)
    several, less = (
        shrink(chosen, TrainingSpeed({1: 1.0}, steps_per_epoch), 720.0, {}).settings.training
        for steps_per_epoch in (100.0, 2_000.0)
    )
    assert [training.batch_tokens for training in (several, less)] == [512, 256]
    assert less.learning_rate > several.learning_rate


def test_with_few_pairs_hard_monotonic_attention_is_replaced_unless_the_model_is_set_by_the_user(
    tmp_path: Path,
) -> None:
    data, speed = write_pairs(tmp_path, pronunciations(2_000)), TrainingSpeed({1: 1.0}, 100.0, pairs=4_000)
    chosen = choose(data, {}, cuda=False)
    assert is_monotonic(chosen)
    enough, few = shrink(chosen, speed, 350.0, {}), shrink(chosen, speed, 250.0, {})  # 2.97 and 2.12 epochs
    assert is_monotonic(enough)
    model, training = few.settings.model, few.settings.training
    assert model.architecture.endswith("GRU 1 × 64 encoder, GRU 1 × 128 decoder (bahdanau), additive attention")
    assert (training.batch_tokens, training.learning_rate, training.ema_decay) == (256, 0.004, 0.0)
    assert "a GRU with additive attention (embedding 64, encoder 64, decoder 128) learns more" in few.reasons[-1]
    overrides = {"model.dropout": 0.2}
    assert is_monotonic(shrink(choose(data, overrides, cuda=False), speed, 250.0, overrides))


@pytest.mark.parametrize("vocabulary", [size for _, size in VOCABULARIES])
def test_few_tokens_get_a_small_vocabulary(tmp_path: Path, vocabulary: int) -> None:
    chosen, speed = choose(write_pairs(tmp_path, sentences()), {}, cuda=False), TrainingSpeed({1: 1.0}, 200.0)
    large = resolve(RunSettings, chosen.settings.model_dump(mode="json"), {"tokenizer.vocabulary": vocabulary})
    assert flatten(shrink(ChosenSettings(large, []), speed, 60.0, {}).settings)["tokenizer.vocabulary"] == 2_000


def test_too_little_time_is_reported_with_the_minutes_for_more_epochs(tmp_path: Path) -> None:
    chosen = choose(write_pairs(tmp_path, transliterations()), {}, cuda=False)
    short = fit_schedule(chosen, TrainingSpeed({1: 1.0}, 102.0), 2.0, 120.0, {})  # 102 steps: one epoch
    assert short.reasons[-1].endswith("Two epochs take roughly 4 minutes (--minutes 4).")
    slow = fit_schedule(chosen, TrainingSpeed({1: 3.3}, 10_000.0), 2.0, 120.0, {})
    assert slow.reasons[-1].endswith("Two epochs take roughly 1,000 minutes (--minutes 1000).")
    enough = fit_schedule(chosen, TrainingSpeed({1: 1.0}, 10.0), 2.0, 120.0, {})
    assert "two epochs" not in " ".join(enough.reasons)


def test_large_numbers_of_minutes_and_epochs_are_printed_without_an_exponent(tmp_path: Path) -> None:
    chosen = choose(write_pairs(tmp_path, transliterations()), {}, cuda=False)
    reasons = fit_schedule(chosen, TrainingSpeed({1: 1.0}, 10.0), 240.0, 14_400.0, {}).reasons
    assert "Time: 240 minutes, about 12,240 steps of 1 s on 1 thread (1,224 epochs)." in reasons
    one = fit_schedule(chosen, TrainingSpeed({1: 1.0}, 102.0), 2.0, 120.0, {}).reasons
    assert "Time: 2 minutes, about 102 steps of 1 s on 1 thread (1 epoch). Dropout is 0.1." in one


def test_in_a_short_time_few_pairs_are_validated(tmp_path: Path) -> None:
    """A validation takes about a tenth of the time, if it takes as long as training on the same pairs."""
    chosen = choose(write_pairs(tmp_path, transliterations()), {}, cuda=False)
    speed = TrainingSpeed({1: 0.5}, steps_per_epoch=200.0, pairs=5_000)  # 0.02 s for a pair
    counts = [
        fit_schedule(chosen, speed, minutes, 60 * minutes, {}).settings.training.validation_pairs
        for minutes in (0.25, 1.0, 10.0)
    ]
    assert counts == [75, 300, 500]
    assert fit_schedule(chosen, speed, 1.0, 1.0, {}).settings.training.validation_pairs == 20
    override = {"training.validation_pairs": 400}
    assert (
        fit_schedule(
            choose(write_pairs(tmp_path, transliterations()), override, cuda=False), speed, 1.0, 1.0, override
        ).settings.training.validation_pairs
        == 400
    )


def test_the_speed_with_smaller_batches_is_estimated() -> None:
    speed = TrainingSpeed({1: 0.5, 2: 0.25}, steps_per_epoch=200.0, pairs=5_000).with_batches(0.5)
    assert speed == TrainingSpeed({1: 0.25, 2: 0.125}, steps_per_epoch=400.0, pairs=5_000)


@pytest.mark.parametrize(("make", "enough"), [(sentences, 5_000), (transliterations, 500)], ids=["sentences", "words"])
def test_a_note_says_if_there_are_few_pairs(tmp_path: Path, make: Callable[[int], Pairs], enough: int) -> None:
    [note] = [
        reason
        for reason in choose(write_pairs(tmp_path, make(140)), {}, cuda=False).reasons
        if reason.startswith("Note")
    ]
    assert note.startswith(f"Note: the corpus has only 140 pairs: a good model usually needs more than {enough:,}.")
    reasons = choose(write_pairs(tmp_path, make(enough)), {}, cuda=False).reasons
    assert not any("the corpus has only" in reason for reason in reasons)


@pytest.mark.slow
def test_train_on_a_file_and_resume_with_the_same_command(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pairs(tmp_path, transliterations(200))
    command = ["train", "--pairs", "pairs.tsv", "training.steps=20", "training.batch_tokens=256"]
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/pairs\n"
    assert "Tokenizer: characters, one vocabulary per side." in done.stderr
    folder = RunFolder(tmp_path / "runs" / "pairs")
    assert isinstance(folder.settings(), RunSettings)
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    assert "has already been trained" in again.stderr
    predicted = cli("predict", "runs/pairs", "abc")
    assert predicted.returncode == 0


@pytest.mark.slow
def test_several_seeds_are_trained_in_turn_and_summarized(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pairs(tmp_path, transliterations(200))
    done = cli("train", "--pairs", "pairs.tsv", "training.steps=20", "training.batch_tokens=256", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/pairs/seed-0\nruns/pairs/seed-1\n"
    runs = [RunFolder(tmp_path / "runs" / "pairs" / f"seed-{seed}") for seed in (0, 1)]
    assert [run.settings().seed for run in runs] == [0, 1]
    assert "loss: " in done.stderr
    assert " ± " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Give a preset"),
        (["train", "training.steps=3"], "Give a preset"),
        (["train", "--source", "a"], "--source and --target"),
        (["train", "--pairs", "a", "--source", "b", "--target", "c"], "--source and --target"),
        (["train", "dates", "--dev", "x"], "--dev, --test, --columns and --header need"),
    ],
)
def test_options_that_cannot_be_combined_are_a_usage_error(
    cli: Callable[..., Any], arguments: list[str], message: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_a_run_cannot_be_resumed_with_other_files(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pairs(tmp_path, transliterations(200))
    arguments = ["training.steps=20", "training.batch_tokens=256", "--out", "run"]
    assert cli("train", "--pairs", "pairs.tsv", *arguments).returncode == 0
    (tmp_path / "other.tsv").write_text("a\tb\n")
    done = cli("train", "--pairs", "other.tsv", *arguments)
    assert done.returncode == 2
    assert "was started with different files (pairs.tsv)" in done.stderr


def test_overrides_of_a_group_of_settings_are_kept(tmp_path: Path) -> None:
    overrides = {"model": {"kind": "recurrent", "dropout": 0.4}, "training": {"steps": 500, "warmup": 7}}
    chosen = choose(write_pairs(tmp_path, transliterations()), overrides, cuda=False)
    fitted = fit_schedule(chosen, TrainingSpeed({1: 100.0}, 3.0), None, 60.0, overrides).settings
    assert (fitted.model.embedding_dropout, fitted.training.steps, fitted.training.warmup) == (0.4, 500, 7)


@pytest.mark.parametrize(
    ("seconds_per_step", "override", "expected"),
    [
        (1e-3, {}, (0.4, 0.4)),
        (10.0, {}, (0.1, 0.1)),
        (10.0, {"model.encoder.dropout": 0.35}, (0.1, 0.35)),
        (10.0, {"model.encoder": {"cell": "lstm", "dropout": 0.35}}, (0.1, 0.35)),
        (10.0, {"model.dropout": 0.35}, (0.35, 0.4)),
    ],
)
def test_few_epochs_lower_every_dropout_that_is_not_overridden(
    tmp_path: Path, seconds_per_step: float, override: dict[str, Any], expected: tuple[float, float]
) -> None:
    chosen = choose(write_pairs(tmp_path, pronunciations()), override, cuda=False)
    minutes, seconds_left = (None, 600.0) if seconds_per_step < 1 else (1.0, 60.0)
    model = fit_schedule(
        chosen, TrainingSpeed({1: seconds_per_step}, 10.0), minutes, seconds_left, override
    ).settings.model
    assert (model.embedding_dropout, flatten(model)["encoder.dropout"]) == expected


@pytest.mark.parametrize("pairs", [transliterations(), pronunciations()], ids=["words", "pronunciations"])
def test_measured_epochs_have_the_number_of_batches_of_training(tmp_path: Path, pairs: Pairs) -> None:
    overrides = {"training.batch_tokens": 256, "training.accumulate": 2}
    settings = choose(write_pairs(tmp_path, pairs), overrides, cuda=False).settings
    speed = measure_speed(settings, load_corpus(settings.data), budget=0.1)
    tokens = sum(1 + max(len(source), len(target.split())) for source, target in pairs) * 0.85  # some are held back
    assert tokens / 512 <= speed.steps_per_epoch <= 1.3 * tokens / 512


@pytest.mark.parametrize("threads", [1, 2])
def test_at_most_omp_num_threads_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    overrides = {"training.batch_tokens": 256, "training.device": "cpu"}
    settings = choose(write_pairs(tmp_path, transliterations()), overrides, cuda=False).settings
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    assert max(measure_speed(settings, load_corpus(settings.data), budget=0.1).seconds_per_step) == threads


@pytest.mark.parametrize("pairs", [sentences(1_000), pronunciations(1_000)], ids=["sentences", "pronunciations"])
def test_settings_are_chosen_from_a_sample_as_from_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Pairs
) -> None:
    data = write_pairs(tmp_path, pairs)
    from_all = choose(data, {}, cuda=False)
    monkeypatch.setattr(autoconfig, "_SURVEYED_PAIRS", 150)
    from_sample = choose(data, {}, cuda=False)
    assert [*from_sample.reasons[:3]] == [*from_all.reasons[:3]]  # all pairs are counted
    assert from_sample.settings.tokenizer == from_all.settings.tokenizer
    assert from_sample.settings.training.steps == pytest.approx(from_all.settings.training.steps, rel=0.1)


def test_the_corpus_is_prepared_once_although_the_speed_is_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed is measured on a sample, and an epoch of the sample is scaled to all pairs."""
    data = write_pairs(tmp_path, sentences(1_000))
    settings = choose(data, {"training.batch_tokens": 128, "training.device": "cpu"}, cuda=False).settings
    corpus = load_corpus(settings.data)
    complete, sampled = (
        measure_speed(settings, part, budget=0.01, report=lambda _: None) for part in (corpus, corpus.sample(200))
    )
    assert sampled.steps_per_epoch == pytest.approx(complete.steps_per_epoch, rel=0.1)

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choosing, "_MEASURED_PAIRS", 200)
    messages: list[str] = []
    overrides = {"training.device": "cpu", "training.batch_tokens": 128}
    choosing.choose({"train": str(tmp_path / "pairs.tsv")}, overrides, minutes=0.05, report=messages.append)
    assert not any("vocabulary of" in message or "Tokenized" in message for message in messages)


def test_reversed_pairs_do_not_get_monotonic_attention(tmp_path: Path) -> None:
    reversed_phonemes = [(word, " ".join(phonemes.split()[::-1])) for word, phonemes in pronunciations()]
    assert not is_monotonic(choose(write_pairs(tmp_path, reversed_phonemes), {}, cuda=False))
    reversed_digits = [(f"day {number}", str(number)[::-1]) for number in range(100, 400)]
    chosen = choose(write_pairs(tmp_path, reversed_digits), {}, cuda=False)
    assert chosen.settings.tokenizer.kind == "char"
    assert not is_monotonic(chosen)


def test_an_unknown_setting_is_reported_without_the_chosen_settings(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pairs(tmp_path, transliterations(200))
    done = cli("train", "--pairs", "pairs.tsv", "model.atention=x", "training.device=cpu")
    assert done.returncode == 2
    assert "model.atention=x: unknown setting 'model.atention'. Did you mean 'attention'?" in done.stderr


@pytest.mark.slow
def test_several_seeds_can_start_at_another_seed_and_be_resumed(cli: Callable[..., Any], tmp_path: Path) -> None:
    write_pairs(tmp_path, transliterations(200))
    options = ["--minutes", "0.02", "--seeds", "2"]
    command = ["train", "--pairs", "pairs.tsv", "training.batch_tokens=256", *options, "seed=5"]
    assert cli(*command).returncode == 0
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    assert "seed-5 was started before" in again.stderr
