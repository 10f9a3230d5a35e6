"""How fast is a large corpus tokenized, and does memory use stay constant as it grows?

Tokenizes synthetic pairs, starts from the cache, and builds batches.

    python benchmarks/corpus.py --pairs 10000000            # about 1 GB of text in a temporary folder
    python benchmarks/corpus.py --pairs 200000 --tokenizer unigram
    PYTHONPATH=../before/src python benchmarks/corpus.py --pairs 1000000 --processes 1

Each stage runs in its own process. Prints its time, its CPU time, that of its worker processes, and its peak memory.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = 20_000


def write_pairs(path: Path, count: int) -> None:
    """Write sentences of synthetic words with Zipf-like frequencies; targets are the reversed sources."""
    generator = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(WORDS)]
    weights = [1 / (rank + 3) for rank in range(WORDS)]
    with path.open("w") as file:
        for _ in range(0, count, 10_000):
            sampled = generator.choices(words, weights, k=10_000 * 8)
            lines = (sampled[8 * row : 8 * row + generator.randint(3, 8)] for row in range(10_000))
            file.writelines(f"{' '.join(line)}\t{' '.join(word[::-1] for word in reversed(line))}\n" for line in lines)


def run_stage(name: str, path: str, tokenizer: str, processes: int | None) -> None:
    """Run one stage in this process, and print its report as JSON. By default, there is a worker for each core."""
    if processes is not None:
        os.cpu_count = lambda: processes
    from regard.config import resolve
    from regard.data.corpora import load_corpus
    from regard.data.preparation import PreparationRequest, prepare
    from regard.data.sampler import TokenBatchSampler, padding_share
    from regard.runs.settings import RunSettings

    start = time.perf_counter()
    settings = resolve(RunSettings, "pairs", {"data.train": path, "tokenizer": tokenizer})
    corpus = load_corpus(settings.data)
    request = PreparationRequest(corpus, corpus.fingerprint(), settings.data, settings.tokenizer, 0)
    prepared = prepare(request, None, lambda text: print(f"    {text}", file=sys.stderr))
    used = os.times()
    report = {
        "pairs": len(prepared.train),
        "seconds": time.perf_counter() - start,
        "CPU": used.user + used.system,
        "CPU of workers": used.children_user + used.children_system,
    }
    if name == "batches":
        import torch

        sampler = TokenBatchSampler(prepared.train.lengths_N2, 8192, 0, 256)
        sampler.at(0)
        report["first batch after"] = time.perf_counter() - start
        report["padding"] = padding_share(sampler, prepared.train.targets.lengths)
        loop_start, tokens = time.perf_counter(), 0
        for step in range(2_000):
            tokens += prepared.train.batch(sampler.at(step), torch.device("cpu"), 0).tokens
        report["tokens/s"] = tokens / (time.perf_counter() - loop_start)
    report["GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(report))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000, help="number of pairs")
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--processes", type=int, help="number of worker processes; by default the number of cores")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        run_stage(args.stage, args.path, args.tokenizer, args.processes)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        write_pairs(path, args.pairs)
        print(f"{args.pairs:,} pairs, {path.stat().st_size / 2**20:,.0f} MiB of text, tokenizer {args.tokenizer}")
        command = [sys.executable, __file__, "--tokenizer", args.tokenizer, "--path", str(path)]
        if args.processes is not None:
            command += ["--processes", str(args.processes)]
        for name in ("tokenize", "cached start", "batches"):
            done = subprocess.run(
                [*command, "--stage", name],
                env={**os.environ, "REGARD_CACHE": f"{folder}/cache"},
                stdout=subprocess.PIPE,
                check=True,
            )
            report = json.loads(done.stdout)
            report_line = ", ".join(f"{key} {value:,.2f}" for key, value in report.items() if key != "pairs")
            print(f"{name:12s} {report_line}", flush=True)


if __name__ == "__main__":
    main()
