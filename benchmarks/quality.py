"""How good are the models on the corpora of the field? Trains presets, scores their test sets once, prints a table.

    python benchmarks/quality.py --data ../shared/data --only multi30k-transformer --seeds 3
    python benchmarks/quality.py --data ../shared/data --jobs 4                         # all of it: a GPU's work
    python benchmarks/quality.py --data ../shared/data --only cmudict-lstm --set training.steps=2000
    python benchmarks/quality.py --data ../shared/data --only sigmorphon2021-low --seeds 5 --ensemble

A checkpoint is chosen on the dev set alone. A run that is there is gone on with; a score that is there is not worked
out again. Several languages are averaged, each counting the same. With --ensemble all seeds are scored together too.
The seconds are those of a training in the mean, start and validations included, added up where it was gone on with;
those of an ensemble are of all its trainings, those of a model that others teach without theirs. With --jobs above 1,
trainings take time from each other.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

MEDIUM = ("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")
LOW = ("ady", "gre", "ice", "ita", "khm", "lav", "mlt_latn", "rum", "slv", "wel_sw")
INFLECTED = ("arabic", "english", "finnish", "german", "hebrew", "hungarian", "navajo", "russian", "spanish", "turkish")

FLICKR = "{split}.lc.norm.tok"

SHARE = 0.7
"""How much teachers count beside the data."""


@dataclass(frozen=True)
class Question:
    """A preset on a corpus: the tests it is judged on, by which measure, and what there is to beat."""

    preset: str
    folder: str
    metric: str
    tests: tuple[str, ...] = ("",)
    """Pairs of suffixes of the preset's own test files; nothing stands for the test set of the preset."""
    languages: tuple[str, ...] = ("",)
    """Each has models of its own; those with commas between them share theirs."""
    target: tuple[float, ...] = ()
    length_penalty: float = 0.6
    also: tuple[str, ...] = ()
    wishes: tuple[str, ...] = ()
    """Settings in which it differs from the preset."""
    joined: tuple[str, ...] = ()
    """More presets with the same tokenizers, whose seeds join the ensemble; without --ensemble they are left out."""
    teachers: tuple[tuple[str, int], ...] = ()
    """Other questions, and how many seeds of their models are trained before, to teach this one's."""

    @property
    def search(self) -> list[str]:
        """How its answers are looked for."""
        return ["--beam", "5", "--set", f"length_penalty={self.length_penalty}"]

    def settings(self, data: str, language: str) -> list[str]:
        """What a training is told besides its preset."""
        spoken = f"[{language}]" if "," in language else language
        own = [f"data.language={spoken}"] if language else []
        return [f"data.folder={Path(data) / self.folder}", *own, *self.wishes]


QUESTIONS = {
    "multi30k-transformer": Question(
        "multi30k-transformer", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(42.0, 35.0), length_penalty=1.4,
    ),
    "multi30k-gru": Question(
        "multi30k-gru", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(40.0, 33.0), length_penalty=1.0,
    ),
    "iwslt15-transformer": Question(
        "iwslt15-transformer", "iwslt15-en-vi", "bleu:tokenize=none", target=(33.0,),
        length_penalty=1.0,
    ),
    "iwslt15-lstm": Question(
        "iwslt15-lstm", "iwslt15-en-vi", "bleu:tokenize=none", target=(28.5,), length_penalty=1.0,
    ),
    "cmudict-transformer": Question("cmudict-transformer", "cmudict", "wer", target=(20.2,), also=("per",)),
    "cmudict-lstm": Question("cmudict-lstm", "cmudict", "wer", target=(20.2,), also=("per",)),
    "sigmorphon2021-medium": Question(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/medium", "wer", languages=MEDIUM, target=(10.5,),
        wishes=("tokenizer.source.normalization=nfd", "model.encoder.layers=2", "model.encoder.dropout=0.4",
                "model.dropout=0.4", "training.steps=2400", "training.batch_size=64", "training.ema_decay=0.999",
                "training.word_dropout=0", "training.validate_every=300"),
        joined=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2021-low": Question(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/low", "wer", languages=LOW, target=(24.0,),
        joined=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2021-low-together": Question(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/low", "wer", languages=(",".join(LOW),), target=(24.0,),
        wishes=("tokenizer.source.tags=true", "tokenizer.source.normalization=nfd", "model.encoder.hidden=256",
                "model.decoder.hidden=256", "model.encoder.layers=2", "model.encoder.dropout=0.45",
                "model.dropout=0.45", "training.steps=3000", "training.batch_size=64", "training.learning_rate=0.002",
                "training.ema_decay=0.998", "training.word_dropout=0", "training.validate_every=300"),
        joined=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2017-soft": Question("sigmorphon2017", "sigmorphon2017", "accuracy", languages=INFLECTED),
    "sigmorphon2017-monotonic": Question(
        "sigmorphon2017-monotonic", "sigmorphon2017", "accuracy", languages=INFLECTED
    ),
    "transliteration": Question("transliteration", "transliteration", "wer", languages=("katakana", "arabic")),
}  # fmt: skip

QUESTIONS |= {
    "multi30k-taught": replace(
        QUESTIONS["multi30k-transformer"], teachers=(("multi30k-transformer", 2),),
        wishes=("training.consistency=none", "training.steps=4000"),
    ),
    "cmudict-taught": replace(
        QUESTIONS["cmudict-transformer"], teachers=(("cmudict-transformer", 1), ("cmudict-lstm", 1)),
        wishes=("model.dropout=0.2", "training.steps=8000"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A training, of one preset, language and seed."""

    name: str
    preset: str
    language: str
    seed: int
    args: argparse.Namespace
    teaches: bool = False
    """Whether it is trained for another's sake; what is set for those that were asked for is not for it."""

    @property
    def question(self) -> Question:
        return QUESTIONS[self.name]

    @property
    def title(self) -> str:
        return self.name if self.preset == self.question.preset else f"{self.name}-{Path(self.preset).stem}"

    @property
    def folder(self) -> Path:
        return Path(self.args.out) / "-".join(filter(None, (self.title, in_a_name(self.language), f"seed{self.seed}")))

    @property
    def teachers(self) -> list["Run"]:
        """They have its language and the first seeds."""
        return [
            Run(name, QUESTIONS[name].preset, self.language, seed, self.args, teaches=True)
            for name, seeds in self.question.teachers
            for seed in range(seeds)
        ]

    @property
    def seconds(self) -> float | None:
        """That its training took in all; None where it was begun by something that did not count."""
        kept = self.folder / "seconds.json"
        return float(json.loads(kept.read_text())["seconds"]) if kept.exists() else None

    def train(self) -> None:
        """Train, or go on. A call that finds the run finished, or saves nothing, takes no time that counts."""
        wishes = [*self.question.settings(self.args.data, self.language), f"seed={self.seed}"]
        if self.teachers:
            runs = ", ".join(str(teacher.folder) for teacher in self.teachers)
            wishes.append(f"training.teachers={{runs: [{runs}], share: {SHARE}}}")
        wishes += [] if self.teaches else self.args.set
        begun_with = self._checkpoints()
        if not begun_with:
            self._keep_seconds(0.0)
        before, start = self.seconds, time.monotonic()

        def count() -> None:
            if before is not None and self._checkpoints() != begun_with:
                self._keep_seconds(before + time.monotonic() - start)

        regard(self.folder, "train", self.preset, *wishes, "--out", str(self.folder), meanwhile=count)

    def _checkpoints(self) -> set[str]:
        return {path.name for path in (self.folder / "checkpoints").glob("step-*")}

    def _keep_seconds(self, seconds: float) -> None:
        keep(self.folder / "seconds.json", json.dumps({"seconds": round(seconds, 1)}))


@dataclass(frozen=True)
class Model:
    """What is scored: a run, or runs that answer together."""

    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        return " + ".join(dict.fromkeys(run.title for run in self.runs))

    @property
    def together(self) -> bool:
        return len(self.runs) > 1

    @property
    def seeds(self) -> str:
        first, last = self.runs[0].seed, self.runs[-1].seed
        return (str(first) if first == last else f"{first}–{last}") + (" together" if self.together else "")

    @property
    def folder(self) -> Path:
        first = self.runs[0]
        if not self.together:
            return first.folder
        seeds = f"seeds{first.seed}-{self.runs[-1].seed}"
        return Path(first.args.out) / "-".join(
            filter(None, (self.title.replace(" ", ""), in_a_name(first.language), seeds))
        )

    @property
    def seconds(self) -> float | None:
        taken = [run.seconds for run in self.runs]
        known = [seconds for seconds in taken if seconds is not None]
        return sum(known) if len(known) == len(taken) else None

    def scores(self) -> dict[str, dict[str, float]]:
        """What each test set gave."""
        return {test: self._score(test) for test in self.runs[0].question.tests}

    def _score(self, test: str) -> dict[str, float]:
        first, *others = self.runs
        question = first.question
        kept = self.folder / f"score-{test or 'test'}.json"
        if not kept.exists():
            files = []
            if test:
                stem = Path(first.args.data) / question.folder / FLICKR.format(split=test)
                files = ["--source", f"{stem}.en.gz", "--target", f"{stem}.de.gz"]
            metrics = [word for metric in (question.metric, *question.also) for word in ("--metric", metric)]
            together = [word for other in others for word in ("--with", str(other.folder))]
            words = (str(first.folder), *together, *files, *metrics, *question.search, "--json")
            keep(kept, regard(self.folder, "evaluate", *words))
        found = json.loads(kept.read_text())
        print(f"{self.folder.name} {test}: {found['values']} {found['signatures']}", file=sys.stderr, flush=True)
        values: dict[str, float] = found["values"]
        return values


def in_a_name(language: str) -> str:
    return language.replace(",", "+")


Scored = tuple[Model, dict[str, dict[str, float]]]
"""A model, and what it reached: by test, then by measure."""


def regard(folder: Path, *words: str, meanwhile: Callable[[], object] = lambda: None) -> str:
    """What a command prints; its log stands in the folder. Something may be done every few seconds, and at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "regard", *words]
    with (
        (folder / "log.txt").open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        printed = None
        while printed is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, _ = process.communicate(timeout=5.0)
            meanwhile()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return printed


def keep(path: Path, text: str) -> None:
    """Write a file that is never found half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def rows(scored: list[Scored]) -> Iterator[list[str]]:
    yield ["model", "test", "measure", "languages", "seeds", "mean", "by seed", "to reach", "seconds"]
    for name in dict.fromkeys(model.runs[0].name for model, _ in scored):
        question = QUESTIONS[name]
        groups: dict[tuple[str, bool], list[Scored]] = {}
        for model, scores in scored:
            if model.runs[0].name == name:
                groups.setdefault((model.title, model.together), []).append((model, scores))
        for place, test in enumerate(question.tests):
            for metric in (question.metric, *question.also):
                goal = question.target[place : place + 1] if metric == question.metric else ()
                for (title, _), group in groups.items():
                    yield [title, test or "test", metric, *told(group, test, metric, goal)]


def told(group: list[Scored], test: str, metric: str, goal: tuple[float, ...]) -> list[str]:
    """One model's languages and seeds in a row."""
    scale = 100.0 if metric == "accuracy" else 1.0
    by_seed: dict[str, list[float]] = {}
    for model, scores in group:
        by_seed.setdefault(model.seeds, []).append(scale * scores[test][metric])
    means = [statistics.fmean(values) for values in by_seed.values()]
    seconds = [model.seconds for model, _ in group]
    known = [taken for taken in seconds if taken is not None]
    return [
        str(len({name for model, _ in group for name in model.runs[0].language.split(",")})), ", ".join(by_seed),
        f"{statistics.fmean(means):.2f}", ", ".join(f"{mean:.2f}" for mean in means), ", ".join(map(str, goal)),
        f"{statistics.fmean(known):.0f}" if len(known) == len(seconds) else "not counted",
    ]  # fmt: skip


def train_and_score(run: Run) -> Scored:
    run.train()
    return score(Model((run,)))


def score(model: Model) -> Scored:
    return model, model.scores()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of the corpora")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--languages", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ensemble", action="store_true", help="score all seeds together too")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--out", default="runs/quality")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for every training but teachers'"
    )
    args = parser.parse_args()
    # A list for each question and language: what answers together where that is asked for.
    teams = [
        [
            Run(name, preset, language, seed, args)
            for preset in (QUESTIONS[name].preset, *(QUESTIONS[name].joined if args.ensemble else ()))
            for seed in range(args.seeds)
        ]
        for name in args.only
        for language in QUESTIONS[name].languages
        if not args.languages or language in args.languages
    ]
    ensembles = [Model(tuple(team)) for team in teams if args.ensemble and len(team) > 1]
    if args.ensemble and not ensembles:
        parser.error("an ensemble is of several models: give --seeds 2 or more.")
    teachers = {teacher.folder: teacher for team in teams for run in team for teacher in run.teachers}
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(Run.train, teachers.values()))
        scored = list(pool.map(train_and_score, (run for team in teams for run in team)))
        scored += pool.map(score, ensembles)
    for row in rows(scored):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
