"""What a study says: by hand, against NumPy and SciPy, and in words."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.uncertainty import holm
from evenhand.studies.analysis.comparison import compare
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.ledger import ledger
from evenhand.studies.analysis.statistics import STATISTICS, front, statistics
from evenhand.studies.analysis.words import sentences
from evenhand.studies.findings import analyse
from tests.support.studies import make_study

STUDY = make_study(clients=12, samples=60, seeds=4, teams=("east", "west"))


def changed(study, label, merits, seed):
    """The same study with other accuracies of the clients of one trial."""
    trial = study.trials[label, seed]
    accuracy = trial.score_columns["accuracy"].copy()
    accuracy[: len(merits)] = merits
    trials = {
        **study.trials,
        (label, seed): replace(trial, score_columns={**trial.score_columns, "accuracy": accuracy}),
    }
    return replace(study, trials=trials)


def test_rows_are_students_over_seeds():
    found = compare(STUDY)
    # a tenth of twelve clients is one
    values = [np.sort(STUDY.merits("qffl", seed))[0] for seed in STUDY.seeds]
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    row = found.rows["qffl"]["worst10"]
    assert found.over == "seeds"
    assert [row.value, row.low, row.high] == pytest.approx(
        [np.mean(values), np.mean(values) - half, np.mean(values) + half]
    )


def test_differences_are_paired_over_seeds_and_corrected():
    found = compare(STUDY)
    new, old = (
        [STUDY.merits(label, seed).mean() for seed in STUDY.seeds] for label in ("afl", "fedavg")
    )
    expected = stats.ttest_rel(new, old)
    difference = found.differences["afl"]["mean"]
    assert difference.interval.value == pytest.approx(np.mean(new) - np.mean(old))
    assert difference.p == pytest.approx(expected.pvalue)
    by_mean = [row["mean"] for row in found.differences.values()]
    np.testing.assert_allclose([one.adjusted for one in by_mean], holm([one.p for one in by_mean]))
    assert set(found.differences) == {"qffl", "afl"}


def test_smaller_spread_is_better():
    study = make_study({"fedavg": (0.7, 0.0), "qffl": (0.7, 1.0)}, seeds=5, clients=20, samples=400)
    found = compare(study)
    assert found.differences["qffl"]["std"].interval.value < 0
    assert found.differences["qffl"]["std"].better
    assert not found.differences["qffl"]["std"].worse
    assert found.best["std"] == "qffl"


def test_no_method_is_best_where_two_are_alike():
    study = make_study(
        {"fedavg": (0.6, 0.0), "qffl": (0.8, 0.0), "afl": (0.8, 0.0)},
        seeds=5,
        clients=20,
        samples=400,
    )
    found = compare(study)
    assert "mean" not in found.best
    assert found.differences["qffl"]["mean"].better
    assert found.differences["afl"]["mean"].better


def test_best_needs_more_than_one_method():
    study = make_study({"fedavg": (0.6, 0.0)})
    found = compare(study)
    assert (found.best, found.differences) == ({}, {"fedavg": {}} if found.differences else {})


def test_one_seed_takes_samples_and_its_error_is_the_binomial_one():
    study = make_study(seeds=1, clients=9, samples=200)
    found = compare(study, draws=2000)
    accuracy = study.merits("fedavg", 0)
    error = math.sqrt((accuracy * (1 - accuracy) / (200 - 1)).sum()) / 9
    row = found.rows["fedavg"]["mean"]
    assert found.over == "samples"
    assert (row.high - row.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


def test_resampling_pairs_methods_on_the_same_samples():
    study = make_study(seeds=1, clients=5, samples=300)
    old, new = (study.trials[label, 0] for label in ("fedavg", "qffl"))
    study = replace(
        study,
        trials={
            **study.trials,
            ("qffl", 0): replace(new, values=old.values, score_columns=old.score_columns),
        },
    )
    difference = compare(study, draws=50).differences["qffl"]["mean"]
    assert (difference.interval.value, difference.p) == (0, pytest.approx(1))
    # 1500 samples on which they agree do not say that they always would
    assert -0.003 < difference.interval.low < 0 < difference.interval.high < 0.003


def test_resampling_needs_the_same_samples():
    with pytest.raises(ValueError, match='over="seeds"'):
        compare(make_study(same_data=False), over="samples")
    with pytest.raises(ValueError, match="over must be"):
        compare(STUDY, over="everything")


def test_pooled_errors_are_pooled_as_squares():
    study = make_study(regression=True, clients=2, samples=10, empty=())
    found = statistics(study, np.array([-3.0, -4.0]), np.array([10.0, 30.0]))
    assert float(found["pooled"]) == pytest.approx(-math.sqrt((10 * 9 + 30 * 16) / 40))
    assert float(found["jain"]) == pytest.approx(49 / 50)  # of the errors, which are positive


def test_intervals_stay_within_what_a_number_can_be():
    found = compare(make_study({"fedavg": (0.97, 1.0)}, seeds=2, clients=3, samples=5))
    for name, interval in found.rows["fedavg"].items():
        assert not interval.low < 0  # NaN where both seeds agree
        if name not in ("std", "variance", "variation"):
            assert not interval.high > 1


def test_ledger_gives_each_gain_and_holm_over_clients():
    entries = [
        e for e in ledger(STUDY) if (e.by, e.method, e.against) == ("client", "afl", "fedavg")
    ]
    gains = np.mean(
        [STUDY.merits("afl", seed) - STUDY.merits("fedavg", seed) for seed in STUDY.seeds], 0
    )
    assert [entry.name for entry in entries] == list(STUDY.names("client"))
    np.testing.assert_allclose([entry.gain.value for entry in entries], gains, atol=1e-12)
    np.testing.assert_allclose(
        [entry.adjusted for entry in entries], holm([entry.p for entry in entries])
    )
    for entry in entries:
        sure = entry.adjusted < 0.05
        assert entry.verdict == (
            "unclear" if not sure else "gains" if entry.gain.value > 0 else "harmed"
        )
        assert entry.gain.low <= entry.gain.value <= entry.gain.high


def test_ledger_of_groups_and_teams_takes_their_samples_together():
    entries = {
        (e.by, e.name): e for e in ledger(STUDY) if (e.method, e.against) == ("qffl", "fedavg")
    }
    first = STUDY.first
    for by, names in (("group", ("north", "south")), ("team", ("east", "west"))):
        for code, name in enumerate(names):
            mine = (
                first.sample_group == code
                if by == "group"
                else np.array(STUDY.teams)[first.sample_client] == name
            )
            gain = np.mean(
                [
                    STUDY.trials["qffl", s].values[mine] - STUDY.trials["fedavg", s].values[mine]
                    for s in STUDY.seeds
                ]
            )
            assert entries[by, name].gain.value == pytest.approx(gain)
            assert entries[by, name].samples == mine.sum()


def test_ledger_marks_clients_with_few_samples_and_leaves_them_out_of_the_correction():
    entries = ledger(make_study(clients=4, samples=9), least=10)
    assert {entry.verdict for entry in entries if entry.by == "client"} == {"few"}
    assert all(math.isnan(entry.adjusted) for entry in entries if entry.by == "client")


def test_client_without_test_samples_has_no_gain():
    entry = next(e for e in ledger(make_study(clients=4, empty=[2])) if e.name == "client 2")
    assert math.isnan(entry.gain.value)
    assert entry.verdict == "few"


def test_ledger_of_dealt_data_is_that_of_the_first_seed():
    study = make_study(same_data=False)
    entry = next(e for e in ledger(study) if e.by == "client" and e.method == "qffl")
    assert entry.gain.value == pytest.approx(
        study.merits("qffl", 0)[0] - study.merits("fedavg", 0)[0]
    )


def test_ledger_of_a_regression_is_in_units_of_the_error():
    # errors of about a fifth: their squares would not pass for them
    methods = {"fedavg": (0.93, 0.8), "afl": (0.95, 0.8)}
    study = make_study(methods, regression=True, seeds=1, clients=6, samples=200)
    entries = [e for e in ledger(study) if e.by == "client" and e.method == "afl"]
    for place, entry in enumerate(entries):
        mine = study.first.sample_client == place
        new, old = (study.trials[label, 0].values[mine] for label in ("afl", "fedavg"))
        assert entry.gain.value == pytest.approx(math.sqrt(old.mean()) - math.sqrt(new.mean()))
        rng = np.random.default_rng(place)
        chosen = rng.integers(0, 200, (2000, 200))
        error = np.std(np.sqrt(old[chosen].mean(1)) - np.sqrt(new[chosen].mean(1)))
        assert (entry.gain.high - entry.gain.low) / 2 == pytest.approx(
            stats.t.ppf(0.975, 199) * error, rel=0.25
        )


def test_staying_alone_is_a_reference_too():
    study = make_study({"fedavg": (0.6, 0.0), "localonly": (0.9, 0.0)}, samples=200)
    entries = [e for e in ledger(study) if e.by == "client" and e.against == "localonly"]
    assert {e.method for e in entries} == {"fedavg"}
    assert all(e.verdict == "harmed" for e in entries)
    comparison = compare(study)
    line = next(line for line in sentences(study, comparison, ledger(study)) if "alone" in line)
    assert line.startswith("Of 12 clients, 12 are significantly worse off with FedAvg than alone: ")


def test_gaps_are_those_of_the_counts():
    from evenhand.metrics import parity

    found = gaps(STUDY)
    expected = np.mean(
        [
            float(parity.accuracy_parity(STUDY.trials["qffl", s].counts.by_group))
            for s in STUDY.seeds
        ]
    )
    assert found["qffl"]["accuracy parity"].value == pytest.approx(expected)
    assert gaps(make_study(groups=())) == {}


def test_gaps_of_teams_compare_the_clients_of_each():
    found = gaps(STUDY, by="team")["fedavg"]["accuracy parity"].value
    by_team = [STUDY.merits("fedavg", seed, by="team") for seed in STUDY.seeds]
    assert found == pytest.approx(np.mean([np.ptp(merits) for merits in by_team]))


def test_front_marks_what_another_method_beats_in_both():
    study = make_study({"fedavg": (0.9, 0.0), "qffl": (0.5, 0.0), "afl": (0.80, 1.0)}, samples=400)
    points = {point.label: point for point in front(study)}
    assert points["qffl"].dominated
    assert not points["fedavg"].dominated
    assert not points["afl"].dominated
    by_spread = {point.label: point for point in front(study, "std")}
    assert not by_spread["afl"].dominated


def test_words_say_by_how_much_and_at_what_cost():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.70, 1.0)}, seeds=5, clients=20, samples=400
    )
    comparison = compare(study)
    line = sentences(study, comparison, ledger(study))[0]
    worst, mean = (comparison.differences["qffl"][name].interval for name in ("worst10", "mean"))
    assert (
        line == "Against FedAvg, qffl lifts the accuracy of the worst 10 % of clients by"
        f" {100 * worst.value:.1f} points [{100 * worst.low:+.1f}, {100 * worst.high:+.1f}] and"
        f" costs {-100 * mean.value:.1f} points of mean accuracy [{100 * mean.low:+.1f},"
        f" {100 * mean.high:+.1f}]."
    )


def test_words_call_nothing_a_lift_that_may_be_chance():
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.0)}, seeds=3)
    line = sentences(study, compare(study), [])[0]
    assert line.startswith(
        "Against FedAvg, qffl changes accuracy neither of the worst 10 % nor on average"
        " significantly: worst 10 % of clients "
    )
    assert "-0.0" not in line


def test_words_tell_of_rounds_in_which_nobody_answered():
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.0)}, seeds=1)
    study.trials["qffl", study.seeds[0]].history_columns["answered"] = np.array(
        [4.0, 0.0, 0.0, 3.0]
    )
    assert (
        sentences(study, compare(study), [])[0]
        == "In 2 of the 4 rounds of qffl no client's reply counted: nothing was learned in them."
    )


def test_words_warn_of_clients_with_few_samples():
    study = make_study({"fedavg": (0.80, 0.0), "qffl": (0.70, 1.0)}, seeds=5, clients=20, samples=8)
    lines = sentences(study, compare(study), ledger(study))
    assert (
        "Mind that clients with fewer than 10 test samples are among the worst 10 %: client "
        in lines[0]
    )
    assert (
        "No client has 10 test samples or more: too few to say whom FedAvg serves worst." in lines
    )
    assert "Of the 0 of 20 clients" not in " ".join(lines)


def test_words_name_groups_that_pay():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.55, 0.0)}, seeds=3, clients=10, samples=200
    )
    lines = sentences(study, compare(study), ledger(study))
    line = next(
        line for line in lines if line.startswith("Against FedAvg, significantly, with qffl: ")
    )
    assert "; of 2 groups 0 gain and 2 lose, " in line
    assert "north (-" in line
    assert "south (-" in line


def test_words_about_errors_speak_of_errors():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.60, 0.0)},
        seeds=5,
        clients=10,
        samples=400,
        regression=True,
    )
    line = sentences(study, compare(study), [])[0]
    ends = re.search(r"raises mean error by [\d.]+ \[([+-][\d.]+), ([+-][\d.]+)\]", line)
    assert ends is not None
    assert 0 < float(ends[1]) < float(ends[2])


def test_dealt_data_are_spoken_of_with_one_seed():
    study = make_study(same_data=False)
    line = next(
        line
        for line in sentences(study, compare(study), [])
        if line.startswith("FedAvg serves client")
    )
    worst = int(np.argmin(study.merits("fedavg", 0)))
    assert f"client {worst} worst" in line


def test_seeds_need_two_of_them():
    with pytest.raises(ValueError, match="at least two"):
        compare(make_study(seeds=1), over="seeds")


def test_tables_hold_all_numbers():
    findings = analyse(STUDY)
    found = findings.tables()
    assert set(found) == {"comparison", "differences", "ledger", "gaps", "clients"}
    assert len(found["clients"]) == 3 * 4 * 12
    assert len(found["comparison"]) == 3 * len(STATISTICS)
    assert len(found["ledger"]) == len(findings.entries)


def test_the_reference_stands_first_and_training_alone_last():
    study = make_study({"localonly": (0.7, 0.0), "afl": (0.7, 0.0), "fedavg": (0.7, 0.0)})
    assert analyse(study).study.labels == ("fedavg", "afl", "localonly")
