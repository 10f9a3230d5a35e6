"""How good are the models on published corpora? Trains presets, scores their test sets once, prints a table.

    python benchmarks/quality.py --data corpora --only multi30k-transformer --seeds 3
    python benchmarks/quality.py --data corpora --jobs 4                         # everything: needs a GPU
    python benchmarks/quality.py --data corpora --only cmudict-lstm --set training.steps=2000
    python benchmarks/quality.py --data corpora --only sigmorphon2021-low --seeds 5 --ensemble

Checkpoints are chosen on the dev set. Existing runs are resumed, and existing scores are reused. Scores are averaged
over languages with equal weight. With --ensemble, the ensemble of all seeds is scored too. The seconds are the average
training time of a run, including startup and validation and summed over resumptions. For an ensemble they are the total
of its members; for a distilled model they exclude its teachers. With --jobs above 1, concurrent runs slow each other
down.
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

TEACHER_WEIGHT = 0.7


@dataclass(frozen=True)
class Task:
    """A preset and a corpus, with its test sets, metrics and target scores."""

    preset: str
    folder: str
    metric: str
    tests: tuple[str, ...] = ("",)
    """Names of test files; the empty string is the test set of the preset."""
    languages: tuple[str, ...] = ("",)
    """Each entry is trained separately; languages separated by commas share a model."""
    target: tuple[float, ...] = ()
    length_penalty: float = 0.6
    extra_metrics: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """Settings that differ from the preset."""
    ensemble_with: tuple[str, ...] = ()
    """More presets with the same tokenizers, trained only for --ensemble."""
    teachers: tuple[tuple[str, int], ...] = ()
    """Tasks whose models are the teachers, and the number of their seeds. They are trained first."""

    @property
    def search(self) -> list[str]:
        """Options of `regard evaluate` for the search."""
        return ["--beam", "5", "--set", f"length_penalty={self.length_penalty}"]

    def settings(self, data: str, language: str) -> list[str]:
        """Return the overrides of the preset for a language."""
        value = f"[{language}]" if "," in language else language
        languages = [f"data.language={value}"] if language else []
        return [f"data.folder={Path(data) / self.folder}", *languages, *self.overrides]


TASKS = {
    "multi30k-transformer": Task(
        "multi30k-transformer", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(42.0, 35.0), length_penalty=1.4,
    ),
    "multi30k-gru": Task(
        "multi30k-gru", "multi30k/tok", "bleu:tokenize=none", ("test_2016_flickr", "test_2017_flickr"),
        target=(40.0, 33.0), length_penalty=1.0,
    ),
    "iwslt15-transformer": Task(
        "iwslt15-transformer", "iwslt15-en-vi", "bleu:tokenize=none", target=(33.0,),
        length_penalty=1.0,
    ),
    "iwslt15-lstm": Task(
        "iwslt15-lstm", "iwslt15-en-vi", "bleu:tokenize=none", target=(28.5,), length_penalty=1.0,
    ),
    "cmudict-transformer": Task("cmudict-transformer", "cmudict", "ser", target=(21.7,), extra_metrics=("per",)),
    "cmudict-lstm": Task("cmudict-lstm", "cmudict", "ser", target=(21.7,), extra_metrics=("per",)),
    "cmudict-r-drop": Task(
        "cmudict-lstm", "cmudict", "ser", target=(21.7,), extra_metrics=("per",),
        overrides=("training.consistency={kind: r-drop, alpha: 2, start_step: 1000}",),
    ),
    "sigmorphon2021-medium": Task(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/medium", "ser", languages=MEDIUM, target=(10.5,),
        overrides=("tokenizer.source.normalization=nfd", "model.encoder.layers=2", "model.encoder.dropout=0.4",
                "model.dropout=0.4", "training.steps=2400", "training.batch_size=64", "training.ema_decay=0.999",
                "training.word_dropout=0", "training.validate_every=300"),
        ensemble_with=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2021-low": Task(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/low", "ser", languages=LOW, target=(24.0,),
        ensemble_with=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2021-low-multilingual": Task(
        "sigmorphon2021-g2p", "sigmorphon2021-g2p/low", "ser", languages=(",".join(LOW),), target=(24.0,),
        overrides=("tokenizer.source.tags=true", "tokenizer.source.normalization=nfd", "model.encoder.hidden=256",
                "model.decoder.hidden=256", "model.encoder.layers=2", "model.encoder.dropout=0.45",
                "model.dropout=0.45", "training.steps=3000", "training.batch_size=64", "training.learning_rate=0.002",
                "training.ema_decay=0.998", "training.word_dropout=0", "training.validate_every=300"),
        ensemble_with=("sigmorphon2021-g2p-soft",),
    ),
    "sigmorphon2017-soft": Task("sigmorphon2017", "sigmorphon2017", "accuracy", languages=INFLECTED),
    "sigmorphon2017-monotonic": Task(
        "sigmorphon2017-monotonic", "sigmorphon2017", "accuracy", languages=INFLECTED
    ),
    "transliteration": Task("transliteration", "transliteration", "ser", languages=("katakana", "arabic")),
}  # fmt: skip

TASKS |= {
    "multi30k-distilled": replace(
        TASKS["multi30k-transformer"], teachers=(("multi30k-transformer", 2),),
        overrides=("training.consistency=none", "training.steps=4000"),
    ),
    "cmudict-distilled": replace(
        TASKS["cmudict-lstm"], teachers=(("cmudict-transformer", 2), ("cmudict-lstm", 3)),
        overrides=("model.dropout=0.4", "model.encoder.dropout=0.4", "training.steps=5000"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A training run of one preset, language and seed."""

    name: str
    preset: str
    language: str
    seed: int
    args: argparse.Namespace
    is_teacher: bool = False
    """Whether it is trained as a teacher only. --set does not apply to teachers."""

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def title(self) -> str:
        return self.name if self.preset == self.task.preset else f"{self.name}-{Path(self.preset).stem}"

    @property
    def folder(self) -> Path:
        return Path(self.args.out) / "-".join(
            filter(None, (self.title, format_language(self.language), f"seed{self.seed}"))
        )

    @property
    def teachers(self) -> list["Run"]:
        """The teacher runs: the same language, the first seeds."""
        return [
            Run(name, TASKS[name].preset, self.language, seed, self.args, is_teacher=True)
            for name, seeds in self.task.teachers
            for seed in range(seeds)
        ]

    @property
    def seconds(self) -> float | None:
        """Total training time; None if the run was started outside this benchmark."""
        path = self.folder / "seconds.json"
        return float(json.loads(path.read_text())["seconds"]) if path.exists() else None

    def train(self) -> None:
        """Train, or resume. A call that saves no checkpoint does not add to the training time."""
        overrides = [*self.task.settings(self.args.data, self.language), f"seed={self.seed}"]
        if self.teachers:
            runs = ", ".join(str(teacher.folder) for teacher in self.teachers)
            overrides.append(f"training.teachers={{runs: [{runs}], weight: {TEACHER_WEIGHT}}}")
        overrides += [] if self.is_teacher else self.args.set
        existing = self._checkpoints()
        if not existing:
            self._write_seconds(0.0)
        before, start = self.seconds, time.monotonic()

        def update_seconds() -> None:
            if before is not None and self._checkpoints() != existing:
                self._write_seconds(before + time.monotonic() - start)

        run_regard(self.folder, "train", self.preset, *overrides, "--out", str(self.folder), poll=update_seconds)

    def _checkpoints(self) -> set[str]:
        return {path.name for path in (self.folder / "checkpoints").glob("step-*")}

    def _write_seconds(self, seconds: float) -> None:
        write_atomically(self.folder / "seconds.json", json.dumps({"seconds": round(seconds, 1)}))


@dataclass(frozen=True)
class Model:
    """A run, or an ensemble of runs."""

    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        return " + ".join(dict.fromkeys(run.title for run in self.runs))

    @property
    def is_ensemble(self) -> bool:
        return len(self.runs) > 1

    @property
    def seeds(self) -> str:
        first, last = self.runs[0].seed, self.runs[-1].seed
        seeds = str(first) if first == last else f"{first}–{last}"
        return f"ensemble of {seeds}" if self.is_ensemble else seeds

    @property
    def folder(self) -> Path:
        first = self.runs[0]
        if not self.is_ensemble:
            return first.folder
        seeds = f"seeds{first.seed}-{self.runs[-1].seed}"
        return Path(first.args.out) / "-".join(
            filter(None, (self.title.replace(" ", ""), format_language(first.language), seeds))
        )

    @property
    def seconds(self) -> float | None:
        times = [run.seconds for run in self.runs]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the metrics on each test set."""
        return {test: self._score(test) for test in self.runs[0].task.tests}

    def _score(self, test: str) -> dict[str, float]:
        first, *others = self.runs
        task = first.task
        path = self.folder / f"score-{test or 'test'}.json"
        if not path.exists():
            files = []
            if test:
                stem = Path(first.args.data) / task.folder / FLICKR.format(split=test)
                files = ["--source", f"{stem}.en.gz", "--target", f"{stem}.de.gz"]
            metrics = [argument for metric in (task.metric, *task.extra_metrics) for argument in ("--metric", metric)]
            members = [argument for other in others for argument in ("--with", str(other.folder))]
            arguments = (str(first.folder), *members, *files, *metrics, *task.search, "--json")
            write_atomically(path, run_regard(self.folder, "evaluate", *arguments))
        result = json.loads(path.read_text())
        print(f"{self.folder.name} {test}: {result['values']} {result['signatures']}", file=sys.stderr, flush=True)
        values: dict[str, float] = result["values"]
        return values


def format_language(language: str) -> str:
    return language.replace(",", "+")


Scored = tuple[Model, dict[str, dict[str, float]]]
"""A model and its scores, by test set and metric."""


def run_regard(folder: Path, *arguments: str, poll: Callable[[], object] = lambda: None) -> str:
    """Run a regard command and return its output. Its log goes to log.txt; `poll` is called every few seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "regard", *arguments]
    with (
        (folder / "log.txt").open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        output = None
        while output is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=5.0)
            poll()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return output


def write_atomically(path: Path, text: str) -> None:
    """Write a file through a temporary file, so that it is never incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def rows(scored: list[Scored]) -> Iterator[list[str]]:
    """Yield the rows of the table, header first."""
    yield ["model", "test", "metric", "languages", "seeds", "mean", "by seed", "target", "seconds"]
    for name in dict.fromkeys(model.runs[0].name for model, _ in scored):
        task = TASKS[name]
        groups: dict[tuple[str, bool], list[Scored]] = {}
        for model, scores in scored:
            if model.runs[0].name == name:
                groups.setdefault((model.title, model.is_ensemble), []).append((model, scores))
        for index, test in enumerate(task.tests):
            for metric in (task.metric, *task.extra_metrics):
                target = task.target[index : index + 1] if metric == task.metric else ()
                for (title, _), group in groups.items():
                    yield [title, test or "test", metric, *summarize(group, test, metric, target)]


def summarize(group: list[Scored], test: str, metric: str, target: tuple[float, ...]) -> list[str]:
    """Return the columns that average over the languages and seeds of a model."""
    scale = 100.0 if metric == "accuracy" else 1.0
    by_seed: dict[str, list[float]] = {}
    for model, scores in group:
        by_seed.setdefault(model.seeds, []).append(scale * scores[test][metric])
    means = [statistics.fmean(values) for values in by_seed.values()]
    seconds = [model.seconds for model, _ in group]
    known = [value for value in seconds if value is not None]
    return [
        str(len({name for model, _ in group for name in model.runs[0].language.split(",")})), ", ".join(by_seed),
        f"{statistics.fmean(means):.2f}", ", ".join(f"{mean:.2f}" for mean in means), ", ".join(map(str, target)),
        f"{statistics.fmean(known):.0f}" if len(known) == len(seconds) else "unknown",
    ]  # fmt: skip


def train_and_score(run: Run) -> Scored:
    """Train a run, and score it."""
    run.train()
    return score(Model((run,)))


def score(model: Model) -> Scored:
    """Score a model on its test sets."""
    return model, model.scores()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the corpora")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--languages", nargs="+", help="train only these")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--ensemble", action="store_true", help="score the ensemble of all seeds too")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", default="runs/quality")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run except teachers"
    )
    args = parser.parse_args()
    # One list per task and language: the members of the ensemble.
    run_groups = [
        [
            Run(name, preset, language, seed, args)
            for preset in (TASKS[name].preset, *(TASKS[name].ensemble_with if args.ensemble else ()))
            for seed in range(args.seeds)
        ]
        for name in args.only
        for language in TASKS[name].languages
        if not args.languages or language in args.languages
    ]
    ensembles = [Model(tuple(group)) for group in run_groups if args.ensemble and len(group) > 1]
    if args.ensemble and not ensembles:
        parser.error("an ensemble needs several models: use --seeds 2 or more")
    teachers = {teacher.folder: teacher for group in run_groups for run in group for teacher in run.teachers}
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(Run.train, teachers.values()))
        scored = list(pool.map(train_and_score, (run for group in run_groups for run in group)))
        scored += pool.map(score, ensembles)
    for row in rows(scored):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
