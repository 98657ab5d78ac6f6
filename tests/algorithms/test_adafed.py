"""AdaFed: numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support.by_hand import clients_of, move, near


def test_adafed_two_clients_in_numbers(engine: str) -> None:
    # g = (1, 0) and (.6, .8), losses 1 and 2: h_1 = (1, 0), h_2 = ((.6, .8) - .6 (1, 0)) / (2 - .6)
    # = (0, 4/7) lam ~ 1, 49/16: (16, 49)/65;  d = (16, 28)/65, and <g_2, d> = 32/65 is twice <g_1,
    # d> = 16/65
    clients = clients_of((5, 0), (3, 4), losses=(1, 2))
    assert move(eh.AdaFed(gamma=1.0), engine, clients) == near([-16 / 65, -28 / 65])
    assert move(eh.AdaFed(gamma=1.0, server_lr=0.5), engine, clients) == near([-8 / 65, -14 / 65])
    # gamma = 0: h_2 = (0, .8)/.4 = (0, 2); lam = (4/5, 1/5);  d = (.8, .4), with <g_1, d> = .8 = .6
    # * .8 + .8 * .4 = <g_2, d>
    assert move(eh.AdaFed(gamma=0.0), engine, clients) == near([-0.8, -0.4])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_adafed_lowers_each_loss_in_proportion_to_its_power(
    engine: str, gamma: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    updates, losses = generator.normal(size=(4, 6)), generator.uniform(0.5, 3, size=4)
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    # the point of the span with <g_i, d> = F_i^gamma |d|^2: with G the products of the g_i, d =
    # sum_i (G^-1 b)_i g_i scaled
    powers = losses**gamma
    direction = np.linalg.solve(units @ units.T, powers) @ units
    direction /= direction @ direction
    clients = clients_of(*updates.tolist(), losses=losses.tolist(), counts=(1, 3, 2, 1))
    d = -np.array(move(eh.AdaFed(gamma=gamma), engine, clients))
    assert units @ d == pytest.approx(powers * (d @ d), rel=1e-9)
    assert d == pytest.approx(direction, rel=1e-8)
