"""Means over the clients of a team, and how far teams are apart."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from evenhand.metrics import between_teams, team_means

NAN = float("nan")


def test_by_hand_every_client_counts_once() -> None:
    accuracy = [80.0, 90.0, 60.0, 70.0, 50.0, 99.0]
    teams = [0, 0, 1, 1, 1, -1]  # the last client has none
    assert team_means(accuracy, teams).tolist() == [85.0, 60.0]
    found = between_teams(accuracy, teams)
    assert float(found.gap) == 25.0
    assert float(found.variance) == 12.5**2  # both teams are 12.5 from their mean
    three = between_teams([1.0, 2.0, 6.0], [0, 1, 2])
    assert float(three.gap) == 5.0
    assert float(three.variance) == pytest.approx((4 + 1 + 9) / 3)


def test_pooled_scores_of_teams_are_something_else() -> None:
    """A client with many samples counts for more in the pooled number alone."""
    accuracy, sizes = [1.0, 0.0], [90, 10]
    assert team_means(accuracy, [0, 0]).tolist() == [0.5]
    assert float(eh.metrics.spread.pooled(accuracy, sizes)) == 0.9


def test_missing_values_and_empty_teams() -> None:
    means = team_means([0.5, NAN, NAN, 0.9], [0, 0, 1, 3])
    assert np.array_equal(means, [0.5, NAN, NAN, 0.9], equal_nan=True)
    found = between_teams([0.5, NAN, NAN, 0.9], [0, 0, 1, 3])
    assert float(found.gap) == pytest.approx(0.4)
    assert float(found.variance) == pytest.approx(0.04)
    alone = between_teams([0.5, 0.7], [0, 0])
    assert np.isnan(alone.gap)
    assert float(alone.variance) == 0
    assert team_means([0.5], [-1]).shape == (0,)


def test_leading_axes_are_runs() -> None:
    values = np.random.default_rng(0).random((4, 2, 6))
    teams = np.array([2, 0, 1, 0, 2, 2])
    found = team_means(values, teams)
    assert found.shape == (4, 2, 3)
    assert found[3, 1, 2] == pytest.approx(values[3, 1, [0, 4, 5]].mean())
    assert between_teams(values, teams).variance[3, 1] == pytest.approx(found[3, 1].var())


@pytest.mark.parametrize("teams", [[0], [0.0, 1.0], [[0, 1]]])
def test_teams_that_do_not_fit_are_refused(teams: object) -> None:
    with pytest.raises(ValueError, match="teams must be a whole number for each of 2 clients"):
        team_means([0.1, 0.2], teams)
