"""Loops of greedy search: predictions that repeat a cycle of tokens, often until the length limit.

Greedy search can repeat itself (Holtzman et al. 2020). The loops of a prediction are found after the search, so the
guard adds no operation to its steps.
"""

import re
from collections.abc import Sequence

from regard.decoding.search import Hypothesis

MAX_PERIOD = 8
"""The maximum length of a cycle, in tokens."""

MAX_REPEATS = 3
"""A cycle that occurs up to this number of times in a row is not a loop."""

MIN_LOOP = 16
"""The minimum number of tokens of a loop. Shorter repetitions can be correct: a long number can repeat the digit 0."""

MIN_LOOP_AT_LIMIT = 8
"""The same if the hypothesis was truncated in the loop, at the length limit."""

_REPEATED = re.compile(rf"(.{{1,{MAX_PERIOD}}}?)\1{{{MAX_REPEATS},}}", re.DOTALL)


def remove_loops(hypothesis: Hypothesis, source_tokens: Sequence[str]) -> list[int] | None:
    """Return the tokens of a hypothesis with each loop reduced to its first cycle; None if it has no loop.

    If the hypothesis was truncated in a loop, it ends after the first cycle. If the source also repeats a cycle, return
    None, because the repetition may be correct.
    """
    tokens = hypothesis.tokens
    min_loop = MIN_LOOP_AT_LIMIT if hypothesis.truncated else MIN_LOOP
    # Most predictions have too few repeated tokens. This check is much faster than the search below.
    if (len(tokens) - len(set(tokens))) * (MAX_REPEATS + 1) < min_loop * MAX_REPEATS:
        return None
    kept: list[int] = []
    position = 0
    # A character for each token: regular expressions find repetitions faster than a loop over tokens.
    for match in _REPEATED.finditer("".join(map(chr, tokens))):
        at_limit = hypothesis.truncated and len(tokens) - match.end() < len(match[1])
        if match.end() - match.start() >= (MIN_LOOP_AT_LIMIT if at_limit else MIN_LOOP):
            kept += tokens[position : match.end(1)]
            position = len(tokens) if at_limit else match.end()
    if not position or _repeats(source_tokens):
        return None
    return kept + tokens[position:]


def _repeats(tokens: Sequence[str]) -> bool:
    ids = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return _REPEATED.search("".join(chr(ids[token]) for token in tokens)) is not None
