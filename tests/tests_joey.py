"""The equations of Joey NMT, in modules with its names, and model folders in its format.

`benchmarks/joey_import.py` compares with Joey NMT itself.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.yaml_reader import dump_yaml

UNKNOWN, PAD, START, END = range(4)
WORDS = ["a", "dog", "sees", "the", "old", "▁x", "man", "green", "horse", "today."]


def embeddings(vocabulary: int, options: dict[str, Any]) -> Any:
    module: Any = nn.Module()
    module.lut = nn.Embedding(vocabulary, options["embeddings"]["embedding_dim"])
    module.scale = math.sqrt(options["embeddings"]["embedding_dim"]) if options["embeddings"]["scale"] else 1.0
    return module


class Recurrent(nn.Module):
    """p(y_t) = softmax(V tanh(W [s_t; c_t])), s_t = f(s_{t−1}, [y_{t−1}; tanh(W [s_{t−1}; c_{t−1}])])."""

    encoder: Any
    decoder: Any
    src_embed: Any
    trg_embed: Any

    def __init__(self, options: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        encoder, decoder = options["encoder"], options["decoder"]
        self.options, hidden, memory = decoder, decoder["hidden_size"], 2 * encoder["hidden_size"]
        self.src_embed, self.trg_embed = embeddings(vocabulary, encoder), embeddings(vocabulary, decoder)
        kinds = {"gru": nn.GRU, "lstm": nn.LSTM}
        size = encoder["embeddings"]["embedding_dim"]
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.rnn = kinds[encoder["rnn_type"]](
            size, encoder["hidden_size"], encoder["num_layers"], batch_first=True, bidirectional=True
        )
        inputs = size + (hidden if decoder["input_feeding"] else 0)
        self.decoder.rnn = kinds[decoder["rnn_type"]](inputs, hidden, decoder["num_layers"], batch_first=True)
        self.decoder.att_vector_layer = nn.Linear(hidden + memory, hidden)
        self.decoder.output_layer = nn.Linear(hidden, vocabulary, bias=False)
        self.decoder.attention = nn.Module()
        self.decoder.attention.key_layer = nn.Linear(memory, hidden, bias=False)
        if decoder["attention"] == "bahdanau":
            self.decoder.attention.query_layer = nn.Linear(hidden, hidden, bias=False)
            self.decoder.attention.energy_layer = nn.Linear(hidden, 1, bias=False)
        if decoder["init_hidden"] == "bridge":
            self.decoder.bridge_layer = nn.Linear(memory, hidden)

    def forward(self, source_S: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (T, V) and the attention weights (T, S)."""
        slots_1SD, state = self.encoder.rnn(self.src_embed.lut(source_S[None]) * self.src_embed.scale)
        last = state[0] if isinstance(state, tuple) else state
        hidden = self._begin(torch.cat([last[-2], last[-1]], dim=-1))
        keys_1SH = self.decoder.attention.key_layer(slots_1SD)
        vector, logits, weights = slots_1SD.new_zeros(1, 1, self.options["hidden_size"]), [], []
        for embedded_D in self.trg_embed.lut(target_T) * self.trg_embed.scale:
            x = embedded_D.view(1, 1, -1)
            x = torch.cat([x, vector], dim=-1) if self.options["input_feeding"] else x
            query, hidden = self.decoder.rnn(x, hidden)
            if self.options["attention"] == "bahdanau":
                energy = torch.tanh(self.decoder.attention.query_layer(query) + keys_1SH)
                scores = self.decoder.attention.energy_layer(energy).transpose(1, 2)
            else:
                scores = query @ keys_1SH.transpose(1, 2)
            weights.append(scores.softmax(-1)[0, 0])
            context = scores.softmax(-1) @ slots_1SD
            vector = torch.tanh(self.decoder.att_vector_layer(torch.cat([query, context], dim=-1)))
            logits.append(self.decoder.output_layer(vector)[0, 0])
        return torch.stack(logits), torch.stack(weights)

    def _begin(self, summary_1D: Tensor) -> Any:
        size, layers = self.options["hidden_size"], self.options["num_layers"]
        initial = {
            "bridge": lambda: torch.tanh(self.decoder.bridge_layer(summary_1D)),
            "last": lambda: summary_1D[:, :size],
            "zero": lambda: summary_1D.new_zeros(1, size),
        }[self.options["init_hidden"]]()
        state = initial[None].repeat(layers, 1, 1)
        return (state, state) if isinstance(self.decoder.rnn, nn.LSTM) else state


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_layer, self.v_layer, self.q_layer, self.output_layer = (nn.Linear(size, size) for _ in range(4))

    def forward(self, query_TD: Tensor, memory_SD: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for layer, x in ((self.q_layer, query_TD), (self.k_layer, memory_SD), (self.v_layer, memory_SD))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        weights = scores.softmax(-1)
        return self.output_layer((weights @ v).transpose(0, 1).flatten(1)), weights.mean(0)


class Layer(nn.Module):
    """A layer of the encoder, or with cross-attention of the decoder."""

    feed_forward: Any

    def __init__(self, options: dict[str, Any], *, cross: bool) -> None:
        super().__init__()
        size, self.pre = options["hidden_size"], options["layer_norm"] == "pre"
        activation = {"relu": nn.ReLU, "gelu": nn.GELU, "swish": nn.SiLU}[options["activation"]]
        self.names = ("trg_trg_att", "src_trg_att") if cross else ("src_src_att",)
        self.norms = ("x_layer_norm", "dec_layer_norm") if cross else ("layer_norm",)
        for name, norm in zip(self.names, self.norms, strict=True):
            self.add_module(name, Attention(size, options["num_heads"]))
            self.add_module(norm, nn.LayerNorm(size, eps=1e-6))
        self.feed_forward = nn.Module()
        self.feed_forward.layer_norm = nn.LayerNorm(size, eps=1e-6)
        self.feed_forward.pwff_layer = nn.Sequential(
            nn.Linear(size, options["ff_size"]), activation(), nn.Dropout(0), nn.Linear(options["ff_size"], size)
        )

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = x
        for name, norm in zip(self.names, self.norms, strict=True):
            attention, normalize = self.get_submodule(name), self.get_submodule(norm)
            query = normalize(x) if self.pre else x
            keys = memory if name == "src_trg_att" else query
            read, weights = attention(query, keys, causal=name == "trg_trg_att")
            x = x + read if self.pre else normalize(x + read)
        normalize = self.feed_forward.layer_norm
        output = self.feed_forward.pwff_layer(normalize(x) if self.pre else x) + x
        return output if self.pre else normalize(output), weights


class Transformer(nn.Module):
    encoder: Any
    decoder: Any
    src_embed: Any
    trg_embed: Any

    def __init__(self, options: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Module(), nn.Module()
        for name, side in (("encoder", self.encoder), ("decoder", self.decoder)):
            part = options[name]
            size = part["hidden_size"]
            side.layers = nn.ModuleList(Layer(part, cross=name == "decoder") for _ in range(part["num_layers"]))
            side.layer_norm = nn.LayerNorm(size, eps=1e-6) if part["layer_norm"] == "pre" else None
            side.pe = nn.Module()
            positions_PD = torch.zeros(1, 50, size)
            rates = torch.exp(torch.arange(0, size, 2) * -(math.log(10000.0) / size))
            angles = torch.arange(50)[:, None] * rates
            positions_PD[0, :, 0::2], positions_PD[0, :, 1::2] = angles.sin(), angles.cos()
            side.pe.register_buffer("pe", positions_PD)
        self.src_embed, self.trg_embed = (embeddings(vocabulary, options[name]) for name in ("encoder", "decoder"))
        if options["tied_embeddings"]:
            self.trg_embed.lut.weight = self.src_embed.lut.weight
        self.decoder.output_layer = nn.Linear(options["decoder"]["hidden_size"], vocabulary, bias=False)
        if options["tied_softmax"]:
            self.decoder.output_layer.weight = self.trg_embed.lut.weight

    def forward(self, source_S: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
        memory, _ = self._run(self.encoder, self.src_embed, source_S)
        output, weights = self._run(self.decoder, self.trg_embed, target_T, memory)
        return self.decoder.output_layer(output), weights

    def _run(self, side: Any, embedding: Any, tokens: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = embedding.lut(tokens) * embedding.scale + side.pe.pe[0, : len(tokens)]
        weights = x
        for layer in side.layers:
            x, weights = layer(x, memory)
        return (x if side.layer_norm is None else side.layer_norm(x)), weights


def make_model(path: Path, model: dict[str, Any], side: dict[str, Any] | None = None) -> nn.Module:
    """Write the folder of a model with random weights, and return its network."""
    torch.manual_seed(0)
    tokens = ["<unk>", "<pad>", "<s>", "</s>", *WORDS]
    network = (Recurrent if model["encoder"]["type"] == "recurrent" else Transformer)(model, len(tokens))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    path.mkdir()
    languages = {name: {"lang": name, "level": "word", **(side or {})} for name in ("src", "trg")}
    (path / "config.yaml").write_text(dump_yaml({"name": "test", "data": languages, "model": model, "training": {}}))
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (path / name).write_text("".join(f"{token}\n" for token in tokens))
    state = {"model_state": network.state_dict(), "optimizer_state": {}, "train_iter_state": torch.get_rng_state()}
    torch.save({**state, "stats_state": {"steps": 7, "best_ckpt_score": math.inf}}, path / "7.ckpt")
    (path / "best.ckpt").symlink_to("7.ckpt")
    return network.eval()


@torch.no_grad()
def translate(network: nn.Module, source: list[int], limit: int) -> list[int]:
    """Greedy search. Like ours, it does not generate special tokens."""
    target = [START]
    while len(target) <= limit:
        logits_V = network(torch.tensor(source), torch.tensor(target))[0][-1]
        logits_V[[UNKNOWN, PAD, START]] = -torch.inf
        target.append(int(logits_V.argmax()))
        if target[-1] == END:
            break
    return [token for token in target[1:] if token != END]
