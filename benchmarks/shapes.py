"""How many distinct shapes do the batches of a run have on a GPU, and how much of them is padding?

    python benchmarks/shapes.py multi30k-transformer data.folder=corpora/multi30k/tok --steps 1600

Training captures one CUDA graph per shape, so there should be few shapes. Padding costs as much time as tokens.
"""

import argparse
from collections import Counter

import torch

from regard.config import resolve
from regard.data.corpora import load_corpus
from regard.data.preparation import PreparationRequest, prepare
from regard.overrides import parse_overrides
from regard.runs.settings import RunSettings
from regard.training.schedule import build_batch_sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=1000, help="number of batches")
    args = parser.parse_args()
    settings = resolve(RunSettings, args.preset, parse_overrides(args.settings))
    corpus = load_corpus(settings.data)
    request = PreparationRequest(corpus, corpus.fingerprint(), settings.data, settings.tokenizer, settings.seed)
    train = prepare(request, None, print).train
    sampler = build_batch_sampler(train, settings)
    shapes: Counter[tuple[tuple[int, ...], ...]] = Counter()
    positions = tokens = 0
    for step in range(args.steps):
        batch = train.batch(sampler.at(step), torch.device("cpu"), sampler.epoch_at(step), bucketed_shapes=True)
        shapes[(*batch.source.shape, *batch.target.shape)] += 1
        for side in batch[:2]:
            positions, tokens = positions + side.tensors[0].numel(), tokens + int(side.length_hint_B.sum())
    once = sum(count == 1 for count in shapes.values())
    print(f"{args.steps:,} steps: {len(shapes)} shapes, {once} of them used once; {1 - tokens / positions:.1%} padding")


if __name__ == "__main__":
    main()
