"""Cleaned copies of surveyed pairs: problems with one certain correction are fixed; other pairs with errors or warnings
are removed.

The training data (the first split) is cleaned of errors and warnings. From held-out data, only lines without a pair are
removed, because scores on a changed test set could not be compared.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from regard.data.pair_files import Row
from regard.data.survey import problem_kinds
from regard.data.survey.problem_kinds import ProblemKind
from regard.data.survey.problems import Finding
from regard.data.survey.scripts import Trait, compute_traits
from regard.data.survey.survey import Survey, fix_mojibake, without_warnings
from regard.data.tokens.pretokenization import TAB
from regard.errors import DataError
from regard.formatting import quantity


def clean(surveys: Sequence[Survey], findings: Sequence[Finding], folder: Path) -> dict[Path, Counter[str]]:
    """Write each split to a folder as TSV. Return counts of the pairs written, fixed and removed, by file.

    The tags of sources are written to a third column.
    """
    paths = [folder / f"{_stem(survey.name)}.tsv" for survey in surveys]
    if len(set(paths)) < len(paths):
        raise DataError(f"Two splits would both be written to {paths[0]}. Give them with --train, --dev and --test.")
    existing = [path for path in paths if path.exists()]
    if existing:
        raise DataError(f"{existing[0]} already exists. Remove it, or choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for index, (survey, path) in enumerate(zip(surveys, paths, strict=True)):
        relevant = [finding for finding in findings if finding.survey is survey]
        if index > 0:
            relevant = [finding for finding in relevant if finding.kind in {problem_kinds.NO_PAIR, problem_kinds.EMPTY}]
        counts[path] = _write(survey, relevant, path)
    return counts


def _write(survey: Survey, findings: Sequence[Finding], path: Path) -> Counter[str]:
    """Write a cleaned split. A pair that is removed for several problems is counted under the first one."""
    removed: dict[int, ProblemKind] = {}
    fixed: dict[int, set[ProblemKind]] = {}
    for finding in findings:
        for index in finding.rows_M.tolist():
            if finding.kind.is_fixable:
                fixed.setdefault(index, set()).add(finding.kind)
            elif finding.severity != "note":
                removed.setdefault(index, finding.kind)
    counts: Counter[str] = Counter(
        {f"removed: {problem_kinds.NO_PAIR.name}": survey.bad_lines} if survey.bad_lines else {}
    )
    draft = path.with_name(f".{path.name}")
    with draft.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as handle, without_warnings():
        pairs: Iterable[Row] = (row for row in survey.split.read() if not row.problem)
        for index, row in enumerate(pairs):
            if index in removed:
                counts[f"removed: {removed[index].name}"] += 1
                continue
            kinds = fixed.get(index, set())
            head, _, tags = row.source.partition(TAB) if survey.tagged else (row.source, "", "")
            source, target = (_fix(text, kinds) for text in (head, row.target))
            if problem_kinds.SWAPPED in kinds:
                source, target = target, source
            counts.update(f"fixed: {kind.name}" for kind in kinds)
            counts["written"] += 1
            columns = (source, target, _fix(tags, kinds)) if survey.tagged else (source, target)
            handle.write(TAB.join(columns) + "\n")
    draft.replace(path)
    return counts


def _fix(text: str, kinds: set[ProblemKind]) -> str:
    if problem_kinds.MOJIBAKE in kinds:
        text = fix_mojibake(text)
    if problem_kinds.CONTROL in kinds:
        text = "".join(char for char in text if not compute_traits(ord(char)) & Trait.CONTROL)
    if problem_kinds.UNNORMALIZED in kinds:
        text = unicodedata.normalize("NFC", text)
    if problem_kinds.SPACES in kinds or problem_kinds.CONTROL in kinds:
        text = " ".join(text.split())
    # CSV and JSON may contain tabs, which would end a column in TSV.
    return text.replace(TAB, " ")


def _stem(name: str) -> str:
    """`data/train.tsv.gz` → `train`; for two parallel files, the stem of the first."""
    last = Path(name.split(" and ", maxsplit=1)[0]).name.removesuffix(".gz")
    return last.rpartition(".")[0] or last


def summarize(counts_by_path: Mapping[Path, Counter[str]]) -> list[str]:
    """Return one line for each file, with the number of pairs written, fixed and removed."""
    lines = []
    for path, counts in counts_by_path.items():
        rest = [f"{action} {count:,}" for action, count in counts.items() if action != "written"]
        lines.append(
            f"{path}: {quantity(counts['written'], 'pair')} written" + (f"; {', '.join(rest)}" if rest else "")
        )
    return lines
