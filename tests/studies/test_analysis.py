"""What a study says: by hand, against NumPy and SciPy, and in words."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.uncertainty import holm
from evenhand.studies.analysis.comparison import columns, compare
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.ledger import ledger
from evenhand.studies.analysis.statistics import STATISTICS, front, statistics
from evenhand.studies.findings import analyse
from tests.support.studies import FIVE, make_study

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


def test_rows_over_seeds_alone_are_students():
    found = compare(STUDY, over="seeds")
    # a tenth of twelve clients is one
    values = [np.sort(STUDY.merits("qffl", seed))[0] for seed in STUDY.seeds]
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    row = found.rows["qffl"]["worst10"]
    assert found.over == "seeds"
    assert [row.value, row.low, row.high] == pytest.approx(
        [np.mean(values), np.mean(values) - half, np.mean(values) + half]
    )


def test_by_default_rows_are_over_seeds_and_samples():
    found, of_samples = (compare(STUDY, over=over, draws=400) for over in ("auto", "samples"))
    assert found.over == "seeds+samples"
    for label in STUDY.labels:
        merits = np.array([STUDY.merits(label, seed) for seed in STUDY.seeds])
        by_seed = {"mean": merits.mean(1), "min": merits.min(1), "std": merits.std(1)}
        for name, values in by_seed.items():
            row, one = (each.rows[label][name] for each in (found, of_samples))
            error = (one.high - one.low) / 2 / stats.norm.ppf(0.975)
            between = values.std(ddof=1) / 2
            whole = error**2 + between**2
            freedom = 3 / (between**2 / whole)
            half = stats.t.ppf(0.975, freedom) * math.sqrt(whole)
            middle = (one.low + one.high) / 2
            assert row.value == pytest.approx(one.value) == pytest.approx(values.mean())
            assert [row.low, row.high] == pytest.approx([middle - half, middle + half], rel=1e-6)
            assert found.estimates[label][name] == pytest.approx(middle)


def with_the_models_of_one_seed(study):
    """The same study, in which every seed came to the same predictions."""
    first = study.seeds[0]
    trials = {
        (label, seed): replace(study.trials[label, first], seed=seed)
        for label, seed in study.trials
    }
    return replace(study, trials=trials)


def test_where_seeds_do_not_differ_the_interval_is_that_of_one_training():
    study = with_the_models_of_one_seed(make_study(seeds=4, clients=20, samples=50))
    one = replace(study, trials={key: trial for key, trial in study.trials.items() if key[1] == 0})
    several, alone = compare(study, draws=400), compare(one, draws=400)
    assert (several.over, alone.over) == ("seeds+samples", "samples")
    for label in study.labels:
        for name in ("mean", "pooled", "worst10", "min"):
            a, b = (found.rows[label][name] for found in (several, alone))
            assert a.value == pytest.approx(b.value)
            assert [a.low, a.high] == pytest.approx([b.low, b.high], abs=5e-4)
            assert a.low < a.high


def test_no_interval_has_no_width_and_no_p_is_0():
    study = with_the_models_of_one_seed(make_study(seeds=3, clients=4, samples=10))
    same = {
        key: replace(study.trials["fedavg", key[1]], method=trial.method, certificate=None)
        for key, trial in study.trials.items()
    }
    study = replace(study, trials=same)
    bare = replace(study, trials={key: replace(trial, values=None) for key, trial in same.items()})
    dealt = replace(study, same_data=False)
    whole = [
        compare(study, over=over, draws=50)
        for over in ("auto", "seeds", "samples", "clients", "both")
    ]
    for found in (
        *whole,
        compare(bare),
        compare(dealt, draws=50),
        compare(replace(bare, same_data=False)),
    ):
        for label in ("qffl", "afl"):
            for name in ("mean", "pooled", "worst10", "min", "std"):
                difference = found.differences[label][name]
                if math.isnan(difference.p):  # no worst of very many clients
                    continue
                assert difference.interval.low < 0 < difference.interval.high, (found.over, name)
                assert difference.p == pytest.approx(1)
                assert not difference.better
                assert not difference.worse
                row = found.rows[label][name]
                assert row.low < row.high, (found.over, name)


def test_one_sample_of_all_bounds_the_error_of_seeds_that_agree():
    study = with_the_models_of_one_seed(make_study(seeds=3, clients=4, samples=10))
    row = compare(study, over="seeds").rows["fedavg"]["mean"]
    assert row.high - row.value == pytest.approx(stats.t.ppf(0.975, 2) / 40)
    row = compare(study, over="seeds").rows["fedavg"]["min"]
    assert row.high - row.value == pytest.approx(stats.t.ppf(0.975, 2) / 10)


def test_differences_are_paired_over_seeds():
    found = compare(STUDY, over="seeds")
    new, old = (
        [STUDY.merits(label, seed).mean() for seed in STUDY.seeds] for label in ("afl", "fedavg")
    )
    expected = stats.ttest_rel(new, old)
    difference = found.differences["afl"]["mean"]
    assert difference.interval.value == pytest.approx(np.mean(new) - np.mean(old))
    assert difference.p == pytest.approx(expected.pvalue)
    # two methods are compared with FedAvg
    ends = expected.confidence_interval(0.975)
    assert [difference.interval.low, difference.interval.high] == pytest.approx([*ends])
    assert set(found.differences) == {"qffl", "afl"}


@pytest.mark.parametrize("over", ["auto", "seeds", "samples", "clients"])
def test_a_difference_is_significant_exactly_where_its_interval_excludes_0(over):
    seen = set()
    for draw in range(3):
        study = make_study(FIVE, seeds=3, clients=20, samples=60, draw=draw)
        found = compare(study, over=over, draws=100)
        for row in found.differences.values():
            for one in row.values():
                if math.isnan(one.p):
                    continue
                excluded = one.interval.low > 0 or one.interval.high < 0
                assert excluded == (one.better or one.worse) == (one.adjusted < 0.05)
                assert one.adjusted == pytest.approx(min(1, 4 * one.p))
                seen.add(excluded)
        for name, label in found.best.items():
            if label != "fedavg":
                assert found.differences[label][name].better
    assert seen == {True, False}


def test_dealt_data_have_intervals_over_splits_corrected_for_what_they_share():
    study = make_study(same_data=False, seeds=4, samples=400)
    found = compare(study, draws=100)
    values = np.array([study.merits("qffl", seed).mean() for seed in study.seeds])
    # four training samples for each test sample
    half = stats.t.ppf(0.975, 3) * values.std(ddof=1) * math.sqrt(1 / 4 + 1 / 4)
    row = found.rows["qffl"]["mean"]
    assert found.over == "splits"
    assert row.value == pytest.approx(values.mean())
    assert (row.high - row.low) / 2 == pytest.approx(half)
    with pytest.raises(ValueError, match='each seed splits differently; use over="seeds'):
        compare(STUDY, over="splits")


def test_of_fewer_than_twenty_clients_the_worst_tenth_and_the_worst_are_one_column():
    few, many = (columns(make_study(clients=n)) for n in (19, 20))
    assert few == {"mean": "mean", "min": "worst client", "max": "best client", "std": "std"}
    assert list(many) == ["mean", "worst10", "best10", "min", "std"]
    found = compare(make_study(clients=19), draws=50).rows["qffl"]
    assert found["worst10"] == found["min"]
    assert found["best10"] == found["max"]


def test_what_is_seen_and_what_is_estimated_differ_where_the_worst_are_unlucky():
    study = make_study({"fedavg": (0.8, 1.0)}, seeds=2, clients=100, samples=10)
    found = compare(study, draws=400)
    row, estimate = found.rows["fedavg"]["worst10"], found.estimates["fedavg"]["worst10"]
    assert row.value < row.low < estimate < row.high
    assert estimate == pytest.approx((row.low + row.high) / 2)


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
    found = compare(study, draws=50)
    same, other = (found.differences[label]["mean"].interval for label in ("qffl", "afl"))
    assert (same.value, found.differences["qffl"]["mean"].p) == (0, pytest.approx(1))
    assert -same.low == same.high < 0.1 * (other.high - other.low)


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


def test_gaps_are_those_of_mean_counts():
    from evenhand.metrics import parity

    found = gaps(STUDY)
    mean = np.mean([STUDY.trials["qffl", s].counts.by_group for s in STUDY.seeds], 0)
    assert found["qffl"]["accuracy parity"].value == pytest.approx(
        float(parity.accuracy_parity(mean))
    )
    assert gaps(make_study(groups=())) == {}


def test_gaps_of_teams_compare_the_clients_of_each():
    found = gaps(STUDY, by="team")["fedavg"]["accuracy parity"].value
    by_team = np.mean([STUDY.merits("fedavg", seed, by="team") for seed in STUDY.seeds], 0)
    assert found == pytest.approx(np.ptp(by_team))


def test_front_marks_what_another_method_beats_in_both():
    study = make_study({"fedavg": (0.9, 0.0), "qffl": (0.5, 0.0), "afl": (0.80, 1.0)}, samples=400)
    points = {point.label: point for point in front(study)}
    assert points["qffl"].dominated
    assert not points["fedavg"].dominated
    assert not points["afl"].dominated
    by_spread = {point.label: point for point in front(study, "std")}
    assert not by_spread["afl"].dominated


def test_seeds_need_two_of_them():
    with pytest.raises(ValueError, match="at least two"):
        compare(make_study(seeds=1), over="seeds")


def test_tables_hold_all_numbers():
    findings = analyse(STUDY)
    found = findings.tables()
    names = {"comparison", "differences", "ledger", "gaps", "local_gaps", "clients"}
    assert set(found) == names
    assert len(found["clients"]) == 3 * 4 * 12
    assert len(found["comparison"]) == 3 * len(STATISTICS)
    assert len(found["ledger"]) == len(findings.entries)


def test_the_reference_stands_first_and_training_alone_last():
    study = make_study({"localonly": (0.7, 0.0), "afl": (0.7, 0.0), "fedavg": (0.7, 0.0)})
    assert analyse(study).study.labels == ("fedavg", "afl", "localonly")
