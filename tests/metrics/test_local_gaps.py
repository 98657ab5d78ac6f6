"""Gaps within clients: both directions of Simpson's paradox, intervals by hand and by simulation,
and clients with few samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenhand.metrics.group_rates import group_gaps
from evenhand.metrics.largest_gap import critical
from evenhand.metrics.local_gaps import LocalGaps, cells, local_gaps
from evenhand.metrics.pairwise import difference
from evenhand.metrics.uncertainty import score_interval

GROUPS, LABELS = ("f", "m"), ("no", "yes")


def counts(hits: list[list[int]], of: list[list[int]]) -> np.ndarray:
    """(n, A, 2, 3) samples with label "yes", of which ``hits`` are predicted so."""
    table = np.zeros((*np.shape(of), 2, 3), np.int64)
    table[..., 1, 1] = hits
    table[..., 1, 0] = np.subtract(of, hits)
    return table


def both(hits: list[list[int]], of: list[list[int]], least: int = 10) -> tuple[float, LocalGaps]:
    """The gap in true-positive rates over all clients, and those within clients."""
    table = counts(hits, of)
    names = [f"clinic {i}" for i in range(len(hits))]
    everyone = group_gaps(table.sum(0), GROUPS, LABELS, 1, least=least)["equal opportunity"]
    local = local_gaps(cells(table, 1), names, GROUPS, least=least)["equal opportunity"]
    return everyone.interval.value, local


def test_fair_within_every_client_and_unfair_over_all() -> None:
    """Both clinics treat both groups alike, but most f are in the good one."""
    everyone, local = both([[90, 18], [6, 30]], [[100, 20], [20, 100]])
    assert everyone == pytest.approx(96 / 120 - 48 / 120)
    assert local.mean.value == local.largest.value == pytest.approx(0.0)
    assert local.mean.low == local.largest.low == 0.0
    assert local.clear == ()


def test_unfair_within_every_client_and_fair_over_all() -> None:
    """The gaps of two clinics point in different directions and cancel."""
    everyone, local = both([[90, 30], [30, 90]], [[100, 100], [100, 100]])
    assert everyone == pytest.approx(0.0)
    assert local.mean.value == local.largest.value == pytest.approx(0.6)
    assert local.mean.low > 0.4
    assert {(one.client, one.low, one.high) for one in local.clear} == {
        ("clinic 0", "m", "f"),
        ("clinic 1", "f", "m"),
    }


def test_intervals_of_clients_hold_at_once_and_are_newcombes() -> None:
    _, local = both([[18, 10], [15, 12], [9, 12]], [[20, 20], [30, 25], [15, 14]])
    each = 0.95 ** (1 / 3)
    wanted = [
        difference(18, 20, 10, 20, each),
        difference(12, 14, 9, 15, each),
        difference(15, 30, 12, 25, each),
    ]
    assert [one.client for one in local.clients] == ["clinic 0", "clinic 2", "clinic 1"]
    values = (abs(one.value) for one in wanted)
    assert [one.interval.value for one in local.clients] == pytest.approx(sorted(values)[::-1])
    assert local.clients[0].interval.low == pytest.approx(max(0, wanted[0].low))
    assert local.clients[0].interval.high == pytest.approx(wanted[0].high)
    ends = [one.interval for one in local.clients]
    assert local.largest.low == max(one.low for one in ends)
    assert local.largest.high == max(one.high for one in ends)


def test_the_interval_of_the_mean_by_hand() -> None:
    """Two clients with the same gap: the upper distance of a mean is that of one, over sqrt(2), and
    the lower end is that of the signed mean at half the error."""
    hits, of = [[80, 60], [80, 60]], [[100, 100], [100, 100]]
    _, local = both(hits, of)
    one = difference(80, 100, 60, 100, 0.95)
    assert local.mean.value == pytest.approx(0.2)
    assert local.mean.high == pytest.approx(0.2 + (one.high - 0.2) / math.sqrt(2))
    z = critical(2, 0.975)
    (low, _), (_, high) = score_interval(80, 100, z), score_interval(60, 100, z)
    wilson = (0.8 - low) ** 2 + (high - 0.6) ** 2
    plain = z**2 * (0.8 * 0.2 / 99 + 0.6 * 0.4 / 99)
    assert local.mean.low == pytest.approx(0.2 - math.sqrt(max(wilson, plain) / 2))


def test_a_client_with_a_small_cell_is_left_out_and_named() -> None:
    """Clinic 1 has no m, clinic 2 has 9 of them."""
    hits, of = [[18, 10], [5, 0], [20, 9]], [[20, 20], [30, 0], [30, 9]]
    _, local = both(hits, of)
    assert local.left_out == ("clinic 1", "clinic 2")
    assert [one.client for one in local.clients] == ["clinic 0"]
    assert local.mean.value == local.largest.value == pytest.approx(0.4)
    _, all_of_them = both(hits, of, least=9)
    assert all_of_them.left_out == ("clinic 1",)
    _, nobody = both(hits, of, least=25)
    assert len(nobody.left_out) == 3
    assert math.isnan(nobody.mean.value)
    assert math.isnan(nobody.largest.value)


def test_a_client_needs_samples_for_the_rate_not_in_all() -> None:
    """Clinic 1 has 40 samples of m, none of them with the label."""
    table = counts([[18, 10], [15, 0]], [[20, 20], [30, 0]])
    table[:, :, 0, 0] = 40
    found = local_gaps(cells(table, 1), ("a", "b"), GROUPS)
    assert found["equal opportunity"].left_out == ("b",)
    assert found["demographic parity"].left_out == ()
    assert found["equalised odds"].left_out == ("b",)  # odds need both rates


def test_of_three_groups_the_two_with_enough_samples_are_compared() -> None:
    hits, of = np.array([[9.0, 0.0, 10.0]] * 2), np.array([[20.0, 2.0, 20.0]] * 2)
    found = local_gaps({"accuracy": (hits, of)}, ("a", "b"), ("f", "m", "x"))["accuracy parity"]
    assert found.mean.value == pytest.approx(0.05)  # not 0.5 with m, which has two samples
    assert {one.low for one in found.clients} == {"f"}
    assert {one.high for one in found.clients} == {"x"}


def test_odds_are_the_larger_of_two_gaps_at_each_client() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(12, 40, (6, 3, 2, 3))
    found = local_gaps(cells(table, 1), list("abcdef"), ("f", "m", "x"))
    by_kind = {
        kind: {one.client: one.interval.value for one in found[kind].clients}
        for kind in ("equal opportunity", "false-positive parity", "equalised odds")
    }
    right, wrong, odds = by_kind.values()
    assert odds == pytest.approx({name: max(right[name], wrong[name]) for name in right})
    for one in found["equalised odds"].clients:
        larger = right[one.client] >= wrong[one.client]
        assert one.rate == ("true-positive rate" if larger else "false-positive rate")


def test_one_client_or_one_group_is_no_comparison() -> None:
    table = counts([[18, 10]], [[20, 20]])
    assert local_gaps(cells(table, 1), ("a",), GROUPS) == {}
    assert local_gaps(cells(table[:, :1].repeat(2, 0), 1), ("a", "b"), ("f",)) == {}
    with pytest.raises(ValueError, match="accuracy must be"):
        local_gaps(cells(table, None), ("a", "b"), GROUPS)


def test_with_several_labels_there_is_accuracy_alone() -> None:
    table = np.full((2, 2, 3, 4), 5)
    assert set(local_gaps(cells(table, None), ("a", "b"), GROUPS)) == {"accuracy parity"}


@pytest.mark.parametrize(
    ("clients", "groups", "size", "gap", "alternating"),
    [
        (20, 2, 15, 0.0, False),  # where the observed mean gap is 13 points
        (20, 2, 15, 0.2, False),
        (20, 2, 60, 0.2, True),
        (6, 3, 40, 0.0, False),
        (6, 3, 40, 0.2, True),
    ],
)
def test_intervals_cover_the_truth(
    clients: int, groups: int, size: int, gap: float, alternating: bool
) -> None:
    rng = np.random.default_rng(1)
    share = np.repeat(np.linspace(0.2, 0.7, clients)[:, None], groups, 1)
    share[np.arange(clients), np.arange(clients) % 2 if alternating else 0] += gap
    of, names = np.full(share.shape, float(size)), [str(i) for i in range(clients)]
    missed = np.zeros(2)
    for _ in range(200):
        hits = rng.binomial(size, share).astype(np.float64)
        found = local_gaps({"accuracy": (hits, of)}, names, list("abc")[:groups])
        for place, one in enumerate(found["accuracy parity"][1:3]):
            missed[place] += not one.low - 1e-12 <= gap <= one.high
    assert (missed / 200 <= 0.09).all()  # 5 % nominal, and chance


def test_mean_gaps_of_many_clients_become_precise() -> None:
    """A mean over clients has a narrower interval than the largest of them."""
    _, local = both([[80, 60]] * 40, [[100, 100]] * 40)
    assert local.mean.high - local.mean.low < 0.05
    assert local.largest.high - local.largest.low > 0.3
