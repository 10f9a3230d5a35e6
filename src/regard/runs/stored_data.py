"""Store pairs in a run folder, as `data/train.jsonl` and so on, so that the run can be resumed and evaluated."""

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import DataError
from regard.formatting import to_json
from regard.runs.folder import RunFolder

DATA = "data"


def store_pairs(folder: RunFolder, splits: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """Store the pairs of each split in a run folder, and return the settings of the data.

    If the run was started before, the pairs must be the same. The format is JSON, which preserves tabs and line breaks.
    """
    contents = {f"{split}.jsonl": _to_json_lines(pairs) for split, pairs in splits.items()}
    with folder.lock() as locked:
        folder.reject_foreign()
        started = folder.exists()
        if started and DATA not in locked.directory.names():
            raise DataError(
                f"{folder.path} was started with other data, not with pairs=…. Choose another folder with out=…."
            )
        with locked.directory.subdirectory(DATA) as data:
            before = {name: data.read(name) for name in data.names() if not name.startswith(".")}
            if started:
                _check_same(folder, before, contents)
            else:
                for name in before.keys() - contents.keys():
                    data.remove(name)
                for name, content in contents.items():
                    data.write(name, content)
    paths = {split: {"path": f"{split}.jsonl", "format": "jsonl"} for split in splits}
    return {"kind": "files", "folder": str(folder.path.absolute() / DATA), **paths}


def _to_json_lines(pairs: Sequence[tuple[str, str]]) -> bytes:
    records = ({"source": source, "target": target} for source, target in pairs)
    return "".join(f"{to_json(record, ensure_ascii=False)}\n" for record in records).encode()


def _check_same(folder: RunFolder, before: Mapping[str, bytes], now: Mapping[str, bytes]) -> None:
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if changed:
        files = " and ".join(str(folder.path / DATA / name) for name in changed)
        raise DataError(
            f"{files}: the data has changed since {folder.path} was started. Pass the same pairs to resume, or choose "
            "another folder with out=…."
        )
