"""What a page without a server contains: models, and everything that it shows of their predictions for some texts."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from regard.api.model import Model
from regard.config import to_yaml
from regard.explorer.served_model import summarize_model


def embed_models(models: Mapping[str, Model], texts: Sequence[str], *, beam: int = 4) -> dict[str, Any]:
    """Return the data of a page, see `EmbeddedData` in `web/`. It opens with the first model and the first text.

    Args:
        models: Models that read texts, by the name that the page shows.
        texts: What each model predicts.
        beam: The beam size.
    """
    identified = {str(index): (name, model) for index, (name, model) in enumerate(models.items())}
    return {
        "models": [
            {**summarize_model(model), "id": key, "name": name, "examples": list(texts)}
            for key, (name, model) in identified.items()
        ],
        "traces": [_trace(key, model, text, beam) for key, (_, model) in identified.items() for text in texts],
        "cards": {key: {"settings": to_yaml(model.settings)} for key, (_, model) in identified.items()},
        "fragment": urlencode({"text": texts[0], "beam": beam}),
    }


def _trace(key: str, model: Model, text: str, beam: int) -> dict[str, Any]:
    """Return a trace with the request that the page looks it up by."""
    request = {"model": key, "source": {"text": text}, "search": {"beam": beam}, "edits": [], "queries": True}
    return {"request": request, "document": model.trace(text, queries=True, beam=beam).document}
