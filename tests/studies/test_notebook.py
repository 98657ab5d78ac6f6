"""Findings in a notebook: the answer and the tables of the command line, as HTML."""

from __future__ import annotations

import io
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from rich.console import Console
from rich.table import Table

import evenhand as eh
from evenhand.studies.tables.notebook import table_html
from tests.support.own_method import PowerLoss, TwoLayers, clinics


class Balanced(HTMLParser):
    """Raises where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def findings() -> eh.Findings:
    methods = {"FedAvg": eh.FedAvg(), "mine": PowerLoss()}
    return eh.compare(TwoLayers, clinics(), methods, rounds=2, seeds=2)


def words(html: str) -> str:
    """What a reader sees, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_a_notebook_shows_the_answer_and_the_tables_that_are_printed(findings: eh.Findings) -> None:
    html = findings._repr_html_()
    assert Balanced(html).open == []
    text = io.StringIO()
    findings.show(verbose=True, console=Console(file=text, width=130))
    printed, seen = " ".join(text.getvalue().split()), words(html)
    for sentence in (*findings.answer.sentences, *findings.sentences):
        assert sentence in seen
    rows = [words(row) for row in re.findall(r"<tbody>(.*?)</tbody>", html)]
    assert len(rows) == 1 + len(findings.study.kinds)
    for row in re.findall(r"<tr>(.*?)</tr>", "".join(re.findall(r"<tbody>(.*?)</tbody>", html))):
        assert words(row) in printed


def test_in_a_notebook_the_text_is_returned_and_not_displayed(
    findings: eh.Findings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repr(findings)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert repr(findings) == before
    assert capsys.readouterr().out == ""


def test_a_tables_marks_and_alignment_are_kept() -> None:
    table = Table(title="A & B")
    table.add_column("who")
    table.add_column("gain", justify="right")
    table.add_row("a\\[b]", "[bold green]+1.0↑[/] x")
    table.add_row("<b>c", "2\n[dim]of 3[/]")
    html = table_html(table)
    assert "<caption>A &amp; B</caption>" in html
    assert '<td style="text-align:left">a[b]</td>' in html
    assert (
        '<td style="text-align:right"><span style="font-weight:bold;color:#2e8b57">+1.0↑</span> x</td>'
        in html
    )
    assert ">&lt;b&gt;c<" in html
    assert '2<br><span style="opacity:0.7">of 3</span>' in html
