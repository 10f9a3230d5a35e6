"""Edits: changes of a prediction that the model decodes again. They force a token, change attention, or the source."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, final, get_args

import torch
from pydantic import Field, StrictInt

from regard.arguments import check_list, check_type
from regard.attention.attention import Attention
from regard.attention.interventions import (
    AblateHead,
    HeadIntervention,
    MaskKeys,
    SetRow,
    UniformRow,
    intervene,
)
from regard.attention.record import find_attentions
from regard.config import Settings, resolve
from regard.data.batching import Batch, pad
from regard.data.sources import DeleteSource, MaskRegion, MaskSource, ReplaceSource, SourceEdit, SourceItem, check_index
from regard.data.tokens.tokenizers import Tokenizer
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.engine import GREEDY
from regard.decoding.predictor import SPECIAL_TOKENS, Predictor, target_log_probs
from regard.decoding.search import Hypothesis
from regard.decoding.settings import SearchSettings
from regard.decoding.tracing import TracedSearch, TraceOptions
from regard.errors import ConfigError
from regard.formatting import did_you_mean, quantity
from regard.models.contracts import Grid
from regard.quantities import OptionalCount

__all__ = [
    "KINDS",
    "AblateHead",
    "DeleteSource",
    "Edit",
    "ForceToken",
    "MaskKeys",
    "MaskRegion",
    "MaskSource",
    "ReplaceSource",
    "SetRow",
    "TraceTask",
    "UniformRow",
    "apply_edits",
    "check_steps",
    "describe_edit",
    "parse_edits",
]


@final
class ForceToken(Settings):
    """Keep the tokens of the best hypothesis before a step, append this token, and continue the search from there."""

    kind: Literal["force_token"] = "force_token"
    step: OptionalCount
    token: StrictInt | str = Field(description="the id of a token, or the token as the vocabulary spells it")


Edit = Annotated[
    ForceToken | SetRow | UniformRow | MaskKeys | AblateHead | ReplaceSource | DeleteSource | MaskSource | MaskRegion,
    Field(discriminator="kind"),
]
"""One edit, as pydantic validates it."""

KINDS: dict[str, type[Any]] = {each.model_fields["kind"].default: each for each in get_args(get_args(Edit)[0])}
"""The class of each kind of edit."""


def parse_edits(edits: Any) -> list[Edit]:
    """Return edits as objects. Raise ConfigError for an edit that is not valid, with its index."""
    listed = check_list("edits", edits, "a list of edits")
    return [_parse_edit(f"edits[{index}]", edit) for index, edit in enumerate(listed)]


def _parse_edit(name: str, edit: Any) -> Edit:
    if type(edit) in KINDS.values():
        given: Edit = edit
        return given
    check_type(name, edit, Mapping, "a mapping or an edit")
    if "kind" not in edit:
        raise ConfigError(f"{name} has no `kind`. Available: {', '.join(KINDS)}.")
    kind = str(edit["kind"])
    if kind not in KINDS:
        raise ConfigError(
            f"{name}: '{kind}' is not a kind of edit.{did_you_mean(kind, KINDS)} Available: {', '.join(KINDS)}."
        )
    parsed: Edit = resolve(KINDS[kind], edit, {}, name)
    return parsed


def describe_edit(edit: Edit) -> dict[str, Any]:
    """Return an edit as JSON, with the values that were given."""
    return {"kind": edit.kind, **edit.model_dump(mode="json", exclude_unset=True)}


@final
@dataclass(frozen=True)
class TraceTask:
    """What is traced: the prediction for a source, or a given target; and the interventions on attentions."""

    item: SourceItem
    search: SearchSettings = GREEDY
    constraints: Constraints = NO_CONSTRAINTS
    target: str | None = None
    interventions: tuple[HeadIntervention, ...] = ()

    def trace(self, predictor: Predictor, options: TraceOptions) -> TracedSearch:
        """Search and trace, or trace the target."""
        with self._intervene(predictor):
            if self.target is not None:
                return predictor.trace_target(self.item, self.target, options)
            return predictor.trace(self.item, self.search, self.constraints, options)

    def find_best(self, predictor: Predictor) -> Hypothesis:
        """Return the best hypothesis."""
        with self._intervene(predictor):
            [[best, *_]] = predictor.predict([self.item], self.search, self.constraints)
        return best

    def score(self, predictor: Predictor, tokens: Sequence[int]) -> float:
        """Return the log-probability of target tokens."""
        with self._intervene(predictor), predictor.inference():
            batch = Batch(predictor.collate([self.item]), pad([tokens]).to(predictor.device), [0], len(tokens))
            return float(target_log_probs(predictor.model, batch).sum())

    @contextmanager
    def _intervene(self, predictor: Predictor) -> Iterator[None]:
        by_module: dict[torch.nn.Module, list[HeadIntervention]] = {}
        for each in self.interventions:
            by_module.setdefault(_find_attention(predictor, each.attention), []).append(each)
        with intervene(by_module):
            yield


def apply_edits(predictor: Predictor, task: TraceTask, edits: Sequence[Edit]) -> TraceTask:
    """Apply edits in order, each to the result of those before it."""
    for index, edit in enumerate(edits):
        with _locate(index):
            task = _apply(predictor, task, edit)
    slots, _ = _measure_memory(predictor, task.item)
    for index, edit in enumerate(edits):
        if isinstance(edit, HeadIntervention):
            with _locate(index):
                _check_slots(edit, _find_attention(predictor, edit.attention), slots)
    return task


@contextmanager
def _locate(index: int) -> Iterator[None]:
    """Add the index of an edit to an error."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"edits[{index}]: {error}") from None


def _apply(predictor: Predictor, task: TraceTask, edit: Edit) -> TraceTask:
    match edit:
        case SourceEdit():
            return replace(task, item=_edit_source(predictor, task.item, edit))
        case ForceToken():
            return replace(task, constraints=_force_token(predictor, task, edit))
        case _:
            attention = _find_attention(predictor, edit.attention)
            if edit.head is not None:
                check_index("head", edit.head, attention.heads, "head", edit.attention)
            return replace(task, interventions=(*task.interventions, edit))


def _edit_source(predictor: Predictor, item: SourceItem, edit: SourceEdit) -> SourceItem:
    reader = predictor.reader
    if edit.noun != reader.noun:
        kinds = [kind for kind, each in KINDS.items() if issubclass(each, SourceEdit) and each.noun == reader.noun]
        remedy = f"Use {', '.join(kinds)}." if kinds else "Edit the source itself."
        raise ConfigError(f"this edit changes {edit.noun}s, but the model reads {reader.noun}s. {remedy}")
    _, layout = _measure_memory(predictor, item)
    return reader.edit(item, edit, layout)


def _force_token(predictor: Predictor, task: TraceTask, edit: ForceToken) -> Constraints:
    """Return the constraints with a prefix: the tokens before the step, and the token."""
    if task.target is not None:
        raise ConfigError("force_token has no effect on a given target. Change the target, or omit it.")
    if not task.item.length:
        raise ConfigError("the source is empty, and so is its prediction. Use a source that is not empty.")
    tokens = task.find_best(predictor).tokens
    if edit.step > len(tokens):
        raise ConfigError(
            f"there is no step {edit.step}: the prediction has {quantity(len(tokens), 'token')}. Use step 0 to "
            f"{len(tokens)}, counted from 0."
        )
    prefix = [*tokens[: edit.step], _find_token(predictor.tokenizer, edit.token)]
    return task.constraints._replace(prefix_ids=[prefix])


def _find_token(tokenizer: Tokenizer, token: int | str) -> int:
    """Return the id of a token that a prediction can contain."""
    found: int | None = tokenizer.inner.token_to_id(token) if isinstance(token, str) else token
    if found is None:
        raise ConfigError(
            f"the vocabulary of the target has no token {token!r}. Use a token as it is listed in the steps of a "
            "trace, or its id."
        )
    if not 0 <= found < len(tokenizer):
        raise ConfigError(f"token {found} is out of range. Use an id from 0 to {len(tokenizer) - 1}.")
    if found in SPECIAL_TOKENS.suppressed:
        raise ConfigError(f"a prediction never contains {tokenizer.tokens([found])[0]}. Use another token.")
    return found


def _find_attention(predictor: Predictor, name: str) -> Attention:
    attentions = find_attentions(predictor.model)
    if name not in attentions:
        available = f"Available: {', '.join(attentions)}." if attentions else "The model has no attention."
        raise ConfigError(f"'{name}' is not an attention of the model.{did_you_mean(name, attentions)} {available}")
    return attentions[name]


def _measure_memory(predictor: Predictor, item: SourceItem) -> tuple[int, Grid | None]:
    """Return the number of memory slots of a source, and how they are arranged."""
    with predictor.inference():
        memory = predictor.model.encoder(predictor.collate([item]))
    return int(memory.allowed_BS.sum()), memory.layout


def _check_slots(edit: HeadIntervention, attention: Attention, slots: int) -> None:
    """Raise ConfigError unless the keys of an intervention exist. Keys of the decoder are its inputs."""
    is_target = attention.role == "decoder-self"
    query = edit.query
    if attention.reads_backward and (query is not None or isinstance(edit, SetRow | MaskKeys)):
        raise ConfigError(
            f"{edit.attention} reads the source from its end, and edits of its queries and keys are not supported. "
            "Edit an attention that reads it from its start."
        )
    if attention.role == "encoder-self" and query is not None:
        check_index("step", query, slots, "position", "the source")
    match edit:
        case SetRow(weights=weights) if is_target:
            if query is None:
                raise ConfigError("the number of keys of decoder-self differs between steps. Set `step`, too.")
            if any(weights[query + 1 :]):
                raise ConfigError(
                    f"step {query + 1} attends to the {quantity(query + 1, 'key')} up to its own position, but a later "
                    "key has a weight. Set it to 0."
                )
        case SetRow(weights=weights) if len(weights) != slots:
            raise ConfigError(
                f"there are {quantity(len(weights), 'weight')}, but {edit.attention} has {quantity(slots, 'key')}. "
                "Set a weight for each key."
            )
        case MaskKeys(keys=keys) if not is_target:
            check_index("key", max(keys), slots, "key", edit.attention)
        case MaskKeys(keys=keys) if query is not None:
            check_index("key", max(keys), query + 1, "key", f"step {query + 1}")


def check_steps(predictor: Predictor, edits: Sequence[Edit], longest: int) -> None:
    """Raise ConfigError if an edit of the decoder's attention is after the end of a target. `longest` is the number of
    tokens of the longest hypothesis, with and without the edits.
    """
    roles = predictor.attention_roles
    steps = longest + 1  # the last step predicts the end token
    for index, edit in enumerate(edits):
        if isinstance(edit, HeadIntervention) and roles[edit.attention] != "encoder-self":
            with _locate(index):
                if edit.query is not None:
                    check_index("step", edit.query, steps, "step", "the prediction")
                if isinstance(edit, MaskKeys) and roles[edit.attention] == "decoder-self":
                    check_index("key", max(edit.keys), steps, "key", edit.attention)
