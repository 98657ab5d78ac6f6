"""The report page in a real browser: quiet, without a network, usable with mouse, keyboard and
screen reader, on paper and phones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenhand.page.document import chapters, page
from evenhand.studies.findings import analyse
from tests.support.studies import FIVE, NASTY, make_study

api = pytest.importorskip(
    "playwright.sync_api", reason="the browser test needs playwright; pip install 'evenhand[dev]'"
)
pytest.importorskip("plotly", reason="the report needs plotly")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROME = next((path for path in map(shutil.which, BROWSERS) if path), None)
if CHROME is None:
    pytest.skip(
        "the browser test needs Chrome or Chromium; apt-get install chromium",
        allow_module_level=True,
    )

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a usual study, and of one whose names are code."""
    directory = tmp_path_factory.mktemp("pages")
    usual = make_study(FIVE, seeds=3, clients=20, samples=120, teams=("city", "land"))
    nasty = make_study(
        FIVE,
        seeds=1,
        names=NASTY,
        clients=len(NASTY),
        groups=NASTY[:2],
        labels={"afl": "a<b>&[/c]"},
    )
    found = {}
    errors = make_study(FIVE, seeds=1, clients=40, regression=True)
    told = {
        "usual": page(analyse(usual)),
        "nasty": page(analyse(nasty)),
        "several": page(chapters([(analyse(usual), ""), (analyse(errors), "")])),
    }
    for name, text in told.items():
        found[name] = directory / f"{name}.html"
        found[name].write_text(text)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROME)
        yield started
        started.close()


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """Open a page in a window of its own; at the end, nothing was asked for from a network and
    nothing went wrong."""
    contexts, trouble = [], []

    def opened(name: str = "usual", script: str = "", **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, **settings})
        contexts.append(context)
        if script:
            context.add_init_script(script)
        window = context.new_page()
        window.on(
            "console",
            lambda message: (
                trouble.append(f"console: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        window.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        window.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
        window.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else trouble.append(request.url)
            ),
        )
        window.goto(pages[name].as_uri())
        drawn(window)
        return window

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


def drawn(window: Any) -> None:
    """Wait until every figure is there."""
    for plot in window.locator(".plot").all():
        api.expect(plot.locator("svg").first).to_be_attached()


def column(window: Any, table: str, place: int) -> list[str]:
    return [
        text.split()[0].rstrip("▲▼")
        for text in window.locator(
            f"{table} tbody tr:visible > :nth-child({place})"
        ).all_inner_texts()
    ]


def keys(window: Any, key: str) -> dict[str, bool]:
    """Whether each method is seen in a figure, by the figure's legend."""
    entries = window.locator(f"#plot-{key} .key-entry[data-method]").all()
    return {
        entry.get_attribute("data-method"): entry.get_attribute("opacity") is None
        for entry in entries
    }


def points(window: Any, key: str) -> int:
    return int(window.locator(f"#plot-{key} .point").count())


@pytest.mark.parametrize("name", ["usual", "nasty"])
def test_page_opens_without_trouble_and_draws_every_figure(show: Open, name: str) -> None:
    window = show(name)
    assert window.locator(".plot").count() >= 7
    assert window.locator(".plot > svg").count() == window.locator(".plot").count()
    assert points(window, "overview") > 0


def test_names_that_are_code_are_seen_as_text(show: Open) -> None:
    window = show("nasty", script="window.alert = () => console.error('a name was run')")
    names = window.locator("#ledger-table tbody th").all_inner_texts()
    assert NASTY[0] in names
    assert NASTY[1] in names
    assert window.locator(".chooser label", has_text="a<b>&[/c]").count() == 1
    assert "a<b>&[/c]" in window.locator("#plot-front .key-text").all_text_contents()


def test_chooser_hides_a_method_in_every_figure_and_table(show: Open) -> None:
    window = show()
    box = window.get_by_role("checkbox", name="qffl")
    box.uncheck()
    rows = window.locator("tr[data-method=qffl]")
    assert rows.count() > 0
    assert not any(row.is_visible() for row in rows.all())
    for key in ("sorted", "front", "gaps-group", "members-group", "learning"):
        seen = keys(window, key)
        assert seen.pop("qffl") is False, key
        assert all(seen.values()), key
    for key in ("overview", "distribution", "verdicts"):  # their rows are methods
        assert "qffl" not in window.locator(f"#plot-{key} .tick.row").all_text_contents(), key
    window.locator("#ledger-all").click()
    assert "qffl" not in window.locator("#ledger-table tbody").inner_text()
    window.get_by_role("button", name="All methods").click()
    assert box.is_checked()
    assert all(keys(window, "sorted").values())
    assert "qffl" in window.locator("#plot-overview .tick.row").all_text_contents()
    assert "qffl" in window.locator("#ledger-table tbody").inner_text()


def test_a_click_in_a_legend_hides_the_method_everywhere(show: Open) -> None:
    window = show()
    window.locator("#plot-sorted .key-entry").nth(1).click()
    api.expect(window.get_by_role("checkbox", name="qffl")).not_to_be_checked()
    assert keys(window, "learning")["qffl"] is False


def test_tables_are_sorted_by_click_and_by_keyboard(show: Open) -> None:
    window = show()
    table = "#methods h2 + .wide table"
    heading = window.locator("#methods thead th").nth(3)  # worst 10 %
    button = heading.get_by_role("button")
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    numbers = [float(number) for number in column(window, table, 4)]
    assert len(numbers) == len(FIVE)
    assert numbers == sorted(numbers, reverse=True)
    button.focus()
    window.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(number) for number in column(window, table, 4)] == sorted(numbers)
    window.keyboard.press("Shift+Tab")
    window.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") is None  # one column at a time
    assert window.locator("#methods thead th").nth(2).get_attribute("aria-sort") == "descending"
    first = window.locator("#methods thead th").first
    first.get_by_role("button").click()
    assert column(window, table, 1) == sorted(FIVE)


def test_ledger_is_filtered_paged_and_sorted(show: Open) -> None:
    window = show()
    state, rows = window.locator("#ledger-state"), window.locator("#ledger-table tbody tr")
    total = int(state.inner_text().split(" of ")[1].split()[0])
    assert rows.count() == 25
    verdicts = [
        text.split()[-1]
        for text in window.locator("#ledger-table tbody td.verdict").all_inner_texts()
    ]
    order = ["harmed", "gains", "unclear", "samples"]
    assert verdicts[0] == "harmed"
    assert verdicts == sorted(verdicts, key=order.index)
    window.locator("#ledger-table thead th[data-key=gain] button").click()
    gains = [float(text.replace("\u2212", "-")) for text in column(window, "#ledger-table", 5)]
    assert gains == sorted(gains)  # who loses most comes first
    window.get_by_label("Verdict").select_option("harmed")
    harmed = rows.count()
    assert 0 < harmed < 25
    assert all("harmed" in row for row in rows.all_inner_texts())
    assert f"{harmed} harmed" in state.inner_text()
    window.get_by_label("Verdict").select_option("")
    window.get_by_label("Who", exact=True).select_option("group")
    assert {name.split()[0] for name in rows.locator("th").all_inner_texts()} == {"north", "south"}
    window.get_by_label("Who", exact=True).select_option("")
    window.get_by_label("Name contains").fill("CLIENT 13")
    assert set(rows.locator("th").all_inner_texts()) == {"client 13"}
    window.get_by_label("Name contains").fill("")
    window.get_by_role("button", name="Next").click()
    assert state.inner_text().startswith("26 to 50")
    window.get_by_role("button", name="Show all").click()
    assert rows.count() == total
    window.locator("#ledger-table thead th[data-key=samples] button").press("Enter")
    samples = [int(number) for number in column(window, "#ledger-table", 9)]
    assert samples == sorted(samples)


def test_a_figure_changes_with_what_is_chosen(show: Open) -> None:
    window = show()
    plot, numbers = window.locator("#plot-front"), window.locator("#figure-front .numbers")
    before = plot.get_attribute("aria-label")
    window.get_by_label("Mean against", exact=True).select_option(
        label="standard deviation over clients"
    )
    api.expect(plot.locator(".ytitle")).to_contain_text("standard deviation")
    assert plot.get_attribute("aria-label") != before
    assert [part.get_attribute("hidden") is None for part in numbers.all()].index(True) == 2
    window.locator("#choose-weights").select_option(label="afl")
    assert "With afl" in (window.locator("#plot-weights").get_attribute("aria-label") or "")


def test_theme_is_toggled_remembered_and_followed_by_figures(show: Open) -> None:
    window = show()
    ink = (
        "() => [getComputedStyle(document.body).backgroundColor,"
        " document.querySelector('#plot-sorted svg').getAttribute('fill')]"
    )
    light = window.evaluate(ink)
    window.get_by_role("button", name="Dark colours").click()
    dark = window.evaluate(ink)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    window.reload()
    drawn(window)
    assert window.evaluate(ink) == dark
    window.get_by_role("button", name="Light colours").click()
    assert window.evaluate(ink) == light


def test_page_works_without_storage_and_follows_the_system(show: Open) -> None:
    refuse = (
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no storage"
        " here'); } })"
    )
    window = show(script=refuse, color_scheme="dark")
    assert (
        window.evaluate("() => getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    window.get_by_role("button", name="Light colours").click()
    assert (
        window.evaluate("() => getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize("name", ["usual", "nasty"])
def test_a_phone_shows_everything_without_scrolling_sideways(show: Open, name: str) -> None:
    window = show(name, viewport=PHONE, is_mobile=True, has_touch=True)
    for part in window.locator("main details").all():
        part.evaluate("part => { part.open = true; }")
    assert window.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]
    widths = window.evaluate(
        "() => [...document.querySelectorAll('.plot > svg')].map(s =>"
        " s.getBoundingClientRect().right)"
    )
    assert max(widths) <= PHONE["width"]
    assert not window.locator("nav").is_visible()
    window.locator(".side > summary").click()
    window.get_by_role("link", name="Harm ledger").click()
    assert not window.locator("nav").is_visible()  # out of the way again


# what is wider than its place, but for what nobody sees or what is drawn in it
TOO_WIDE = """() => [...document.querySelectorAll('main, main *')]
    .filter((e) => !e.closest('svg, .unseen, .tip') && e.clientWidth > 0
        && getComputedStyle(e).display !== 'inline' && e.scrollWidth > e.clientWidth + 1)
    .map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
# words in a figure that begin or end outside it
CUT = """() => [...document.querySelectorAll('.plot > svg text')].filter((e) => {
    const box = e.getBoundingClientRect(), all = e.closest('svg').getBoundingClientRect();
    return box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1;
}).map((e) => e.textContent)"""
# numbers on a horizontal axis that touch each other
TOUCHING = """() => [...document.querySelectorAll('.plot > svg')].flatMap((svg) => {
    const ticks = [...svg.querySelectorAll('.tick:not(.row)')].map((e) => e.getBoundingClientRect());
    return ticks.filter((one, i) => ticks.some((two, j) => j > i && one.top === two.top
        && one.left < two.right && two.left < one.right)).map(() => svg.parentElement.id);
})"""


@pytest.mark.parametrize("width", [1440, 1280, 390])
@pytest.mark.parametrize("name", ["usual", "nasty", "several"])
def test_nothing_is_cut_or_collides(show: Open, name: str, width: int) -> None:
    window = show(name, viewport={"width": width, "height": 900})
    for part in window.locator("main details").all():
        part.evaluate("part => { part.open = true; }")
    window.wait_for_timeout(200)
    assert window.evaluate("() => document.documentElement.scrollWidth") == width
    assert window.evaluate(TOO_WIDE) == []
    assert window.evaluate(CUT) == []
    assert window.evaluate(TOUCHING) == []


def test_tables_without_room_are_lists_of_cells_with_their_headings(show: Open) -> None:
    window = show(viewport=PHONE)
    table = window.locator("#methods table").first
    assert "stacked" in (table.get_attribute("class") or "")
    cell = table.locator("tbody td").first
    assert cell.get_attribute("data-label") == "mean"
    assert table.get_attribute("role") == "table"
    window.set_viewport_size(DESKTOP)
    window.wait_for_timeout(300)
    assert "stacked" not in (table.get_attribute("class") or "")


def test_axes_of_rounds_and_counts_have_whole_numbers(show: Open) -> None:
    window = show()
    for key in ("learning", "verdicts", "weights"):
        ticks = window.locator(f"#plot-{key} .tick:not(.row)").all_text_contents()
        assert ticks, key
        assert all(tick.replace(",", "").isdigit() for tick in ticks), key
        assert len(set(ticks)) == len(ticks), key


def test_a_point_says_what_it_is_with_counts(show: Open) -> None:
    window = show()
    window.locator("#plot-distribution .point").first.hover(force=True)
    tip = window.locator("#plot-distribution .tip")
    api.expect(tip).to_be_visible()
    assert " of 120 (" in tip.inner_text()
    window.locator("#plot-gains g[clip-path] .point").first.hover(force=True)
    words = window.locator("#plot-gains .tip").inner_text()
    assert words.startswith("client ")
    assert "with fedavg" in words


def test_a_long_name_is_cut_beside_the_axis_and_whole_when_pointed_at(show: Open) -> None:
    window = show("nasty")
    name = window.locator("#plot-weights .tick.row", has_text="nnnn")
    assert name.text_content().endswith("…")
    assert name.get_attribute("data-name") == "n" * 200
    name.hover(force=True)
    assert window.locator("#plot-weights .tip").inner_text() == "n" * 200


def test_a_figure_is_saved_as_svg(show: Open) -> None:
    window = show()
    with window.expect_download() as started:
        window.locator("#figure-overview .save").click()
    assert started.value.suggested_filename == "overview.svg"
    text = Path(started.value.path()).read_text()
    assert text.startswith("<svg")
    assert "worst client" in text


def test_every_study_has_a_ledger_of_its_own(show: Open) -> None:
    window = show("several")
    states = window.locator(".ledger .state")
    before = states.nth(1).inner_text()
    window.locator("#study-1-ledger-by").select_option("group")
    assert "entries" in states.nth(0).inner_text()
    assert states.nth(1).inner_text() == before
    window.get_by_role("checkbox", name="qffl").uncheck()
    assert "qffl" not in window.locator("#study-2-ledger-table tbody").inner_text()


def test_paper_has_light_figures_open_tables_and_no_controls(show: Open) -> None:
    window = show(color_scheme="dark")
    window.emulate_media(media="print")
    api.expect(window.locator("nav")).to_be_hidden()
    for controls in (".chooser", ".filters", ".pages", ".save"):
        assert not any(part.is_visible() for part in window.locator(controls).all()), controls
    assert window.locator("main details:not([open])").count() == 0
    state = window.locator("#ledger-state").inner_text()  # the whole ledger is printed
    total = int(state.split(" of ")[1].split()[0])
    assert window.locator("#ledger-table tbody tr").count() == total > 25
    assert (
        window.evaluate("() => getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    look = (
        "() => { const plot = document.querySelector('#plot-sorted svg'); return"
        " [plot.getAttribute('fill'), Number(plot.getAttribute('width')) <= 700]; }"
    )
    assert window.evaluate(look) == ["#22262b", True]
    window.emulate_media(media="screen")
    api.expect(window.locator("main details[open]")).to_have_count(2)  # of gaps, as before
    assert window.evaluate(look)[0] == "#e6e8eb"


def test_page_is_used_by_keyboard(show: Open) -> None:
    window = show()
    window.keyboard.press("Tab")
    skip = window.get_by_role("link", name="Skip to the results")
    api.expect(skip).to_be_focused()
    assert skip.bounding_box()["x"] >= 0  # seen while it has the focus
    window.keyboard.press("Enter")
    api.expect(window.locator("main")).to_be_focused()
    outline = window.get_by_role("checkbox", name="qffl")
    outline.focus()
    window.keyboard.press("Space")
    api.expect(outline).not_to_be_checked()
    unreachable = (
        "() => [...document.querySelectorAll('[onclick], a:not([href]), [role=button]')].filter(e"
        " => !e.closest('.plot')).length"
    )
    assert window.evaluate(unreachable) == 0


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("usual", DESKTOP, "light"), ("usual", PHONE, "dark"), ("several", DESKTOP, "dark")],
    ids=["desktop", "phone", "several"],
)
def test_axe_finds_nothing(show: Open, name: str, size: dict[str, int], theme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="accessibility checks need axe-playwright-python",
    )
    window = show(name, viewport=size, color_scheme=theme)
    for part in window.locator("details").all():
        part.evaluate("part => { part.open = true; }")
    found = axe.Axe().run(window).response["violations"]
    serious = [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []
    assert [rule["id"] for rule in found] == []
