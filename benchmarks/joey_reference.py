"""Train small models with Joey NMT, and write what they compute. Run by `joey_import.py` with the Python of an
environment that has joeynmt 2.3; it imports nothing of regard.

    python joey_reference.py FOLDER MODEL …     # FOLDER contains train, dev and test pairs: train.en, train.de, …

For each model, FOLDER/MODEL is the model folder of Joey NMT, and FOLDER/MODEL.pt contains the greedy and the beam
outputs for the test sources, and the attention weights and log-probabilities of the test targets.
"""

import argparse
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import yaml
from joeynmt.config import load_config, parse_global_args
from joeynmt.prediction import predict, prepare
from joeynmt.training import train

RECURRENT = {
    "encoder": {"type": "recurrent", "rnn_type": "gru", "hidden_size": 24, "num_layers": 1, "dropout": 0.0,
                "bidirectional": True, "embeddings": {"embedding_dim": 32, "scale": False}},
    "decoder": {"type": "recurrent", "rnn_type": "gru", "hidden_size": 32, "num_layers": 1, "dropout": 0.0,
                "attention": "bahdanau", "init_hidden": "bridge", "input_feeding": True,
                "embeddings": {"embedding_dim": 32, "scale": False}},
}  # fmt: skip
TRANSFORMER = {
    "tied_embeddings": False, "tied_softmax": False, "initializer": "xavier_uniform",
    "embed_initializer": "xavier_uniform",
    "encoder": {"type": "transformer", "hidden_size": 32, "ff_size": 64, "num_layers": 2, "num_heads": 4,
                "dropout": 0.0, "layer_norm": "pre", "embeddings": {"embedding_dim": 32, "scale": True}},
    "decoder": {"type": "transformer", "hidden_size": 32, "ff_size": 64, "num_layers": 2, "num_heads": 4,
                "dropout": 0.0, "layer_norm": "pre", "embeddings": {"embedding_dim": 32, "scale": True}},
}  # fmt: skip

WORD, CHAR = {"level": "word"}, {"level": "char"}
SENTENCEPIECE = {"level": "bpe", "tokenizer_type": "sentencepiece", "tokenizer_cfg": {"model_file": "unigram.model"}}
SENTENCEPIECE_BPE = {"level": "bpe", "tokenizer_type": "sentencepiece", "tokenizer_cfg": {"model_file": "bpe.model"}}


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: (model, changes, settings of source and target)
    "gru-bahdanau": (RECURRENT, {}, WORD),
    "gru-luong": (RECURRENT, {"decoder.attention": "luong"}, {**CHAR, "lowercase": True}),
    "gru-2-layers": (
        RECURRENT,
        {"encoder.num_layers": 2, "decoder.num_layers": 2, "decoder.input_feeding": False},
        SENTENCEPIECE,
    ),
    "lstm-bahdanau": (
        RECURRENT,
        {"encoder.rnn_type": "lstm", "decoder.rnn_type": "lstm", "encoder.num_layers": 2, "decoder.num_layers": 2},
        CHAR,
    ),
    "lstm-luong-zero": (
        RECURRENT,
        {
            "encoder.rnn_type": "lstm",
            "decoder.rnn_type": "lstm",
            "decoder.attention": "luong",
            "decoder.init_hidden": "zero",
            "decoder.embeddings.scale": True,
        },
        {**WORD, "normalize": True},
    ),
    "lstm-last": (
        RECURRENT,
        {
            "encoder.rnn_type": "lstm",
            "decoder.rnn_type": "lstm",
            "decoder.num_layers": 2,
            "encoder.hidden_size": 32,
            "decoder.init_hidden": "last",
            "decoder.input_feeding": False,
        },
        {**SENTENCEPIECE_BPE, "voc_file": "bpe.txt"},
    ),
    "gru-tied": (
        RECURRENT,
        {"tied_embeddings": True, "tied_softmax": True},
        {**SENTENCEPIECE, "voc_file": "joint.txt"},
    ),
    "transformer-pre": (TRANSFORMER, {}, WORD),
    "transformer-post": (
        TRANSFORMER,
        {"encoder.layer_norm": "post", "decoder.layer_norm": "post", "tied_softmax": True, "decoder.num_layers": 1},
        {**WORD, "lowercase": True, "normalize": True},
    ),
    "transformer-tied": (
        TRANSFORMER,
        {"tied_embeddings": True, "tied_softmax": True, "encoder.activation": "gelu", "decoder.activation": "gelu"},
        {**SENTENCEPIECE, "voc_file": "joint.txt"},
    ),
    "transformer-unscaled": (
        TRANSFORMER,
        {
            "encoder.embeddings.scale": False,
            "decoder.embeddings.scale": False,
            "tied_softmax": True,
            "encoder.num_heads": 2,
            "encoder.ff_size": 48,
            "encoder.activation": "swish",
        },
        {**SENTENCEPIECE_BPE, "voc_file": "bpe.txt"},
    ),
}


def _change(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a tree with the values at some dotted keys replaced."""
    copied = {key: _change(value, {}) if isinstance(value, dict) else value for key, value in tree.items()}
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = copied
        for parent in parents:
            node = node[parent]
        node[last] = value
    return copied


def _write_tokenizers(folder: Path, size: int) -> None:
    """Learn SentencePiece models from both languages, and write their pieces as vocabularies."""
    files = [str(folder / f"train.{language}") for language in ("en", "de")]
    for kind in ("unigram", "bpe"):
        sentencepiece.SentencePieceTrainer.train(
            input=files, model_prefix=str(folder / kind), model_type=kind, vocab_size=size, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
    for name, kind in (("joint.txt", "unigram"), ("bpe.txt", "bpe")):  # all pieces, the same for source and target
        lines = (folder / f"{kind}.vocab").read_text(encoding="utf-8").splitlines()[3:]
        (folder / name).write_text("".join(f"{line.split(chr(9))[0]}\n" for line in lines), encoding="utf-8")


def _configure(folder: Path, name: str, steps: int) -> Path:
    model, changes, side = MODELS[name]
    side = _change(side, {})
    options = side.get("tokenizer_cfg", {})
    for key in ("model_file",):
        if key in options:
            options[key] = str(folder / options[key])
    if "voc_file" in side:
        side["voc_file"] = str(folder / side["voc_file"])
    config = {
        "name": name,
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / name),
        "use_cuda": False,
        "data": {
            **{split: str(folder / split) for split in ("train", "dev", "test")},
            "dataset_type": "plain",
            "src": {"lang": "en", "max_length": 100, **_change(side, {})},
            "trg": {"lang": "de", "max_length": 100, **_change(side, {})},
        },
        "model": _change(model, changes),
        "training": {
            "optimizer": "adam", "scheduling": "warmupinversesquareroot", "learning_rate_warmup": 20,
            "learning_rate": 0.005, "batch_size": 32, "epochs": 1000, "updates": steps,
            "validation_freq": steps, "logging_freq": steps, "early_stopping_metric": "loss", "overwrite": True,
        },
        "testing": {"max_output_length": 80},
    }  # fmt: skip
    (folder / name).mkdir()
    path = folder / name / "config.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    return path


def _compute(path: Path, folder: Path, name: str) -> None:
    """Write the outputs of a trained model."""
    args = parse_global_args(load_config(str(path)), mode="test")
    model, _, _, data = prepare(args, rank=0, mode="test")
    model.eval()
    results: dict[str, Any] = {}
    common = {"max_output_length": 80, "generate_unk": False, "batch_size": 100}
    searches = {
        "greedy": {"beam_size": 1},
        "beam": {"beam_size": 5, "beam_alpha": 0.0},
        "alpha": {"beam_size": 5, "beam_alpha": 0.6},
    }
    for search, options in searches.items():
        output = predict(
            model=model, data=data, device=torch.device("cpu"), n_gpu=0, compute_loss=False,
            args=args.test._replace(**{**common, **options}), autocast={"device_type": "cpu", "enabled": False},
        )  # fmt: skip
        results[search] = output[2]
    results["forced"] = []
    for batch in data.make_iter(
        batch_size=1, batch_type="sentence", shuffle=False, eos_index=model.eos_index, pad_index=model.pad_index
    ):
        with torch.no_grad():
            logits, _, weights, _ = model._encode_decode(**vars(batch), return_attention=True)
        log_p = logits.log_softmax(-1).gather(-1, batch.trg.unsqueeze(-1)).squeeze(-1)
        results["forced"].append((batch.src[0].tolist(), batch.trg[0].tolist(), weights[0], log_p[0]))
    torch.save(results, folder / f"{name}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--vocabulary", type=int, default=300)
    options = parser.parse_args()
    folder = options.folder.resolve()
    _write_tokenizers(folder, options.vocabulary)
    for name in options.models:
        path = _configure(folder, name, options.steps)
        train(0, 1, load_config(str(path)), skip_test=True)
        _compute(path, folder, name)


if __name__ == "__main__":
    main()
