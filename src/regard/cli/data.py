"""regard data"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.options import file_settings, number_option, reader_options, reader_settings
from regard.config import presets, resolve
from regard.data.settings import SPLITS, Files, FilesData
from regard.errors import ConfigError
from regard.formatting import did_you_mean, to_json
from regard.quantities import Count, OptionalCount
from regard.runs.folder import RunFolder, locate
from regard.runs.settings import RunSettings

if TYPE_CHECKING:
    from regard.data.survey.survey import Split

EXAMPLES = """\b
Examples:
  regard data check train.tsv dev.tsv test.tsv
  regard data stats runs/dates"""

CHECK_EXAMPLES = """\b
Examples:
  regard data check train.tsv dev.tsv test.tsv
  regard data check --source train.en --target train.de
  regard data check --train train.en,train.de --dev dev.en,dev.de --ignore markup
  regard data check pairs.csv --columns de en --fix cleaned
  zcat pairs.tsv.gz | head -1000 | regard data check -
  regard data check my-settings.yaml --json"""

STATS_EXAMPLES = """\b
Examples:
  regard data stats train.tsv dev.tsv
  regard data stats dates
  regard data stats --source train.en.gz --target train.de.gz --json"""

HELD_OUT = {"dev", "devel", "val", "valid", "validation", "test", "tst", "eval"}
"""Words in a file name that mark held-out data."""


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Check pairs for problems, or print statistics, before training."""


def input_options(function: Any) -> Any:
    """Add the arguments and options for input files, which are the same for both commands."""
    for option in (
        reader_options,
        click.option("--test", metavar="FILE", help="Test pairs, or SOURCE,TARGET."),
        click.option("--dev", metavar="FILE", help="Validation pairs, or SOURCE,TARGET."),
        click.option("--train", metavar="FILE", help="Training pairs, or SOURCE,TARGET for two parallel files."),
        click.argument("files", metavar="[FILE|PRESET|FILE.yaml|RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


@command.command(epilog=CHECK_EXAMPLES)
@input_options
@click.option("--ignore", metavar="NAME", multiple=True, help="Ignore the problem with this name.")
@number_option("--max-chars", Count, "N", "Flag texts with more characters.", 1_000)
@number_option("--max-words", Count, "N", "Flag texts with more words.", 200)
@number_option("--examples", OptionalCount, "N", "Examples printed per problem.", 3)
@click.option(
    "--fix", metavar="FOLDER", type=click.Path(path_type=Path), help="Write a cleaned copy, as TSV, to FOLDER."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def check(
    ignore: tuple[str, ...],
    max_chars: int,
    max_words: int,
    examples: int,
    fix: Path | None,
    as_json: bool,
    **inputs: Any,
) -> None:
    """Find problems in pairs. Print file, line and remedy; exit with 1 if there are errors or warnings.

    Give one FILE per split: TSV, CSV or JSONL, plain or gzipped. SOURCE,TARGET names two parallel files, and - is
    standard input. Or give one preset, config file or run, to check its data. Files with dev, val or test in their
    names are held-out data, and are compared with the training data.

    --fix corrects the problems that have one safe correction. It removes lines with other errors or warnings from the
    training data. From held-out data it removes only lines that do not contain a pair.
    """
    from regard.cli.reports import format_problems, problems_to_json
    from regard.data.survey import cleaning, problem_kinds, problems
    from regard.data.survey.scripts import Characters
    from regard.data.survey.survey import detect_tags, survey_split

    names = [kind.name for kind in problem_kinds.KINDS]
    for name in ignore:
        if name not in names:
            suggestion = did_you_mean(name, names)
            raise ConfigError(f"--ignore: there is no problem '{name}'.{suggestion} Known: {', '.join(names)}.")
    characters = Characters()
    splits = _open_splits(**inputs)
    if fix and any(split.by_language for split in splits):
        raise ConfigError("--fix would write all languages to one file. Check the files of each language separately.")
    tagged = detect_tags(splits[0])
    surveys = [survey_split(split, characters, tagged=tagged) for split in splits]
    findings = problems.find_problems(surveys, characters, problems.Limits(max_chars, max_words))
    findings = [finding for finding in findings if finding.kind.name not in ignore]
    rows = problems.read_examples(findings, examples)
    rows = {finding: rows[finding] for finding in findings}
    click.echo(problems_to_json(surveys, rows) if as_json else format_problems(surveys, rows))
    if fix:
        for line in cleaning.summarize(cleaning.clean(surveys, findings, fix)):
            click.echo(line, err=True)
        if tagged:
            click.echo("The third column contains tags. To train with them, use --columns 1+3 2.", err=True)
    if any(finding.severity != "note" for finding in findings):
        raise click.exceptions.Exit(1)


@command.command(epilog=STATS_EXAMPLES)
@input_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def stats(as_json: bool, **inputs: Any) -> None:
    """Count pairs, words, characters, scripts and tokens; show length distributions and overlap between splits."""
    from regard.cli.reports import format_statistics
    from regard.data.survey import problem_kinds, problems
    from regard.data.survey.scripts import Characters
    from regard.data.survey.statistics import compute_statistics
    from regard.data.survey.survey import detect_tags

    characters = Characters()
    splits = _open_splits(**inputs)
    tagged = detect_tags(splits[0])
    measured = [compute_statistics(split, characters, tagged=tagged) for split in splits]
    surveys = [survey for survey, _ in measured]
    statistics = [counts for _, counts in measured]
    overlaps = [
        finding
        for finding in problems.find_problems(surveys, characters, problems.Limits())
        if finding.kind in {problem_kinds.DUPLICATE, problem_kinds.AMBIGUOUS, problem_kinds.LEAK, problem_kinds.OVERLAP}
    ]
    if as_json:
        shared = [
            {
                "kind": overlap.kind.name,
                "split": overlap.survey.name,
                "count": overlap.count,
                "details": overlap.details,
            }
            for overlap in overlaps
        ]
        click.echo(to_json({"splits": statistics, "shared": shared}, ensure_ascii=False))
    else:
        click.echo(format_statistics(statistics, overlaps))


def _open_splits(
    files: tuple[str, ...],
    train: str | None,
    dev: str | None,
    test: str | None,
    source: str | None,
    target: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
) -> "list[Split]":
    """Return the splits to read, training data before held-out data."""
    named = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path}
    forms = [bool(files), bool(named), bool(source or target)]
    if sum(forms) != 1 or bool(source) != bool(target):
        raise click.UsageError("Give FILES, or --train, --dev and --test, or --source with --target.")
    if len(files) == 1 and _is_config(files[0]):
        return _open_config_splits(files[0])

    from regard.data.lines import display_name
    from regard.data.survey.survey import Split

    reader = reader_settings(columns, header)
    if source:
        settings = {f"{source} and {target}": {"source": source, "target": target}}
    else:
        # Shell globs are sorted by name, so dev comes before train.
        ordered = sorted(files, key=lambda path: not HELD_OUT.isdisjoint(re.findall("[a-z]+", Path(path).name.lower())))
        paths = named or {display_name(path): path for path in ordered}
        settings = {name: file_settings(path, reader) for name, path in paths.items()}
    return [Split.of_files(name, resolve(Files, values, {})) for name, values in settings.items()]


def _is_config(path: str) -> bool:
    if RunFolder(Path(path)).exists() or path.endswith((".yaml", ".yml")):
        return True
    return path in presets() and not Path(path).exists()


def _open_config_splits(config: str) -> "list[Split]":
    """Return the splits of a config's data: files, or a built-in corpus."""
    from regard.data.corpora import load_corpus
    from regard.data.survey.survey import Split

    data = resolve(RunSettings, locate(config, None)[0], {}).data
    if isinstance(data, FilesData):
        return [Split.of_files(name, files) for name in SPLITS if (files := data.files(name)) is not None]
    corpus = load_corpus(data)
    return [Split.of_pairs(name, pairs) for name in SPLITS if (pairs := getattr(corpus, name)) is not None]
