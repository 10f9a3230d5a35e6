"""Does attention help, and does it help more for long sources? After Bahdanau et al. (2015), Table 1 and Figure 2.

    python benchmarks/bahdanau2015.py --data corpora --parallel 3
    python benchmarks/bahdanau2015.py --data corpora --parallel 3 --minutes 9   # continue later
    python benchmarks/bahdanau2015.py --report runs/bahdanau2015/results.json
    python benchmarks/bahdanau2015.py --data corpora --seeds 2 --set training.steps=20    # try it out

Trains a GRU encoder-decoder with additive attention, and one whose decoder reads a vector of fixed size at every step,
on Multi30k English → German with three seeds. Prints both tables and plots BLEU by the length of the source.
`classics.py` describes the tests. With `--parallel 8 --set training.steps=2000 --set training.warmup=200`, the six runs
take one minute on an H200.
"""

from alignment import SETTINGS
from classics import Contrast, Experiment, main

EXPERIMENT = Experiment(
    "bahdanau2015",
    systems={
        "fixed context": {"model": {**SETTINGS["model"], "kind": "fixed"}},
        "attention": {"model.attention": "bahdanau"},
    },
    contrasts=[
        Contrast("fixed context", "attention", "higher", "Table 1: RNNenc-50 17.8, RNNsearch-50 26.8"),
        Contrast("fixed context", "attention", "higher", "Figure 2: the gap grows with length", "BLEU, long − short"),
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT, __file__, __doc__)
