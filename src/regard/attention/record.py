"""Recording of attention weights, and on request of what they are computed from, and of recurrent states."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.arguments import check_flag, check_type
from regard.attention.attention import Attention, Role
from regard.attention.hooks import AttentionHook, Reading
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import quantity
from regard.ops.hooks import ObservedModule, Parts, Recorder, record_modules


@runtime_checkable
class HasModules(Protocol):
    """A model whose modules have names: a torch module, or a `regard.Model`."""

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]: ...


@dataclass
class AttentionRecorder(Recorder, AttentionHook):
    """Records the weights of an attention, and on request what they are computed from."""

    def on_memory(self, keys_BSD: Tensor, values_BSD: Tensor, values_BHSD: Tensor) -> Tensor:
        if self.detailed:
            self.record({"key": keys_BSD, "value": values_BSD})
        return values_BHSD

    def on_inputs(self, reading: Reading) -> None:
        self.record({"position": reading.positions()})
        if not self.detailed:
            return
        scope, past = reading.restrict(), reading.past
        scores_BHTS = reading.score(reading.query_BTD, reading.memory.prepared, past.weights_BHS)
        belief_BHS = past.belief_BHS
        if reading.select.uses_past and belief_BHS is None:
            # At the first step every slot can be reached, as from the first slot.
            belief_BHS = torch.zeros_like(scores_BHTS[:, :, 0])
            belief_BHS[..., 0] = 1.0
        self.record(
            {
                "query": reading.query_BTD,
                "scores": scores_BHTS,
                "mask": scope.visible(scores_BHTS)[:, 0],
                "bias": None if scope.bias_BTS is None else scope.bias_BTS.squeeze(1),
                "factor": None if scope.factor_BTS is None else scope.factor_BTS.squeeze(1),
                "past": None if past.weights_BHS is None else past.weights_BHS.unsqueeze(2),
                "belief": None if belief_BHS is None else belief_BHS.unsqueeze(2),
            }
        )

    def on_weights(self, reading: Reading, weights_BHTS: Tensor, allowed_BHTS: Tensor | None) -> Tensor:
        del allowed_BHTS
        self.record({"weights": weights_BHTS if reading.score.heads > 1 else weights_BHTS.squeeze(1)})
        return weights_BHTS


@dataclass
class Recording:
    """The weights of each attention in a model, before dropout, under the attention's name in the model.

    Attributes:
        calls: The weights of each call of each attention.
        roles: The role of each attention: `encoder-self`, `decoder-self` or `cross`.
        backward: The attentions that read the source from its end; their queries and slots are in that order.
        inputs: If requested, what the weights of each attention are computed from, call by call: `query`, `key`, ...
        states: If requested, the states and gates of each recurrent cell, call by call: `state.h`, `gate.update`, ...
    """

    calls: dict[str, list[Tensor]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    backward: set[str] = field(default_factory=set)
    inputs: dict[str, Parts] = field(default_factory=dict)
    states: dict[str, Parts] = field(default_factory=dict)
    _recorders: dict[str, Recorder] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> dict[str, Tensor]:
        """A tensor (B, T, S) or (B, H, T, S) for each name: the calls of one pass, concatenated along the queries.

        Raises:
            ConfigError: An attention was called in several passes, or in a search that changes the rows.
        """
        return {name: self._join_calls(name, calls) for name, calls in self.calls.items() if calls}

    def _join_calls(self, name: str, calls: list[Tensor]) -> Tensor:
        """Concatenate the calls. Self-attention of a decoder has one more slot at each step."""
        reason = _find_reason_to_keep_apart(calls, self._recorders[name])
        if reason:
            raise ConfigError(
                f"The recorded weights of {name or 'the attention'} are not those of one pass: {reason}. Record one "
                "forward pass, or use `calls`, the weights of each call. `Prediction.attentions` and `Model.trace` "
                "return the weights of predictions."
            )
        slots = max(call.shape[-1] for call in calls)
        padded = (call if call.shape[-1] == slots else pad(call, (0, slots - call.shape[-1])) for call in calls)
        return torch.cat(list(padded), dim=-2)


def _find_reason_to_keep_apart(calls: list[Tensor], record: Recorder) -> str | None:
    """Return why calls are not consecutive steps of the same rows; None if they are."""
    if record.has_hypotheses:
        return "a search with several hypotheses was recorded, which reorders its rows"
    rows = list(dict.fromkeys(len(call) for call in calls))
    if len(rows) > 1:
        return f"the number of rows changes from {rows[0]} to {rows[1]}"
    positions_BT = torch.cat(record.parts["position"], dim=1)
    if not torch.equal(positions_BT[:, 1:], positions_BT[:, :-1] + 1):
        return f"the positions in its {quantity(len(calls), 'call')} are not consecutive, as if several passes ran"
    return None


@contextmanager
def record(
    model: HasModules,
    chosen: Callable[[str], bool] = lambda _: True,
    *,
    queries: bool = False,
    states: bool = False,
) -> Iterator[Recording]:
    """Record the attention weights of `model` within the block, in this thread only.

    Args:
        model: A `regard.Model`, or a torch module.
        chosen: Selects attentions and cells by their name in the model. The others run at full speed.
        queries: Whether to record everything that the weights are computed from: queries, keys, scores, masks.
        states: Whether to record the states and gates of recurrent cells.

    Returns:
        A context manager that returns the recording.

    Raises:
        ArgumentTypeError: `model` is not a model, or `chosen` is not a function.

    >>> with regard.record(model) as recording:
    ...     model.predict("3 mai 2009", attention=False)
    >>> recording.weights
    """
    if not isinstance(model, HasModules) or isinstance(model, type):
        raise ArgumentTypeError(f"model must be a regard.Model or a torch.nn.Module, not {type(model).__name__}.")
    check_type("chosen", chosen, Callable, "a function of a name")
    check_flag("queries", queries)
    check_flag("states", states)
    recording = Recording()
    recorders: dict[nn.Module, Recorder] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention) and chosen(name):
            recorder = AttentionRecorder({"weights": recording.calls.setdefault(name, [])}, detailed=queries)
            recorders[module] = recording._recorders[name] = recorder
            recording.roles[name] = module.role
            recording.backward |= {name} if module.reads_backward else set()
            recording.inputs |= {name: recorder.parts} if queries else {}
        elif isinstance(module, ObservedModule) and states and chosen(name):
            recorders[module] = Recorder()
            recording.states[name] = recorders[module].parts
    with record_modules(recorders):
        yield recording


def find_attentions(model: HasModules, *roles: Role) -> dict[str, Attention]:
    """Return the attentions of a model by their names in it: all, or those with one of the given roles."""
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    return {name: attention for name, attention in attentions.items() if not roles or attention.role in roles}


def attention_roles(model: HasModules) -> dict[str, Role]:
    """Return the role of each attention of a model, by its name in the model."""
    return {name: attention.role for name, attention in find_attentions(model).items()}
