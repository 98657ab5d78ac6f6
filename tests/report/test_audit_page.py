"""The page about an audit: its numbers, escaped names, and how it looks in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.metrics.uncertainty import Interval
from evenhand.page.audit import page
from evenhand.page.audit_figures import Mark, forest, span, top
from evenhand.studies.audits.tables import SHORT
from tests.support.studies import NASTY

Call = Callable[..., tuple[int, str, str]]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROME = next((path for path in map(shutil.which, BROWSERS) if path), None)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 740}


def predictions(groups: tuple[str, ...] = ("north", "south", "west"), samples: int = 900) -> Any:
    rng = np.random.default_rng(0)
    group = rng.choice(groups, samples, p=[0.6, 0.3, 0.1][: len(groups)])
    score = rng.random(samples).round(3)
    chance = np.where(group == groups[1], score**2, score)
    return pd.DataFrame(
        {
            "g": group,
            "sex": rng.choice(["f", "m"], samples),
            "c": rng.integers(0, 12, samples),
            "s": score,
            "y": rng.random(samples) < chance,
        }
    )


def audited(**settings: Any) -> eh.audit.Audit:
    columns = {"client": "c", "group": ["g", "sex"], "score": "s", "draws": 50}
    return eh.audit(predictions(), "y", **{**columns, **settings})


def test_a_page_has_the_answer_every_rate_and_the_source() -> None:
    judged = audited(group="g")
    made = page(judged)
    text = unescape(re.sub(r"<[^>]+>", " ", made))
    flat = " ".join(text.split())
    for sentence in judged.sentences:
        assert sentence in flat
    for heading in ("Rates by g", "Gaps by g", "Scores by g", "Clients", "All samples"):
        assert f">{heading}</h2>" in made
    for row in judged.rates():
        if row["by"] == "group" and row["rate"] in SHORT:
            assert f"{row['hits']:,} of {row['of']:,}" in flat
            assert f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]" in flat
    assert "south lowest" in flat or "south highest" in flat
    assert "Four-fifths rule: ratio to" in flat
    assert "rows without label" in flat
    assert "http" not in made.replace("http-equiv", "")


def test_a_page_of_several_group_columns_has_sections_of_each() -> None:
    made = page(audited())
    for by in ("g", "sex", "g &amp; sex"):
        assert f">Rates by {by}</h2>" in made
    assert len(set(re.findall(r'id="([^"]+)"', made))) == len(re.findall(r'id="([^"]+)"', made))


def test_a_page_without_groups_clients_or_scores_is_about_all_samples() -> None:
    table = predictions().assign(p=lambda frame: frame["s"] > 0.5)
    made = page(eh.audit(table, "y", "p"), "A title & more")
    assert "<h1>A title &amp; more</h1>" in made
    assert ">All samples</h2>" in made
    assert "Rates by" not in made
    assert ">Clients</h2>" not in made
    small = page(eh.audit(table[:9], "y", "p", group="g"))
    assert "Fewer than two groups have 10 samples." in small


def test_suppressed_groups_are_named_without_numbers() -> None:
    table = pd.concat([predictions(), predictions(samples=5).assign(g="rare")])
    made = page(eh.audit(table, "y", score="s", group="g", suppress=True))
    assert "Suppressed, with fewer than 10 samples: rare." in made
    assert '<th scope="row">rare</th>' not in made


def test_weighted_pages_show_effective_samples() -> None:
    table = predictions().assign(w=lambda frame: 1 + frame["s"])
    made = page(eh.audit(table, "y", score="s", group="g", weight="w"))
    assert "effective</small>" in made
    assert "the score test, with Holm" in made


def test_dots_and_lines_lie_where_their_numbers_are() -> None:
    drawn = forest(
        "t", "", [Mark("a", Interval(0.3, 0.2, 0.5), "")], (0.0, 0.5), ("0", "50 %"), 0.25
    )
    assert '<circle class="dot" cx="60.00%"' in drawn
    assert '<line class="whisker" x1="40.00%" x2="100.00%"' in drawn
    assert '<line class="mean" x1="50.00%"' in drawn


def test_axes_end_at_round_numbers() -> None:
    assert top([0.07, 0.23]) == 0.3
    assert top([]) == 1.0
    assert span([0.72, 0.88]) == (0.7, 1.0)
    assert span([0.1, 0.88]) == (0.0, 1.0)
    assert span([]) == (0.0, 1.0)


def test_the_command_and_python_write_a_page(call: Call, tmp_path: Path) -> None:
    predictions().to_csv("p.csv", index=False)
    arguments = ("--label", "y", "--score", "s", "--group", "g", "--html", "page.html")
    code, out, _ = call("audit", "p.csv", *arguments)
    assert code == 0
    assert out.endswith("Report: page.html\n")
    assert "<h1>Audit of predictions: p.csv</h1>" in Path("page.html").read_text()
    written = eh.audit_page(audited(), tmp_path / "sub" / "audit.html")
    assert written.read_text().startswith("<!doctype html>")
    assert written.stat().st_size < 1_000_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A usual page, and one whose names are code."""
    directory = tmp_path_factory.mktemp("audits")
    table = predictions(tuple(NASTY[:3])).assign(c=lambda frame: "c" + frame["c"].astype(str))
    nasty = eh.audit(table, "y", score="s", group="g", client="c", draws=50)
    return {
        "usual": eh.audit_page(audited(), directory / "usual.html"),
        "nasty": eh.audit_page(nasty, directory / "nasty.html"),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright; pip install 'evenhand[dev]'"
    )
    if CHROME is None:
        pytest.skip("needs Chrome or Chromium; apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROME)
        yield started
        started.close()


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end, nothing was asked for from a network and nothing went wrong."""
    contexts, trouble = [], []

    def opened(name: str = "usual", **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, **settings})
        contexts.append(context)
        window = context.new_page()
        window.on("console", lambda message: trouble.append(message.text))
        window.on("pageerror", lambda error: trouble.append(str(error)))
        window.on("dialog", lambda dialog: trouble.append(dialog.message))
        window.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:")) else trouble.append(request.url)
            ),
        )
        window.goto(pages[name].as_uri())
        return window

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.mark.parametrize("name", ["usual", "nasty"])
@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_a_page_fits_every_width(show: Callable[..., Any], name: str, width: int) -> None:
    window = show(name, viewport={"width": width, "height": 800}, is_mobile=width < 500)
    assert window.evaluate("() => document.documentElement.scrollWidth") == width
    cut = (
        "() => [...document.querySelectorAll('.compared .wide, .forest')].filter(e =>"
        " e.scrollWidth > e.clientWidth + 1).length"
    )
    assert window.evaluate(cut) == 0


def test_names_that_are_code_are_seen_as_text(show: Callable[..., Any]) -> None:
    window = show("nasty")
    names = window.locator(".forest tbody th").all_inner_texts()
    assert NASTY[0] in names
    assert NASTY[1] in names


def test_colours_are_chosen_remembered_and_light_on_paper(show: Callable[..., Any]) -> None:
    window = show()
    paper = "() => getComputedStyle(document.body).backgroundColor"
    assert window.evaluate(paper) == "rgb(255, 255, 255)"
    window.get_by_role("button", name="Dark colours").click()
    assert window.evaluate(paper) != "rgb(255, 255, 255)"
    window.reload()
    assert window.get_by_role("button", name="Light colours").count() == 1
    window.emulate_media(media="print")
    assert window.evaluate(paper) == "rgb(255, 255, 255)"
    window.wait_for_function("() => !document.querySelector('main details:not([open])')")
    assert not window.locator("nav").is_visible()
    window.emulate_media(media="screen")
    window.wait_for_function("() => !document.querySelector('main details[open]')")


@pytest.mark.parametrize(
    ("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_axe_finds_nothing(show: Callable[..., Any], size: dict[str, int], theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    window = show(viewport=size, color_scheme=theme)
    for part in window.locator("details").all():
        part.evaluate("part => { part.open = true; }")
    found = axe.Axe().run(window).response["violations"]
    assert [f"{rule['id']}: {rule['nodes'][0]['html'][:120]}" for rule in found] == []
