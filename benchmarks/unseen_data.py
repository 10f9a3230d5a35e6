"""How good are the settings that regard chooses for pairs, on corpora that they were not tuned on?

    python benchmarks/unseen_data.py --data corpora --jobs 8
    python benchmarks/unseen_data.py --data corpora --only Greek "katakana, 100" --configurations chosen gru
    python benchmarks/unseen_data.py --report runs/unseen/results.jsonl

Each corpus is trained with the settings that `regard.train(pairs=…)` chooses, and with five hand-made configurations,
all with the same deadline, on one CPU thread, with seed 0. The checkpoint is chosen on dev pairs, and the test pairs
are scored once. The choice is compared with the hand-made configuration that is best on dev. Runs that are in the
results are not repeated.
"""

import argparse
import gzip
import json
import os
import random
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import regard

CHOSEN = "chosen"
ERROR_RATES = {"ser"}
DEV_PAIRS, TEST_PAIRS = 300, 1000

CHARACTERS = {"kind": "char", "shared": True}
TO_SYMBOLS = {"source": "char", "target": "word"}
FROM_SYMBOLS = {"source": "word", "target": "char"}
TAGGED = {**CHARACTERS, "tags": True}
SUBWORDS = {"kind": "bpe", "vocabulary": 4000, "shared": True}

Pair = tuple[str, str]


@dataclass(frozen=True)
class Corpus:
    """Pairs of a corpus: the files of its splits, their columns, and the tokens of the hand-made configurations."""

    train: str
    dev: str
    test: str
    metric: str
    tokenizer: dict[str, Any]
    columns: tuple[int, int] = (0, 1)
    tags: int | None = None
    size: int | None = None
    """The number of training pairs, sampled with seed 0; by default all."""
    minutes: float = 1.0

    def read(self, data: Path, split: str) -> list[Pair]:
        """Read the pairs of a split. A path with a comma names two parallel files."""
        paths = getattr(self, split).split(",")
        files = [gzip.decompress((data / path).read_bytes()).decode().splitlines() for path in paths]
        rows = [line.split("\t") for line in files[0]] if len(files) == 1 else list(zip(*files, strict=True))
        source, target = self.columns
        tags = ["" if self.tags is None else f"\t{row[self.tags]}" for row in rows]
        pairs = [(row[source] + tag, row[target]) for row, tag in zip(rows, tags, strict=True)]
        pairs = [pair for pair in pairs if all(side.strip() for side in pair)]
        size = {"train": self.size, "dev": DEV_PAIRS, "test": TEST_PAIRS}[split]
        return pairs if size is None or size >= len(pairs) else random.Random(0).sample(pairs, size)


def pronunciations(group: str, language: str, **options: Any) -> Corpus:
    files = (f"sigmorphon2021-g2p/{group}/{language}_{split}.tsv.gz" for split in ("train", "dev", "test"))
    return Corpus(*files, **{"metric": "ser", "tokenizer": TO_SYMBOLS, **options})


def names(language: str, size: int, **options: Any) -> Corpus:
    files = (f"transliteration/wd_{language}_{part}.gz" for part in (64, 16, 20))
    return Corpus(*files, **{"metric": "ser", "tokenizer": TO_SYMBOLS, "size": size, **options})


def inflections(language: str, group: str, **options: Any) -> Corpus:
    files = (f"sigmorphon2017/{language}-{part}.tsv.gz" for part in (f"train-{group}", "dev", "uncovered-test"))
    return Corpus(*files, **{"metric": "accuracy", "tokenizer": TAGGED, "tags": 2, **options})


def sentences(source: str, target: str, size: int | None = None) -> Corpus:
    names = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    files = (
        ",".join(f"multi30k/tok/{name}.lc.norm.tok.{language}.gz" for language in (source, target))
        for name in names.values()
    )
    return Corpus(*files, metric="bleu", tokenizer=SUBWORDS, size=size, minutes=2.0)


REVERSED = (1, 0)

CORPORA = {
    "Armenian": pronunciations("medium", "arm_e"),
    "Bulgarian": pronunciations("medium", "bul"),
    "French": pronunciations("medium", "fre"),
    "Serbo-Croatian": pronunciations("medium", "hbs_latn"),
    "Korean": pronunciations("medium", "kor"),
    "Adyghe": pronunciations("low", "ady"),
    "Greek": pronunciations("low", "gre"),
    "Latvian": pronunciations("low", "lav"),
    "Slovenian": pronunciations("low", "slv"),
    "Welsh": pronunciations("low", "wel_sw"),
    "Hungarian, reversed": pronunciations("medium", "hun", columns=REVERSED, metric="accuracy", tokenizer=FROM_SYMBOLS),
    "Italian, reversed": pronunciations("low", "ita", columns=REVERSED, metric="accuracy", tokenizer=FROM_SYMBOLS),
    "katakana, reversed": names("katakana", 10_000, columns=REVERSED, metric="accuracy", tokenizer=FROM_SYMBOLS),
    "Finnish lemmas": inflections("finnish", "high", columns=REVERSED),
    "German → English": sentences("de", "en"),
    "katakana, 100": names("katakana", 100),
    "katakana, 1,000": names("katakana", 1_000),
    "katakana, 10,000": names("katakana", 10_000),
    "Turkish, 100": inflections("turkish", "low"),
    "Turkish, 1,000": inflections("turkish", "medium"),
    "Turkish, 10,000": inflections("turkish", "high"),
    "English → French, 1,000": sentences("en", "fr", 1_000),
    "English → French, 10,000": sentences("en", "fr", 10_000),
    "Romanian": pronunciations("low", "rum"),
    "Khmer": pronunciations("low", "khm"),
    "Vietnamese": pronunciations("medium", "vie_hanoi"),
    "Georgian": pronunciations("medium", "geo"),
    "Japanese, reversed": pronunciations(
        "medium", "jpn_hira", columns=REVERSED, metric="accuracy", tokenizer=FROM_SYMBOLS
    ),
    "Arabic, 300": names("arabic", 300),
    "Arabic, 3,000": names("arabic", 3_000),
    "Spanish, 300": inflections("spanish", "high", size=300),
    "Spanish, 3,000": inflections("spanish", "high", size=3_000),
    "Hebrew lemmas": inflections("hebrew", "high", columns=REVERSED),
    "French → English, 3,000": sentences("fr", "en", 3_000),
    "Czech → English": sentences("cs", "en"),
}  # fmt: skip

HAND_MADE: dict[str, dict[str, Any]] = {
    "gru": {
        "model": {
            "kind": "recurrent", "embedding": 256, "dropout": 0.3, "attention": "bahdanau",
            "encoder": {"cell": "gru", "hidden": 256, "bidirectional": True},
            "decoder": {"cell": "gru", "hidden": 256, "order": "bahdanau"},
        },
        "training": {"learning_rate": 0.002, "label_smoothing": 0.1},
    },
    "small gru": {
        "model": {
            "kind": "recurrent", "embedding": 64, "dropout": 0.2, "attention": "bahdanau",
            "encoder": {"cell": "gru", "hidden": 64, "bidirectional": True},
            "decoder": {"cell": "gru", "hidden": 128, "order": "bahdanau"},
        },
        "training": {"batch_size": 16, "learning_rate": 0.003},
    },
    "lstm": {
        "model": {
            "kind": "recurrent", "embedding": 256, "dropout": 0.3, "attention": "luong-general",
            "encoder": {"cell": "lstm", "hidden": 256, "layers": 2, "bidirectional": True, "dropout": 0.3},
            "decoder": {"cell": "lstm", "hidden": 256, "order": "luong", "input_feeding": True},
        },
        "training": {"batch_size": 32},
    },
    "monotonic lstm": {
        "model": {
            "kind": "recurrent", "embedding": 128, "dropout": 0.4, "attention": "hard-monotonic",
            "encoder": {"cell": "lstm", "hidden": 128, "layers": 2, "bidirectional": True, "dropout": 0.4},
            "decoder": {"cell": "lstm", "hidden": 128, "order": "luong", "input_feeding": False},
        },
        "training": {"batch_size": 32, "learning_rate": 0.003, "ema_decay": 0.99},
    },
    "transformer": {
        "model": {
            "kind": "transformer", "size": 256, "heads": 4, "layers": 3, "feedforward": 512, "norm": "pre",
            "dropout": 0.3,
        },
        "training": {"label_smoothing": 0.1},
    },
}  # fmt: skip

SCHEDULE = {"steps": 2000, "warmup": 100, "validate_every": 200, "save_every": 200, "precision": "auto"}

Result = dict[str, Any]


def train(data: Path, name: str, configuration: str) -> Result:
    """Train a corpus with a configuration, and score the test pairs."""
    corpus = CORPORA[name]
    pairs, dev, test = (corpus.read(data, split) for split in ("train", "dev", "test"))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if configuration == CHOSEN:
            overrides = {"training.device": "cpu"}
            run = regard.train(pairs=pairs, dev=dev, overrides=overrides, minutes=corpus.minutes, out=out, quiet=True)
        else:
            run = regard.train(
                hand_made(corpus, configuration, write_pairs(Path(folder), "train", pairs),
                          write_pairs(Path(folder), "dev", dev)),
                minutes=corpus.minutes, out=out, quiet=True,
            )  # fmt: skip
        assert run.best is not None
        model = run.load()
        score = model.evaluate(test, metrics=[corpus.metric])
        return {
            "corpus": name, "configuration": configuration, "pairs": len(pairs), "metric": corpus.metric,
            "dev": to_quality(corpus.metric, run.best[corpus.metric]),
            "test": to_quality(corpus.metric, score[corpus.metric]),
            "steps": run.steps, "model": model.settings.model.model_dump(mode="json"),
            "training": model.settings.training.model_dump(mode="json"),
        }  # fmt: skip


def hand_made(corpus: Corpus, configuration: str, train: Path, dev: Path) -> dict[str, Any]:
    """Return the settings of a hand-made configuration for a corpus."""
    settings = HAND_MADE[configuration]
    training = {**SCHEDULE, "metric": corpus.metric, "device": "cpu", **settings["training"]}
    return {
        "data": {"kind": "files", "train": str(train), "dev": str(dev)},
        "tokenizer": corpus.tokenizer,
        "model": settings["model"],
        "training": training,
        "decoding": {"max_length_ratio": 2.0, "max_length_extra": 10},
    }


def write_pairs(folder: Path, name: str, pairs: list[Pair]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs))
    return path


def to_quality(metric: str, value: float) -> float:
    """Convert a score to a number that is better if it is higher: BLEU, or the percentage of correct outputs."""
    return 100 - value if metric in ERROR_RATES else 100 * value if metric == "accuracy" else value


def format_report(results: list[Result]) -> Iterator[str]:
    """Yield a table with a row for each corpus, the average, and the worst corpora."""
    scores: dict[str, dict[str, Result]] = {}
    for result in results:
        scores.setdefault(result["corpus"], {})[result["configuration"]] = result
    complete = {name: row for name, row in scores.items() if {CHOSEN, *HAND_MADE} <= row.keys()}
    yield "| " + " | ".join(["corpus", "pairs", CHOSEN, *HAND_MADE, "best on dev", "share"]) + " |"
    yield "|---" * (5 + len(HAND_MADE)) + "|"
    shares = {}
    for name, row in complete.items():
        best = max(HAND_MADE, key=lambda configuration: row[configuration]["dev"])
        shares[name] = row[CHOSEN]["test"] / row[best]["test"] if row[best]["test"] else 1.0
        tests = [f"{row[configuration]['test']:.1f}" for configuration in (CHOSEN, *HAND_MADE)]
        yield f"| {name} | {row[CHOSEN]['pairs']:,} | " + " | ".join(tests) + f" | {best} | {shares[name]:.0%} |"
    worst = sorted(shares, key=lambda name: shares[name])[:3]
    if shares:
        yield f"\naverage {statistics.fmean(shares.values()):.1%}; lowest: " + ", ".join(
            f"{name} {shares[name]:.0%}" for name in worst
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the corpora")
    parser.add_argument("--only", nargs="+", choices=list(CORPORA), default=list(CORPORA), metavar="CORPUS")
    parser.add_argument("--configurations", nargs="+", choices=[CHOSEN, *HAND_MADE], default=[CHOSEN, *HAND_MADE])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one thread")
    parser.add_argument("--out", type=Path, default=Path("runs/unseen/results.jsonl"), help="file of the results")
    parser.add_argument("--report", type=Path, help="print the table of a file of results, and train nothing")
    args = parser.parse_args()
    path = args.report or args.out
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if args.report is None:
        if args.data is None:
            parser.error("--data is required to train")
        finished = {(result["corpus"], result["configuration"]) for result in results}
        os.environ["OMP_NUM_THREADS"] = "1"
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool, path.open("a") as file:
            todo = [key for key in product(args.only, args.configurations) if key not in finished]
            for future in as_completed([pool.submit(train, args.data, *key) for key in todo]):
                results.append(future.result())
                file.write(json.dumps(results[-1]) + "\n")
                file.flush()
    print("\n".join(format_report(results)))


if __name__ == "__main__":
    main()
