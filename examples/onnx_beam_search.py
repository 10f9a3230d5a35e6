"""Beam search with a model that `regard export --to onnx` has written. Needs only numpy, ONNX Runtime and tokenizers.

Run it with: python onnx_beam_search.py FOLDER TEXT …
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers


def beam_search(
    folder: Path, source: dict[str, np.ndarray], length: int, beam: int = 5, alpha: float = 0.6
) -> list[int]:
    """Return the tokens of the best prediction, ranked by log p / ((5 + length) / 6)^α."""
    model = json.loads((folder / "model.json").read_text())
    encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
    decoder = onnxruntime.InferenceSession(folder / "decoder.onnx")
    encoded = dict(zip([output.name for output in encoder.get_outputs()], encoder.run(None, source), strict=True))
    keys = {part["name"]: encoded[part["name"]] for part in model["keys"]}
    sizes, state = {"rows": 1, "hypotheses": beam, "steps": 0}, {}
    for part in model["state"]:  # (rows, hypotheses, …); what the encoder does not compute is empty at first
        shape = [sizes.get(size, size) for size in part["shape"]]
        initial = encoded[part["name"]][:, None] if part["name"] in encoded else np.zeros(shape, part["dtype"])
        state[part["name"]] = np.repeat(initial, beam, 1) if part["name"] in encoded else initial
    limit = int(length * model["max_length_ratio"] + model["max_length_extra"])
    scores, tokens = np.array([0.0] + [-np.inf] * (beam - 1)), np.full((beam, 1), model["start"])
    best, prediction = -np.inf, []
    for step in range(1, limit + 1):
        logits, *states = decoder.run(None, {"token": tokens[None, :, -1], **keys, **state})
        logits = logits[0].astype(np.float64)
        log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        log_p[:, model["suppressed"]] = -np.inf
        total = (scores[:, None] + log_p).flatten()
        candidates = np.argsort(-total, kind="stable")[: 2 * beam]
        parents, next_tokens = np.divmod(candidates, log_p.shape[1])
        ends = next_tokens == model["end"]
        for index in np.flatnonzero(ends[:beam]):
            rank = total[candidates[index]] / ((5 + step) / 6) ** alpha
            if rank > best:
                best, prediction = rank, tokens[parents[index], 1:].tolist()
        kept = np.flatnonzero(~ends)[:beam]
        scores, tokens = total[candidates[kept]], np.column_stack([tokens[parents[kept]], next_tokens[kept]])
        state = {name: part[:, parents[kept]] for name, part in zip(state, states, strict=True)}
        if best >= scores[0] / ((5 + limit) / 6) ** alpha:
            return prediction
    return prediction if best > -np.inf else tokens[0, 1:].tolist()


if __name__ == "__main__":
    path, *texts = sys.argv[1:]
    files = [Path(path) / name for name in ("tokenizer.json", "tokenizer.target.json")]
    loaded = [tokenizers.Tokenizer.from_file(str(file)) for file in files if file.exists()]
    for text in texts:
        ids = loaded[0].encode(text).ids
        arrays = {"tokens": np.array([ids]), "lengths": np.array([len(ids)])}
        print(loaded[-1].decode(beam_search(Path(path), arrays, len(ids))))
