"""The speed of `regard serve` under load, against LibreTranslate and CTranslate2 behind a bare FastAPI application.

    python benchmarks/serving.py RUN --source test.en --libretranslate /path/to/venv/bin

All servers translate the same sentences with the same model, beam 4 (that of LibreTranslate) and one process. regard
ranks hypotheses by their probability (`length_penalty=0`); LibreTranslate uses a length penalty of 0.2. Each client
sends one sentence, waits for the translation, and sends the next one. A sentence is sent once to each server and for
each number of clients, so that no cache helps. The order of the servers alternates between rounds.

RUN is a Transformer with sinusoidal positions and a BPE tokenizer. LibreTranslate is installed in an environment of its
own (`pip install libretranslate`); without --libretranslate, it is left out.
"""

import argparse
import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import regard

BEAM = 4
START_SECONDS = 300

BARE = """
import asyncio, sys
import ctranslate2, uvicorn
from fastapi import FastAPI, Request
from tokenizers import Tokenizer
folder, port = sys.argv[1], int(sys.argv[2])
model = ctranslate2.Translator(folder, inter_threads=1, intra_threads=int(sys.argv[3]))
source, target = (Tokenizer.from_file(f"{folder}/{side}.json") for side in ("source", "target"))
app = FastAPI()

def translate(text):
    tokens = source.encode(text).tokens
    [result] = model.translate_batch([tokens], beam_size=4, length_penalty=0, max_decoding_length=200)
    return target.decode([target.token_to_id(token) for token in result.hypotheses[0]])

@app.get("/health")
async def health():
    return {}

@app.post("/translate")
async def post(request: Request):
    body = await request.json()
    return {"translatedText": await asyncio.to_thread(translate, body["q"])}

uvicorn.run(app, port=port, log_level="error")
"""


def main() -> None:
    arguments = parse_arguments()
    open_text = gzip.open if arguments.source.endswith(".gz") else open
    with open_text(arguments.source, "rt", encoding="utf-8") as file:
        sentences = [line.strip() for line in file if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        commands = dict(build_commands(arguments, Path(folder)))
        table: dict[tuple[str, int], list[tuple[float, np.ndarray]]] = defaultdict(list)
        first: dict[str, list[str]] = {}
        for number in range(arguments.rounds):
            names = list(commands) if number % 2 == 0 else list(reversed(commands))
            for name in names:
                with start(*commands[name], arguments.threads) as port:
                    asyncio.run(measure(port, sentences[:20], 4))  # the first requests load what is loaded lazily
                    for clients in arguments.clients:
                        count = min(len(sentences), arguments.requests * (1 if clients == 1 else 4))
                        rate, seconds, texts = asyncio.run(measure(port, sentences[:count], clients))
                        table[name, clients].append((rate, seconds))
                        first.setdefault(name, texts)
                        print(f"# round {number + 1}: {name}, {clients} clients: {rate:.1f}/s", file=sys.stderr)
    report(table, arguments.clients, first)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder of a Transformer")
    parser.add_argument("--source", required=True, help="file of sentences, one per line")
    parser.add_argument("--libretranslate", help="folder of the program libretranslate")
    parser.add_argument("--engines", nargs="+", default=["torch", "ct2"], help="engines of regard; torch uses a GPU")
    parser.add_argument("--bare", action=argparse.BooleanOptionalAction, default=True, help="measure CTranslate2 alone")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=200, help="with one client; four times as many otherwise")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of each server")
    return parser.parse_args()


def build_commands(
    arguments: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, tuple[list[str], dict[str, str]]]]:
    """Yield the command and the environment of each server, by name. The port replaces {port}."""
    model = regard.load(arguments.run, device="cpu")
    serve = [sys.executable, "-m", "regard", "serve", f"en:de={arguments.run}", "--port", "{port}"]
    search = ["--beam", str(BEAM), "--set", "length_penalty=0", "--log-format", "text", "--characters", "0"]
    for engine in arguments.engines:
        yield f"regard, {engine}", ([*serve, "--engine", engine, *search], {})
    if arguments.bare:
        exported = model.export(folder / "ct2", to="ct2")
        tokenizers = model.predictor.reader.tokenizer, model.predictor.tokenizer  # type: ignore[attr-defined]
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
            tokenizer.inner.save(str(exported / f"{side}.json"))
        command = [sys.executable, "-c", BARE, str(exported), "{port}", str(arguments.threads)]
        yield "CTranslate2, FastAPI", (command, {})
    if arguments.libretranslate:
        environment = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache"),
                       "XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder), "ARGOS_INTER_THREADS": "1",
                       "ARGOS_INTRA_THREADS": str(arguments.threads)}  # fmt: skip
        tools = Path(arguments.libretranslate)
        # LibreTranslate downloads models unless two are installed.
        for source, target in (("en", "de"), ("de", "en")):
            options = f"argos:source={source},target={target},sentences=lines"
            package = model.export(folder / f"{source}_{target}.argosmodel", to=options)
            code = f"import argostranslate.package as package; package.install_from_path({str(package)!r})"
            subprocess.run([str(tools / "python"), "-c", code], check=True, env={**os.environ, **environment})
        yield "LibreTranslate", (
            [str(tools / "libretranslate"), "--port", "{port}", "--load-only", "en,de", "--threads", "4",
             "--disable-web-ui"],
            environment,
        )  # fmt: skip


@contextmanager
def start(command: Sequence[str], environment: dict[str, str], count: int = 1) -> Iterator[int]:
    """Start a server, and yield its port when it answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [str(port) if word == "{port}" else word for word in command]
    threads = {"OMP_NUM_THREADS": str(count)}
    process = subprocess.Popen(
        words, env={**os.environ, **threads, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        asyncio.run(wait_until_ready(port, process))
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


async def wait_until_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with exit code {process.returncode}")
        try:
            await translate(*await asyncio.open_connection("127.0.0.1", port), "A dog.")
        except (OSError, ValueError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.5)
        else:
            return
    raise SystemExit(f"{process.args!r} does not answer")


async def measure(port: int, sentences: Sequence[str], clients: int) -> tuple[float, np.ndarray, list[str]]:
    """Return the requests per second, the seconds of each request, and the translations."""
    seconds, texts = np.zeros(len(sentences)), [""] * len(sentences)
    remaining = iter(range(len(sentences)))

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for index in remaining:
            begin = time.perf_counter()
            try:
                texts[index] = await translate(reader, writer, sentences[index])
            except (ConnectionError, asyncio.IncompleteReadError):  # a server may close a connection after a response
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                texts[index] = await translate(reader, writer, sentences[index])
            seconds[index] = time.perf_counter() - begin
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(run_client() for _ in range(clients)))
    return len(sentences) / (time.perf_counter() - begin), seconds, texts


async def translate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> str:
    """Send one request. Raise ValueError if it fails."""
    body = json.dumps({"q": text, "source": "en", "target": "de", "format": "text"}).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    writer.write(f"{head}\r\n\r\n".encode() + body)
    response = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(response.partition("content-length:")[2].split("\r\n")[0])
    content = await reader.readexactly(length)
    if " 200 " not in response.split("\r\n")[0]:
        raise ValueError(content)
    return str(json.loads(content)["translatedText"])


def report(
    table: dict[tuple[str, int], list[tuple[float, np.ndarray]]], clients: Sequence[int], texts: dict[str, list[str]]
) -> None:
    names = list(dict.fromkeys(name for name, _ in table))
    reference = names[-1]
    print(f"| clients | server | requests/s | ÷ {reference} | p50 | p95 | p99 |\n|---|---|---|---|---|---|---|")
    for count in clients:
        base = np.median([rate for rate, _ in table[reference, count]])
        for name in names:
            rate = np.median([rate for rate, _ in table[name, count]])
            times = 1000 * np.concatenate([seconds for _, seconds in table[name, count]])
            quantiles = " | ".join(f"{np.percentile(times, share):.0f} ms" for share in (50, 95, 99))
            print(f"| {count} | {name} | {rate:.1f} | {rate / base:.2f} | {quantiles} |")
    for name in names[1:]:
        pairs = list(zip(texts[names[0]], texts[name], strict=False))
        same = sum(one.strip() == other.strip() for one, other in pairs) / len(pairs)
        print(f"The translations of {name} equal those of {names[0]} for {same:.1%} of {len(pairs)} sentences.")


if __name__ == "__main__":
    main()
