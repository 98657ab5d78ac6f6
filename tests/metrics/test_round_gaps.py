"""Gaps between groups after a round: by hand, by a second way, and where they are unknown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenhand.messages import Replies
from evenhand.metrics import parity
from evenhand.metrics.round_gaps import GAPS, round_gaps
from evenhand.metrics.tallies import BY_LABEL

IDS = torch.arange(2)
# two clients, two groups: positives, negatives, and those of them that are predicted as 1
NUMBERS = {
    "positives": [[10, 4], [10, 6]],
    "negatives": [[20, 8], [20, 12]],
    "true_positives": [[9, 1], [7, 3]],
    "false_positives": [[4, 0], [2, 5]],
}


def by_label() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(NUMBERS[name], dtype=torch.float64) for name in BY_LABEL}


def confusion() -> torch.Tensor:
    """(n, A, 2, 3) the same samples by label and prediction."""
    positives, negatives, right, wrong = by_label().values()
    none = torch.zeros_like(right)
    return torch.stack(
        [
            torch.stack([negatives - wrong, wrong, none], -1),
            torch.stack([positives - right, right, none], -1),
        ],
        -2,
    )


def test_gaps_by_hand() -> None:
    found = round_gaps(Replies(IDS, {}, by_label()))
    assert set(found) == set(GAPS)
    # group 0: 22 of 60 selected, 16 of 20 positives, 6 of 40 negatives
    # group 1: 9 of 30 selected, 4 of 10 positives, 5 of 20 negatives
    assert found["selection_gap"] == pytest.approx(22 / 60 - 9 / 30)
    assert found["tpr_gap"] == pytest.approx(16 / 20 - 4 / 10)
    assert found["fpr_gap"] == pytest.approx(5 / 20 - 6 / 40)


def test_client_by_client_in_sums_and_from_a_full_tally_they_are_the_same() -> None:
    first = round_gaps(Replies(IDS, {}, by_label())).items()
    sums = {name: table.sum(0) for name, table in by_label().items()}
    ways = [
        Replies(IDS, sums, {}),
        Replies(IDS, {}, {"confusion": confusion()}),
        Replies(IDS, {"confusion": confusion().sum(0)}, {}),
    ]
    for replies in ways:
        found = round_gaps(replies)
        assert all(found[name] == pytest.approx(gap) for name, gap in first)


def test_they_are_the_gaps_of_the_counts_of_the_same_model() -> None:
    table = confusion().sum(0).numpy()
    found = round_gaps(Replies(IDS, {}, by_label()))
    assert found["selection_gap"] == pytest.approx(parity.demographic_parity(table, 1))
    assert found["tpr_gap"] == pytest.approx(parity.equal_opportunity(table, 1))
    assert found["fpr_gap"] == pytest.approx(parity.false_positive_parity(table, 1))


def test_runs_of_a_stack_have_a_value_each() -> None:
    both = {name: torch.stack([table, table.flip(-1)]) for name, table in by_label().items()}
    both["true_positives"][1] = 0.0
    found = round_gaps(Replies(torch.stack([IDS, IDS]), {}, both))
    assert found["tpr_gap"].tolist() == pytest.approx([0.4, 0.0])


def test_a_group_without_samples_for_a_rate_is_no_part_of_its_gap() -> None:
    numbers = by_label()
    for name in ("positives", "true_positives"):
        numbers[name][:, 1] = 0.0
    found = round_gaps(Replies(IDS, {}, numbers))
    assert np.isnan(found["tpr_gap"])  # one group has positives
    # group 1: 5 of 20 selected, all of them negatives
    assert found["selection_gap"] == pytest.approx(22 / 60 - 5 / 20)


def test_without_two_groups_or_two_classes_there_are_none() -> None:
    one = {name: table[:, :1] for name, table in by_label().items()}
    assert round_gaps(Replies(IDS, {}, one)) == {}
    assert round_gaps(Replies(IDS, {}, {"confusion": torch.ones(2, 2, 3, 4)})) == {}
    assert round_gaps(Replies(IDS, {}, {"count": torch.ones(2, 2)})) == {}
