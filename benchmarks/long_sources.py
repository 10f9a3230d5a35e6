"""Does local attention help on long sources? One to four sentences of Multi30k, concatenated.

    python benchmarks/long_sources.py --data corpora --parallel 3
    python benchmarks/long_sources.py --report runs/long_sources/results.json
    python benchmarks/long_sources.py --data corpora --only global --seeds 1 --set training.steps=20

Multi30k has sources of 13 words on average, so that a window covers most of a sentence. Here, a source is one, two,
three or four sentences in English, and the target is their translation into German, in the same order. In each split,
every sentence is part of one source of each kind: alone, in a pair, and so on. Trains the LSTM encoder-decoders of
`luong2015.py` (general score, without input feeding) with global and local attention and three seeds, and plots BLEU by
the length of the source. Both windows have the size of the paper: ten slots (subwords) to each side. `classics.py`
describes the tests. The published runs use `--set training.steps=1500 --set training.warmup=150`.
"""

import random
from pathlib import Path
from typing import Any

import regard
from classics import Contrast, Experiment, MetricName, main, multi30k
from luong2015 import LUONG, NO_FEEDING
from regard.data.corpora import Corpus, Pairs, load_corpus
from regard.data.settings import DataSettings

KIND = "concatenated_multi30k"


def load_concatenated(folder: str, sentences: int = 4) -> Corpus:
    """Load Multi30k with sources of one sentence, of two, and so on."""
    corpus = load_corpus(DataSettings.parse(multi30k(Path(folder))))
    assert corpus.test is not None
    train, dev, test = (
        Pairs.of(
            pair
            for count in range(1, sentences + 1)
            for pair in concatenate(list(pairs), count, random.Random(f"{name} {count}"))
        )
        for name, pairs in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test))
    )
    return Corpus(train, dev, test)


def concatenate(pairs: list[tuple[Any, str]], count: int, generator: random.Random) -> list[tuple[str, str]]:
    """Shuffle the pairs, and concatenate them in groups of `count`. An incomplete last group is left out."""
    shuffled = generator.sample(pairs, len(pairs))
    groups = [shuffled[start : start + count] for start in range(0, len(pairs) - count + 1, count)]
    return [(" ".join(source for source, _ in group), " ".join(target for _, target in group)) for group in groups]


def attend(scope: str | dict[str, object]) -> dict[str, object]:
    """Return the settings of a scope with the general score."""
    # A validation decodes about four times as many words as in the other experiments.
    every = {"training.validate_every": 750, "training.save_every": 750}
    return {**LUONG, **NO_FEEDING, "model.attention": {"score": "general", "scope": scope}, **every}


SYSTEMS: dict[str, dict[str, object]] = {
    "global": attend("global"),
    "local-m": attend({"kind": "local_m", "window": 10}),
    "local-p": attend({"kind": "local_p", "window": 10}),
}

METRICS: tuple[MetricName, ...] = ("BLEU", "BLEU, > 25 words")

EXPERIMENT = Experiment(
    "long_sources",
    systems=SYSTEMS,
    contrasts=[
        Contrast(baseline, system, "higher", f"Table 4, after unk: {reported}", metric)
        for metric in METRICS
        for baseline, system, reported in (
            ("global", "local-m", "19.1 → 20.4"),
            ("global", "local-p", "19.1 → 20.9"),
            ("local-m", "local-p", "20.4 → 20.9"),
        )
    ],
    data=lambda folder: {"kind": KIND, "folder": str(folder.resolve())},
)

if __name__ == "__main__":
    regard.register_corpus(KIND, load_concatenated)
    main(EXPERIMENT, __file__, __doc__)
