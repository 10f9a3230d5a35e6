"""regard explore"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regard.cli.options import accept_changes_option
from regard.errors import ConfigError, ModelError
from regard.runs.folder import RunFolder, open_model

if TYPE_CHECKING:
    from fastapi import FastAPI

    from regard.explorer.security import Access

EXAMPLES = """\b
Examples:
  regard explore
  regard explore runs/dates
  regard explore runs/dates runs/transformer --no-browser
  regard explore --gallery
  regard explore runs/dates --host 0.0.0.0 --token "$TOKEN" """

RUNS = Path("runs")


@click.command(epilog=EXAMPLES)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Port of the server. [default: 7866, or a free port if it is in use]",
)
@click.option(
    "--host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address of the server. If other machines can reach it, --token is required.",
)
@click.option("--token", metavar="TOKEN", help="Secret that a browser needs to open the page.")
@click.option("--gallery", is_flag=True, help="Show every attention mechanism on an example. No model is needed.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Whether to open the page in a browser.")
@accept_changes_option
def command(
    runs: tuple[str, ...],
    port: int | None,
    host: str,
    token: str | None,
    gallery: bool,
    browser: bool,
    accept_changes: bool,
) -> None:
    """Explore models in the browser: predictions, attention weights, steps of the search.

    Without RUN, show the newest run in the folder runs. Print the URL on stdout, and serve the page until Ctrl-C.
    By default, URLs of the page open on this machine only. To send a prediction to somebody else, save an HTML file
    with Export.
    """
    if gallery and runs:
        raise click.UsageError("--gallery does not show your models. Omit --gallery or RUN.")
    paths = () if gallery else runs or (str(find_newest_run()),)
    for path in paths:
        open_model(path, accept_changes=accept_changes)
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "The explorer requires the packages fastapi and uvicorn, which are not installed. Run pip install "
            "'regard[explorer]'."
        ) from None

    from regard.explorer.server import is_loopback, serve

    if token is not None:
        check_token(token)
    if not host.strip():
        raise click.UsageError(
            "--host is empty. Use 127.0.0.1 for this machine only, or 0.0.0.0 for all addresses of this machine."
        )
    if not is_loopback(host) and token is None:
        raise click.UsageError(f"--host {host}: other machines can reach this address. Add --token TOKEN.")
    serve(_prepare(paths, accept_changes=accept_changes), host, port, token, browser=browser)


def _prepare(paths: Sequence[str], *, accept_changes: bool) -> "Callable[[Access], FastAPI]":
    """Load models, and return the function that creates their application. Without models, it is the gallery, which
    does not need torch.
    """
    if not paths:
        from regard.explorer.gallery import create_gallery

        return create_gallery
    from regard.explorer.app import create_app
    from regard.explorer.served_model import load_models

    return partial(create_app, load_models(paths, accept_changes=accept_changes))


def check_token(token: str) -> None:
    """Raise UsageError for a token that no browser can send."""
    if not token.strip():
        raise click.UsageError("--token is empty. Use a long random text.")
    try:
        token.encode()
    except UnicodeEncodeError:
        raise click.UsageError("--token is not valid UTF-8. Use letters and digits.") from None


def find_newest_run(folder: Path = RUNS) -> Path:
    """Return the run whose model was written last."""
    runs = [path.parent for path in folder.glob("*/config.yaml") if RunFolder(path.parent).all_checkpoints()]
    if not runs:
        raise ModelError(f"There is no run in the folder {folder}. Train a model first: `regard train dates`.")
    return max(runs, key=lambda run: RunFolder(run).checkpoints.stat().st_mtime)
