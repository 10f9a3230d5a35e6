"""Which score and scope are best, and does input feeding help? After Luong et al. (2015), Tables 1, 4 and 6.

    python benchmarks/luong2015.py --data corpora --parallel 3
    python benchmarks/luong2015.py --data corpora --parallel 3 --minutes 9   # continue later
    python benchmarks/luong2015.py --report runs/luong2015/results.json
    python benchmarks/luong2015.py --data corpora --only dot general --seeds 2 --set training.steps=20

Trains LSTM encoder-decoders with the decoder of Luong et al. on Multi30k English → German with three seeds, and aligns
the hand-aligned sentences of `gold-alignments` (Europarl, so another domain) for the alignment error rate (AER). Prints
both tables and plots the contrasts. `classics.py` describes the tests. All systems use input feeding unless their names
say otherwise; the windows of local attention have the default size. With
`--parallel 8 --set training.steps=2000 --set training.warmup=200`, the 36 runs take six minutes on an H200.
"""

from alignment import SETTINGS
from classics import Contrast, Experiment, main

LSTM = {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm"}
LUONG = {**LSTM, "model.decoder.order": "luong"}
NO_FEEDING = {"model.decoder.input_feeding": False}


def local(scope: str, score: str) -> dict[str, object]:
    """Return the settings of local attention with a score."""
    return {**LUONG, "model.attention": {"score": score, "scope": scope}}


SYSTEMS: dict[str, dict[str, object]] = {
    "no attention": {"model": {**SETTINGS["model"], "kind": "fixed"}, **LSTM},
    "location": {**LUONG, "model.attention": "luong-location"},
    "dot": {**LUONG, "model.attention": "luong-dot"},
    "general": {**LUONG, "model.attention": "luong-general"},
    "concat": {**LUONG, "model.attention": "luong-concat"},
    "local-m, dot": local("local_m", "dot"),
    "local-m, general": local("local_m", "general"),
    "local-p, dot": local("local_p", "dot"),
    "local-p, general": local("local_p", "general"),
    "location, no input feeding": {**LUONG, **NO_FEEDING, "model.attention": "luong-location"},
    "general, no input feeding": {**LUONG, **NO_FEEDING, "model.attention": "luong-general"},
    "local-p, general, no input feeding": {**local("local_p", "general"), **NO_FEEDING},
}

EXPERIMENT = Experiment(
    "luong2015",
    systems=SYSTEMS,
    contrasts=[
        Contrast("no attention", "location, no input feeding", "higher", "Table 1: 14.0 → 16.8"),
        Contrast("location, no input feeding", "location", "higher", "Table 1: 16.8 → 18.1"),
        Contrast("general, no input feeding", "general", "higher", "Table 1, for another score"),
        Contrast("local-p, general, no input feeding", "local-p, general", "higher", "Table 1, for another scope"),
        Contrast("location", "dot", "higher", "Table 4, after unk: 19.3 → 20.5"),
        Contrast("general", "dot", "higher", "Table 4, after unk: 19.1 → 20.5"),
        Contrast("general", "local-m, general", "higher", "Table 4, after unk: 19.1 → 20.4"),
        Contrast("local-m, general", "local-p, general", "higher", "Table 4, after unk: 20.4 → 20.9"),
        Contrast("location", "local-m, general", "lower", "Table 6: 0.39 → 0.34", "AER"),
        Contrast("location", "local-p, general", "lower", "Table 6: 0.39 → 0.36", "AER"),
    ],
    aligns=True,
)

if __name__ == "__main__":
    main(EXPERIMENT, __file__, __doc__)
