"""How fast is beam search? A Transformer with random weights against Hugging Face's MarianMTModel.generate on the same
weights, in one run; the answers must be the same.

    python benchmarks/decoding.py                                          # CPU, a small model
    python benchmarks/decoding.py --device cuda --size base --rows 64      # 6+6 layers, 512 wide, V 32k

Needs `pip install transformers`. Both are made to say exactly `--tokens` tokens, so that both do the same work.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import resolve
from regard.data.tokenizers import END, PAD, START, UNKNOWN
from regard.decoding.beam import BeamOptions, beam
from regard.decoding.rules import NotBefore
from regard.decoding.search import Symbols
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import TransformerModel

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"size": 128, "heads": 4, "layers": 2, "feedforward": 256},
    "small": {"size": 256, "heads": 4, "layers": 3, "feedforward": 1024},
    "base": {"size": 512, "heads": 8, "layers": 6, "feedforward": 2048},
}


@torch.no_grad()
def marian(model: Seq2Seq, settings: TransformerModel, vocabulary: int, positions: int) -> Any:
    """Hugging Face's model with our weights. Its position table has all sines before all cosines where ours alternate,
    so every vector of width d is put into that order.
    """
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary, d_model=settings.size, encoder_layers=settings.layers, decoder_layers=settings.layers,
        encoder_attention_heads=settings.heads, decoder_attention_heads=settings.heads,
        encoder_ffn_dim=settings.feedforward, decoder_ffn_dim=settings.feedforward, activation_function="relu",
        dropout=0.0, max_position_embeddings=positions, scale_embedding=True, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=START, share_encoder_decoder_embeddings=True, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = MarianMTModel(config).eval()
    order = torch.cat([torch.arange(0, settings.size, 2), torch.arange(1, settings.size, 2)])
    names = {
        "attention": "self_attn", "self_attention": "self_attn", "cross_attention": "encoder_attn",
        "to_query": "q_proj", "to_key": "k_proj", "to_value": "v_proj", "output": "out_proj",
        "feedforward": "", "inner": "fc1", "outer": "fc2", "norm": "",
        "after_attention": "self_attn_layer_norm", "after_self": "self_attn_layer_norm",
        "after_cross": "encoder_attn_layer_norm", "after_feedforward": "final_layer_norm",
    }  # fmt: skip
    found = dict(theirs.named_parameters())
    for side in ("encoder", "decoder"):
        for name, tensor in getattr(model, side).layers.named_parameters():
            path = ".".join(part for part in (names.get(part, part) for part in name.split(".")) if part)
            outward = not any(f".{part}." in f".{path}." for part in ("q_proj", "k_proj", "v_proj", "fc1"))
            inward = tensor.dim() == 2 and not any(f".{part}." in f".{path}." for part in ("out_proj", "fc2"))
            moved = tensor[order] if outward else tensor
            found[f"model.{side}.layers.{path}"].copy_(moved[:, order] if inward else moved)
    found["model.shared.weight"].copy_(model.decoder.embedding.tokens.weight[:, order])  # type: ignore[union-attr, index]
    return theirs


def seconds(run: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    best, found = float("inf"), run()
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        found = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--source", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    settings = resolve(TransformerModel, {**SIZES[args.size], "dropout": 0.0, "tied": "all"}, {})
    ours = build_model(settings, args.vocabulary, args.vocabulary).eval()
    with torch.no_grad():
        for module in ours.modules():  # weights that are not all alike
            if isinstance(module, nn.Linear):
                module.weight.mul_(1.5)
    theirs = marian(ours, settings, args.vocabulary, args.source + args.tokens + 8).to(args.device)
    ours = ours.to(args.device)
    tokens = torch.randint(4, args.vocabulary, (args.rows, args.source), device=args.device)
    lengths = torch.randint(args.source // 2, args.source + 1, (args.rows,), device=args.device)
    source = Padded(tokens, lengths)
    source = source._replace(tokens_BT=tokens.masked_fill(~source.valid_BT, PAD))
    never = (PAD, UNKNOWN, START)
    limits = torch.full((args.rows,), args.tokens, device=args.device)
    options = BeamOptions(args.beam, 1, length_penalty=0.0)

    @torch.inference_mode()
    def our_search() -> Tensor:
        rules = [NotBefore(END, args.tokens)]
        found = beam(ours.decoder, ours.encoder(source), Symbols(START, END, never), limits, options, rules)
        return torch.tensor([answers[0].tokens for answers in found])

    @torch.inference_mode()
    def their_search() -> Tensor:
        found = theirs.generate(
            input_ids=source.tokens_BT, attention_mask=source.valid_BT.long(), num_beams=args.beam, do_sample=False,
            max_new_tokens=args.tokens, min_new_tokens=args.tokens, length_penalty=0.0, early_stopping=False,
            suppress_tokens=list(never),
        )  # fmt: skip
        return torch.as_tensor(found)[:, 1 : args.tokens + 1].cpu()

    our_time, our_answers = seconds(our_search, args.repeats)
    their_time, their_answers = seconds(their_search, args.repeats)
    same = int((our_answers == their_answers).all(1).sum())
    made = args.rows * args.tokens
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(
        f"{device}; {args.size}, V {args.vocabulary:,}, {args.rows} sentences, beam {args.beam}, {args.tokens} tokens"
    )
    print(f"regard        {made / our_time:8.0f} tokens/s")
    print(f"Hugging Face  {made / their_time:8.0f} tokens/s   ratio {their_time / our_time:.2f}")
    print(f"the same answers: {same} of {args.rows}")


if __name__ == "__main__":
    main()
