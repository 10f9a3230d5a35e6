"""The tab Corpus in a browser: models side by side on the test set, filters, order, and a click that opens a pair. The
nearest training pairs of a source and of a decoder state.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.corpora import load_corpus
from regard.yaml_reader import dump_yaml, read_yaml
from screenshots import serve
from tests_browser import check_accessibility, needs_axe, tab_to
from tests_explorer import FIND_SERVER, LOSE_SERVER, LOST, open_page, read_output, save_download, wait_for_url

pytestmark = pytest.mark.slow

PAIRS = 40
"""The size of the test set of the first two models."""

ROWS = "corpus-view .scroll tbody tr"

NOT_COMPARED = "Not compared, because their pairs are different or cannot be read: "


def open_corpus(page: Any, url: str, fragment: str = "") -> None:
    """Open the tab, and wait until the pairs are predicted and evaluated."""
    open_page(page, url, f"text=3 mai 2009&tab=corpus{fragment}")
    page.wait_for_selector("corpus-metrics table")


def read_column(page: Any, name: str) -> list[str]:
    texts: list[str] = page.locator(f'corpus-view td[data-name="{name}"]').all_inner_texts()
    return texts


def read_numbers(page: Any, name: str) -> list[float]:
    return [float(text.removesuffix(" %")) for text in read_column(page, name)]


def test_all_models_are_shown_side_by_side_on_the_test_set(page: Any, url: str, runs: list[Path]) -> None:
    open_corpus(page, url)
    assert page.locator("#share").inner_text() == f"{PAIRS} of {PAIRS} pairs"
    for run in runs[:2]:
        model = regard.load(run)
        sources = page.locator('corpus-view [data-name="Source"] button').all_inner_texts()
        predictions = [each.text for each in model.predict(sources, beam=4)]
        assert read_column(page, run.name) == predictions
        correct = sum(map(str.__eq__, predictions, read_column(page, "Reference")))
        row = page.locator("corpus-metrics tr", has_text=run.name).last.inner_text()
        assert f"{100 * correct / PAIRS:.2f}%" in row
    page.wait_for_selector(f"text={NOT_COMPARED}{runs[2].name}.")


def test_the_other_pairs_are_predicted_on_request(page: Any, url: str) -> None:
    open_corpus(page, url, "&pairs=5")
    assert page.locator("#share").inner_text() == f"5 of {PAIRS} pairs"
    assert page.locator(ROWS).count() == 5
    page.get_by_role("button", name=f"Predict the other {PAIRS - 5}").click()
    page.wait_for_selector(f"text={PAIRS} of {PAIRS} pairs")
    assert page.locator(ROWS).count() == PAIRS
    wait_for_url(page, f"pairs={PAIRS}")


def test_predictions_can_be_stopped_and_continued(page: Any, url: str) -> None:
    """The first rows of a stream that does not end are shown, with their share."""
    page.add_init_script(
        """
        const send = fetch;
        window.fetch = async (path, options) => {
            if (path !== "api/corpus" || window.isFast) return send(path, options);
            const [head] = (await (await send(path, options)).text()).split("\\n");
            window.signal = options.signal;
            return new Response(new ReadableStream({ start: (stream) => stream.enqueue(new TextEncoder().encode(head + "\\n")) }));
        };
        """  # noqa: E501
    )
    open_page(page, url, "text=3 mai 2009&tab=corpus")
    page.wait_for_selector(f"text=0 of {PAIRS} pairs")
    assert page.locator("corpus-view progress").get_attribute("aria-label") == "Predicting"
    page.locator("#stop").click()
    page.wait_for_selector("#resume")
    assert page.evaluate("window.signal.aborted")
    page.evaluate("window.isFast = true")
    page.locator("#resume").click()
    page.wait_for_selector(f"text={PAIRS} of {PAIRS} pairs")


def test_a_pair_on_which_models_disagree_opens_in_compare(page: Any, url: str, runs: list[Path]) -> None:
    open_corpus(page, url)
    page.locator("[data-trait=disagreement]").click()
    page.locator(f"{ROWS} [data-name='{runs[1].name}'] button").first.click()
    page.wait_for_selector("#change >> text=The output is different.")
    assert page.locator("#model option:checked").inner_text() == runs[1].name
    assert page.locator("#other option:checked").inner_text() == runs[0].name


def test_the_pairs_are_filtered_and_the_filter_is_part_of_the_url(page: Any, url: str, runs: list[Path]) -> None:
    open_corpus(page, url)
    lengths = read_numbers(page, "Length")
    references, predictions, others = (
        read_column(page, name) for name in ("Reference", *[run.name for run in runs[:2]])
    )
    page.locator("[data-trait=error]").click()
    wrong = sum(map(str.__ne__, predictions, references))
    assert 0 < wrong == page.locator(ROWS).count()
    page.locator("[data-trait=error]").click()
    page.locator("[data-trait=disagreement]").click()
    assert sum(map(str.__ne__, predictions, others)) == page.locator(ROWS).count()
    page.locator("[data-trait=disagreement]").click()
    limit = int(sorted(lengths)[PAIRS // 2])
    page.get_by_label("Longest source").fill(str(limit))
    page.keyboard.press("Enter")
    shorter = sum(length <= limit for length in lengths)
    page.wait_for_selector(f"text={shorter} of {PAIRS} listed")
    page.wait_for_selector(f"corpus-metrics >> text=On {shorter} pairs.")
    wait_for_url(page, f"longest={limit}")
    page.reload()
    page.wait_for_selector(f"text={shorter} of {PAIRS} listed")
    page.get_by_label("Longest source").fill("0")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show all").click()
    assert page.locator(ROWS).count() == PAIRS


@pytest.mark.parametrize("column", ["Confidence", "Length", "Entropy", "Coverage"])
def test_the_pairs_are_sorted_by_every_column(page: Any, url: str, column: str) -> None:
    open_corpus(page, url, "&sort=")
    unsorted = read_column(page, "Source")
    for order, marked in ((1, "ascending"), (-1, "descending")):
        page.locator(f"[data-sort={column.lower()}]").click()
        page.wait_for_selector(f"th[aria-sort={marked}]")
        values = [order * value for value in read_numbers(page, column)]
        assert values == sorted(values)
    page.locator(f"[data-sort={column.lower()}]").click()
    assert read_column(page, "Source") == unsorted


def test_a_click_opens_the_pair_and_back_returns_without_a_request(page: Any, url: str) -> None:
    open_corpus(page, url)
    predicted = read_column(page, "transformer")[-1]
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "corpus" in request.url else None)
    last = page.locator(ROWS).last
    last.scroll_into_view_if_needed()
    top = page.locator("corpus-view .scroll").evaluate("table => table.scrollTop")
    assert top > 0
    last.locator('[data-name="transformer"] button').click()
    page.wait_for_selector("translate-view")
    page.wait_for_selector("main[aria-busy=false]")
    assert page.locator("#model").input_value() == "1"
    assert read_output(page).replace("␣", " ") == predicted
    page.go_back()
    page.wait_for_selector(f"{ROWS} >> nth={PAIRS - 1}")
    page.wait_for_selector("corpus-metrics table")
    assert page.locator("corpus-view .scroll").evaluate("table => table.scrollTop") == top
    assert page.locator(ROWS).last.locator('[data-name="transformer"] button').get_attribute("tabindex") == "0"
    page.locator("#tab-model").click()
    page.locator("#tab-corpus").click()
    page.wait_for_selector("corpus-metrics table")
    assert sent == []


def test_the_table_is_used_with_the_keyboard(page: Any, url: str) -> None:
    open_corpus(page, url)
    sources = page.locator('corpus-view [data-name="Source"] button').all_inner_texts()
    tab_to(page, "[data-cell]")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    tab_to(page, '[data-cell="1,1"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("translate-view")
    assert page.get_by_label("Source", exact=True).first.input_value() == sources[1]


def test_a_first_visit_without_a_server_can_be_retried(page: Any, url: str) -> None:
    open_page(page, url)
    page.evaluate(LOSE_SERVER)
    page.locator("#tab-corpus").click()
    page.wait_for_selector(f"corpus-view >> text={LOST}")
    page.evaluate(FIND_SERVER)
    page.locator("corpus-view .retry").click()
    page.wait_for_selector("corpus-metrics table")


def test_a_lost_server_is_reported_and_asked_again(page: Any, url: str) -> None:
    open_corpus(page, url, "&pairs=7")
    page.evaluate(LOSE_SERVER)
    page.locator("#rest").click()
    page.wait_for_selector(f"corpus-view >> text={LOST}")
    assert page.locator(ROWS).count() == 7
    page.evaluate(FIND_SERVER)
    page.locator("corpus-view .retry").click()
    page.wait_for_selector(f"text={PAIRS} of {PAIRS} pairs")
    assert page.locator("corpus-view [role=alert]").count() == 0


def test_an_exported_page_contains_the_corpus_of_all_models(page: Any, url: str, tmp_path: Path) -> None:
    open_corpus(page, url)
    read = "view => view.shadowRoot.textContent"
    before = [page.locator(each).evaluate(read) for each in ("corpus-metrics", "corpus-view")]
    page.goto(save_download(page, tmp_path, "html").as_uri())
    page.wait_for_selector("corpus-metrics table")
    metrics, table = (page.locator(each).evaluate(read) for each in ("corpus-metrics", "corpus-view"))
    assert metrics == before[0]
    assert table.split() == before[1].replace(f"{NOT_COMPARED}captioner.", "").split()
    page.locator("[data-trait=error]").click()
    assert page.locator(ROWS).count() > 0


def read_neighbors(page: Any) -> list[tuple[str, str]]:
    """Return the source and the target of the nearest training pairs, when they are those of the present state."""
    page.wait_for_selector("neighbors-panel .stack:not(.loading) > ol")
    rows = page.locator("neighbors-panel li").all()
    return [(row.locator("bdi").first.inner_text(), row.locator("bdi").last.inner_text()) for row in rows]


def test_the_nearest_training_pairs_are_listed_and_opened(page: Any, url: str, runs: list[Path]) -> None:
    pairs = list(load_corpus(regard.load(runs[0]).settings.data).train)
    open_page(page, url, f"text={pairs[0][0]}")
    page.get_by_role("button", name="Find the nearest training pairs").click()
    for similarity in ("Encoder", "Text"):
        page.get_by_role("group", name="Similarity").get_by_role("button", name=similarity).click()
        neighbors = read_neighbors(page)
        assert neighbors[0] == pairs[0]
        assert page.locator("neighbors-panel li .number").first.inner_text() == "1.00"
        assert set(neighbors) <= set(pairs)
    wait_for_url(page, "neighbors=by_text")
    page.reload()
    assert read_neighbors(page) == neighbors
    page.locator("neighbors-panel li button").nth(1).click()
    page.wait_for_selector("main[aria-busy=false]")
    assert page.get_by_label("Source", exact=True).first.input_value() == neighbors[1][0]
    assert read_neighbors(page)[0] == neighbors[1]
    page.get_by_role("button", name="Close").click()
    assert page.locator("neighbors-panel li").count() == 0


def test_the_neighbors_of_a_decoder_state_follow_the_step_and_mark_the_next_token(page: Any, url: str) -> None:
    open_page(page, url, "text=3 mai 2009&tab=steps&row=1")
    page.get_by_role("button", name="Find the nearest training pairs").click()
    for step in (2, 3):
        read_neighbors(page)
        marked = page.locator("neighbors-panel li mark").all_inner_texts()
        assert len(marked) == page.locator("neighbors-panel li").count()
        token = page.locator('.prefix [aria-current="step"]').inner_text()
        expected = f"{marked.count(token)} of {len(marked)} continue with “{token}”, as the output does at step {step}."
        assert page.locator("neighbors-panel #agreement").inner_text() == expected
        page.locator("#next").click()


def test_a_model_without_its_training_data_says_so(page: Any, runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    settings, _ = read_yaml(tmp_path / "run" / "config.yaml")
    data = {"kind": "files", "train": {"path": str(tmp_path / "missing.tsv")}}
    (tmp_path / "run" / "config.yaml").write_text(dump_yaml({**settings, "data": data}), "utf-8")
    with serve([str(tmp_path / "run")]) as address:
        open_page(page, address, "text=3 mai 2009")
        page.get_by_role("button", name="Find the nearest training pairs").click()
        page.wait_for_selector("neighbors-panel >> text=The training pairs of this model cannot be read.")
        assert page.locator("neighbors-panel .retry").is_visible()
        page.locator("#tab-corpus").click()
        page.wait_for_selector("text=The test set and the dev set of this model cannot be read")


def test_the_neighbors_of_an_image_say_why_they_cannot_be_opened(page: Any, url: str) -> None:
    open_page(page, url, "model=2&neighbors=by_encoder")
    panel = page.locator("neighbors-panel")
    panel.locator("li").first.wait_for()
    assert "Images of the training data cannot be opened" in panel.locator("section").inner_text()
    assert panel.locator("li button").count() == 0


def test_an_exported_page_contains_the_neighbors(page: Any, url: str, tmp_path: Path) -> None:
    open_page(page, url, "text=3 mai 2009&row=4&neighbors=by_state")
    neighbors = read_neighbors(page)
    page.goto(save_download(page, tmp_path, "html").as_uri())
    assert read_neighbors(page) == neighbors
    page.locator('[aria-label="Output tokens"] button').first.click()
    page.wait_for_selector("neighbors-panel >> text=This file does not contain this result.")


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("fragment", "view", "content"),
    [
        ("text=3 mai 2009&tab=corpus&pairs=5", "corpus-view", "corpus-metrics table"),
        ("text=3 mai 2009&row=4&neighbors=by_state", "neighbors-panel", "neighbors-panel .stack:not(.loading) > ol"),
    ],
    ids=["corpus", "neighbors"],
)
def test_a_view_is_accessible_and_fits_a_phone(
    page: Any, url: str, scheme: str, fragment: str, view: str, content: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    open_page(page, url, fragment)
    page.wait_for_selector(content)
    check_accessibility(page)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert page.locator(view).evaluate("view => view.scrollWidth <= view.clientWidth")
    assert page.locator(content).first.is_visible()
    check_accessibility(page)
