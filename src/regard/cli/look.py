"""regard look"""

from pathlib import Path

import click

from regard.errors import ModelError
from regard.runs.folder import RunFolder, open_model

EXAMPLES = """\b
Examples:
  regard look runs/dates "3 mai 2009"
  regard look runs/dates "2009年5月3日" -o alignment.svg
  regard look runs/dates "3 mai 2009" -o alignment.pdf -o alignment.html
  regard look runs/dates
  regard look runs/dates runs/luong -o curves.svg"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("words", metavar="[TEXT | RUN...]", nargs=-1)
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Write a figure to FILE: .svg, .png or .pdf. For attention weights also .html, or .json for the numbers.",
)  # fmt: skip
def command(model: str, words: tuple[str, ...], outputs: tuple[Path, ...]) -> None:
    """Draw the attention weights of a prediction: source tokens across, target tokens down.

    Without TEXT, draw the learning curves of a run, or of several runs in one figure.
    """
    others = [RunFolder(Path(word)) for word in words]
    not_runs = [other.path for other in others if not other.exists()]
    if not not_runs:
        _draw_curves([RunFolder(Path(model)), *others], outputs)
    elif len(words) == 1:
        _draw_alignment(model, words[0], outputs)
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


def _draw_alignment(model: str, text: str, outputs: tuple[Path, ...]) -> None:
    folder, checkpoint = open_model(model)

    from rich.console import Console

    from regard.api.model import Model
    from regard.inspection import figures, heatmap
    from regard.inspection.trace import caption

    for output in outputs:
        figures.check_extension(output)
    prediction = Model.from_checkpoint(folder, checkpoint).predict(text)
    for output in outputs:
        figures.save(prediction, output)
        click.echo(f"wrote {output}", err=True)
    if outputs:
        return
    console = Console(highlight=False)
    title = f"{heatmap.isolate(prediction.source)} → {heatmap.isolate(prediction.text)}"
    click.echo(f"{title}   (log-probability {prediction.score:.4f})")
    if note := caption(prediction):
        click.echo(note)
    click.echo()
    weights = (prediction.attention, prediction.slot_labels, prediction.tokens)
    if console.is_terminal and not console.no_color and console.color_system in {"truecolor", "256"}:
        console.print(heatmap.to_color(*weights, width=console.width))
    else:
        click.echo(heatmap.to_text(*weights, width=console.width if console.is_terminal else 100))
