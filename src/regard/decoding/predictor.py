"""Predictor: text in, text out. A model with its tokenizers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.record import record
from regard.data.batching import Batch, pad, warn_truncated
from regard.data.sampler import batch_by_length
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN, TokenizedText, TokenizerPair
from regard.decoding.beam import BeamOptions, BeamStep, beam_search
from regard.decoding.constraints import RequiredPhrases
from regard.decoding.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram, RepetitionPenalty, Rule
from regard.decoding.sampling import Sampler, rank_by_risk
from regard.decoding.search import Hypothesis, SpecialTokens, choose_most_likely, decode_stepwise
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.errors import ConfigError, ModelError
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq
from regard.ops.reference_mode import full_precision

SPECIAL_TOKENS = SpecialTokens(START, END, suppressed=(PAD, UNKNOWN, START))
GREEDY = SearchSettings()


class DecodedText(NamedTuple):
    """A predicted text with its log-probability and its tokens; attention weights (T × S, by name) if requested."""

    text: str
    score: float
    truncated: bool
    source: TokenizedText
    target: list[int]
    attentions: dict[str, Tensor]


class Constraints(NamedTuple):
    """The prefix and the required phrases of each prediction, and the phrases that no prediction may contain."""

    prefixes: Sequence[str] = ()
    phrases: Sequence[Sequence[str]] = ()
    banned: Sequence[str] = ()

    def select(self, rows: Sequence[int]) -> "Constraints":
        """Return the constraints of some of the texts."""
        return Constraints(
            [self.prefixes[row] for row in rows] if self.prefixes else (),
            [self.phrases[row] for row in rows] if self.phrases else (),
            self.banned,
        )


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True)
class Predictor:
    """A model, its tokenizers, and the length limits of its predictions."""

    model: Seq2Seq
    tokenizers: TokenizerPair
    limits: DecodingSettings
    max_length: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def predict(
        self,
        texts: Sequence[str],
        search: SearchSettings = GREEDY,
        constraints: Constraints = NO_CONSTRAINTS,
        *,
        batch_size: int = 64,
        attention: bool = False,
        history: list[BeamStep] | None = None,
    ) -> list[list[DecodedText]]:
        """Return the `nbest` predictions for each text, best first.

        The prediction for an empty text, or for one that contains only white space, is empty.
        """
        encoded = self._encode(texts)
        warn_truncated(sum(len(tokens.ids) > self.max_length for tokens in encoded), self.max_length)
        sources = [self._truncate(tokens) for tokens in encoded]
        predictions: dict[int, list[DecodedText]] = {}
        generator = torch.Generator(self.device).manual_seed(search.seed)
        was_training = self.model.training
        self.model.eval()
        try:
            for rows in batch_by_length([len(source.ids) for source in sources], batch_size):
                batch = [sources[row] for row in rows]
                with torch.inference_mode(), full_precision():
                    source = pad([tokens.ids for tokens in batch]).to(self.device)
                    nbest = self._search(source, search, constraints.select(rows), generator, history)
                    _check_finite(nbest)
                    weights = self._attention_weights(nbest, source) if attention else {}
                predictions.update(zip(rows, self._decode(nbest, batch, weights), strict=True))
        finally:
            self.model.train(was_training)
        return [predictions[row] for row in range(len(sources))]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return log p(target | source) of each pair."""
        source = pad([self._truncate(tokens).ids for tokens in self._encode(sources)]).to(self.device)
        target = pad([[*ids, END] for ids in self.tokenizers.target.ids(targets)]).to(self.device)
        self.model.eval()
        with torch.inference_mode(), full_precision():
            logits_BTV = self.model(source, Batch(source, target, [], 0).decoder_inputs).logits_BTV
            log_p_BTV = logits_BTV.float().log_softmax(-1)
            log_p_BT = log_p_BTV.gather(-1, target.tokens_BT.unsqueeze(-1)).squeeze(-1)
            scores: list[float] = log_p_BT.masked_fill(~target.valid_BT, 0.0).double().sum(-1).tolist()
        return scores

    def _encode(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize each text. White space alone has no tokens, because training drops such sources."""
        return self.tokenizers.source.encode([text if text.strip() else "" for text in texts])

    def _truncate(self, tokens: TokenizedText) -> TokenizedText:
        end = self.max_length
        return TokenizedText(tokens.ids[:end], tokens.texts[:end], tokens.offsets[:end])

    def _search(
        self,
        source: Padded,
        search: SearchSettings,
        constraints: Constraints,
        generator: torch.Generator,
        history: list[BeamStep] | None,
    ) -> list[list[Hypothesis]]:
        """Run the strategy that is set in `search`, under the rules and constraints."""
        memory = self.model.encoder(source)
        limits_B = (source.lengths_B * self.limits.max_length_ratio + self.limits.max_length_extra).long()
        limits_B = torch.where(source.lengths_B > 0, limits_B, 0)
        tokenized = self._tokenize_constraints(constraints)
        limits_B = _extend_limits(limits_B, tokenized)
        rules = _build_rules(search, tokenized, limits_B)
        inputs = (self.model.decoder, memory, SPECIAL_TOKENS, limits_B)
        if search.sample or search.mbr_samples:
            sampler = Sampler(generator, search.temperature, search.top_k, search.top_p, search.min_p)
            nbest = decode_stepwise(*inputs, sampler, rules, search.mbr_samples or search.nbest)
            nbest = [sorted(samples, key=lambda sample: -sample.score) for samples in nbest]
        elif search.beam == 1:
            nbest = decode_stepwise(*inputs, choose_most_likely, rules)
        else:
            count = search.beam if search.coverage_penalty else search.nbest
            options = BeamOptions(
                search.beam, count, search.length_penalty, search.groups, search.diversity_penalty, history
            )
            nbest = beam_search(*inputs, options, rules)
        if search.coverage_penalty:
            nbest = self._rerank_by_coverage(nbest, source, search.coverage_penalty)
        if search.mbr_samples:
            nbest = [rank_by_risk(samples, self.tokenizers.target.decode) for samples in nbest]
        return [hypotheses[: search.nbest] for hypotheses in nbest]

    def _tokenize_constraints(self, constraints: Constraints) -> "_TokenizedConstraints":
        return _TokenizedConstraints(
            self._tokenize_required("prefix", constraints.prefixes),
            [
                [ids for ids in self._tokenize_required("must_contain", phrases) if ids]
                for phrases in constraints.phrases
            ],
            tuple(tuple(phrase) for phrase in self.tokenizers.target.ids(constraints.banned) if phrase),
        )

    def _tokenize_required(self, option: str, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts that predictions must contain. Reject a text with unknown tokens."""
        tokenized = self.tokenizers.target.ids(texts)
        for text, ids in zip(texts, tokenized, strict=True):
            if UNKNOWN in ids:
                raise ConfigError(
                    f"{option}: the model's vocabulary lacks part of {text!r}, so no prediction can contain it. Use a "
                    "text that consists of known tokens."
                )
        return tokenized

    def _attention_weights(self, nbest: list[list[Hypothesis]], source: Padded) -> dict[str, Tensor]:
        """Record attention weights in a second pass over the finished hypotheses, so that no search has to."""
        rows = torch.tensor([row for row, hypotheses in enumerate(nbest) for _ in hypotheses], device=self.device)
        inputs = pad([[START, *hypothesis.tokens] for hypotheses in nbest for hypothesis in hypotheses]).to(self.device)
        with record(self.model) as trace:
            self.model(Padded(source.tokens_BT[rows], source.lengths_B[rows]), inputs.tokens_BT)
        return trace.weights

    def _rerank_by_coverage(
        self, nbest: list[list[Hypothesis]], source: Padded, weight: float
    ) -> list[list[Hypothesis]]:
        """Add β Σ_j log min(Σ_t a_tj, 1) to the rank of each hypothesis (Wu et al. 2016), and sort again."""
        weights = self._attention_weights(nbest, source)
        cross = [part for name, part in weights.items() if attention_role(name) == "cross"]
        if not cross:
            return nbest
        last_NTS = cross[-1] if cross[-1].dim() == 3 else cross[-1].mean(1)
        reranked, index = [], 0
        for row, hypotheses in enumerate(nbest):
            scored = []
            for hypothesis in hypotheses:
                weights_TS = last_NTS[index, : len(hypothesis.tokens) + 1, : int(source.lengths_B[row])]
                coverage = weights_TS.sum(0).clamp(1e-9, 1.0).log().sum()
                scored.append(hypothesis._replace(rank=hypothesis.rank + weight * float(coverage)))
                index += 1
            reranked.append(sorted(scored, key=lambda hypothesis: hypothesis.sort_key))
        return reranked

    def _decode(
        self, nbest: list[list[Hypothesis]], sources: list[TokenizedText], weights: dict[str, Tensor]
    ) -> list[list[DecodedText]]:
        """Detokenize the hypotheses, and assign its attention weights to each."""
        decoded: list[list[DecodedText]] = []
        index = 0
        for hypotheses, source in zip(nbest, sources, strict=True):
            decoded.append([])
            for hypothesis in hypotheses:
                lengths = (len(hypothesis.tokens), len(source.ids))
                attentions = {
                    name: _remove_padding(attention_role(name), part[index], *lengths).float().cpu()
                    for name, part in weights.items()
                }
                text = self.tokenizers.target.decode(hypothesis.tokens)
                truncated = hypothesis.truncated and bool(source.ids)
                decoded[-1].append(
                    DecodedText(text, hypothesis.score, truncated, source, hypothesis.tokens, attentions)
                )
                index += 1
        return decoded


def _check_finite(nbest: Sequence[Sequence[Hypothesis]]) -> None:
    """Raise ModelError if the model computes NaN. A beam of NaN contains no hypothesis at all."""
    if not all(hypotheses and not math.isnan(hypotheses[0].score) for hypotheses in nbest):
        raise ModelError(
            "The model computes values that are not finite, so it cannot predict anything. Its weights have diverged "
            "or are damaged. Use another checkpoint, or train the model again with a lower training.learning_rate."
        )


class _TokenizedConstraints(NamedTuple):
    """`Constraints` as token ids."""

    prefixes: list[list[int]]
    phrases: list[list[list[int]]]
    banned: tuple[tuple[int, ...], ...]


def _extend_limits(limits_B: Tensor, constraints: _TokenizedConstraints) -> Tensor:
    """Raise the length limits to fit the required tokens and END. An empty source keeps its limit of 0."""
    required = [0] * len(limits_B)
    for row, prefix in enumerate(constraints.prefixes):
        required[row] += len(prefix)
    for row, phrases in enumerate(constraints.phrases):
        required[row] += sum(map(len, phrases))
    if not any(required):
        return limits_B
    return torch.where(limits_B > 0, limits_B.clamp_min(torch.tensor(required, device=limits_B.device) + 1), limits_B)


def _build_rules(search: SearchSettings, constraints: _TokenizedConstraints, limits_B: Tensor) -> list[Rule]:
    """Build the rules in order: required phrases and prefixes are last, because they override the others."""
    rules: list[Rule] = []
    if search.min_length:
        rules.append(MinLength(END, search.min_length))
    if search.no_repeat_ngram:
        rules.append(NoRepeatNgram(search.no_repeat_ngram))
    if search.repetition_penalty > 1:
        rules.append(RepetitionPenalty(search.repetition_penalty))
    if constraints.banned:
        rules.append(BannedPhrases(constraints.banned))
    if any(constraints.phrases):
        rules.append(RequiredPhrases(constraints.phrases, limits_B.tolist(), END))
    if any(constraints.prefixes):
        rules.append(ForcedPrefix(constraints.prefixes))
    return rules


def attention_role(name: str) -> str:
    """Return the role of an attention by its name in the model: `encoder`, `self` or `cross`."""
    parts = name.split(".")
    return "encoder" if "encoder" in parts or "encoders" in parts else "self" if "self_attention" in parts else "cross"


def _remove_padding(role: str, weights: Tensor, target: int, source: int) -> Tensor:
    """Cut the attention weights of one hypothesis to its lengths. Self-attention starts at the start token."""
    rows, columns = {"encoder": (source, source), "self": (target, target), "cross": (target, source)}[role]
    return weights[..., :rows, :columns]
