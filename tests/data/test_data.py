"""Federations: flat storage, groups and teams, the census, and the embedded digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh


def small() -> eh.Federation:
    return eh.Federation.from_arrays(
        [
            {
                "x": np.arange(6.0).reshape(3, 2),
                "y": [0, 1, 1],
                "group": ["f", "m", "f"],
                "team": "B",
                "name": "north",
            },
            {
                "x": torch.ones(1, 2),
                "y": torch.tensor([0]),
                "group": np.array(["m"]),
                "team": "A",
                "name": "south",
            },
        ],
        test=[{"x": np.zeros((2, 2)), "y": [1, 0], "group": ["m", "x"]}, None],
    )


def test_samples_lie_flat_with_offsets_in_the_order_given() -> None:
    fed = small()
    assert fed.train.offsets.tolist() == [0, 3, 4]
    assert fed.train.x.tolist() == [[0, 1], [2, 3], [4, 5], [1, 1]]
    x, y, group = fed.train.client(1)
    assert (x.tolist(), y.tolist(), None if group is None else group.tolist()) == (
        [[1, 1]],
        [0],
        [1],
    )
    assert fed.test is not None
    assert fed.test.sizes.tolist() == [2, 0]
    assert (fed.clients, fed.name(1), fed.groups) == (2, "south", 3)


def test_groups_and_teams_are_coded_by_sorted_name_over_all_parts() -> None:
    fed = small()
    assert fed.group_names == ("f", "m", "x")
    assert fed.train.group is not None
    assert fed.train.group.tolist() == [0, 1, 0, 1]
    assert fed.team_names == ("A", "B")
    assert fed.teams is not None
    assert fed.teams.tolist() == [1, 0]


def test_census_counts_samples_groups_and_teams() -> None:
    census = small().census()
    assert census.sizes.tolist() == [3, 1]
    assert census.weight.tolist() == [0.75, 0.25]
    assert census.group_counts is not None
    assert census.group_counts.tolist() == [[2, 1, 0], [0, 1, 0]]
    assert small().census("uniform").weight.tolist() == [0.5, 0.5]


def test_numeric_labels_sort_by_value() -> None:
    fed = eh.Federation.from_arrays([{"x": np.zeros((3, 1)), "y": [0, 0, 0], "group": [10, 9, 2]}])
    assert fed.group_names == ("2", "9", "10")


def test_a_million_clients_are_arrays_and_a_round_costs_its_cohort() -> None:
    clients = 1_000_000
    fed = eh.Federation(
        eh.Part(
            torch.randn(2 * clients, 4),
            torch.arange(2 * clients) % 2,
            torch.arange(clients + 1) * 2,
        )
    )
    objects = sum(
        isinstance(value, torch.Tensor) for value in (fed.train.x, fed.train.y, fed.train.offsets)
    )
    assert objects == 3
    exchange = eh.Vmap().attach(eh.Model(torch.nn.Linear(4, 2)), fed, seed=0)
    from evenhand.engines.work import Train
    from evenhand.training.server import with_round

    census, algorithm = fed.census(), eh.FedAvg()
    draw = eh.Uniform(50).draw(census, 0, 0).ascending()
    state = algorithm.init(eh.Model(torch.nn.Linear(4, 2)).init(), census)
    replies = exchange.exchange(
        Train(algorithm, eh.LocalSGD(lr=0.1)),
        with_round(algorithm.task(state, draw.ids), draw, 0.1),
        draw.ids,
        0,
    )
    assert torch.equal(replies.ids, draw.ids)


def test_integer_inputs_reach_the_module_as_tokens() -> None:
    tokens = [
        {"x": np.array([[0, 1], [2, 3]], dtype=np.uint8), "y": [0, 1]},
        {"x": np.array([[3, 3]], dtype=np.uint8), "y": [1]},
    ]
    module = torch.nn.Sequential(
        torch.nn.Embedding(4, 3), torch.nn.Flatten(), torch.nn.Linear(6, 2)
    )
    results = [
        eh.fit(module, eh.Federation.from_arrays(tokens), eh.FedAvg(), rounds=2, engine=engine)
        for engine in ("loop", "vmap")
    ]
    torch.testing.assert_close(results[0].params, results[1].params)


def test_float64_data_meet_a_float32_module() -> None:
    fed = eh.Federation.from_arrays(
        [{"x": np.random.default_rng(0).normal(size=(8, 3)), "y": np.arange(8) % 2}]
    )
    assert (
        eh.fit(torch.nn.Linear(3, 2), fed, eh.FedAvg(), rounds=1).params["weight"].dtype
        == torch.float32
    )


def test_clients_without_test_data_have_no_score_and_do_not_spoil_the_mean() -> None:
    result = eh.fit(torch.nn.Linear(2, 2), small(), eh.FedAvg(), rounds=2)
    north, south = result.score_rows[:2]
    assert (north["count"], south["count"]) == (2, 0)
    assert np.isnan(south["accuracy"])
    assert result.summary["mean"] == north["accuracy"]
    assert [row["name"] for row in result.score_rows if row["by"] == "group"] == ["f", "m", "x"]


def test_a_column_of_targets_stays_a_column_for_a_users_own_loss_and_a_column_of_labels_does_not() -> (
    None
):
    column = eh.Federation.from_arrays([{"x": np.ones((3, 2)), "y": np.ones((3, 1))}])
    assert column.train.y.shape == (3, 1)
    assert eh.Federation.from_arrays(
        [{"x": np.ones((3, 2)), "y": np.ones((3, 1), int)}]
    ).train.y.shape == (3,)
    module = torch.nn.Linear(2, 1)
    own = eh.fit(
        module, column, eh.FedAvg(), loss=lambda output, y: ((output - y) ** 2).mean(1), rounds=2
    )
    torch.testing.assert_close(
        own.params, eh.fit(module, column, eh.FedAvg(), loss="mse", rounds=2).params
    )


def test_a_loss_that_mixes_samples_is_refused() -> None:
    vector = eh.Federation.from_arrays([{"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3.0)}])
    with pytest.raises(
        ValueError,
        match=r"depends on the other samples in its batch.*output \[2, 1\], target \[2\]",
    ):
        eh.fit(
            torch.nn.Linear(2, 1),
            vector,
            eh.FedAvg(),
            loss=lambda output, y: ((output - y) ** 2).mean(1),
            rounds=1,
        )


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    x = np.zeros((2, 2))
    x.setflags(write=False)
    assert eh.Federation.from_arrays([{"x": x, "y": [0, 1]}]).clients == 1


@pytest.mark.parametrize("clients", [2, 20, 60])
def test_digits_are_unfair_in_the_stated_ways(clients: int) -> None:
    from sklearn.datasets import load_digits

    fed = eh.datasets.digits(clients=clients, seed=1)
    assert fed.test is not None
    assert int(fed.train.sizes.sum() + fed.test.sizes.sum()) == len(load_digits().target)
    assert int(fed.train.sizes.min()) >= 1
    assert int(fed.test.sizes.min()) >= 1
    assert fed.team_names == ("rotated", "upright")
    assert fed.teams is not None
    assert int((fed.teams == 0).sum()) == max(1, round(0.25 * clients))
    again = eh.datasets.digits(clients=clients, seed=1)
    other = eh.datasets.digits(clients=clients, seed=2)
    assert torch.equal(fed.train.x, again.train.x)
    assert not torch.equal(fed.train.sizes, other.train.sizes)


def test_upright_digits_are_the_originals_and_rotated_ones_are_turned() -> None:
    from sklearn.datasets import load_digits

    originals = {tuple(image) for image in (load_digits().data / 16).astype(np.float32).tolist()}
    fed = eh.datasets.digits(clients=8, seed=0, noise=0.0, flat=False)
    assert fed.teams is not None
    for client in range(8):
        x, _, _ = fed.train.client(client)
        turned = torch.rot90(x, -1, dims=(2, 3)) if int(fed.teams[client]) == 0 else x
        assert all(tuple(image.flatten().tolist()) in originals for image in turned)


def test_a_fingerprint_changes_with_the_order_the_parts_and_the_names_of_the_data() -> None:
    def made(**changes: Any) -> str:
        x = torch.arange(8.0).reshape(4, 2)
        client = {"x": x, "y": [0, 1, 1, 0], "group": ["f", "m", "m", "f"], "name": "a", **changes}
        held = client.pop("held", x[:1])
        return eh.Federation.from_arrays(
            [client], test=[{"x": held, "y": [1], "group": ["f"]}]
        ).fingerprint()

    assert made() == made()
    x = torch.arange(8.0).reshape(4, 2)
    others = (
        {"x": x[[1, 0, 2, 3]]},
        {"x": x + 1},
        {"y": [1, 0, 1, 0]},
        {"group": ["m", "f", "m", "f"]},
        {"name": "b"},
        {"held": x[1:2]},
        {"team": "north"},
    )
    assert len({made(), *(made(**other) for other in others)}) == 8
