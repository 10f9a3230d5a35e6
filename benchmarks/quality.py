"""How good are the models on the corpora of the field? Trains presets, scores their test sets once, prints a table.

    python benchmarks/quality.py --data ../shared/data --only multi30k-transformer --seeds 3
    python benchmarks/quality.py --data ../shared/data --jobs 4                         # all of it: a GPU's work
    python benchmarks/quality.py --data ../shared/data --only cmudict-lstm --set training.steps=2000

A checkpoint is chosen on the dev set alone. A run that is there is gone on with; a score that is there is not worked
out again. Several languages are averaged, each counting the same.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")
LOW = ("ady", "gre", "ice", "ita", "khm", "lav", "mlt_latn", "rum", "slv", "wel_sw")
INFLECTED = ("arabic", "english", "finnish", "german", "hebrew", "hungarian", "navajo", "russian", "spanish", "turkish")

FLICKR = "{split}.lc.norm.tok"


@dataclass(frozen=True)
class Question:
    """A preset on a corpus: the tests it is judged on, by which measure, and what there is to beat."""

    preset: str
    folder: str
    metric: str
    tests: tuple[str, ...] = ("",)
    """Pairs of suffixes of the preset's own test files; nothing stands for the test set of the preset."""
    languages: tuple[str, ...] = ("",)
    target: tuple[float, ...] = ()
    search: tuple[str, ...] = ("--beam", "5")
    also: tuple[str, ...] = field(default=())


QUESTIONS = {
    "multi30k-transformer": Question(
        "multi30k-transformer", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(42.0, 35.0),
    ),
    "multi30k-gru": Question(
        "multi30k-gru", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(40.0, 33.0),
    ),
    "iwslt15-transformer": Question("iwslt15-transformer", "iwslt15-en-vi", "bleu:tokenize=none", target=(33.0,)),
    "iwslt15-lstm": Question("iwslt15-lstm", "iwslt15-en-vi", "bleu:tokenize=none", target=(28.5,)),
    "cmudict-transformer": Question("cmudict-transformer", "cmudict", "wer", target=(20.2,), also=("per",)),
    "cmudict-lstm": Question("cmudict-lstm", "cmudict", "wer", target=(20.2,), also=("per",)),
    "sigmorphon2021-medium": Question(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/medium", "wer", languages=MEDIUM, target=(10.5,)
    ),
    "sigmorphon2021-low": Question(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/low", "wer", languages=LOW, target=(24.0,)
    ),
    "sigmorphon2017-soft": Question("sigmorphon2017", "sigmorphon2017", "accuracy", languages=INFLECTED),
    "sigmorphon2017-monotonic": Question(
        "sigmorphon2017-monotonic", "sigmorphon2017", "accuracy", languages=INFLECTED
    ),
    "transliteration": Question("transliteration", "transliteration", "wer", languages=("katakana", "arabic")),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    name: str
    question: Question
    language: str
    seed: int
    args: argparse.Namespace

    @property
    def folder(self) -> Path:
        return Path(self.args.out) / "-".join(filter(None, (self.name, self.language, f"seed{self.seed}")))

    def run(self) -> dict[str, dict[str, float]]:
        """Train, or go on; then what each test set gave."""
        wishes = [f"data.folder={Path(self.args.data) / self.question.folder}", f"seed={self.seed}", *self.args.set]
        if self.language:
            wishes.append(f"data.language={self.language}")
        self._regard("train", self.question.preset, *wishes, "--out", str(self.folder))
        return {test: self._score(test) for test in self.question.tests}

    def _score(self, test: str) -> dict[str, float]:
        kept = self.folder / f"score-{test or 'test'}.json"
        if not kept.exists():
            files = []
            if test:
                stem = Path(self.args.data) / self.question.folder / FLICKR.format(split=test)
                files = ["--source", f"{stem}.en.gz", "--target", f"{stem}.de.gz"]
            metrics = [word for metric in (self.question.metric, *self.question.also) for word in ("--metric", metric)]
            out = self._regard("evaluate", str(self.folder), *files, *metrics, *self.question.search, "--json")
            kept.write_text(out)
        found = json.loads(kept.read_text())
        print(f"{self.folder.name} {test}: {found['values']} {found['signatures']}", file=sys.stderr, flush=True)
        values: dict[str, float] = found["values"]
        return values

    def _regard(self, *words: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, "-m", "regard", *words]
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=True).stdout


def rows(jobs: list[Job], found: list[dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    yield ["model", "test", "measure", "languages", "seeds", "mean", "by seed", "to reach"]
    for name in dict.fromkeys(job.name for job in jobs):
        question = QUESTIONS[name]
        languages = len({job.language for job in jobs if job.name == name})
        for place, test in enumerate(question.tests):
            for metric in (question.metric, *question.also):
                scale = 100.0 if metric == "accuracy" else 1.0
                by_seed: dict[int, list[float]] = {}
                for job, scores in zip(jobs, found, strict=True):
                    if job.name == name:
                        by_seed.setdefault(job.seed, []).append(scale * scores[test][metric])
                means = [statistics.fmean(values) for values in by_seed.values()]
                goal = question.target[place : place + 1] if metric == question.metric else ()
                yield [
                    name, test or "test", metric, str(languages), ", ".join(map(str, by_seed)),
                    f"{statistics.fmean(means):.2f}", ", ".join(f"{mean:.2f}" for mean in means),
                    ", ".join(map(str, goal)),
                ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of the corpora")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--languages", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--out", default="runs/quality")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for every training")
    args = parser.parse_args()
    jobs = [
        Job(name, QUESTIONS[name], language, seed, args)
        for name in args.only
        for language in QUESTIONS[name].languages
        if not args.languages or language in args.languages
        for seed in range(args.seeds)
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(Job.run, jobs))
    for row in rows(jobs, found):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
