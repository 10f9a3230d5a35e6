"""Attributions of one source and target: checks of the arguments, the explained tokens, and the method."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from regard.arguments import check_flag, check_integer
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import END, START, UNKNOWN, Tokenizer, UnknownTokens
from regard.decoding.predictor import Predictor
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean
from regard.inspection.attribution.attribution import END_LABEL, Attribution
from regard.inspection.attribution.methods import (
    BASELINES,
    METHODS,
    Attributor,
    Baseline,
    Explained,
    Method,
    Progress,
    Scores,
)
from regard.inspection.prediction import Prediction

_MAX_INTEGRATION_STEPS = 1_000
"""The points of Gauss–Legendre quadrature are computed in a time that grows with the cube of their number."""

Contrast = str | tuple[int, str]
"""Another target, or the index of a step and another token."""


class AttributionRequest(NamedTuple):
    """What to explain, and how."""

    method: Method
    contrast: Contrast | None = None
    baseline: Baseline = "zero"
    integration_steps: int = 50
    previous: bool = False
    normalize: bool = False
    progress: Callable[[float], object] | None = None

    def check(self, members: int) -> "AttributionRequest":
        """Raise an error for an invalid argument, or for arguments that cannot be combined."""
        for name, value, choices in (("method", self.method, METHODS), ("baseline", self.baseline, BASELINES)):
            if value not in choices:
                raise ConfigError(
                    f"{name}: {value!r} is not valid.{did_you_mean(str(value), choices)} Use one of "
                    f"{', '.join(choices)}."
                )
        check_integer("integration_steps", self.integration_steps, maximum=_MAX_INTEGRATION_STEPS)
        check_flag("previous", self.previous)
        check_flag("normalize", self.normalize)
        if self.progress is not None and not callable(self.progress):
            raise ArgumentTypeError(f"progress must be a function, not {type(self.progress).__name__}.")
        if self.baseline != "zero" and self.method != "integrated_gradients":
            raise ConfigError(f"The method {self.method} has no baseline. Use the method integrated_gradients.")
        if self.contrast is not None and self.method in ("value_zeroing", "attention"):
            raise ConfigError(
                f"The method {self.method} does not explain a log-probability, so it cannot contrast two tokens. Use "
                "gradient_x_input, integrated_gradients or occlusion."
            )
        if self.previous and self.method == "attention":
            raise ConfigError(
                "The method attention has no scores of previous tokens. Draw the attention weights of decoder-self "
                "instead."
            )
        if members > 1 and self.method not in ("occlusion", "attention"):
            raise ConfigError(
                f"The models of an ensemble have separate embeddings and attentions, so the method {self.method} "
                "cannot explain their common prediction. Use the method occlusion, or load one of the models."
            )
        return self


def attribute_target(
    predictor: Predictor, item: SourceItem, hypothesis: Hypothesis, request: AttributionRequest
) -> Attribution:
    """Explain the tokens of a hypothesis. The hypothesis must have attention weights."""
    prediction = Prediction.from_nbest(item, [hypothesis], predictor.tokenizer, predictor.attention_roles)
    steps, other = _find_steps(predictor, hypothesis.tokens, request.contrast)
    parts = _count_parts(prediction)
    if request.method == "attention":
        scores = Scores(torch.from_numpy(prediction.attention))
    elif steps and parts:
        with predictor.evaluation():
            explained = _Target([*hypothesis.tokens, END], steps, other)
            scores = _run(_build_attributor(predictor, item, prediction, explained, request), request)
    else:
        scores = Scores(torch.zeros(len(steps), parts))
    attribution = Attribution(
        prediction,
        request.method,
        _to_numpy(scores.source_KS),
        steps,
        None if other is None else _label(predictor, other),
        None if scores.target_KT is None else _to_numpy(scores.target_KT),
        None if scores.delta_K is None else scores.delta_K.tolist(),
        request.baseline if request.method == "integrated_gradients" else None,
    )
    return attribution.normalize() if request.normalize else attribution


class _Target(NamedTuple):
    """The tokens of a target with the end token, the explained steps, and the other token in a contrast."""

    tokens: list[int]
    steps: list[int]
    other: int | None


def _build_attributor(
    predictor: Predictor, item: SourceItem, prediction: Prediction, target: _Target, request: AttributionRequest
) -> Attributor:
    def to_tensor(ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, device=predictor.device)

    return Attributor(
        predictor.model,
        predictor.reader.collate([item]).to(predictor.device),
        _count_parts(prediction),
        prediction.layout,
        # A step does not depend on the tokens after it.
        to_tensor([START, *target.tokens[: max(target.steps)]]).unsqueeze(0),
        Explained(
            to_tensor(target.steps),
            to_tensor([target.tokens[step] for step in target.steps]),
            None if target.other is None else to_tensor([target.other]),
        ),
        len(predictor.tokenizer),
        request.previous,
        Progress(request.progress),
    )


def _run(attributor: Attributor, request: AttributionRequest) -> Scores:
    match request.method:
        case "gradient_x_input":
            return attributor.multiply_gradient()
        case "integrated_gradients":
            return attributor.integrate_gradients(request.baseline, request.integration_steps)
        case "occlusion":
            return attributor.occlude()
        case _:
            return attributor.zero_values()


def _to_numpy(scores: torch.Tensor) -> AttentionWeights:
    array: AttentionWeights = scores.detach().float().cpu().numpy()
    return array


def _count_parts(prediction: Prediction) -> int:
    """Return the number of tokens of a text, or of cells of an image."""
    layout = prediction.layout
    return len(prediction.source_tokens) if layout is None else layout.height * layout.width


def _label(predictor: Predictor, token: int) -> str:
    return END_LABEL if token == END else predictor.tokenizer.tokens([token])[0]


def _find_steps(predictor: Predictor, tokens: Sequence[int], contrast: Contrast | None) -> tuple[list[int], int | None]:
    """Return the indices of the explained tokens, and in a contrast the id of the other token."""
    if contrast is None:
        return list(range(len(tokens))), None
    if isinstance(contrast, str):
        return _find_difference(predictor, tokens, contrast)
    return _find_token(predictor, tokens, contrast)


def _find_difference(predictor: Predictor, tokens: Sequence[int], contrast: str) -> tuple[list[int], int]:
    """Return the first step at which two targets differ, and the token of the second target at this step."""
    [other] = predictor.tokenizer.ids([contrast if contrast.strip() else ""])
    _check_known(contrast, other, predictor.tokenizer)
    pairs = zip([*tokens, END], [*other, END], strict=False)
    for step, (first, second) in enumerate(pairs):
        if first != second:
            return [step], second
    raise ConfigError(f"contrast: {contrast!r} is the target itself, so there is nothing to compare. Use another text.")


def _find_token(predictor: Predictor, tokens: Sequence[int], contrast: Any) -> tuple[list[int], int]:
    """Return the step of a contrast, and the id of its other token."""
    match contrast:
        case (int(step), str(text)) if not isinstance(step, bool):
            pass
        case _:
            raise ArgumentTypeError(
                f"contrast must be a text, or a pair of a step (int) and a token (str), not {contrast!r}."
            )
    if not 0 <= step <= len(tokens):
        raise ConfigError(f"contrast: there is no step {step}. The target has the steps 0 to {len(tokens)}.")
    if text == END_LABEL:
        ids = [END]
    else:
        index = predictor.tokenizer.inner.token_to_id(text)
        ids = [index] if index is not None else predictor.tokenizer.ids([text])[0]
    _check_known(text, ids, predictor.tokenizer)
    if len(ids) != 1:
        raise ConfigError(
            f"contrast: {text!r} is not one token, but {len(ids)}: {' '.join(predictor.tokenizer.tokens(ids))}. Use "
            "one of these tokens, or give the whole target as a text."
        )
    if [*tokens, END][step] == ids[0]:
        raise ConfigError(f"contrast: {text!r} is the token of the target at step {step}. Use another token.")
    return [step], ids[0]


def _check_known(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> None:
    if UNKNOWN in ids:
        unknown = UnknownTokens.of(tokenizer.find_unknown([text])[0])
        raise ConfigError(
            f"contrast: the model has no token for {unknown or repr(text)} in {text!r}. Use a text that consists of "
            "known tokens."
        )
