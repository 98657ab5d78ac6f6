"""The page of published numbers beside ours: its content, and how it is in a real browser."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from evenhand.papers.experiment import Row
from evenhand.papers.page import page, write_page
from evenhand.papers.page.entry import entries, once, total
from evenhand.papers.page.figures import against_published
from evenhand.papers.page.redrawn import redrawn
from evenhand.papers.published import published
from evenhand.papers.verdicts import NOT, ORDERING, SAME_DIGITS, VERDICTS, WITHIN
from tests.support.reproduced import experiment_of, part_of, result_of, rows_of, usual
from tests.support.studies import NASTY

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROME = next((path for path in map(shutil.which, BROWSERS) if path), None)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 740}
Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))


def words(made: str) -> str:
    """What a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", made.split("<main")[-1])).split())


def section(made: str, key: str) -> str:
    return made.split(f'<section id="{key}"')[1].split("</section>")[0]


def test_the_answer_counts_every_published_number_once() -> None:
    told = usual()
    sums = total(once(entries(told)))
    parts = {part.title: part for _, part, _ in told if not part.same_as}
    assert sums["published"] == sum(len(published(part)) for part in parts.values())
    assert sum(sums[verdict] for verdict in (*VERDICTS, "diverged")) == sums["run"]
    seen = words(page(told))
    assert (
        f"{sums['run']} of {sums['published']} published numbers were run: {sums[SAME_DIGITS]} have"
        f" the same digits, {sums[WITHIN]} lie within both spreads, {sums[ORDERING]} have the"
        f" paper's ordering, {sums[NOT]} are not reproduced and 4 diverged." in seen
    )
    assert (
        "14 experiments 13 ran: 11 with the paper's settings as far as it states them, 1 with a smaller"
        in seen
    )
    assert "1 experiment has no result." in seen


def test_a_cell_has_both_numbers_interval_difference_and_verdict() -> None:
    part = part_of("fafl-table1")
    one = {"FedAvg": {"mean": (78.0, 79.0), "client:Shirt": (66.1, 65.9)}}
    made = page([(experiment_of(part), part, result_of(part, seeds=2, values=one))])
    seen = words(section(made, "fafl-table1"))
    # 78.5 ± 0.5, and Student's t of 12.706 with one degree of freedom times a half
    assert (
        "published 78.8 ± 0.2 ours 78.5 ± 0.5 [72.1, 84.9] difference \u22120.3 within spreads"
        in seen
    )
    assert "ours 66.0 ± 0.1 [64.7, 67.3] difference 0.0 same digits" in seen
    assert "published 77.8 ± 1.2 ours not run" in seen  # AFL has no numbers
    assert "2 of 16 published numbers were run" in words(made)


def test_one_seed_has_no_interval_and_what_diverged_says_so() -> None:
    part = part_of("fafl-table1")
    made = page([(experiment_of(part), part, result_of(part, seeds=1, diverged=("AFL",)))])
    seen = words(section(made, "fafl-table1"))
    assert "ours is one seed" in seen
    assert "[" not in seen.split("Machine")[0]
    assert "published 77.8 ± 1.2 ours diverged" in seen


def test_it_says_what_differs_from_the_paper_and_why_there_is_no_result() -> None:
    made = page(usual())
    seen = words(section(made, "experiments"))
    assert "FAFL Table 2: vehicle smaller budget: 2 seeds, 50 rounds" in seen
    assert "FAFL Table 2: sent140 substitute data: sentences of another corpus" in seen
    assert "GIFAIR-FL Table 1 not run: the data are missing" in seen
    missing = words(section(made, "gifair-table1"))
    assert "evenhand data fetch femnist" in missing
    assert "one core: 1 minute" in missing
    assert "Not as in the paper: smaller budget: 2 seeds, 50 rounds." in words(
        section(made, "fafl-table2")
    )
    part = part_of("fafl-table1")  # its data are computed
    again = words(page([(experiment_of(part), part, None)]))
    assert "there is no result yet, get one with: evenhand reproduce fafl-table1" in again


def test_a_part_has_its_settings_reason_and_source() -> None:
    made = page(usual())
    first, second = (words(section(made, key)) for key in ("fafl-table1", "fafl-table2"))
    assert "The paper states: ten clients & full participation." in first
    assert second.count("It does not state: step sizes.") == 1  # both parts have it in common
    assert "local.lr = 0.5 q = 1.0 edge 0.1, 0.5 1.0, 5.0 the best accuracy of the worst" in first
    assert "500 rounds 3 seeds 10 clients 12,345 test samples 1 min 15 s to run" in first
    for told in ("2024-05-06", "evenhand reproduce fafl-table1", "a processor, Linux, cpu"):
        assert told in first
    assert "not reproduced: step sizes are not published." in second
    assert "AFL: printed 77.8 but the mean" in first


def test_settings_that_differ_between_parts_stand_with_their_part() -> None:
    told = [part_of("fafl-table2", "vehicle"), part_of("fafl-table2", "sent140", unknown="mu")]
    made = page([(experiment_of(*told), part, None) for part in told])
    seen = words(section(made, "fafl-table2"))
    assert seen.count("The paper states") == 1
    assert "vehicle It does not state: step sizes." in seen
    assert "sent140 It does not state: mu." in seen


def test_a_figure_with_the_runs_of_a_table_links_to_it() -> None:
    made = section(page(usual()), "rcfl-figure1")
    assert 'The runs are those of <a href="#fafl-table1">fafl-table1</a>' in made
    assert "published 85.9 ± 0.7" in words(made)  # in the data of the figure
    assert 'class="compared"' not in made
    part = part_of("rcfl-figure1", same_as="fafl-table1")
    alone = page([(experiment_of(part, kind="bars"), part, result_of(part))])
    assert 'class="compared"' in alone
    assert "16 of 16 published numbers were run" in words(alone)


def test_the_navigation_has_every_experiment_and_ids_are_unique() -> None:
    told = [*usual(), usual()[0]]  # one of them twice
    made = page(told)
    found = re.findall(r' id="([^"]+)"', made)
    assert len(found) == len(set(found))
    links = re.findall(r'href="#([^"]+)"', made)
    assert set(links) <= set(found) | {"main"}
    navigation = made.split("<nav")[1].split("</nav>")[0]
    for experiment, *_ in told:
        assert f'href="#{experiment.name}"' in navigation


def test_texts_are_escaped() -> None:
    code, ends, *_ = NASTY
    rows = (*rows_of(code, series=ends, x=1.0), Row("b", {}, series=ends, x=2.0))
    part = part_of("gifair-figure4", code, rows=rows, about=code, note=code, stated=code)
    experiment = experiment_of(part, kind="against", x=code, metrics=["mean", "team:male"])
    given = result_of(part, chosen={code: {code: code}}, edges={code: (code,)})
    made = page([(experiment, part, given)], code)
    assert "<script>alert" not in made
    assert f"<h1>{code.replace('<', '&lt;').replace('>', '&gt;')}</h1>" in made
    assert made.count("<script>") == made.count("<style>") + 1 == 2
    assert "http" not in made.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_page_of_nothing_and_of_nothing_that_ran(tmp_path: Path) -> None:
    assert "There are no experiments." in page([])
    part = part_of("propfair-table6", "cifar10")
    out = write_page([(experiment_of(part), part, None)], tmp_path / "sub" / "page.html")
    assert out == tmp_path / "sub" / "page.html"
    assert "0 of 30 published numbers were run." in words(out.read_text(encoding="utf-8"))


def test_markers_lie_at_published_and_our_numbers() -> None:
    part = part_of("fafl-table2", "vehicle")
    told = entries([(experiment_of(part), part, result_of(part))])
    accuracy, variance = against_published(told)
    assert accuracy.title.endswith("accuracy, %")
    assert variance.title.endswith("variance, %²")
    fedavg = next(one for one in accuracy.figure["data"] if one["name"] == "FedAvg")
    assert fedavg["x"] == [87.3, 43.0, 95.7]
    assert fedavg["y"] == [87.3, 43.4, 93.7]
    assert fedavg["error_x"]["array"] == [0.5, 1.0, 1.0]
    assert fedavg["error_y"]["array"] == [0.2449] * 3  # of 0.3 * (-1, 0, 1)
    layout = accuracy.figure["layout"]
    assert layout["xaxis"]["range"] == layout["yaxis"]["range"]


def drawn(number: str) -> list[Any]:
    told = [one for one in entries(usual()) if one.experiment.name == number]
    return [one.figure for one in redrawn(told)]


def test_planes_have_filled_and_hollow_markers_for_each_method() -> None:
    figures = drawn("propfair-figure2")
    assert len(figures) == 2
    cifar = figures[0]["data"]
    own, paper = (
        [one for one in cifar if one["name"] == "FedAvg" and one["showlegend"] is shown]
        for shown in (True, False)
    )
    assert (paper[0]["x"], paper[0]["y"]) == ([78.52], [57.16])
    assert paper[0]["marker"]["symbol"] == "circle-open"
    assert own[0]["marker"]["symbol"] == "circle"
    assert own[0]["x"] == [78.52]
    assert own[0]["y"] == [62.16]


def test_bars_of_clients_have_published_numbers_beside() -> None:
    (figure,) = drawn("rcfl-figure1")
    assert figure["layout"]["yaxis"]["ticktext"] == ["T-shirt/top", "Pullover", "Shirt"]
    fedavg, *_, hollow = figure["data"]
    assert fedavg["x"] == [86.3, 82.5, 71.0]
    assert hollow["x"][:3] == [85.9, 84.5, 66.0]
    assert hollow["y"][:3] == fedavg["y"]


def test_lines_go_over_a_setting_or_over_parts_whose_names_are_numbers() -> None:
    (figure,) = drawn("gifair-figure4")  # one method: a line for each metric
    male, mean, *levels = figure["data"]
    assert (male["name"], male["x"], male["y"]) == ("male", [0, 1, 2], [88.5, 89.5, 90.5])
    assert mean["name"] == "mean"
    assert [one["name"] for one in levels] == ["FedAvg, male", "FedAvg, mean"]
    assert levels[0]["y"] == [91.5, 91.5]
    assert levels[0]["line"]["color"] == male["line"]["color"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["0", "0.1", "1"]
    means, worst = drawn("propfair-table8")
    assert means["layout"]["xaxis"]["ticktext"] == ["32", "64", "128", "256"]
    assert worst["layout"]["yaxis"]["title"]["text"] == "accuracy of the worst 10 % of clients, %"
    own = next(one for one in means["data"] if one["name"] == "FedAvg")
    assert len(own["x"]) == 4


def test_a_part_that_was_not_run_is_left_out_of_lines() -> None:
    told = [one for one in usual() if one[0].name == "propfair-table8"]
    told[1] = (told[1][0], told[1][1], None)
    means, _ = redrawn(entries(told))
    own = next(one for one in means.figure["data"] if one["name"] == "FedAvg")
    assert own["x"] == [0, 1, 2]
    assert means.figure["layout"]["xaxis"]["ticktext"] == ["32", "128", "256"]


# ---- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A usual page, and one whose names are code."""
    directory = tmp_path_factory.mktemp("reproduced")
    usual_part = part_of("fafl-table1", NASTY[0], rows=rows_of(*NASTY, series="", x=None))
    rows = tuple(
        dataclasses.replace(row, series=NASTY[2], x=float(place))
        for place, row in enumerate(usual_part.rows)
    )
    part = dataclasses.replace(usual_part, rows=rows)
    nasty = experiment_of(part, kind="against", x=NASTY[4], metrics=["mean", "worst10"])
    told = [(nasty, part, result_of(part, chosen={NASTY[5]: {NASTY[5]: NASTY[1]}}))]
    return {
        "usual": write_page(usual(), directory / "usual.html"),
        "nasty": write_page(told, directory / "nasty.html", NASTY[1]),
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
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
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
def test_a_page_fits_every_width_and_draws_every_figure(show: Open, name: str, width: int) -> None:
    window = show(name, viewport={"width": width, "height": 800}, is_mobile=width < 500)
    assert window.evaluate("() => document.documentElement.scrollWidth") == width
    plots = window.locator(".plot")
    assert plots.count() >= (12 if name == "usual" else 1)
    assert window.locator(".plot > svg").count() == plots.count()
    assert window.locator(".plot .point").count() > plots.count()
    cut = (
        "() => [...document.querySelectorAll('.wide')].filter(e =>"
        " e.scrollWidth > e.clientWidth + 1).length"
    )
    assert window.evaluate(cut) == 0
    if width == 1280:  # six metrics have room
        assert window.locator(".compared .stacked").count() == 0


def test_names_that_are_code_are_seen_as_text(show: Open) -> None:
    window = show("nasty")
    assert window.locator("h1").inner_text() == NASTY[1]
    window.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert f"{NASTY[0]}: {NASTY[0]}" in window.locator(".numbers tbody th").all_inner_texts()


def test_colours_are_chosen_and_light_on_paper(show: Open) -> None:
    window = show()
    paper = "() => getComputedStyle(document.body).backgroundColor"
    ink = "() => document.querySelector('.plot svg').getAttribute('fill')"
    assert window.evaluate(paper) == "rgb(255, 255, 255)"
    light = window.evaluate(ink)
    window.get_by_role("button", name="Dark colours").click()
    assert window.evaluate(paper) != "rgb(255, 255, 255)"
    assert window.evaluate(ink) != light
    window.emulate_media(media="print")
    assert window.evaluate(paper) == "rgb(255, 255, 255)"
    window.wait_for_function("() => !document.querySelector('main details:not([open])')")
    assert not window.locator("nav").is_visible()


def test_the_keyboard_reaches_an_experiment(show: Open) -> None:
    window = show()
    window.keyboard.press("Tab")
    assert window.evaluate("() => document.activeElement.className") == "skip"
    window.locator("nav a", has_text="PropFair Table 6").focus()
    window.keyboard.press("Enter")
    assert window.evaluate("() => location.hash") == "#propfair-table6"


@pytest.mark.parametrize(
    ("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_axe_finds_nothing(show: Open, size: dict[str, int], theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    window = show(viewport=size, color_scheme=theme)
    for part in window.locator("main details").all():
        part.evaluate("part => { part.open = true; }")
    found = axe.Axe().run(window).response["violations"]
    assert [f"{rule['id']}: {rule['nodes'][0]['html'][:120]}" for rule in found] == []
