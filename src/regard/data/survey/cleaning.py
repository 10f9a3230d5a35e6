"""A cleaned copy of surveyed pairs: what was found wrong is mended where that is certain, and left out elsewhere.

What is learned from (the first split) is cleaned of errors and warnings. What is held out stays as it is, but for lines
that are no pairs: results on another test set would be other results.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from regard.data.readers import Row
from regard.data.survey import problem_kinds
from regard.data.survey.problem_kinds import Kind
from regard.data.survey.problems import Finding
from regard.data.survey.scripts import Trait, traits_of
from regard.data.survey.survey import Survey, read_again, without_warnings
from regard.data.tokens.pretokenization import TAB
from regard.errors import DataError
from regard.formatting import quantity

_MENDED = (
    problem_kinds.SWAPPED,
    problem_kinds.MOJIBAKE,
    problem_kinds.CONTROL,
    problem_kinds.UNNORMALIZED,
    problem_kinds.SPACES,
)


def clean(surveys: Sequence[Survey], findings: Sequence[Finding], folder: Path) -> dict[Path, Counter[str]]:
    """Write each split as TSV into a folder; of each, how many pairs were written, mended and left out, by kind.

    Tags of sources make a third column.
    """
    paths = [folder / f"{_stem(survey.name)}.tsv" for survey in surveys]
    if len(set(paths)) < len(paths):
        raise DataError(f"Two splits would both be written to {paths[0]}. Give them with --train, --dev and --test.")
    taken = [path for path in paths if path.exists()]
    if taken:
        raise DataError(f"{taken[0]} is there already, and is not overwritten. Name another folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    told = {}
    for place, (survey, path) in enumerate(zip(surveys, paths, strict=True)):
        ours = [finding for finding in findings if finding.survey is survey]
        if place > 0:
            ours = [finding for finding in ours if finding.kind in {problem_kinds.NO_PAIR, problem_kinds.EMPTY}]
        told[path] = _write(survey, ours, path)
    return told


def _write(survey: Survey, findings: Sequence[Finding], path: Path) -> Counter[str]:
    """A pair with several problems is counted under the first that leaves it out."""
    dropped: dict[int, Kind] = {}
    mended: dict[int, set[Kind]] = {}
    for finding in findings:
        for number in finding.rows_M.tolist():
            if finding.kind in _MENDED:
                mended.setdefault(number, set()).add(finding.kind)
            elif finding.severity != "note":
                dropped.setdefault(number, finding.kind)
    told: Counter[str] = Counter(
        {f"left out: {problem_kinds.NO_PAIR.name}": survey.bad_lines} if survey.bad_lines else {}
    )
    draft = path.with_name(f".{path.name}")
    with draft.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as handle, without_warnings():
        pairs: Iterable[Row] = (row for row in survey.split.read() if not row.problem)
        for number, row in enumerate(pairs):
            if number in dropped:
                told[f"left out: {dropped[number].name}"] += 1
                continue
            kinds = mended.get(number, set())
            head, _, tags = row.source.partition(TAB) if survey.tagged else (row.source, "", "")
            source, target = (_mend(text, kinds) for text in (head, row.target))
            if problem_kinds.SWAPPED in kinds:
                source, target = target, source
            told.update(f"mended: {kind.name}" for kind in kinds)
            told["written"] += 1
            columns = (source, target, _mend(tags, kinds)) if survey.tagged else (source, target)
            handle.write(TAB.join(columns) + "\n")
    draft.replace(path)
    return told


def _mend(text: str, kinds: set[Kind]) -> str:
    if problem_kinds.MOJIBAKE in kinds:
        text = read_again(text)
    if problem_kinds.CONTROL in kinds:
        text = "".join(sign for sign in text if not traits_of(ord(sign)) & Trait.CONTROL)
    if problem_kinds.UNNORMALIZED in kinds:
        text = unicodedata.normalize("NFC", text)
    if problem_kinds.SPACES in kinds or problem_kinds.CONTROL in kinds:
        text = " ".join(text.split())
    # A tab, which CSV and JSON may hold, would be read as the end of a column.
    return text.replace(TAB, " ")


def _stem(name: str) -> str:
    """`data/train.tsv.gz` → `train`; of two parallel files the first gives the name."""
    last = Path(name.split(" and ", maxsplit=1)[0]).name.removesuffix(".gz")
    return last.rpartition(".")[0] or last


def summarize(told: Mapping[Path, Counter[str]]) -> list[str]:
    """A line for each file: what was written, and what became of the rest."""
    lines = []
    for path, counts in told.items():
        rest = [f"{what} {count:,}" for what, count in counts.items() if what != "written"]
        lines.append(
            f"{path}: {quantity(counts['written'], 'pair')} written" + (f"; {', '.join(rest)}" if rest else "")
        )
    return lines
