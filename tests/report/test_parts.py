"""The parts of the page: its first screen, gains, groups, sweeps, several studies, and tables for
papers, checked against numbers that were worked out by hand or in another way."""

from __future__ import annotations

import csv
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.metrics.counts import Counts
from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures, numbers, panels, rates, series
from evenhand.page.comparison import clients_by_method, methods_compared
from evenhand.page.document import chapters, page
from evenhand.page.exports import escaped, group_rows, latex, method_rows
from evenhand.page.figures.rounds import learning_columns
from evenhand.page.ledger import ledger_data
from evenhand.page.sections import answer
from evenhand.studies.findings import Findings, analyse
from evenhand.studies.runs.study import Study
from tests.support.commands import invoke
from tests.support.studies import FIVE, NASTY, make_study

pytest.importorskip("plotly", reason="the report needs plotly")


def panel(findings: Findings, key: str) -> Any:
    return {found.key: found for found in panels.all_panels(findings)}[key]


def part(text: str, key: str) -> str:
    """A section of a page."""
    return text.partition(f'<section id="{key}"')[2].partition("</section>")[0]


def with_counts(table: list[Any], labels: tuple[str, ...] = ("no", "yes")) -> Study:
    """A study of FedAvg with one seed and these counts of two groups (A, C, C + 1)."""
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.2)}, seeds=1, clients=1)
    counts = Counts(np.array([table]), ("client 0",), ("north", "south"), labels)
    trials = {key: replace(trial, counts=counts) for key, trial in study.trials.items()}
    return replace(study, trials=trials)


# ---- the first screen ----------


def test_the_answer_has_at_most_three_sentences_and_the_rest_is_folded() -> None:
    findings = analyse(make_study(FIVE))
    first, rest = answer(findings)
    assert 0 < len(first) <= 3
    assert first == list(findings.answer.sentences)
    assert not set(first) & set(rest)
    header = page(findings).partition("<header>")[2].partition("</header>")[0]
    assert header.count('class="plot"') == 1
    assert header.index('class="answer"') < header.index('id="plot-overview"')
    assert header.partition('class="answer"')[2].partition("</ul>")[0].count("<li>") == len(first)


def test_the_first_figure_has_mean_worst_client_and_worst_group_with_intervals() -> None:
    findings = analyse(make_study(FIVE, seeds=1))
    drawn = {trace.name: trace for trace in panel(findings, "overview").variants[0].figure.data}
    assert list(drawn) == ["mean", "worst client", "worst group"]
    for name, statistic in (("mean", "mean"), ("worst client", "min")):
        for place, label in enumerate(drawn[name].meta["methods"]):
            interval = findings.comparison.rows[label][statistic]
            trace = drawn[name]
            assert trace.x[place] == pytest.approx(100 * interval.value, abs=1e-3)
            high = trace.x[place] + trace.error_x.array[place]
            assert high == pytest.approx(100 * interval.high, abs=2e-3)
    merits = findings.study.merits("afl", 0, "group")
    place = drawn["worst group"].meta["methods"].index("afl")
    assert drawn["worst group"].x[place] == pytest.approx(100 * merits.min(), abs=1e-3)
    worst = findings.study.names("group")[int(merits.argmin())]
    assert f"worst group {worst}" in drawn["worst group"].text[place]


def test_intervals_that_leave_out_their_number_are_explained_with_an_example() -> None:
    findings = analyse(make_study(seeds=1))
    comparison = findings.comparison
    inside = {
        label: {name: Interval(0.5, 0.4, 0.6) for name in row}
        for label, row in comparison.rows.items()
    }
    assert "outside its own interval" not in methods_compared(
        replace(findings, comparison=replace(comparison, rows=inside))
    )
    beside = {**inside, "qffl": {**inside["qffl"], "min": Interval(0.632, 0.65, 0.77)}}
    middle = {"qffl": {"min": 0.71}}
    text = methods_compared(
        replace(findings, comparison=replace(comparison, rows=beside, estimates=middle))
    )
    assert (
        "a value can fall outside its own interval (qffl, worst client: observed 63.2, estimated 71.0 %"
        " [65.0, 77.0])."
    ) in text


@pytest.mark.parametrize(("clients", "there"), [(9, False), (10, True)])
def test_worst_10_percent_of_fewer_than_ten_clients_is_the_worst_client(
    clients: int, there: bool
) -> None:
    text = page(analyse(make_study(clients=clients)))
    assert ("worst 10 %" in part(text, "methods")) is there
    assert ('id="plot-sorted"' in text) is there
    assert "worst client" in part(text, "methods")


# ---- signs ----------


def test_a_change_that_rounds_to_nothing_has_no_sign() -> None:
    assert numbers.signed(-0.04, 1) == "0.0"
    assert numbers.signed(0.04, 1) == "0.0"
    assert numbers.signed(-0.05001, 1) == "\u22120.1"
    assert numbers.signed(2, 1) == "+2.0"
    assert numbers.change(Interval(0.01, -0.0001, 0.02), 100, 1) == "+1.0 [0.0, +2.0]"
    assert numbers.change(Interval(0.01, math.nan, math.nan), 100, 1) == "+1.0"


def test_plus_is_better_for_errors_too() -> None:
    findings = analyse(make_study(FIVE, regression=True))
    study = findings.study
    entry = next(
        entry for entry in findings.entries if entry.by == "client" and entry.gain.value > 0.01
    )
    before, after = (-study.measure.scale * merit for merit in (entry.reference, entry.merit))
    assert after < before  # the error falls
    assert numbers.gain_words(study, entry).partition(": ")[2].startswith("+")
    assert numbers.gain_title(study, "fedavg").endswith("where + is a smaller error")
    text = page(findings)
    seen = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    assert not re.search(r"[-\u2212]0\.0+\b", seen)
    assert "where + is a smaller error" in part(text, "methods")


def test_differences_have_only_numbers_in_which_plus_is_better() -> None:
    text = part(page(analyse(make_study(seeds=3))), "methods")
    gains = text.partition("Gain (+) or loss")[2].partition("</table>")[0]
    headings = re.findall(r"<button[^>]*>([^<]*)</button>", gains)
    assert headings[:2] == ["method", "mean"]
    assert not {"std", "Gini", "Jain"} & set(headings)


def test_one_of_something_is_not_several() -> None:
    text = page(analyse(make_study(clients=1, groups=(), seeds=1)))
    assert "<b>1</b> client<" in text
    assert not re.search(r"\b1 (clients|seeds|methods|groups|rounds)\b", text)


# ---- clients ----------


def test_gains_are_sorted_with_counts_and_intervals() -> None:
    findings = analyse(make_study(seeds=1, clients=12, samples=40))
    found = panel(findings, "gains")
    assert [variant.name for variant in found.variants][:1] == ["qffl compared with fedavg"]
    data = found.variants[0].figure.data
    rows = sorted((y, x) for trace in data for x, y in zip(trace.x, trace.y, strict=True))
    assert [x for _, x in rows] == sorted(x for _, x in rows)
    entry = next(one for one in findings.entries if one.by == "client" and one.method == "qffl")
    right, of = round(entry.merit * entry.samples), entry.samples
    words = [text for trace in data for text in trace.text if text.startswith(f"{entry.name}:")]
    assert f"<br>{right} of {of} ({100 * entry.merit:.1f} %)<br>" in words[0]


def test_gains_of_many_clients_are_a_curve_with_few_points() -> None:
    findings = analyse(make_study(seeds=1, clients=300, samples=12, groups=()))
    [trace] = panel(findings, "gains").variants[0].figure.data
    assert len(trace.x) == 200
    assert (trace.x[0], trace.x[-1]) == (1, 300)
    assert list(trace.y) == sorted(trace.y)


@pytest.mark.parametrize(("clients", "there"), [(40, True), (41, False)])
def test_a_table_names_every_client_of_a_small_federation(clients: int, there: bool) -> None:
    findings = analyse(make_study(clients=clients, seeds=1, samples=20))
    text = clients_by_method(findings)
    assert bool(text) is there
    if there:
        rows = re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', text)
        assert [name for name, _ in rows] == list(findings.study.names("client"))
        merit = findings.study.merits("qffl", 0)[3]
        assert f"{100 * merit:.1f}" in rows[3][1]
        assert f"<small>{round(20 * merit)} of 20</small>" in rows[3][1]


@pytest.mark.parametrize(("clients", "fill"), [(30, False), (31, True)])
def test_densities_are_for_more_than_thirty_clients(clients: int, fill: bool) -> None:
    drawn = figures.distribution(make_study(clients=clients, seeds=1)).data
    assert any(trace.fill == "toself" for trace in drawn) is fill
    if not fill:
        assert drawn[0].text[0].startswith("client 0: ")
        assert re.search(r": \d+ of 40 \(", drawn[0].text[0])


def test_a_density_is_a_gaussian_kernel_density() -> None:
    values = np.array([0.0, 1.0, 3.0])
    at, high = series.density(values, 5)
    width = np.std(values, ddof=1) * 3 ** (-1 / 5)  # Scott's
    kernel = np.exp(-(((at[:, None] - values) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
    assert high == pytest.approx(kernel.mean(1))
    assert series.density(np.full(4, 2.0), 5)[1].tolist() == [1] * 5  # all alike


def test_the_ledger_has_teams_that_are_the_groups_once() -> None:
    for teams, kinds in (
        (("north", "south"), {"client", "group"}),
        (("east", "west"), {"client", "group", "team"}),
    ):
        findings = analyse(make_study(clients=2, groups=("north", "south"), teams=teams))
        columns = ledger_data(findings)["columns"]
        assert set(columns["by"]["texts"]) == kinds
        assert len(columns["gain"]) == sum(entry.by in kinds for entry in findings.entries)


# ---- groups ----------

# north: 40 no, 60 yes; of yes 45 found; of no 10 predicted yes. south: 30 no, 10 yes; 4; 3
TABLE = [[[30, 10, 0], [15, 45, 0]], [[27, 3, 0], [6, 4, 0]]]


def test_rates_of_groups_are_those_of_the_counts() -> None:
    findings = analyse(with_counts(TABLE))
    found = rates.rates(findings, "group")["fedavg"]
    by_hand = {
        "accuracy": ((75, 100), (31, 40)),
        "true-positive rate": ((45, 60), (4, 10)),
        "false-positive rate": ((10, 40), (3, 30)),
        "selection rate": ((55, 100), (7, 40)),
        "precision": ((45, 55), (4, 7)),
    }
    assert set(found) == set(by_hand)
    for rate, pairs in by_hand.items():
        for group, (hits, of) in zip(("north", "south"), pairs, strict=True):
            one = found[rate][group]
            assert (one.hits, one.of) == (hits, of)
            assert one.interval.value == pytest.approx(100 * hits / of)
            assert one.interval.low < one.interval.value < one.interval.high
            assert one.counts == f"{hits} of {of}"


def test_the_two_groups_of_a_gap_are_named_the_lower_first() -> None:
    findings = analyse(with_counts(TABLE))
    found = rates.rates(findings, "group")

    def named(kind: str) -> str:
        return rates.extremes(findings, found, "group", "fedavg", kind)

    assert named("equal opportunity") == "south 40 %, north 75 %"
    assert named("false-positive parity") == "south 10 %, north 25 %"
    assert named("equalised odds") == "south 40 %, north 75 %"  # 35 points, not 15
    assert named("calibration") == ""
    # predictions of south are 7: fewer than the least
    assert named("predictive parity") == ""
    shown = panel(findings, "gaps-group").variants[0]
    assert "south 40 %, north 75 %" in shown.table
    assert any("south 40 %, north 75 %" in text for text in shown.figure.data[0].text)


def test_groups_have_their_samples_beside_their_names() -> None:
    found = panel(analyse(with_counts(TABLE)), "members-group")
    rows = {variant.name: variant.figure.layout.yaxis.ticktext for variant in found.variants}
    assert rows["accuracy"] == ("north (n = 100)", "south (n = 40)")
    assert rows["true-positive rate"] == ("north (n = 60)", "south (n = 10)")
    assert "45 of 60" in found.variants[1].table


def test_rates_of_one_label_are_not_shown_for_many_labels() -> None:
    table = np.zeros((2, 3, 4), int)
    table[:, [0, 1, 2], [0, 1, 2]] = 20
    table[1, 0, 1] = 15
    findings = analyse(with_counts(table.tolist(), ("a", "b", "c")))
    assert [variant.name for variant in panel(findings, "members-group").variants] == ["accuracy"]
    gaps = panel(findings, "gaps-group")
    assert gaps.variants[0].figure.layout.yaxis.ticktext == ("accuracy",)
    assert "pass --positive LABEL" in gaps.caption
    chosen = analyse(findings.study, positive="b")
    assert len(panel(chosen, "members-group").variants) == 5


# ---- rounds ----------


def test_learning_curves_have_the_worst_group_where_the_history_has_it() -> None:
    study = make_study(seeds=1, clients=5)
    assert learning_columns(study) == ["mean", "worst"]  # of five clients, worst 10 % is the worst
    for trial in study.trials.values():
        trial.history_columns["worst_group"] = trial.history_columns["mean"] - 0.1
    assert learning_columns(study) == ["mean", "worst", "worst_group"]
    layout = figures.learning_curves(study).layout
    assert layout.yaxis3.title.text == "worst group, %"
    domains = [axis.domain for axis in (layout.yaxis3, layout.yaxis2, layout.yaxis)]
    assert domains[0][0] == pytest.approx(0)
    assert domains[-1][1] == pytest.approx(1)
    assert all(low[1] < high[0] for low, high in itertools.pairwise(domains))


def test_gaps_over_rounds_are_in_points_and_only_where_a_history_has_them() -> None:
    study = make_study(seeds=2, clients=5, rounds=4, evaluations=4)
    assert figures.gap_curves(study) is None
    assert "gap-rounds" not in {panel.key for panel in panels.all_panels(analyse(study))}
    for seed in (0, 1):
        columns = study.trials["afl", seed].history_columns
        columns["tpr_gap"] = np.array([0.3, 0.25, 0.2, 0.1 + 0.1 * seed])
        columns["fpr_gap"] = np.array([np.nan, np.nan, np.nan, 0.02])
    found = panel(analyse(study), "gap-rounds")
    drawn = found.variants[0].figure
    assert drawn.layout.yaxis.title.text == "gap in true-positive rate, points"
    assert drawn.layout.yaxis2.title.text == "gap in false-positive rate, points"
    band, line, *_ = drawn.data
    assert line.meta["method"] == "afl"
    assert line.y == pytest.approx((30.0, 25.0, 20.0, 15.0))  # the mean over seeds
    assert band.y[3:5] == pytest.approx((20.0, 10.0))  # the last round: largest and smallest
    assert "afl: gap in true-positive rate 15.0, gap in false-positive rate 2.0" in (
        found.variants[0].finding
    )
    assert "Rates of label “yes”. Bands span the 2 seeds." in found.caption


def test_rounds_and_counts_have_whole_numbers_on_their_axes() -> None:
    findings = analyse(make_study(rounds=3, evaluations=3))
    for key in ("learning", "weights", "verdicts"):
        assert panel(findings, key).variants[0].figure.layout.xaxis.tickformat == ",d", key


def test_weights_of_groups_are_shares_beside_those_of_the_samples() -> None:
    study = make_study(seeds=2, rounds=2, evaluations=2)
    assert series.group_weights(study, "qffl") is None
    for seed, first in enumerate(([0.2, 0.4], [0.4, 0.4])):
        history = study.trials["qffl", seed].history_columns
        history["group_weight_0"] = np.array(first)
        history["group_weight_1"] = 1 - np.array(first)
    found = series.group_weights(study, "qffl")
    assert found is not None
    assert found.share.tolist() == [pytest.approx([0.3, 0.7]), pytest.approx([0.4, 0.6])]
    shown = panel(analyse(study), "group-weights")
    assert [variant.name for variant in shown.variants] == ["qffl"]
    assert "north 40.0 % (50.0 % of the training samples)" in shown.variants[0].finding
    assert list(shown.variants[0].figure.data[1].y) == [70, 60]


def test_heat_maps_have_whole_names() -> None:
    study = make_study(names=NASTY, clients=len(NASTY), seeds=1)
    drawn = figures.client_weights(study, "afl").data[0]
    assert "n" * 200 in drawn.y
    assert "%{y}" in drawn.hovertemplate


# ---- a sweep, several studies ----------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "swept"
    options = ["--clients", "6", "--model", "linear", "--rounds", "2", "--seeds", "1"]
    grid = ["--method", "qffl", "--grid", "q=1,0.1,5", "--quiet", "--out", str(directory)]
    assert invoke("sweep", *options, *grid)[0] == 0
    return directory


def test_the_page_of_a_sweep_shows_validation_numbers_by_hyper_parameter(
    swept: Path, tmp_path: Path
) -> None:
    written = eh.report(swept, tmp_path / "page.html")
    sweep = written.findings.sweep
    assert sweep is not None
    [variant] = panel(written.findings, "sensitivity").variants
    mean = variant.figure.data[0]
    assert list(variant.figure.layout.xaxis.ticktext) == ["0.1", "1", "5"]
    labels = ["qffl q=0.1", "qffl q=1", "qffl q=5"]
    expected = [100 * sweep.validation[label]["mean"] for label in labels]
    assert list(mean.y) == pytest.approx(expected, abs=1e-3)
    text = written.page.read_text()
    assert "How the point was chosen" in text
    assert "do not choose a point by them" in part(text, "sweep")
    # the first figure is about the chosen point and the references
    first = panel(written.findings, "overview").variants[0].figure
    assert set(first.data[0].meta["methods"]) == set(sweep.final.labels)


def test_studies_with_other_data_have_sections_of_their_own(swept: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    options = ["--clients", "4", "--model", "linear", "--rounds", "1", "-a", "qffl"]
    assert invoke("run", *options, "-q", "--out", str(other))[0] == 0
    code, shown, errors = invoke(
        "report", str(swept), str(other), "--out", str(tmp_path / "page.html")
    )
    assert (code, errors) == (0, "")
    text = (tmp_path / "page.html").read_text()
    assert "<h1>2 studies side by side</h1>" in text
    for number, name in ((1, "swept"), (2, "other")):
        assert f'<a href="#study-{number}">{name}</a>' in text
        assert f'id="plot-study-{number}-overview"' in text
        assert f'id="study-{number}-ledger-table"' in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    table = text.partition('id="studies-table"')[2].partition("</table>")[0]
    assert "other: fedavg" in table
    assert "qffl" in shown


def test_several_studies_are_one_page_with_a_row_for_each_method() -> None:
    one, two = analyse(make_study(seeds=1)), analyse(make_study(seeds=1, regression=True))
    text = page(chapters([(one, ""), (two, "")]), "Two")
    table = text.partition('id="studies-table"')[2].partition("</table>")[0]
    assert table.count("<tr data-method=") == 6
    mean = numbers.ends_words(one.study, "mean", one.comparison.rows["qffl"]["mean"])
    assert mean in table
    assert "test error (RMSE)" in table


# ---- tables for papers ----------


def test_tables_have_mean_and_std_over_runs() -> None:
    findings = analyse(make_study(seeds=3))
    study = findings.study
    rows = {(row["method"], row["statistic"]): row for row in method_rows(findings)}
    means = [100 * study.merits("qffl", seed).mean() for seed in study.seeds]
    row = rows["qffl", "mean"]
    assert row["runs"] == 3
    assert row["mean"] == pytest.approx(sum(means) / 3)
    middle = sum(means) / 3
    assert row["std"] == pytest.approx(math.sqrt(sum((m - middle) ** 2 for m in means) / 2))
    assert row["low"] == pytest.approx(100 * findings.comparison.rows["qffl"]["mean"].low)
    assert math.isnan(method_rows(analyse(make_study(seeds=1)))[0]["std"])


def test_a_latex_table_has_a_row_for_each_method() -> None:
    findings = analyse(make_study(seeds=3, labels={"afl": "a_f & 5 %"}))
    lines = latex(findings).splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lrrrrrr}", r"\toprule"]
    assert lines[3] == r"method & mean & all samples & worst 10 \% & worst client & std & Gini \\"
    mean = findings.comparison.rows["qffl"]["mean"]
    row = next(line for line in lines if line.startswith("qffl"))
    assert f"{100 * mean.value:.1f} [{100 * mean.low:.1f}, {100 * mean.high:.1f}]" in row
    assert any(line.startswith(r"a\_f \& 5 \% & ") for line in lines)
    assert all(line.count(" & ") == 6 for line in lines[3:4] + lines[5:-2])
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert escaped("\\~^{}$#") == (r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\}\$\#")


def test_the_command_writes_tables(swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    options = ["--out", str(tmp_path / "page.html"), "--tables", str(out)]
    code, shown, _ = invoke("report", str(swept), *options)
    assert code == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["groups.csv", "methods.csv", "methods.tex"]
    assert f"\nTables:  {out}/ (3 files)\n" in shown
    with (out / "methods.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} >= {"fedavg", "qffl q=1"}
    assert all(row["std"] == "" for row in rows)  # one run
    with (out / "groups.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == len(group_rows(eh.report(swept, tmp_path / "again.html").findings))


def test_the_page_of_a_small_study_is_small() -> None:
    assert len(page(analyse(make_study(FIVE))).encode()) < 0.5e6
