"""Forced decoding: the attention weights of given targets.

B rows, T target tokens, S source tokens, H heads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from regard.attention.record import find_attentions, record
from regard.data.corpora import RawSource
from regard.data.sampler import batch_by_length
from regard.data.sources import SourceItem
from regard.data.tokens.tokenizers import TokenizedText
from regard.decoding.predictor import MAX_LOGITS, Predictor
from regard.decoding.search import AttentionWeights, Hypothesis
from regard.decoding.weights import BatchWeights, decode, encode, to_array
from regard.errors import ConfigError
from regard.models.seq2seq import Seq2Seq

T = TypeVar("T")

_BATCHES_PER_WINDOW = 16
"""The pairs of this number of batches are tokenized and sorted by length together."""


class ForcedPair(NamedTuple):
    """A source, the target that was decoded, and the weights of each attention by name. Pairs are numbered from 0.

    Weights are (T + 1, S), or (H, T + 1, S) for several heads. Row t is the step that predicts target token t; it reads
    token t − 1. The last row predicts the end of the target.
    """

    number: int
    source: SourceItem
    target_text: str
    target: TokenizedText
    weights: Mapping[str, AttentionWeights]


def cross_attentions(model: Seq2Seq) -> dict[str, int]:
    """Return the number of heads of each attention to the source, by its name in the model."""
    return {name: attention.heads for name, attention in find_attentions(model, "cross").items()}


def map_forced(
    predictor: Predictor,
    pairs: Iterable[tuple[RawSource, str]],
    attentions: Collection[str],
    function: Callable[[ForcedPair], T],
    *,
    batch_size: int = 64,
) -> Iterator[T]:
    """Decode the target of each pair, and yield `function` of its weights, in the order of the pairs.

    Weights are discarded after each batch, and batches of long pairs are smaller, so that memory use is bounded. A pair
    with an empty side has no weights.
    """
    numbered = enumerate(pairs)
    while window := list(islice(numbered, _BATCHES_PER_WINDOW * batch_size)):
        read = _read_pairs(predictor, window)
        # The number of logits and weights of a pair is an estimate of the memory that it needs.
        heads, vocabulary = sum(cross_attentions(predictor.model).values()), len(predictor.tokenizer)
        costs = [(len(pair.target.ids) + 1) * (vocabulary + heads * pair.source.length) for pair in read]
        results: dict[int, T] = {}
        with predictor.inference():
            for rows in batch_by_length(costs, batch_size, MAX_LOGITS):
                for pair in _decode_batch(predictor, [read[row] for row in rows], attentions):
                    results[pair.number] = function(pair)
        yield from (results[number] for number, _ in window)


def _read_pairs(predictor: Predictor, pairs: Sequence[tuple[int, tuple[RawSource, str]]]) -> list[ForcedPair]:
    """Tokenize pairs."""
    texts = [target for _, (_, target) in pairs]
    sources = predictor.reader.read([source for _, (source, _) in pairs])
    targets = predictor.tokenizer.encode([text if text.strip() else "" for text in texts])
    rows = zip((number for number, _ in pairs), sources, texts, targets, strict=True)
    return [ForcedPair(*row, {}) for row in rows]


def _decode_batch(
    predictor: Predictor, pairs: Sequence[ForcedPair], attentions: Collection[str]
) -> Iterator[ForcedPair]:
    """Yield the pairs with their weights."""
    yield from (pair for pair in pairs if not (pair.source.length and pair.target.ids))
    pairs = [pair for pair in pairs if pair.source.length and pair.target.ids]
    if not pairs:
        return
    source = predictor.collate([pair.source for pair in pairs])
    targets = [[Hypothesis(pair.target.ids, 0.0, truncated=False)] for pair in pairs]
    memory = predictor.model.encoder(source)
    _, decoding = decode(predictor.model, memory, targets, record(predictor.model, attentions.__contains__))
    longest = max(pair.source.length for pair in pairs)
    weights = {name: to_array(recorded) for name, recorded in decoding.weights.items()}
    for name, array in weights.items():
        if array.shape[-1] != longest:
            raise ConfigError(
                f"{name} attends to {array.shape[-1]} memory slots, but the longest source has {longest} tokens. Words "
                "can be aligned only if the encoder has one slot for each token."
            )
    for row, pair in enumerate(pairs):
        end = len(pair.target.ids) + 1
        yield pair._replace(
            weights={name: array[row, ..., :end, : pair.source.length] for name, array in weights.items()}
        )


def force_targets(
    predictor: Predictor, sources: Sequence[RawSource], targets: Sequence[str], *, batch_size: int = 64
) -> tuple[Sequence[SourceItem], list[Hypothesis]]:
    """Return the sources as items, and the targets as hypotheses with their log-probabilities and the weights of all
    attentions. A target of an empty source has no weights.
    """
    items = predictor.reader.read(sources)
    scores = predictor.score(sources, targets, batch_size=batch_size)
    forced = [
        Hypothesis(tokens, score, truncated=False, rank=score)
        for tokens, score in zip(predictor.tokenizer.ids(targets), scores, strict=True)
    ]
    with predictor.inference():
        for rows in batch_by_length([item.length for item in items], batch_size):
            filled = [row for row in rows if items[row].length]
            if not filled:
                continue
            source = predictor.collate([items[row] for row in filled])
            encoded = encode(predictor.model, source, record(predictor.model))
            nbest = [[forced[row]] for row in filled]
            weights = BatchWeights.of_hypotheses(predictor.model, encoded, nbest)
            for row, [hypothesis] in zip(filled, weights.attach(nbest), strict=True):
                forced[row] = hypothesis
    return items, forced
