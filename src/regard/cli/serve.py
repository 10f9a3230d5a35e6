"""regard serve"""

import tempfile
from contextlib import ExitStack
from functools import partial
from typing import get_args

import click

from regard.cli.options import (
    accept_changes_option,
    engine_options,
    number_option,
    parse_search_options,
    search_options,
    setting_option,
)
from regard.decoding.settings import EngineName, Precision
from regard.errors import ConfigError
from regard.quantities import RequestRate, WorkerCount
from regard.registry import imported_plugins
from regard.runs.folder import open_model
from regard.serving.settings import (
    AccessSettings,
    AppOptions,
    Loading,
    LogFormat,
    ModelAddress,
    Replicas,
    RequestLimits,
    ServerOptions,
)

EXAMPLES = """\b
Examples:
  regard serve runs/en-de runs/de-en
  regard serve en:de=runs/first de:en=runs/second --port 5000
  regard serve runs/en-de --engine ct2 --beam 4 --workers 2
  regard serve runs/en-de --host 0.0.0.0 --keys keys.txt --characters 2000
  regard serve runs/dates --certificate cert.pem --private-key key.pem
  regard serve runs/en-de --cluster head:6379 --replicas 2-8
  curl -d q='A dog.' -d source=en -d target=de localhost:5000/translate"""


@click.command(epilog=EXAMPLES)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address of the server.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=5000, show_default=True,
    help="Port of the server; 0 is a free port.",
)  # fmt: skip
@search_options("Beam size; 1 is greedy search. [default: that of validation]")
@engine_options
@number_option("--workers", WorkerCount, "N", "Serve with N processes, each with its own copy of the models.", 1)
@click.option("--cluster", metavar="ADDRESS",
              help="Compute predictions on a Ray cluster: HOST:PORT of its head node, auto, or local to start one "
              "here. Run the command on a machine of the cluster.")  # fmt: skip
@click.option("--replicas", metavar="N|MIN-MAX",
              help="Copies of each model on the cluster; a range adapts to the load. [default: 1]")  # fmt: skip
@click.option("--keys", metavar="FILE", help="Require an API key: FILE has lines NAME KEY [REQUESTS-PER-MINUTE].")
@number_option("--requests-per-minute", RequestRate, "N", "Maximum rate of each key; without --keys, of each address.")
@setting_option(
    RequestLimits, "characters", "N", "Maximum number of characters of a request; 0 is no limit.", show_default=True
)
@setting_option(
    RequestLimits, "timeout", "S", "Seconds after which a request without a result fails.", show_default=True
)
@setting_option(Loading, "queue", "N", "Maximum number of sentences that wait for each model.", show_default=True)
@click.option("--certificate", metavar="FILE", help="Serve HTTPS with this certificate, a file in PEM format.")
@click.option("--private-key", metavar="FILE", help="Private key of the certificate. [default: in the same file]")
@click.option(
    "--proxy", "proxies", metavar="ADDRESS", multiple=True,
    help="Trust X-Forwarded-For and X-Forwarded-Proto of this proxy, an address or network. Repeat for more.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(get_args(LogFormat)), default="auto", show_default=True,
    help="Write logs as JSON or as text. auto writes text to a terminal, and JSON otherwise.",
)  # fmt: skip
@click.option("--log-texts", is_flag=True, help="Log the texts of requests. By default, only their length is logged.")
@accept_changes_option
def command(
    models: tuple[str, ...],
    host: str,
    port: int,
    beam: int | None,
    settings: tuple[str, ...],
    engine: EngineName,
    precision: Precision,
    workers: int,
    cluster: str | None,
    replicas: str | None,
    keys: str | None,
    requests_per_minute: float | None,
    characters: int,
    timeout: float,
    queue: int,
    certificate: str | None,
    private_key: str | None,
    proxies: tuple[str, ...],
    log_format: LogFormat,
    log_texts: bool,
    accept_changes: bool,
) -> None:
    """Serve models over HTTP, with the API of LibreTranslate and a page for the browser.

    MODEL is a model folder. Its languages are read from its name (en-de), or from the names of the training files
    (train.en, train.de); SOURCE:TARGET=MODEL sets them. A model without languages answers POST /predict, or POST
    /caption if it reads images. Models run on a GPU if PyTorch finds one; CUDA_VISIBLE_DEVICES selects it.

    Print the URL on stdout, and serve until Ctrl-C or SIGTERM. Then, finish the requests that have arrived, for up to
    30 seconds. After SIGHUP, or if the weights in a model folder change, load the models again: the previous ones
    answer until the new ones have passed a test. The page /docs of the server describes the API.
    """
    if replicas is not None and cluster is None:
        raise click.UsageError("--replicas needs --cluster. Use --workers for processes of this machine.")
    copies = Replicas.parse(replicas or "1")
    addresses = tuple(ModelAddress.parse(model) for model in models)
    for address in addresses:
        open_model(address.path, accept_changes=accept_changes)
    try:
        from regard.serving.app import create_app
        from regard.serving.cluster import ClusterLoader, open_cluster
        from regard.serving.models import load_catalog
        from regard.serving.server import run_server
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "regard":
            raise
        raise ConfigError(
            f"regard serve requires the package {error.name}, which is not installed. Run pip install 'regard[serve]'."
        ) from None

    with tempfile.TemporaryDirectory(prefix="regard-serve-") as downloads, ExitStack() as stack:
        options = AppOptions(
            loading=Loading(
                models=addresses,
                engine=engine,
                precision=precision,
                search=parse_search_options(beam, settings),
                plugins=imported_plugins(),
                accept_changes=accept_changes,
                queue=queue,
            ),
            access=AccessSettings(keys=keys, requests_per_minute=requests_per_minute),
            limits=RequestLimits(timeout=timeout, characters=characters),
            downloads=downloads,
            log_texts=log_texts,
        )
        server = ServerOptions(
            host=host,
            port=port,
            workers=workers,
            certificate=certificate,
            private_key=private_key,
            proxies=proxies,
            log_format=log_format,
        )
        load = load_catalog
        if cluster is not None:
            load = ClusterLoader(stack.enter_context(open_cluster(cluster, copies)))
        run_server(partial(create_app, options, load), server)
