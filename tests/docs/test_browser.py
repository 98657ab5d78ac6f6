"""The docs site in a real browser: quiet, searchable, readable on a phone and with a screen
reader."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

api = pytest.importorskip(
    "playwright.sync_api", reason="the browser test needs playwright; pip install 'evenhand[dev]'"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROME = next((path for path in map(shutil.which, BROWSERS) if path), None)
if CHROME is None:
    pytest.skip(
        "the browser test needs Chrome or Chromium; apt-get install chromium",
        allow_module_level=True,
    )

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
PAGES = (  # one of each type
    "",
    "how-to/tables/",
    "reference/api/training/",
    "reference/command-line/",
    "reference/methods/",
    "reference/methods/fafl/",
    "reference/spec/",
    "results/reproduction/",
)
Open = Callable[..., Any]


class Quiet(SimpleHTTPRequestHandler):
    """A server that logs nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROME)
        yield started
        started.close()


@pytest.fixture
def show(browser: Any, address: str) -> Iterator[Open]:
    """Open a page; at the end, nothing was asked for from elsewhere and nothing went wrong."""
    contexts, trouble = [], []

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            trouble.append(f"console: {message.text}")

    def asked(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            trouble.append(request.url)

    def opened(page: str = "", **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, **settings})
        contexts.append(context)
        window = context.new_page()
        window.on("console", note)
        window.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        window.on("request", asked)
        window.goto(address + page)
        return window

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


def test_search_finds_a_method(show: Open) -> None:
    window = show()
    window.get_by_role("textbox", name="Search").click()
    window.keyboard.type("FedMinMax", delay=20)
    first = window.locator(".md-search-result__link").first
    api.expect(first).to_contain_text("FedMinMax")
    first.click()
    window.wait_for_url("**/fedminmax/**")
    api.expect(window.locator("h1")).to_contain_text("FedMinMax")


def test_the_palette_can_be_changed(show: Open) -> None:
    window = show()
    colour = "() => getComputedStyle(document.body).backgroundColor"
    before = window.evaluate(colour)
    window.get_by_title("Switch to dark mode").click()
    assert window.evaluate(colour) != before


def test_tabs_lead_to_every_section(show: Open) -> None:
    tabs = show().locator(".md-tabs__link").all_inner_texts()
    assert [tab.strip() for tab in tabs][:6] == [
        *("Home", "Tutorials", "How-to guides", "Explanation", "Reference", "Results")
    ]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_a_page_is_readable_by_all(show: Open, page: str, size: dict[str, int], theme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="accessibility checks need axe-playwright-python",
    )
    window = show(page, viewport=size, color_scheme=theme)
    window.wait_for_load_state("networkidle")
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.evaluate(wide) == 0
    found = axe.Axe().run(window).response["violations"]
    assert [f"{rule['id']}: {node['html'][:160]}" for rule in found for node in rule["nodes"]] == []
