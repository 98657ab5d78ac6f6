"""Who is let in, and how much they weigh: what a node claims of itself buys nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

import evenhand as eh
from evenhand.errors import RunError
from evenhand.flower import Admission, gathering, records
from evenhand.flower.registration import Registration, read_report
from evenhand.flower.roster import Roster
from evenhand.flower.weighing import WeighedPopulation, weighed_reply
from evenhand.messages import Reply
from evenhand.metrics.client_sums import client_sums
from tests.support.federations import network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import FAST, Setting, flat

SIZES = (10, 12, 14, 11)


def claiming(node: int, **told: Any) -> Callable[[int, Message], list[Message]]:
    """A node that reports something else of its data: counts by part, or what goes with them."""

    def spoil(sender: int, message: Message) -> list[Message]:
        if sender == node and message.has_content() and "about" in message.content:
            reply, about = records.read_reply(message.content)
            if "work" not in about:
                counts = {part: told.get(part, reply.each[part]) for part in reply.each}
                others = {key: value for key, value in told.items() if key not in counts}
                message.content = records.reply_content(Reply({}, counts), about | others)
        return [message]

    return spoil


def run(
    directory: Path, spoil: Any = None, method: eh.Algorithm | None = None, **settings: Any
) -> tuple[Setting, eh.Result]:
    setting = Setting(directory, ragged(SIZES), network(), spoil=spoil)
    options = {**FAST, "rounds": 2, "clients": 3, "by_client": False, **settings}
    return setting, setting.run(method or eh.FedAvg(), **options)


def roster(sizes: list[int], admission: Admission, tests: int = 5) -> Roster:
    """Clients a, b, ... with these training samples, a third of them of the group x."""

    def report(place: int, size: int) -> Registration:
        counts = {
            "train": torch.tensor([size // 3, size - size // 3]),
            "val": torch.zeros(2, dtype=torch.int64),
            "test": torch.tensor([0, tests]),
        }
        about = {"name": "abcdefgh"[place], "team": "", "groups": ["x", "y"], "labels": []}
        about |= {"x_shape": [5], "y_shape": [], "x_type": "float32", "y_type": "int64"}
        return read_report(Reply(each=counts), about | {"share": "method"})

    return Roster.of([report(*it) for it in enumerate(sizes)], admission)


# ---- weights


def test_a_client_weighs_no_more_than_five_times_the_median() -> None:
    population = roster([90, 30, 60, 10**7], Admission()).population
    census = population.census()
    assert census.sizes.tolist() == [90, 30, 60, 375]  # 5 x (60 + 90) / 2
    assert census.weight.tolist() == pytest.approx([90 / 555, 30 / 555, 60 / 555, 375 / 555])
    assert census.group_counts is not None
    assert census.group_counts[3].tolist() == pytest.approx([375 / 3, 250], rel=1e-6)
    assert census.group_counts[0].tolist() == [30, 60]
    assert population.capped() == {"d": 375}
    assert population.sizes("train")[3] == 10**7  # what it reports is known all the same
    # who comes later does not change what the first ones weighed then
    fewer = population.first(eh.growth.Extent(3, 2, 0))
    assert isinstance(fewer, WeighedPopulation)
    assert fewer.census().sizes.tolist() == [90, 30, 60]


@pytest.mark.parametrize(
    ("admission", "sizes"),
    [
        (Admission(cap=None), [90, 30, 60, 10**7]),
        (Admission(cap=1.5), [90, 30, 60, 112]),
        (Admission(samples={"d": 200_000}), [90, 30, 60, 200_000]),
        (Admission(samples={"d": 10**8, "a": 50}), [50, 30, 60, 10**7]),
        (Admission(samples=70), [70, 30, 60, 70]),
    ],
    ids=str,
)
def test_the_operator_approves_more_or_less(admission: Admission, sizes: list[int]) -> None:
    assert roster([90, 30, 60, 10**7], admission).population.census().sizes.tolist() == sizes


def test_two_clients_have_no_median_and_uniform_weights_no_cap() -> None:
    assert roster([10, 10**6], Admission()).population.capped() == {}
    census = roster([90, 30, 60, 10**7], Admission()).population.census("uniform")
    assert census.weight.tolist() == [0.25] * 4


def test_where_nothing_is_capped_the_census_is_the_same_to_the_bit() -> None:
    free, approved = (
        roster([90, 30, 60, 100], it).population.census()
        for it in (Admission(cap=None), Admission())
    )
    assert torch.equal(free.weight, approved.weight)
    assert torch.equal(free.sizes, approved.sizes)
    assert approved.group_counts is not None
    assert approved.group_counts.dtype == torch.int64


def test_a_cap_that_bites_is_named_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = {"train": torch.tensor([0, 10**7, 0])}
    _, result = run(tmp_path, claiming(4, **many), clients=4)
    # the claimed ones are 10, 12, 14 and 10^7
    line = (
        "3 counts as 65 samples instead of the 10000000 that it reports; approve more with"
        " Admission(samples={'3': ...}) or cap=None"
    )
    assert line in [record.getMessage() for record in caplog.records]
    about = json.loads((tmp_path / "run/about.json").read_text())
    assert about["federation"]["capped"] == {"3": 65}
    assert json.loads((tmp_path / "run/roster.json").read_text())["capped"] == {"3": 65}
    with pytest.raises(
        RunError,
        match=r"started with other caps or approved samples \(then: 3 as 65; now: nobody capped\);"
        " restore the old values, or use another directory",
    ):
        run(tmp_path, claiming(4, **many), clients=4, admission=Admission(cap=None))
    # the same in another run with a client that has as many samples as it weighs
    again, _ = run(tmp_path / "same", claiming(4, train=torch.tensor([0, 65, 0])), clients=4)
    expected = again.run(eh.FedAvg(), rounds=2, clients=4, by_client=False, **FAST)
    assert all(torch.equal(flat(result)[key], value) for key, value in flat(expected).items())


def test_a_run_of_a_version_without_caps_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = {"train": torch.tensor([0, 10**7, 0])}
    run(tmp_path, claiming(4, **many), clients=4, admission=Admission(cap=None))
    path = tmp_path / "run" / "roster.json"
    kept = json.loads(path.read_text())
    del kept["capped"]
    path.write_text(json.dumps(kept))
    run(tmp_path, claiming(4, **many), clients=4)
    assert "was started without a cap and continues without one" in caplog.text


def test_many_claimed_test_samples_count_as_few_with_the_same_rates() -> None:
    population = roster([30] * 4, Admission()).population
    sizes = {part: population.counts(part).clone() for part in ("train", "val", "test")}
    sizes["test"][3] = torch.tensor([0, 1000])
    claimed = eh.data.population.Population(
        sizes, population.form, group_names=population.group_names
    )
    capped = WeighedPopulation(claimed, Admission())
    assert capped.weighed("test").tolist() == [5, 5, 5, 25]
    tally = {
        "count": torch.tensor([0.0, 1000.0]).double(),
        "correct": torch.tensor([0.0, 700.0]).double(),
        "loss": torch.tensor([0.0, 300.0]).double(),
        "confusion": torch.tensor(
            [[[0, 0, 0], [0, 0, 0]], [[400, 100, 0], [200, 300, 0]]]
        ).double(),
    }
    sums = client_sums(tally)
    found = weighed_reply(Reply(tally | sums), capped, "test", 3).total
    assert found["count"].tolist() == [0, 25]
    assert found["confusion"][1].sum() == 25
    assert found["correct"][1] == found["confusion"][1].diagonal().sum()
    assert abs(float(found["correct"][1]) / 25 - 0.7) <= 1 / 25
    assert found["loss"].tolist() == pytest.approx([0, 7.5])  # the mean is 0.3 as before
    for name, value in sums.items():
        assert torch.equal(found[name], value)
    same = Reply(tally | sums)
    assert weighed_reply(same, capped, "test", 0) is same


# ---- who does not fit costs itself alone


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"name": "0"}, "node 1 has the name 0 too; give each its own name in its node config"),
        ({"x_shape": [6]}, "nodes 0 and 3 have samples of different shapes or types"),
        (
            {"labels": ["no", "yes", "maybe"]},
            "nodes 0 and 3 differ in their classes, or only one of them",
        ),
        (
            {"team": ""},
            "nodes 0 and 3 differ in their classes, or only one of them has groups or teams",
        ),
        (
            {
                "groups": [str(group) for group in range(50_000)],
                **{
                    part: torch.ones(50_000, dtype=torch.int64) for part in ("train", "val", "test")
                },
            },
            "it reports 50000 groups, and 50 are allowed (Admission(most_groups=...))",
        ),
    ],
    ids=["name", "shape", "classes", "no team", "50,000 groups"],
)
def test_a_misfit_is_named_and_the_run_goes_on_without_it(
    told: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, result = run(tmp_path, claiming(4, **told))
    assert [row["answered"] for row in result.history_rows] == [3, 3]
    about = [line.getMessage() for line in caplog.records if "cannot take part" in line.message]
    assert len(about) == 1
    assert about[0].startswith("node 4")
    assert reason in about[0]
    names = [it["name"] for it in json.loads((tmp_path / "run/roster.json").read_text())["clients"]]
    assert names == ["0", "1", "2"]


def test_the_majority_decides_whoever_registers_first(tmp_path: Path) -> None:
    _, result = run(tmp_path, claiming(1, x_shape=[6]))
    assert result.score_columns["count"][0] == 27
    assert json.loads((tmp_path / "run/roster.json").read_text())["clients"][0]["name"] == "1"


def test_waiting_says_who_has_come_and_counts_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    monkeypatch.setattr(gathering, "SPEAK_EVERY", 0.1)
    with pytest.raises(
        TimeoutError,
        match=r"only 3 of 4 nodes registered within 2 s; 1 cannot take part, see above",
    ):
        run(tmp_path, claiming(4, x_shape=[6]), clients=4, patience=2)
    assert "waiting for 4 nodes to register, for 2 s at most" in caplog.text
    assert "waiting for 1 of 4 nodes: 0, 1, 2 have registered" in caplog.text


def test_a_run_begins_without_a_misfit_when_everyone_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the server is started again, for as many clients."""
    settings: dict[str, Any] = {"clients": 4, "grace": 0.3}
    _, result = run(tmp_path, claiming(4, x_shape=[6]), **settings)
    assert [row["answered"] for row in result.history_rows] == [3, 3]
    assert "the run starts with 3 of 4 clients; the others cannot take part" in caplog.text
    _, again = run(tmp_path, claiming(4, x_shape=[6]), **settings, rounds=3)
    assert [row["answered"] for row in again.history_rows] == [3, 3, 3]


def test_where_there_are_too_many_groups_those_go_who_have_them_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [str(group) for group in range(3)]
    told = {part: torch.ones(3, dtype=torch.int64) for part in ("train", "val", "test")}
    run(tmp_path, claiming(1, groups=groups, **told), admission=Admission(most_groups=4))
    assert (
        "node 1 (0) cannot take part: its 3 groups would make 6 in total, and 4 are allowed"
        in caplog.text
    )


# ---- what the operator approves


@pytest.mark.parametrize(
    ("approved", "reason"),
    [
        ({"names": ("0", "1", "2")}, "3 is not among the approved names"),
        ({"groups": ("a", "b", "c"), "teams": ("even",)}, "its team odd is not among the approved"),
        ({"nodes": {"3": 99}}, "the name 3 belongs to node 99"),
    ],
    ids=str,
)
def test_who_is_not_approved_does_not_take_part(
    approved: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, admission=Admission(**approved), clients=2)
    assert f"node 4 cannot take part: {reason}" in caplog.text


def test_a_group_that_is_not_approved_costs_its_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil = claiming(4, groups=["a", "b", "invented"])
    run(tmp_path, spoil, admission=Admission(groups=("a", "b", "c")))
    assert (
        "node 4 cannot take part: its group invented is not among the approved groups"
        in caplog.text
    )
    caplog.clear()
    run(tmp_path / "open", claiming(4, groups=["a", "b", "invented"]), clients=4)
    assert "only 3 has samples of invented; if that is right, approve it" in caplog.text


class Keyed(InProcessGrid):
    """Flower's own answer about nodes: their registered keys."""

    keys: dict[int, bytes]

    def get_nodes(self) -> Any:
        return [NodeInfo(node_id=node, public_key=key) for node, key in self.keys.items()]


def test_a_name_belongs_to_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in SIZES]
    pem = [
        key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        for key in keys
    ]
    ssh = [
        key.public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        ).decode()
        for key in keys
    ]
    (tmp_path / "own.pub").write_text(ssh[2] + "\n")
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = Keyed
    setting.grid.keys = dict(enumerate(pem, 1))  # type: ignore[attr-defined]
    nodes = {"0": ssh[0], "2": tmp_path / "own.pub", "3": pem[0].decode()}
    setting.run(eh.FedAvg(), rounds=1, clients=3, admission=Admission(nodes=nodes), **FAST)
    assert "node 4 cannot take part: the name 3 belongs to another node key" in caplog.text
    assert caplog.text.count("cannot take part") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": 0.5}, "cap must be a finite number >= 1, got 0.5; it is a multiple of the median"),
        ({"samples": {"a": 0}}, "approved samples of a must be a whole number >= 1, got 0"),
        ({"samples": 0}, "approved samples of samples must be a whole number >= 1"),
        ({"names": "abc"}, 'names must be a list of names, such as ("a", "b")'),
        ({"most_groups": 0}, "most_groups must be a whole number >= 1"),
        ({"nodes": {"a": "nowhere.pub"}}, "public key nowhere.pub cannot be read: No such file"),
        (
            {"nodes": {"a": "ssh-rsa no"}},
            "ssh-rsa no is not a public key; give the .pub file of ssh-keygen",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_approved_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Admission(**settings)
    assert message in str(caught.value)


def test_two_to_the_28_samples_cost_no_memory() -> None:
    population = roster([90, 30, 60, 1 << 28], Admission(), tests=1 << 27).population
    assert population.census().sizes.tolist() == [90, 30, 60, 375]
    assert population.fingerprint().startswith("sha256:")
    assert np.prod(population.probe(2).x.shape) == 10
