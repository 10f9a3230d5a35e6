"""Text in, text out: a model with its tokenizers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.record import record
from regard.data.batching import Batch, pad, warn_truncated
from regard.data.sampler import batch_by_length
from regard.data.tokens.tokenizers import END, PAD, START, UNKNOWN, TokenizerPair, Tokens
from regard.decoding.beam import BeamOptions, BeamStep, beam
from regard.decoding.constraints import RequiredPhrases
from regard.decoding.rules import Banned, NoRepeat, NotBefore, Prefix, Repetition, Rule
from regard.decoding.sampling import Draw, rank_by_risk
from regard.decoding.search import Hypothesis, Symbols, likeliest, walk
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.errors import ConfigError, ModelError
from regard.models.contracts import Padded
from regard.models.seq2seq import Seq2Seq
from regard.ops.reference_mode import full_precision

SYMBOLS = Symbols(START, END, never=(PAD, UNKNOWN, START))
GREEDY = SearchSettings()


class DecodedText(NamedTuple):
    """An answer with what it answers; the attentions (T × S, by name) where they were asked for."""

    text: str
    score: float
    truncated: bool
    source: Tokens
    target: list[int]
    attentions: dict[str, Tensor]


class Constraints(NamedTuple):
    """What the answers shall begin with and contain, one of each for each text, and what none may contain."""

    prefixes: Sequence[str] = ()
    phrases: Sequence[Sequence[str]] = ()
    banned: Sequence[str] = ()

    def of(self, rows: Sequence[int]) -> "Constraints":
        """Those of some of the texts."""
        return Constraints(
            [self.prefixes[row] for row in rows] if self.prefixes else (),
            [self.phrases[row] for row in rows] if self.phrases else (),
            self.banned,
        )


NO_WISHES = Constraints()


@dataclass(frozen=True)
class Predictor:
    """A model, its tokenizers, and how long an answer may be."""

    model: Seq2Seq
    tokenizers: TokenizerPair
    limits: DecodingSettings
    max_length: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def translate(
        self,
        texts: Sequence[str],
        search: SearchSettings = GREEDY,
        wishes: Constraints = NO_WISHES,
        *,
        batch_size: int = 64,
        attention: bool = False,
        history: list[BeamStep] | None = None,
    ) -> list[list[DecodedText]]:
        """The `nbest` predictions for each text, the best first. The prediction for an empty text, or for one of white
        space alone, is empty.
        """
        encoded = self._encode(texts)
        warn_truncated(sum(len(tokens.ids) > self.max_length for tokens in encoded), self.max_length)
        sources = [self._clip(tokens) for tokens in encoded]
        answers: dict[int, list[DecodedText]] = {}
        generator = torch.Generator(self.device).manual_seed(search.seed)
        was_training = self.model.training
        self.model.eval()
        try:
            for rows in batch_by_length([len(source.ids) for source in sources], batch_size):
                own = [sources[row] for row in rows]
                with torch.inference_mode(), full_precision():
                    source = pad([tokens.ids for tokens in own]).to(self.device)
                    found = self._search(source, search, wishes.of(rows), generator, history)
                    _check_finite(found)
                    weights = self._weights(found, source) if attention else {}
                answers.update(zip(rows, self._told(found, own, weights), strict=True))
        finally:
            self.model.train(was_training)
        return [answers[row] for row in range(len(sources))]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log p(target | source) of each pair."""
        source = pad([self._clip(tokens).ids for tokens in self._encode(sources)]).to(self.device)
        target = pad([[*ids, END] for ids in self.tokenizers.target.ids(targets)]).to(self.device)
        self.model.eval()
        with torch.inference_mode(), full_precision():
            logits_BTV = self.model(source, Batch(source, target, [], 0).decoder_inputs).logits_BTV
            log_p_BTV = logits_BTV.float().log_softmax(-1)
            log_p_BT = log_p_BTV.gather(-1, target.tokens_BT.unsqueeze(-1)).squeeze(-1)
            scores: list[float] = log_p_BT.masked_fill(~target.valid_BT, 0.0).double().sum(-1).tolist()
        return scores

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text. White space alone has none: training drops such sources too."""
        return self.tokenizers.source.encode([text if text.strip() else "" for text in texts])

    def _clip(self, tokens: Tokens) -> Tokens:
        end = self.max_length
        return Tokens(tokens.ids[:end], tokens.texts[:end], tokens.offsets[:end])

    def _search(
        self,
        source: Padded,
        search: SearchSettings,
        wishes: Constraints,
        generator: torch.Generator,
        history: list[BeamStep] | None,
    ) -> list[list[Hypothesis]]:
        """By the strategy that is set, under the rules that are wished for."""
        memory = self.model.encoder(source)
        limits_B = (source.lengths_B * self.limits.max_length_ratio + self.limits.max_length_extra).long()
        limits_B = torch.where(source.lengths_B > 0, limits_B, 0)
        spoken = self._spoken(wishes)
        limits_B = _roomy(limits_B, spoken)
        rules = _rules(search, spoken, limits_B)
        given = (self.model.decoder, memory, SYMBOLS, limits_B)
        if search.sample or search.mbr_samples:
            draw = Draw(generator, search.temperature, search.top_k, search.top_p, search.min_p)
            found = walk(*given, draw, rules, search.mbr_samples or search.nbest)
            found = [sorted(drawn, key=lambda answer: -answer.score) for drawn in found]
        elif search.beam == 1:
            found = walk(*given, likeliest, rules)
        else:
            kept = search.beam if search.coverage_penalty else search.nbest
            options = BeamOptions(
                search.beam, kept, search.length_penalty, search.groups, search.diversity_penalty, history
            )
            found = beam(*given, options, rules)
        if search.coverage_penalty:
            found = self._covering(found, source, search.coverage_penalty)
        if search.mbr_samples:
            found = [rank_by_risk(drawn, self.tokenizers.target.decode) for drawn in found]
        return [answers[: search.nbest] for answers in found]

    def _spoken(self, wishes: Constraints) -> "_Spoken":
        """The wishes in tokens."""
        return _Spoken(
            self._sayable("prefix", wishes.prefixes),
            [[phrase for phrase in self._sayable("must_say", own) if phrase] for own in wishes.phrases],
            tuple(tuple(phrase) for phrase in self.tokenizers.target.ids(wishes.banned) if phrase),
        )

    def _sayable(self, wish: str, texts: Sequence[str]) -> list[list[int]]:
        found = self.tokenizers.target.ids(texts)
        for text, ids in zip(texts, found, strict=True):
            if UNKNOWN in ids:
                raise ConfigError(
                    f"{wish}: the model's vocabulary lacks part of {text!r}, so that no answer can contain it. Wish "
                    "for something that is made of tokens it was trained on."
                )
        return found

    def _weights(self, found: list[list[Hypothesis]], source: Padded) -> dict[str, Tensor]:
        """A second pass over the finished answers keeps the search free of weights, whatever its strategy."""
        rows = torch.tensor([row for row, answers in enumerate(found) for _ in answers], device=self.device)
        given = pad([[START, *answer.tokens] for answers in found for answer in answers]).to(self.device)
        with record(self.model) as trace:
            self.model(Padded(source.tokens_BT[rows], source.lengths_B[rows]), given.tokens_BT)
        return trace.weights

    def _covering(self, found: list[list[Hypothesis]], source: Padded, weight: float) -> list[list[Hypothesis]]:
        """The answers ranked anew, with β Σ_j log min(Σ_t a_tj, 1) added (Wu et al. 2016)."""
        cross = [part for name, part in self._weights(found, source).items() if kind_of(name) == "cross"]
        if not cross:
            return found
        last_NTS = cross[-1] if cross[-1].dim() == 3 else cross[-1].mean(1)
        ranked, index = [], 0
        for row, answers in enumerate(found):
            scored = []
            for answer in answers:
                weights_TS = last_NTS[index, : len(answer.tokens) + 1, : int(source.lengths_B[row])]
                covered = weights_TS.sum(0).clamp(1e-9, 1.0).log().sum()
                scored.append(answer._replace(rank=answer.rank + weight * float(covered)))
                index += 1
            ranked.append(sorted(scored, key=lambda answer: answer.place))
        return ranked

    def _told(
        self, found: list[list[Hypothesis]], sources: list[Tokens], weights: dict[str, Tensor]
    ) -> list[list[DecodedText]]:
        told: list[list[DecodedText]] = []
        index = 0
        for answers, source in zip(found, sources, strict=True):
            told.append([])
            for answer in answers:
                sizes = (len(answer.tokens), len(source.ids))
                own = {name: _cut(kind_of(name), part[index], *sizes).float().cpu() for name, part in weights.items()}
                text = self.tokenizers.target.decode(answer.tokens)
                truncated = answer.truncated and bool(source.ids)
                told[-1].append(DecodedText(text, answer.score, truncated, source, answer.tokens, own))
                index += 1
        return told


def _check_finite(found: Sequence[Sequence[Hypothesis]]) -> None:
    """Reject what a search returns if the model computes NaN: a beam of NaN has no hypothesis at all."""
    if not all(hypotheses and not math.isnan(hypotheses[0].score) for hypotheses in found):
        raise ModelError(
            "The model computes values that are not finite, so it cannot predict anything. Its weights have diverged "
            "or are damaged. Use another checkpoint, or train the model again with a lower training.learning_rate."
        )


class _Spoken(NamedTuple):
    """Wishes in tokens."""

    prefixes: list[list[int]]
    phrases: list[list[list[int]]]
    banned: tuple[tuple[int, ...], ...]


def _roomy(limits_B: Tensor, spoken: _Spoken) -> Tensor:
    """The limits with room for what each answer must say, and for its end; an empty source has an empty answer."""
    needed = [0] * len(limits_B)
    for row, prefix in enumerate(spoken.prefixes):
        needed[row] += len(prefix)
    for row, phrases in enumerate(spoken.phrases):
        needed[row] += sum(map(len, phrases))
    if not any(needed):
        return limits_B
    return torch.where(limits_B > 0, limits_B.clamp_min(torch.tensor(needed, device=limits_B.device) + 1), limits_B)


def _rules(search: SearchSettings, spoken: _Spoken, limits_B: Tensor) -> list[Rule]:
    """Guards first, wishes last: what is wished for stands, whatever the guards think of it."""
    rules: list[Rule] = []
    if search.min_length:
        rules.append(NotBefore(END, search.min_length))
    if search.no_repeat_ngram:
        rules.append(NoRepeat(search.no_repeat_ngram))
    if search.repetition_penalty > 1:
        rules.append(Repetition(search.repetition_penalty))
    if spoken.banned:
        rules.append(Banned(spoken.banned))
    if any(spoken.phrases):
        rules.append(RequiredPhrases(spoken.phrases, limits_B.tolist(), END))
    if any(spoken.prefixes):
        rules.append(Prefix(spoken.prefixes))
    return rules


def kind_of(name: str) -> str:
    """What an attention of a model looks at, told by its name: encoder, self or cross."""
    parts = name.split(".")
    return "encoder" if "encoder" in parts or "encoders" in parts else "self" if "self_attention" in parts else "cross"


def _cut(kind: str, weights: Tensor, target: int, source: int) -> Tensor:
    """The weights of one answer without its padding; a target looks at itself from its start symbol on."""
    rows, columns = {"encoder": (source, source), "self": (target, target), "cross": (target, source)}[kind]
    return weights[..., :rows, :columns]
