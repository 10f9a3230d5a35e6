"""How fast is beam search? Compares models with random weights with those of other libraries on the same weights, in
one run. The outputs must be identical.

    python benchmarks/decoding.py                                          # a small Transformer against Hugging Face
    python benchmarks/decoding.py --size base --batch-size 64 --tokens 64 --vocabulary 32000 --repeats 1
    python benchmarks/decoding.py --device cuda --size base --batch-size 64 --tokens 64 --vocabulary 32000
    python benchmarks/decoding.py --cell lstm --score additive             # a recurrent model against Joey NMT
    python benchmarks/decoding.py --device cuda --batch-size 1 --alone --profile   # latency; where the time goes

The Transformer is compared with MarianMTModel.generate (`pip install transformers`). The recurrent model, in Luong's
order with input feeding and with an additive or a general score, is compared with Joey NMT (`pip install joeynmt`),
which supports only that order. All models generate exactly `--tokens` tokens, so that all do the same work. On a CPU
with one thread, processor time is measured, because load on the machine hardly changes it. There, the other library
runs with and without oneDNN, and the faster of the two counts; regard chooses by itself whether to use oneDNN.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from peers import joey, marian
from regard.config import resolve
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding.beam import beam_search
from regard.decoding.rules import MinLength
from regard.decoding.search import SpecialTokens
from regard.decoding.settings import SearchSettings
from regard.models.contracts import Tokens
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel, TransformerModel
from regard.ops.reference_mode import full_precision

NEVER = (PAD, UNKNOWN, START)
TRANSFORMERS: dict[str, dict[str, int]] = {
    "tiny": {"size": 128, "heads": 4, "layers": 2, "feedforward": 256},
    "small": {"size": 256, "heads": 4, "layers": 3, "feedforward": 1024},
    "base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048},
}
RECURRENT = {"tiny": 128, "small": 256, "base": 512}
"""Width of the embeddings and of each encoder direction; the decoder state is twice as wide."""

Search = Callable[[], Tensor]


class Job(NamedTuple):
    """The input of both models, and the number of tokens to generate."""

    source: Tokens
    beam: int
    tokens: int


def build_search(model: Seq2Seq, job: Job) -> Search:
    """Return a function that runs our beam search and returns the best tokens of each sentence."""
    limits = torch.full((len(job.source.lengths_B),), job.tokens, device=job.source.lengths_B.device)
    options = SearchSettings(beam=job.beam, length_penalty=0.0)
    rules = [MinLength(END, job.tokens)]

    @torch.inference_mode()
    def run() -> Tensor:
        with full_precision(next(model.parameters()).dtype):  # as in `Model.predict`
            hypotheses = beam_search(
                model.decoder, model.encoder(job.source), SpecialTokens(START, END, NEVER), limits, options, rules
            )
        return torch.tensor([best.tokens for best, *_ in hypotheses])

    return run


def build_hugging_face_search(peer: Any, job: Job) -> Search:
    """Return a function that runs Hugging Face's beam search and returns the tokens of each sentence."""

    @torch.inference_mode()
    def run() -> Tensor:
        outputs = peer.generate(
            input_ids=job.source.tokens_BT, attention_mask=job.source.valid_BT.long(), num_beams=job.beam,
            do_sample=False, max_new_tokens=job.tokens, min_new_tokens=job.tokens, length_penalty=0.0,
            early_stopping=False, suppress_tokens=list(NEVER),
        )  # fmt: skip
        return torch.as_tensor(outputs)[:, 1 : job.tokens + 1].cpu()

    return run


def build_joey_search(peer: Any, job: Job) -> Search:
    """Return a function that runs Joey NMT's beam search and returns the tokens of each sentence."""
    from joeynmt.search import beam_search

    mask = job.source.valid_BT.unsqueeze(1)

    @torch.inference_mode()
    def run() -> Tensor:
        slots, last, _, _ = peer(
            return_type="encode", src=job.source.tokens_BT, src_length=job.source.lengths_B, src_mask=mask
        )
        outputs, _, _ = beam_search(
            peer, job.beam, slots, last, mask, job.tokens, alpha=0.0, min_output_length=job.tokens, generate_unk=False
        )
        return torch.as_tensor(outputs)

    return run


def without_onednn(search: Search) -> Search:
    """Return a function that runs a search without oneDNN."""

    def run() -> Tensor:
        with torch.backends.mkldnn.flags(enabled=False):
            return search()

    return run


def build_transformers(args: argparse.Namespace) -> tuple[Seq2Seq, Any]:
    """Build a Transformer, and Hugging Face's model with the same weights unless ours is measured alone."""
    settings = resolve(TransformerModel, {**TRANSFORMERS[args.size], "dropout": 0.0, "tied": "all"}, {})
    ours = build_model(settings, args.vocabulary, args.vocabulary).eval()
    _scale_weights(ours)
    positions = args.source_length + args.tokens + 8
    return ours, None if args.alone else marian(ours, settings, args.vocabulary, positions)


def build_recurrent(args: argparse.Namespace) -> tuple[Seq2Seq, Any]:
    """Build a recurrent model, and Joey NMT's model with the same weights unless ours is measured alone."""
    width = RECURRENT[args.size]
    decoder = {"cell": args.cell, "hidden": 2 * width, "order": "luong"}
    sides = {"encoder": {"cell": args.cell, "hidden": width}, "decoder": decoder, "attention": {"score": args.score}}
    settings = resolve(RecurrentModel, {"embedding": width, "dropout": 0.0, **sides}, {})
    ours = build_model(settings, args.vocabulary, args.vocabulary).eval()
    _scale_weights(ours)
    return ours, None if args.alone else joey(ours, settings, args.vocabulary)


@torch.no_grad()
def _scale_weights(model: Seq2Seq) -> None:
    """Scale up the weights, so that the outputs of random models are not nearly uniform."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.mul_(1.5)


def time_searches(searches: list[Search], repeats: int, device: str) -> list[tuple[float, Tensor]]:
    """Return the best time of each search, and its output. Searches alternate; the first run of each is a warm-up."""
    cuda = device.startswith("cuda")
    clock = time.process_time if not cuda and torch.get_num_threads() == 1 else time.perf_counter
    best = [(float("inf"), search()) for search in searches]
    for _ in range(repeats):
        for index, search in enumerate(searches):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            output = search()
            if cuda:
                torch.cuda.synchronize()
            best[index] = (min(best[index][0], clock() - start), output)
    return best


def print_profile(search: Search, steps: int) -> None:
    """Print the time of a step on the host and on the GPU, the number of kernels, and those that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        start = time.perf_counter()
        search()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total, launches = sum(kernel.self_device_time_total for kernel in kernels), sum(kernel.count for kernel in kernels)
    print(
        f"a step takes {wall / steps * 1e3:.3f} ms with the profiler; {launches / steps:.0f} kernels take "
        f"{total / steps / 1e3:.3f} ms"
    )
    for kernel in kernels[:25]:
        print(f"{kernel.self_device_time_total / steps:8.1f} µs {kernel.count / steps:6.1f} x  {kernel.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="small", choices=list(TRANSFORMERS))
    parser.add_argument("--cell", choices=["gru", "lstm"], help="compare a recurrent model with Joey NMT")
    parser.add_argument(
        "--score", default="additive", choices=["additive", "general"], help="score of the recurrent model"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="number of sentences")
    parser.add_argument("--source-length", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="number of tokens to generate")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--precision",
        default="float32",
        choices=["float32", "bf16"],
        help="precision of both models; with bf16, ties may be broken differently",
    )
    parser.add_argument("--alone", action="store_true", help="measure regard only")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step on a GPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ours, other = build_recurrent(args) if args.cell else build_transformers(args)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    ours.to(args.device, dtype)
    tokens = torch.randint(4, args.vocabulary, (args.batch_size, args.source_length), device=args.device)
    lengths = torch.randint(args.source_length // 2, args.source_length + 1, (args.batch_size,), device=args.device)
    source = Tokens(tokens, lengths.sort(descending=True).values)  # Joey NMT requires decreasing lengths
    job = Job(Tokens(tokens.masked_fill(~source.valid_BT, PAD), source.lengths_B), args.beam, args.tokens)
    searches = [build_search(ours, job)]
    if other is not None:
        other.to(args.device, dtype)
        other_search = build_joey_search(other, job) if args.cell else build_hugging_face_search(other, job)
        searches += [other_search] if args.device.startswith("cuda") else [other_search, without_onednn(other_search)]
    (our_time, our_output), *others = time_searches(searches, args.repeats, args.device)
    generated = args.batch_size * args.tokens
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    kind = f"{args.cell}, {args.score}" if args.cell else "Transformer"
    print(
        f"{device}; {kind} {args.size}, {args.precision}, V {args.vocabulary:,}, {args.batch_size} sentences, "
        f"beam {args.beam}, {args.tokens} tokens"
    )
    milliseconds = f"{our_time * 1e3:.1f} ms, {our_time / args.tokens * 1e3:.3f} a step"
    print(f"{'regard':<14}{generated / our_time:8.0f} tokens/s   {milliseconds}")
    if others:
        other_time, other_output = min(others, key=lambda timed: timed[0])
        name = "Joey NMT" if args.cell else "Hugging Face"
        print(f"{name:<14}{generated / other_time:8.0f} tokens/s   ratio {other_time / our_time:.2f}")
        same = int((our_output == other_output).all(1).sum())
        print(f"identical outputs: {same} of {args.batch_size}")
    if args.profile:
        print_profile(searches[0], args.tokens)


if __name__ == "__main__":
    main()
