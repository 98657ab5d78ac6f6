"""The gaps between groups in the history of a run, alone and in a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.metrics import parity
from evenhand.metrics.round_gaps import GAPS
from tests.support.federations import network, ragged

LOCAL = eh.LocalSGD(lr=0.3, steps=2)


def two_classes(groups: tuple[str, ...] = ("a", "b"), absent: bool = False) -> eh.Federation:
    """Three clients whose groups have different base rates; ``absent``: client 0 has group a alone,
    and group b has no positive test samples anywhere."""
    rng = np.random.default_rng(0)

    def client(index: int, size: int, test: bool) -> dict[str, Any]:
        group = rng.integers(0, len(groups), size)
        if absent and index == 0:
            group[:] = 0
        x = rng.normal(size=(size, 5)) + 0.5 * group[:, None]
        y = (x.sum(1) + rng.normal(size=size) > 0.8 * index).astype(np.int64)
        if absent and test:
            y[group == 1] = 0
        return {"x": x, "y": y, "group": [groups[code] for code in group]}

    train, test = ([client(i, 60, part) for i in range(3)] for part in (False, True))
    return eh.Federation.from_arrays(train, test=test)


def logistic(outputs: int = 2) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(5, outputs).double()


def fitted(federation: eh.Federation, outputs: int = 2, **settings: Any) -> eh.Result:
    module = logistic(outputs)
    return eh.fit(module, federation, eh.FedAvg(), rounds=3, local=LOCAL, **settings)


@pytest.mark.parametrize(("outputs", "loss"), [(1, "hinge"), (1, "brier"), (2, "cross_entropy")])
def test_the_last_gaps_are_those_of_the_counts(outputs: int, loss: str) -> None:
    result = fitted(two_classes(), outputs, loss=loss)
    assert result.counts is not None
    table, row = result.counts.by_group, result.history_rows[-1]
    assert row["selection_gap"] == pytest.approx(parity.demographic_parity(table, 1))
    assert row["tpr_gap"] == pytest.approx(parity.equal_opportunity(table, 1))
    assert row["fpr_gap"] == pytest.approx(parity.false_positive_parity(table, 1))
    assert row["selection_gap"] > 0


def test_gaps_of_an_earlier_round_are_those_of_a_run_that_ends_there() -> None:
    """The last round is read from a full tally, the others from a plain one."""
    rounds = [
        eh.fit(logistic(), two_classes(), eh.FedAvg(), rounds=n, local=LOCAL).history_rows[-1]
        for n in (1, 2, 3)
    ]
    history = fitted(two_classes(), eval_every=1).history_rows
    for name in GAPS:
        assert [row[name] for row in history] == pytest.approx([row[name] for row in rounds])


@pytest.mark.parametrize("method", [eh.FedAvg(), eh.Ditto(lam=0.5)])
def test_engines_and_stacks_agree(method: eh.Algorithm) -> None:
    federation = two_classes(absent=True)
    settings: dict[str, Any] = {"rounds": 3, "eval_every": 1}
    runs = [eh.Run(method, seed=seed, local=LOCAL) for seed in (0, 1)]
    stack = eh.fit_many(logistic(), federation, runs, **settings)
    for run, found in zip(runs, stack, strict=True):
        for engine in ("loop", "vmap"):
            alone = eh.fit(
                logistic(),
                federation,
                method,
                seed=run.seed,
                local=LOCAL,
                engine=engine,
                **settings,
            )
            for mine, theirs in zip(found.history_rows, alone.history_rows, strict=True):
                assert {k: mine.get(k) for k in GAPS} == {k: theirs.get(k) for k in GAPS}
        # no positive sample of group b: there is nothing to compare
        assert all("tpr_gap" not in row for row in found.history_rows)
        assert all(row["selection_gap"] >= 0 for row in found.history_rows)


def test_without_two_classes_or_two_groups_the_history_has_no_gaps() -> None:
    three = eh.fit(network(), ragged((9, 9)), eh.FedAvg(), rounds=1, local=LOCAL)
    one = fitted(two_classes(("a",)))
    number = fitted(two_classes(), 1, loss="mse")
    for result in (three, one, number):
        assert not set(GAPS) & set().union(*result.history_rows)
