"""Does stock Argos Translate give the predictions of regard with an exported package?

    python -m venv argos && argos/bin/pip install argostranslate
    python benchmarks/argos.py MODEL --argos argos/bin/python --source en --target de [--texts test.en]

The package is exported, installed in an empty home folder, and run by the Python with Argos Translate, once in float32
and once in the precision that Argos Translate chooses. It is exported with `sentences=lines`, so nothing is downloaded.
regard uses the same beam and length penalty; the formulas of the penalty differ. Both texts of the first differences
are printed, and the share of identical texts.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import regard
from regard.data.corpora import load_corpus
from regard.formatting import table

RUNNER = """
import json, sys
import argostranslate.package, argostranslate.translate
request = json.load(sys.stdin)
argostranslate.package.install_from_path(request["package"])
translation = argostranslate.translate.get_translation_from_codes(request["source"], request["target"])
json.dump([translation.translate(text) for text in request["texts"]], sys.stdout)
"""


def translate(python: str, package: Path, source: str, target: str, texts: list[str], precision: str) -> list[str]:
    """Translate texts with Argos Translate, in a new process with an empty home folder."""
    with tempfile.TemporaryDirectory() as home:
        folders = {name: f"{home}/{name}" for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
        environment = {**os.environ, "HOME": home, **folders, "ARGOS_COMPUTE_TYPE": precision}
        environment.pop("PYTHONPATH", None)
        request = {"package": str(package), "source": source, "target": target, "texts": texts}
        done = subprocess.run(
            [python, "-c", RUNNER],
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    translations: list[str] = json.loads(done.stdout)
    return translations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--argos", required=True, help="the Python of an environment with argostranslate")
    parser.add_argument("--source", required=True, help="the language code of the sources")
    parser.add_argument("--target", required=True, help="the language code of the targets")
    parser.add_argument("--texts", help="a file with one source per line; by default, the test set of the model")
    parser.add_argument("--shown", type=int, default=3, help="the number of texts to print")
    options = parser.parse_args()
    model = regard.load(options.model, device="cpu")
    if options.texts is None:
        texts = [str(source) for source, _ in load_corpus(model.settings.data).test or ()]
    else:
        texts = Path(options.texts).read_text("utf-8").splitlines()
    ours = [prediction.text for prediction in model.predict(texts, beam=4, length_penalty=0.2)]
    with tempfile.TemporaryDirectory() as folder:
        to = {"kind": "argos", "source": options.source, "target": options.target, "sentences": "lines"}
        package = model.export(Path(folder) / "model.argosmodel", to)
        rows = []
        for precision in ("float32", "auto"):
            theirs = translate(options.argos, package, options.source, options.target, texts, precision)
            same = sum(map(str.__eq__, ours, theirs))
            rows.append([precision, f"{same} of {len(texts)}", f"{same / len(texts):.1%}"])
            differences = [index for index in range(len(texts)) if ours[index] != theirs[index]]
            for index in [*differences, *range(options.shown)][: options.shown]:
                print(f"source  {texts[index]}\nregard  {ours[index]}\nArgos   {theirs[index]} ({precision})\n")
    print(table(["precision", "identical texts", "share"], rows))


if __name__ == "__main__":
    main()
