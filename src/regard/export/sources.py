"""The kinds of models that can be imported, each found by a file in its folder. No torch here."""

from pathlib import Path

from regard.errors import ModelError
from regard.export.foreign import ForeignModel
from regard.export.joey_files import JoeyFolder
from regard.export.marian_files import MarianFolder

SOURCES: tuple[type[ForeignModel], ...] = (MarianFolder, JoeyFolder)


def read_model(path: Path) -> ForeignModel:
    """Read a model of other software, except for its weights.

    Raise ModelError, with the name of the file, if a part is missing, damaged or unsupported.
    """
    if not path.is_dir():
        raise ModelError(f"There is no folder {path}. Pass the folder of a model.")
    kind = next((kind for kind in SOURCES if (path / kind.config).exists()), None)
    if kind is None:
        files = " or ".join(kind.config for kind in SOURCES)
        raise ModelError(f"{path} is not a model that can be imported: it has no {files}.")
    return kind.read(path)
