"""Trace hypotheses: how likely each token was, all attention weights, and on request what these are computed from, and
the states of recurrent layers. The decoder runs over the finished hypotheses with teacher forcing.

N hypotheses, T target steps, S memory slots, D width, H heads or state width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_slots

from regard.attention.attention import Role
from regard.attention.record import Recording, find_attentions, record
from regard.data.tokens.tokenizers import END, Tokenizer
from regard.decoding.beam import BeamStep, Outcome
from regard.decoding.search import Hypothesis
from regard.decoding.weights import Array, BatchWeights, decode, encode, to_array
from regard.models.contracts import Encoder, Source
from regard.models.seq2seq import Seq2Seq
from regard.ops.hooks import Parts
from regard.recurrent.layers import Stack

Direction = Literal["forward", "backward"]


class TraceOptions(NamedTuple):
    """What a trace contains besides attention weights."""

    candidates: int = 10
    """The number of most likely tokens at each step."""
    queries: bool = False
    """Whether it contains everything that the weights are computed from."""
    states: bool = False
    """Whether it contains the states and gates of recurrent layers."""


class Candidate(NamedTuple):
    """A token that could be the next, and its log-probability under the model."""

    token: str
    id: int
    log_prob: float


class Step(NamedTuple):
    """A token of a hypothesis, and the distribution that the model predicted at this step, before any rule."""

    token: str
    id: int
    log_prob: float
    entropy: float
    """The entropy of the distribution, in nats."""
    top: list[Candidate]
    """The most likely tokens, best first."""


class BeamNode(NamedTuple):
    """A continuation that a step of beam search considered; see `BeamCandidate`."""

    token: str
    id: int
    parent: int
    group: int
    outcome: Outcome
    slot: int | None
    score: float
    log_prob: float


class AttentionInputs(NamedTuple):
    """What the weights of an attention are computed from; of the encoder, if `hypothesis` is None."""

    name: str
    hypothesis: int | None
    arrays: dict[str, Array]


class CellStates(NamedTuple):
    """The states and gates of a recurrent cell at every step; of the encoder, if `hypothesis` is None.

    Row t is the state after token t; in a backward layer, which reads the source from its end, as well.
    """

    name: str
    hypothesis: int | None
    layer: int
    direction: Direction
    initial: dict[str, Array]
    """The state before the first step, (H,) for each part."""
    states: dict[str, Array]
    """The state after each step, (T, H) for each part."""
    gates: dict[str, Array]
    """The activation of each gate, (T, H)."""


class MechanismRecord(NamedTuple):
    """The parts of an attention; and their parameters, if a trace contains queries."""

    role: Role
    layer: int
    """The index among the attentions with this role."""
    heads: int
    equation: str
    score: dict[str, Any]
    scope: dict[str, Any]
    select: dict[str, Any]
    parameters: dict[str, Array]


class TracedSearch(NamedTuple):
    """The hypotheses for one source with their attention weights, and how they were computed."""

    nbest: list[Hypothesis]
    steps: list[list[Step]]
    """The steps of each hypothesis, the end token included."""
    beam: list[list[BeamNode]] | None
    """The candidates of each step of beam search; None for another search."""
    mechanisms: dict[str, MechanismRecord]
    inputs: list[AttentionInputs]
    states: list[CellStates]


def trace_hypotheses(
    model: Seq2Seq,
    source: Source,
    nbest: list[Hypothesis],
    history: Sequence[BeamStep] | None,
    tokenizer: Tokenizer,
    options: TraceOptions,
) -> TracedSearch:
    """Run the model over the hypotheses for one source, and record it."""
    start_recording = partial(record, model, queries=options.queries, states=options.states)
    encoded = encode(model, source, start_recording())
    decoded, decoding = decode(model, encoded.memory, [nbest], start_recording())
    weights = BatchWeights.of_pass(encoded, decoding)
    is_empty = not int(source.length_hint_B[0])
    steps = [
        []
        if is_empty and not hypothesis.tokens
        else _describe_steps(logits_TV, hypothesis, tokenizer, options.candidates)
        for logits_TV, hypothesis in zip(decoded.logits_BTV, nbest, strict=True)
    ]
    lengths = [len(hypothesis.tokens) for hypothesis in nbest]
    [slots] = weights.slots_B
    return TracedSearch(
        weights.attach([nbest])[0],
        steps,
        None if history is None else _describe_beam(history, tokenizer),
        describe_mechanisms(model, parameters=options.queries),
        list(_select_inputs(encoded.recording, decoding, slots, lengths)),
        list(_select_states(model, encoded.recording, decoding, 0 if is_empty else None, lengths)),
    )


def describe_mechanisms(model: Seq2Seq, *, parameters: bool) -> dict[str, MechanismRecord]:
    """Describe each attention of a model, by its name in the model."""
    mechanisms: dict[str, MechanismRecord] = {}
    layers: dict[Role, int] = {}
    for name, attention in find_attentions(model).items():
        layer = layers[attention.role] = layers.get(attention.role, -1) + 1
        arrays = {key: to_array(tensor) for key, tensor in attention.named_parameters()} if parameters else {}
        mechanisms[name] = MechanismRecord(
            attention.role, layer, attention.heads, attention.score.equation, **attention.settings, parameters=arrays
        )
    return mechanisms


def _describe_steps(logits_TV: Tensor, hypothesis: Hypothesis, tokenizer: Tokenizer, candidates: int) -> list[Step]:
    """Describe the steps of a hypothesis. A truncated hypothesis has no end token."""
    ids = [*hypothesis.tokens, *([] if hypothesis.truncated else [END])]
    log_p_TV = logits_TV[: len(ids)].double().log_softmax(-1)
    entropy_T = torch.special.entr(log_p_TV.exp()).sum(-1)
    top = log_p_TV.topk(min(candidates, log_p_TV.shape[-1]), dim=-1)
    chosen_T = log_p_TV.gather(-1, torch.tensor(ids, device=log_p_TV.device).unsqueeze(-1)).squeeze(-1)
    columns = (tokenizer.tokens(ids), ids, chosen_T.tolist(), entropy_T.tolist(), top.indices.tolist())
    return [
        Step(token, index, log_prob, entropy, list(map(Candidate, tokenizer.tokens(best), best, log_probs)))
        for token, index, log_prob, entropy, best, log_probs in zip(*columns, top.values.tolist(), strict=True)
    ]


def _describe_beam(history: Sequence[BeamStep], tokenizer: Tokenizer) -> list[list[BeamNode]]:
    """Return the candidates of each step of the search for one source, with the texts of their tokens."""
    return [
        [
            BeamNode(token, *candidate)
            for candidate, token in zip(
                candidates, tokenizer.tokens([candidate.token for candidate in candidates]), strict=True
            )
        ]
        for step in history
        for candidates in step.values()
    ]


_AXES = {
    "query": "TD",
    "key": "SD",
    "value": "SD",
    "position": "T",
    "scores": "HTS",
    "mask": "TS",
    "bias": "TS",
    "factor": "TS",
    "past": "HTS",
    "belief": "HTS",
}
"""The axes of the recorded inputs of an attention, after the rows."""


def _select_inputs(
    encoding: Recording, decoding: Recording, slots: int, lengths: Sequence[int]
) -> Iterator[AttentionInputs]:
    """Return the recorded inputs of each attention: of the encoder, and of the decoder for each hypothesis."""
    for name, parts in encoding.inputs.items():
        if encoding.roles[name] == "encoder-self" and "query" in parts:
            arrays = _cut_inputs(parts, 0, slots, slots)
            yield AttentionInputs(name, None, _flip(arrays) if name in encoding.backward else arrays)
    for hypothesis, steps in enumerate(lengths):
        for name, parts in decoding.inputs.items():
            if decoding.roles[name] != "encoder-self" and "query" in parts:
                columns = steps if decoding.roles[name] == "decoder-self" else slots
                yield AttentionInputs(name, hypothesis, _cut_inputs(parts, hypothesis, steps, columns))


def _cut_inputs(parts: Parts, row: int, queries: int, slots: int) -> dict[str, Array]:
    """Return the recorded tensors of a row as arrays, without padding."""
    arrays = {}
    sizes = {"T": queries, "S": slots}
    for name, axes in _AXES.items():
        if name in parts:
            calls = [call[row] for call in parts[name]]
            if axes.endswith("TS"):  # the tape of a recurrent network has one more slot at each step
                calls = [pad_slots(call, (0, calls[-1].shape[-1] - call.shape[-1])) for call in calls]
            tensor = torch.cat(calls, dim=axes.index("T")) if "T" in axes else calls[-1]
            arrays[name] = to_array(tensor[tuple(slice(sizes.get(axis)) for axis in axes)])
    return arrays


def _flip(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the inputs of an attention that reads the source from its end in the order of the source."""
    axes = {name: tuple(axis for axis, letter in enumerate(_AXES[name]) if letter in "TS") for name in arrays}
    return {name: np.flip(array, axes[name]) for name, array in arrays.items()}


class _CellPlace(NamedTuple):
    layer: int
    is_reversed: bool
    """Whether the cell reads its input from the end."""


def _locate_cells(model: Seq2Seq) -> dict[str, _CellPlace]:
    """Return the layer and direction of each recurrent cell, by its name in the model."""
    places: dict[str, _CellPlace] = {}
    backward: dict[str, bool] = {}
    for name, module in model.named_modules():
        if isinstance(module, Encoder):
            backward[name] = module.reads_backward
        if isinstance(module, Stack):
            # The innermost encoder that contains the stack; an ensemble contains several.
            inside = [flag for encoder, flag in backward.items() if name.startswith(f"{encoder}.")]
            starts_at_end = inside[-1] if inside else False
            for index in range(len(module.cells)):
                layer, direction = divmod(index, module.directions)
                places[f"{name}.cells.{index}"] = _CellPlace(layer, bool(direction) != starts_at_end)
    return places


def _select_states(
    model: Seq2Seq, encoding: Recording, decoding: Recording, source_steps: int | None, lengths: Sequence[int]
) -> Iterator[CellStates]:
    """Return the recorded states of each recurrent cell: of the encoder, and of the decoder for each hypothesis."""
    places = _locate_cells(model)
    for name, parts in encoding.states.items():
        if parts:
            yield _cut_states(name, None, parts, places[name], source_steps)
    for hypothesis, steps in enumerate(lengths):
        for name, parts in decoding.states.items():
            if parts:
                yield _cut_states(name, hypothesis, parts, places[name], steps)


def _cut_states(name: str, hypothesis: int | None, parts: Parts, place: _CellPlace, steps: int | None) -> CellStates:
    """Return the recorded tensors of a row as arrays, without padding, in the order of the tokens."""
    row = hypothesis or 0
    arrays: dict[str, dict[str, Array]] = {"previous": {}, "state": {}, "gate": {}}
    for part, calls in parts.items():
        kind, _, label = part.partition(".")
        if kind == "previous":
            arrays[kind][label] = to_array(calls[0][row, 0])
        else:
            rows_TH = torch.cat(calls, dim=1)[row, :steps]
            arrays[kind][label] = to_array(rows_TH.flip(0) if place.is_reversed else rows_TH)
    direction: Direction = "backward" if place.is_reversed else "forward"
    return CellStates(name, hypothesis, place.layer, direction, arrays["previous"], arrays["state"], arrays["gate"])
