"""Guided alignment: the word alignments of a run, and the head of its decoder that they supervise."""

from collections.abc import Mapping

from regard.data.guidance import AlignmentFile
from regard.models.seq2seq import Seq2Seq
from regard.runs.settings import RunSettings

ALIGNMENTS = "alignments "
"""Prefix of the name of an alignment file in the hashes of the inputs of a run."""


def find_alignments(settings: RunSettings) -> AlignmentFile | None:
    """Return the alignment file that the settings name, if there is one."""
    guided = settings.training.guided_alignment
    return None if guided is None else AlignmentFile(guided.file, guided.one_based, guided.shift)


def hash_alignments(file: AlignmentFile | None) -> dict[str, str]:
    """Return the hash of an alignment file. A resumed run requires the same hash."""
    return {} if file is None else {f"{ALIGNMENTS}{file.path}": file.hash()}


def saved_alignments(data: Mapping[str, str]) -> dict[str, str]:
    """Return the alignment file in the saved state of a run, with its hash."""
    return {name: file_hash for name, file_hash in data.items() if name.startswith(ALIGNMENTS)}


def supervise_attention(model: Seq2Seq, settings: RunSettings) -> None:
    """Let the decoder return the weights of the head that the settings name, in training."""
    guided = settings.training.guided_alignment
    if guided is not None:
        model.decoder.supervise_attention(guided.find_layer(settings.model), guided.head)
