"""How the time to paint attention weights grows with tokens and heads: `python benchmarks/explorer_painting.py`.

Needs the extras `explorer` and `test`, and Chromium. The page paints all cells of a matrix as one image, so the time
grows more slowly than the number of cells. `tests/explorer/test_page.py` counts the operations.
"""

import argparse
import base64
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from regard.inspection.trace.page import render_page

SIZES: Final = {
    "matrix, 100 tokens": ("matrix", 1, 1, 100),
    "matrix, 300 tokens": ("matrix", 1, 1, 300),
    "grid of 8 heads, 120 tokens": ("grid", 1, 8, 120),
    "grid of 48 heads, 120 tokens": ("grid", 6, 8, 120),
}
"""The view, and the numbers of layers, heads and tokens."""

COUNT_OPERATIONS: Final = """() => {
    window.operations = 0;
    for (const name of ["fillRect", "strokeRect", "fillText", "stroke", "fill", "drawImage", "putImageData"]) {
        const original = CanvasRenderingContext2D.prototype[name];
        CanvasRenderingContext2D.prototype[name] = function (...values) {
            window.operations++;
            return original.apply(this, values);
        };
    }
}"""
"""Count the drawing operations on all canvases from now on."""

PAINT: Final = """async () => {
    const app = document.querySelector("explorer-app");
    const start = performance.now();
    app.shadowRoot.querySelector("#tab-attention").click();
    await app.updateComplete;
    const view = app.shadowRoot.querySelector("attention-view");
    while (!(await view.updateComplete)) continue;
    const figure = view.shadowRoot.querySelector("canvas-figure");
    await figure.updateComplete;
    figure.shadowRoot.querySelector("canvas").getContext("2d").getImageData(0, 0, 1, 1);
    return {
        seconds: (performance.now() - start) / 1000,
        operations: window.operations,
        elements: view.shadowRoot.querySelectorAll("*").length + figure.shadowRoot.querySelectorAll("*").length,
    };
}"""
"""Open the tab Attention. Return the seconds until its canvas is painted, the operations, and the elements of the tab.
"""


def describe_model(identifier: str, name: str, example: str) -> dict[str, Any]:
    """Return a model as an exported page describes it."""
    facts = {"architecture": "", "source_kind": "text", "parameters": 0, "step": 0, "metrics": None}
    return {"id": identifier, "name": name, "attentions": [], "examples": [example], **facts}


def make_request(model: str, text: str) -> dict[str, Any]:
    """Return the request by which an exported page finds a trace."""
    return {"model": model, "source": {"text": text}, "edits": [], "search": {"beam": 4}, "queries": True}


def create_document(layers: int, heads: int, tokens: int) -> dict[str, Any]:
    """Return a trace document with random weights."""
    generator = np.random.default_rng(0)
    weights = generator.dirichlet(np.full(tokens, 0.1), (layers, heads, tokens)).astype(np.float16)
    step = {"token": "b", "id": 5, "log_prob": -0.1, "entropy": 0.3, "top": [{"token": "b", "id": 5, "log_prob": -0.1}]}
    common = {"role": "cross", "hypothesis": 0, "shape": [heads, tokens, tokens], "dtype": "float16"}
    return {
        "format": 3,
        "model": {},
        "source": {
            "text": "a" * tokens, "tokens": ["a"] * tokens, "offsets": [[i, i + 1] for i in range(tokens)],
            "unknown": [], "grid": None, "picture": None,
        },
        "hypotheses": [{"text": "b" * tokens, "tokens": ["b"] * tokens, "score": -1.0, "truncated": False}],
        "steps": [[step] * (tokens + 1)],
        "beam": None,
        "attention": [
            {**common, "name": f"layer.{layer}", "layer": layer, "data": base64.b64encode(part.tobytes()).decode()}
            for layer, part in enumerate(weights)
        ],
        "mechanisms": {}, "states": [], "settings": {}, "edits": [], "changes": None,
    }  # fmt: skip


def paint(page: Any, folder: Path, view: str, layers: int, heads: int, tokens: int) -> dict[str, float]:
    """Open the tab Attention of a page with random weights. Return what it costs; see `PAINT`."""
    text = "a" * tokens
    traces = [{"request": make_request("0", text), "document": create_document(layers, heads, tokens)}]
    exported = folder / "large.html"
    exported.write_text(render_page({"models": [describe_model("0", "large", text)], "traces": traces}), "utf-8")
    page.goto("about:blank")  # another fragment alone does not load the page again
    page.goto(f"{exported.as_uri()}#text={text}&view={view}&words=false")
    page.wait_for_selector("translate-view")
    page.evaluate(COUNT_OPERATIONS)
    cost: dict[str, float] = page.evaluate(PAINT)
    return cost


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        costs = {name: [paint(page, Path(folder), *size) for _ in range(repeats)] for name, size in SIZES.items()}
        browser.close()
    seconds = {name: statistics.median(cost["seconds"] for cost in each) for name, each in costs.items()}
    for name, (_, layers, heads, tokens) in SIZES.items():
        operations = costs[name][0]["operations"]
        print(f"{name:30} {layers * heads * tokens**2:8,} cells {operations:7,.0f} operations {seconds[name]:6.3f} s")
    few, many, one, all_layers = seconds.values()
    print(f"9 times the cells of a matrix: {many / few:.1f} times the time")
    print(f"6 times the heads of a grid: {all_layers / one:.1f} times the time")


if __name__ == "__main__":
    main()
