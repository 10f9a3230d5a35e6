"""Train a model from Python."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.api.model import Model, format_summary, load, summary_to_html
from regard.arguments import check_flag, check_type
from regard.data.in_memory import PairsInMemory, collect_splits
from regard.errors import ArgumentTypeError, ConfigError
from regard.evaluation.settings import MetricValues
from regard.formatting import short_path
from regard.inspection.compare.plots import draw_curves
from regard.inspection.views.curves import read_panels
from regard.registry import import_plugins
from regard.runs.callbacks import Callback
from regard.runs.events import read_events
from regard.runs.folder import RunFolder, local_folder, locate, resolve_run, store_pairs
from regard.runs.settings import with_deadline
from regard.training import loop
from regard.training.callbacks import check_callbacks
from regard.training.distributed import open_group
from regard.training.machine import report_disk_failures
from regard.training.planning.choosing import choose_or_reuse
from regard.training.signals import stop_on_signals

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training run.

    Attributes:
        path: The run folder.
        best: The validation metrics of the best checkpoint; None if the run was never validated.
        steps: The number of training steps.
    """

    path: Path
    best: MetricValues | None
    steps: int

    def load(self, *, device: "str | torch.device | None" = None, dtype: "str | torch.dtype | None" = None) -> Model:
        """Load the best checkpoint of the run. For the arguments, see `regard.load`.

        >>> run.load(device="cpu").predict("3 mai 2009")
        """
        return load(self.path, device=device, dtype=dtype)

    def __repr__(self) -> str:
        following = f"run.load().predict(…), or `regard evaluate {short_path(self.path)}`"
        return format_summary("Run", {**self._summarize(), "next": following})

    def _summarize(self) -> dict[str, str]:
        """Return the folder, the number of steps, and the metrics of the best checkpoint, as text by name."""
        summary = {"folder": str(self.path), "steps": f"{self.steps:,}"}
        if self.best is not None:
            folder = RunFolder(self.path)
            name = folder.best().path.name.replace("-", " ")
            summary["best checkpoint"] = f"{name}, {self.best.describe(folder.settings().training.metric)}"
        return summary

    def _repr_html_(self) -> str:
        """For notebooks: the folder, the validation metrics of the best checkpoint, and the learning curves."""
        table = summary_to_html("regard.Run", self._summarize())
        has_curves = any("step" in event for event in self.events)
        drawing = draw_curves(read_panels([RunFolder(self.path)])) if has_curves else ""
        # The background of a notebook, in Jupyter's themes.
        style = "--page:var(--jp-layout-color0,white);max-width:60em"
        return f'{table}<div style="{style}">{drawing}</div>'

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the run in order: training losses and validations.

        >>> losses = [event["loss"] for event in run.events if event["event"] == "train"]
        """
        return read_events(RunFolder(self.path).events)


def train(
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    pairs: PairsInMemory | None = None,
    dev: PairsInMemory | None = None,
    test: PairsInMemory | None = None,
    columns: Sequence[str] | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    callbacks: Callback | Iterable[Callback] | object = (),
    quiet: bool = False,
    imports: str | Iterable[str] = (),
) -> Run:
    """Train a model, or resume a run that was stopped.

    Pass either `config` or `pairs`. For `pairs`, regard chooses all settings. The pairs are stored in the run folder,
    so that the run can be resumed (with the same call, or with `regard train RUN`) and evaluated.

    Args:
        config: The name of a preset, the path of a YAML file or of a run folder, or a mapping of settings.
        overrides: Settings, with dotted names, that replace those of `config`, or those that regard would choose. For
            fine-tuning, set `training.init_from` to another run: training starts from its weights, with its model and
            tokenizers.
        pairs: Training pairs: an iterable of (source, target) texts or of dictionaries, a dictionary of two lists, a
            data frame (pandas), or a dataset (Hugging Face). A dictionary of datasets with the key "train" also
            provides `dev` and `test`. Text after a tab in a source is treated as tags if there are few distinct values.
            A line break is treated as a space.
        dev: Pairs for validation. Without them, some training pairs are held out by source.
        test: Pairs for `regard evaluate RUN`. Without `dev` and `test`, some training pairs are held out for testing if
            there are enough pairs.
        columns: The names of the columns, or keys, of the source and the target: `("en", "de")`. They may be nested in
            another column (`translation`). By default `source` and `target`, or the only two with text.
        out: The run folder. The default is `runs/NAME` for a preset or a file, the folder itself for a run, and
            `runs/pairs` for `pairs`. A mapping has no name, so it needs `out`. If the folder contains a run with the
            same settings and data, the run is resumed.
        minutes: Deadline in minutes. The schedule is rescaled to the speed that is measured during training. With
            `pairs` and no deadline, training takes at most 10 minutes.
        callbacks: An object, or several, with any of the methods of `regard.Callback`. They are called after each step,
            validation and checkpoint, and cannot change the result.
        quiet: Whether to print nothing. By default, progress is printed on stderr.
        imports: Plugins to import: modules or .py files that register parts, such as scores and cells.

    Returns:
        The finished run.

    Raises:
        ConfigError: A setting is unknown, out of range, or has changed since the run was started.
        ArgumentTypeError: An argument has the wrong type, for example a pair that is not two texts.
        DataError: The data is invalid, or has changed since the run was started.
        DivergedError: The loss is NaN or infinite.
        RunInUseError: Another process is training in the folder.
        ResourceError: Out of disk space or memory.
        RankError: Another process of the same training has ended or does not respond.
        Interrupted: A signal stopped the training. If it had started, the state is saved.

    >>> run = regard.train("dates", {"training.steps": 500}, out="runs/dates")
    >>> run = regard.train("dates", minutes=2, out="runs/two-minutes")
    >>> run = regard.train("dates", {"training.init_from": "runs/dates", "data.seed": 1}, out="runs/tuned")
    >>> run = regard.train(pairs=[("day", "Tag"), ("night", "Nacht")], dev=[("week", "Woche")], minutes=5)
    """
    started = time.monotonic()
    import_plugins(imports)
    observers = check_callbacks(callbacks)
    check_flag("quiet", quiet)
    with open_group() as group, _silenced_warnings() if quiet else contextlib.nullcontext():
        request = {"config": str(config), "overrides": str(overrides), "minutes": str(minutes)}
        group.check_equal(request, ConfigError, "Call regard.train with the same arguments on all ranks.")
        if not group.is_first:
            followed, path = loop.follow(started)
            return Run(path, followed.best, followed.step)
        given = with_deadline({} if overrides is None else overrides, minutes)
        _check_arguments(config, pairs, {"dev": dev, "test": test, "columns": columns}, out)
        if config is None:
            folder = RunFolder(local_folder("runs/pairs" if out is None else out).absolute())
            with stop_on_signals() as stop:
                stop.resumed = bool(folder.all_checkpoints())
                splits = collect_splits(pairs, dev, test, columns)
                with report_disk_failures(folder):
                    data = store_pairs(folder, splits)
                settings = choose_or_reuse(
                    folder,
                    data,
                    given,
                    minutes=None,
                    report=(lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr)),
                    started=started,
                    how_to_override="overrides={key: value}",
                )
        else:
            source, folder = locate(config, out)
            folder = RunFolder(folder.path.absolute())  # a callback may change the working directory
            settings = resolve_run(source, given)
        progress = loop.train(settings, folder, started, callbacks=observers, quiet=quiet)
    return Run(folder.path, progress.best, progress.step)


@contextlib.contextmanager
def _silenced_warnings() -> Iterator[None]:
    """Within the block, do not print warnings of regard. Handlers that the user has configured still receive them."""
    # Without any handler, Python prints warnings to stderr.
    logger, handler = logging.getLogger("regard"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _check_arguments(config: Any, pairs: Any, for_pairs: Mapping[str, Any], out: Any) -> None:
    """Raise an error if arguments are missing, cannot be combined, or have the wrong type."""
    if config is not None and not isinstance(config, str | Path | Mapping):
        raise ArgumentTypeError(
            f"config must be a preset, a path or a mapping of settings, not {type(config).__name__}. To train on "
            "pairs, use pairs=…."
        )
    if out is not None:
        check_type("out", out, str | Path, "a path")
    if config is None and pairs is None:
        raise ConfigError("There is nothing to train. Pass config (a preset, a file, a run or settings), or pairs=….")
    if config is not None and pairs is not None:
        raise ConfigError(
            "config and pairs cannot be combined: for pairs, regard chooses the settings. To change some of them, pass "
            "overrides={key: value}."
        )
    unused = [name for name, value in for_pairs.items() if value is not None and pairs is None]
    if unused:
        raise ConfigError(f"{unused[0]} needs pairs. Pass pairs=…, or set the data in config (data.*) instead.")
