"""How fast are captions, which share of the time does the backbone need, and what does the cache of features save?

    python benchmarks/captioning_speed.py                                   # the preset flickr8k, on the CPU
    python benchmarks/captioning_speed.py --device cuda --batch-size 64
    python benchmarks/captioning_speed.py --set model.encoder.stage=stage5

The images are random and already in memory: reading files is not measured. Speed does not depend on the weights, which
are random too. Every caption has `--tokens` tokens. An epoch has `--images` images with `--captions` captions each; its
duration is that of a few steps, multiplied.
"""

import argparse
import time
from collections.abc import Callable

import torch

from regard.config import resolve
from regard.data.batching import Batch
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding.rules import MinLength
from regard.decoding.search import SpecialTokens, choose_most_likely, decode_stepwise
from regard.models.contracts import Source, Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import ImageEncoderSettings
from regard.models.vision.sources import Pixels
from regard.runs.settings import RunSettings
from regard.training.objective import Objective
from regard.training.optim import build_optimizer
from regard.training.step import compute_gradients

SPECIAL = SpecialTokens(START, END, (PAD, UNKNOWN, START))


def measure(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the shortest duration of some calls, in seconds, after one that is not measured."""
    durations = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations.append(time.perf_counter() - start)
    return min(durations[1:])


def caption(model: Seq2Seq, source: Source, tokens: int) -> None:
    limits_B = torch.full((len(source.length_hint_B),), tokens, device=source.length_hint_B.device)
    with torch.inference_mode():
        decode_stepwise(
            model.decoder, model.encoder(source), SPECIAL, limits_B, choose_most_likely, [MinLength(END, tokens)]
        )


def build_step(model: Seq2Seq, settings: RunSettings, source: Source, target: Tokens) -> Callable[[], None]:
    """Return a function that takes a training step."""
    device = target.tokens_BT.device
    batch = Batch(source, target, list(range(len(target.tokens_BT))), target.tokens_BT.numel())
    objective, optimizer = Objective.of(settings.training, device), build_optimizer(model, settings.training)

    def step() -> None:
        compute_gradients(model, objective, [batch])
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="flickr8k")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings that replace the preset's")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=3000)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device, rows = torch.device(args.device), args.batch_size
    settings = resolve(RunSettings, args.preset, dict(entry.split("=", 1) for entry in args.set))
    encoder_settings = settings.model.encoder_settings
    assert isinstance(encoder_settings, ImageEncoderSettings)
    torch.manual_seed(0)
    model = build_model(settings.model, 1, args.vocabulary).to(device).eval()
    shape = (rows, 3, encoder_settings.height, encoder_settings.width)
    pixels = Pixels(torch.randint(256, shape, dtype=torch.uint8, device=device))
    target = torch.randint(4, args.vocabulary, (rows, args.tokens), device=device)
    targets = Tokens(target, torch.full((rows,), args.tokens, device=device))

    whole = measure(lambda: caption(model, pixels, args.tokens), device, args.repeats)
    with torch.inference_mode():
        encoding = measure(lambda: model.encoder(pixels), device, args.repeats)
    print(f"{settings.model.architecture}; {args.device}, batches of {rows}")
    print(f"captions per second: {rows / whole:.1f}; time in the encoder: {encoding / whole:.0%}")

    model.train()
    steps = args.images * args.captions / rows
    uncached = steps * measure(build_step(model, settings, pixels, targets), device, args.repeats)
    print(f"seconds per epoch without a cache: {uncached:.1f}")
    part = model.encoder.frozen_part
    if part is None:
        return
    features = part.wrap(part.compute(pixels).detach().to(part.dtype))
    cached = steps * measure(build_step(model, settings, features, targets), device, args.repeats)
    once = args.images / rows * measure(lambda: part.compute(pixels), device, args.repeats)
    print(f"seconds per epoch with cached features: {cached:.1f} ({uncached / cached:.1f} × faster)")
    print(f"seconds to compute the features once: {once:.1f}")


if __name__ == "__main__":
    main()
