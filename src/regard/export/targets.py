"""The registered exporters, by the name of their format."""

from collections.abc import Callable

from regard.export.argos import ArgosExporter
from regard.export.ct2 import CTranslate2Exporter
from regard.export.exporter import Exporter
from regard.export.folder import FolderExporter
from regard.export.hf import HuggingFaceExporter
from regard.export.onnx import OnnxExporter
from regard.export.settings import ExportTarget


def register_exporter(name: str, exporter: Callable[..., Exporter]) -> None:
    """Register an exporter: a subclass of `Exporter`, or a function that builds one. Its parameters are options.

    Args:
        name: The name of the format in `regard export MODEL --to NAME`.
        exporter: The class or function.

    >>> regard.register_exporter("numpy", NumpyExporter)
    """
    ExportTarget.registry.register(ExportTarget, name, exporter)


register_exporter("folder", FolderExporter)
register_exporter("hf", HuggingFaceExporter)
register_exporter("ct2", CTranslate2Exporter)
register_exporter("onnx", OnnxExporter)
register_exporter("argos", ArgosExporter)
