"""The gallery: every mechanism on a prepared example, without a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.attention.mechanisms import MECHANISMS
from regard.explorer.gallery import create_gallery, read_gallery
from regard.inspection.trace.page import render_page
from screenshots import serve_app
from tests_browser import check_accessibility, needs_axe
from tests_explorer import ACCESS, send


def test_the_gallery_shows_every_mechanism_with_its_equation_and_paper() -> None:
    data = read_gallery()
    assert all("about: ''" in card["settings"] for card in data["cards"].values())
    names = {model["id"]: model["name"] for model in data["models"]}
    shown = {names[entry["model"]]: (entry["equation"], entry["citation"]) for entry in data["gallery"]}
    for name, mechanism in MECHANISMS.items():
        assert shown[name] == (mechanism.equation, mechanism.citation)
    assert {"lstmn", "intra-attention", "transformer-model"} <= set(shown)


def test_the_models_of_the_gallery_predict_the_date() -> None:
    texts = [trace["document"]["hypotheses"][0]["text"] for trace in read_gallery()["traces"]]
    # A location score does not read the source, so its weights cannot follow the format of the date.
    assert texts.count("2009-05-03") >= len(texts) - 1


def test_the_server_of_the_gallery_computes_nothing() -> None:
    app = create_gallery(ACCESS)
    assert "luong-local-p" in send(app, "GET", "/").text
    assert send(app, "GET", "/api/models").status_code == 404
    assert send(app, "GET", "/", headers={"Host": "example.org"}).status_code == 421


@pytest.fixture(scope="module")
def gallery() -> Iterator[str]:
    with serve_app(create_gallery) as url:
        yield url


@pytest.mark.slow
def test_each_card_opens_the_equation_of_its_mechanism(page: Any, gallery: str) -> None:
    page.goto(gallery)
    names = page.locator("gallery-view h2").all_inner_texts()
    assert names == [model["name"] for model in read_gallery()["models"]]
    for name in names:
        page.locator("#tab-gallery").click()
        page.get_by_role("link", name=f"Equation of {name}", exact=True).click()
        page.wait_for_selector("equation-view #error")
        assert page.locator("#model option:checked").inner_text() == name
        assert float(page.locator("#error").get_attribute("data-value")) < 1e-5, name


@pytest.mark.slow
def test_a_card_opens_the_comparison_with_another_mechanism(page: Any, gallery: str) -> None:
    page.goto(gallery)
    page.get_by_role("link", name="Compare of sparsemax").click()
    page.wait_for_selector("compare-view #change")
    page.locator("#other").select_option(label="luong-dot")
    page.wait_for_selector("section[aria-label=luong-dot]")
    assert page.locator("section[aria-label=Difference]").count() == 1


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_gallery_is_accessible(page: Any, gallery: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(gallery)
    page.wait_for_selector("gallery-view canvas")
    check_accessibility(page)


@pytest.mark.slow
def test_the_gallery_is_one_file_without_requests(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "gallery.html"
    file.write_text(render_page(read_gallery()), "utf-8")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.get_by_role("link", name="Attention of transformer-model").click()
    page.wait_for_selector("attention-view canvas-figure")
    assert [each for each in requests if not each.startswith(("file:", "data:", "blob:"))] == []
