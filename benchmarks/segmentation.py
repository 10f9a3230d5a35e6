"""How fast are segmentations sampled? Compares BPE-dropout with that of the library tokenizers, in the same run.

python benchmarks/segmentation.py
"""

import json
import random
import time
from collections.abc import Callable

import tokenizers

from regard.data.settings import BPETokenizer, Sampling, UnigramTokenizer
from regard.data.tokens.segmentation import SegmentationTable
from regard.data.tokens.tokenizers import TokenizerPair

WORDS, SEGMENTATIONS = 2_000, 32


def measure_speed(sample: Callable[[], object]) -> float:
    """Return segmentations per second of CPU time, the highest of three runs."""
    speeds = []
    for _ in range(3):
        start = time.process_time()
        sample()
        speeds.append(WORDS * SEGMENTATIONS / (time.process_time() - start))
    return max(speeds)


def main() -> None:
    rng = random.Random(0)
    words = ["▁" + "".join(rng.choices("abdenwidstlor", k=7)) for _ in range(WORDS)]
    lines = [word[1:] for word in words]
    bpe = TokenizerPair.build(BPETokenizer(vocabulary=400), lines, []).source
    unigram = TokenizerPair.build(UnigramTokenizer(vocabulary=400), lines, []).source
    document = json.loads(bpe.to_json())
    document["model"]["dropout"] = 0.1
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    peer = measure_speed(lambda: [library.encode(line) for line in lines for _ in range(SEGMENTATIONS)])
    print(f"{'tokenizers, BPE-dropout':28} {peer:10,.0f} segmentations/s")
    for name, tokenizer, sampling in (
        ("regard, BPE-dropout", bpe, Sampling(SEGMENTATIONS, dropout=0.1)),
        ("regard, unigram", unigram, Sampling(SEGMENTATIONS, alpha=0.2)),
    ):
        speed = measure_speed(lambda t=tokenizer, s=sampling: SegmentationTable.sample(t, words, s, 0))
        print(f"{name:28} {speed:10,.0f} segmentations/s  {speed / peer:5.2f} ×")


if __name__ == "__main__":
    main()
