"""Constraints on predictions: a prefix, phrases that they must contain, and banned phrases.

B sentences, N hypotheses, T tokens generated so far, P phrases of a sentence, L their length, A = P L tokens,
V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.arguments import check_list, check_text, check_texts
from regard.config import resolve
from regard.data.tokens.tokenizers import UNKNOWN, Tokenizer, UnknownTokens
from regard.decoding.rules import ConstraintProgress, Generated, Rule
from regard.decoding.settings import CONSTRAINTS, SearchSettings
from regard.errors import ConfigError
from regard.formatting import quantity

PADDING = -1
"""Fills phrases up to the longest; not a token id."""

_MARGIN = -2
"""Follows the generated tokens; not a token id."""


class _PhraseMatches(NamedTuple):
    """For each phrase of each hypothesis: its tokens, its length, whether the hypothesis lacks it, and whether the
    hypothesis ends with its first n tokens, n = 0 … L − 1.
    """

    tokens_NPL: Tensor
    length_NP: Tensor
    missing_NP: Tensor
    partial_NPL: Tensor


@final
@dataclass(frozen=True)
class RequiredPhrases(Rule):
    """Require each hypothesis to contain the phrases of its sentence.

    A hypothesis cannot end before it contains all of them. A token is masked if the missing phrases would not fit into
    the remaining steps after it; tokens of the longest partially matched phrase count as generated.

    With one phrase, every hypothesis that contains it stays possible. With several phrases that could overlap, some
    hypotheses in which they overlap are excluded when few steps remain.
    """

    sequences: Sequence[Sequence[Sequence[int]]]
    limits: Sequence[int]
    end: int
    only_masks = False

    def __call__(self, log_p_NV: Tensor, generated: Generated) -> Tensor:
        progress = self.progress(generated, log_p_NV.shape[1])
        if progress is None:
            return log_p_NV
        _, lengths_BP, limits_B = (part.to(log_p_NV.device) for part in self._padded)
        required_N = lengths_BP.sum(1)[generated.sentence_N]
        remaining_N = (limits_B[generated.sentence_N] - 2 - generated.steps).clamp_min(0)
        masked_NV = (required_N - remaining_N).unsqueeze(1) > progress.next_NV
        # When few steps remain, a required token stays possible even if it is very unlikely or masked by another rule.
        urgent_N1 = masked_NV.any(1, keepdim=True)
        masked_NV[:, self.end] = progress.now_N < required_N
        return torch.where(urgent_N1, log_p_NV.clamp_min(-1e9), log_p_NV).masked_fill(masked_NV, -torch.inf)

    def progress(self, generated: Generated, vocabulary: int) -> ConstraintProgress | None:
        """Count the tokens of complete phrases, plus those of the longest partial match of a missing phrase."""
        if not any(self.sequences):
            return None
        tokens_NPL, length_NP, missing_NP, partial_NPL = self._match(generated)
        size_L = torch.arange(tokens_NPL.shape[2], device=tokens_NPL.device)
        complete_N = (length_NP * ~missing_NP).sum(1)
        now_N = complete_N + (partial_NPL * size_L * missing_NP.unsqueeze(-1)).amax((1, 2))
        # The length of the match of each phrase after each token of any phrase.
        token_NA = tokens_NPL.flatten(1).sort(1).values
        slot_NPL = torch.searchsorted(token_NA, tokens_NPL.flatten(1)).view_as(tokens_NPL)
        matched_NPA = tokens_NPL.new_zeros(*length_NP.shape, token_NA.shape[1])
        matched_NPA.scatter_reduce_(2, slot_NPL, partial_NPL * (size_L + 1), "amax")
        matched_NPA *= missing_NP.unsqueeze(-1)
        completed_NPA = missing_NP.unsqueeze(-1) & (matched_NPA == length_NP.unsqueeze(-1))
        gained_NA = (completed_NPA * length_NP.unsqueeze(-1)).sum(1) + (matched_NPA * ~completed_NPA).amax(1)
        next_NV = complete_N.unsqueeze(1).repeat(1, vocabulary)
        next_NA = torch.where(token_NA == PADDING, 0, complete_N.unsqueeze(1) + gained_NA)
        next_NV.scatter_reduce_(1, token_NA.clamp_min(0), next_NA, "amax")
        return ConstraintProgress(now_N, next_NV)

    def _match(self, generated: Generated) -> _PhraseMatches:
        """Compare each phrase with the generated tokens at each position. At the end, only a part of it is compared."""
        tokens_BPL, lengths_BP, _ = (part.to(generated.tokens_NT.device) for part in self._padded)
        tokens_NPL, length_NP = tokens_BPL[generated.sentence_N], lengths_BP[generated.sentence_N]
        steps, max_length = generated.steps, tokens_NPL.shape[2]
        margin = generated.tokens_NT.new_full((len(generated.tokens_NT), max_length), _MARGIN)
        windows_NTL = torch.cat([generated.tokens_NT, margin], dim=1).unfold(1, max_length, 1)[:, :steps]
        same = windows_NTL.unsqueeze(1) == tokens_NPL.unsqueeze(2)
        free = (tokens_NPL == PADDING).unsqueeze(2) | (windows_NTL == _MARGIN).unsqueeze(1)
        agrees_NPT = (same | free).all(-1)
        remaining_T = torch.arange(steps, 0, -1, device=tokens_NPL.device)
        contained_NP = (agrees_NPT & (remaining_T >= length_NP.unsqueeze(-1))).any(-1)
        partial_NPL = torch.zeros_like(tokens_NPL, dtype=torch.bool)
        partial_NPL[..., 0] = True
        count = min(steps, max_length - 1)
        partial_NPL[..., 1 : count + 1] = agrees_NPT.flip(-1)[..., :count]
        return _PhraseMatches(tokens_NPL, length_NP, ~contained_NP & (length_NP > 0), partial_NPL)

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """The phrases padded to the longest, (B, P, L), their lengths, and the length limits."""
        max_phrases = max(map(len, self.sequences))
        max_length = max(len(phrase) for phrases in self.sequences for phrase in phrases)
        tokens_BPL = torch.full((len(self.sequences), max_phrases, max_length), PADDING)
        for row, phrases in enumerate(self.sequences):
            for index, phrase in enumerate(phrases):
                tokens_BPL[row, index, : len(phrase)] = torch.tensor(phrase)
        return tokens_BPL, (tokens_BPL != PADDING).sum(-1), torch.tensor(self.limits)


class Constraints(NamedTuple):
    """The prefix and the required phrases of each prediction, and the phrases that no prediction may contain."""

    prefixes: Sequence[str] = ()
    phrases: Sequence[Sequence[str]] = ()
    banned: Sequence[str] = ()
    prefix_ids: Sequence[Sequence[int]] = ()
    """The prefixes as token ids, which replace `prefixes`."""

    def __bool__(self) -> bool:
        """Whether there is any constraint."""
        return any((*self.prefixes, *self.phrases, *self.banned, *self.prefix_ids))

    def select(self, rows: Sequence[int]) -> "Constraints":
        """Return the constraints of some of the texts."""
        return Constraints(
            [self.prefixes[row] for row in rows] if self.prefixes else (),
            [self.phrases[row] for row in rows] if self.phrases else (),
            self.banned,
            [self.prefix_ids[row] for row in rows] if self.prefix_ids else (),
        )

    def tokenize(self, tokenizer: Tokenizer, max_length: int) -> "TokenConstraints":
        """Return the constraints as token ids. Reject texts that no prediction can contain."""
        banned = tuple(tuple(phrase) for phrase in tokenizer.ids(self.banned) if phrase)
        return TokenConstraints(
            self.prefix_ids or _tokenize_required("prefix", self.prefixes, banned, tokenizer),
            [_tokenize_phrases(phrases, banned, tokenizer, max_length) for phrases in self.phrases],
            banned,
        )


NO_CONSTRAINTS = Constraints()


_Banned = tuple[tuple[int, ...], ...]


class TokenConstraints(NamedTuple):
    """`Constraints` as token ids."""

    prefixes: Sequence[Sequence[int]]
    phrases: list[list[list[int]]]
    banned: _Banned

    def extend_limits(self, limits_B: Tensor) -> Tensor:
        """Raise the length limits to fit the required tokens and END. An empty source keeps its limit of 0."""
        required = [0] * len(limits_B)
        for row, prefix in enumerate(self.prefixes):
            required[row] += len(prefix)
        for row, phrases in enumerate(self.phrases):
            required[row] += sum(map(len, phrases))
        if not any(required):
            return limits_B
        return torch.where(
            limits_B > 0, limits_B.clamp_min(torch.tensor(required, device=limits_B.device) + 1), limits_B
        )


def _tokenize_phrases(
    phrases: Sequence[str], banned: _Banned, tokenizer: Tokenizer, max_length: int
) -> list[list[int]]:
    """Tokenize the phrases that a prediction must contain. Reject more tokens than a text of the model can have."""
    tokenized = [ids for ids in _tokenize_required("must_contain", phrases, banned, tokenizer) if ids]
    required = sum(map(len, tokenized))
    if required > max_length:
        raise ConfigError(
            f"must_contain: the phrases have {required:,} tokens, but a text of this model has at most "
            f"{max_length:,} (tokenizer.max_length). Use shorter or fewer phrases."
        )
    return tokenized


def _tokenize_required(option: str, texts: Sequence[str], banned: _Banned, tokenizer: Tokenizer) -> list[list[int]]:
    """Tokenize texts that predictions must contain. Reject a text with unknown tokens, or with a banned phrase."""
    tokenized = tokenizer.ids(texts)
    for text, ids in zip(texts, tokenized, strict=True):
        if UNKNOWN in ids:
            unknown = UnknownTokens.of(tokenizer.find_unknown([text])[0])
            raise ConfigError(
                f"{option}: the model has no token for {unknown} in {text!r}, so no prediction can contain this "
                "text. Use a text that consists of known tokens."
            )
        excluded = next((phrase for phrase in banned if _contains(ids, phrase)), None)
        if excluded is not None:
            raise ConfigError(
                f"{option}: {text!r} contains {tokenizer.decode(list(excluded))!r}, which is banned, so no "
                "prediction satisfies both. Remove one of them."
            )
    return tokenized


def _contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(tokens[start : start + len(phrase)]) == phrase for start in range(len(tokens)))


def parse_search(options: Mapping[str, Any], texts: int | None = None) -> tuple[SearchSettings, Constraints]:
    """Return the settings of the search and the constraints among the options of a prediction."""
    constraints = parse_constraints(options, texts)
    settings = {name: value for name, value in options.items() if name not in CONSTRAINTS}
    return resolve(SearchSettings, settings, {}), constraints


def describe_search(settings: SearchSettings, constraints: Constraints) -> dict[str, Any]:
    """Return the settings and the constraints of the search for a single text, for a trace."""
    return {
        **settings.model_dump(mode="json"),
        "prefix": "".join(constraints.prefixes),
        "must_contain": [phrase for phrases in constraints.phrases for phrase in phrases],
        "banned": list(constraints.banned),
    }


def parse_constraints(options: Mapping[str, Any], texts: int | None) -> Constraints:
    """Return the constraints among the options of a prediction.

    Args:
        options: The options. `prefix` and `must_contain` have one value for each text.
        texts: The number of texts in a list; None for a single text, whose values are not in lists.
    """
    prefixes, phrases = (_per_text(name, options.get(name), texts) for name in ("prefix", "must_contain"))
    return Constraints(
        [check_text("prefix", prefix) for prefix in prefixes],
        [_as_phrases("must_contain", entry) for entry in phrases],
        _as_phrases("banned", options.get("banned") or ()),
    )


def _per_text(name: str, value: Any, texts: int | None) -> Sequence[Any]:
    """Return one value for each text; an empty list if there is no value."""
    if value is None:
        return ()
    if texts is None:
        return [value]
    if isinstance(value, str):
        raise ConfigError(
            f"{name}={value!r} is one value for a list of {quantity(texts, 'text')}. Pass a list, one for each text."
        )
    values = check_list(name, value, "a list with one value for each text")
    if values and len(values) != texts:
        raise ConfigError(
            f"{name} has {quantity(len(values), 'value')} for {quantity(texts, 'text')}. Pass one for each."
        )
    return values


def _as_phrases(name: str, phrases: Any) -> list[str]:
    """Return a list of phrases; a text is a single phrase."""
    return [phrases] if isinstance(phrases, str) else check_texts(name, phrases)
