"""regard data"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.options import files_given, reading_given, reading_options
from regard.config import presets, resolve
from regard.data.files import Files
from regard.data.settings import SPLITS, FilesData
from regard.errors import ConfigError
from regard.formatting import did_you_mean, to_json
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
"""Words that, in the name of a file, say that nothing is learned from it."""


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Look at pairs before they are learned from: what is wrong with them, and what they are like."""


def inputs(function: Any) -> Any:
    """Add the arguments and options for input files, the same for both verbs."""
    for option in (
        reading_options,
        click.option("--target", metavar="FILE"),
        click.option("--source", metavar="FILE", help="With --target: two parallel files."),
        click.option("--test", metavar="FILE"),
        click.option("--dev", metavar="FILE"),
        click.option("--train", metavar="FILE", help="A file of pairs, or SOURCE,TARGET; so for --dev and --test."),
        click.argument("files", metavar="[FILE|PRESET|FILE.yaml|RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


@command.command(epilog=CHECK_EXAMPLES)
@inputs
@click.option("--ignore", metavar="NAME", multiple=True, help="Leave out a kind of problem, by its name.")
@click.option("--max-chars", type=click.IntRange(1), default=1_000, show_default=True, help="More are very long.")
@click.option("--max-words", type=click.IntRange(1), default=200, show_default=True, help="More are very long.")
@click.option("--examples", type=click.IntRange(0), default=3, show_default=True, help="Places shown of each kind.")
@click.option("--fix", metavar="FOLDER", type=click.Path(path_type=Path), help="Write a cleaned copy, as TSV, there.")
@click.option("--json", "as_json", is_flag=True)
def check(
    ignore: tuple[str, ...],
    max_chars: int,
    max_words: int,
    examples: int,
    fix: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find problems in pairs, with file, line and remedy; exit with 1 if there are errors or warnings.

    FILES are TSV, CSV or JSONL, plain or gzipped, one for each split (SOURCE,TARGET names two parallel files, - is
    standard input), or one config, whose data is checked. Files with dev, val or test in their names are held-out data,
    and are compared with the training data.

    --fix corrects what is certain, and removes lines with other errors or warnings from the training data. From
    held-out data it removes only lines that do not contain a pair.
    """
    from regard.cli.reports import problems_as_json, problems_as_text
    from regard.data.survey import cleaning, problem_kinds, problems
    from regard.data.survey.scripts import Characters
    from regard.data.survey.survey import detect_tags, survey_split

    names = [kind.name for kind in problem_kinds.KINDS]
    for name in ignore:
        if name not in names:
            raise ConfigError(f"There is no problem '{name}'.{did_you_mean(name, names)} Known: {', '.join(names)}.")
    characters = Characters()
    splits = _splits(**given)
    if fix and any(split.by_language for split in splits):
        raise ConfigError("--fix would write all languages to one file: give the files of each by itself.")
    tagged = detect_tags(splits[0])
    surveys = [survey_split(split, characters, tagged=tagged) for split in splits]
    found = problems.find_problems(surveys, characters, problems.Limits(max_chars, max_words))
    found = [finding for finding in found if finding.kind.name not in ignore]
    shown = problems.read_examples(found, examples)
    shown = {finding: shown[finding] for finding in found}
    click.echo(problems_as_json(surveys, shown) if as_json else problems_as_text(surveys, shown))
    if fix:
        for line in cleaning.summarize(cleaning.clean(surveys, found, fix)):
            click.echo(line, err=True)
        if tagged:
            click.echo("Tags stand in the third column: --columns 1+3 2 of `regard train` reads them.", err=True)
    if any(finding.severity != "note" for finding in found):
        raise click.exceptions.Exit(1)


@command.command(epilog=STATS_EXAMPLES)
@inputs
@click.option("--json", "as_json", is_flag=True)
def stats(as_json: bool, **given: Any) -> None:
    """Count pairs, words, characters, scripts and tokens; tell how long texts are, and what splits share."""
    from regard.cli.reports import statistics_as_text
    from regard.data.survey import problem_kinds, problems
    from regard.data.survey.scripts import Characters
    from regard.data.survey.statistics import compute_statistics
    from regard.data.survey.survey import detect_tags

    characters = Characters()
    splits = _splits(**given)
    tagged = detect_tags(splits[0])
    measured = [compute_statistics(split, characters, tagged=tagged) for split in splits]
    surveys = [survey for survey, _ in measured]
    overlaps = [
        finding
        for finding in problems.find_problems(surveys, characters, problems.Limits())
        if finding.kind in {problem_kinds.DUPLICATE, problem_kinds.AMBIGUOUS, problem_kinds.LEAK, problem_kinds.OVERLAP}
    ]
    if as_json:
        shared = [
            {"kind": found.kind.name, "split": found.survey.name, "count": found.count, "details": found.details}
            for found in overlaps
        ]
        click.echo(to_json({"splits": [told for _, told in measured], "shared": shared}, ensure_ascii=False))
    else:
        click.echo(statistics_as_text([told for _, told in measured], overlaps))


def _splits(
    files: tuple[str, ...],
    train: str | None,
    dev: str | None,
    test: str | None,
    source: str | None,
    target: str | None,
    columns: tuple[str, str] | None,
    header: bool | None,
) -> "list[Split]":
    """What is to be read, what is learned from before what is held out."""
    named = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path}
    ways = [bool(files), bool(named), bool(source or target)]
    if sum(ways) != 1 or bool(source) != bool(target):
        raise click.UsageError("Give FILES, or --train, --dev and --test, or --source with --target.")
    if len(files) == 1 and _is_config(files[0]):
        return _configured(files[0])

    from regard.data.lines import display_name
    from regard.data.survey.survey import Split

    reading = reading_given(columns, header)
    if source:
        chosen = {f"{source} and {target}": {"source": source, "target": target}}
    else:
        # Shells sort, and put dev before train.
        ordered = sorted(files, key=lambda path: not HELD_OUT.isdisjoint(re.findall("[a-z]+", Path(path).name.lower())))
        splits = named or {display_name(path): path for path in ordered}
        chosen = {name: files_given(path, reading) for name, path in splits.items()}
    return [Split.of_files(name, resolve(Files, given, {})) for name, given in chosen.items()]


def _is_config(path: str) -> bool:
    if RunFolder(Path(path)).exists() or path.endswith((".yaml", ".yml")):
        return True
    return path in presets() and not Path(path).exists()


def _configured(config: str) -> "list[Split]":
    """The splits of the data of a config: its files, or what is built in."""
    from regard.data.corpora import load_corpus
    from regard.data.survey.survey import Split

    data = resolve(RunSettings, locate(config, None)[0], {}).data
    if isinstance(data, FilesData):
        return [Split.of_files(name, files) for name in SPLITS if (files := data.files(name)) is not None]
    corpus = load_corpus(data)
    return [Split.of_pairs(name, pairs) for name in SPLITS if (pairs := getattr(corpus, name)) is not None]
