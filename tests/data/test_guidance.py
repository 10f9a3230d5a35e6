"""Alignments of training pairs: which line belongs to which pair, and how word links are expanded to tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config import resolve
from regard.data.corpora import load_corpus
from regard.data.guidance import AlignmentFile, EncodedAlignments
from regard.data.preparation import PreparationRequest, prepare
from regard.data.ragged import Ragged
from regard.data.settings import BPESide, FilesData
from regard.data.tokens.tokenizers import END, Tokenizer, index_pretokenized
from regard.models.contracts import Tokens
from regard.runs.settings import RunSettings


def test_word_links_are_expanded_to_tokens_and_normalized() -> None:
    # Source: two words of two tokens with a space between them; target: one word of one token, one of two tokens.
    encoded = EncodedAlignments(Ragged.of([[1, 1, 0, 2, 2]]), Ragged.of([[1, 2, 2]]), Ragged.of([[0, 0, 1, 0, 1, 1]]))
    [weights] = encoded.batch([0], source_width=6, target_width=5).numpy()
    both, second, none = [0.25, 0.25, 0.0, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.5, 0.5, 0.0], [0.0] * 6
    np.testing.assert_allclose(weights, [both, second, second, none, none])


def test_shifted_rows_are_those_of_the_next_step() -> None:
    rows = Ragged.of([[1]]), Ragged.of([[1, 2]]), Ragged.of([[0, 0]])
    plain = EncodedAlignments(*rows).batch([0], 1, 3).numpy()
    shifted = EncodedAlignments(*rows, shift=True).batch([0], 1, 3).numpy()
    np.testing.assert_array_equal(plain[0, :, 0], [1, 0, 0])
    np.testing.assert_array_equal(shifted[0, :, 0], [0, 1, 0])


def test_links_of_truncated_words_and_pairs_without_links_are_ignored() -> None:
    encoded = EncodedAlignments(Ragged.of([[1, 2], []]), Ragged.of([[1], [1]]), Ragged.of([[5, 0, 1, 0, 0, 7], []]))
    np.testing.assert_allclose(encoded.batch([1, 0], 2, 2), [[[0, 0], [0, 0]], [[0, 1], [0, 0]]])


@pytest.mark.parametrize("has_dev", [True, False])
@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe", "sampled"])
def test_each_training_pair_has_the_line_of_its_row(tmp_path: Path, tokenizer: str, has_dev: bool) -> None:
    """Rows with an empty side and rows that are held out have lines, too."""
    names = [f"n{number} name" for number in range(120)]
    texts = [f"{name}\t{name.upper()} x" if number % 7 else f"{name}\t" for number, name in enumerate(names)]
    (tmp_path / "train.tsv").write_text("\n".join(texts) + "\n")
    (tmp_path / "dev.tsv").write_text("n1 name\tN1 NAME x\n")
    # The link of a row depends on its number.
    links = [f"{1 + number % 2}-{1 + number % 3}\n" for number in range(120)]
    (tmp_path / "links").write_text("".join(links))
    data = FilesData(train=str(tmp_path / "train.tsv"), dev=str(tmp_path / "dev.tsv") if has_dev else None)
    sampled = {"kind": "bpe", "vocabulary": 60, "dropout": 0.3}
    kinds = {"bpe": {"kind": "bpe", "vocabulary": 60}, "sampled": sampled}
    options = {"shared": False, **kinds.get(tokenizer, {"kind": tokenizer})}
    settings = resolve(RunSettings, {"data": data.model_dump(), "tokenizer": options}, {})
    corpus = load_corpus(settings.data)
    hashes = corpus.fingerprint()
    file = AlignmentFile(str(tmp_path / "links"), one_based=True)
    request = PreparationRequest(corpus, hashes, settings.data, settings.tokenizer, 0, alignments=file)
    prepared = prepare(request, None, lambda _: None)
    pairs = list(corpus.train)
    encoded = prepared.train.alignments
    assert encoded is not None
    assert len(pairs) == len(prepared.train) == len(encoded.links) < 120
    for row, (source, _) in enumerate(pairs):
        number = names.index(source)
        assert encoded.links[row].tolist() == [number % 2, number % 3]
    rows = list(range(len(pairs)))
    for epoch in (0, 1):
        batch = prepared.train.batch(rows, torch.device("cpu"), epoch)
        assert isinstance(batch.source, Tokens)
        sides = zip(
            (encoded.source_words.take(rows, epoch), encoded.target_words.take(rows, epoch)),
            (batch.source, batch.target),
            prepared.tokenizers,
            zip(*pairs, strict=True),
            strict=True,
        )
        for words, tokens, learned, sentences in sides:
            for row, text in enumerate(sentences):
                ids = [index for index in tokens.tokens_BT[row, : tokens.lengths_B[row]].tolist() if index != END]
                spelled = [""] * len(text.split())
                for token, word in zip(learned.tokens(ids), words[row][: len(ids)].tolist(), strict=True):
                    if word:
                        spelled[word - 1] += token.removeprefix("▁")
                assert spelled == text.split()


def test_pretokenized_words_are_parts_of_the_words_of_the_text() -> None:
    tokenizer = Tokenizer.of(BPESide(vocabulary=60), ["two-part words, and 3 more words"] * 2)
    examples = ["two-part words", "  more,  words3 ", "", "unseen Ω"]
    for text, words, indices in zip(
        examples, tokenizer.words(examples), index_pretokenized(tokenizer, examples), strict=True
    ):
        joined = [""] * len(text.split())
        for word, index in zip(words, indices, strict=True):
            if index >= 0:
                joined[index] += word.strip("▁")
        assert joined == text.split()
