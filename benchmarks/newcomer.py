"""What does somebody get who brings a file of pairs, sets nothing, and waits ten minutes?

    python benchmarks/newcomer.py eng-fra.tsv.gz --minutes 10

Pairs of about one source in a hundred are set aside by a hash of the source, and scored once, at the end, with a beam
of 5; all else is `regard train --pairs`, which holds back pairs of its own to choose the best model by.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.data.corpora import read_pairs, share
from regard.data.settings import Files

SHOWN = 10


def regard(*words: str | Path) -> str:
    command = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def write(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--minutes", default="10")
    parser.add_argument("--out", help="keep the run here")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        everything = list(read_pairs(Files(path=args.pairs)))
        # Another hash than that by which training holds pairs back.
        test = [pair for pair in everything if share(f"test {pair[0]}") < 0.01]
        train = [pair for pair in everything if share(f"test {pair[0]}") >= 0.01]
        data = write(Path(folder) / "train.tsv", train)
        run = Path(args.out or f"{folder}/run")
        regard("train", "--pairs", data, "--minutes", args.minutes, "--out", run)
        print(regard("evaluate", run, "--pairs", write(Path(folder) / "test.tsv", test), "--beam", 5,
                     "--metric", "bleu", "--metric", "chrf", "--confidence"))  # fmt: skip
        shown = test[:: max(1, len(test) // SHOWN)][:SHOWN]
        answers = regard("predict", run, "--beam", 5, *(source for source, _ in shown)).splitlines()
        for (source, target), answer in zip(shown, answers, strict=True):
            print(f"{source}\n  → {answer}\n  = {target}")


if __name__ == "__main__":
    main()
