"""What an audit says: pairs, ratios, gaps, weights, scores, and every sentence with its numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import evenhand as eh
from evenhand.metrics.largest_gap import critical
from evenhand.metrics.pairwise import difference, ratio
from evenhand.metrics.uncertainty import Interval, holm, wilson
from evenhand.studies.audits.shares import verdict
from evenhand.studies.audits.sweeping import steps
from evenhand.studies.audits.tables import name_of, number, signed
from evenhand.studies.audits.words import chances, counted, points, significant

Call = Callable[..., tuple[int, str, str]]


def cases(groups: dict[str, tuple[int, int, int, int]], **columns: object) -> pd.DataFrame:
    """A table from true positives, false negatives, false positives and true negatives."""
    parts = [
        pd.DataFrame(
            {
                "g": name,
                "y": np.repeat([1, 1, 0, 0], counts),
                "p": np.repeat([1, 0, 1, 0], counts),
                **columns,
            }
        )
        for name, counts in groups.items()
    ]
    return pd.concat(parts, ignore_index=True)


def audited(groups: dict[str, tuple[int, int, int, int]], **settings: object) -> eh.audit.Audit:
    return eh.audit(cases(groups), "y", "p", group="g", draws=50, **settings)


UNEQUAL = {"a": (80, 20, 10, 90), "b": (50, 50, 40, 60), "c": (70, 30, 12, 88)}


def test_every_rate_of_a_group_is_counted_by_hand() -> None:
    found = {
        row["rate"]: row
        for row in audited({"a": (30, 10, 5, 55), "b": (8, 12, 20, 60)}).rates()
        if row["name"] == "a"
    }
    expected = {
        "accuracy": (85, 100),
        "base rate": (40, 100),
        "selection rate": (35, 100),
        "true-positive rate": (30, 40),
        "false-negative rate": (10, 40),
        "false-positive rate": (5, 60),
        "precision": (30, 35),
        "false-discovery rate": (5, 35),
        "false-omission rate": (10, 65),
    }
    assert {rate: (row["hits"], row["of"]) for rate, row in found.items()} == expected
    for rate, (k, n) in expected.items():
        assert found[rate]["value"] == pytest.approx(k / n)
        ends = [float(end) for end in wilson(k, n)]
        assert [found[rate]["low"], found[rate]["high"]] == pytest.approx(ends)
    assert found["accuracy"]["label"] == ""
    assert found["precision"]["label"] == "1"


def test_pairs_are_newcombes_at_tukeys_value_with_fishers_test_and_holms_correction() -> None:
    judged = audited(UNEQUAL)
    rows = [row for row in judged.pairs if row["rate"] == "true-positive rate"]
    assert [(row["group"], row["against"]) for row in rows] == [("b", "a"), ("c", "a"), ("b", "c")]
    level = 1 - 2 * stats.norm.sf(critical(3, 0.95))
    for row, (k1, k2) in zip(rows, [(50, 80), (70, 80), (50, 70)], strict=True):
        apart, times = difference(k1, 100, k2, 100, level), ratio(k1, 100, k2, 100, level)
        assert [row[key] for key in ("difference", "low", "high")] == pytest.approx(list(apart))
        assert [row[key] for key in ("ratio", "ratio_low", "ratio_high")] == pytest.approx(
            list(times)
        )
        expected = stats.fisher_exact([[k1, 100 - k1], [k2, 100 - k2]])[1]
        assert row["p"] == pytest.approx(expected)
    assert [row["p_holm"] for row in rows] == pytest.approx(holm([row["p"] for row in rows]))
    # the interval of the largest gap is that of its pair
    gap = judged.gaps["equal opportunity"]
    assert (gap.low, gap.high) == ("b", "a")
    assert gap.interval.low == pytest.approx(-rows[0]["high"])
    assert gap.interval.high == pytest.approx(-rows[0]["low"])


def test_a_reference_is_compared_with_everyone_else_at_bonferronis_level() -> None:
    judged = audited(UNEQUAL, reference="c")
    rows = [row for row in judged.pairs if row["rate"] == "false-positive rate"]
    assert [(row["group"], row["against"]) for row in rows] == [("a", "c"), ("b", "c")]
    assert [rows[1][key] for key in ("difference", "low", "high")] == pytest.approx(
        list(difference(40, 100, 12, 100, 0.975))
    )
    assert [row["group"] for row in judged.ratios] == ["a", "b"]
    assert "relative to c (the reference, 41.0 %)" in str(judged)
    assert "relative to a" not in str(judged)
    assert "relative to b (the highest, 45.0 %)" in str(audited(UNEQUAL))


def test_a_reference_may_be_the_value_of_a_column_of_numbers() -> None:
    table = cases(UNEQUAL).assign(g=lambda frame: frame["g"].map({"a": 1, "b": 2, "c": 3}))
    judged = eh.audit(table, "y", "p", group="g", reference="2")
    assert judged.compared_with == "g=2"
    with pytest.raises(ValueError, match="unknown group '4'; choose from g=1, g=2, g=3"):
        eh.audit(table, "y", "p", group="g", reference="4")


def test_ratios_say_what_the_four_fifths_rule_can_say() -> None:
    assert verdict(Interval(0.62, 0.48, 0.79)) == "below 0.8"
    assert verdict(Interval(0.62, 0.48, 0.81)) == "below 0.8, not certain"
    assert verdict(Interval(0.9, 0.79, 1.1)) == "above 0.8, not certain"
    assert verdict(Interval(0.9, 0.8, 1.1)) == "0.8 or more"
    assert verdict(Interval(math.nan, 1.0, math.inf)) == "no ratio"


def test_gaps_leave_out_groups_by_the_denominator_of_the_rate() -> None:
    groups = {"a": (30, 10, 20, 40), "b": (10, 30, 20, 40), "c": (2, 3, 5, 90)}
    judged = audited(groups)
    assert judged.gaps["equal opportunity"].left_out == ("c",)
    assert judged.gaps["false-positive parity"].left_out == ()
    assert {row["group"] for row in judged.pairs if row["rate"] == "true-positive rate"} == {"b"}
    text = " ".join(str(judged).split())
    assert (
        "Excluded from equal opportunity, equalised odds, predictive parity, with fewer than 10"
        " samples in the denominator: c." in text
    )
    assert "2 of 5, few" in text
    tiny = " ".join(str(audited({**groups, "c": (1, 1, 1, 1)})).split())
    assert "Excluded from all gaps, with fewer than 10 samples in the denominator: c." in tiny


# ---- sentences ------------------------------------------------------------------------------------


def test_significant_gaps_name_the_groups_with_direction_counts_and_intervals() -> None:
    judged = audited(UNEQUAL)
    tpr, fpr, accuracy, selection = judged.sentences
    gaps = {row["rate"]: row for row in significant(judged) if row["against"] == "a"}
    low, high = (f"{-100 * gaps['true-positive rate'][end]:.1f}" for end in ("high", "low"))
    assert tpr == (
        'Samples with label "1" are predicted correctly less often for b than for a: 50.0 % [40.4,'
        " 59.6] (50 of 100) compared with 80.0 % [71.1, 86.7] (80 of 100), a gap of 30.0 points"
        f" [{low}, {high}]."
    )
    assert fpr.startswith(
        'Samples with label "0" are wrongly predicted as "1" more often for b than for a: 40.0 %'
        " [30.9, 49.8] (40 of 100) compared with 10.0 % [5.5, 17.4] (10 of 100), a gap of 30.0"
        " points ["
    )
    gap = judged.gaps["accuracy parity"].interval
    assert accuracy == (
        f"Accuracy is lowest for b (55.0 %) and highest for a (85.0 %), a gap of {points(gap)}."
    )
    assert selection.startswith(
        '"1" is predicted for 41.0 % [34.4, 47.9] (82 of 200) of c and 45.0 %'
    )
    assert selection.endswith("above 0.8, but not significantly.")


def test_accuracy_is_not_the_last_word_where_base_rates_differ() -> None:
    judged = audited({"a": (180, 20, 40, 160), "b": (20, 20, 10, 350)})
    sentence = judged.sentences[2] if len(judged.sentences) > 2 else ""
    assert judged.base_rates is not None
    assert (judged.base_rates.low, judged.base_rates.high) == ("b", "a")
    assert sentence.startswith(
        "Accuracy is lowest for a (85.0 %) and highest for b (92.5 %), a gap"
    )
    assert sentence.endswith(
        '; but base rates differ (10.0 % of b and 50.0 % of a have label "1"), so accuracy alone'
        " does not show who is served worse."
    )


def test_an_accuracy_gap_that_may_be_chance_is_called_so() -> None:
    sentence = audited({"a": (80, 20, 20, 80), "b": (79, 21, 21, 79)}).sentences[1]
    assert sentence.startswith("Accuracy is lowest for b (79.0 %) and highest for a (80.0 %)")
    assert sentence.endswith(", which is not significant.")


def test_gaps_that_are_not_found_say_what_would_have_been() -> None:
    judged = audited({"a": (8, 4, 2, 10), "b": (7, 5, 3, 9)})
    sentence = judged.sentences[0]
    wide = 2.8016 * math.sqrt(16 / 26 * 10 / 26 * 2 / 12)  # 15 of 24, and one more of each
    assert sentence.startswith(
        "No significant gap in the true-positive rate or false-positive rate: the true-positive rate"
        " is 58.3 % [32.0, 80.7] (7 of 12) for b and 66.7 % [39.1, 86.2] (8 of 12) for a (a"
        f" gap of about {100 * wide:.0f} points would have been detected with 80 % power); "
    )
    few = audited({"a": (8, 4, 2, 1), "b": (7, 5, 3, 2)}).sentences[0]
    assert few.endswith("fewer than two groups have the 10 samples a false-positive rate needs.")


def test_a_small_group_with_the_lowest_rate_is_not_blamed_for_what_larger_ones_show() -> None:
    judged = audited({"a": (700, 300, 50, 950), "b": (500, 500, 60, 940), "c": (4, 6, 5, 95)})
    assert judged.gaps["equal opportunity"].low == "c"
    assert "are predicted correctly less often for b than for a: 50.0 %" in judged.sentences[0]
    assert judged.sentences[0].endswith(
        "; the rate is even lower for c (40.0 %), but not significantly."
    )


@pytest.mark.parametrize(
    ("selected", "words"),
    [
        ((20, 90), "a ratio of 0.22"),
        ((78, 90), "above 0.8, but not significantly."),
        ((66, 90), "below 0.8, but not significantly."),
        ((880, 900), "which meets the four-fifths rule."),
        ((20, 90), "which fails the four-fifths rule if this is the favourable prediction."),
    ],
)
def test_selection_is_a_ratio_with_its_uncertainty(selected: tuple[int, int], words: str) -> None:
    total = 100 if max(selected) < 100 else 1000
    groups = {
        name: (k // 2, total // 2 - k // 2, k - k // 2, total - total // 2 - k + k // 2)
        for name, k in zip("ab", selected, strict=True)
    }
    (sentence,) = (one for one in audited(groups).sentences if " is predicted for " in one)
    assert words in sentence
    assert f"({selected[0]} of {total:,}) of a" in sentence


def test_the_reference_is_named_in_the_sentence_about_selection() -> None:
    sentence = audited(UNEQUAL, reference="c").sentences[-1]
    assert "of the reference c, a ratio of" in sentence


@pytest.mark.parametrize(("shares", "words"), [((0.6, 0.9), "more"), ((0.8, 0.82), "no more")])
def test_clients_that_differ_by_more_than_chance_are_said_to(
    shares: tuple[float, float], words: str
) -> None:
    right = [int(100 * share) for share in shares]
    table = pd.DataFrame(
        {
            "c": np.repeat(["north", "south"], 100),
            "y": 1,
            "p": np.concatenate([np.arange(100) < k for k in right]).astype(int),
        }
    )
    table.loc[[99, 199], "y"] = 0  # right, too
    table = pd.concat([table, pd.DataFrame({"c": ["tiny"], "y": [1], "p": [0]})])
    (sentence,) = eh.audit(table, "y", "p", client="c", draws=20).sentences
    k = [one + 1 for one in right]
    p = stats.chi2_contingency([k, [100 - one for one in k]], correction=False)[1]
    assert sentence.startswith(
        f"Across 2 clients (1 with fewer than 10 samples excluded), accuracy ranges from {k[0]}.0 % ["
    )
    assert f"({k[0]} of 100) for client north to {k[1]}.0 % [" in sentence
    assert f"for client south, {words} than chance explains ({chances(p)})" in (sentence)
    low, high = (100 * one / 99 for one in right)
    assert sentence.endswith(
        f"; their true-positive rates range from {low:.1f} % (north) to {high:.1f} % (south)."
    )


def test_several_labels_are_compared_by_accuracy() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"y": rng.choice(["x", "y", "z"], 400), "g": rng.choice(["a", "b"], 400)})
    right = rng.random(400) < np.where(table["g"] == "a", 0.9, 0.5)
    table["p"] = np.where(right, table["y"], "x")
    judged = eh.audit(table, "y", "p", group="g")
    gap = judged.gaps["accuracy parity"]
    assert judged.sentences[0].endswith(f", a gap of {points(gap.interval)}.")
    assert judged.sentences[0].startswith("Accuracy is lowest for b, ")
    even = table.assign(p=table["y"])
    even.loc[:9, "p"] = "x"
    assert (
        eh.audit(even, "y", "p", group="g")
        .sentences[0]
        .startswith("No significant gap in accuracy: accuracy is lowest for ")
    )


def test_without_clients_and_groups_the_answer_is_about_all_samples() -> None:
    table = cases({"a": (30, 10, 5, 55)})
    assert eh.audit(table, "y", "p").sentences == [
        'Accuracy is 85.0 % [76.7, 90.7] (85 of 100); for label "1", the true-positive rate is'
        " 75.0 % [59.8, 85.8] (30 of 40) and the false-positive rate is 8.3 % [3.6, 18.1] (5 of"
        " 60)."
    ]
    three = pd.DataFrame({"y": list("abc"), "p": list("abb")})
    assert eh.audit(three, "y", "p").sentences == ["Accuracy is 66.7 % [20.8, 93.9] (2 of 3)."]


def test_at_most_four_sentences_are_said_by_each_group_column(call: Call) -> None:
    rng = np.random.default_rng(0)
    table = cases(UNEQUAL).assign(sex=lambda frame: rng.choice(["f", "m"], len(frame)))
    table.to_csv("p.csv", index=False)
    arguments = ("--label", "y", "--prediction", "p", "--group", "g", "--group", "sex")
    code, out, _ = call("audit", "p.csv", *arguments, "--draws", "50", "--out", "o")
    assert code == 0
    assert out.startswith(
        'By g: samples with label "1" are predicted correctly less often for b than'
    )
    assert all(f"By {by}, %" in out for by in ("g", "sex", "g & sex"))
    judged = eh.audit(table, "y", "p", group=["g", "sex"], draws=50)
    assert len(judged.sentences) <= 4
    alone = eh.audit(table, "y", "p", group="g", draws=50)
    assert judged.parts["g"].gaps == alone.gaps
    assert judged.counts.groups[0] == "a & f"
    gaps = pd.read_csv("o/gaps.csv")
    assert set(gaps["groups"]) == {"g", "sex", "g & sex"}
    rates = pd.read_csv("o/rates.csv")
    assert not rates.duplicated(["groups", "by", "name", "rate"]).any()
    assert (rates["by"] == "everyone").sum() == 9  # once, not by each column


def test_a_column_may_have_a_reference_of_its_own() -> None:
    rng = np.random.default_rng(0)
    table = cases(UNEQUAL).assign(sex=lambda frame: rng.choice(["f", "m"], len(frame)))
    judged = eh.audit(table, "y", "p", group=["g", "sex"], reference=["c", "m"])
    assert judged.parts["g"].compared_with == "c"
    assert judged.parts["sex"].compared_with == "m"
    assert judged.compared_with is None


def test_numbers_are_written_without_minus_zero_and_p_without_zero() -> None:
    assert (number(-0.0001), number(math.nan), number(None)) == ("0.0", "-", "-")
    assert (signed(-0.0001), signed(0.02), signed(-0.02)) == ("0.0", "+2.0", "-2.0")
    assert chances(1e-300) == "p < 0.0001"
    assert (chances(0.0123), chances(0.345), chances(math.nan)) == (
        "p = 0.0123",
        "p = 0.34",
        "p unknown",
    )
    assert (counted(1, "client"), counted(1200, "client")) == ("1 client", "1,200 clients")
    assert name_of("a long name of a group", 10) == "a long na…"


def test_no_line_is_wider_than_a_hundred_columns_and_no_number_is_nan() -> None:
    groups = {f"a group with a long name {i}": (30 + i, 10, 20, 40 + i) for i in range(6)}
    for line in str(audited(groups)).splitlines():
        assert len(line.rstrip()) <= 100
        assert "nan" not in line


# ---- weights ----------------------------------------------------------------------------------


def test_weights_of_two_count_twice_and_leave_intervals_as_they_are() -> None:
    plain = audited(UNEQUAL)
    doubled = eh.audit(cases(UNEQUAL, w=2.0), "y", "p", group="g", weight="w", draws=50)
    for one, other in zip(plain.rates(), doubled.rates(), strict=True):
        assert other["of"] == 2 * one["of"]
        keys = ("value", "low", "high", "effective")
        assert [other[key] for key in keys] == pytest.approx([one[key] for key in keys])
    for kind, gap in plain.gaps.items():
        assert doubled.gaps[kind].interval == pytest.approx(gap.interval), kind
        assert doubled.gaps[kind].p == pytest.approx(gap.p, rel=1e-6)
        assert doubled.gaps[kind][1:5] == gap[1:5]


def test_unequal_weights_make_rates_of_sums_and_kishs_size() -> None:
    rng = np.random.default_rng(0)
    table = cases(UNEQUAL).assign(w=lambda frame: rng.gamma(2, 1, len(frame)))
    judged = eh.audit(table, "y", "p", group="g", weight="w", draws=50)
    (row,) = (
        row for row in judged.rates() if (row["name"], row["rate"]) == ("b", "true-positive rate")
    )
    inside = table[(table["g"] == "b") & (table["y"] == 1)]
    value = np.average(inside["p"], weights=inside["w"])
    size = inside["w"].sum() ** 2 / (inside["w"] ** 2).sum()
    assert row["value"] == pytest.approx(value)
    assert row["effective"] == pytest.approx(size)
    assert [row["low"], row["high"]] == pytest.approx(
        [float(e) for e in wilson(value * size, size)]
    )
    assert "effective samples)" in judged.sentences[0]
    assert "weighted" in str(judged)
    assert "the score test" in str(judged)


def test_weighted_numbers_across_clients_are_those_of_weighted_accuracies() -> None:
    rng = np.random.default_rng(0)
    table = cases(UNEQUAL).assign(w=lambda frame: rng.gamma(2, 1, len(frame)))
    found = eh.audit(table, "y", "p", client="g", weight="w", draws=50).across_clients()
    right = (table["y"] == table["p"]).astype(float)
    each = [np.average(right[table["g"] == g], weights=table["w"][table["g"] == g]) for g in "abc"]
    assert found["mean"].value == pytest.approx(np.mean(each))
    assert found["min"].value == pytest.approx(min(each))
    assert found["pooled"].value == pytest.approx(np.average(right, weights=table["w"]))
    assert found["mean"].low < found["mean"].value < found["mean"].high


# ---- scores -----------------------------------------------------------------------------------


def scored(samples: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    score = rng.random(samples).round(3)
    group, client = rng.choice(["a", "b"], samples), rng.choice(["n", "s"], samples)
    chance = np.where(group == "a", score, score**2)  # the scores of b say too much
    return pd.DataFrame({"g": group, "c": client, "s": score, "y": rng.random(samples) < chance})


def test_scores_have_auc_and_calibration_by_group_and_client() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    table = scored()
    judged = eh.audit(table, "y", score="s", group="g", client="c", draws=50)
    assert [row["name"] for row in judged.scores] == ["everyone", "a", "b", "n", "s"]
    rows = {row["name"]: row for row in judged.scores}
    for name, part in (*table.groupby("g"), *table.groupby("c"), ("everyone", table)):
        assert rows[name]["auc"] == pytest.approx(metrics.roc_auc_score(part["y"], part["s"]))
        assert rows[name]["auc_low"] < rows[name]["auc"] < rows[name]["auc_high"]
        assert rows[name]["bias"] == pytest.approx(part["s"].mean() - part["y"].mean())
        assert rows[name]["positives"] == part["y"].sum()
    assert rows["b"]["bias_low"] > 0
    assert rows["a"]["calibration_error"] < rows["b"]["calibration_error"]
    assert "Scores; calibration in points" in str(judged)
    assert 'Score - share: mean score minus the share with label "True"; + means' in str(judged)
    bins = [row for row in judged.reliability if row["name"] == "b"]
    assert sum(row["samples"] for row in bins) == (table["g"] == "b").sum()


def test_rates_by_threshold_are_those_of_predictions_made_there() -> None:
    table = scored()
    judged = eh.audit(table, "y", score="s", group="g", thresholds=[0.3, 0.7])
    for cut in (0.3, 0.7):
        there = eh.audit(table, "y", score="s", threshold=cut, group="g")
        expected = {(row["name"], row["rate"]): row for row in there.rates()}
        rows = [row for row in judged.sweep if row["threshold"] == cut]
        assert len(rows) == 15
        for row in rows:
            other = expected[row["name"], row["rate"]]
            for key in ("hits", "of", "value", "low", "high"):
                assert row[key] == pytest.approx(other[key]), (cut, row["rate"], key)
        (step,) = (step for step in steps(judged) if step.threshold == cut)
        gap = there.gaps["equal opportunity"]
        assert step.tpr == pytest.approx((gap.interval.value, gap.low, gap.high))
        assert step.ratio == pytest.approx(there.ratios[0]["ratio"])
        assert step.accuracy == pytest.approx(expected["everyone", "accuracy"]["value"])
    assert "By threshold, % and points, by g" in str(judged)
    usual = eh.audit(table, "y", score="s", group="g")
    assert len({row["threshold"] for row in usual.sweep}) == 19
    assert "By threshold" not in str(usual)


def test_scores_that_are_no_probabilities_are_ranked_but_not_calibrated() -> None:
    table = scored().assign(s=lambda frame: (10 * frame["s"]).round())
    judged = eh.audit(table, "y", score="s", threshold=5, group="g")
    assert "bias" not in judged.scores[0]
    assert judged.reliability == []
    assert {row["threshold"] for row in judged.sweep} <= set(range(11))
    assert "calibration" not in judged.tables() or judged.tables()["calibration"] == []
    assert "Scores\n" in str(judged)


def test_suppressed_groups_and_clients_are_in_no_table() -> None:
    table = pd.concat([scored(), scored(5).assign(g="rare", c="tiny")], ignore_index=True)
    judged = eh.audit(table, "y", score="s", group="g", client="c", suppress=True, draws=20)
    text = json.dumps(judged.numbers())
    wide = {"clients": judged.clients(), "groups": judged.groups()}
    assert (
        sum("rare" in json.dumps(rows) or "tiny" in json.dumps(rows) for rows in wide.values()) == 2
    )
    for name, rows in judged.tables().items():
        if name in wide:
            continue
        words = json.dumps([{k: v for k, v in row.items() if k != "left_out"} for row in rows])
        assert "rare" not in words, name
        assert "tiny" not in words, name
    assert text.count("tiny") == 1


# ---- provenance -------------------------------------------------------------------------------


def test_provenance_tells_file_columns_options_version_and_date(call: Call) -> None:
    table = scored(60).astype({"y": object})
    table.loc[0, "y"] = None
    table.to_csv("p.csv", index=False)
    arguments = ("--label", "y", "--score", "s", "--threshold", "0.4", "--group", "g")
    code, out, _ = call("audit", "p.csv", *arguments, "--out", "o", "--least", "5")
    assert code == 0
    assert "59 samples (1 row without a label skipped); labels False, True" in out
    assert out.endswith("Tables: o\n")
    found = json.loads(Path("o/provenance.json").read_text())
    content = Path("p.csv").read_bytes()
    assert found["file"] == "p.csv"
    assert found["sha256"] == hashlib.sha256(content).hexdigest()
    assert (found["bytes"], found["rows"], found["rows_without_label"]) == (len(content), 60, 1)
    assert found["columns"] == {"label": "y", "group": "g", "score": "s"}
    assert found["options"]["least"] == 5
    assert found["options"]["threshold"] == 0.4
    assert found["options"]["positive"] == "True"
    assert found["evenhand"] == eh.__version__
    assert found["date"].endswith("+00:00")
    assert (Path("o/thresholds.csv")).exists()
    judged = eh.audit(table, "y", score="s", group="g")
    assert "file" not in judged.provenance()
    assert judged.provenance()["rows"] == 60


def test_json_has_the_answer_and_all_tables(call: Call) -> None:
    cases(UNEQUAL).to_csv("p.csv", index=False)
    code, out, _ = call(
        "audit", "p.csv", "--label", "y", "--prediction", "p", "--group", "g", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["answer"] == audited(UNEQUAL).sentences
    assert {"rates", "gaps", "pairs", "ratios", "scores", "thresholds"} <= set(found)
    assert found["gaps"][1]["lowest"] == "b"
