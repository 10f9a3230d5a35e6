"""Do exported models compute the same in ONNX Runtime? Needs onnx, onnxscript and onnxruntime.

    python benchmarks/onnx_agreement.py
    python benchmarks/onnx_agreement.py --steps 100 --count 50 --only lstm scenes

Trains five kinds of models for a few steps: three recurrent models and a Transformer on dates, and a captioner on
scenes. Prints the largest difference of the logits between ONNX Runtime and torch, in float32, over all steps of our
predictions for test sources; and how many texts are the same with the beam search of examples/onnx_beam_search.py.
"""

import argparse
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from regard.data.tokens.tokenizers import START
from regard.decoding.settings import SearchSettings
from regard.export.onnx_model import OnnxModel
from regard.formatting import table
from regard.models.contracts import Source
from regard.runs.folder import RunFolder
from regard.runs.pairs import read_held_out

EXAMPLE = Path(__file__).parents[1] / "examples/onnx_beam_search.py"
SEARCH = SearchSettings(beam=5, length_penalty=0.6)
DATES = {"data.train": 4_000, "data.dev": 50}
LSTM = {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm", "model.attention": "luong-general"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru": ("dates", DATES),
    "lstm": ("dates", {**DATES, **LSTM}),
    "fixed": ("dates", {**DATES, "model": "fixed"}),
    "transformer": ("dates", {**DATES, "model": "transformer-tiny", "tokenizer.shared": True}),
    "scenes": ("scenes", {"data.train": 300, "data.dev": 20, "training.batch_size": 16}),
}


@torch.inference_mode()
def compare_logits(model: regard.Model, exported: OnnxModel, source: Source, tokens: list[int]) -> float:
    """Return the largest difference of the logits of a prediction's steps."""
    decoder, largest = model.network.decoder, 0.0
    keys, state = decoder.begin(model.network.encoder(source))
    onnx_keys, onnx_state = exported.begin([tensor.numpy() for tensor in source.tensors])
    for token in (START, *tokens):
        token_N = torch.tensor([token])
        logits_NV, state = decoder.step(token_N, state, keys)
        onnx_logits_NV, onnx_state = exported.step(token_N.numpy(), onnx_state, onnx_keys)
        largest = max(largest, float((logits_NV - torch.from_numpy(onnx_logits_NV)).abs().max()))
    return largest


def compare(kind: str, folder: Path, args: argparse.Namespace) -> list[str]:
    """Train and export a model, and return a row of the table."""
    preset, settings = KINDS[kind]
    overrides = {**settings, "training.steps": args.steps, "training.validate_every": args.steps}
    run = regard.train(preset, overrides, out=folder / kind, quiet=True)
    model = run.load(device="cpu")
    exported = OnnxModel(model.export(folder / f"{kind}-onnx", "onnx"), threads=1)
    search: Callable[..., list[int]] = runpy.run_path(str(EXAMPLE))["beam_search"]
    predictor = model.predictor
    items = predictor.reader.read(read_held_out(RunFolder(run.path), args.count).pairs.sources)
    largest, same = 0.0, 0
    for item, [hypothesis, *_] in zip(items, predictor.predict(items, SEARCH), strict=True):
        source = predictor.collate([item])
        largest = max(largest, compare_logits(model, exported, source, hypothesis.tokens))
        parts = zip(exported.description.source, source.tensors, strict=True)
        arrays = {part.name: tensor.numpy().astype(part.dtype) for part, tensor in parts}
        found = search(exported.folder, arrays, int(source.length_hint_B), SEARCH.beam, SEARCH.length_penalty)
        same += found == hypothesis.tokens
    return [kind, model.settings.model.architecture, f"{largest:.1e}", f"{same} of {len(items)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--count", type=int, default=20, help="number of test sources")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(kind, Path(folder), args) for kind in args.only]
    print(table(["", "model", "logits within", "same texts"], rows))


if __name__ == "__main__":
    main()
