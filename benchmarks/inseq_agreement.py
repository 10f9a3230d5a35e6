"""Do our attributions equal those of Inseq? Needs `pip install inseq` (0.7) and transformers.

    python benchmarks/inseq_agreement.py
    python benchmarks/inseq_agreement.py --steps 300 --texts "3 mai 2009" "May 3, 2009"

Trains a small Transformer on dates, and copies its weights into Hugging Face's MarianMTModel. Inseq attributes log p of
each token of our prediction to the source by integrated gradients, from the embedding of the unknown token in both
libraries, and by gradient × input. Prints the largest difference between the scores of both libraries.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
from peers import marian
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN
from regard.formatting import table
from regard.models.settings import TransformerModel

TEXTS = ("3 mai 2009", "Sunday, May 3, 2009", "14. Juli 1989")
METHODS = {"integrated_gradients": "integrated_gradients", "gradient_x_input": "input_x_gradient"}
"""Our methods, and the names that Inseq has for them."""
TOLERANCE = 1e-4
INTEGRATION_STEPS = 32

SETTINGS: dict[str, Any] = {
    "model": {"kind": "transformer", "size": 64, "heads": 4, "layers": 2, "feedforward": 128, "dropout": 0.0,
              "tied": "all", "positions": "sinusoidal", "norm": "post"},
    "tokenizer.shared": True, "data.train": 4000, "data.dev": 100, "data.test": 100, "training.learning_rate": 0.002,
    "training.validate_every": 100,
}  # fmt: skip


def train(folder: Path, steps: int) -> regard.Model:
    """Train a Transformer whose weights fit into Marian."""
    overrides = {**SETTINGS, "training.steps": steps, "training.warmup": steps // 5}
    return regard.load(regard.train("dates", overrides, out=folder / "run", quiet=True).path)


def build_tokenizer(model: regard.Model) -> Any:
    """Return our vocabulary of characters as a tokenizer of Hugging Face."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ours = model.predictor.tokenizer
    vocabulary = ours.tokens(range(len(ours)))
    tokens = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token=vocabulary[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    names = {"pad_token": PAD, "eos_token": END, "bos_token": START, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{name: vocabulary[number] for name, number in names.items()}
    )


def build_peer(model: regard.Model) -> Any:
    """Build Hugging Face's model with our weights. Inseq passes embeddings, which its decoder would scale twice.
    Therefore, the embedding weights are multiplied by the scale, and the scale is set to 1.
    """
    settings = model.settings.model
    assert isinstance(settings, TransformerModel)
    peer = marian(model.network, settings, len(model.predictor.tokenizer), 128)
    encoder, decoder = peer.model.encoder, peer.model.decoder
    embedding = nn.Embedding.from_pretrained(peer.lm_head.weight.detach() * encoder.embed_scale)
    peer.model.shared = encoder.embed_tokens = decoder.embed_tokens = embedding
    encoder.embed_scale = decoder.embed_scale = 1.0
    return peer


def attribute_with_inseq(peer: Any, tokenizer: Any, method: str, source: str, target: str) -> Tensor:
    """Return the scores of Inseq: a row for each target token, a column for each source token."""
    import inseq

    options = {"n_steps": INTEGRATION_STEPS} if method == "integrated_gradients" else {}
    output = inseq.load_model(peer, method, tokenizer=tokenizer, device="cpu").attribute(
        source,
        target,
        attributed_fn="probability",
        logprob=True,
        include_eos_baseline=True,
        show_progress=False,
        **options,
    )
    scores_STD = output.sequence_attributions[0].source_attributions
    scores_ST: Tensor = scores_STD.nan_to_num().sum(-1)
    return scores_ST.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--texts", nargs="+", default=TEXTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = train(Path(folder), args.steps)
    tokenizer = build_tokenizer(model)
    peer = build_peer(model)
    rows, largest = [], 0.0
    for text in args.texts:
        for ours, theirs in METHODS.items():
            options = {"baseline": "unknown", "integration_steps": INTEGRATION_STEPS} if "integrated" in ours else {}
            attribution = model.attribute(text, method=ours, **options)
            scores_TS = attribute_with_inseq(peer, tokenizer, theirs, text, attribution.prediction.text)
            difference = (torch.as_tensor(attribution.scores) - scores_TS).abs().max().item()
            largest = max(largest, difference)
            rows.append([text, ours, f"{scores_TS.abs().max():.3f}", f"{difference:.1e}"])
    print(table(["text", "method", "largest score", "largest difference"], rows))
    if not largest < TOLERANCE:
        sys.exit(f"The scores differ by more than {TOLERANCE:g}.")


if __name__ == "__main__":
    main()
