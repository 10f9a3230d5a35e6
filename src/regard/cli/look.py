"""regard look"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from regard.cli.look_views import Request, Shown, TraceRequest, show_attributions, show_predictions, write_json
from regard.cli.options import QuantityType, accept_changes_option
from regard.data.lines import parse_lines
from regard.errors import DataError, ModelError
from regard.formatting import quantity, quote
from regard.quantities import BeamWidth
from regard.runs.folder import RunFolder, open_model

if TYPE_CHECKING:
    from regard.inspection.attribution.attribution import Method
    from regard.inspection.prediction import ViewOptions

EXAMPLES = """\b
Examples:
  regard look runs/dates "3 mai 2009"
  regard look runs/dates "2009年5月3日" -o alignment.svg
  regard look runs/dates "3 mai 2009" "May 3, 2009" -o alignments.pdf -o alignments.html
  regard look runs/dates --file dates.txt --json
  regard look runs/transformer "3 mai 2009" --view grid -o heads.pdf
  regard look runs/transformer "3 mai 2009" --layer 1 --head 3 --words --view lines -o head.svg
  regard look runs/transformer "3 mai 2009" --attention encoder-self --layer rollout
  regard look runs/dates "3 mai 2009" --target 2009-03-05
  regard look runs/dates "3 mai 2009" --method integrated_gradients -o attribution.svg
  regard look runs/dates "3 mai 2009" --method occlusion --target 2009-05-03 --contrast 2009-03-05
  regard look runs/dates "3 mai 2009" --colors Greys --title "" -o plain.png
  regard look runs/captions photo.jpg -o attention.png
  regard look runs/dates
  regard look runs/dates runs/luong -o curves.svg"""


class NumberOr(click.ParamType[int | str]):
    """A number from 1, or one of several keywords."""

    name = "number"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text in self.words:
            return text
        if not re.fullmatch("[1-9][0-9]{0,8}", text):
            self.fail(
                f"{quote(text)} is not a number from 1, {', '.join(self.words[:-1])} or {self.words[-1]}.", param, ctx
            )
        return int(text)


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("texts", metavar="[TEXT | IMAGE | RUN]...", nargs=-1)
@click.option("--file", "file", metavar="FILE", type=click.File("rb"), help="Read texts from FILE, one per line.")
@click.option(
    "--target",
    "targets",
    metavar="TEXT",
    multiple=True,
    help="Draw the weights for this target instead of the prediction. Give one for each text.",
)
@click.option(
    "--method",
    type=click.Choice(["attention", "gradient_x_input", "integrated_gradients", "occlusion", "value_zeroing"]),
    default="attention",
    show_default=True,
    help="Draw attention weights, or how much each source token contributes to each target token by this method. "
    "--attention, --layer and --head then select the weights to compare with.",
)
@click.option(
    "--contrast",
    "contrasts",
    metavar="TEXT",
    multiple=True,
    help="With --method, explain why the first token that differs from this target is predicted rather than the token "
    "of this target. Give one for each text.",
)
@click.option(
    "--beam",
    metavar="K",
    type=QuantityType(BeamWidth),
    default=1,
    show_default=True,
    help="Beam size; 1 is greedy search.",
)
@click.option(
    "--attention",
    metavar="ROLE|NAME",
    default="cross",
    show_default=True,
    help="cross, encoder-self, decoder-self, or the name of an attention.",
)
@click.option(
    "--layer",
    metavar="N|WORD",
    type=NumberOr("mean", "max", "rollout", "all"),
    help="Layer, counted from 1, or mean, max, rollout or all. [default: the last]",
)
@click.option(
    "--head",
    metavar="N|WORD",
    type=NumberOr("mean", "max", "all"),
    help="Head, counted from 1, or mean, max or all. [default: mean]",
)
@click.option("--words", is_flag=True, help="Combine the tokens of each word: average rows, sum columns.")
@click.option(
    "--view",
    "kind",
    type=click.Choice(["matrix", "grid", "lines"]),
    help="A heat map, a grid of layers and heads, or lines. [default: matrix, or grid if several maps are selected]",
)
@click.option(
    "--colors",
    metavar="NAME",
    help="Color map: light, dark, or a name that matplotlib knows, such as viridis or Greys. [default: light; dark in "
    "a terminal]",
)
@click.option(
    "--max-weight",
    metavar="W",
    type=float,
    help="Weight of the strongest color. [default: depends on the largest weight]",
)
@click.option("--title", metavar="TEXT", help='Title of the figure; "" for none. [default: describes the weights]')
@click.option(
    "--style",
    type=click.Choice(["smooth", "grid"]),
    default="smooth",
    show_default=True,
    help="How weights are drawn over an image: interpolated, or as a grid of cells.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a figure to FILE: .svg, .png, .pdf or .html, or .json for all weights. For several texts, a .pdf has a "
    "page for each, and .svg, .png and .json files are numbered.",
)
@click.option(
    "--queries", is_flag=True, help="In .json files, include what the weights are computed from: queries, keys, scores."
)
@click.option("--states", is_flag=True, help="In .json files, include the states and gates of recurrent layers.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object per text: the prediction, and the selected weights."
)
@accept_changes_option
def command(
    model: str,
    texts: tuple[str, ...],
    file: BinaryIO | None,
    targets: tuple[str, ...],
    method: "Method",
    contrasts: tuple[str, ...],
    beam: int,
    outputs: tuple[Path, ...],
    queries: bool,
    states: bool,
    as_json: bool,
    accept_changes: bool,
    **options: Any,
) -> None:
    """Draw the attention weights of predictions. Columns are source tokens, and rows are target tokens. For an IMAGE,
    draw the weights of each word over the image.

    By default, draw the cross-attention of the last layer, averaged over its heads. --layer rollout multiplies the
    weights of all layers of a Transformer (Abnar and Zuidema 2020).

    Attention weights alone do not explain a prediction. --method draws other evidence, and prints its rank correlation
    with the weights. All methods but value_zeroing require captum: pip install 'regard[explain]'.

    Without TEXT or IMAGE, draw the learning curves of a run, or of several runs in one figure. A single - reads texts
    from stdin, one per line.
    """
    if texts == ("-",):
        if sys.stdin is None:
            raise click.UsageError("Standard input is closed. Give TEXT, or redirect a file with < FILE.")
        texts, file = (), sys.stdin.buffer
    others = [RunFolder(Path(text)) for text in texts]
    not_runs = [other.path for other in others if not other.exists()]
    if not not_runs and file is None:
        _draw_curves([RunFolder(Path(model)), *others], outputs)
        return
    if runs := [other.path for other in others if other.exists()]:
        reason = f"'{runs[0]}' is a run, but '{not_runs[0]}' is not a run" if not_runs else f"'{runs[0]}' is a run"
        raise click.UsageError(f"Give texts, or only runs: {reason}.")
    sources = [*texts, *(_read_file(file) if file else ())]
    for option, given in (("target", targets), ("contrast", contrasts)):
        if given and len(given) != len(sources):
            raise click.UsageError(
                f"Got {quantity(len(sources), 'text')} and {quantity(len(given), option)}. Give a --{option} for each "
                "text."
            )
    if contrasts and method in ("attention", "value_zeroing"):
        raise click.UsageError(
            "--contrast compares the log-probabilities of two tokens. Add --method integrated_gradients, "
            "gradient_x_input or occlusion."
        )
    if outputs and as_json:
        raise click.UsageError("--json prints to stdout, so it cannot be combined with -o. Use -o FILE.json instead.")
    if (queries or states) and not any(map(_is_trace, outputs)):
        raise click.UsageError("--queries and --states are for traces in JSON: add -o FILE.json.")
    view = cast("ViewOptions", options)  # click has checked the values
    folder, checkpoint = open_model(model, accept_changes=accept_changes)

    from regard.api.model import Model
    from regard.inspection import figures

    for output in outputs:
        figures.check_extension(output)
    loaded = Model.from_checkpoint(folder, checkpoint)
    traced = TraceRequest(queries=queries, states=states) if any(map(_is_trace, outputs)) else None
    request = Request(sources, targets, contrasts, beam, method, traced)
    shown = (
        show_predictions(loaded, request, view) if method == "attention" else show_attributions(loaded, request, view)
    )
    for output in outputs:
        for path in figures.save_all([each.figure for each in shown], output):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        for each in shown:
            click.echo(write_json(each, view))
    elif outputs:
        click.echo("".join(f"{note}\n" for each in shown for note in each.notes), err=True, nl=False)
    else:
        is_default = not (view["kind"] or view["layer"] or view["head"])
        _print_views(shown, "--view grid shows each head" if is_default else "")


def _draw_curves(folders: list[RunFolder], outputs: tuple[Path, ...]) -> None:
    for folder in folders:
        if not folder.exists():
            raise ModelError(f"{folder.path} is not a run: there is no {folder.config}. Check the path.")

    from rich.console import Console

    from regard.inspection.views import curves, terminal_plot

    for output in outputs:
        curves.check_extension(output)
    panels = curves.read_panels(folders)
    for output in outputs:
        curves.draw(panels, output)
        click.echo(f"wrote {output}", err=True)
    if outputs:
        return
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(terminal_plot.plot(panels, min(console.width, 120)))
    else:
        click.echo("\n".join(line.rstrip() for line in terminal_plot.plot(panels).plain.split("\n")))


def _read_file(file: BinaryIO) -> list[str]:
    """Read one text per line. Blank lines have nothing to draw."""
    lines = list(parse_lines(file, file.name))
    for line in lines:
        if line.problem:
            raise DataError(f"{file.name}, line {line.number}: {line.problem}. Correct the line.")
    texts = [line.text for line in lines if line.text.strip()]
    if not texts:
        raise DataError(f"{file.name} contains no text.")
    return texts


def _is_trace(output: Path) -> bool:
    return output.suffix.lower() == ".json"


def _print_views(shown: Sequence[Shown], hint: str) -> None:
    """Print the views on the terminal, in color if it has colors. `hint` says how to see the other maps of a model."""
    from rich.console import Console

    console = Console(highlight=False)
    in_color = console.is_terminal and not console.no_color and console.color_system in {"truecolor", "256"}
    for index, each in enumerate(shown):
        prediction, view, _ = each.figure
        click.echo("\n" * (index > 0) + prediction.heading)
        maps = prediction.map_count if each.attribution is None else 0
        captions = [view.title if maps != 1 else "", view.scale, hint if maps > 1 else ""]
        if any(captions):
            click.echo("; ".join(filter(None, captions)))
        click.echo()
        if in_color:
            console.print(view.to_color(console.width))
        else:
            click.echo(view.to_text(console.width if console.is_terminal else 100))
        if each.notes:
            click.echo("\n" + "\n".join(each.notes))
