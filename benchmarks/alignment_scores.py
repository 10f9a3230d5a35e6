"""Scores of alignments: accuracy on words whose origin is known, alignment error rate, and pointing at objects.

A standard is stored as two files: pairs as TSV, and links in Pharaoh format. The result of a row of the table is stored
as JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import regard
from pointing import score_pointing
from regard.data.corpora import read_pairs
from regard.data.images.scenes import sample
from regard.data.images.settings import ScenesData
from regard.data.pharaoh import GoldLinks, Links, format_links, read_alignments
from regard.data.settings import Files
from regard.evaluation.aligner import Aligner
from regard.evaluation.alignment import score_alignments

Pair = tuple[str, str]


class Standard(NamedTuple):
    """Pairs and their correct links."""

    pairs: list[Pair]
    gold: list[GoldLinks]

    @classmethod
    def read(cls, folder: Path, name: str) -> "Standard":
        return cls(
            list(read_pairs(Files(path=str(folder / f"{name}.tsv"), header=False))),
            list(read_alignments(folder / f"{name}.links")),
        )

    def write(self, folder: Path, name: str) -> None:
        lines = (f"{source}\t{target}\n" for source, target in self.pairs)
        (folder / f"{name}.tsv").write_text("".join(lines), "utf-8")
        links = (
            " ".join([format_links(sure), *(f"{i}?{j}" for i, j in possible - sure)]) for sure, possible in self.gold
        )
        (folder / f"{name}.links").write_text("".join(f"{line}\n" for line in links), "utf-8")


class Quality(NamedTuple):
    """How well a model has learned its task: the share of correct outputs, or BLEU on the dev set."""

    correct: float | None = None
    bleu: float | None = None


@dataclass(frozen=True)
class Result:
    """How well a model aligns the test set of a task."""

    accuracy: float | None = None
    nearby: dict[str, float] = field(default_factory=dict)
    """The accuracy at other places, by their name."""
    quality: Quality = field(default_factory=Quality)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Alignment error rate, precision and recall, by the name of the standard."""

    @property
    def learned(self) -> bool:
        """Whether the model has learned its task: at least 90 % of its outputs are correct, if this is known."""
        return self.quality.correct is None or self.quality.correct >= 0.9

    @classmethod
    def read(cls, folder: Path, name: str) -> "Result | None":
        path = folder / f"{to_file_name(name)}.json"
        if not path.exists():
            return None
        document = json.loads(path.read_text("utf-8"))
        return cls(**{**document, "quality": Quality(*document["quality"])})

    def write(self, folder: Path, name: str) -> None:
        (folder / f"{to_file_name(name)}.json").write_text(json.dumps(asdict(self)), "utf-8")


def to_file_name(name: str) -> str:
    """Return the name of a row as that of a file."""
    return name.replace(",", "").replace(" ", "-")


def measure_accuracy(links: Sequence[Links], gold: Sequence[GoldLinks], offset: int = 0) -> float:
    """Return the share of the target words with sure links that have a link to a source word with a sure link.

    With an offset, links are correct if they are this number of words after a correct one.
    """
    hits = sum(
        len({j for i, j in predicted if (i - offset, j) in sure})
        for predicted, (sure, _) in zip(links, gold, strict=True)
    )
    return hits / sum(len({j for _, j in sure}) for sure, _ in gold)


def measure_chance(standard: Standard) -> float:
    """Return the expected accuracy of links to random source words."""
    shares = [
        sum(j == target for _, j in sure) / len(source.split())
        for (source, _), (sure, _) in zip(*standard, strict=True)
        for target in {j for _, j in sure}
    ]
    return sum(shares) / len(shares)


def score_aligner(aligner: Aligner, folder: Path, quality: Quality) -> Result:
    """Align the test set of a task, and the hand-aligned sentences of Multi30k."""
    test = Standard.read(folder, "test")
    links = [alignment.links for alignment in aligner.align(test.pairs)]
    settings = aligner.settings
    other_step = replace(aligner, settings=settings.model_copy(update={"shift": not settings.shift}))
    nearby = {f"{offset:+d}".replace("-", "−"): measure_accuracy(links, test.gold, offset) for offset in (-1, 1)}
    nearby["previous step" if settings.shift else "next step"] = measure_accuracy(
        [alignment.links for alignment in other_step.align(test.pairs)], test.gold
    )
    scores = {"test": score_alignments(links, test.gold).to_json()}
    if (folder / "europarl.tsv").exists():
        pairs, gold = Standard.read(folder, "europarl")
        scores["europarl"] = score_alignments([alignment.links for alignment in aligner.align(pairs)], gold).to_json()
    return Result(measure_accuracy(links, test.gold), nearby, quality, scores)


def score_captions(model: regard.Model) -> Result:
    """Caption the test scenes, and compare the weights with the boxes of the objects."""
    assert isinstance(model.settings.data, ScenesData)
    scenes = sample(model.settings.data, "test")
    predictions = model.predict([scene.pixels for scene in scenes], batch_size=256)
    correct = sum(prediction.text == scene.caption for prediction, scene in zip(predictions, scenes, strict=True))
    return Result(score_pointing(predictions, scenes).accuracy, quality=Quality(correct / len(scenes)))
