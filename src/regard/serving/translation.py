"""Translate documents: split a document into sentences, translate them with a model, and join the translations."""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from regard.serving.documents.html import parse_html
from regard.serving.documents.text import Document, Translation, parse_text
from regard.serving.models import Backend, Output, Wanted, describe_links

SLICE: Final = 128
"""The number of sentences of a document that wait for the model at a time, so that other requests are not delayed."""

TextFormat = Literal["text", "html"]


class Translated(NamedTuple):
    """The translation of a text, the alternatives to it, and its sentences with their predictions."""

    text: str
    alternatives: list[str]
    sentences: Sequence[str]
    outputs: list[Output]

    def describe_sentences(self, source: str, *, scores: bool, align: bool) -> list[dict[str, Any]]:
        """Return what is known of each sentence, with the position of the sentence in the text."""
        described, position = [], 0
        for sentence, output in zip(self.sentences, self.outputs, strict=True):
            start = source.find(sentence, position)
            position = position if start < 0 else start + len(sentence)
            fields: dict[str, Any] = {"source": sentence, "text": output.best.text, "start": start}
            if scores:
                fields["score"] = output.best.score
                fields["alternatives"] = [{"text": each.text, "score": each.score} for each in output.texts[1:]]
            if align:
                fields |= describe_links(sentence, output)
            if output.weights is not None:
                fields["attention"] = output.attention
            described.append(fields)
        return described


def parse(text: str, text_format: TextFormat, language: str, limit: int) -> Document[str]:
    """Split a text into sentences with at most `limit` characters."""
    return parse_html(text, language, limit) if text_format == "html" else parse_text(text, language, limit)


async def translate(backend: Backend, document: Document[str], wanted: Wanted) -> Translated:
    """Translate a text."""
    outputs = await predict_sentences(backend, document, wanted)
    count = max((len(output.texts) for output in outputs), default=1)
    texts = [document.join([choose(output, rank) for output in outputs]) for rank in range(count)]
    return Translated(texts[0], list(dict.fromkeys(texts[1:])), document.sentences, outputs)


async def predict_sentences(backend: Backend, document: Document[Any], wanted: Wanted) -> list[Output]:
    """Predict the sentences of a document, with the alignments that it needs."""
    wanted = wanted.model_copy(update={"align": wanted.align or document.needs_links})
    outputs: list[Output] = []
    for first in range(0, len(document.sentences), SLICE):
        outputs += await backend.predict(document.sentences[first : first + SLICE], wanted)
    return outputs


def choose(output: Output, rank: int = 0) -> Translation:
    """Return the prediction of a sentence with a rank; the last one if there are fewer."""
    chosen = output.texts[min(rank, len(output.texts) - 1)]
    return Translation(chosen.text, chosen.links)
