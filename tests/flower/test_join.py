"""Clients that come while a federation trains, servers that start again with others, and what an
owner shares."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message

import evenhand as eh
from evenhand.errors import RunError
from evenhand.files import read_tensors
from evenhand.flower import Admission, client_app, server_app
from evenhand.flower.memory import FIRST, NodeMemory
from evenhand.flower.tryout.loopback import Loopback
from evenhand.growth import Extent, first_clients
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_app import write_app
from tests.support.flower_faults import Dying, Killed
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import Setting, flat, one_client, trusting
from tests.support.joining import JOINED, SETTINGS, SIZES, enlarged

ROUNDS = 5
FAST = {key: value for key, value in SETTINGS.items() if key != "engine"}


class Late(InProcessGrid):
    """Some nodes are not there until the training of a round has begun, or never again from then
    on."""

    arrives: dict[int, int]  # node: round
    leaves: dict[int, int]

    def get_node_ids(self) -> list[int]:
        begun = max(
            (about["round"] for about in map(about_of, self.sent) if about.get("work") == "train"),
            default=-1,
        )
        return [
            node
            for node in super().get_node_ids()
            if begun >= self.arrives.get(node, -1) and begun < self.leaves.get(node, 1000)
        ]


class LateAndDying(Late, Dying):
    """The same with a server that ends once."""


def about_of(message: Message) -> dict[str, Any]:
    return dict(message.content.get("about", {}))


def late(
    directory: Path,
    federation: eh.Federation | None = None,
    arrives: dict[int, int] | None = None,
    kind: type = Late,
) -> Setting:
    """Five nodes, of which the last comes during the second round."""
    setting = Setting(directory, federation or ragged(SIZES), network())
    setting.grid.__class__ = kind
    setting.grid.arrives, setting.grid.leaves = arrives or {5: JOINED - 1}, {}  # type: ignore[attr-defined]
    return setting


def run(setting: Setting, method: eh.Algorithm, **settings: Any) -> eh.Result:
    return setting.run(method, **{"rounds": ROUNDS, "clients": 4, **FAST, **settings})


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def kept(setting: Setting) -> list[str]:
    """Names in the roster, in the order of their numbers."""
    return [
        client["name"]
        for client in json.loads((setting.directory / "run" / "roster.json").read_text())["clients"]
    ]


# ---- joining


@pytest.mark.parametrize("method", METHODS)
def test_who_comes_in_the_middle_takes_part_from_the_next_round_on(
    method: str, tmp_path: Path
) -> None:
    """Bit for bit what the simulator gives where a run is resumed with one more client."""
    expected = enlarged(METHODS[method], tmp_path / "simulated", ragged(SIZES), joined=1, rounds=3)
    found = run(late(tmp_path, arrives={5: 0}), METHODS[method], rounds=3)
    assert flat(found).keys() == flat(expected).keys()
    for key, value in flat(expected).items():
        assert torch.equal(flat(found)[key], value), key
    assert [row["asked"] for row in found.history_rows] == [
        row["asked"] for row in expected.history_rows
    ]
    assert found.score_columns["name"][:5] == ["0", "1", "2", "3", "4"]
    for name in ("count", "accuracy"):
        assert found.score_columns[name].tolist() == pytest.approx(
            expected.score_columns[name].tolist(), nan_ok=True
        ), name


def test_sums_alone_tell_of_newcomers_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = run(late(tmp_path), eh.FedAvg(), by_client=False)
    assert [row["answered"] for row in found.history_rows] == [4, 4, 5, 5, 5]
    assert found.score_columns["by"] == ["everyone", *["group"] * 3]
    assert found.score_columns["count"].tolist()[0] == 5 * 9
    assert len(found.history) == ROUNDS
    assert "clients join after round 2: 4" in warned(caplog)


def test_nobody_is_asked_twice_who_it_is(tmp_path: Path) -> None:
    setting = late(tmp_path)
    run(setting, eh.FedAvg())
    asked = [
        message.metadata.dst_node_id
        for message in setting.grid.sent
        if message.metadata.message_type == "query.census"
    ]
    assert asked == [1, 2, 3, 4, 5]


def test_two_who_come_together_have_numbers_in_the_order_of_their_names(tmp_path: Path) -> None:
    setting = late(tmp_path, arrives={2: 1, 4: 0, 5: 1})
    setting.grid.contexts[2].node_config["name"] = "site 10"
    setting.grid.contexts[5].node_config["name"] = "site 9"
    run(setting, eh.AFL(), clients=2)
    assert kept(setting) == ["0", "2", "3", "site 9", "site 10"]


def test_a_newcomer_brings_a_group_that_was_approved_and_a_team(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)

    def rows(groups: str, team: str) -> dict[str, Any]:
        return {
            "x": rng.normal(size=(20, 5)),
            "y": rng.integers(0, 3, 20),
            "group": list(groups) * 10,
            "team": team,
        }

    data = [rows("bc", "t"), rows("cb", "u"), rows("ac", "s")]
    setting = late(tmp_path, ragged(SIZES[:3]), arrives={3: 0})
    own = [eh.Federation.from_arrays([client]) for client in data]
    setting.grid.app = client_app(
        network(), lambda config: own[int(config["partition-id"])], share="client"
    )
    refused = run(setting, eh.FedMinMax(lr_mu=0.1), clients=2, out=tmp_path / "not approved")
    assert refused.state["rho"].tolist() == pytest.approx([1 / 2, 1 / 2])
    assert (
        "node 3 (2) cannot join: its group a is new since the run started; approve it with"
        " Admission(groups=...)"
    ) in warned(caplog)
    setting.grid.arrives = {3: 0}  # type: ignore[attr-defined]
    setting.grid.sent.clear()
    approved = Admission(groups=("a", "b", "c"))
    found = run(setting, eh.FedMinMax(lr_mu=0.1), clients=2, admission=approved)
    assert found.state["rho"].tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 6])  # b, c and then a
    assert ["group_weight_2" in row for row in found.history_rows] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert found.score_columns["name"][3:] == ["b", "c", "a", "t", "u", "s"]
    assert (found.state["mu"] > 0).all()


@pytest.mark.parametrize(
    ("method", "change", "reason"),
    [
        (eh.FAFL(alpha=(0.5, 0.6, 0.7, 0.8), mu=0.1), {}, "alpha has 4 entries for 5 clients"),
        (eh.DRFA(floor=0.25), {}, "floor 0.25 for 5 clients exceeds the mass 1"),
        (
            eh.FedAvg(),
            {"x": np.zeros((3, 6))},
            "nodes 0 and 4 have samples of different shapes or types",
        ),
        (
            eh.FedAvg(),
            {"group": None},
            "nodes 0 and 4 differ in their classes, or only one of them has groups or teams",
        ),
        (eh.FedAvg(), {"name": "1"}, "client 1 has this name but other data"),
    ],
)
def test_who_cannot_join_is_named_and_training_goes_on_without(
    method: eh.Algorithm,
    change: dict[str, Any],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting = late(tmp_path)
    app = setting.grid.app
    odd = {
        "x": np.zeros((3, 5)),
        "y": [0, 1, 2],
        "group": ["a", "b", "c"],
        "team": "even",
        "name": "4",
        **change,
    }
    if change:
        other = client_app(
            network(), lambda config: eh.Federation.from_arrays([odd]), share="client"
        )
        setting.grid.app = lambda message, context: (other if context.node_id == 5 else app)(
            message, context
        )  # type: ignore[assignment]
    found = run(setting, method)
    assert [row["answered"] for row in found.history_rows] == [4] * 5
    about = [line for line in warned(caplog) if line.startswith("node 5")]
    assert len(about) == 1
    assert reason in about[0]
    assert "\n" not in about[0]
    assert kept(setting) == ["0", "1", "2", "3"]


def test_a_newcomer_that_says_nothing_is_waited_for_once(tmp_path: Path) -> None:
    setting = late(tmp_path)
    setting.grid.down = {5}
    found = run(setting, eh.FedAvg(), deadline=1.0)
    assert [row["answered"] for row in found.history_rows] == [4] * 5
    assert [
        message.metadata.message_type
        for message in setting.grid.sent
        if message.metadata.dst_node_id == 5
    ] == ["query.census"]


# ---- a server that starts again


def test_a_killed_server_gives_everyone_the_same_number_whoever_is_back(tmp_path: Path) -> None:
    """Client 4 has joined; the server dies in the fourth round and finds client 1 away and a new
    one, called so that it would be first."""
    setting = late(tmp_path, ragged((*SIZES, 9)), arrives={5: 1, 6: 100}, kind=LateAndDying)
    setting.grid.moment = ("pull", "train", 3)  # type: ignore[attr-defined]
    setting.grid.contexts[6].node_config["name"] = "-1"
    with pytest.raises(Killed):
        run(setting, eh.Ditto(lam=0.5))
    assert kept(setting) == ["0", "1", "2", "3", "4"]
    setting.grid.arrives, setting.grid.leaves = {}, {2: 0}  # type: ignore[attr-defined]
    found = run(setting, eh.Ditto(lam=0.5))
    assert kept(setting) == ["0", "1", "2", "3", "4", "-1"]
    assert [(row["asked"], row["left_out"]) for row in found.history_rows] == [
        (4, ""),
        (4, ""),
        (5, ""),
        (6, "1"),
        (6, "1"),
    ]
    tasks = [
        about_of(message)
        for message in setting.grid.sent
        if message.metadata.message_type == "train"
    ]
    at = {(about["round"], about["client"]): about["counted"] for about in tasks}
    assert at[3, 4] == 2
    assert at[3, 5] == FIRST
    assert at[4, 0] == 3
    assert found.score_columns["name"][:6] == ["0", "1", "2", "3", "4", "-1"]


def test_without_a_checkpoint_the_numbers_are_kept_too(tmp_path: Path) -> None:
    setting = late(tmp_path, arrives={1: 100}, kind=LateAndDying)
    setting.grid.moment = ("pull", "train", 0)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        run(setting, eh.FedAvg())
    setting.grid.arrives = {}  # type: ignore[attr-defined]
    run(setting, eh.FedAvg())
    assert kept(setting) == ["1", "2", "3", "4", "0"]


def test_a_roster_that_was_damaged_is_named(tmp_path: Path) -> None:
    setting = late(tmp_path)
    run(setting, eh.FedAvg(), rounds=1)
    for damage in (
        "",
        "[]",
        "{}",
        '{"session": 1, "clients": [{}], "groups": [], "teams": []}',
        '{"session": 1e999}',
        "[" * 100_000,
    ):
        (tmp_path / "run" / "roster.json").write_text(damage)
        with pytest.raises(RunError, match=r"roster.json is damaged") as caught:
            run(setting, eh.FedAvg(), rounds=1)
        assert "\n" not in str(caught.value)


# ---- tasks of a server that is no more


def test_a_task_from_before_the_server_was_started_again_leaves_no_trace(tmp_path: Path) -> None:
    """The killed server has asked node 1 to train in round 3 without the newcomer; that is carried
    out after the next server's task."""
    undisturbed = late(tmp_path / "undisturbed", kind=LateAndDying)
    disturbed = late(tmp_path / "disturbed", kind=LateAndDying)
    results = []
    for setting in (undisturbed, disturbed):
        setting.grid.arrives = {5: 1000}  # type: ignore[attr-defined]
        setting.grid.moment = ("push", "train", JOINED)  # type: ignore[attr-defined]
        with pytest.raises(Killed):
            run(setting, METHODS["gifair_per"])
        old = next(
            message for message in setting.grid.sent[::-1] if message.metadata.dst_node_id == 1
        )
        setting.grid.arrives = {}  # type: ignore[attr-defined]
        told: list[str] = []

        def spoil(
            node: int,
            reply: Message,
            setting: Setting = setting,
            old: Message = old,
            told: list[str] = told,
        ) -> list[Message]:
            task = about_of(setting.grid.sent[int(reply.metadata.reply_to_message_id)])
            if (
                setting is disturbed
                and node == 1
                and (task.get("work"), task.get("round")) == ("train", JOINED)
            ):
                late_reply = setting.grid.app(old, setting.grid.contexts[1])
                told.append(str(late_reply.content["fault"]["reason"]))
            return [reply]

        setting.grid.spoil = spoil
        results.append(run(setting, METHODS["gifair_per"]))
        assert about_of(old)["session"] == 1
        assert about_of(setting.grid.sent[-1])["session"] > 1
    assert told == [
        "the task is from before the server was restarted, and client 0 has had later ones"
    ]
    first, second = results
    for key, value in flat(first).items():
        assert torch.equal(flat(second)[key], value), key
    # of the models that clients keep
    assert first.score_columns["loss"].tolist() == second.score_columns["loss"].tolist()


def test_a_memory_of_an_earlier_session_may_be_replaced_and_one_of_a_later_not(
    tmp_path: Path,
) -> None:
    old, new = (NodeMemory(tmp_path, "run", 0, session=session) for session in (1, 2))
    old.remember(0, FIRST, {"w": torch.tensor([1.0])})
    new.remember(0, FIRST, {"w": torch.tensor([2.0])})
    with pytest.raises(RunError, match="before the server was restarted"):
        old.remember(1, 0, {"w": torch.tensor([3.0])})
    assert old.recall({"w": torch.zeros(1)}, 0)["w"].tolist() == [2.0]
    new.remember(1, 0, {"w": torch.tensor([4.0])})
    assert new.recall({"w": torch.zeros(1)}, 1)["w"].tolist() == [4.0]


# ---- what an owner shares


@pytest.mark.parametrize(
    ("share", "method", "by_client", "refused"),
    [
        ("sums", "fedavg", False, {}),
        ("sums", "ditto", False, {}),
        ("sums", "afl", False, {"train": "loss_at_start"}),
        ("sums", "afl_before", False, {"survey": "loss"}),
        ("sums", "fedavg", True, {"evaluate": "count, correct, loss"}),
        ("method", "afl", False, {}),
        ("method", "afl_before", False, {}),
        ("method", "afl", True, {"evaluate": "count, correct, loss"}),
        ("client", "afl", True, {}),
    ],
)
def test_a_node_shows_no_more_of_its_client_than_the_owner_shares(
    share: str,
    method: str,
    by_client: bool,
    refused: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation = ragged(SIZES[:3])
    setting = Setting(tmp_path, federation, network())
    open_app = setting.grid.app
    own = {"share": share} if share != "method" else {}  # the default
    careful = client_app(network(), lambda config: one_client(federation, 1), **own)
    setting.grid.app = lambda message, context: (careful if context.node_id == 2 else open_app)(
        message, context
    )  # type: ignore[assignment]
    setting.run(METHODS[method], rounds=1, by_client=by_client, **FAST)
    lines = [
        line for line in warned(caplog) if line.startswith("client 1 is skipped: its owner shares")
    ]
    said = {"sums": "only sums", "method": "what the method needs"}.get(share)
    for work, names in refused.items():
        assert (
            f'client 1 is skipped: its owner shares {said} (share="{share}"), but {work} would'
            f" reveal about this client: {names}" in lines
        )
    assert bool(lines) == bool(refused)
    foretold = [line for line in warned(caplog) if line.startswith("client 1 will be skipped: ")]
    assert bool(foretold) == bool(refused)


@pytest.mark.parametrize(
    ("share", "method", "by_client", "why"),
    [
        ("method", "fedavg", True, r'by_client=True.* share="client", or by_client=False'),
        (
            "sums",
            "afl",
            False,
            r'reads client by client: its loss.* share="method", or a method that needs only sums',
        ),
    ],
)
def test_a_run_that_no_owner_shares_enough_for_does_not_begin(
    share: str, method: str, by_client: bool, why: str, tmp_path: Path
) -> None:
    setting = Setting(tmp_path, ragged(SIZES[:3]), network())
    for context in setting.grid.contexts.values():
        context.node_config["share"] = share
    with pytest.raises(RunError, match=why):
        setting.run(METHODS[method], rounds=1, by_client=by_client, **FAST)
    assert {message.metadata.message_type for message in setting.grid.sent} == {"query.census"}
    for context in setting.grid.contexts.values():
        # the owners have changed their minds, and the run begins where it stands
        context.node_config["share"] = "client"
    assert (
        setting.run(METHODS[method], rounds=1, by_client=by_client, **FAST).history_rows[0][
            "answered"
        ]
        == 3
    )


def test_what_is_not_shared_is_not_remembered(tmp_path: Path) -> None:
    """GIFAIR without teams sends each client's loss; a node that shares sums alone keeps nothing of
    a round that it took no part in."""
    data = [{"x": np.ones((4, 5)), "y": [0, 1, 2, 0]} for _ in range(3)]
    app = client_app(network(), lambda config: data[int(config["partition-id"])])
    policy = trusting(tmp_path)
    configs: list[dict[str, Any]] = [
        {"partition-id": i, "state-dir": str(tmp_path / f"state{i}"), "policy": policy}
        for i in range(3)
    ]
    grid = InProcessGrid(app, configs)
    grid.contexts[2].node_config["share"] = "sums"
    server = server_app(
        eh.GIFAIR(personal=True), network(), clients=3, out=tmp_path / "run", rounds=1
    )
    server(grid, grid.contexts[1])
    assert {
        path.relative_to(tmp_path).parts[0] for path in tmp_path.glob("state*/*/*/after-*")
    } == {"state0", "state2"}


def test_a_look_that_goes_with_training_needs_leave_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES[:3]), network())
    setting.grid.contexts[2].node_config["share"] = "method"
    found = setting.run(METHODS["afl"], rounds=1, evaluate="with training", **FAST)
    assert found.history_rows[0]["left_out"] == "1"
    assert "but evaluate would reveal about this client: count, correct, loss" in caplog.text


def test_newcomers_are_evaluated_with_training(tmp_path: Path) -> None:
    found = run(late(tmp_path), eh.FedAvg(), by_client=False, evaluate="with training")
    assert [row["answered"] for row in found.history_rows] == [4, 4, 5, 5, 5]
    assert found.score_columns["count"].tolist()[0] == 5 * 9


@pytest.mark.parametrize(
    ("app", "node", "answered"), [("client", "sums", 2), ("sums", "client", 1)]
)
def test_the_owners_word_in_the_node_config_counts_over_the_apps(
    app: str, node: str, answered: int, tmp_path: Path
) -> None:
    setting = Setting(tmp_path, ragged(SIZES[:3]), network())
    setting.grid.app = client_app(
        network(),
        lambda config: one_client(setting.federation, int(config["partition-id"])),
        share=app,
    )
    setting.grid.contexts[2].node_config["share"] = node
    found = setting.run(METHODS["afl"], rounds=1, by_client=False, **FAST)
    assert found.history_rows[0]["answered"] == answered


def test_a_node_whose_owner_shares_something_unknown_takes_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES[:3]), network())
    setting.grid.contexts[2].node_config["share"] = "all"
    with pytest.raises(TimeoutError, match="only 2 of 3 nodes"):
        setting.run(METHODS["fedavg"], rounds=1, patience=0.1, **FAST)
    assert (
        "cannot take part: share in its node config must be one of masked, sums, method, client"
        in caplog.text
    )


def test_what_to_share_is_checked() -> None:
    with pytest.raises(ValueError, match="share"):
        client_app(network(), lambda config: {}, share="all")


def test_a_look_at_who_is_there_costs_one_question_a_round(tmp_path: Path) -> None:
    setting = late(tmp_path, arrives={5: 0})
    calls: list[float] = []
    inner = setting.grid.get_node_ids
    setting.grid.get_node_ids = lambda: (calls.append(time.monotonic()), inner())[1]  # type: ignore[method-assign]
    run(setting, eh.FedAvg(), clients=4, eval_every=100)
    # the census, five rounds, one that began anew with the newcomer; scores and weights
    assert len(calls) == 1 + 5 + 1 + 2


# ---- real processes


CLIENT = """
import numpy as np
from evenhand.flower import client_app
from tests.support.federations import network

def load(config):
    with np.load(config["data"]) as arrays:
        return dict(arrays)

app = client_app(network, load)
"""

SERVER = """
from pathlib import Path
import evenhand as eh
from evenhand.files import write_tensors
from evenhand.flower import server_app
from tests.support.federations import network

app = server_app(
    eh.AFL(lr_lambda=0.1), network, clients=3, out={out!r}, rounds=4, local=eh.LocalSGD(lr=0.05, batch_size=8), eval_every=100,
    deadline=300.0, finished=lambda result: write_tensors(Path({out!r}) / "final.safetensors", result.params),
)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
@pytest.mark.slow
def test_a_fourth_node_joins_three_in_real_processes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(20, 5)), "y": rng.integers(0, 3, 20)} for _ in range(4)]
    tables = [tmp_path / f"{i}.npz" for i in range(4)]
    for path, client in zip(tables, clients, strict=True):
        np.savez(path, **client)
    out = tmp_path / "run"
    app = write_app(tmp_path / "app", "joining", CLIENT, SERVER.format(out=str(out)), {})
    # the app uses our modules
    path = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with Loopback(
        tmp_path / "federation", 3, True, tables[:3], env={"PYTHONPATH": path}, cwd=tmp_path
    ) as federation:
        started = federation.run(app)
        end = time.monotonic() + 600
        while not list(out.glob("*/checkpoint.safetensors")) and time.monotonic() < end:
            time.sleep(0.2)
        federation.add_node(tables[3])
        assert started.wait(600) == "finished:completed", started.log()
    found, about = read_tensors(next(out.glob("*/checkpoint.safetensors")))
    answered = [row["answered"] for row in about["history"]]
    alone = answered.count(3)
    assert answered == [3] * alone + [4] * (4 - alone)
    assert 1 <= alone < 4

    def stop(done: int, row: dict[str, Any]) -> None:
        if done == alone:
            raise Killed

    whole = eh.Federation.from_arrays(clients)
    options: dict[str, Any] = {
        "rounds": 4,
        "local": eh.LocalSGD(lr=0.05, batch_size=8),
        "eval_every": 100,
        "engine": "loop",
    }
    options |= {"out": tmp_path / "simulated", "checkpoint_every": 1}
    with pytest.raises(Killed):
        eh.fit(
            network(),
            first_clients(whole, Extent(3, 0, 0)),
            eh.AFL(lr_lambda=0.1),
            progress=stop,
            **options,
        )
    expected = eh.fit(network(), whole, eh.AFL(lr_lambda=0.1), resume=True, **options)
    final, _ = read_tensors(out / "final.safetensors")
    assert torch.equal(found["state/lam"], expected.state["lam"])
    for name, value in expected.params.items():
        assert torch.equal(final[name], value), name
