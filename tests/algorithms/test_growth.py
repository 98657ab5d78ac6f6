"""Clients that join a run in the middle: nothing that was learned is lost, and the newcomers
count."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.cohort import Draw
from evenhand.growth import Extent, first_clients, grown, resettled
from tests.support.federations import METHODS, network, ragged
from tests.support.joining import FEW, JOINED, ROUNDS, SETTINGS, SIZES, enlarged

# ---- the state, by hand


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_constants_of_the_census_are_new_and_what_was_learned_is_kept() -> None:
    state = {
        "model": {"w": t(5, 6)},
        "base": t(0.5, 0.5),
        "team": torch.tensor([0, 1]),
        "eta": t(3),
        "loss": t(7, 8),
    }
    before = {
        "model": {"w": t(0, 0)},
        "base": t(0.5, 0.5),
        "team": torch.tensor([0, 1]),
        "eta": t(0),
        "loss": t(0, 0),
    }
    after = {
        "model": {"w": t(0, 0)},
        "base": t(0.4, 0.4, 0.2),
        "team": torch.tensor([0, 1, 0]),
        "eta": t(0),
        "loss": t(0, 0, -1),
    }
    found = grown(state, before, after)
    assert list(found) == list(state)
    assert {key: leaf.tolist() for key, leaf in tree.flatten(found).items()} == {
        "model/w": [5, 6],
        "base": [0.4, 0.4, 0.2],
        "team": [0, 1, 0],
        "eta": [3],
        "loss": [7, 8, -1],
    }
    assert after["loss"].tolist() == [0, 0, -1]  # not written to


def test_a_table_of_clients_by_clients_grows_at_its_end() -> None:
    found = grown(
        {"c": t(1, 2, 3, 4).reshape(2, 2)},
        {"c": torch.zeros(2, 2)},
        {"c": torch.full((3, 3), 9.0, dtype=torch.float64)},
    )
    assert found["c"].tolist() == [[1, 2, 9], [3, 4, 9], [9, 9, 9]]


def test_a_list_that_grows_by_itself_stays() -> None:
    found = grown(
        {"heard": torch.tensor([1, 0])}, {"heard": torch.zeros(0)}, {"heard": torch.zeros(0)}
    )
    assert found["heard"].tolist() == [1, 0]


def test_a_leaf_that_cannot_be_placed_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"cannot extend state 'log' to new clients; implement join\(\)"
    ):
        grown({"log": torch.ones(7, 2)}, {"log": torch.zeros(0, 2)}, {"log": torch.zeros(0, 3)})


def test_newcomers_get_their_base_weight_and_the_others_share_the_rest() -> None:
    assert resettled(t(0.7, 0.3, -5), t(0.5, 0.5), t(0.4, 0.4, 0.2)).tolist() == pytest.approx(
        [0.56, 0.24, 0.2]
    )
    # at the base weights still
    assert resettled(t(0.5, 0.5, 0), t(0.5, 0.5), t(0.4, 0.4, 0.2)).tolist() == pytest.approx(
        [0.4, 0.4, 0.2]
    )
    # a group that only test data had until now is new as well
    assert resettled(t(1, 0, 0), t(1, 0), t(0.5, 0.25, 0.25)).tolist() == [0.5, 0.25, 0.25]


def census(counts: list[list[int]]) -> eh.Census:
    table = torch.tensor(counts)
    sizes = table.sum(1)
    return eh.Census(sizes, sizes.double() / sizes.sum(), table, None)


def joined(
    method: eh.Algorithm,
    changes: dict[str, Tensor],
    before: list[list[int]],
    after: list[list[int]],
) -> dict[str, Any]:
    first, last = (method.init({"w": torch.zeros(1)}, census(counts)) for counts in (before, after))
    return method.join({**first, "model": {"w": torch.ones(1)}, **changes}, first, last)


def test_the_duals_of_afl_by_hand() -> None:
    found = joined(
        eh.Averaged(eh.AFL()),
        {"lam": t(0.8, 0.2), "average_lam": t(0.6, 0.4)},
        [[5], [5]],
        [[5], [5], [10]],
    )
    assert found["lam"].tolist() == pytest.approx([0.4, 0.1, 0.5])
    assert found["base"].tolist() == [0.25, 0.25, 0.5]
    assert found["average_lam"].tolist() == [0.6, 0.4, 0.0]  # it had no weight in those rounds
    assert found["model"]["w"].tolist() == [1]


def test_the_duals_of_drfa_stay_above_their_floor() -> None:
    found = joined(eh.DRFA(floor=0.1), {"lam": t(0.9, 0.1)}, [[5], [5]], [[5], [5], [10]])
    # the nearest point to (0.45, 0.05, 0.5) with nobody below 0.1: 0.05 is raised by 0.05, which
    # the other two give half each
    assert found["lam"].tolist() == pytest.approx([0.425, 0.1, 0.475])


def test_a_new_group_has_its_share_and_no_risk_yet() -> None:
    learned = {"mu": t(0.9, 0.1), "risk": t(2, 1), "seen": t(1, 1)}
    found = joined(eh.FedMinMax(), learned, [[5, 5]], [[5, 5, 0], [0, 5, 5]])
    assert found["mu"].tolist() == pytest.approx([0.675, 0.075, 0.25])
    assert found["rho"].tolist() == [0.25, 0.5, 0.25]
    assert (found["risk"].tolist(), found["seen"].tolist()) == ([2, 1, 0], [1, 1, 0])
    low = joined(eh.FedMinMax(floor=0.1), learned, [[5, 5]], [[5, 5, 0], [0, 5, 5]])
    assert low["mu"].tolist() == pytest.approx([0.6625, 0.1, 0.2375])


def test_a_new_group_can_rise_by_factors() -> None:
    learned = {"lam": t(0.8, 0.2, 0), "recent": t(0.6, 0.4, 0).repeat(2, 1)}
    # the third was in test data alone
    found = joined(eh.AgnosticFedAvg(window=2), learned, [[5, 5, 0]], [[5, 5, 0], [0, 0, 10]])
    assert found["lam"].tolist() == pytest.approx([0.4, 0.1, 0.5])
    assert found["recent"].tolist() == [[0.6, 0.4, 0.5]] * 2


@pytest.mark.parametrize("solver", ["newton", "ftrl"])
def test_newcomers_of_aaggff_count_as_if_they_had_never_been_asked(solver: str) -> None:
    """The learner's past with three clients, of whom two are asked, against two clients of whom
    both are, where the responses are alike."""
    past = {"linear": t(-3, -1)} | (
        {"curvature": t(4, 2, 2, 1).reshape(2, 2)} if solver == "newton" else {"rounds": t(7)[0]}
    )
    found = joined(
        eh.AAggFF(solver=solver), past | {"lam": t(0.8, 0.2)}, [[5], [5]], [[5], [5], [10]]
    )
    assert found["linear"].tolist() == [-3, -1, -2]
    if solver == "newton":
        # of gradients (2, 1), with (2 + 1) / 2 added
        assert found["curvature"].tolist() == [[4, 2, 3], [2, 1, 1.5], [3, 1.5, 2.25]]
    assert found["lam"].tolist() == pytest.approx([0.4, 0.1, 0.5])


def test_a_guard_caps_the_duals_of_a_larger_federation() -> None:
    found = joined(
        eh.LossGuard(cap=0.5, inner=eh.AFL()), {"lam": t(0.5, 0.5)}, [[5], [5]], [[5], [5], [30]]
    )
    # without the cap 0.125, 0.125, 0.75
    assert found["lam"].tolist() == pytest.approx([0.25, 0.25, 0.5])


# ---- the federation as it was


def test_the_first_clients_are_the_federation_that_was() -> None:
    whole = ragged(SIZES)
    few = first_clients(whole, FEW)
    arrays = [
        [
            {"x": x, "y": y, "group": [whole.group_names[code] for code in codes]}
            for x, y, codes in map(part.client, range(4))  # type: ignore[union-attr]
        ]
        for part in (whole.train, whole.test)
    ]
    teams = ("even", "odd", "even", "odd")
    again = eh.Federation.from_arrays(
        [{**client, "team": team} for client, team in zip(arrays[0], teams, strict=True)],
        test=arrays[1],
    )
    assert few.fingerprint() == again.fingerprint()
    assert few.clients == 4
    assert few.census().sizes.tolist() == [12, 30, 7, 40]
    assert few.teams is not None
    assert few.teams.tolist() == [0, 1, 0, 1]
    assert few.test is not None
    assert len(few.test.x) == 36
    assert first_clients(whole, Extent(5, 3, 2)) is whole
    assert first_clients(whole, Extent(6, 3, 2)) is whole
    assert first_clients(whole, Extent(1, 3, 1)).team_names == ("even",)
    # its clients have three groups: it never was like that
    assert first_clients(whole, Extent(4, 2, 2)) is whole


def test_a_part_that_only_newcomers_have_was_not_there() -> None:
    x, y = np.zeros((2, 1)), np.zeros(2, int)
    whole = eh.Federation.from_arrays([{"x": x, "y": y}] * 2, test=[None, {"x": x, "y": y}])
    assert first_clients(whole, Extent(1, 0, 0)).test is None


# ---- every method


@dataclasses.dataclass(frozen=True)
class FirstFew(eh.Cohort):
    """Until the newcomer is there, the others with the weights that they have among themselves."""

    def draw(self, census: eh.Census, seed: int, round: int) -> Draw:
        draw = eh.Full().draw(census, seed, round)
        if round >= JOINED:
            return draw
        weight = census.sizes[:4].double() / census.sizes[:4].sum()
        return Draw(draw.ids[:4], weight, weight)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "qffl", "propfair", "fedmgda", "fedadam"])
def test_methods_without_duals_go_on_as_if_the_newcomer_had_only_been_away(
    method: str, tmp_path: Path
) -> None:
    whole = ragged(SIZES)
    expected = eh.fit(
        network(), whole, METHODS[method], rounds=ROUNDS, cohort=FirstFew(), **SETTINGS
    )
    found = enlarged(METHODS[method], tmp_path, whole)
    for key, value in tree.flatten({"params": expected.params, "state": expected.state}).items():
        assert torch.equal(
            tree.flatten({"params": found.params, "state": found.state})[key], value
        ), key
    assert [row["answered"] for row in found.history_rows] == [4, 4, 5, 5, 5]
    assert found.score_columns["accuracy"].tolist() == pytest.approx(
        expected.score_columns["accuracy"].tolist()
    )


@pytest.mark.parametrize("cohort", [eh.Full(), eh.Uniform(3)], ids=["everyone", "some"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_with_a_newcomer_that_counts(
    method: str, cohort: eh.Cohort, tmp_path: Path
) -> None:
    whole = ragged(SIZES)
    found = enlarged(METHODS[method], tmp_path / "run", whole, cohort=cohort)
    assert len(found.history_rows) == ROUNDS
    assert not any(row["left_out"] for row in found.history_rows)
    for key, value in tree.flatten({"params": found.params, "state": found.state}).items():
        assert value.isfinite().all(), key
    for name in ("lam", "mu", "rho", "base"):
        if name in found.state:
            assert float(found.state[name].sum()) == pytest.approx(1), name
            assert (found.state[name] >= 0).all(), name
    assert found.score_columns["by"].count("client") == 5
    # where it is in every cohort, other data of it lead to another model
    if isinstance(cohort, eh.Full) and method != "localonly":
        start = int(whole.train.offsets[4])
        whole.train.x[start:] *= -1
        other = enlarged(METHODS[method], tmp_path / "other", whole, cohort=cohort)
        assert any(not torch.equal(found.params[key], other.params[key]) for key in found.params)


@pytest.mark.parametrize(
    "method", ["fedminmax", "agnosticfedavg", "gifair", "term_team", "gifair_per"]
)
def test_a_newcomer_may_bring_a_group_and_a_team(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(20, 5)),
            "y": rng.integers(0, 3, 20),
            "group": ["b", "c"] * 10,
            "team": team,
        }
        for team in ("even", "odd", "even")
    ]
    clients[2] |= {"group": ["c", "d"] * 10, "team": "third"}
    found = enlarged(METHODS[method], tmp_path, eh.Federation.from_arrays(clients), Extent(2, 2, 2))
    for key, value in tree.flatten(found.state).items():
        assert value.isfinite().all(), key
    lengths = {
        name: len(found.state[name])
        for name in ("mu", "rho", "risk", "loss", "index")
        if name in found.state
    }
    assert set(lengths.values()) == {3}
    if "seen" in found.state:
        assert found.state["seen"].tolist() == [1, 1, 1]
    weight = found.state.get("mu", found.state.get("lam", torch.ones(3)))
    assert (weight > 0).all()


def test_tracked_weights_of_newcomers_are_zero_before_they_join(tmp_path: Path) -> None:
    found = enlarged(eh.QFFL(q=1), tmp_path, ragged(SIZES), track_weights=True, eval_every=1)
    assert found.weight_history is not None
    assert found.weight_history.shape == (5, 5)
    assert found.weight_history.sum(1).tolist() == pytest.approx([1] * 5)
    assert (found.weight_history[:, 4] > 0).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    "method",
    [eh.FAFL(alpha=(0.5, 0.6, 0.7, 0.8), mu=0.1), eh.DRFA(floor=0.25)],
    ids=["one for each", "floor"],
)
def test_a_method_that_cannot_have_more_clients_says_so(
    method: eh.Algorithm, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="for 5 clients"):
        enlarged(method, tmp_path, ragged(SIZES))


def test_other_data_of_old_clients_and_fewer_clients_are_refused_as_ever(tmp_path: Path) -> None:
    whole = ragged(SIZES)
    enlarged(eh.FedAvg(), tmp_path, whole)
    options = {**SETTINGS, "rounds": ROUNDS, "out": tmp_path, "checkpoint_every": 1, "resume": True}
    for other in (first_clients(whole, FEW), ragged((13, *SIZES[1:], 8))):
        with pytest.raises(eh.RunError, match="other settings or data"):
            eh.fit(network(), other, eh.FedAvg(), **options)
