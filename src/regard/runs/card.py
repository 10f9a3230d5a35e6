"""The card: what a model is, for people."""

from torch import nn

from regard.config import to_yaml
from regard.runs.checkpoints import RunProgress
from regard.runs.lock import LockedFolder
from regard.runs.settings import RunSettings


def write(folder: LockedFolder, settings: RunSettings, progress: RunProgress, model: nn.Module) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    best = progress.best
    reached = best.describe(settings.training.metric) if best else "–"
    signatures = "\n".join(f"- {label}: `{text}`" for label, text in best.signatures.items()) if best else "–"
    text = f"""# {folder.path.name}

{settings.about or "A model trained with regard."}

| | |
|---|---|
| parameters | {parameters:,} |
| steps | {progress.step:,} |
| best checkpoint | {progress.best_name or f"step-{progress.best_step}"} |
| validation | {reached} |
| data | {", ".join(f"{name} (SHA-256 {found})" for name, found in progress.data.items())} |

Use it: `regard predict {folder.path} "…"`; look inside: `regard look {folder.path} "…"`.

## Signatures of the measures

{signatures}

## Settings

```yaml
{to_yaml(settings)}```
"""
    folder.directory.write("card.md", text.encode())
