"""The report: figures show the study's numbers, the page is whole, sound and safe, the command
writes it."""

from __future__ import annotations

import html
import html.parser
import itertools
import json
import re
import shlex
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.data.plots import LINES, REFERENCE, looks, save_figures
from evenhand.metrics import spread
from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures, panels, series
from evenhand.page.document import page
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.markup import script_json
from evenhand.studies.analysis.comparison import Difference, compare
from evenhand.studies.analysis.ledger import ledger
from evenhand.studies.analysis.statistics import front
from evenhand.studies.findings import analyse
from evenhand.studies.runs.study import Study
from tests.support.commands import invoke
from tests.support.studies import FIVE, NASTY, make_study

pytest.importorskip("plotly", reason="the report needs plotly")

ODD = {
    "one method": {"methods": {"fedavg": (0.8, 0.0)}},
    "one seed": {"seeds": 1},
    "one method without fedavg": {"methods": {"qffl": (0.8, 0.3)}, "seeds": 1},
    "no fedavg": {"methods": {"qffl": (0.8, 0.3), "afl": (0.7, 0.5)}},
    "alone is the only reference": {"methods": {"qffl": (0.8, 0.3), "localonly": (0.7, 0.5)}},
    "regression": {"regression": True, "teams": ("a", "b")},
    "no groups": {"groups": ()},
    "two clients": {"clients": 2},
    "one client": {"clients": 1, "groups": ()},
    "clients without samples": {"empty": (0, 5), "teams": ("a", "b")},
    "few samples": {"samples": 4},
    "dealt anew": {"same_data": False},
    "nasty names": {
        "names": NASTY,
        "clients": len(NASTY),
        "groups": NASTY[:2],
        "teams": NASTY[2:4],
    },
    "many methods": {
        "methods": {
            name: (0.8, i / 30) for i, name in enumerate(["fedavg", *map("m{}".format, range(20))])
        },
        "seeds": 2,
    },
}


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, and the text inside some of them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in ("meta", "link", "input", "path", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def all(self, *names: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in names]


def written(study: Study) -> str:
    return page(analyse(study))


def held(text: str, identity: str) -> Any:
    found = re.search(
        rf'<script type="application/json" id="{identity}">(.*?)</script>', text, re.DOTALL
    )
    assert found is not None
    return json.loads(found[1])


def with_merits(rows: dict[str, list[list[float]]]) -> Study:
    """A study with these accuracies: by method, for each seed, of each client."""
    first = next(iter(rows.values()))
    study = make_study(
        dict.fromkeys(rows, (0.5, 0.0)), seeds=len(first), clients=len(first[0]), groups=()
    )
    trials = {
        key: replace(
            trial, score_columns={**trial.score_columns, "accuracy": np.array(rows[key[0]][key[1]])}
        )
        for key, trial in study.trials.items()
    }
    return replace(study, trials=trials)


# ---- numbers of the figures ----------


def test_clients_of_one_rank_are_averaged_over_seeds() -> None:
    study = with_merits({"fedavg": [[0.9, 0.1, 0.5], [0.2, 0.7, 1.0]]})
    percent, merit = series.curve(study, "fedavg")
    assert percent.tolist() == [0, 50, 100]
    # (0.1 + 0.2) / 2, (0.5 + 0.7) / 2, (0.9 + 1.0) / 2
    assert merit.tolist() == pytest.approx([0.15, 0.6, 0.95])


def test_lowest_tenth_of_the_curve_is_the_mean_worst_10_percent() -> None:
    study = make_study(clients=30)
    curve = series.curve(study, "qffl").merit
    worst = np.mean([spread.worst(study.merits("qffl", seed)) for seed in study.seeds])
    assert curve[:3].mean() == pytest.approx(worst)


def test_curve_of_many_clients_has_few_points_and_the_same_ends() -> None:
    study = make_study(clients=1000, samples=20, seeds=2)
    merit = series.curve(study, "fedavg").merit
    assert len(merit) == series.MOST_POINTS
    assert merit[0] == pytest.approx(
        np.mean([study.merits("fedavg", seed).min() for seed in study.seeds])
    )


def test_bands_reach_from_the_lowest_to_the_highest_seed() -> None:
    study = make_study(seeds=2, rounds=3, evaluations=3)
    for seed, values in enumerate(([0.1, np.nan, 0.5], [0.3, 0.6, 0.7])):
        study.trials["fedavg", seed].history_columns["mean"] = np.array(values)
    found = series.learning(study, "fedavg", "mean")
    assert found is not None
    assert found.rounds.tolist() == [1, 3]  # the second was not evaluated with every seed
    assert found.mean.tolist() == pytest.approx([0.2, 0.6])
    assert (found.low.tolist(), found.high.tolist()) == ([0.1, 0.5], [0.3, 0.7])
    assert series.learning(study, "fedavg", "nothing of the sort") is None


@pytest.mark.parametrize(("evaluations", "mode"), [(1, "markers"), (2, "lines")])
def test_a_single_evaluation_is_a_point(evaluations: int, mode: str) -> None:
    study = make_study(seeds=1, rounds=4, evaluations=evaluations)
    assert {line.mode for line in figures.learning_curves(study).data} == {mode}


def test_scores_of_models_before_a_round_stand_where_these_models_do() -> None:
    study = make_study(seeds=1, rounds=3, evaluations=3)
    history = study.trials["fedavg", 0].history_columns
    history["mean"] = np.array([0.1, np.nan, 0.5])
    history["scores_after"] = np.array([0.0, np.nan, 2.0])
    found = series.learning(study, "fedavg", "mean")
    assert found is not None
    assert found.rounds.tolist() == [0, 2]


def test_weights_are_in_multiples_of_an_equal_share_and_worst_served_first() -> None:
    study = with_merits({"fedavg": [[0.9, 0.1, 0.5]], "afl": [[0.5, 0.5, 0.5]]})
    trial = study.trials["afl", 0]
    weight = np.array([[0.2, 0.5, 0.3]])
    study = replace(
        study,
        trials={
            **study.trials,
            ("afl", 0): replace(trial, weights=weight, weight_rounds=np.array([7])),
        },
    )
    found = series.weights(study, "afl")
    assert found is not None
    assert found.rows == ("client 1", "client 2", "client 0")
    assert found.share[:, 0].tolist() == pytest.approx([1.5, 0.9, 0.6])
    assert (found.rounds.tolist(), found.served_by) == ([7], "fedavg")


def test_weights_of_many_clients_are_averaged_in_bins() -> None:
    study = make_study(clients=120, samples=10, seeds=2, groups=())
    found = series.weights(study, "afl")
    assert found is not None
    assert len(found.rows) == series.MOST_ROWS
    assert found.rows[0] == "clients 1 to 3"
    assert found.rows[-1] == "clients 119 to 120"
    sizes = np.array([len(part) for part in np.array_split(np.arange(120), series.MOST_ROWS)])
    assert (found.share * sizes[:, None]).sum(0) / 120 == pytest.approx(1)  # weights sum to one


def test_figures_show_percent_and_errors_without_their_minus() -> None:
    study = with_merits({"fedavg": [[0.25, 0.75]]})
    assert list(figures.sorted_clients(study).data[0].y) == [25, 75]
    errors = make_study(regression=True, seeds=1)
    drawn = figures.sorted_clients(errors).data[0].y
    rmse = np.sqrt(errors.trials["fedavg", 0].score_columns["loss"][:12]) * errors.measure.scale
    assert drawn[0] == pytest.approx(rmse.max(), abs=1e-3)  # the worst served first
    assert drawn[-1] == pytest.approx(rmse.min(), abs=1e-3)


def test_dominated_methods_are_hollow_and_the_front_joins_the_others() -> None:
    # means 0.75, 0.70, 0.65; worst 0.5, 0.6, 0.4
    rows = {"fedavg": [[0.5, 1.0]], "qffl": [[0.6, 0.8]], "afl": [[0.4, 0.9]]}
    study = with_merits(rows)
    drawn = figures.front(study, front(study, "worst10"), compare(study), "worst10").data
    assert list(drawn[0].x) == [70, 75]
    assert list(drawn[0].y) == [60, 50]
    assert {trace.name: "open" in trace.marker.symbol for trace in drawn[1:]} == {
        "fedavg": False,
        "qffl": False,
        "afl": True,
    }


def test_better_is_up_for_worst_clients_and_down_for_spread() -> None:
    def titles(study: Study, fairness: str) -> str:
        layout = figures.front(study, front(study, fairness), compare(study), fairness).layout
        return str(layout.xaxis.title.text[-9] + layout.yaxis.title.text[-9])

    accuracy, errors = make_study(), make_study(regression=True)
    assert titles(accuracy, "worst10") == "→↑"
    assert titles(accuracy, "jain") == "→↑"
    assert titles(accuracy, "std") == "→↓"
    assert titles(errors, "worst10") == "←↓"
    assert titles(errors, "std") == "←↓"


def test_bars_count_verdicts() -> None:
    study = make_study(FIVE, clients=20, samples=200)
    entries = ledger(study)
    counted = Counter(
        (entry.method, entry.verdict)
        for entry in entries
        if entry.against == "fedavg" and entry.by == "client"
    )
    words = {look.word: verdict for verdict, look in VERDICTS.items()}
    for bar in figures.verdicts(study, entries, "fedavg").data:
        for label, count in zip(bar.meta["methods"], bar.x, strict=True):
            assert count == counted[label, words[bar.name]]


def test_every_method_looks_different_and_like_itself_in_every_figure() -> None:
    labels = [f"method {i}" for i in range(24)]
    seen = looks(labels, "method 3")
    assert len(set(seen.values())) == 24
    assert seen["method 3"].colour == REFERENCE["light"]
    assert len({look.colour for look in list(seen.values())[:9]}) == 9
    study = make_study(FIVE)
    lines = {trace.name: trace.line.color for trace in figures.sorted_clients(study).data}
    assert lines == {label: look.colour for label, look in looks(study.labels, "fedavg").items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_apart_with_any_colour_vision(theme: str) -> None:
    """Distances in CIELAB as people see them who lack one kind of cone (Machado, Oliveira and
    Fernandes, 2009)."""
    vision = {
        "all cones": np.eye(3),
        "no L cones": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "no M cones": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "no S cones": [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    }

    def linear(colour: str) -> Any:
        part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)

    def lab(light: Any) -> Any:
        matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        xyz = matrix @ np.clip(light, 0, 1) / [0.9505, 1, 1.089]
        root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])

    first = [*LINES[theme][:6], REFERENCE[theme]]
    for cones, matrix in vision.items():
        seen = [lab(np.array(matrix) @ linear(colour)) for colour in first]
        nearest = min(np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2))
        assert nearest > 10, (theme, cones)  # 2 is just noticeable side by side


# ---- the page ----------


@pytest.mark.parametrize("kind", ODD)
def test_page_of_odd_studies_is_sound(kind: str) -> None:
    text = written(make_study(**ODD[kind]))  # type: ignore[arg-type]
    reader = Reader(text)
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {label["for"] for label in reader.all("label")} <= set(ids)
    assert {link["href"][1:] for link in reader.all("a")} <= set(ids)
    assert all(heading.get("scope") in ("col", "row") for heading in reader.all("th"))
    assert len(reader.all("caption")) == len(reader.all("table"))
    plots = [attributes for attributes in reader.all("div") if attributes.get("class") == "plot"]
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 20 for plot in plots)
    drawn = held(text, "figures-data")
    assert {plot["id"] for plot in plots} == {f"plot-{key}" for key in drawn}
    # no empty panel
    assert all(variant["figure"]["data"] for variants in drawn.values() for variant in variants)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert not re.search(
        r"\bnan\b",
        re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL),
        re.IGNORECASE,
    )


def test_page_of_a_simulation_says_what_a_server_would_learn() -> None:
    study = make_study()
    assert 'id="server"' not in written(study)  # of runs that do not say it
    server = {
        "fedavg": {"sees": [], "stays": []},
        "qffl": {"sees": [], "stays": ["personal"]},
        "afl": {"sees": ["its loss"], "stays": []},
    }
    text = written(replace(study, about=tuple({**run, "server": server} for run in study.about)))
    assert "What the server would learn about single clients" in text
    assert "This was a simulation in one process." in text
    table = text.partition('<table id="server-table">')[2].partition("</table>")[0]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in re.findall(r"<tr data-method.*?</tr>", table)
    ]
    sums = "nothing client by client: sums, and how many clients have which accuracy"
    assert rows == [
        ["fedavg", "nothing: sums only", sums, "-", "yes"],
        ["qffl", "nothing: sums only", sums, "personal", "yes"],
        [
            "afl",
            "its loss",
            "nothing client by client: sums, and how many clients have which accuracy",
            "-",
            "no",
        ],
    ]


def test_page_asks_for_nothing_from_a_network() -> None:
    reader = Reader(written(make_study(FIVE)))
    addresses = [
        attributes[name]
        for _, attributes in reader.tags
        for name in ("src", "href")
        if name in attributes
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    policy = next(
        meta["content"]
        for meta in reader.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_names_are_text_everywhere() -> None:
    study = make_study(
        FIVE,
        names=NASTY,
        clients=len(NASTY),
        groups=NASTY[:2],
        teams=NASTY[2:4],
        labels={"afl": "a<b>&[/c]"},
    )
    text = written(study)
    reader = Reader(text)
    assert len(reader.all("script")) == 5  # three of data, two of ours
    assert not any(tag in ("b", "bold") and attributes for tag, attributes in reader.tags)
    assert set(held(text, "ledger-data")["columns"]["name"]["texts"]) >= set(NASTY)
    seen = {shown for _, shown in reader.texts}
    assert {*NASTY[:4], "a<b>&[/c]"} <= seen
    assert "{{" not in re.sub(
        re.escape("{{title}}"),
        "",
        re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL),
    )
    traces = [
        trace
        for variants in held(text, "figures-data").values()
        for variant in variants
        for trace in variant["figure"]["data"]
    ]
    names = {trace.get("name", "") for trace in traces}
    assert "a&lt;b&gt;&amp;[/c]" in names  # plotly reads a few tags
    about = [trace.get("meta", {}) for trace in traces]
    assert {meta["method"] for meta in about if "method" in meta} == set(study.labels)


def test_data_cannot_end_their_element() -> None:
    text = script_json("x", {"name": "</script><!-- & \u2028"})
    assert text.count("<") == 2
    assert held(text, "x") == {"name": "</script><!-- & \u2028"}


def test_ledger_holds_every_entry() -> None:
    study = make_study(FIVE, teams=("a", "b"), empty=(3,))
    findings = analyse(study)
    content = held(page(findings), "ledger-data")
    columns, digits = content["columns"], content["digits"]
    assert len(findings.entries) == len(columns["gain"])
    for i, entry in enumerate(findings.entries):
        shown = {
            key: columns[key]["texts"][columns[key]["codes"][i]]
            for key in ("by", "name", "team", "method", "against", "verdict")
        }
        assert shown == {key: getattr(entry, key) for key in shown}
        for key, value in (
            ("gain", entry.gain.value),
            ("low", entry.gain.low),
            ("merit", entry.merit),
            ("reference", entry.reference),
        ):
            assert columns[key][i] == (
                None
                if np.isnan(value)
                else pytest.approx(100 * value, abs=0.5 * 10**-digits + 1e-9)
            )


def test_the_ledger_of_a_regression_shows_errors_without_a_minus_and_what_they_fall_by() -> None:
    findings = analyse(make_study(FIVE, regression=True))
    columns = held(page(findings), "ledger-data")["columns"]
    scale = findings.study.measure.scale
    for i, entry in enumerate(findings.entries):
        assert columns["merit"][i] == pytest.approx(-scale * entry.merit, rel=0.01)
        assert columns["gain"][i] == pytest.approx(scale * entry.gain.value, rel=0.01, abs=0.01)


def test_bold_and_marks_stand_where_differences_are_significant() -> None:
    findings = analyse(make_study(seeds=5, clients=20, samples=200))
    comparison = findings.comparison
    none = {
        label: {name: one._replace(better=False, worse=False) for name, one in row.items()}
        for label, row in comparison.differences.items()
    }
    sure = {
        **none,
        "afl": {
            **none["afl"],
            "worst10": Difference(Interval(0.1, 0.05, 0.15), 0.001, 0.01, True, False),
        },
    }

    def body(**changes: Any) -> str:
        whole = page(replace(findings, comparison=replace(comparison, **changes)))
        return whole[whole.index('<section id="methods"') : whole.index('<section id="gains"')]

    plain = body(differences=none, best={})
    assert "<strong>" not in plain
    assert "▲</span>" not in plain
    marked = body(differences=sure, best={"worst10": "afl"})
    assert marked.count("<strong>") == 1
    # the number and the difference
    assert (
        marked.count('▲</span><span class="unseen"> significantly better than fedavg</span>') == 2
    )
    assert "significantly worse than" not in marked


def test_numbers_of_the_table_are_those_of_the_comparison() -> None:
    study = make_study(seeds=3)
    comparison = compare(study)
    text = written(study)
    compared = text[text.index('<section id="methods"') :]
    row = next(row for row in re.findall(r'<tr data-method="qffl">.*?</tr>', compared))
    cells = [re.sub(r"<[^>]+>", " ", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
    mean = comparison.rows["qffl"]["mean"]
    assert cells[0].split()[0] == f"{100 * mean.value:.1f}"
    assert f"[{100 * mean.low:.1f}, {100 * mean.high:.1f}]" in cells[0]
    sorted_by = re.findall(r'<td data-value="([^"]*)"', row)
    assert float(sorted_by[0]) == pytest.approx(100 * mean.value)


def test_teams_that_are_the_groups_are_shown_once() -> None:
    study = make_study(clients=2, groups=("north", "south"), teams=("north", "south"), seeds=1)
    owner = study.first.sample_client
    assert owner is not None
    same = {}
    for key, trial in study.trials.items():
        scores = {
            **trial.score_columns,
            "accuracy": np.r_[
                trial.score_columns["accuracy"][:2], trial.score_columns["accuracy"][:2]
            ],
        }
        same[key] = replace(trial, score_columns=scores, sample_group=owner)
    keys = {panel.key for panel in panels.all_panels(analyse(replace(study, trials=same)))}
    assert "members-group" in keys
    assert "members-team" not in keys


def test_reference_comes_first_and_training_alone_last() -> None:
    study = make_study({"localonly": (0.7, 0.2), "qffl": (0.79, 0.5), "fedavg": (0.80, 0.0)})
    assert analyse(study).study.labels == ("fedavg", "qffl", "localonly")


def test_page_of_a_thousand_clients_is_small() -> None:
    text = written(
        make_study(FIVE, seeds=5, clients=1000, samples=10, rounds=500, evaluations=500, groups=())
    )
    assert len(text.encode()) < 2e6


def test_specs_of_the_seeds_are_one_spec_to_reproduce() -> None:
    from evenhand.studies.specs.spec import Spec

    text = written(make_study(seeds=3))
    assert "evenhand compare spec.toml --no-reference" in text
    toml = next(
        shown
        for where, shown in Reader(text).texts
        if where[-2:] == ("pre", "code") and "[data]" in shown
    )
    assert Spec.from_toml(toml, "the page").seeds == (0, 1, 2)
    assert "evenhand run spec.toml" in written(make_study(seeds=1))


# ---- the command ----------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two rounds on eight clients of digits."""
    directory = tmp_path_factory.mktemp("runs") / "small"
    options = [
        "--clients",
        "8",
        "--model",
        "linear",
        "--rounds",
        "2",
        "--seeds",
        "2",
        "-a",
        "qffl",
        "--quiet",
        "--out",
    ]
    assert invoke("compare", *options, str(directory)) == (0, "", "")
    return directory


def test_command_writes_the_page(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    code, shown, errors = invoke(
        "report", str(compared), "--out", str(out), "--title", "Small & plain", "-v"
    )
    assert (code, errors) == (0, "")
    assert f"\nReport:  {out} (" in shown
    text = out.read_text()
    assert "<h1>Small &amp; plain</h1>" in text
    assert f"evenhand report {compared}" in text
    findings = analyse(Study.load([compared]))
    assert all(sentence in shown for sentence in findings.sentences)
    _, short, _ = invoke("report", str(compared), "--out", str(out))
    answer, _, _ = short.partition("\n\nReport:  ")
    assert answer.splitlines() == list(findings.answer.sentences)


def test_the_page_names_the_command_that_makes_it_again(compared: Path, tmp_path: Path) -> None:
    once, again = tmp_path / "once.html", tmp_path / "again.html"
    options = ["--over", "samples", "--level", "0.9", "--least", "5", "--positive", "3"]
    assert invoke("report", str(compared), "--out", str(once), *options, "-q")[0] == 0
    [line] = re.findall(r"This report was made with</p><pre><code>(.*?)</code>", once.read_text())
    assert html.unescape(line) == shlex.join(["evenhand", "report", str(compared), *options])
    command = shlex.split(html.unescape(line))[1:]
    assert invoke(*command, "--out", str(again), "-q")[0] == 0
    assert once.read_bytes() == again.read_bytes()
    plain = eh.report(compared, tmp_path / "plain.html", over="auto", least=10).page.read_text()
    assert f"evenhand report {compared}</code>" in plain


def test_a_page_from_python_is_that_of_the_command(compared: Path, tmp_path: Path) -> None:
    assert invoke("report", str(compared), "--out", str(tmp_path / "a.html"), "-q")[0] == 0
    written = eh.report(compared, tmp_path / "b.html")
    assert written.figures == []
    assert written.page.read_bytes() == (tmp_path / "a.html").read_bytes()
    # what was loaded or analysed gives the same page, but for the command line
    study = eh.load(compared)
    for number, given in enumerate((study, eh.analyse(study))):
        text = eh.report(given, tmp_path / f"{number}.html").page.read_text()
        command = (
            f"<p>This report was made with</p><pre><code>evenhand report {compared}</code></pre>"
        )
        assert text == (tmp_path / "a.html").read_text().replace(command, "")
    with pytest.raises(ValueError, match='figure_format must be "png" or "svg"'):
        eh.report(compared, figure_format="pdf")


def test_figures_are_drawn_from_a_loaded_study(compared: Path) -> None:
    figure = eh.figures.sorted_clients(eh.load(compared))
    assert {trace.name for trace in figure.data} == {"fedavg", "qffl", "localonly"}


def test_command_takes_single_runs_and_prints_json(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    code, shown, _ = invoke(
        "report",
        str(compared / "seed-0"),
        str(compared / "seed-1"),
        "--out",
        str(out),
        "--json",
        "--over",
        "samples",
    )
    found = json.loads(shown)
    assert code == 0
    assert found["page"] == str(out)
    assert found["bytes"] == out.stat().st_size
    assert found["sentences"][: len(found["answer"])] == found["answer"]
    assert found["next"][0].startswith("evenhand ")
    assert "over test samples of these clients" in out.read_text()
    assert invoke("report", str(compared), "--out", str(out), "--quiet") == (0, "", "")


def test_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    code, _, errors = invoke("report", str(tmp_path / "empty"))
    assert (code, errors.count("\n")) == (1, 1)
    assert "holds no run" in errors
    assert invoke("report", str(tmp_path / "nowhere"))[0] == 2
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    code, _, errors = invoke("report", str(compared), "--out", str(tmp_path / "page.html"))
    assert (code, errors) == (
        1,
        "evenhand: figures need plotly: pip install plotly (extra: evenhand[plots])\n",
    )
    assert not (tmp_path / "page.html").exists()


def test_command_draws_every_figure(compared: Path, tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="drawing needs kaleido")
    if not any(
        map(
            shutil.which,
            ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
        )
    ):
        pytest.skip("drawing needs Chrome or Chromium")
    options = [
        "--out",
        str(tmp_path / "page.html"),
        "--figures",
        str(tmp_path / "drawn"),
        "--figure-format",
        "svg",
    ]
    code, shown, errors = invoke("report", str(compared), *options)
    assert (code, errors) == (0, "")
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert f"\nFigures: {tmp_path / 'drawn'}/ ({len(drawn)} files)\n" in shown
    variants = sum(
        len(panel.variants) for panel in panels.all_panels(analyse(Study.load([compared])))
    )
    assert len(drawn) == variants
    assert {"overview.svg", "distribution.svg", "learning.svg", "weights-qffl.svg"} <= set(drawn)
    assert all("<svg" in (tmp_path / "drawn" / name).read_text()[:500] for name in drawn)


def test_pictures_of_two_kinds_are_refused(tmp_path: Path) -> None:
    assert save_figures({}) == []
    figure = figures.sorted_clients(make_study())
    with pytest.raises(
        ValueError,
        match=r"figures' file names must all end in .png or all in .svg, got a.png, b.svg",
    ):
        save_figures({tmp_path / "a.png": figure, tmp_path / "b.svg": figure})


def test_without_a_browser_the_error_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido", reason="drawing needs kaleido")
    import plotly.io

    def broken(**settings: Any) -> None:
        raise OSError("no browser here\nand a long story")

    monkeypatch.setattr(plotly.io, "write_images", broken)
    with pytest.raises(
        RuntimeError,
        match=r"a.png cannot be drawn \(no browser here\); install Chrome or Chromium for kaleido",
    ):
        save_figures({tmp_path / "a.png": figures.sorted_clients(make_study())})
    assert not list(tmp_path.iterdir())
