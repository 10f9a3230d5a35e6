"""regard look"""

from pathlib import Path

import click

from regard.training.folder import open_model

EXAMPLES = """\b
Examples:
  regard look runs/dates "3 mai 2009"
  regard look runs/dates "2009年5月3日" -o alignment.svg
  regard look runs/dates "3 mai 2009" -o alignment.pdf -o alignment.html"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("text")
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="A figure: .svg, .png, .pdf, .html, or the numbers as .json.",
)  # fmt: skip
def command(model: str, text: str, outputs: tuple[Path, ...]) -> None:
    """Draw which source tokens (across) the model looked at for each token of its answer (down)."""
    folder, chosen = open_model(model)

    from rich.console import Console

    from regard.api import Model
    from regard.inspection import figures, heatmap

    for output in outputs:
        figures.check_ending(output)
    prediction = Model.open(folder, chosen).predict(text)
    for output in outputs:
        figures.save(prediction, output)
        click.echo(f"wrote {output}", err=True)
    if outputs:
        return
    console = Console(highlight=False)
    click.echo(f"{text} → {prediction.text}   (log-probability {prediction.score:.4f})\n")
    drawing = (prediction.attention, prediction.source_tokens, prediction.tokens)
    if console.is_terminal and console.color_system in {"truecolor", "256"}:
        console.print(heatmap.coloured(*drawing, width=console.width))
    else:
        click.echo(heatmap.plain(*drawing, width=console.width if console.is_terminal else 100))
