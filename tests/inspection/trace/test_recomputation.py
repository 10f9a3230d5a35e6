"""The weights in the document of a trace are recomputed from its queries and keys, with numpy and the equations of
`docs/trace-document.md` alone. The states of recurrent cells follow from their gates.

T queries, S slots, D width, H heads.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import example_parts  # noqa: F401 - registers parts, which are traced too
import numpy as np
import pytest
from numpy.typing import NDArray

import regard
from regard.recurrent.settings import VARIANTS
from tests_shared import build_untrained, thin

Array = Any
"""An array of float64. The stubs of numpy do not know the result of `einsum`."""

SOURCE = "abcdefghijkl"
RECURRENT = {"kind": "recurrent", "embedding": 6, "encoder": {"hidden": 8}, "decoder": {"hidden": 16}}
TRANSFORMER = {"kind": "transformer", "size": 16, "heads": 2, "layers": 2, "feedforward": 12}


def configurations() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every mechanism; every score with every scope and selection that it can be combined with; the Transformer."""
    for mechanism in regard.mechanisms():
        yield mechanism.name, RECURRENT, {"attention": mechanism.name}
    scores: list[Any] = ["dot", "scaled_dot", "general", "additive", "concat", "cosine", "location", "projected"]
    scores += ["location_aware", {"kind": "location_aware", "features": "sum"}, {"kind": "projected", "scaled": False}]
    scopes: list[Any] = ["global", {"kind": "local_m", "window": 2}, {"kind": "local_p", "window": 3}]
    scopes += [{"kind": "local_p", "window": 4, "normalize": True}, {"kind": "local_p", "scaled": False}]
    scopes += [{"kind": "all_of", "scopes": [{"kind": "local_m", "window": 4}, {"kind": "local_p", "window": 4}]}]
    selections = ["softmax", "hard", "hard_exact", "hard_monotonic", "straight_through", "sparsemax", "entmax15"]
    for score in scores:
        yield f"{score}", RECURRENT, {"attention": {"score": score}}
        yield f"{score} with heads", RECURRENT, {"attention": {"score": score, "heads": 2}}
        yield f"{score} transformer", TRANSFORMER, dict.fromkeys(["encoder_score", "self_score", "cross_score"], score)
    for scope in scopes[1:]:
        for select in selections:
            if select != "hard_monotonic":  # restricts the slots itself
                attention = {"score": "general", "scope": scope, "select": select}
                yield f"{scope} {select}", RECURRENT, {"attention": attention, "decoder.order": "luong"}
    for select in selections:
        yield f"{select}", RECURRENT, {"attention": {"score": "location_aware", "select": select}}
    tapes: list[dict[str, Any]] = [
        {"decoder.fusion": "deep"},
        {"encoder.cell.score": "general", "encoder.reverse": True},
    ]
    for options in tapes:
        yield f"lstmn {options}", {**RECURRENT, "kind": "lstmn"}, {**options, "decoder.intra_attention": "cosine"}
    for options in ({"positions": "rotary"}, {"positions": "learned", "norm": "pre"}, {"decoder_layers": 1}):
        yield f"transformer {options}", TRANSFORMER, options


MODELS = {
    name: (base, changes)
    for name, base, changes in configurations()
    # Self-attention of a Transformer has no past.
    if not ("transformer" in name and "location_aware" in name)
}
MODELS["location_aware transformer"] = (TRANSFORMER, {"cross_score": "location_aware"})


def save(model: regard.Model, path: Path, **options: Any) -> dict[str, Any]:
    """Trace a prediction, and return the saved document."""
    model.trace(SOURCE, min_length=4, **options).save(path / "trace.json")
    document: dict[str, Any] = json.loads((path / "trace.json").read_text("utf-8"))
    return document


def read(entry: Mapping[str, Any]) -> Any:
    data = np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(entry["shape"])
    return data.astype(np.float64) if data.dtype.kind == "f" else data


def split(x_ND: Array, heads: int) -> Array:
    """(N, D) → (H, N, D / H)."""
    return x_ND.reshape(len(x_ND), heads, -1).transpose(1, 0, 2)


def normalize(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Recomputed:
    """The scores, masks and weights of one attention, recomputed from its entry and its mechanism."""

    def __init__(self, entry: Mapping[str, Any], mechanism: Mapping[str, Any]) -> None:
        self.inputs = {name: read(array) for name, array in entry["inputs"].items()}
        self.parameters = {name: read(array) for name, array in mechanism["parameters"].items()}
        self.mechanism, self.heads = mechanism, mechanism["heads"]
        self.query_TD, self.key_SD = self.inputs["query"], self.inputs["key"]
        self.query_HTD, self.key_HSD = split(self.query_TD, self.heads), split(self.key_SD, self.heads)

    def scores(self) -> Array:
        kind = self.mechanism["score"]["kind"]
        compute: dict[str, Callable[[], Array]] = {
            "dot": lambda: self._product(self.query_HTD, self.key_HSD),
            "scaled_dot": lambda: self._product(self.query_HTD, self.key_HSD) / np.sqrt(self.query_HTD.shape[-1]),
            "general": lambda: self._product(self.query_HTD, self._project("score.key.weight", self.key_HSD)),
            "cosine": self._cosine,
            "projected": self._projected,
            "additive": lambda: self._additive(self._project("score.query.weight", self.query_HTD)),
            "location_aware": lambda: self._additive(self._project("score.query.weight", self.query_HTD)),
            "concat": self._concat,
            "location": lambda: self._project("score.positions.weight", self.query_HTD)[..., : len(self.key_SD)],
            "manhattan": self._manhattan,
        }
        return compute[kind]()

    def _product(self, left_HTD: Array, right_HSD: Array) -> Array:
        return np.einsum("htd,hsd->hts", left_HTD, right_HSD)

    def _project(self, name: str, x_HND: Array) -> Array:
        return np.einsum("had,hnd->hna", self.parameters[name], x_HND)

    def _cosine(self) -> Array:
        cosine = self._product(normalize(self.query_HTD), normalize(self.key_HSD))
        return np.exp(self.parameters["score.log_sharpening"]) * cosine

    def _projected(self) -> Array:
        query = split(self.query_TD @ self.parameters["score.to_query.weight"].T, self.heads)
        key = split(self.key_SD @ self.parameters["score.to_key.weight"].T, self.heads)
        scale = np.sqrt(query.shape[-1]) if self.mechanism["score"]["scaled"] else 1.0
        return self._product(query, key) / scale

    def _additive(self, query_HTA: Array) -> Array:
        hidden = query_HTA[:, :, None] + self._project("score.key.weight", self.key_HSD)[:, None]
        if "past" in self.inputs:
            hidden = hidden + self._location()
        return np.einsum("htsa,ha->hts", np.tanh(hidden), self.parameters["score.v"])

    def _location(self) -> Array:
        """V (F ∗ a₋): a convolution over the previous weights, with zeros outside."""
        filters_CK = self.parameters["score.convolution.weight"][:, 0]
        reach = filters_CK.shape[1] // 2
        padded_HTS = np.pad(self.inputs["past"], ((0, 0), (0, 0), (reach, reach)))
        windows = np.lib.stride_tricks.sliding_window_view(padded_HTS, filters_CK.shape[1], axis=-1)
        features_HTSC = np.einsum("htsk,ck->htsc", windows, filters_CK)
        return np.einsum("htsc,hac->htsa", features_HTSC, self.parameters["score.place.weight"])

    def _concat(self) -> Array:
        both_HAD, width = self.parameters["score.both.weight"], self.key_HSD.shape[-1]
        key = np.einsum("had,hsd->hsa", both_HAD[..., :width], self.key_HSD)
        query = np.einsum("had,htd->hta", both_HAD[..., width:], self.query_HTD)
        return np.einsum("htsa,ha->hts", np.tanh(query[:, :, None] + key[:, None]), self.parameters["score.v"])

    def _manhattan(self) -> Array:
        distance = np.abs(self.query_HTD[:, :, None] - self.key_HSD[:, None]).sum(-1)
        return -self.parameters["score.gamma"] * distance

    def scope(self) -> tuple[NDArray[np.bool_], Array, Array]:
        """Return the mask, the bias and the factor of the scope."""
        return self._scope(self.mechanism["scope"], "scope.")

    def _scope(self, scope: Mapping[str, Any], prefix: str) -> tuple[NDArray[np.bool_], Array, Array]:
        steps_T1, slots_S = self.inputs["position"][:, None], np.arange(len(self.key_SD))
        visible = np.ones((len(steps_T1), len(slots_S)), bool)
        bias, factor = np.zeros(visible.shape), np.ones(visible.shape)
        match scope["kind"]:
            case "causal":
                # Slot j is that of query j. An encoder that reads backward counts positions from the end of the source.
                position_S = self.inputs["position"]
                visible = position_S < steps_T1 if scope["strict"] else position_S <= steps_T1
            case "local_m":
                visible = np.abs(slots_S - steps_T1) <= scope["window"]
            case "local_p":
                inner, outer = (self.parameters[f"{prefix}{name}.weight"] for name in ("inner", "outer"))
                argument_T1 = np.tanh(self.query_TD @ inner.T) @ outer.T
                scale = self.query_TD.shape[1] ** -0.5 if scope["scaled"] else 1.0
                fraction_T1 = 1 / (1 + np.exp(-scale * argument_T1))
                distance_TS = slots_S - len(slots_S) * fraction_T1
                visible = np.abs(distance_TS) <= scope["window"]
                log_gauss = -(distance_TS**2) / (2 * (scope["window"] / 2) ** 2)
                bias, factor = (log_gauss, factor) if scope["normalize"] else (bias, np.exp(log_gauss))
            case "all_of":
                for index, part in enumerate(scope["scopes"]):
                    other = self._scope(part, f"{prefix}scopes.{index}.")
                    visible, bias, factor = visible & other[0], bias + other[1], factor * other[2]
            case "wait_k":
                visible = slots_S < steps_T1 + scope["k"]
            case kind:
                assert kind == "global"
        return visible, bias, factor

    def weights(self) -> Array:
        visible, bias, factor = self.scope()
        np.testing.assert_array_equal(visible, self.inputs["mask"])
        for name, computed in (("bias", bias), ("factor", factor)):
            if name in self.inputs:
                np.testing.assert_allclose(self.inputs[name], computed, atol=1e-4)
        scores = self.scores()
        # The later states of a recurrent network do not exist yet when a query reads the earlier ones.
        known = visible if self.mechanism["scope"].get("strict") else np.ones_like(visible)
        np.testing.assert_allclose(self.inputs["scores"] * known, scores * known, rtol=1e-4, atol=1e-5)
        masked = np.where(visible, scores + bias, -np.inf)
        rows = [[self._select(masked[h, t], h, t) for t in range(masked.shape[1])] for h in range(self.heads)]
        return np.reshape(rows, masked.shape) * factor

    def _select(self, scores_S: Array, head: int, step: int) -> Array:
        if not np.isfinite(scores_S).any():
            return np.zeros_like(scores_S)
        match self.mechanism["select"]["kind"]:
            case "softmax" | "hard_exact":
                return softmax(scores_S)
            case "hard" | "straight_through":
                return np.eye(len(scores_S))[scores_S.argmax()]
            case "sparsemax":
                return sparsemax(scores_S)
            case "entmax15":
                return entmax15(scores_S)
            case "hard_monotonic":
                return self._move(scores_S, self.inputs["belief"][head, step])
            case "top_k":
                k = min(self.mechanism["select"]["k"], len(scores_S))
                return softmax(np.where(scores_S >= np.sort(scores_S)[-k], scores_S, -np.inf))
            case kind:
                raise AssertionError(kind)

    def _move(self, scores_S: Array, belief_S: Array) -> Array:
        """Σ_i β(i) p(j | i): from each position, a softmax over it and the later ones."""
        probability = np.zeros_like(scores_S)
        for start, belief in enumerate(belief_S):
            probability[start:] += belief * softmax(scores_S[start:])
        return probability


def softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def find_threshold(mass: Callable[[float], float], low: float, high: float) -> float:
    """Return τ with mass(τ) = 1, by bisection. The mass decreases with τ."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) > 1 else (low, middle)
    return low


def sparsemax(scores: Array) -> Array:
    """The projection onto the simplex: max(e − τ, 0)."""
    threshold = find_threshold(lambda tau: np.maximum(scores - tau, 0).sum(), scores.max() - 1, scores.max())
    return np.maximum(scores - threshold, 0)


def entmax15(scores: Array) -> Array:
    """Max(e / 2 − τ, 0)²."""
    halves = scores / 2
    threshold = find_threshold(lambda tau: (np.maximum(halves - tau, 0) ** 2).sum(), halves.max() - 1, halves.max())
    return np.maximum(halves - threshold, 0) ** 2


@pytest.mark.parametrize("name", thin(MODELS))
def test_weights_are_recomputed_from_queries_and_keys(name: str, tmp_path: Path) -> None:
    document = save(build_untrained(*MODELS[name]), tmp_path, queries=True, beam=2, nbest=2)
    assert document["attention"]
    spread = 0.0
    for entry in document["attention"]:
        weights = read(entry)
        recomputed = Recomputed(entry, document["mechanisms"][entry["name"]]).weights()
        recomputed = recomputed if weights.ndim == 3 else recomputed[0]
        assert weights.size
        assert np.abs(recomputed - weights).max() < 1e-5
        spread = max(spread, np.ptp(weights))
    assert spread > 0.05  # the weights are not uniform, so that a wrong equation would be noticed


@pytest.mark.parametrize("name", ["bahdanau", "luong-general", "chorowski", "hard-monotonic", "scaled_dot transformer"])
def test_the_position_of_a_query_is_its_step(name: str, tmp_path: Path) -> None:
    document = save(build_untrained(*MODELS[name]), tmp_path, queries=True, beam=2, nbest=2)
    for entry in document["attention"]:
        steps = len(read(entry["inputs"]["query"]))
        assert steps >= 4
        assert read(entry["inputs"]["position"]).tolist() == list(range(steps))


def test_a_past_is_the_weights_of_earlier_steps(tmp_path: Path) -> None:
    for features in ("last", "sum"):
        attention = {"score": {"kind": "location_aware", "features": features}}
        [entry] = save(build_untrained(RECURRENT, {"attention": attention}), tmp_path, queries=True)["attention"]
        weights_TS, [past_TS] = read(entry), read(entry["inputs"]["past"])
        assert (past_TS[0] == 0).all()
        expected = weights_TS[:-1] if features == "last" else weights_TS[:-1].cumsum(0)
        np.testing.assert_allclose(past_TS[1:], expected, atol=1e-6)


CELLS: list[dict[str, Any]] = [
    {"cell": "rnn"},
    {"cell": "gru"},
    {"cell": {"kind": "gru", "reset": "before"}},
    {"cell": "lstm"},
    {"cell": "lstm", "layer_norm": True},
    *({"cell": "lstm", "variant": variant} for variant in VARIANTS),
    {"cell": "mgu"},
]


@pytest.mark.parametrize("options", thin(CELLS), ids=str)
@pytest.mark.parametrize("kind", ["recurrent", "fixed"])
def test_states_follow_from_the_gates(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    changes = {f"{side}.{key}": value for side in ("encoder", "decoder") for key, value in options.items()}
    model = build_untrained({**RECURRENT, "kind": kind}, {**changes, "encoder.layers": 2})
    document = save(model, tmp_path, states=True, beam=2, nbest=2)
    assert {entry["dtype"] for entry in document["attention"]} <= {"float16"}
    tokens = [len(hypothesis["tokens"]) for hypothesis in document["hypotheses"]]
    names = [(entry["name"], entry["hypothesis"], entry["layer"], entry["direction"]) for entry in document["states"]]
    assert names == [
        *(
            (f"encoder.layers.cells.{index}", None, index // 2, ["forward", "backward"][index % 2])
            for index in range(4)
        ),
        *(("decoder.layers.cells.0", hypothesis, 0, "forward") for hypothesis in range(2)),
    ]
    for entry in document["states"]:
        states, gates = ({name: read(array) for name, array in entry[key].items()} for key in ("states", "gates"))
        initial = {name: read(array) for name, array in entry["initial"].items()}
        steps = len(SOURCE) if entry["hypothesis"] is None else tokens[entry["hypothesis"]]
        assert all(len(rows) == steps for rows in (*states.values(), *gates.values()))
        if entry["direction"] == "backward":
            states, gates = ({name: rows[::-1] for name, rows in part.items()} for part in (states, gates))
        previous = {name: np.concatenate([initial[name][None], rows[:-1]]) for name, rows in states.items()}
        if "update" in gates:
            expected = gates["update"] * previous["h"] + (1 - gates["update"]) * gates["candidate"]
            np.testing.assert_allclose(states["h"], expected, atol=1e-5)
        elif "c" in states:
            one = np.ones_like(states["c"])
            kept = previous["c"] * gates.get("forget", one)
            expected = kept + gates["candidate"] * gates.get("input", one)
            np.testing.assert_allclose(states["c"], expected, atol=1e-5)
            variant = VARIANTS.get(options.get("variant", ""))
            if not options.get("layer_norm"):
                activated = states["c"] if variant and variant.output_activation == "identity" else np.tanh(states["c"])
                np.testing.assert_allclose(states["h"], activated * gates.get("output", one), atol=1e-5)


def test_recorded_states_are_those_that_the_model_computes(tmp_path: Path) -> None:
    """The memory consists of the outputs of the encoder, both directions; also of an encoder that reads backward."""
    for reverse in (False, True):
        model = build_untrained(RECURRENT, {"encoder.reverse": reverse, "decoder.cell": "lstm"})
        document = save(model, tmp_path, queries=True, states=True)
        forward, backward, decoder = document["states"]
        directions = ("backward", "forward") if reverse else ("forward", "backward")
        assert (forward["direction"], backward["direction"]) == directions
        memory_SD = np.concatenate([read(part["states"]["h"]) for part in (forward, backward)], axis=-1)
        [entry] = document["attention"]
        np.testing.assert_allclose(read(entry["inputs"]["key"]), memory_SD, atol=1e-6)
        # Bahdanau's decoder attends with the state before the step.
        query_TD, h_TD = read(entry["inputs"]["query"]), read(decoder["states"]["h"])
        np.testing.assert_allclose(query_TD[0], read(decoder["initial"]["h"]), atol=1e-6)
        np.testing.assert_allclose(query_TD[1:], h_TD[:-1], atol=1e-6)
