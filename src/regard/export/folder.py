"""Export to a run folder without the optimizer and the data, to share a model or to use it elsewhere."""

from pathlib import Path
from typing import final

from regard.export.exporter import Exporter, TrainedModel
from regard.regular_files import read_regular
from regard.runs.checkpoints import save_model
from regard.runs.progress import RunProgress, Schedule
from regard.runs.tensors import collect_tensors

_COPIED = ("events.jsonl", "card.md")


@final
class FolderExporter(Exporter):
    """A model folder of regard: settings, tokenizers, weights, the events of training and the model card."""

    def find_obstacle(self, model: TrainedModel) -> str | None:
        del model
        return None

    def write(self, model: TrainedModel, folder: Path) -> None:
        best = None if model.scores is None else model.step
        progress = RunProgress(
            {}, Schedule.of(model.settings.training.steps), step=model.step, best_step=best, best=model.scores
        )
        save_model(folder, model.settings, model.tokenizers, collect_tensors(model.network), progress)
        if model.run is None:
            return
        for name in _COPIED:
            if (model.run.path / name).is_file():
                (folder / name).write_bytes(read_regular(model.run.path / name))
