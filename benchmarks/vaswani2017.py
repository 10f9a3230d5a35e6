"""Do several heads, learned positions and label smoothing matter? After Vaswani et al. (2017), Tables 2 and 3.

    python benchmarks/vaswani2017.py --data corpora --parallel 3
    python benchmarks/vaswani2017.py --data corpora --parallel 3 --minutes 9   # continue later
    python benchmarks/vaswani2017.py --report runs/vaswani2017/results.json
    python benchmarks/vaswani2017.py --data corpora --seeds 2 --set training.steps=20     # try it out

Trains small Transformers on Multi30k English → German with three seeds. Prints both tables and plots the contrasts.
`classics.py` describes the tests. The width of a head is the width of the model divided by the number of heads, as in
the paper. Perplexity is that of the test references, per subword. With
`--parallel 8 --set training.steps=5000 --set training.warmup=500`, the 15 runs take twelve minutes on an H200.
"""

from alignment import TRANSFORMER
from classics import Contrast, Experiment, main

BASE = {**TRANSFORMER, "model.heads": 8, "model.positions": "sinusoidal"}

EXPERIMENT = Experiment(
    "vaswani2017",
    systems={
        "base": BASE,
        "1 head": {**BASE, "model.heads": 1},
        "32 heads": {**BASE, "model.heads": 32},
        "learned positions": {**BASE, "model.positions": "learned"},
        "no label smoothing": {**BASE, "training.label_smoothing": 0.0},
    },
    contrasts=[
        Contrast("1 head", "base", "higher", "Table 3 A: 24.9 → 25.8"),
        Contrast("32 heads", "base", "higher", "Table 3 A: 25.4 → 25.8"),
        Contrast("base", "learned positions", "equal", "Table 3 E: 25.8 and 25.7", margin=1.0),
        Contrast("base", "no label smoothing", "lower", "Table 3 D: 4.92 → 4.67", "perplexity"),
        Contrast("base", "no label smoothing", "lower", "Table 3 D: 25.8 → 25.3"),
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT, __file__, __doc__)
