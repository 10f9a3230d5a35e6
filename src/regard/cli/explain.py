"""regard explain"""

from pathlib import Path

import click

from regard.cli.options import number_option, setting_option
from regard.decoding.settings import SearchSettings
from regard.errors import ConfigError, check_output_folder
from regard.formatting import to_json
from regard.inspection.views.fonts import FORMATS
from regard.overrides import parse_overrides
from regard.quantities import Length

EXAMPLES = """\b
Examples:
  regard explain dates
  regard explain dates model.attention=transformer --source 50 --target 50
  regard explain multi30k-transformer --beam 5
  regard explain runs/dates --json
  regard explain runs/dates --plot cost.svg"""


@click.command(epilog=EXAMPLES)
@click.argument("config", metavar="PRESET|FILE.yaml|MODEL")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@number_option(
    "--source", Length, "N",
    "Number of source positions at which the formulas are evaluated. [default: the average of the training data of a "
    "run, otherwise 25]",
)  # fmt: skip
@number_option("--target", Length, "M", "Number of target steps, including the end token.")
@setting_option(SearchSettings, "beam", "K", "Beam size.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON: formulas, values, implementations.")
@click.option(
    "--plot", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Measure the time of a forward pass at several lengths, and draw it with the predicted cost: .svg, .png or "
    ".pdf.",
)  # fmt: skip
def command(
    config: str,
    settings: tuple[str, ...],
    source: int | None,
    target: int | None,
    beam: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Print what a model computes and what it costs.

    Parameters, multiply-adds, attention weights and memory are printed as formulas in the lengths and as numbers,
    followed by the implementation that each recurrent layer and attention uses, and why faster ones are not used.
    """
    overrides = parse_overrides(settings)
    if plot is not None:
        _check_plot(plot)

    from regard.inspection.explain.explanation import explain

    explanation = explain(config, overrides, source=source, target=target, beam=beam)
    click.echo(to_json(explanation.to_json(), indent=2, ensure_ascii=False) if as_json else explanation.to_text())
    if plot is not None:
        measured = explanation.plot(plot)
        click.echo(f"wrote {plot}: {measured}", err=True)


def _check_plot(path: Path) -> None:
    """Report a path that cannot be written before anything is measured."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: use one of the extensions {', '.join(FORMATS)}.")
    check_output_folder(path, "--plot")
