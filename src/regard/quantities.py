"""The numbers of settings: a type for each quantity, with the range that makes sense.

A number far out of range is a typo, or an attack: it is rejected before memory is allocated for it. `true` is not a
number, although Python and pydantic accept it as 1.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("not_a_number", "expected a number")
    return value


_NUMBER = BeforeValidator(_reject_bool)

Integer = Annotated[int, _NUMBER, Field(ge=-(10**9), le=10**9)]
"""An integer without a more specific type."""

Width = Annotated[int, _NUMBER, Field(gt=0, le=65_536)]
"""The width of a layer: hidden units, embedding, channels."""
Layers = Annotated[int, _NUMBER, Field(gt=0, le=1_000)]
"""The depth of a network, or the number of one of its layers."""
Heads = Annotated[int, _NUMBER, Field(gt=0, le=1_000)]
"""The number of attention heads, or the number of one of them."""
ImageSize = Annotated[int, _NUMBER, Field(gt=0, le=16_384)]
"""The height or width of an image or of a grid."""
Length = Annotated[int, _NUMBER, Field(gt=0, le=1_000_000)]
"""The length of a sequence: tokens, slots, positions."""
OptionalLength = Annotated[int, _NUMBER, Field(ge=0, le=1_000_000)]
"""A length that may be zero."""
VocabularySize = Annotated[int, _NUMBER, Field(gt=0, le=10_000_000)]

CorpusSize = Annotated[int, _NUMBER, Field(gt=0, le=10_000_000, description="number of pairs")]
"""The number of pairs of a built-in corpus, which is generated in memory."""
Count = Annotated[int, _NUMBER, Field(gt=0, le=10**9)]
"""A number of steps, validations, occurrences, …: at least one."""
OptionalCount = Annotated[int, _NUMBER, Field(ge=0, le=10**9)]
"""A number of steps, …; zero turns something off."""
BatchSize = Annotated[int, _NUMBER, Field(gt=0, le=10_000_000)]
"""The number of pairs or of tokens in a batch."""
BeamSize = Annotated[int, _NUMBER, Field(gt=0, le=10_000)]
"""The number of hypotheses of a source."""
SampleCount = Annotated[int, _NUMBER, Field(ge=0, le=10_000)]
"""The number of samples of a source; 0 turns sampling off."""
Resamples = Annotated[int, _NUMBER, Field(ge=10, le=10_000_000)]
"""The number of resamples of a bootstrap, or of trials of a randomization test."""
RunCount = Annotated[int, _NUMBER, Field(gt=0, le=10_000)]
"""The number of runs that are trained one after the other."""
WorkerCount = Annotated[int, _NUMBER, Field(gt=0, le=10_000)]
"""The number of processes that compute at the same time."""
Threads = Annotated[int, _NUMBER, Field(gt=0, le=1_024)]
GpuShare = Annotated[float, _NUMBER, Field(ge=0, le=1_024)]
"""The number of GPUs of a process; several processes may share one."""
MAX_SEED = 2**63 - 1
Seed = Annotated[int, _NUMBER, Field(ge=0, le=MAX_SEED, description="seed of the random number generator")]
Column = Annotated[int, _NUMBER, Field(gt=0, le=1_000_000)]
"""The number of a column in a file."""

Position = Annotated[float, Field(ge=0, le=1e9)]
"""A position in a schedule, or an average length."""
Minutes = Annotated[float, _NUMBER, Field(gt=0, le=10_000_000)]
Seconds = Annotated[float, _NUMBER, Field(gt=0, le=86_400)]
"""The longest time that a server waits."""
OptionalSeconds = Annotated[float, _NUMBER, Field(ge=0, le=86_400)]
"""A time of a server; 0 is off."""
RequestRate = Annotated[float, _NUMBER, Field(gt=0, le=1_000_000)]
"""Requests per minute."""
Port = Annotated[int, _NUMBER, Field(ge=0, le=65_535)]
"""The port of a server; 0 is a free one."""
Epochs = Annotated[float, _NUMBER, Field(gt=0, le=10**9)]
Fraction = Annotated[float, _NUMBER, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, _NUMBER, Field(gt=0, le=1)]
FractionBelowOne = Annotated[float, _NUMBER, Field(ge=0, lt=1)]
DropoutProbability = Annotated[float, _NUMBER, Field(ge=0, le=0.999)]
"""What is kept is scaled by 1 / (1 − p). Closer to 1, p is rounded to 1, and nothing is left to learn from."""
OpenFraction = Annotated[float, _NUMBER, Field(gt=0, lt=1)]
HeldOutFraction = Annotated[float, _NUMBER, Field(gt=0, lt=0.5)]
LearningRate = Annotated[float, _NUMBER, Field(gt=0, le=1e30)]
"""Rates that make training diverge are allowed: `--find learning-rate` and tests use them."""
Weight = Annotated[float, _NUMBER, Field(ge=0, le=1e6)]
"""The weight of a term, such as a loss or a penalty; 0 turns it off."""
PositiveWeight = Annotated[float, _NUMBER, Field(gt=0, le=1e6)]
PositiveNorm = Annotated[float, _NUMBER, Field(gt=0, le=1e30)]
"""The maximum norm of a gradient; a very large one turns clipping off."""
Bias = Annotated[float, _NUMBER, Field(ge=-1_000, le=1_000)]
Temperature = Annotated[float, _NUMBER, Field(ge=0.001, le=1_000)]
"""Logits divided by a smaller temperature overflow."""
Factor = Annotated[float, _NUMBER, Field(ge=1, le=1_000)]
Ratio = Annotated[float, _NUMBER, Field(gt=0, le=10_000)]
