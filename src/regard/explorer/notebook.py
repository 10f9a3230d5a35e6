"""The page of the explorer in a notebook: a widget with the traces of some texts. It needs no server."""

from collections.abc import Sequence
from typing import Final

from regard.api.model import Model
from regard.arguments import check_integer, check_texts, check_type
from regard.errors import ConfigError
from regard.explorer.embedding import embed_models
from regard.inspection.trace.page import render_page
from regard.models.settings import TEXT

try:
    import anywidget
    import traitlets
except ImportError:
    raise ConfigError(
        "The explorer in a notebook requires the package anywidget, which is not installed. Run pip install "
        "'regard[notebook]'."
    ) from None

_ESM: Final = """
export default {
  render({ model, el }) {
    // A document of its own: the styles and the keys of the notebook do not apply to the page.
    const url = URL.createObjectURL(new Blob([model.get("page")], { type: "text/html" }));
    const frame = document.createElement("iframe");
    frame.title = "regard explorer";
    frame.style.cssText = `width: 100%; border: 0; height: ${model.get("height")}px`;
    frame.src = url;
    el.append(frame);
    return () => URL.revokeObjectURL(url);
  },
};
"""


class ExplorerWidget(anywidget.AnyWidget):
    """The page of the explorer, as a widget.

    Attributes:
        page: The page as HTML, with its documents.
        height: The height in pixels.
    """

    _esm = _ESM
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(640).tag(sync=True)


def explore(model: Model, sources: str | Sequence[str], *, beam: int = 4, height: int = 640) -> ExplorerWidget:
    """Return a widget that shows how a model predicts the outputs for some texts.

    Args:
        model: A model that reads texts.
        sources: A text, or several, which the page lists as examples.
        beam: The beam size.
        height: The height of the widget in pixels.

    Raises:
        ConfigError: The model reads another kind of source, or there are no texts.
        ArgumentTypeError: An argument has the wrong type.
    """
    check_type("model", model, Model, "a regard.Model")
    check_integer("height", height)
    texts = [sources] if isinstance(sources, str) else check_texts("sources", sources)
    kind = model.settings.model.source_kind
    if kind != TEXT:
        raise ConfigError(f"The model reads sources of the kind {kind}. Use `regard explore` for this model.")
    if not texts:
        raise ConfigError("sources is empty. Give at least one text.")
    return ExplorerWidget(page=render_page(embed_models({"model": model}, texts, beam=beam)), height=height)
