"""Every sentence that can be printed: when it is said, its numbers and its sign."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.collective import detectable, together
from evenhand.studies.analysis.convergence import trend
from evenhand.studies.analysis.ledger import ledger
from evenhand.studies.findings import analyse
from tests.support.studies import make_study, study_of


def flipped(right, client, wrong):
    """Right predictions of label ``right``, but for the first ``wrong[i]`` samples of client i."""
    found = np.array(right)
    for place, count in enumerate(wrong):
        mine = np.flatnonzero(client == place)[:count]
        found[mine] = 1 - found[mine]
    return found


def clients_of(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def simple(wrong, sizes=(100, 100, 100, 100), seeds=1, **options):
    """A study in which each client has so many wrong predictions with each method."""
    client = clients_of(sizes)
    label = np.arange(len(client)) % 2
    predictions = {name: [flipped(label, client, counts)] * seeds for name, counts in wrong.items()}
    return study_of(predictions, label, client, **options)


def answer_of(study, **options):
    return analyse(study, **options).answer


def test_the_answer_is_at_most_three_sentences_and_a_command():
    found = answer_of(make_study({"fedavg": (0.8, 0), "qffl": (0.7, 0), "localonly": (0.9, 0)}))
    assert 1 <= len(found.sentences) <= 3
    assert found.lines()[-1] == f"Next: {found.command}"


# --- is somebody harmed?


def test_a_client_that_loses_by_joining_is_named_with_its_loss():
    study = simple({"fedavg": (40, 10, 10, 10), "localonly": (5, 10, 10, 10)})
    entry = next(e for e in ledger(study) if e.against == "localonly" and e.name == "client 0")
    low, high = (100 * end for end in entry.gain[1:])
    assert entry.gain.value == pytest.approx(-0.35)
    line = next(line for line in answer_of(study).sentences if "client 0" in line)
    assert line == (
        f"FedAvg lowers the accuracy of client 0 by 35.0 points [{-high:.1f}, {-low:.1f}] compared"
        " with local-only training."
    )


def test_several_are_counted_and_the_worst_is_named():
    study = simple({"fedavg": (40, 50, 10, 10), "localonly": (5, 5, 10, 10)})
    text = " ".join(answer_of(study).sentences)
    assert (
        "FedAvg harms 2 of 4 clients compared with local-only training, most of all client 1 (-45.0"
        " points [" in text
    )


def test_where_nobody_is_shown_to_lose_it_says_what_would_have_shown():
    study = simple({"fedavg": (10, 10, 11, 10), "localonly": (11, 9, 10, 10)})
    rows = [e for e in ledger(study) if e.by == "client" and e.method == "fedavg"]
    errors = [(e.gain.high - e.gain.low) / 2 / stats.norm.ppf(0.975) for e in rows]
    # four tests at once, found four times in five
    by_hand = np.median(errors) * (stats.norm.ppf(1 - 0.05 / 8) + stats.norm.ppf(0.8))
    assert detectable(rows, 0.95) == pytest.approx(by_hand)
    assert answer_of(study).sentences[0] == (
        "No client does significantly worse with FedAvg than with local-only training (a loss of"
        f" {100 * by_hand:.1f} points at a typical client would have been detected)."
    )


def test_the_detectable_loss_is_found_four_times_in_five():
    """By simulation: one of five clients loses exactly that much."""
    rng, found, size = np.random.default_rng(0), 0, 200
    client = clients_of((size,) * 5)
    label = np.zeros(len(client), np.int64)
    noise = simple({"fedavg": (20,) * 5, "localonly": (10,) * 5}, (size,) * 5)
    rows = [e for e in ledger(noise) if e.by == "client" and e.against == "localonly"]
    loss = detectable(rows, 0.95)
    trials = 150
    for _ in range(trials):
        old = (rng.random(len(client)) < 0.1).astype(int)
        worse = (client == 0) & (rng.random(len(client)) < loss / 0.9)
        new = np.where(worse, 1, old)
        entries = ledger(study_of({"fedavg": [new], "localonly": [old]}, label, client))
        found += any(e.name == "client 0" and e.verdict == "harmed" for e in entries)
    assert 0.65 < found / trials < 0.97


def test_many_small_clients_are_judged_together():
    # 40 clients of 8 samples: 30 lose one sample, 4 gain one; none shows it by itself
    base, sizes = np.full(40, 2), (8,) * 40
    joined = base + np.r_[np.ones(30, int), -np.ones(4, int), np.zeros(6, int)]
    study = simple({"fedavg": joined, "localonly": base}, sizes)
    text = " ".join(answer_of(study, least=5).sentences)
    assert (
        "Of the 34 clients whose accuracy differs, 30 do worse with FedAvg than with local-only"
        " training (mean change -8.1 points [" in text
    )
    assert "though no single client has enough samples for a significant loss" in text
    assert "No client does significantly worse" not in text


def test_together_is_a_sign_test_without_those_that_stay():
    study = simple({"fedavg": (5, 5, 5, 5), "qffl": (7, 8, 9, 5)})
    rows = [e for e in ledger(study) if e.by == "client" and e.method == "qffl"]
    found = together(rows, Interval(0, 0, 0))
    assert (found.gain, found.lose, found.same, found.changed) == (0, 3, 1, 3)
    assert found.p == pytest.approx(2 * 0.5**3)


def test_clients_that_lean_to_one_side_are_told_of_with_a_method():
    base = np.full(40, 2)
    study = simple(
        {"fedavg": base, "qffl": base + np.r_[np.ones(20, int), np.zeros(20, int)]}, (8,) * 40
    )
    found = analyse(study, least=5)
    line = next(line for line in found.sentences if "sign test" in line)
    assert line.startswith(
        "All 20 clients whose accuracy changes with qffl do worse than with FedAvg (sign test, p <"
        " 0.001); the mean over all clients changes by -6.2 points ["
    )
    assert "and is worse for all 20 clients whose accuracy changes" in " ".join(
        found.answer.sentences
    )


def test_too_few_samples_to_judge_anyone_is_said():
    study = simple({"fedavg": (1, 1), "localonly": (1, 2)}, (6, 6))
    assert answer_of(study).sentences[0] == (
        "No client has the 10 test samples needed to test for harm."
    )


def test_without_local_training_the_worst_client_is_named():
    study = simple({"fedavg": (40, 10, 20, 5)})
    assert answer_of(study).sentences[0] == (
        "FedAvg serves client 0 worst (accuracy 60.0 % on 100 test samples) and client 3 best"
        " (95.0 %); compare with local-only training to see whether anyone is harmed."
    )


def test_clients_that_are_served_alike_are_not_called_worst_and_best():
    study = simple({"fedavg": (10, 10)}, (100, 100))
    assert answer_of(study).sentences[0] == (
        "FedAvg serves all clients equally well (accuracy 90.0 %)."
    )


# --- groups


def grouped(cells, **options):
    """One client; ``cells``: by group, by label, (samples, wrong) of FedAvg."""
    label, group, predicted = [], [], []
    for place, by_label in enumerate(cells):
        for code, (samples, wrong) in enumerate(by_label):
            label += [code] * samples
            group += [place] * samples
            predicted += [1 - code] * wrong + [code] * (samples - wrong)
    client = np.zeros(len(label), np.int64)
    names = ("north", "south")
    return study_of({"fedavg": [np.array(predicted)]}, label, client, group, names, **options)


def test_the_group_whose_cases_are_missed_is_named_and_accuracy_beside_it():
    # north: 1000 samples, 500 positive, 150 missed; south: 1000, 100 positive, 60 missed
    study = grouped([[(500, 100), (500, 150)], [(900, 30), (100, 60)]])
    view = analyse(study).groups["group"]["fedavg"]
    low, high = (100 * end for end in view.gaps["equal opportunity"].interval[1:])
    assert answer_of(study).sentences[0] == (
        'FedAvg finds 40 % (40 of 100) of the "yes" cases in the south group but 70 % (350 of 500)'
        f" in the north group, a gap of 30 points [{low:.0f}, {high:.0f}], although accuracy is"
        " lowest for the north group."
    )


def with_missed(north, south):
    """Predictions for 500 positive and 500 negative samples of each group, with missed cases."""
    missed = [np.repeat([0, 1], [count, 500 - count]) for count in (north, south)]
    negatives = np.zeros(500, int)
    return np.concatenate([negatives, missed[0], negatives, missed[1]])


def test_methods_with_a_clearly_smaller_gap_are_named_beside_it_with_theirs():
    label, group = np.tile(np.repeat([0, 1], 500), 2), np.repeat([0, 1], 1000)
    predictions = {  # gaps of 30, 2, 10 and 27 points
        "fedavg": [with_missed(50, 200)],
        "equal": [with_missed(100, 110)],
        "better": [with_missed(100, 150)],
        "alike": [with_missed(50, 185)],
    }
    names = ("north", "south")
    study = study_of(predictions, label, np.zeros(2000, np.int64), group, names)
    views = analyse(study).groups["group"]
    shown = {}
    for name in predictions:
        value, low, high = (100 * end for end in views[name].gaps["equal opportunity"].interval)
        shown[name] = f"{value:.0f} [{low:.0f}, {high:.0f}]"
    line = answer_of(study).sentences[0]
    assert f"({shown['equal']} with equal, {shown['better']} with better)" in line
    assert "alike" not in line  # 27 lies within the interval of 30


def test_the_short_output_has_a_table_of_gaps_where_there_is_a_positive_label():
    study = grouped([[(500, 100), (500, 150)], [(900, 30), (100, 60)]])
    text = repr(analyse(study))
    assert "Largest gaps between groups in the rates of label yes, points" in text
    # selected 450 of 1000 and 70 of 1000; found 350 of 500 and 40 of 100; wrongly 100 of 500 and
    # 30 of 900
    row = next(line for line in text.splitlines() if "38.0" in line)
    assert row.split()[-3:] == ["38.0", "30.0", "16.7"]
    few = repr(analyse(grouped([[(3, 1), (3, 1)], [(3, 1), (3, 1)]])))
    assert "Largest gaps" not in few


def test_false_alarms_are_told_of_where_cases_are_found_alike():
    study = grouped([[(500, 150), (500, 100)], [(500, 25), (500, 100)]])
    line = answer_of(study).sentences[0]
    assert line.startswith(
        'FedAvg wrongly predicts "yes" for 30 % (150 of 500) of the other cases in the north group'
        " but only 5 % (25 of 500) in the south group, a gap of 25 points ["
    )
    assert "although" not in line  # accuracy is lowest for north, too


def test_groups_that_are_treated_alike_are_said_to_show_no_gap():
    study = grouped([[(100, 10), (100, 10)], [(100, 10), (100, 11)]])
    most = max(
        gap.interval.high
        for kind, gap in analyse(study).groups["group"]["fedavg"].gaps.items()
        if kind in ("equal opportunity", "false-positive parity", "accuracy parity")
    )
    assert answer_of(study).sentences[0] == (
        f"FedAvg shows no significant gap between groups (gaps of up to {100 * most:.0f} points"
        " cannot be ruled out)."
    )


def test_of_many_labels_groups_are_judged_by_accuracy():
    label = np.tile(np.arange(3), 200)
    group = np.repeat([0, 1], 300)
    wrong = (np.arange(600) % 10 < 4) & (group == 1)
    predicted = np.where(wrong, (label + 1) % 3, label)
    study = study_of(
        {"fedavg": [predicted]},
        label,
        np.zeros(600, np.int64),
        group,
        ("north", "south"),
        ("a", "b", "c"),
    )
    assert (
        answer_of(study)
        .sentences[0]
        .startswith(
            "FedAvg is less accurate for the south group than for the north group, by 40 points ["
        )
    )


def test_a_group_that_loses_by_joining_is_named_where_no_client_does():
    """Twenty clients of 40 samples: the south, half of each, gets 4 more wrong in every client, and
    the north 4 fewer."""
    client = clients_of((40,) * 20)
    group = np.arange(800) % 2
    place = np.arange(800) % 40 // 2  # among those of its group
    label = np.arange(800) // 2 % 2
    alone = np.where(place < 5, 1 - label, label)
    joined = np.where(place < np.where(group == 1, 9, 1), 1 - label, label)
    study = study_of(
        {"fedavg": [joined], "localonly": [alone]}, label, client, group, ("north", "south")
    )
    entry = next(
        e
        for e in ledger(study)
        if e.by == "group" and e.against == "localonly" and e.gain.value < 0
    )
    low, high = (100 * end for end in entry.gain[1:])
    assert not [e for e in ledger(study) if e.by == "client" and e.verdict == "harmed"]
    text = " ".join(answer_of(study).sentences)
    assert (
        f"; FedAvg lowers the accuracy of the south group by 20.0 points [{-high:.1f}, {-low:.1f}]"
        " compared with local-only training;" in text
    )


def test_a_gap_is_shown_at_the_level_that_was_asked_for():
    """A gap in recall with p between 0.01 / 3 and 0.05 / 3."""
    study = grouped([[(500, 50), (200, 40)], [(500, 50), (200, 65)]])
    gap = analyse(study).groups["group"]["fedavg"].gaps["equal opportunity"]
    assert 0.01 / 3 < gap.p < 0.05 / 3
    assert 'of the "yes" cases in the south group' in answer_of(study).sentences[0]
    assert "no significant gap between groups" in answer_of(study, level=0.99).sentences[0]


# --- which method, what it costs


def test_a_method_that_costs_nobody_is_to_be_taken():
    study = simple({"fedavg": (200, 40, 40, 40), "qffl": (60, 40, 40, 40)}, (400,) * 4, seeds=2)
    found = analyse(study)
    low, high = (100 * end for end in found.comparison.differences["qffl"]["min"].interval[1:])
    assert found.answer.sentences[1] == (
        f"Use qffl: it raises the accuracy of the worst client by 35.0 points [{low:.1f},"
        f" {high:.1f}], with no significant loss for anyone."
    )


def test_one_training_is_said_to_be_one():
    study = simple({"fedavg": (200, 40, 40, 40), "qffl": (60, 40, 40, 40)}, (400,) * 4)
    assert (
        answer_of(study)
        .sentences[1]
        .startswith("Use qffl (from one seed; others may differ): it raises ")
    )


def test_a_method_that_costs_somebody_is_a_trade():
    study = simple({"fedavg": (200, 40, 40, 40), "afl": (60, 40, 40, 120)}, (400,) * 4, seeds=2)
    line = answer_of(study).sentences[1]
    assert line.startswith(
        "afl is a trade-off: it raises the accuracy of the worst client by 20.0 points ["
    )
    assert ", but lowers the accuracy of client 3 by 20.0 points [1" in line
    assert line.endswith("; keep FedAvg unless you put the worst-served first.")


def test_where_no_method_helps_fedavg_is_kept():
    study = simple({"fedavg": (40, 40, 40, 40), "qffl": (41, 40, 39, 40)}, (400,) * 4, seeds=2)
    found = analyse(study)
    most = 100 * found.comparison.differences["qffl"]["min"].interval.high
    assert found.answer.sentences[1] == (
        "Keep FedAvg: no fair method is significantly better for the worst client (gains of up to"
        f" {most:.1f} points cannot be ruled out)."
    )


def test_where_no_method_helps_the_group_treated_worst_it_is_named():
    label = np.r_[np.zeros(500, int), np.ones(500, int), np.zeros(900, int), np.ones(100, int)]
    group = np.repeat([0, 1], 1000)
    old = label.copy()
    old[500:600], old[1900:1960] = 0, 0
    study = study_of(
        {"fedavg": [old], "afl": [old.copy()]}, label, np.zeros(2000, int), group, ("n", "s")
    )
    assert "no fair method is significantly better for the worst client or the s group" in " ".join(
        answer_of(study).sentences
    )


def test_a_method_that_costs_the_mean_is_mentioned_with_its_cost():
    study = simple({"fedavg": (40, 40, 40, 40), "afl": (80, 80, 80, 80)}, (400,) * 4, seeds=2)
    found = analyse(study)
    low, high = sorted(
        -100 * end for end in found.comparison.differences["afl"]["mean"].interval[1:]
    )
    text = " ".join(found.answer.sentences)
    assert f"afl lowers mean accuracy by 10.0 points [{low:.1f}, {high:.1f}]" in text
    assert "and lowers the accuracy of the worst client by 10.0 points [" in text


def test_of_many_methods_that_cost_the_largest_costs_are_told_in_full():
    wrong = {"qffl": (60,) * 4, "afl": (120,) * 4, "propfair": (62,) * 4, "term": (90,) * 4}
    study = simple({"fedavg": (40,) * 4, **wrong}, (400,) * 4, seeds=2)
    line = answer_of(study).sentences[-1]
    assert line.startswith("afl lowers mean accuracy by 20.0 points [")
    assert "; term lowers mean accuracy by 12.5 points [" in line
    assert line.endswith("; qffl and propfair have smaller costs.") or line.endswith(
        "; propfair and qffl have smaller costs."
    )


def test_a_loss_of_the_mean_that_may_be_chance_is_mentioned_too():
    study = simple({"fedavg": (5, 5), "afl": (10, 3)}, (40, 40), seeds=2)
    interval = analyse(study).comparison.differences["afl"]["mean"].interval
    assert interval.low < 0 < interval.high
    assert answer_of(study).sentences[-1].startswith("afl may be worse on average (-3.7 points [")


def test_a_group_that_a_method_harms_by_its_rate_is_mentioned():
    """Accuracy of both groups stays; cases of the south are missed more often."""
    label = np.r_[np.zeros(600, int), np.ones(400, int), np.zeros(600, int), np.ones(400, int)]
    group = np.repeat([0, 1], 1000)
    old = label.copy()
    old[600:650], old[1600:1700] = 0, 0
    new = old.copy()
    new[1700:1800] = 0  # a quarter of the south's cases more
    old[1000:1100] = 1  # and as many false alarms fewer
    study = study_of(
        {"fedavg": [old], "afl": [new]}, label, np.zeros(2000, int), group, ("north", "south")
    )
    found = analyse(study)
    assert study.merits("afl", 0, "group").tolist() == study.merits("fedavg", 0, "group").tolist()
    assert "afl lowers the recall of the south group by 25.0 points [" in " ".join(
        found.answer.sentences
    )


def test_a_method_is_praised_for_the_group_whose_cases_were_missed():
    """FedAvg is least accurate in the north, but misses cases in the south."""
    label = np.r_[np.zeros(500, int), np.ones(500, int), np.zeros(900, int), np.ones(100, int)]
    group = np.repeat([0, 1], 1000)
    old = label.copy()
    old[:100], old[500:650], old[1900:1960] = 1, 0, 0
    new = old.copy()
    new[1900:1945] = 1
    study = study_of(
        {"fedavg": [old], "fedminmax": [new]}, label, np.zeros(2000, int), group, ("n", "s")
    )
    line = answer_of(study).sentences[1]
    assert line.startswith("Use fedminmax (from one seed; others may differ): it raises the ")
    assert "recall of the s group by 45.0 points [" in line


# --- before anything is believed


def history(loss, mean=None):
    rounds = np.arange(1, len(loss) + 1) * 10
    return {"round": rounds, "loss": np.array(loss), "mean": np.array(mean or [0.8] * len(loss))}


FALLING = [2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.62, 0.55]
SETTLED = [2.0, 1.0, 0.6, 0.55, 0.52, 0.51, 0.505, 0.502, 0.5]


def test_a_run_that_was_still_improving_says_so_first_with_the_command():
    study = simple(
        {"fedavg": (10,) * 4, "qffl": (11,) * 4},
        history={"fedavg": history(FALLING), "qffl": history(SETTLED)},
    )
    found = answer_of(study)
    assert found.sentences[0] == (
        "FedAvg was still improving when training stopped after 90 rounds, so the ranking may"
        " change: train longer or tune the step size first."
    )
    assert found.command == "evenhand compare runs/exact/spec.toml --tune"
    assert found.sentences[2].startswith("So far, keep FedAvg")


def test_a_settled_run_says_nothing_of_it():
    settled = {name: history(SETTLED) for name in ("fedavg", "qffl")}
    found = answer_of(simple({"fedavg": (10,) * 4, "qffl": (11,) * 4}, history=settled))
    assert not any("improving" in line for line in found.sentences)
    assert found.command == "evenhand compare runs/exact/spec.toml --seeds 5"


def test_the_trend_is_that_of_the_last_third():
    study = simple({"fedavg": (10,) * 4}, history={"fedavg": history(FALLING)})
    found = trend(study, "fedavg")
    # a line through 60, 70, 80, 90: slope -0.00825 a round
    slope = np.polyfit([60, 70, 80, 90], [0.8, 0.7, 0.62, 0.55], 1)[0]
    assert found.loss == pytest.approx(30 * slope / 0.8)
    assert (found.mean, found.rounds) == (pytest.approx(0.0, abs=1e-12), 30)
    assert found.improving


@pytest.mark.parametrize(
    ("loss", "mean", "improving"),
    [
        (SETTLED, [0.8] * 9, False),
        ([*SETTLED[:5], 0.50, 0.50, 0.49, 0.49], [0.7] * 5 + [0.80, 0.81, 0.82, 0.83], True),
        ([*SETTLED[:5], 0.50, 0.51, 0.52, 0.53], [0.7] * 5 + [0.80, 0.81, 0.82, 0.83], False),
        ([*SETTLED[:5], 0.50, 0.49, 0.48, 0.46], [0.8] * 9, True),
    ],
)
def test_what_counts_as_improving(loss, mean, improving):
    study = simple({"fedavg": (10,) * 4}, history={"fedavg": history(loss, mean)})
    assert trend(study, "fedavg").improving is improving


def test_few_evaluations_show_no_trend():
    study = simple({"fedavg": (10,) * 4}, history={"fedavg": history(FALLING[:5])})
    assert trend(study, "fedavg") is None


def test_clients_that_are_better_off_alone_call_for_tuning():
    study = simple({"fedavg": (80,) * 4, "localonly": (40,) * 4}, (400,) * 4, seeds=2)
    found = analyse(study)
    low, high = (
        100 * end for end in found.comparison.differences["localonly"]["mean"].interval[1:]
    )
    assert found.answer.sentences[0] == (
        f"Local-only training beats FedAvg by 10.0 points [{low:.1f}, {high:.1f}] on average: tune"
        " FedAvg's step size before you conclude that joining does not pay off."
    )
    assert found.answer.command == "evenhand compare runs/exact/spec.toml --tune"


def test_after_tuning_more_rounds_are_the_next_step(tmp_path):
    (tmp_path / "tuning").mkdir()
    study = simple(
        {"fedavg": (80,) * 4, "localonly": (40,) * 4},
        (400,) * 4,
        seeds=2,
        history={"fedavg": history(FALLING), "localonly": history(SETTLED)},
    )
    found = analyse(replace(study, root=tmp_path))
    assert found.answer.sentences[0].endswith("so the ranking may change: train longer first.")
    assert found.answer.command == "evenhand compare runs/exact/spec.toml --rounds 180"
    alone = next(line for line in found.sentences if line.startswith("Local-only training beats"))
    assert alone.endswith(" on average, although both were tuned.")


def test_nobody_who_pays_is_left_out_for_a_caveat():
    settled = {name: history(SETTLED) for name in ("qffl", "afl")}
    study = simple(
        {"fedavg": (40,) * 4, "qffl": (40,) * 4, "afl": (80,) * 4},
        (400,) * 4,
        seeds=2,
        history={**settled, "fedavg": history(FALLING)},
    )
    found = answer_of(study)
    assert len(found.sentences) == 3
    assert found.sentences[2].startswith("So far, keep FedAvg: ")
    assert "; afl lowers mean accuracy by 10.0 points [" in found.sentences[2]


def test_a_method_without_effect_is_named():
    study = simple({"fedavg": (10, 20, 30, 5), "qffl": (10, 20, 30, 5), "afl": (9, 20, 30, 5)})
    found = analyse(study)
    assert (
        "qffl predicts exactly what FedAvg predicts for every test sample: these hyper-parameters"
        " have no effect here." in found.sentences
    )
    assert not any(line.startswith("afl predicts") for line in found.sentences)


def test_a_model_that_has_learned_nothing_is_said_to():
    # half of the labels are 1
    study = simple({"fedavg": (55, 55, 50, 50)}, guess=(1.0, 0.5))
    assert answer_of(study).sentences[0] == (
        "FedAvg is no better than always predicting the most frequent label (accuracy 50.0 %): tune"
        " it first."
    )
    learned = simple({"fedavg": (5, 5, 5, 5)}, guess=(1.0, 0.5))
    assert "Always predicting the most frequent label would reach a mean accuracy of 50.0 %." in (
        analyse(learned).sentences
    )


def test_numbers_of_training_data_come_with_a_warning():
    study = make_study({"fedavg": (0.8, 0)})
    study = replace(study, measure=replace(study.measure, part="training"))
    assert answer_of(study).sentences[0] == (
        "There are no test data: all metrics are computed on the training samples and look better"
        " than they are."
    )


def test_the_next_command_of_a_finished_comparison_is_the_page():
    settled = {name: history(SETTLED) for name in ("fedavg", "qffl")}
    study = simple({"fedavg": (10,) * 4, "qffl": (11,) * 4}, seeds=2, history=settled)
    assert answer_of(study).command == "evenhand report runs/exact"
    assert study.directories[0] == Path("runs/exact/seed-0")


# --- without FedAvg


def test_one_method_alone_is_told_of_with_its_numbers_and_how_to_compare_it():
    study = simple({"qffl": (40, 10, 10, 20)})
    mean, worst = (analyse(study).comparison.rows["qffl"][name] for name in ("mean", "min"))
    found = answer_of(study)
    assert found.sentences == (
        f"qffl reaches a mean accuracy of 80.0 % [{100 * mean.low:.1f}, {100 * mean.high:.1f}]"
        f" over 4 clients and of 60.0 % [{100 * worst.low:.1f}, {100 * worst.high:.1f}] for the"
        " worst client.",
        "Nothing was compared: train FedAvg on the same data to see who gains and who is harmed.",
    )
    assert found.command == "evenhand compare runs/exact/spec.toml --seeds 5"
    assert answer_of(simple({"qffl": (40,) * 4}, seeds=2)).command == (
        "evenhand compare runs/exact/spec.toml"
    )


def test_several_methods_without_fedavg_are_told_of_by_what_they_do_for_the_worst_served():
    wrong = {"afl": (30, 20), "qffl": (25, 25), "term": (60, 0), "propfair": (35, 1)}
    first, second = answer_of(simple(wrong, sizes=(100, 100))).sentences
    assert [part.split(" reaches")[0] for part in first.split("; ")] == ["qffl", "afl", "propfair"]
    assert second.startswith("No method was compared with FedAvg: train FedAvg on the same data")


def test_errors_are_told_of_with_the_smaller_end_first():
    first = answer_of(make_study({"qffl": (0.8, 0)}, regression=True)).sentences[0]
    found = re.search(r"reaches a mean .* of ([\d.]+) \[([\d.]+), ([\d.]+)\]", first)
    assert found is not None
    value, low, high = map(float, found.groups())
    assert 0 < low < value < high


def test_one_client_alone_is_no_worst_one():
    assert "worst" not in answer_of(simple({"qffl": (10,)}, sizes=(100,))).sentences[0]


# --- the details


def test_words_say_by_how_much_and_at_what_cost():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.70, 1.0)}, seeds=5, clients=20, samples=400
    )
    found = analyse(study)
    worst, mean = (
        found.comparison.differences["qffl"][name].interval for name in ("worst10", "mean")
    )
    line = next(line for line in found.sentences if line.startswith("Compared with FedAvg, qffl"))
    assert line == (
        "Compared with FedAvg, qffl raises the accuracy of the worst 10 % of clients by"
        f" {100 * worst.value:.1f} points [{100 * worst.low:.1f}, {100 * worst.high:.1f}] but lowers"
        f" mean accuracy by {-100 * mean.value:.1f} points [{-100 * mean.high:.1f},"
        f" {-100 * mean.low:.1f}]."
    )


def test_words_call_nothing_a_lift_that_may_be_chance():
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.0)}, seeds=3, clients=20)
    line = next(line for line in analyse(study).sentences if line.startswith("qffl shows"))
    assert line.startswith(
        "qffl shows no significant change in accuracy, either for the worst 10 % of clients ("
    )
    assert "-0.0 " not in line


def test_words_tell_of_rounds_in_which_nobody_answered():
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.0)}, seeds=1)
    study.trials["qffl", study.seeds[0]].history_columns["answered"] = np.array(
        [4.0, 0.0, 0.0, 3.0]
    )
    assert (
        "In 2 of its 4 rounds, qffl received no usable reply from any client, so these rounds"
        " changed nothing." in analyse(study).sentences
    )


def test_words_warn_of_clients_with_few_samples():
    study = make_study({"fedavg": (0.80, 0.0), "qffl": (0.70, 1.0)}, seeds=5, clients=20, samples=8)
    text = " ".join(analyse(study).sentences)
    assert "Some of the worst-served clients have fewer than 10 test samples: client " in text
    assert "No client has the 10 test samples needed to say which one FedAvg serves worst." in text
    assert "the 0 clients" not in text


def test_words_name_groups_that_pay():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.55, 0.0)}, seeds=3, clients=10, samples=200
    )
    line = next(line for line in analyse(study).sentences if "groups" in line)
    assert line.startswith("Compared with FedAvg, qffl is significantly worse for all 10 clients: ")
    assert "; it is significantly worse for both groups: " in line
    assert "north (-" in line
    assert "south (-" in line


def test_plus_is_better_also_for_errors():
    study = make_study(
        {"fedavg": (0.80, 0.0), "qffl": (0.60, 0.0)},
        seeds=5,
        clients=10,
        samples=400,
        regression=True,
    )
    found = analyse(study)
    mean = found.comparison.differences["qffl"]["mean"].interval
    assert mean.value < 0  # a merit: its error is larger
    text = " ".join(found.sentences)
    size, ends = -10 * mean.value, (-10 * mean.high, -10 * mean.low)
    assert f"raises mean error by {size:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]" in text
    assert "qffl is significantly worse for all 10 clients: client " in text
    lost = min(e.gain.value for e in found.entries if e.by == "client" and e.method == "qffl")
    assert f"({10 * lost:+.2f})" in text
    printed = io.StringIO()
    found.show(verbose=True, console=Console(file=printed, width=130))
    table = printed.getvalue()
    assert "how much smaller its error (RMSE) is" in " ".join(table.split())
    assert f"{10 * lost:+.2f}↓" in table


def test_dealt_data_are_spoken_of_with_one_seed():
    study = make_study(same_data=False)
    line = next(
        line for line in analyse(study).sentences if line.startswith("FedAvg serves client")
    )
    worst = int(np.argmin(study.merits("fedavg", 0)))
    assert f"client {worst} worst" in line


def test_alone_tells_who_gains_and_who_loses():
    study = simple({"fedavg": (40, 5, 10, 10), "localonly": (5, 40, 10, 10)})
    assert (
        "Compared with local-only training, FedAvg is significantly better for 1 of the 4 clients"
        " and worse for 1: client 0 (-35.0)." in analyse(study).sentences
    )
    alike = simple({"fedavg": (10,) * 4, "localonly": (11,) * 4})
    assert (
        "FedAvg is neither significantly better nor significantly worse than local-only training for"
        " any of the 4 clients." in analyse(alike).sentences
    )


@pytest.mark.parametrize(
    ("over", "seeds", "words"),
    [
        ("auto", 1, "cover the variation over test samples of these clients, for the models"),
        ("auto", 3, "over seeds (3 were run) and over test samples of these clients."),
        ("seeds", 3, "over seeds (3 were run, Student's t)."),
        ("clients", 3, "over clients like these."),
        ("both", 3, "over clients like these and over test samples."),
    ],
)
def test_the_last_sentence_says_what_intervals_are(over, seeds, words):
    line = analyse(make_study(seeds=seeds), over=over).sentences[-1]
    assert words in line
    assert "their arrows correct for testing all of them (Holm)" in line


def test_no_client_is_spoken_of_in_the_plural():
    study = simple({"fedavg": (3,), "qffl": (4,)}, (50,))
    text = repr(analyse(study))
    assert "1 clients" not in text
    assert "-0.0 " not in text


def test_an_end_near_zero_shows_its_sign():
    from evenhand.studies.analysis.writing import ends, size

    study = make_study()
    assert ends(study, Interval(-0.002, -0.003, -0.0004)) == "[-0.3, -0.04]"
    assert ends(study, Interval(0.0, -0.00001, 0.0)) == "[-0.01, +0.0]"
    assert size(study, Interval(-0.02, -0.03, -0.01)) == "2.0 points [1.0, 3.0]"
    assert size(study, Interval(0.02, -0.01, 0.05)) == "2.0 points [-1.0, +5.0]"


def test_where_only_local_training_helps_the_worst_client_the_answer_says_so():
    counts = {"fedavg": (300, 40, 40, 40), "qffl": (299, 40, 40, 40), "localonly": (60, 44, 44, 44)}
    line = " ".join(answer_of(simple(counts, (400,) * 4, seeds=2)).sentences)
    assert "No fair method is significantly better than FedAvg for the worst client (gains" in line
    assert ", but local-only training is: look for what sets the worst-served apart." in line
    assert "eep FedAvg" not in line


def test_a_model_that_answers_everybody_alike_is_not_said_to_close_a_gap():
    label, group = np.tile(np.repeat([0, 1], 500), 2), np.repeat([0, 1], 1000)
    predictions = {"fedavg": [with_missed(50, 200)], "never": [np.zeros(2000, int)]}
    names = ("north", "south")
    study = study_of(predictions, label, np.zeros(2000, np.int64), group, names)
    assert "never" not in answer_of(study).sentences[0]


def test_words_say_which_method_missed_its_bound_and_in_how_many_seeds():
    study = make_study({"fedavg": (0.8, 0.0), "qffl": (0.8, 0.0)}, seeds=2)
    for seed, ended in zip(study.seeds, (0.2, 0.05), strict=True):
        columns = study.trials["qffl", seed].history_columns
        columns["group_bound"], columns["final_gap"] = np.array([0.05]), np.array([ended])
    said = [line for line in analyse(study).sentences if "bound" in line]
    assert said == [
        "qffl: on the training data (in 1 of 2 seeds; the first), the gap between groups ended at"
        " 0.200, above its bound of 0.05; allow a larger one or train longer."
    ]
