"""A comparison as text, JSON, Markdown, LaTeX and as a report: the same numbers, and nothing from outside the page."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import regard
from regard.errors import ArgumentTypeError, ConfigError
from regard.formatting import format_bytes
from regard.inspection.compare.comparison import Comparison, format_p
from regard.inspection.compare.plots import draw_differences, draw_lengths
from tests_html import Page

COUNT = 60
REFERENCES = [f"the reference of sentence {number} & more" for number in range(COUNT)]
SOURCES = [" ".join([f"source{number}", *["word"] * (number % 12)]) for number in range(COUNT)]


def make_outputs(errors: int) -> list[str]:
    return ["<b>wrong</b>" if line < errors else text for line, text in enumerate(REFERENCES)]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    outputs = {"first_one": make_outputs(20), "second": make_outputs(8), "third": make_outputs(21)}
    return regard.compare(
        outputs=outputs, sources=SOURCES, references=REFERENCES, metrics=["accuracy", "cer"], resamples=200
    )


def test_text_has_a_row_for_each_system_and_metric(comparison: Comparison) -> None:
    lines = comparison.to_text().splitlines()
    assert lines[0].split() == [
        "system", "accuracy", "↑", "95", "%", "confidence", "difference", "95", "%", "confidence", "p", "p", "(Holm)"
    ]  # fmt: skip
    assert lines[1].split()[:2] == ["first_one", "66.67%"]
    assert lines[1].endswith("baseline")
    assert "+20.00%" in lines[2]
    assert lines[2].endswith("*")
    assert "-1.67%" in lines[3]
    assert "p-values: paired bootstrap, 200 resamples, seed 0." in comparison.to_text()
    assert str(comparison) == comparison.to_text()
    assert repr(comparison) == "Comparison(first_one, second, third; 60 sentences)"


def test_json_has_the_same_numbers(comparison: Comparison) -> None:
    document = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert document["sentences"] == COUNT
    assert document["test"] == {"name": "bootstrap", "resamples": 200, "seed": 0, "correction": "holm"}
    first, second, third = (system["values"]["accuracy"] for system in document["systems"])
    assert first["value"] == pytest.approx(40 / 60)
    assert "difference" not in first
    assert second["difference"] == pytest.approx(0.2)
    assert second["p"] <= second["p_corrected"] < 0.05
    assert third["p_corrected"] > 0.05
    assert second["difference_confidence"][0] > 0
    assert [pair["systems"] for pair in document["pairwise"]["cer"]] == [
        ["first_one", "second"], ["first_one", "third"], ["second", "third"]
    ]  # fmt: skip
    groups = document["systems"][0]["by_length"]["groups"]
    assert sum(group["sentences"] for group in groups) == COUNT
    assert document["signatures"]["cer"].startswith("nrefs:")


def test_latex_and_markdown_contain_all_tables(comparison: Comparison) -> None:
    latex, markdown = comparison.to_latex(), comparison.to_markdown()
    assert latex.count(r"\begin{tabular}") == 2
    assert r"first\_one" in latex
    assert "booktabs" in latex
    tables = [line for line in latex.splitlines() if not line.startswith("%")]
    assert not any(re.search(r"(?<!\\)[%#]", line) for line in tables)
    assert markdown.count("| system ") == 2
    assert "**accuracy on 60 sentences**" in markdown


def test_the_report_is_complete_and_makes_no_request(comparison: Comparison) -> None:
    report = comparison.to_html()
    page = Page(report)
    assert all(address.startswith("#") for address in page.addresses)
    assert len(page.ids) == len(set(page.ids))
    assert "<script" not in report
    assert "<link" not in report
    assert "Content-Security-Policy" in report
    assert set(re.findall(r"https?://[^\"'\s<)]+", report)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    for title in ("Results", "Differences from the baseline", "Metrics by length", "All pairs of systems", "Settings"):
        assert f"<h2>{title}</h2>" in report
    assert any("<b>wrong</b>" in text for text in page.texts)  # escaped in the page, so it is text
    assert "<b>wrong</b>" not in report
    assert "prefers-color-scheme: dark" in report


def test_the_plots_use_the_text_color_of_the_page(comparison: Comparison) -> None:
    plots = re.findall(r"<svg.*?</svg>", comparison.to_html(), flags=re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        ElementTree.fromstring(plot)
        assert "currentColor" in plot
        assert not re.search("#(000000|ffffff)", plot)
        assert re.match(r'<svg[^>]* aria-label="[^"]+" style="max-width: [\d.]+pt"', plot)
        assert set(re.findall(r"font-family: [^;\"]*?([\w-]+)[;\"]", plot)) == {"sans-serif"}
    assert "second" in plots[0]
    assert "source length in words" in plots[1]
    assert "p=" in plots[2]


def test_two_systems_need_no_matrix_and_no_correction() -> None:
    outputs = {"a": make_outputs(10), "b": make_outputs(5)}
    comparison = regard.compare(outputs=outputs, references=REFERENCES, metrics="accuracy", resamples=50)
    assert "Holm" not in comparison.to_text()
    assert "All pairs of systems" not in comparison.to_html()
    assert "reference length in words" in comparison.to_html()


def test_a_notebook_shows_the_tables(comparison: Comparison) -> None:
    shown = comparison._repr_html_()
    assert shown.count("<table>") == 2
    assert "second" in shown


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.txt", "system"),
        ("r.json", '{"format": 1'),
        ("r.md", "**accuracy"),
        ("r.tex", "% Needs"),
        ("r.html", "<!doc"),
    ],
)
def test_the_extension_selects_the_format(comparison: Comparison, tmp_path: Path, name: str, start: str) -> None:
    comparison.save(tmp_path / name)
    assert (tmp_path / name).read_text("utf-8").startswith(start)


def test_a_path_that_cannot_be_written_is_reported(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.pdf: the extension selects the format"):
        comparison.save(tmp_path / "report.pdf")
    with pytest.raises(ConfigError, match="there is no folder"):
        comparison.save(tmp_path / "missing" / "report.html")
    with pytest.raises(ArgumentTypeError, match="path must be the path of a file"):
        comparison.save(3)  # type: ignore[arg-type]


def test_numbers_are_formatted_for_people() -> None:
    assert [format_bytes(number) for number in (12, 1_234, 1_234_567, 2_500_000_000)] == [
        "12 B", "1.2 kB", "1.2 MB", "2.5 GB"
    ]  # fmt: skip
    assert [format_p(value) for value in (0.0004, 0.032, 0.5)] == ["<0.001*", "0.032*", "0.500"]


def test_notes_describe_only_what_is_shown() -> None:
    outputs = {"a": make_outputs(10), "b": make_outputs(5)}
    comparison = regard.compare(outputs=outputs, references=REFERENCES, metrics="accuracy", resamples=50)
    text = comparison.to_text()
    assert "* p < 0.05." in text
    assert "Speed" not in text
    assert "entropy" not in text


def test_the_meaning_of_a_star_is_explained_only_where_there_is_one() -> None:
    outputs = {"a": make_outputs(10), "b": [*make_outputs(10)[:-1], "wrong"]}
    equal = regard.compare(outputs=outputs, references=REFERENCES, metrics="accuracy", resamples=50)
    assert "*" not in equal.to_text()


def test_the_plots_show_values_in_the_unit_of_the_tables() -> None:
    pytest.importorskip("matplotlib")
    outputs = {"a": make_outputs(20), "b": make_outputs(8)}
    numbers = regard.compare(
        outputs=outputs, sources=SOURCES, references=REFERENCES, metrics=["accuracy", "cer"], resamples=50
    ).numbers
    for draw in (draw_differences, draw_lengths):
        ticks = [text for text in Page(draw(numbers)).texts if re.fullmatch(r"[-−]?\d+(\.\d+)?%?", text)]
        assert len([text for text in ticks if text.endswith("%")]) >= 4
        assert not any(0 < abs(float(text.replace("−", "-"))) < 1 for text in ticks if not text.endswith("%"))
