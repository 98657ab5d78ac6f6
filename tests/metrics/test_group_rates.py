"""Rates of groups and gaps between them: by hand, and as often right as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from evenhand.metrics.group_rates import PARITIES, RATES, Gap, group_gaps, group_rates
from evenhand.metrics.largest_gap import chance, critical, largest_gaps
from evenhand.metrics.uncertainty import wilson

LABELS = ("no", "yes")
# label x prediction, the last is none
TABLE = np.array(
    [
        [[50, 10, 0], [6, 30, 4]],  # a: 100 samples, 40 positive
        [[70, 20, 10], [5, 5, 0]],  # b: 110 samples, 10 positive
        [[80, 16, 0], [1, 3, 0]],  # c: 100 samples, 4 positive
    ]
)


def newcombe(hits: tuple[int, int], of: tuple[int, int], z: float) -> tuple[float, float]:
    """Of the first rate minus the second, from the formulas as they are published."""
    ends = [
        (
            (2 * k + z**2 - z * math.sqrt(z**2 + 4 * k * (1 - k / n))) / (2 * (n + z**2)),
            (2 * k + z**2 + z * math.sqrt(z**2 + 4 * k * (1 - k / n))) / (2 * (n + z**2)),
        )
        for k, n in zip(hits, of, strict=True)
    ]
    p, q = hits[0] / of[0], hits[1] / of[1]
    return (
        p - q - math.sqrt((p - ends[0][0]) ** 2 + (ends[1][1] - q) ** 2),
        p - q + math.sqrt((ends[0][1] - p) ** 2 + (q - ends[1][0]) ** 2),
    )


def gaps(table: np.ndarray, positive: int | None = 1, **how: object) -> dict[str, Gap]:
    groups = [chr(97 + place) for place in range(len(table))]
    labels = LABELS if table.shape[1] == 2 else tuple(map(str, range(table.shape[1])))
    return group_gaps(table, groups, labels, positive, **how)


def test_rates_by_hand() -> None:
    found = {
        (rate.name, rate.group): (rate.hits, rate.of)
        for rate in group_rates(TABLE, "abc", LABELS, positive=1)
    }
    assert len(found) == len(RATES) * 3
    of_a = {
        "accuracy": (80, 100),
        "selection rate": (40, 100),
        "true-positive rate": (30, 40),
        "false-positive rate": (10, 60),
        "precision": (30, 40),
        "false-negative rate": (10, 40),
        "false-discovery rate": (10, 40),
        "false-omission rate": (10, 60),  # without a prediction is not predicted to be positive
        "base rate": (40, 100),
    }
    assert {name: found[name, "a"] for name in RATES} == of_a
    assert found["false-positive rate", "b"] == (20, 100)
    assert found["true-positive rate", "b"] == (5, 10)
    other = {
        (rate.name, rate.group): (rate.hits, rate.of)
        for rate in group_rates(TABLE, "abc", LABELS, positive=0)
    }
    assert other["true-positive rate", "b"] == (70, 100)
    assert other["precision", "b"] == (70, 75)


def test_a_rate_has_wilsons_interval_and_none_without_samples() -> None:
    table = np.array([[[9, 1, 0], [0, 0, 0]]])
    found = {rate.name: rate for rate in group_rates(table, "a", LABELS, 1, level=0.9)}
    low, high = wilson(1, 10, 0.9)
    assert found["selection rate"].interval == pytest.approx((0.1, float(low), float(high)))
    assert found["true-positive rate"].of == 0
    assert np.isnan(found["true-positive rate"].interval).all()


def test_a_gap_names_its_groups_and_has_newcombes_interval() -> None:
    found = gaps(TABLE[:2], least=10)
    gap = found["equal opportunity"]
    assert gap[:5] == ("equal opportunity", "true-positive rate", "yes", "b", "a")
    ends = newcombe((30, 5), (40, 10), stats.norm.ppf(0.975))
    assert gap.interval == pytest.approx((0.25, max(0.0, ends[0]), ends[1]))
    turned = gaps(TABLE[:2], positive=0)["equal opportunity"]
    assert (turned.low, turned.high, turned.label) == ("b", "a", "no")
    assert turned.interval.value == pytest.approx(50 / 60 - 0.7)
    accuracy = found["accuracy parity"]
    assert accuracy[:5] == ("accuracy parity", "accuracy", "", "b", "a")
    assert accuracy.interval == pytest.approx(
        (80 / 100 - 75 / 110, 0.0, newcombe((80, 75), (100, 110), stats.norm.ppf(0.975))[1])
    )


def test_with_several_groups_the_ends_are_the_largest_of_all_pairs() -> None:
    gap = gaps(TABLE)["accuracy parity"]
    z = stats.studentized_range.ppf(0.95, 3, np.inf) / math.sqrt(2)
    hits, of = (80, 75, 83), (100, 110, 100)
    pairs = [
        newcombe((hits[i], hits[j]), (of[i], of[j]), z)
        for i in range(3)
        for j in range(3)
        if i != j
    ]
    assert (gap.low, gap.high) == ("b", "c")
    assert gap.interval == pytest.approx(
        (0.83 - 75 / 110, max(low for low, _ in pairs), max(high for _, high in pairs))
    )


def test_groups_are_left_out_by_the_samples_of_the_rate() -> None:
    """c has 100 samples, 4 of them positive, and 19 predicted to be positive."""
    found = gaps(TABLE, least=10)
    assert found["accuracy parity"].left_out == ()
    assert found["equal opportunity"].left_out == ("c",)
    assert found["equalised odds"].left_out == ("c",)
    assert found["predictive parity"].left_out == ()
    assert found["predictive parity"].low == "c"
    kept = gaps(TABLE, least=4)["equal opportunity"]
    assert kept.left_out == ()
    few = gaps(TABLE, least=11)
    assert few["equal opportunity"].left_out == ("b", "c")
    assert math.isnan(few["equal opportunity"].interval.value)
    # nothing can be said about both of its rates
    assert math.isnan(few["equalised odds"].interval.value)
    assert math.isnan(few["equalised odds"].p)
    assert few["false-positive parity"].interval.value > 0
    assert gaps(TABLE, least=101) == {}
    assert gaps(TABLE[:1]) == {}


def test_equalised_odds_has_the_larger_ends_of_its_rates() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        table = rng.multinomial(300, rng.dirichlet(np.ones(6)), 3).reshape(3, 2, 3)
        found, both = gaps(table, least=0), gaps(table, least=0, level=math.sqrt(0.95))
        rates = [both[kind] for kind in ("equal opportunity", "false-positive parity")]
        odds = found["equalised odds"]
        assert odds.interval == pytest.approx(tuple(map(max, *(one.interval for one in rates))))
        assert odds.p == pytest.approx(1 - (1 - min(one.p for one in rates)) ** 2, abs=1e-12)
        larger = max(rates, key=lambda one: one.interval.value)
        assert (odds.rate, odds.low, odds.high) == (larger.rate, larger.low, larger.high)


def test_p_is_where_the_interval_reaches_zero() -> None:
    for kind, gap in gaps(TABLE).items():
        at = gaps(TABLE, level=1 - gap.p * 1.001)[kind]
        above = gaps(TABLE, level=1 - gap.p * 0.999)[kind]
        assert at.interval.low > 0 or gap.p > 0.99, kind
        assert above.interval.low == 0, kind
    # of two groups, by solving Newcombe's formula
    two = gaps(TABLE[:2])["equal opportunity"]
    z = optimize.brentq(lambda z: newcombe((30, 5), (40, 10), z)[0], 0.1, 9)
    assert two.p == pytest.approx(2 * stats.norm.sf(z), rel=1e-6)


def test_no_interval_is_a_point_and_no_chance_is_zero() -> None:
    perfect = np.array([[[20, 0, 0], [0, 20, 0]]] * 2)
    opposite = np.array([[[10**7, 0, 0], [0, 10**7, 0]], [[0, 10**7, 0], [10**7, 0, 0]]])
    for table in (perfect, opposite):
        for kind, gap in gaps(table).items():
            assert gap.interval.low < gap.interval.high, kind
            assert 0 < gap.p <= 1, kind
            assert gap.low != gap.high, kind
    clients = np.stack([perfect] * 5)
    for over in ("clients", "both"):
        for gap in gaps(clients.sum(0), over=over, by_client=clients).values():
            assert gap.interval.low < gap.interval.high
            assert 0 < gap.p <= 1


def test_of_many_labels_the_one_that_differs_most() -> None:
    table = np.zeros((2, 3, 4), int)
    table[:, [0, 1, 2], [0, 1, 2]] = [[40, 30, 30], [40, 12, 30]]
    table[1, 1, 2] = 18
    gap = gaps(table, positive=None)["equal opportunity"]
    assert (gap.label, gap.low, gap.high) == ("1", "b", "a")
    z = critical(2, 0.95 ** (1 / 3))
    assert gap.interval.low == pytest.approx(newcombe((30, 12), (30, 30), z)[0])
    assert gap.p == pytest.approx(
        1 - (1 - gaps(table, positive=1)["equal opportunity"].p) ** 3, rel=1e-6
    )


def test_clients_that_differ_widen_a_gap_and_what_they_share_narrows_it() -> None:
    def table(accuracy: np.ndarray) -> np.ndarray:  # (n, 2) of 40 samples each
        right = (40 * accuracy).round().astype(int)
        found = np.zeros((*accuracy.shape, 2, 3), int)
        found[..., 0, 0], found[..., 0, 1] = right, 40 - right
        return found

    def width(clients: np.ndarray, over: str) -> float:
        gap = gaps(clients.sum(0), positive=0, over=over, by_client=clients)["accuracy parity"]
        return gap.interval.high - gap.interval.low

    level = np.linspace(0.5, 1.0, 20)
    apart = table(np.stack([level, level[::-1] - 0.2], 1))
    together = table(np.stack([level, level - 0.2], 1))
    assert width(apart, "samples") == pytest.approx(width(together, "samples"))
    assert width(apart, "clients") > 1.5 * width(apart, "samples")
    assert width(together, "clients") < 0.5 * width(apart, "clients")
    # (n / (n - 1)) sum of squared moves of the difference, by hand
    moves = (apart[..., 0, 0] - apart[..., 0, 0].mean(0)) / (40 * 20)
    error = math.sqrt(20 / 19 * ((moves[:, 0] - moves[:, 1]) ** 2).sum())
    half = stats.t.ppf(0.975, 19) * error
    assert width(apart, "clients") == pytest.approx(2 * half, rel=0.05)
    one = gaps(apart[:1].sum(0), positive=0, over="clients", by_client=apart[:1])
    assert np.isnan(one["accuracy parity"].interval[1:]).all()


def test_tukeys_critical_values_are_as_in_tables() -> None:
    assert critical(2, 0.95) == pytest.approx(1.959964, abs=1e-6)
    assert math.sqrt(2) * critical(3, 0.95) == pytest.approx(3.314, abs=1e-3)
    assert math.sqrt(2) * critical(4, 0.95, 10) == pytest.approx(4.327, abs=1e-3)
    for groups, freedom in ((2, math.inf), (5, math.inf), (4, 7.0)):
        assert chance(groups, critical(groups, 0.9, freedom), freedom) == pytest.approx(0.1)
    # far out, the sum over pairs
    assert chance(4, 8.0) == pytest.approx(12 * stats.norm.sf(8.0))


def test_what_is_not_possible_is_refused() -> None:
    with pytest.raises(ValueError, match=r"table must be \(2, 2, 3\), got \(3, 2, 3\)"):
        group_gaps(TABLE, "ab", LABELS, 1)
    with pytest.raises(ValueError, match="positive must be one of 2 labels, got 2"):
        group_rates(TABLE, "abc", LABELS, 2)
    with pytest.raises(ValueError, match="over='clients' needs by_client"):
        group_gaps(TABLE, "abc", LABELS, 1, over="clients")


def test_estimates_with_errors_of_their_own_can_be_compared() -> None:
    value, error = np.array([[0.1, 0.3, np.nan]]), np.array([[0.02, 0.04, 1.0]])
    found = largest_gaps(value, lambda z: (value - z * error, value + z * error))
    half = stats.norm.ppf(0.975) * math.hypot(0.02, 0.04)
    assert (found.value[0], found.low[0], found.high[0]) == pytest.approx(
        (0.2, 0.2 - half, 0.2 + half)
    )
    assert (found.least[0], found.most[0]) == (0, 1)


# ---- how often they hold the truth

UNEQUAL = [((40, 145), 0.3), ((600, 200, 40, 15), 0.05), ((600, 200, 40, 15), 0.3)]


@pytest.mark.parametrize(("sizes", "base"), UNEQUAL)
@pytest.mark.parametrize("step", [0.0, 0.1], ids=["no gap", "a gap"])
def test_gaps_of_unequal_groups_are_held_as_often_as_they_say(
    sizes: tuple[int, ...], base: float, step: float
) -> None:
    """These held the truth in 64 to 87 % of trials when tables were resampled."""
    rng = np.random.default_rng(0)
    tpr = 0.9 - step * np.arange(len(sizes))
    fpr = 0.1 + step * np.arange(len(sizes))
    hits = dict.fromkeys(("equal opportunity", "false-positive parity", "equalised odds"), 0)
    seen = dict.fromkeys(hits, 0)
    for _ in range(300):
        positive = rng.binomial(sizes, base)
        negative = np.array(sizes) - positive
        right, wrong = rng.binomial(positive, tpr), rng.binomial(negative, fpr)
        nothing = np.zeros_like(right)
        table = np.stack(
            [negative - wrong, wrong, nothing, positive - right, right, nothing], 1
        ).reshape(-1, 2, 3)
        found = gaps(table)
        truth = {
            "equal opportunity": np.ptp(tpr[positive >= 10]) if (positive >= 10).any() else 0,
            "false-positive parity": np.ptp(fpr[negative >= 10]),
        }
        truth["equalised odds"] = max(truth.values())
        for kind in hits:
            if not math.isnan(found[kind].interval.value):
                seen[kind] += 1
                low, high = found[kind].interval[1:]
                hits[kind] += low - 1e-9 <= truth[kind] <= high + 1e-9
    for kind in hits:
        if seen[kind] >= 100:
            assert hits[kind] / seen[kind] >= 0.92, (kind, hits[kind], seen[kind])


def test_kinds_are_those_of_parity() -> None:
    from evenhand.metrics import parity

    found = gaps(TABLE, least=0)
    assert tuple(found) == tuple(PARITIES)
    for kind, gap in found.items():
        function = getattr(parity, kind.replace(" ", "_").replace("-", "_"))
        expected = function(TABLE) if kind == "accuracy parity" else function(TABLE, 1)
        assert gap.interval.value == pytest.approx(float(expected)), kind
