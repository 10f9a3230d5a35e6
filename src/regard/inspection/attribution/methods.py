"""Attribution methods: how much each part of the source contributes to each token of the target (forced decoding).

Gradient × input, integrated gradients and occlusion are those of captum. Value zeroing has no other implementation for
models with encoder and decoder.

N rows, K explained steps, T target steps, S parts of the source, D width, V vocabulary.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import check_flag, check_integer, check_type
from regard.attention.attention import Role
from regard.attention.interventions import ZeroValues, intervene
from regard.attention.record import find_attentions
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN, Tokenizer, UnknownTokens
from regard.decoding.predictor import MAX_LOGITS, Predictor
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import did_you_mean
from regard.inspection.attribution.attribution import END_LABEL, Attribution
from regard.inspection.attribution.settings import BASELINES, METHODS, Baseline, Method
from regard.inspection.prediction import Prediction
from regard.models.contracts import Grid, Source
from regard.models.seq2seq import Seq2Seq

Contrast = str | tuple[int, str]
"""Another target, or the index of a step and another token."""

_BASELINE_TOKENS: dict[Baseline, int] = {"unknown": UNKNOWN, "padding": PAD}

_MAX_INTEGRATION_STEPS = 1_000
"""The points of Gauss–Legendre quadrature are computed in a time that grows with the cube of their number."""

MAX_TOKENS = 1 << 13
"""The maximum number of source and target tokens that are processed together, as in a training batch."""


class Explained(NamedTuple):
    """What is explained: log p(y_t | y_<t, x) of some steps t, or log p(y_t | …) − log p(y'_t | …)."""

    steps_K: Tensor
    tokens_K: Tensor
    contrast_K: Tensor | None = None
    """The tokens y'_t."""

    def select(self, logits_NV: Tensor, steps_N: Tensor) -> Tensor:
        """Return the explained value of each row, given the logits of one of the steps, an index into K."""
        log_p_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)).log_softmax(-1)
        value_N = log_p_NV.gather(-1, self.tokens_K[steps_N].unsqueeze(-1)).squeeze(-1)
        if self.contrast_K is None:
            return value_N
        return value_N - log_p_NV.gather(-1, self.contrast_K[steps_N].unsqueeze(-1)).squeeze(-1)


class Scores(NamedTuple):
    """The scores of the parts of the source, and if requested of the inputs of the decoder. For integrated gradients,
    also the difference between the sum of the scores and the change of the explained value.
    """

    source_KS: Tensor
    target_KT: Tensor | None = None
    delta_K: Tensor | None = None


class Progress:
    """Reports the share of the rows that the model has computed. An exception of `report` stops the computation."""

    def __init__(self, report: Callable[[float], object] | None = None) -> None:
        self._report = report
        self._rows, self._total = 0, 1

    def start(self, total: int) -> None:
        """Set the number of rows to compute."""
        self._rows, self._total = 0, total

    def add(self, rows: int) -> None:
        """Count computed rows."""
        # Captum also evaluates the unchanged input, for example to check the sum of integrated gradients.
        self._rows = min(self._total, self._rows + rows)
        if self._report is not None:
            self._report(self._rows / self._total)


@dataclass(frozen=True)
class Attributor:
    """Computes attributions for one source and the given inputs of the decoder, the start token first.

    The source has one row, and `parts` is the number of its tokens, or of the cells of `layout`. With `previous`, the
    inputs of the decoder have scores, too.
    """

    model: Seq2Seq
    source: Source
    parts: int
    layout: Grid | None
    inputs_1T: Tensor
    explained: Explained
    vocabulary: int
    """The number of target tokens."""
    previous: bool = False
    progress: Progress = field(default_factory=Progress)

    def run(self, request: "AttributionRequest") -> Scores:
        """Return the scores of the requested method."""
        methods: dict[Method, Callable[[], Scores]] = {
            "gradient_x_input": self.multiply_gradient,
            "integrated_gradients": lambda: self.integrate_gradients(request.baseline, request.integration_steps),
            "occlusion": self.occlude,
            "value_zeroing": self.zero_values,
        }
        return methods[request.method]()

    def multiply_gradient(self) -> Scores:
        """Return Σ_d x_d ∂y/∂x_d for each embedding x of a token, or annotation of a cell (gradient × input)."""
        captum = import_captum("gradient_x_input")
        method = captum.InputXGradient(self._evaluate_embedded)
        self.progress.start(len(self.explained.steps_K))
        inputs = self._embed()

        def attribute(steps_N: Tensor) -> tuple[Tensor, ...]:
            repeated = tuple(part.requires_grad_() for part in _repeat(inputs, len(steps_N)))
            scores: tuple[Tensor, ...] = method.attribute(repeated, additional_forward_args=(steps_N,))
            return tuple(score.detach().sum(-1) for score in scores)

        return Scores(*self._concatenate(attribute))

    def integrate_gradients(self, baseline: Baseline, integration_steps: int) -> Scores:
        """Return Σ_d (x_d − b_d) ∫ ∂y/∂x_d(b + α (x − b)) dα for each embedding x, with the baseline b."""
        captum = import_captum("integrated_gradients")
        method = captum.IntegratedGradients(self._evaluate_embedded)
        inputs, baselines = self._embed(), self._embed_baseline(baseline)
        self.progress.start(integration_steps * len(self.explained.steps_K))

        def attribute(steps_N: Tensor) -> tuple[Tensor, ...]:
            rows = len(steps_N)
            scores, delta_N = method.attribute(
                _repeat(inputs, rows),
                baselines=_repeat(baselines, rows),
                additional_forward_args=(steps_N,),
                n_steps=integration_steps,
                internal_batch_size=max(rows, self._max_rows),
                return_convergence_delta=True,
            )
            return (delta_N.detach(), *(score.detach().sum(-1) for score in scores))

        delta_K, *scores = self._concatenate(attribute)
        return Scores(scores[0], scores[1] if self.previous else None, delta_K)

    def occlude(self) -> Scores:
        """Return by how much the explained value decreases if one part is hidden."""
        captum = import_captum("occlusion")
        steps = self.inputs_1T.shape[1]
        sizes = (self.parts, steps) if self.previous else (self.parts,)
        visible = tuple(torch.ones(1, size, device=self.inputs_1T.device) for size in sizes)
        self.progress.start(1 + sum(sizes))
        scores = captum.FeatureAblation(self._evaluate_occluded).attribute(
            visible, baselines=(0,) * len(visible), perturbations_per_eval=self._max_rows
        )
        return Scores(*scores)

    def zero_values(self) -> Scores:
        """Return the cosine distance between the features of the decoder, with and without the values of one slot."""
        self.progress.start(1 + self.parts + (1 + self.inputs_1T.shape[1] if self.previous else 0))
        source_KS = self._zero_values(("encoder-self", "cross"), self.parts, "to the source")
        if not self.previous:
            return Scores(source_KS)
        return Scores(source_KS, self._zero_values(("decoder-self",), self.inputs_1T.shape[1], "to previous tokens"))

    @property
    def _max_rows(self) -> int:
        """The number of rows that are processed together, so that memory use is bounded."""
        steps = self.inputs_1T.shape[1]
        return max(1, min(MAX_TOKENS // (self.parts + steps), MAX_LOGITS // (steps * self.vocabulary)))

    @property
    def _modules(self) -> tuple[nn.Module, ...]:
        """The modules whose outputs gradients are attributed to."""
        encoder, decoder = self.model.encoder, self.model.decoder
        modules = (encoder.input_module, decoder.token_embedding) if self.previous else (encoder.input_module,)
        for owner, module in zip((encoder, decoder), modules, strict=False):
            if module is None:
                raise ConfigError(
                    f"{type(owner).__name__} declares no embedding, so gradients cannot be attributed to tokens. Use "
                    "the method occlusion, or define the property `token_embedding`."
                )
        if encoder.input_module is decoder.token_embedding:
            raise ConfigError(
                "Encoder and decoder use the same embedding module, so gradients cannot be attributed to the source "
                "alone. Use the method occlusion, or two modules that share their weights."
            )
        return tuple(module for module in modules if module is not None)

    def _embed(self) -> tuple[Tensor, ...]:
        """Return the outputs of the modules, which gradients are attributed to."""
        outputs: dict[nn.Module, list[Tensor]] = {module: [] for module in self._modules}
        with ExitStack() as stack:
            for module, calls in outputs.items():
                stack.callback(module.register_forward_hook(lambda *call, calls=calls: calls.append(call[-1])).remove)
            with torch.no_grad():
                self.model(self.source, self.inputs_1T)
        # Some decoders embed one token at a time.
        return tuple(calls[0] if calls[0].dim() == 3 else torch.stack(calls, 1) for calls in outputs.values())

    def _embed_baseline(self, baseline: Baseline) -> tuple[Tensor, ...]:
        embedded = self._embed()
        if baseline == "zero":
            return tuple(map(torch.zeros_like, embedded))
        rows = []
        for module, part_1SD in zip(self._modules, embedded, strict=True):
            if not isinstance(module, nn.Embedding):
                raise ConfigError(
                    f"baseline: {baseline} is the embedding of a token, but the source is not text. Use the baseline "
                    "zero."
                )
            rows.append(module.weight[_BASELINE_TOKENS[baseline]].detach().expand_as(part_1SD))
        return tuple(rows)

    def _evaluate_embedded(self, *arguments: Tensor) -> Tensor:
        """Return the explained value of one step for each row, given the embeddings and the index of the step."""
        *embedded, steps_N = arguments
        rows = len(steps_N)
        with replace_outputs(dict(zip(self._modules, embedded, strict=True))):
            decoded = self.model(self._repeat_source(rows), self.inputs_1T.expand(rows, -1))
        self.progress.add(rows)
        features_ND = decoded.features[torch.arange(rows, device=steps_N.device), self.explained.steps_K[steps_N]]
        return self.explained.select(decoded.output(features_ND), steps_N)

    def _evaluate_occluded(self, visible_NS: Tensor, visible_NT: Tensor | None = None) -> Tensor:
        """Return the explained values of all steps for each row, given the parts that are visible, 1 or 0."""
        rows = len(visible_NS)
        source = self._repeat_source(rows).occlude(visible_NS == 0, UNKNOWN, self.layout)
        inputs_NT = self.inputs_1T.expand(rows, -1)
        if visible_NT is not None:
            inputs_NT = inputs_NT.masked_fill(visible_NT == 0, UNKNOWN)
        decoded = self.model(source, inputs_NT)
        self.progress.add(rows)
        steps_K = self.explained.steps_K
        logits_NV = decoded.output(decoded.features[:, steps_K]).flatten(0, 1)
        return self.explained.select(logits_NV, torch.arange(len(steps_K), device=steps_K.device).repeat(rows)).view(
            rows, -1
        )

    def _zero_values(self, roles: Sequence[Role], slots: int, which: str) -> Tensor:
        attentions = find_attentions(self.model, *roles).values()
        if not attentions:
            raise ConfigError(
                f"The model has no attention {which}, so there are no values to set to zero. Use another method."
            )
        device, steps_K = self.inputs_1T.device, self.explained.steps_K
        one_slot_SS = torch.eye(slots, dtype=torch.bool, device=device)
        nothing_1S = torch.zeros(1, slots, dtype=torch.bool, device=device)
        features = []
        with torch.no_grad():
            for zeroed_NS in torch.split(torch.cat([nothing_1S, one_slot_SS]), self._max_rows):
                rows = len(zeroed_NS)
                with intervene(dict.fromkeys(attentions, (ZeroValues(zeroed_NS),))):
                    decoded = self.model(self._repeat_source(rows), self.inputs_1T.expand(rows, -1))
                self.progress.add(rows)
                features.append(decoded.features[:, steps_K])
        features_NKD = torch.cat(features)
        similarity_SK = nn.functional.cosine_similarity(features_NKD[:1], features_NKD[1:], dim=-1)
        return (1 - similarity_SK).clamp_min(0).t()

    def _concatenate(self, attribute: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Call a function with the indices of the explained steps, in batches, and concatenate its results."""
        indices = torch.arange(len(self.explained.steps_K), device=self.inputs_1T.device)
        # The kernels of cuDNN for recurrent networks compute gradients in training mode only.
        with torch.backends.cudnn.flags(enabled=False):
            parts = [attribute(steps_N) for steps_N in torch.split(indices, self._max_rows)]
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def _repeat_source(self, rows: int) -> Source:
        return self.source.rows(torch.zeros(rows, dtype=torch.long, device=self.inputs_1T.device))


def _repeat(inputs: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
    return tuple(part.repeat(rows, *(1,) * (part.dim() - 1)) for part in inputs)


@contextmanager
def replace_outputs(outputs: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Within the block, modules return the given outputs (B, T, D) and compute nothing. A module that is called with
    one token for each row returns one step after the other.
    """
    replaced = {module: vars(module).get("forward") for module in outputs}
    for module, output_BTD in outputs.items():
        vars(module)["forward"] = _return_output(output_BTD)
    try:
        yield
    finally:
        for module, forward in replaced.items():
            del vars(module)["forward"]
            vars(module).update({} if forward is None else {"forward": forward})


def _return_output(output_BTD: Tensor) -> Callable[[Tensor], Tensor]:
    steps = iter(output_BTD.unbind(1))
    return lambda tokens: next(steps) if tokens.dim() == 1 else output_BTD


def import_captum(method: str) -> ModuleType:
    """Import captum, which is needed only for attribution."""
    try:
        attr = importlib.import_module("captum.attr")
    except ImportError:
        raise ConfigError(
            f"The method {method} requires the package captum, which is not installed. Run pip install "
            "'regard[explain]', or use the method value_zeroing or attention."
        ) from None
    return attr


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
        check_type("progress", self.progress, Callable | None, "a function")
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
    grid = prediction.layout
    parts = len(prediction.source_tokens) if grid is None else grid.height * grid.width
    if request.method == "attention":
        scores = Scores(torch.from_numpy(prediction.attention))
    elif steps and parts:
        tokens, to_tensor = [*hypothesis.tokens, END], partial(torch.tensor, device=predictor.device)
        contrast_K = None if other is None else to_tensor([other])
        attributor = Attributor(
            predictor.model,
            predictor.collate([item]),
            parts,
            prediction.layout,
            # A step does not depend on the tokens after it.
            to_tensor([START, *tokens[: max(steps)]]).unsqueeze(0),
            Explained(to_tensor(steps), to_tensor([tokens[step] for step in steps]), contrast_K),
            len(predictor.tokenizer),
            request.previous,
            Progress(request.progress),
        )
        with predictor.evaluation():
            scores = attributor.run(request)
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


def _to_numpy(scores: torch.Tensor) -> AttentionWeights:
    array: AttentionWeights = scores.detach().float().cpu().numpy()
    return array


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
