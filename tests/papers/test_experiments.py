"""Every experiment of the papers: it loads, has the rows that are published, and can be built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from evenhand.datasets import DATASETS, loader
from evenhand.models import MODELS
from evenhand.papers.availability import MISSING, data_for, variant
from evenhand.papers.choosing import RULES
from evenhand.papers.experiment import Part, experiments, find_parts, read_experiment
from evenhand.papers.numbers import HEADINGS, OVER_CLIENTS
from evenhand.papers.published import _by_part, published
from evenhand.papers.running import points_of, prepare
from evenhand.studies.specs.spec import Spec

PARTS = {part.title: part for one in experiments().values() for part in one.parts}
OWN = {title: part for title, part in PARTS.items() if not part.same_as}
KINDS = ("client", "team", "risk", "clients", "images")
QUICK_TO_PREPARE = ("fafl-table4:vehicle", "fedminmax-table1:esg", "gifair-table3")


def variants(part: Part) -> Iterator[Part]:
    """All that may be run of a part: with the paper's data or others, the paper's budget or less."""
    for data in (part, part.substituted()):
        yield from (data, data.quick())


def test_every_published_number_has_its_experiment_row_and_metric() -> None:
    for title, numbers in _by_part().items():
        part = PARTS[title]
        assert [row.label for row in part.rows if row.x is None] == list(
            dict.fromkeys(number.row for number in numbers)
        ), title
        for number in numbers:
            kind, named, _ = number.metric.partition(":")
            known = number.metric in {*OVER_CLIENTS, *HEADINGS, "team variance"}
            assert known or (named and kind in KINDS), number


def test_all_of_the_papers_tables_and_figures_are_there() -> None:
    assert list(experiments()) == [
        *("fafl-table1", "fafl-table2", "fafl-table3", "fafl-table4"),
        *("rcfl-table1", "rcfl-figure1"),
        *(f"gifair-table{number}" for number in range(1, 7)),
        *("gifair-figure4", "gifair-figureA1"),
        *("fedminmax-table1", "fedminmax-table2"),
        *("propfair-table6", "propfair-table7", "propfair-table8"),
        *("propfair-figure2", "propfair-figure3", "propfair-figure4"),
    ]
    assert find_parts(["gifair-figureA1"]) == find_parts(["002-FIGUREA1"])


@pytest.mark.parametrize("title", PARTS)
def test_a_part_says_what_people_want_to_know(title: str) -> None:
    part, experiment = PARTS[title], experiments()[PARTS[title].experiment]
    assert experiment.about
    assert part.seeds
    for text in (part.stated, part.unknown, part.reason, part.time):
        assert text
    for changes in (part.smaller, part.other):
        assert not changes or changes["about"]
    if experiment.figure:
        assert experiment.figure["kind"] in ("bars", "plane", "against")
        assert experiment.figure["metrics"]
    if part.same_as:
        home = PARTS[part.home]
        assert (part.rows, part.spec, published(part)) == (home.rows, home.spec, published(home))


@pytest.mark.parametrize("title", OWN)
def test_settings_and_names_are_known_without_any_data(title: str) -> None:
    for part in variants(OWN[title]):
        by_row = [(row, points_of(row)) for row in part.rows]
        assert len({row.label for row, _ in by_row}) == len(by_row) > 0
        for row, found in by_row:
            assert row.rule in ("", *RULES)
            assert bool(row.rule) or len(found) == 1, row.label
        points = [point for _, found in by_row for point in found]
        spec = Spec.from_table({**part.spec, "methods": [one.table() for one in points]}, title)
        for method in spec.methods:
            method.algorithm()
            spec.build_local(method)
        spec.settings()
        assert spec.data["name"] in DATASETS
        accepted = inspect.signature(loader(spec.data["name"])).parameters
        assert set(spec.data) - {"name", "shift"} <= set(accepted), part.note
        assert spec.model["name"] in MODELS
        accepted = inspect.signature(MODELS[spec.model["name"]]).parameters
        assert set(spec.model) - {"name"} <= set(accepted), part.note
        if len(points) > len(by_row):
            assert spec.validation or spec.data["split"].get("val"), "nothing to choose by"


@pytest.mark.parametrize(
    "title",
    [
        name if name in QUICK_TO_PREPARE else pytest.param(name, marks=pytest.mark.slow)
        for name in OWN
    ],
)
@pytest.mark.parametrize("quick", [False, True], ids=["paper", "quick"])
@pytest.mark.filterwarnings("ignore")  # sizes that fit what is there, levels below weights
def test_a_part_can_be_built_where_its_data_are(title: str, quick: bool) -> None:
    if data_for(OWN[title]).kind == MISSING:
        pytest.skip("the data are not here")
    part = variant(OWN[title], quick)
    job = prepare(part)
    named = set(job.planned.first.federation.team_names)
    wanted = {
        name
        for metric in (*(n.metric for n in published(part)), *_figure_metrics(part))
        for kind, _, name in [metric.partition(":")]
        if kind in ("team", "clients", "images")
    }
    assert wanted <= named


def _figure_metrics(part: Part) -> list[str]:
    return list(experiments()[part.experiment].figure.get("metrics", []))


FIRST = """
paper = "fafl"
number = "Table 9"
about = "-"
[spec]
rounds = 3
[[rows]]
row = "q-FFL"
name = "qffl"
grid = { q = [2.0, 1.0], "local.lr" = [0.1, 0.2] }
[quick]
about = "one setting"
grids = false
"""


def test_a_smaller_budget_may_take_the_first_point_of_every_grid() -> None:
    (part,) = read_experiment("fafl-table9", FIRST).parts
    (row,) = part.quick().rows
    assert (row.method["q"], row.method["local"], row.grid) == (2.0, {"lr": 0.1}, {})
    assert len(points_of(part.rows[0])) == 4
    wrong = read_experiment("fafl-table9", FIRST.replace("grids = false", "grid = 1")).parts[0]
    with pytest.raises(ValueError, match="did you mean 'grids'"):
        wrong.quick()
