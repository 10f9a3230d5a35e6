"""How fast are the engines, and do they predict the same text?

    python benchmarks/engines.py runs/dates
    python benchmarks/engines.py runs/multi30k-post-norm --source test_2016_flickr.lc.norm.tok.en.gz

Each engine that supports the model predicts the same sentences with the same search, on one CPU thread: torch (the
reference), CTranslate2 through regard in float32 and int8, ONNX Runtime through regard, and, for Transformers,
CTranslate2 without regard ("bare") and `generate` of Hugging Face Transformers with the exported model. Texts are
tokenized and detokenized in each case. The engines take turns, and the table shows the median of the CPU time. The
column "start" is the CPU time of conversion and of the first 8 sentences. CTranslate2 and Transformers have other
length penalties, so they are compared with a length penalty of 0.
"""

import argparse
import gzip
import importlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import regard
from regard.api.line_prediction import LineOptions, LinePredictor
from regard.data.corpora import load_corpus
from regard.decoding.settings import SearchSettings
from regard.formatting import table

Engine = Callable[[list[str]], list[str]]

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam 5, length_penalty=0": {"beam": 5, "length_penalty": 0.0},
    "beam 5": {"beam": 5},
}


def predict(predictor: LinePredictor, texts: list[str]) -> list[str]:
    """Predict lines as `regard predict` does."""
    return predictor.predict_block(texts, {}, 0).lines


def open_bare(model: regard.Model, folder: Path, search: dict[str, Any]) -> Engine:
    """Return CTranslate2 with the exported files and the tokenizers of the model."""
    ctranslate2: Any = importlib.import_module("ctranslate2")
    model.export(folder, "ct2")
    translator = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    source, target = model.predictor.reader.tokenizer, model.predictor.tokenizer  # type: ignore[attr-defined]
    ids = {token: index for index, token in enumerate(target.tokens(range(len(target))))}

    def translate(texts: list[str]) -> list[str]:
        batch = [source.tokens(row) for row in source.ids(texts)]
        results = translator.translate_batch(
            batch, max_batch_size=64, beam_size=search.get("beam", 1), length_penalty=0, min_decoding_length=0
        )
        rows = [[ids[token] for token in result.hypotheses[0]] for result in results]
        decoded: list[str] = target.decode_all(rows)
        return decoded

    return translate


def open_transformers(model: regard.Model, folder: Path, search: dict[str, Any]) -> Engine:
    """Return `generate` with batches of 64 sentences of similar length."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers: Any = importlib.import_module("transformers")
    model.export(folder, "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()

    def translate(texts: list[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found: dict[int, str] = {}
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            inputs = tokenizer([texts[row] for row in rows], return_tensors="pt", padding=True)
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = network.generate(**inputs, num_beams=search.get("beam", 1), length_penalty=0.0)
            found.update(zip(rows, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True))
        return [found[row] for row in range(len(texts))]

    return translate


def open_engines(model: regard.Model, folder: Path, search: dict[str, Any], peers: list[str]) -> dict[str, Engine]:
    settings = SearchSettings(**search)
    own = {
        "torch": LineOptions(search=settings, engine="torch"),
        "ct2 float32": LineOptions(search=settings, engine="ct2"),
        "ct2 int8": LineOptions(search=settings, engine="ct2", precision="int8"),
        "onnx": LineOptions(search=settings, engine="onnx"),
    }
    engines: dict[str, Engine] = {}
    for name, options in own.items():
        try:
            engines[name] = partial(predict, LinePredictor(model, options))
        except regard.ConfigError as error:
            print(error)
    if "ct2 float32" in engines and (search.get("length_penalty") == 0 or not search):
        if "ct2" in peers:
            engines["CTranslate2, bare"] = open_bare(model, folder / "ct2", search)
        if "hf" in peers:
            engines["Transformers"] = open_transformers(model, folder / "hf", search)
    return engines


def measure(engines: dict[str, Engine], texts: list[str], rounds: int) -> list[list[str]]:
    """Return the rows of a table: sentences per second, the speedup over torch, the share of identical texts, and the
    time of the start.
    """
    outputs: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    starts: dict[str, float] = {}
    for name, engine in engines.items():
        start = time.process_time()
        engine(texts[:8])
        starts[name] = time.process_time() - start
    for _ in range(rounds):
        for name, engine in engines.items():
            start = time.process_time()
            outputs[name] = engine(texts)
            seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = []
    for name, median in medians.items():
        same = sum(a == b for a, b in zip(outputs[name], outputs["torch"], strict=True)) / len(texts)
        speed, ratio = f"{len(texts) / median:.1f}", f"{medians['torch'] / median:.2f} ×"
        rows.append([name, speed, ratio, f"{same:.1%}", f"{starts[name]:.1f} s"])
    if "CTranslate2, bare" in medians:
        over = medians["ct2 float32"] / medians["CTranslate2, bare"] - 1
        rows.append(["ct2 float32 over bare", "", f"{over:+.1%}", "", ""])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder of a model that reads text")
    parser.add_argument(
        "--source", type=Path, help="sentences, one per line, plain or gzipped; by default, the test set of the model"
    )
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["ct2", "hf"], help="other software to compare: ct2, hf")
    parser.add_argument("--search", nargs="+", choices=list(SEARCHES), default=list(SEARCHES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = regard.load(arguments.model, device="cpu")
    if arguments.source is None:
        texts = [str(source) for source, _ in load_corpus(model.settings.data).test or ()]
    else:
        opened = gzip.open if arguments.source.suffix == ".gz" else open
        with opened(arguments.source, "rt", encoding="utf-8") as file:
            texts = [line.rstrip("\n") for line in file]
    texts = texts[: arguments.sentences]
    for name in arguments.search:
        with tempfile.TemporaryDirectory() as folder:
            engines = open_engines(model, Path(folder), SEARCHES[name], arguments.peers)
            rows = measure(engines, texts, arguments.rounds)
        print(f"{name}, {len(texts)} sentences, {arguments.rounds} rounds")
        print(table(["engine", "sentences/s", "speed-up", "same text", "start"], rows), flush=True)


if __name__ == "__main__":
    main()
