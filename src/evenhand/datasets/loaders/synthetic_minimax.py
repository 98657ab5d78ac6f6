"""FedMinMax's synthetic data (Papadaki et al., 2021, Table 1), where every risk is known in closed
form.

A ~ Bernoulli(1/2), X ~ N(0, 1), Y | X, A ~ Bernoulli(u_A(X)) with u_0 = .6 for x > 0 and .3
otherwise, u_1 = .9 and .1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenhand.data.federation import Federation
from evenhand.errors import require, require_choice, require_memory, require_whole

Array = np.ndarray[Any, Any]
ABOVE, BELOW = (0.6, 0.9), (0.3, 0.1)  # u_a for x > 0 and for x <= 0


class Sample(NamedTuple):
    """Group, feature and label of every sample."""

    a: Array
    x: Array
    y: Array

    def rows(self, index: Array) -> dict[str, Array]:
        """Return some of the samples, for ``Federation.from_arrays``."""
        return {"x": self.x[index, None], "y": self.y[index], "group": self.a[index]}


def chance(a: Array, x: Array) -> Array:
    """Return u_a(x), the probability of label 1."""
    return np.where(x > 0, np.array(ABOVE)[a], np.array(BELOW)[a])


def drawn(count: int, seed: int | list[int]) -> Sample:
    """Draw a random sample."""
    generator = np.random.default_rng(seed)
    a, x = generator.integers(0, 2, count), generator.normal(size=count)
    return Sample(a, x, (generator.random(count) < chance(a, x)).astype(np.int64))


def expected(count: int, seed: int) -> Sample:
    """Return a sample with the expected count of every (group, sign of x, label).

    Its risks are those of the population.
    """
    cells = [(a, sign, y) for a in (0, 1) for sign in (1, -1) for y in (0, 1)]
    share = [ABOVE[a] if sign > 0 else BELOW[a] for a, sign, _ in cells]
    counts = [
        round(count / 4 * (u if y else 1 - u)) for (_, _, y), u in zip(cells, share, strict=True)
    ]
    a, sign, y = np.repeat(np.array(cells), counts, axis=0).T
    return Sample(a, sign * np.abs(np.random.default_rng(seed).normal(size=len(a))), y)


def equal_access(sample: Sample, clients: int) -> list[Array]:
    """ESG: sort by group, sign and label, then assign in turn, so that all clients have the same
    shares."""
    order = np.lexsort((sample.y, sample.x > 0, sample.a))
    return [order[k::clients] for k in range(clients)]


def single_group(sample: Sample, clients: int) -> list[Array]:
    """SSG: half of the clients share group 0, the other half group 1."""
    order = np.lexsort((sample.y, sample.x > 0))
    halves = (order[sample.a[order] == a] for a in (0, 1))
    return [half[k :: clients // 2] for half in halves for k in range(clients // 2)]


SCENARIOS = {"esg": equal_access, "ssg": single_group}


def synthetic_minimax(
    scenario: str = "esg",
    clients: int = 40,
    samples: int | None = None,
    exact: bool = True,
    seed: int = 0,
    test: int = 0,
    step: bool = False,
) -> Federation:
    """Generate FedMinMax's first experiment: two groups that need different predictors of one
    label.

    A predictor that says p for x > 0 and q otherwise has the Brier risk, summed over both classes,

        r_a = mean of  2 (p - u_a)² + 2 u_a (1 - u_a)  over the two halves,

    so the mean risk is smallest at (.75, .20), with risks .4825 and .2125 of the two groups. The
    worst group's risk is smallest at (.6, .3), the best predictor of group 0, with .450 and .310.

    Args:
        scenario: "esg": every client has both groups in equal shares; "ssg": every client has one
            group.
        clients: number of clients.
        samples: in total; None for 40 per client, the smallest number that gives every client the
            expected counts.
        exact: use the expected count of every (group, sign of x, label) instead of random ones.
        seed: of all draws.
        test: number of test samples, drawn at random and distributed in the same way; with exact
            data, training risks are already those of the population.
        step: replace x by 1 for x > 0 and 0 otherwise; a linear model then represents the best
            predictors exactly.
    """
    require_choice("scenario", scenario, tuple(SCENARIOS))
    require_whole("clients", clients, 1)
    require_whole("samples", samples, 1, optional=True)
    require_whole("seed", seed, 0)
    require_whole("test", test, 0)
    require(isinstance(step, bool), "step must be true or false, got {!r}", step)
    require(
        scenario == "esg" or clients % 2 == 0,
        'clients must be even, half for each group, got {}; or use scenario="esg"',
        clients,
    )
    count = 40 * clients if samples is None else samples
    require(
        count >= clients,
        "{} clients need a sample each, but there are only {}; raise samples or lower clients",
        clients,
        count,
    )
    require_memory(f"{count} training and {test} test samples", 100 * (count + test))
    require(
        not exact or count % 40 == 0,
        "samples must be a multiple of 40 for exact counts, got {}; or use exact=False",
        count,
    )

    def dealt(sample: Sample) -> list[dict[str, Array]]:
        if step:
            sample = sample._replace(x=(sample.x > 0).astype(np.float64))
        return [sample.rows(index) for index in SCENARIOS[scenario](sample, clients)]

    train = dealt(expected(count, seed) if exact else drawn(count, seed))
    return Federation.from_arrays(train, test=dealt(drawn(test, [seed, 1])) if test else None)
