"""regard look"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from regard.errors import ModelError
from regard.runs.folder import RunFolder, open_model

if TYPE_CHECKING:
    from regard.inspection.pictures import Style

EXAMPLES = """\b
Examples:
  regard look runs/dates "3 mai 2009"
  regard look runs/dates "2009年5月3日" -o alignment.svg
  regard look runs/dates "3 mai 2009" -o alignment.pdf -o alignment.html
  regard look runs/captions photo.jpg -o attention.png
  regard look runs/dates
  regard look runs/dates runs/luong -o curves.svg"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("words", metavar="[TEXT | IMAGE | RUN...]", nargs=-1)
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Write a figure to FILE: .svg, .png or .pdf. For attention weights also .html, or .json for the numbers.",
)  # fmt: skip
@click.option(
    "--style", type=click.Choice(["smooth", "grid"]), default="smooth", show_default=True,
    help="How weights are drawn over an image: interpolated, or as a grid of cells.",
)  # fmt: skip
def command(model: str, words: tuple[str, ...], outputs: tuple[Path, ...], style: "Style") -> None:
    """Draw the attention weights of a prediction: source tokens across, target tokens down. For an IMAGE, draw the
    weights of each word over the image.

    Without TEXT or IMAGE, draw the learning curves of a run, or of several runs in one figure.
    """
    others = [RunFolder(Path(word)) for word in words]
    not_runs = [other.path for other in others if not other.exists()]
    if not not_runs:
        _draw_curves([RunFolder(Path(model)), *others], outputs)
    elif len(words) == 1:
        _draw_attention(model, words[0], outputs, style)
    else:
        raise click.UsageError(f"Give one TEXT, in quotes, or only runs: '{not_runs[0]}' is not a run.")


def _draw_curves(folders: list[RunFolder], outputs: tuple[Path, ...]) -> None:
    for folder in folders:
        if not folder.exists():
            raise ModelError(f"{folder.path} is not a run: there is no {folder.config}. Check the path.")

    from rich.console import Console

    from regard.inspection import curves, terminal_plot

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


def _draw_attention(model: str, source: str, outputs: tuple[Path, ...], style: "Style") -> None:
    folder, checkpoint = open_model(model)

    from rich.console import Console

    from regard.api.model import Model
    from regard.inspection import figures
    from regard.inspection.heatmap import isolate

    for output in outputs:
        figures.check_extension(output)
    prediction = Model.from_checkpoint(folder, checkpoint).predict(source)
    for output in outputs:
        figures.save(prediction, output, style)
        click.echo(f"wrote {output}", err=True)
    if outputs:
        return
    console = Console(highlight=False)
    title = f"{isolate(prediction.source)} → {isolate(prediction.text)}"
    click.echo(f"{title}   (log-probability {prediction.score:.4f})")
    if prediction.attention_note:
        click.echo(prediction.attention_note)
    click.echo()
    view = prediction.view(style)
    if console.is_terminal and not console.no_color and console.color_system in {"truecolor", "256"}:
        console.print(view.to_color(console.width))
    else:
        click.echo(view.to_text(console.width if console.is_terminal else 100))
