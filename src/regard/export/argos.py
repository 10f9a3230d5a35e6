"""Export to Argos Translate (https://github.com/argosopentech/argos-translate): a package that it installs."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, final

from regard.data.settings import MarianTokenizer, sides
from regard.data.tokens.sentencepiece import is_language_code, list_marian_tokens, to_model_file
from regard.data.tokens.vocabularies import BYTES
from regard.errors import ConfigError
from regard.export.ct2 import CTranslate2Exporter, Precision, save_ct2
from regard.export.exporter import Exporter, TrainedModel, describe_training
from regard.formatting import LANGUAGE_CODE, name_language, to_json
from regard.version import __version__

_ARGOS_VERSION = "1.10"
"""The first version that reads all parts of a package."""


@final
class ArgosExporter(Exporter):
    """A package of Argos Translate, one `.argosmodel` file: a CTranslate2 model with a SentencePiece model.

    `source` and `target` are language codes. With `sentences="lines"`, Argos Translate translates each line as one
    sentence. Otherwise it splits lines into sentences with a model that it downloads.
    """

    writes_file = True

    def __init__(
        self,
        source: str = "",
        target: str = "",
        precision: Precision = "float32",
        sentences: Literal["argos", "lines"] = "argos",
    ) -> None:
        if not (LANGUAGE_CODE.fullmatch(source) and LANGUAGE_CODE.fullmatch(target)):
            raise ConfigError(
                f"The languages of an Argos package are two codes, such as en or pt-BR, not '{source}' and '{target}'. "
                "Use --to argos:source=en,target=de."
            )
        self.source, self.target, self.precision, self.sentences = source, target, precision, sentences

    def find_obstacle(self, model: TrainedModel) -> str | None:
        obstacle = CTranslate2Exporter().find_obstacle(model)
        return " ".join([*([obstacle] if obstacle else []), *_find_tokenizer_obstacles(model)]) or None

    def write(self, model: TrainedModel, path: Path) -> None:
        root = f"translate-{self.source}_{self.target}-{_ARGOS_VERSION.replace('.', '_')}"
        folder = path.parent / root
        (folder / "model").mkdir(parents=True)
        source, target = (list_marian_tokens(side.tokens(range(len(side)))) for side in model.tokenizers)
        adds_end = model.tokenizers.source.inner.post_processor is not None
        save_ct2(model, folder / "model", self.precision, (source, target), add_source_eos=adds_end)
        (folder / "sentencepiece.model").write_bytes(to_model_file(model.tokenizers.source.inner))
        (folder / "metadata.json").write_text(to_json(self._describe_package(), indent=2), encoding="utf-8")
        (folder / "README.md").write_text(self._write_card(model), encoding="utf-8")
        if self.sentences == "lines":
            (folder / "minisbd").mkdir()
            (folder / "minisbd" / "lines.onnx").write_bytes(_build_line_splitter())
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*.*")):
                archive.write(file, file.relative_to(path.parent))

    def _describe_package(self) -> dict[str, str]:
        return {
            "type": "translate",
            "package_version": "1.0",
            "argos_version": _ARGOS_VERSION,
            "from_code": self.source,
            "from_name": name_language(self.source),
            "to_code": self.target,
            "to_name": name_language(self.target),
        }

    def _write_card(self, model: TrainedModel) -> str:
        names = f"{name_language(self.source)} → {name_language(self.target)}"
        return f"# {names}\n\nTrained with regard {__version__}.\n\n{describe_training(model)}"


def _find_tokenizer_obstacles(model: TrainedModel) -> Iterator[str]:
    """Yield what SentencePiece does not do. It does not apply NFC either, but most text is composed already."""
    source, target = sides(model.settings.tokenizer)
    source_tokens, target_tokens = (side.inner.get_vocab() for side in model.tokenizers)
    for kind in {source.kind, target.kind} & {"char", "word"}:
        yield f"a {kind} tokenizer is not a SentencePiece model. Use tokenizer=bpe."
    if BYTES[0] in target_tokens and BYTES[0] not in source_tokens:
        yield "only targets have bytes as tokens. Use byte_fallback=true for both."
    if isinstance(source, MarianTokenizer):
        if any(map(is_language_code, source_tokens)):
            yield "it selects the target language with a code in the source, which Argos Translate does not add."
        return
    if source.tags:
        yield "tags are not part of SentencePiece models. Use tokenizer.tags=false."
    for name, nearest in _OPTIONS.items():
        value = getattr(source, name, nearest)
        if value not in (nearest, "none"):
            values = f"{name}={to_json(value)} cannot be expressed", f"{name}={to_json(nearest)}"
            yield f"tokenizer.{values[0]}. The nearest is tokenizer.{values[1]}."


_OPTIONS = {"normalization": "nfc", "lowercase": False, "symbols": ()}
"""Options of learned tokenizers, with the nearest value that can be expressed."""


def _build_line_splitter() -> bytes:
    """Return a model of MiniSBD, which Argos Translate splits text with, that never predicts the end of a sentence.

    Its output is the first feature of each character: with one value each, the most likely class is always class 0.
    """
    try:
        from onnx import TensorProto, helper
    except ImportError:
        raise ConfigError(
            "sentences=lines requires the package onnx, which is not installed. Run pip install 'regard[export]'."
        ) from None
    units = helper.make_tensor_value_info("units", TensorProto.INT64, ["batch", "length"])
    features, classes = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", 1])
        for name in ("features", "classes")
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["features"], ["classes"])], "lines", [units, features], [classes]
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    options = {"config": {"feat_funcs": ["space_before"]}, "vocab": {"_unit2id": {"<PAD>": 0, "<UNK>": 1}}}
    helper.set_model_props(model, {name: to_json(value) for name, value in options.items()})
    content: bytes = model.SerializeToString()
    return content
