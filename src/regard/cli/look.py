"""regard look"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from regard.cli.options import accept_changes_option, setting_option
from regard.data.lines import parse_lines
from regard.decoding.settings import SearchSettings
from regard.errors import DataError, ModelError
from regard.formatting import quantity, quote, to_json
from regard.runs.folder import RunFolder, open_model

if TYPE_CHECKING:
    from regard.api.model import Model
    from regard.decoding.settings import PredictionOptions
    from regard.inspection.attribution.agreement import Agreement
    from regard.inspection.attribution.attribution import Attribution
    from regard.inspection.attribution.settings import Method
    from regard.inspection.figures import Figure
    from regard.inspection.prediction import ViewOptions
    from regard.inspection.trace.trace import Trace

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


class _TraceRequest(NamedTuple):
    """What a trace in a .json file contains besides attention weights."""

    queries: bool
    states: bool


class _Request(NamedTuple):
    """What is predicted, or decoded, and how it is explained."""

    sources: Sequence[str]
    targets: Sequence[str]
    contrasts: Sequence[str]
    beam: int
    method: "Method"
    traced: _TraceRequest | None

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """Each source with its target, None if the target is predicted."""
        if not self.targets:
            return [(source, None) for source in self.sources]
        return list(zip(self.sources, self.targets, strict=True))


class _Shown(NamedTuple):
    """What is drawn or printed for a source: attention weights, or an attribution with its agreement."""

    figure: "Figure"
    attribution: "Attribution | None" = None
    agreement: "Agreement | None" = None

    @property
    def notes(self) -> list[str]:
        """What is printed besides the view."""
        return [] if self.attribution is None else self.attribution.describe(self.agreement)


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
@setting_option(SearchSettings, "beam", "K", "Beam size; 1 is greedy search.", show_default=True)
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
    file: BufferedReader | None,
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
        texts, file = (), cast(BufferedReader, sys.stdin.buffer)
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
    traced = _TraceRequest(queries=queries, states=states) if any(map(_is_trace, outputs)) else None
    request = _Request(sources, targets, contrasts, beam, method, traced)
    shown = (
        _show_predictions(loaded, request, view) if method == "attention" else _show_attributions(loaded, request, view)
    )
    for output in outputs:
        for path in figures.save_all([each.figure for each in shown], output):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        for each in shown:
            click.echo(_write_json(each, view))
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


def _read_file(file: BufferedReader) -> list[str]:
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


def _print_views(shown: Sequence[_Shown], hint: str) -> None:
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


def _show_predictions(model: "Model", request: _Request, options: "ViewOptions") -> list[_Shown]:
    """Predict the sources, or decode the given targets."""
    from regard.inspection.figures import Figure

    sources, targets, traced = request.sources, request.targets, request.traced
    if traced is not None:
        traces = _trace(model, request, traced)
        return [_Shown(Figure(trace.prediction, trace.prediction.view(**options), trace.document)) for trace in traces]
    predictions = model.force(sources, targets) if targets else model.predict(sources, beam=request.beam)
    return [_Shown(Figure(prediction, prediction.view(**options))) for prediction in predictions]


def _trace(model: "Model", request: _Request, traced: _TraceRequest) -> "list[Trace]":
    trace_one = partial(model.trace, queries=traced.queries, states=traced.states)
    return [
        trace_one(source, beam=request.beam) if target is None else trace_one(source, target)
        for source, target in request.pairs
    ]


def _show_attributions(model: "Model", request: _Request, options: "ViewOptions") -> list[_Shown]:
    """Explain the predictions for the sources, or the given targets."""
    from regard.inspection.figures import Figure

    traces = None if request.traced is None else _trace(model, request, request.traced)
    shown = []
    for index, (source, target) in enumerate(request.pairs):
        contrast = request.contrasts[index] if request.contrasts else None
        search: PredictionOptions = {} if target is not None else {"beam": request.beam}
        attribution = model.attribute(source, target, method=request.method, contrast=contrast, **search)
        trace = None if traces is None else traces[index]
        if trace is not None:
            attribution = replace(attribution, prediction=trace.prediction)
        view = attribution.view(
            words=options["words"],
            kind=options["kind"],
            colors=options["colors"],
            max_weight=options["max_weight"],
            title=options["title"],
            style=options["style"],
        )
        agreement = attribution.measure_agreement(
            attention=options["attention"], layer=options["layer"], head=options["head"]
        )
        document = None if trace is None else replace(trace, attributions=[attribution]).document
        figure = Figure(attribution.prediction, view, document)
        shown.append(_Shown(figure, attribution, agreement))
    return shown


def _write_json(shown: _Shown, options: "ViewOptions") -> str:
    prediction = shown.figure.prediction
    fields = {"source": prediction.source, "text": prediction.text, "score": prediction.score}
    if shown.attribution is not None:
        document = shown.attribution.to_document(words=options["words"], agreement=shown.agreement)
    else:
        selected = prediction.select(
            attention=options["attention"],
            layer=options["layer"],
            head=options["head"],
            words=options["words"],
            kind=options["kind"],
        )
        document = selected.document
    return to_json({**fields, **document}, ensure_ascii=False)
