"""How fast is beam search? Models with random weights against those of others on the same weights, in one run; the
answers must be the same.

    python benchmarks/decoding.py                                          # a small Transformer against Hugging Face
    python benchmarks/decoding.py --size base --rows 64 --tokens 64 --vocabulary 32000 --repeats 1
    python benchmarks/decoding.py --device cuda --size base --rows 64 --tokens 64 --vocabulary 32000
    python benchmarks/decoding.py --cell lstm --score additive             # a recurrent model against Joey NMT

The Transformer is compared with MarianMTModel.generate (`pip install transformers`); the recurrent model, in Luong's
order with input feeding, with Joey NMT's (`pip install joeynmt`), which knows that order alone, with an additive or a
general score. All are made to say exactly `--tokens` tokens, so that all do the same work. On a CPU with one thread the
processor's seconds are counted, so that a busy machine changes little.
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
from regard.decoding.beam import BeamOptions, beam
from regard.decoding.rules import NotBefore
from regard.decoding.search import Symbols
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import RecurrentModel, TransformerModel

NEVER = (PAD, UNKNOWN, START)
TRANSFORMERS: dict[str, dict[str, int]] = {
    "tiny": {"size": 128, "heads": 4, "layers": 2, "feedforward": 256},
    "small": {"size": 256, "heads": 4, "layers": 3, "feedforward": 1024},
    "base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048},
}
RECURRENT = {"tiny": 128, "small": 256, "base": 512}
"""The width of embeddings, of each direction of the encoder, and half that of the decoder's state."""

Search = Callable[[], Tensor]


class Job(NamedTuple):
    """What both are given, and how much they must say."""

    source: Padded
    beam: int
    tokens: int


def searching(model: Seq2Seq, job: Job) -> Search:
    """Our search, to the tokens of the best answers."""
    limits = torch.full((len(job.source.lengths_B),), job.tokens, device=job.source.lengths_B.device)
    options = BeamOptions(job.beam, 1, length_penalty=0.0)
    rules = [NotBefore(END, job.tokens)]

    @torch.inference_mode()
    def run() -> Tensor:
        found = beam(model.decoder, model.encoder(job.source), Symbols(START, END, NEVER), limits, options, rules)
        return torch.tensor([answers[0].tokens for answers in found])

    return run


def hugging_face(theirs: Any, job: Job) -> Search:
    @torch.inference_mode()
    def run() -> Tensor:
        found = theirs.generate(
            input_ids=job.source.tokens_BT, attention_mask=job.source.valid_BT.long(), num_beams=job.beam,
            do_sample=False, max_new_tokens=job.tokens, min_new_tokens=job.tokens, length_penalty=0.0,
            early_stopping=False, suppress_tokens=list(NEVER),
        )  # fmt: skip
        return torch.as_tensor(found)[:, 1 : job.tokens + 1].cpu()

    return run


def joey_nmt(theirs: Any, job: Job) -> Search:
    from joeynmt.search import beam_search

    mask = job.source.valid_BT.unsqueeze(1)

    @torch.inference_mode()
    def run() -> Tensor:
        slots, last, _, _ = theirs(
            return_type="encode", src=job.source.tokens_BT, src_length=job.source.lengths_B, src_mask=mask
        )
        found, _, _ = beam_search(
            theirs, job.beam, slots, last, mask, job.tokens, alpha=0.0, min_output_length=job.tokens, generate_unk=False
        )
        return torch.as_tensor(found)

    return run


def transformers(args: argparse.Namespace) -> tuple[Seq2Seq, Any]:
    settings = resolve(TransformerModel, {**TRANSFORMERS[args.size], "dropout": 0.0, "tied": "all"}, {})
    ours = build_model(settings, args.vocabulary, args.vocabulary).eval()
    _sharpen(ours)
    return ours, marian(ours, settings, args.vocabulary, args.source + args.tokens + 8)


def recurrent(args: argparse.Namespace) -> tuple[Seq2Seq, Any]:
    width = RECURRENT[args.size]
    decoder = {"cell": args.cell, "hidden": 2 * width, "order": "luong"}
    sides = {"encoder": {"cell": args.cell, "hidden": width}, "decoder": decoder, "attention": {"score": args.score}}
    settings = resolve(RecurrentModel, {"embedding": width, "dropout": 0.0, **sides}, {})
    ours = build_model(settings, args.vocabulary, args.vocabulary).eval()
    _sharpen(ours)
    return ours, joey(ours, settings, args.vocabulary)


@torch.no_grad()
def _sharpen(model: Seq2Seq) -> None:
    """Weights that are not all alike."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.mul_(1.5)


def seconds(searches: list[Search], repeats: int, device: str) -> list[tuple[float, Tensor]]:
    """The best time of each, taken in turn, and what it found; the first run of each is not counted."""
    cuda = device.startswith("cuda")
    clock = time.process_time if not cuda and torch.get_num_threads() == 1 else time.perf_counter
    best = [(float("inf"), search()) for search in searches]
    for _ in range(repeats):
        for index, search in enumerate(searches):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            found = search()
            if cuda:
                torch.cuda.synchronize()
            best[index] = (min(best[index][0], clock() - start), found)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="small", choices=list(TRANSFORMERS))
    parser.add_argument("--cell", choices=["gru", "lstm"], help="a recurrent model, against Joey NMT")
    parser.add_argument("--score", default="additive", choices=["additive", "general"], help="of a recurrent model")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--source", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--precision", default="float32", choices=["float32", "bf16"], help="of both; bf16 differs in ties"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ours, theirs = recurrent(args) if args.cell else transformers(args)
    if args.precision == "bf16":
        ours, theirs = ours.bfloat16(), theirs.bfloat16()
    ours, theirs = ours.to(args.device), theirs.to(args.device)
    tokens = torch.randint(4, args.vocabulary, (args.rows, args.source), device=args.device)
    lengths = torch.randint(args.source // 2, args.source + 1, (args.rows,), device=args.device)
    source = Padded(tokens, lengths.sort(descending=True).values)  # Joey NMT wants the longest first
    job = Job(source._replace(tokens_BT=tokens.masked_fill(~source.valid_BT, PAD)), args.beam, args.tokens)
    peer = joey_nmt(theirs, job) if args.cell else hugging_face(theirs, job)
    (our_time, our_answers), (their_time, their_answers) = seconds(
        [searching(ours, job), peer], args.repeats, args.device
    )
    same = int((our_answers == their_answers).all(1).sum())
    made = args.rows * args.tokens
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    kind = f"{args.cell}, {args.score}" if args.cell else "Transformer"
    print(
        f"{device}; {kind} {args.size}, {args.precision}, V {args.vocabulary:,}, {args.rows} sentences, "
        f"beam {args.beam}, {args.tokens} tokens"
    )
    name = "Joey NMT" if args.cell else "Hugging Face"
    print(f"{'regard':<14}{made / our_time:8.0f} tokens/s")
    print(f"{name:<14}{made / their_time:8.0f} tokens/s   ratio {their_time / our_time:.2f}")
    print(f"the same answers: {same} of {args.rows}")


if __name__ == "__main__":
    main()
