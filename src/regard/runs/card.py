"""The model card: a summary of a run in Markdown."""

from torch import nn

from regard.config import to_yaml
from regard.runs.checkpoints import RunProgress
from regard.runs.lock import LockedFolder
from regard.runs.settings import RunSettings


def write(folder: LockedFolder, settings: RunSettings, progress: RunProgress, model: nn.Module) -> None:
    """Write card.md."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    best = progress.best
    values = best.describe(settings.training.metric) if best else "–"
    signatures = "\n".join(f"- {label}: `{text}`" for label, text in best.signatures.items()) if best else "–"
    text = f"""# {folder.path.name}

{settings.about or "A model trained with regard."}

| | |
|---|---|
| parameters | {parameters:,} |
| steps | {progress.step:,} |
| best checkpoint | {progress.best_name or f"step-{progress.best_step}"} |
| validation | {values} |
| data | {", ".join(f"{name} (SHA-256 {digest})" for name, digest in progress.data.items())} |

Predict with `regard predict {folder.path} "…"`; draw its attention weights with `regard look {folder.path} "…"`.

## Metric signatures

{signatures}

## Settings

```yaml
{to_yaml(settings)}```
"""
    folder.directory.write("card.md", text.encode())
