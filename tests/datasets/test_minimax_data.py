"""FedMinMax on the synthetic data of its paper (Papadaki et al., 2021, Table 1), where every risk
is known in closed form.

A ~ Bernoulli(1/2), X ~ N(0, 1), Y | X, A ~ Bernoulli(u_A(X)) with u_0 = .6 for x > 0 and .3
otherwise, u_1 = .9 and .1. A predictor that says p for x > 0 and q otherwise has the Brier risk,
summed over both classes,

    r_a = mean of  2 (p - u)^2 + 2 u (1 - u)  over the two halves,

so the mean risk is least at (.75, .20), with risks .4825 and .2125, and the worst group's at (.6,
.3), the best predictor of group 0, with .450 and .310. Forty clients hold every group (ESG, equal
access) or one group each (SSG, single group).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.datasets.loaders.synthetic_minimax import (
    ABOVE,
    BELOW,
    SCENARIOS,
    Sample,
    drawn,
    expected,
    synthetic_minimax,
)
from evenhand.losses import brier
from evenhand.theory.checks import client_fairness_is_group_fairness
from tests.support.federations import with_output

CLIENTS = 40
MINIMAX, MEAN = (0.450, 0.310), (0.4825, 0.2125)  # risks of the two groups
PRINTED = 0.003  # how far the paper's table lies from these
STEP, ASCENT = 4.0, 1.0


@cache
def exactly() -> Sample:
    """Every (group, sign of x, label) as often as expected: its risks are those of the
    population."""
    return expected(40 * CLIENTS, seed=0)


def spread(split: str, sample: Sample) -> eh.Federation:
    return eh.Federation.from_arrays(
        [sample.rows(index) for index in SCENARIOS[split](sample, CLIENTS)]
    )


class Halves(nn.Module):
    """Scores of the two classes for x > 0 and for x <= 0: it can represent a step, which a logistic
    model of x cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(torch.cat([x > 0, x <= 0], 1).to(x.dtype))


def train(fed: eh.Federation, algorithm: eh.Algorithm, rounds: int = 50) -> eh.Result:
    local = eh.LocalSGD(lr=STEP, steps=1)
    return eh.fit(
        Halves(),
        fed,
        algorithm,
        loss="brier",
        rounds=rounds,
        local=local,
        eval_every=rounds,
        engine="vmap",
    )


def said(result: eh.Result) -> np.ndarray:
    """The predicted chance of label 1 for x > 0 and for x <= 0."""
    return result.params["table.weight"].softmax(0)[1].numpy()


def population_risks(p: np.ndarray) -> np.ndarray:
    u = np.array([ABOVE, BELOW]).T  # (groups, halves)
    return (2 * (p - u) ** 2 + 2 * u * (1 - u)).mean(1)


def measured_risks(result: eh.Result) -> list[float]:
    """The library's own mean loss of each group, on the training data."""
    return [row["loss"] for row in result.score_rows if row["by"] == "group"]


@pytest.mark.parametrize("split", SCENARIOS)
def test_the_data_set_is_this_federation(split: str) -> None:
    for fed, sample in (
        (synthetic_minimax(split), exactly()),
        (synthetic_minimax(split, samples=400, exact=False, seed=3), drawn(400, 3)),
    ):
        one, other = fed.train, spread(split, sample).train
        assert fed.clients == CLIENTS
        assert all(
            torch.equal(getattr(one, name), getattr(other, name))
            for name in ("x", "y", "group", "offsets")
        )


def test_the_closed_form_gives_the_risks_of_the_paper() -> None:
    assert population_risks(np.array([0.6, 0.3])) == pytest.approx(MINIMAX)
    assert population_risks(np.array([0.75, 0.2])) == pytest.approx(MEAN)
    assert population_risks(np.array([0.9, 0.1])) == pytest.approx((0.58, 0.18))


def test_the_brier_loss_sums_over_both_classes() -> None:
    scores = torch.tensor([[0.0, np.log(1.5)]], dtype=torch.float64)  # chances .4 and .6
    for label, loss in ((0, 0.6**2 + 0.6**2), (1, 0.4**2 + 0.4**2)):
        assert brier(scores, torch.tensor([label])).item() == pytest.approx(loss, rel=1e-12)
        assert brier(scores[:, 1:] - scores[:, :1], torch.tensor([label])).item() == pytest.approx(
            loss, rel=1e-12
        )


@pytest.mark.parametrize("split", SCENARIOS)
@pytest.mark.parametrize(("output", "rounds"), [("last", 50), ("average", 250)])
def test_fedminmax_reaches_the_minimax_risks_however_groups_are_spread(
    split: str, output: str, rounds: int
) -> None:
    result = train(
        spread(split, exactly()), with_output(eh.FedMinMax(lr_mu=ASCENT), output), rounds
    )
    assert population_risks(said(result)) == pytest.approx(MINIMAX, abs=PRINTED)
    assert measured_risks(result) == pytest.approx(population_risks(said(result)), abs=1e-9)
    if output == "last":
        assert said(result) == pytest.approx((0.6, 0.3), abs=1e-4)
        assert result.state["mu"].tolist() == [1, 0]


@pytest.mark.parametrize("split", SCENARIOS)
def test_fedavg_reaches_the_risks_of_the_best_mean(split: str) -> None:
    result = train(spread(split, exactly()), eh.FedAvg())
    assert population_risks(said(result)) == pytest.approx(MEAN, abs=1e-4)
    assert measured_risks(result) == pytest.approx(MEAN, abs=1e-4)


def test_afl_stays_at_the_best_mean_where_every_client_holds_both_groups() -> None:
    result = train(spread("esg", exactly()), eh.AFL(lr_lambda=ASCENT))
    assert population_risks(said(result)) == pytest.approx(MEAN, abs=1e-4)
    assert result.state["lam"].numpy() == pytest.approx(np.full(CLIENTS, 1 / CLIENTS), abs=1e-9)


def test_afl_is_minimax_over_groups_where_every_client_holds_one() -> None:
    fed = spread("ssg", exactly())
    # a group's weight rises by that of all its clients
    result = train(fed, eh.AFL(lr_lambda=ASCENT / (CLIENTS // 2)))
    assert population_risks(said(result)) == pytest.approx(MINIMAX, abs=1e-4)
    assert result.state["lam"].numpy() == pytest.approx(
        np.repeat([2 / CLIENTS, 0], CLIENTS // 2), abs=1e-9
    )
    assert said(result) == pytest.approx(said(train(fed, eh.FedMinMax(lr_mu=ASCENT))), abs=1e-10)


def gradient_descent_ascent(sample: Sample, rounds: int) -> tuple[np.ndarray, list[float]]:
    """Centralised minimax training in plain torch: theta descends sum_a v_a r_a, v ascends, both
    from the same theta."""
    x, y, a = (torch.from_numpy(array) for array in (sample.x, sample.y, sample.a))
    truth = nn.functional.one_hot(y, 2).double()
    theta = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)  # (half, class)
    v = torch.tensor([(a == 0).double().mean(), (a == 1).double().mean()])
    for _ in range(rounds):
        losses = ((theta[(x <= 0).long()].softmax(1) - truth) ** 2).sum(1)
        risks = torch.stack([losses[a == group].mean() for group in (0, 1)])
        (slope,) = torch.autograd.grad((v * risks).sum(), theta)
        with torch.no_grad():
            theta -= STEP * slope
            raised = v + ASCENT * risks
            # the nearest point of the simplex of two groups
            first = ((1 + raised[0] - raised[1]) / 2).clamp(0, 1)
            v = torch.stack([first, 1 - first]).detach()
    return theta.detach().numpy(), v.tolist()


@pytest.mark.parametrize("split", SCENARIOS)
def test_fedminmax_is_centralised_minimax_training_to_rounding(split: str) -> None:
    sample, rounds = drawn(4000, seed=1), 60
    fed = spread(split, sample)
    federated = train(fed, eh.FedMinMax(lr_mu=ASCENT), rounds)
    pooled = train(fed.pooled(), eh.FedMinMax(lr_mu=ASCENT), rounds)
    theta, v = gradient_descent_ascent(sample, rounds)
    found = federated.params["table.weight"].numpy().T
    assert found == pytest.approx(pooled.params["table.weight"].numpy().T, abs=1e-10)
    assert found == pytest.approx(theta, abs=1e-10)
    assert federated.state["mu"].tolist() == pytest.approx(v, abs=1e-10)


@pytest.mark.parametrize("split", SCENARIOS)
def test_fedminmax_finds_the_best_predictor_of_group_0_in_a_drawn_sample(split: str) -> None:
    """That is the mean label of each half, which 10 000 samples put within .02 of .6 and .3."""
    sample = drawn(40_000, seed=2)
    result = train(spread(split, sample), eh.FedMinMax(lr_mu=ASCENT))
    of_zero = [sample.y[(sample.a == 0) & half].mean() for half in (sample.x > 0, sample.x <= 0)]
    assert said(result) == pytest.approx(of_zero, abs=1e-4)
    assert said(result) == pytest.approx((0.6, 0.3), abs=0.02)
    assert population_risks(said(result)) == pytest.approx(MINIMAX, abs=0.01)


def test_the_lemma_tells_where_client_fairness_is_group_fairness() -> None:
    v = (1.0, 0.0)  # the groups' weights at the minimax solution
    mixed = client_fairness_is_group_fairness(spread("esg", exactly()).census(), v)
    apart = client_fairness_is_group_fairness(spread("ssg", exactly()).census(), v)
    assert not mixed.holds
    assert mixed.distance == pytest.approx(np.sqrt(0.5))  # clients reach (1/2, 1/2) alone
    assert apart.holds
    assert apart.always
