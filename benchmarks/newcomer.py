"""How good is a model after ten minutes of training on a file of pairs, with no settings?

    python benchmarks/newcomer.py eng-fra.tsv.gz --minutes 10

About one source in a hundred is set aside for testing, by a hash of the source, and scored once with a beam of 5.
`regard train --pairs` holds back further pairs to choose the checkpoint.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.data.corpora import hash_to_unit_interval, read_pairs
from regard.data.settings import Files

EXAMPLES = 10


def run_regard(*arguments: str | Path) -> str:
    """Run a regard command, and return its standard output."""
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="file of pairs")
    parser.add_argument("--minutes", default="10")
    parser.add_argument("--out", help="store the run in this folder")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        pairs = list(read_pairs(Files(path=args.pairs)))
        # Not the hash that training uses to hold pairs back.
        test = [pair for pair in pairs if hash_to_unit_interval(f"test {pair[0]}") < 0.01]
        train = [pair for pair in pairs if hash_to_unit_interval(f"test {pair[0]}") >= 0.01]
        data = write_pairs(Path(folder) / "train.tsv", train)
        run = Path(args.out or f"{folder}/run")
        run_regard("train", "--pairs", data, "--minutes", args.minutes, "--out", run)
        print(run_regard("evaluate", run, "--pairs", write_pairs(Path(folder) / "test.tsv", test), "--beam", 5,
                         "--metric", "bleu", "--metric", "chrf", "--confidence"))  # fmt: skip
        examples = test[:: max(1, len(test) // EXAMPLES)][:EXAMPLES]
        outputs = run_regard("predict", run, "--beam", 5, *(source for source, _ in examples)).splitlines()
        for (source, target), output in zip(examples, outputs, strict=True):
            print(f"{source}\n  → {output}\n  = {target}")


if __name__ == "__main__":
    main()
