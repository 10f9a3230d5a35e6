"""Tables in all formats contain the same cells, and special characters are escaped."""

import re

from regard.inspection.compare.tables import Table, escape_latex

TABLE = Table("bleu & 50% of_all", ["system", "bleu ↑", "p"], [["a_b|c", "12.30", "<0.001*"], ["日本", "-4.5", ""]])


def test_text_is_aligned() -> None:
    assert TABLE.to_text().splitlines() == ["system  bleu ↑  p", "a_b|c   12.30   <0.001*", "日本    -4.5"]


def test_markdown_is_aligned_and_pipes_are_escaped() -> None:
    assert TABLE.to_markdown().splitlines() == [
        "| system | bleu ↑ |       p |",
        "| ------ | -----: | ------: |",
        "| a_b\\|c |  12.30 | <0.001* |",
        "| 日本   |   -4.5 |         |",
    ]


def test_latex_uses_booktabs_and_escapes_special_characters() -> None:
    latex = TABLE.to_latex()
    assert r"\caption{bleu \& 50\% of\_all}" in latex
    assert r"\begin{tabular}{lrr}" in latex
    assert [rule for rule in ("toprule", "midrule", "bottomrule") if f"\\{rule}" in latex] == [
        "toprule", "midrule", "bottomrule"
    ]  # fmt: skip
    assert r"a\_b$|$c & 12.30 & $<$0.001$^{*}$ \\" in latex
    assert r"bleu $\uparrow$" in latex
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 2 for row in rows)
    assert latex.count(r"\begin") == latex.count(r"\end") == 2


def test_no_special_character_of_latex_is_left() -> None:
    escaped = escape_latex("\\ & % $ # _ { } ~ ^ < > − ±")
    assert escaped == (r"\textbackslash{} \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} $<$ $>$ $-$ $\pm$")


def test_html_escapes_text() -> None:
    page = Table("t", ["<b>"], [["a & b"]]).to_html()
    assert "<th>&lt;b&gt;</th>" in page
    assert "<td>a &amp; b</td>" in page
