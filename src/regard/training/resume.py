"""What must not have changed when a run is resumed: its settings, its data and its teachers."""

from regard.config import differences
from regard.errors import ConfigError, DataError
from regard.training.extension import allowed_extensions
from regard.training.folder import RunFolder
from regard.training.settings import RunSettings
from regard.training.teaching import TEACHER


def check_settings_unchanged(folder: RunFolder, settings: RunSettings) -> None:
    before = folder.settings().absolute()
    extended = allowed_extensions(folder, before.training, settings.training)
    changed = {key: values for key, values in differences(before, settings).items() if key not in extended}
    saved = (before.training.save_every, settings.training.save_every)
    if settings.training.average > 1 and saved[0] != saved[1]:  # harmless, where no mean is made of what is saved
        changed["training.save_every"] = saved
    if changed:
        listed = "; ".join(f"{key} was {old!r} and is now {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"{folder.path} was begun with other settings: {listed}. Give the same settings to go on, "
            f"choose another folder with --out, or remove {folder.path} to begin anew."
        )


def check_data_unchanged(folder: RunFolder, before: dict[str, str] | str, now: dict[str, str]) -> None:
    if isinstance(before, str):  # format 1 had one hash for all
        raise DataError(
            f"{folder.path} was begun by an earlier version of regard, which kept no hash of each file: it can be "
            "used, and not be trained on. Choose another folder with --out."
        )
    # Files may have other names, but each its old place: training files come before dev files.
    if list(before.values()) != list(now.values()):
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)] or list(now)
        taught = all(name.startswith(TEACHER) for name in changed)
        what, old = ("weights have", "ones") if taught else ("data has", "data")
        raise DataError(
            f"{' and '.join(changed)}: the {what} changed since {folder.path} was begun. Bring the old {old} back to "
            "go on, or choose another folder with --out."
        )
