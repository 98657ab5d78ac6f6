"""What the server knows of the data: counts, shapes and names, with the census of the real
federation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.data.earlier import earlier_fingerprint
from evenhand.data.population import Census, Population
from evenhand.flower.node_data import with_groups
from evenhand.flower.ordering import merge_orders, natural_order
from evenhand.flower.registration import MOST_SAMPLES, Registration, read_report, report_data
from evenhand.flower.roster import Roster
from evenhand.messages import Reply
from tests.support.federations import SIZES, ragged
from tests.support.flower_nodes import one_client


def entries_of(federation: eh.Federation) -> list[Registration]:
    return [
        read_report(*report_data(one_client(federation, client), f"site {client}"))
        for client in range(federation.clients)
    ]


def population_of(registrations: list[Registration]) -> Population:
    return Roster.of(registrations).population


def entry(name: str = "a", **changes: Any) -> Registration:
    """Of a node with three training samples of two groups, five features each."""
    counts = {
        "train": torch.tensor([2, 1]),
        "val": torch.tensor([0, 0]),
        "test": torch.tensor([0, 4]),
    }
    about = {
        "name": name,
        "team": "t",
        "groups": ["x", "y"],
        "labels": [],
        "x_shape": [5],
        "y_shape": [],
    }
    about |= {"x_type": "float32", "y_type": "int64", "share": "method"}
    counts |= changes.pop("counts", {})
    return read_report(Reply(each=counts), about | changes)


def assert_same_census(found: Census, expected: Census) -> None:
    for name in ("sizes", "weight", "group_counts", "teams"):
        first, second = getattr(found, name), getattr(expected, name)
        assert first.dtype == second.dtype, name
        assert torch.equal(first, second), name


@pytest.mark.parametrize("sizes", [SIZES, (1, 2, 3), (1, 1)])
@pytest.mark.parametrize("weights", ["data", "uniform"])
def test_the_census_is_that_of_the_real_federation(sizes: tuple[int, ...], weights: str) -> None:
    real = ragged(sizes)
    known = population_of(entries_of(real))
    assert_same_census(known.census(weights), real.census(weights))
    assert (known.group_names, known.team_names, known.clients) == (
        real.group_names,
        real.team_names,
        real.clients,
    )
    assert known.form == real.form
    for kind in ("train", "val", "test"):
        part = getattr(real, kind)
        if part is None:
            assert not known.has(kind)
            continue
        assert torch.equal(known.sizes(kind), part.offsets.diff())
        cells = torch.bincount(part.owners * 3 + part.group, minlength=3 * len(sizes))
        assert torch.equal(known.counts(kind).flatten(), cells)


def test_a_client_may_lack_a_group_and_have_its_own_order() -> None:
    first = entry("a", groups=["y", "x"], counts={"train": torch.tensor([5, 7])})
    second = entry(
        "b",
        groups=["z"],
        counts={"train": torch.tensor([4]), "val": torch.tensor([0]), "test": torch.tensor([1])},
    )
    known = population_of([first, second])
    assert known.group_names == ("y", "x", "z")
    counts = known.census().group_counts
    assert counts is not None
    assert counts.tolist() == [[5, 7, 0], [0, 0, 4]]
    assert known.sizes("test").tolist() == [4, 1]


def test_a_node_takes_over_the_codes_of_all_groups() -> None:
    data = eh.Federation.from_arrays(
        [{"x": np.zeros((4, 1)), "y": [0, 1, 1, 0], "group": ["q", "b", "q", "z"]}]
    )
    assert data.group_names == ("b", "q", "z")
    wider = with_groups(data, ("z", "a", "q", "b"))
    assert wider.train.group is not None
    assert [wider.group_names[code] for code in wider.train.group.tolist()] == ["q", "b", "q", "z"]
    assert wider.train.group.tolist() == [2, 3, 2, 0]
    assert wider.train.x is data.train.x
    assert with_groups(data, ()) is data
    assert with_groups(data, ("b", "q", "z")) is data
    with pytest.raises(eh.RunError, match="other groups than it reported at the start"):
        with_groups(data, ("b", "q"))


def test_without_groups_teams_and_tests_there_are_none() -> None:
    data = eh.Federation.from_arrays(
        [{"x": np.zeros((3, 2, 2), np.uint8), "y": np.zeros((3, 1), np.float32)}]
    )
    found = read_report(*report_data(data, "site 4"))
    assert (found.name, found.team, found.groups) == ("site 4", "", ())
    known = population_of([found])
    assert (known.teams, known.group_names, known.names) == (None, (), ("site 4",))
    assert (known.has("train"), known.has("test"), known.has("val")) == (True, False, False)
    assert known.judged_part == "train"
    assert known.census().group_counts is None
    assert known.form == ((2, 2), torch.uint8, (1,), torch.float32, "")
    assert known.sizes("train").tolist() == [3]


def test_nothing_is_told_but_counts_names_and_shapes() -> None:
    real = ragged((3, 4))
    reply, about = report_data(one_client(real, 0), "0")
    assert reply.total == {}
    assert {
        name: (values.shape, values.dtype) for name, values in reply.each.items()
    } == dict.fromkeys(("train", "val", "test"), (torch.Size([3]), torch.int64))
    assert set(about) == {
        "name",
        "team",
        "groups",
        "labels",
        "x_type",
        "y_type",
        "x_shape",
        "y_shape",
        "inputs",
        "share",
    }


def test_names_are_in_the_order_in_which_people_sort_them() -> None:
    assert natural_order(["site 10", "site 2", "site 1", "b", "a10b2", "a10b11", "a9"]) == [
        "a9",
        "a10b2",
        "a10b11",
        "b",
        "site 1",
        "site 2",
        "site 10",
    ]
    assert natural_order(["10", "9", "x"]) == ["9", "10", "x"]
    # digits that are not 0 to 9 are letters here
    assert natural_order(["²", "٣", "2", "1"]) == ["1", "2", "²", "٣"]


def test_the_order_of_names_does_not_depend_on_who_comes_first() -> None:
    for names in (["1", "01", "001"], ["a1", "a01"], ["9" * 30, "9" * 29 + "8", "9" * 5000]):
        assert natural_order(names) == natural_order(names[::-1])


def test_groups_are_in_the_order_that_all_nodes_have() -> None:
    assert merge_orders([("a", "c"), ("b", "c"), ("c", "d")]) == ("a", "b", "c", "d")
    assert merge_orders([("age=2", "age=10"), ("age=10", "unknown"), ("age=2", "zeta")]) == (
        "age=2",
        "age=10",
        "unknown",
        "zeta",
    )
    # tables have it last
    assert merge_orders([("z", "unknown"), ("a", "unknown")]) == ("a", "z", "unknown")
    # numbers that travel as text
    assert merge_orders([("10",), ("9",), ("x",), ("2.5",), ("-1",)]) == (
        "-1",
        "2.5",
        "9",
        "10",
        "x",
    )
    assert merge_orders([("a", "b"), ("b", "a"), ("c",)]) == (
        "a",
        "b",
        "c",
    )  # they contradict each other
    assert merge_orders([("nan",), ("inf",), ("1e400",)]) == ("1e400", "inf", "nan")
    assert merge_orders([]) == ()


@pytest.mark.parametrize(
    "labels",
    [["g2", "g10", "g1"], [2, 10, 1], [0.5, 2.5, 2.15], ["F", "M", "d"], [False, True, True]],
)
def test_groups_and_teams_have_the_numbers_that_they_have_in_the_simulator(
    labels: list[Any],
) -> None:
    """Of three clients, each with two of the groups."""
    clients = [
        {
            "x": np.zeros((4, 1)),
            "y": [0, 1, 0, 1],
            "group": [labels[i], labels[i - 1]] * 2,
            "team": labels[i],
            "name": str(i),
        }
        for i in range(3)
    ]
    whole = eh.Federation.from_arrays(clients)
    known = population_of(
        [
            read_report(*report_data(eh.Federation.from_arrays([client]), client["name"]))
            for client in clients
        ]
    )
    assert (known.group_names, known.team_names) == (whole.group_names, whole.team_names)
    assert known.census().group_counts.tolist() == whole.census().group_counts.tolist()  # type: ignore[union-attr]


def test_newcomers_have_the_next_numbers_and_so_have_their_groups_and_teams() -> None:
    first = Roster.of([entry("b", team="t"), entry("c", team="t")])
    late = entry("a", team="s", groups=["a", "x"], counts={"train": torch.tensor([2, 1])})
    larger = first.with_clients([late])
    assert larger.population.names == ("b", "c", "a")
    assert larger.population.group_names == ("x", "y", "a")
    assert larger.population.team_names == ("t", "s")
    counts = larger.population.census().group_counts
    assert counts is not None
    assert counts.tolist() == [[2, 1, 0], [2, 1, 0], [1, 0, 2]]
    assert (larger.number("a"), larger.number("d")) == (2, None)
    again = Roster.from_plain(json.loads(json.dumps(larger.to_plain())))
    assert again.population.fingerprint() == larger.population.fingerprint()
    assert [
        one.is_same_client(other) for one, other in zip(again.clients, larger.clients, strict=True)
    ] == [True] * 3
    with pytest.raises(ValueError, match="samples of different shapes"):
        first.with_clients([entry("d", x_shape=[6])])


def test_a_client_is_known_again_by_all_that_it_tells() -> None:
    known = entry("a", groups=["x", "y"])
    swapped = {part: counts.flip(0) for part, counts in known.counts.items()}
    assert known.is_same_client(entry("a", groups=["y", "x"], counts=swapped))  # in another order
    others = (
        {"name": "b"},
        {"team": "s"},
        {"labels": ["no"]},
        {"x_shape": [4]},
        {"groups": ["x", "z"]},
        {"counts": swapped},
        {"counts": {**known.counts, "test": known.counts["test"] + 1}},
    )
    assert not any(
        known.is_same_client(entry(**{"name": "a", "groups": ["x", "y"], **change}))
        for change in others
    )


def test_teams_have_codes_in_order_and_clients_keep_theirs() -> None:
    known = population_of([entry("a", team="t2"), entry("b", team="t10"), entry("c", team="t2")])
    assert known.team_names == ("t10", "t2")
    assert known.teams is not None
    assert known.teams.tolist() == [1, 0, 1]
    assert known.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x_shape": [6]}, "nodes a and b have samples of different shapes or types"),
        ({"x_shape": [5, 1]}, "nodes a and b have samples of different shapes or types"),
        ({"x_type": "float64"}, "nodes a and b have samples of different shapes or types"),
        ({"y_shape": [1]}, "nodes a and b have samples of different shapes or types"),
        ({"y_type": "float32"}, "nodes a and b have samples of different shapes or types"),
        (
            {"team": ""},
            "nodes a and b differ in their classes, or only one of them has groups or teams",
        ),
        (
            {"labels": ["no", "yes"]},
            "nodes a and b differ in their classes, or only one of them has groups or teams",
        ),
        (
            {
                "groups": [],
                "counts": {
                    "train": torch.tensor([1]),
                    "val": torch.tensor([0]),
                    "test": torch.tensor([0]),
                },
            },
            "nodes a and b differ in their classes, or only one of them has groups or teams",
        ),
        ({"name": "a"}, "'a' is used 2 times"),
    ],
)
def test_nodes_that_do_not_fit_together_are_refused_in_one_line(
    changes: dict[str, Any], reason: str
) -> None:
    other = entry(**{"name": "b", **changes})
    with pytest.raises(ValueError, match=reason) as caught:
        population_of([entry("a"), other])
    assert "\n" not in str(caught.value)
    population_of([entry("a"), entry("b")])  # without the change they do


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 7},
        {"name": ""},
        {"name": "a\nWARNING: all is well"},
        {"name": "a" * 1000},
        {"team": ["t"]},
        {"groups": "xy z"},
        {"groups": ["x", "x"]},
        {"groups": [1, 2]},
        {"groups": ["x"]},
        {"groups": ["x", "y", "z"]},
        {"labels": [0, 1]},
        {"labels": 5},
        {"x_type": "object"},
        {"x_type": ["float32"]},
        {"y_type": "quint8"},
        {"x_shape": [-1]},
        {"x_shape": [2.5]},
        {"x_shape": [True]},
        {"x_shape": ["5"]},
        {"x_shape": 5},
        {"x_shape": [2**40]},
        {"x_shape": [2**20, 2**20]},
        {"counts": {"train": torch.tensor([2, -1])}},
        {"counts": {"train": torch.tensor([0, 0])}},
        {"counts": {"train": torch.tensor([2.0, 1.0])}},
        {"counts": {"train": torch.tensor([3])}},
        {"counts": {"train": torch.tensor(3)}},
        {"counts": {"test": torch.tensor([[0, 4]])}},
        {"counts": {"train": torch.tensor([2**62, 2**62])}},
        {"counts": {"train": torch.tensor([MOST_SAMPLES, 1])}},
        {"counts": {"train": {"deep": torch.tensor([2, 1])}}},
        {"counts": {"more": torch.tensor([2, 1])}},
    ],
    ids=str,
)
def test_what_a_node_cannot_mean_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="node ") as caught:
        entry(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert "all is well" not in message


def test_a_node_that_tells_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="install the same version everywhere"):
        read_report(Reply(), {})


def test_the_server_keeps_counts_however_many_samples_there_are() -> None:
    """A million pictures would be 12 GB."""
    many = {"train": torch.tensor([900_000, 100_000]), "test": torch.tensor([0, 1000])}
    known = population_of([entry(name, x_shape=[3, 32, 32], counts=many) for name in "ab"])
    assert known.sizes("train").tolist() == [1_000_000] * 2
    held = [known.counts(part).untyped_storage().nbytes() for part in ("train", "val", "test")]
    assert held == [2 * 2 * 8] * 3
    assert known.census().group_counts.tolist() == [[900_000, 100_000]] * 2  # type: ignore[union-attr]


def zeros(registrations: list[Registration], kind: str, groups: tuple[str, ...]) -> eh.Part | None:
    """A part of the data as earlier versions made it up from counts."""
    sizes = torch.tensor([int(one.counts[kind].sum()) for one in registrations])
    total, form = int(sizes.sum()), registrations[0].form
    if not total:
        return None
    codes = [
        torch.repeat_interleave(
            torch.tensor([groups.index(name) for name in one.groups]), one.counts[kind]
        )
        for one in registrations
    ]
    return eh.Part(
        eh.View(
            torch.zeros(1, *form.x_shape, dtype=form.x_dtype), torch.zeros(total, dtype=torch.int64)
        ),
        torch.zeros(total, *form.y_shape, dtype=form.y_dtype),
        torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        torch.cat(codes) if groups else None,
    )


@pytest.mark.parametrize("groups", [("x", "y"), ()])
def test_runs_of_earlier_versions_go_on_because_their_fingerprint_is_still_known(
    groups: tuple[str, ...],
) -> None:
    """Checkpoints compare it. Until there were populations, a server had zeros for samples."""

    def counts(*values: int) -> torch.Tensor:
        return torch.tensor(values if groups else [sum(values)])

    def client(name: str, team: str, samples: int, shape: int = 5) -> Registration:
        parts = {"train": counts(samples, 7), "val": counts(0, 0), "test": counts(3, samples)}
        return entry(name, team=team, groups=list(groups), counts=parts, x_shape=[shape])

    registrations = [client("a", "t", 2), client("b", "s", 0), client("c", "t", 31)]
    known = population_of(registrations)
    parts = {kind: zeros(registrations, kind, groups) for kind in ("train", "val", "test")}
    before = eh.Federation(
        **parts,  # type: ignore[arg-type]
        teams=known.teams,
        team_names=known.team_names,
        group_names=groups,
        names=known.names,
        label_names=known.label_names,
    )
    assert earlier_fingerprint(known) == earlier_fingerprint(before)
    others = [
        [client("d", "t", 2), *registrations[1:]],
        [client("a", "s", 2), *registrations[1:]],
        [client("a", "t", 1), *registrations[1:]],
        [client("a", "t", 2, 6), client("b", "s", 0, 6), client("c", "t", 31, 6)],
    ]
    assert known.fingerprint() not in {population_of(other).fingerprint() for other in others}
