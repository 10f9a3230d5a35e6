"""How fast is prediction in int8 on a CPU, compared with float32, and how much does its output change?

    OMP_NUM_THREADS=1 python benchmarks/int8.py                       # matrix products, and beam search
    OMP_NUM_THREADS=1 python benchmarks/int8.py --model runs/gru      # the test set of a trained model

Matrix products are also measured with the int8 products of torch. Models of beam search have random weights, and
generate exactly `--tokens` tokens. With one thread, processor time is measured, because load on the machine hardly
changes it. Measurements alternate; the median is printed.
"""

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import regard
from decoding import Job, build_search
from regard.config import resolve
from regard.formatting import table
from regard.models.contracts import Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel
from regard.ops.int8 import Int8Weight, quantize_weights
from regard.ops.reference_mode import full_precision
from regard.runs.folder import open_model
from regard.runs.pairs import read_test_set

SHAPES = [(1152, 384), (2048, 512), (10_000, 256), (32_000, 512)]
"""Outputs and inputs of a matrix product: the state of a GRU and of an LSTM, and two output projections."""
ROWS = (1, 5, 64, 320)
SIZES: dict[str, dict[str, Any]] = {
    "GRU 384, conditional, 10,000 tokens": {
        "vocabulary": 10_000, "embedding": 256, "encoder": {"cell": "gru", "hidden": 384},
        "decoder": {"cell": "gru", "hidden": 384, "order": "conditional"}, "attention": "bahdanau",
    },
    "LSTM 512, Luong, 2 layers, 17,000 tokens": {
        "vocabulary": 17_000, "embedding": 512, "encoder": {"cell": "lstm", "hidden": 256, "layers": 2},
        "decoder": {"cell": "lstm", "hidden": 512, "layers": 2, "order": "luong"}, "attention": "luong-general",
    },
}  # fmt: skip
"""The models of the presets multi30k-gru and, with half the layers, iwslt15-lstm."""


def time_alternating(functions: Sequence[Callable[[], object]], repeats: int, calls: int = 1) -> list[float]:
    """Return the median time of each function, in seconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, measured in zip(functions, times, strict=True):
            start = clock()
            for _ in range(calls):
                function()
            measured.append((clock() - start) / calls)
    return [statistics.median(measured) for measured in times]


def build_torch_product(weight_NK: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the int8 product of torch, with its engine for this CPU."""
    engine = "qnnpack" if "qnnpack" in torch.backends.quantized.supported_engines else "fbgemm"
    torch.backends.quantized.engine = engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated
        scales = weight_NK.abs().amax(1).double() / 127
        quantized = torch.quantize_per_channel(weight_NK, scales, torch.zeros_like(scales).long(), 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, None)
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed)


@torch.inference_mode()
def report_products() -> None:
    rows = []
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs)
        int8_weight, torch_int8 = Int8Weight(weight), build_torch_product(weight)
        for count in ROWS:
            x = torch.randn(count, inputs)
            functions = [
                lambda x=x, w=weight: nn.functional.linear(x, w),
                lambda x=x, w=int8_weight: nn.functional.linear(x, w),
                lambda x=x, f=torch_int8: f(x),
            ]
            calls = max(1, int(5e7 / (count * outputs * inputs)))
            with full_precision(torch.float32):
                float32, int8, other = time_alternating(functions, 5, calls)
            rows.append([
                f"{outputs:,} × {inputs}", str(count), f"{float32 * 1e6:,.0f}", f"{int8 * 1e6:,.0f}",
                f"{float32 / int8:.1f}", f"{float32 / other:.1f}",
            ])  # fmt: skip
    print(table(["weights", "rows", "float32, µs", "int8, µs", "float32 ÷ int8", "float32 ÷ int8 of torch"], rows))


def build_random_model(settings: dict[str, Any]) -> Seq2Seq:
    settings = {**settings, "dropout": 0.0}
    vocabulary = settings.pop("vocabulary")
    return build_model(resolve(RecurrentModel, settings, {}), vocabulary, vocabulary).eval()


def report_searches(tokens: int, repeats: int) -> None:
    rows = []
    for name, settings in SIZES.items():
        model = build_random_model(settings)
        quantized = copy.deepcopy(model)
        quantize_weights(quantized)
        for sentences, beam in ((1, 1), (1, 5), (64, 1), (64, 5)):
            source = Tokens(
                torch.randint(4, settings["vocabulary"], (sentences, tokens)), torch.full((sentences,), tokens)
            )
            job = Job(source, beam, tokens)
            float32, int8 = time_alternating([build_search(each, job) for each in (model, quantized)], repeats)
            rates = (f"{sentences / seconds:.1f}" for seconds in (float32, int8))
            rows.append([name, str(sentences), str(beam), *rates, f"{float32 / int8:.2f}"])
    print(table(["model", "batch", "beam", "float32, sentences/s", "int8, sentences/s", "speedup"], rows))


def report_model(path: str, beam: int, metrics: list[str], batch_size: int) -> None:
    """Print the metrics of a trained model on its test set, its speed, and the share of identical predictions."""
    folder, checkpoint = open_model(path)
    test = read_test_set(folder, checkpoint, None, None)
    rows, predictions = [], []
    for dtype in ("float32", "int8"):
        model = regard.load(path, device="cpu", dtype=dtype)
        model.predict(list(test.sources[:2]), beam=beam)
        start = time.process_time()
        result = model.evaluate(test.sources, test.targets, metrics=metrics, beam=beam, batch_size=batch_size)
        seconds = time.process_time() - start
        predictions.append(result.predictions)
        values = (f"{result[metric]:.2f}" for metric in metrics)
        rows.append([dtype, *values, f"{len(test.sources) / seconds:.1f}"])
    print(table(["precision", *metrics, "sentences/s"], rows))
    same = sum(first == second for first, second in zip(*predictions, strict=True))
    print(f"identical predictions: {same:,} of {len(test.sources):,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="measure a trained model on its test set")
    parser.add_argument("--metric", nargs="+", default=["bleu:tokenize=none"])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16, help="length of sources and predictions, with random weights")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.model:
        report_model(args.model, args.beam, args.metric, args.batch_size)
        return
    report_products()
    print()
    report_searches(args.tokens, args.repeats)


if __name__ == "__main__":
    main()
