"""Settings of a run on a dataset of pairs: choose them, or reuse those of a run that was started before."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from regard.arguments import check_device, check_type
from regard.config import resolve
from regard.data.corpora import describe_held_out, load_corpus
from regard.data.images.settings import CaptionsData
from regard.data.pair_files import resolve_data, resolve_files
from regard.data.preparation import Report
from regard.data.settings import FilesData
from regard.errors import ConfigError
from regard.runs.folder import RunFolder
from regard.runs.settings import RunSettings, TrainingSettings, with_deadline
from regard.training.planning import autoconfig, budget, caption_autoconfig
from regard.training.planning.autoconfig import ChosenSettings
from regard.training.planning.trials import measure_speed

_MEASURED_PAIRS = 10_000
"""The speed is measured on a sample of about this number of pairs, so that the corpus is prepared only once, with the
final settings.
"""

_MEASUREMENT_SHARE, _MAX_MEASUREMENT = 0.02, 3.0
"""The duration of a measurement of the speed: a share of the available time, and a maximum in seconds. It can be
short, because the schedule is rescaled to the speed that is measured during training.
"""

_MIN_SECONDS_FOR_SECOND_MEASUREMENT = 60.0
"""With less time left, the speed with smaller batches is not measured, but estimated from the first measurement."""


def choose(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    minutes: float | None = None,
    report: Report = lambda _: None,
    started: float | None = None,
) -> ChosenSettings:
    """Choose settings for a dataset of pairs, from statistics of the pairs and from the speed of this machine.

    Args:
        data: Settings of the data: the files of pairs and their columns, or images with captions (kind: captions).
        overrides: Settings that are fixed in advance, with dotted names.
        minutes: Deadline of the training in minutes. Without it, training takes at most 10 minutes.
        report: Called with each reason for a choice, and with other messages. By default, nothing is printed.
        started: Time from which the deadline counts, as returned by `time.monotonic()`; by default now.

    Returns:
        The settings and the reasons for them.

    Raises:
        ConfigError: A setting is unknown or out of range.
        ArgumentTypeError: An argument has the wrong type.
        DataError: A file is missing, or contains no usable pair.

    >>> chosen = regard.choose({"train": "pairs.tsv"})
    >>> regard.train(chosen.settings.model_dump(), out="runs/pairs")
    """
    check_type("data", data, Mapping, "a mapping of settings, such as {'train': 'pairs.tsv'}")
    check_type("report", report, Callable, "a function of a text")
    started = time.monotonic() if started is None else started
    check_type("started", started, int | float, "a reading of time.monotonic()")
    overrides = with_deadline({} if overrides is None else overrides, minutes)
    minutes = resolve(TrainingSettings, {"minutes": overrides.pop("training.minutes", None)}, {}).minutes
    data_overrides = autoconfig.select_overrides("data.", overrides)
    device = check_device(str(overrides.get("training.device", "auto")), "training.device")
    cuda = device.type == "cuda"
    if data.get("kind") == "captions":
        chosen = caption_autoconfig.choose(resolve(CaptionsData, data, data_overrides).absolute(), overrides, cuda=cuda)
        held_out = None
    else:
        files = resolve_files(resolve(FilesData, data, data_overrides))
        chosen = autoconfig.choose(files, overrides, cuda=cuda)
        held_out = describe_held_out(files)
    for reason in filter(None, [*chosen.reasons, held_out]):
        report(reason)
    fitted = _fit_to_time(chosen, overrides, minutes, started, report)
    for reason in fitted.reasons[len(chosen.reasons) :]:
        report(reason)
    return fitted


def _fit_to_time(
    chosen: ChosenSettings, overrides: Mapping[str, Any], minutes: float | None, started: float, report: Report
) -> ChosenSettings:
    """Measure the speed of training, and fit the sizes and the schedule to the available time."""
    seconds = 60 * (minutes or budget.DEFAULT_MINUTES)
    deadline, share = started + seconds, min(_MAX_MEASUREMENT, _MEASUREMENT_SHARE * seconds)
    corpus = load_corpus(chosen.settings.data).sample(_MEASURED_PAIRS)
    speed = measure_speed(chosen.settings, corpus, share, report)
    shrunk = budget.shrink(chosen, speed, deadline - time.monotonic(), overrides)
    if shrunk is not chosen:
        before, after = (settings.training.batch_tokens for settings in (chosen.settings, shrunk.settings))
        if before and after and deadline - time.monotonic() < _MIN_SECONDS_FOR_SECOND_MEASUREMENT:
            speed = speed.with_batches(after / before)
        else:
            speed = measure_speed(shrunk.settings, corpus, share, report)
    return budget.fit_schedule(shrunk, speed, minutes, deadline - time.monotonic(), overrides)


def choose_or_reuse(
    folder: RunFolder,
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    minutes: float | None,
    report: Report,
    started: float,
    how_to_override: str,
) -> RunSettings:
    """Return the settings of a run that was started before, or choose new ones and report the reasons."""
    if not folder.exists():
        chosen = choose(data, overrides, minutes=minutes, report=report, started=started)
        report(f"The resolved settings are written to {folder.config}; override one with {how_to_override}.")
        return chosen.settings
    report(
        f"{folder.path} was started before; its settings are used. For new settings, choose another folder with "
        "--out (out=… in Python)."
    )
    before = folder.settings()
    settings = resolve(RunSettings, before.model_dump(mode="json"), {"data": data, **with_deadline(overrides, minutes)})
    if resolve_data(before.data) != resolve_data(settings.data):
        started_with = before.data.train if isinstance(before.data, FilesData) else f"data.kind={before.data.kind}"
        raise ConfigError(
            f"{folder.path} was started with different files ({started_with}). Choose another folder with "
            "--out (out=… in Python)."
        )
    return settings
