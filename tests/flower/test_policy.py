"""The owner's policy: a server that asks too much is refused, and the owner can read what it
asked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from benchmarks.torture import curious
from evenhand.engines.work import Ask, Train
from evenhand.errors import RunError, SpecError
from evenhand.flower import client_app, records, server_app
from evenhand.flower.audit import COUNTS, FILE, count_answer
from evenhand.flower.cells import without_small_cells
from evenhand.flower.policy import NO_POLICY, Policy, Refused, method_names, misspelt
from evenhand.flower.registration import read_report
from evenhand.flower.secret_order import SecretOrder
from tests.support.curious_server import Curious, matched, model, patients
from tests.support.flower_grid import InProcessGrid

# what nodes allowed before there were policies
OPEN = 'min-batch = 1\nmin-cell = 1\nrounds-per-day = 0\norder = "server"\n'
ROWS = 100


@pytest.mark.slow
def test_the_harness_counts_rows_that_stay_with_the_node() -> None:
    """Three attacks on one table, under three policies."""
    found = curious.figures(seconds=0, seed=0)
    assert [(figure.tried, figure.held) for figure in found] == [(100, 100)] * 3
    assert "it got 32 of 100 with no limits, 0 of 100 with no policy file" in found[0].note
    assert "100 of 100 with no policy file" in found[1].note


# ---- the attack


def test_single_samples_gave_exact_rows_and_are_refused_now(tmp_path: Path) -> None:
    data = patients(ROWS)
    (tmp_path / "open").mkdir()
    before, none = Curious(tmp_path / "open", data, OPEN).one_by_one(40)
    assert not none
    assert matched(before, data["x"]) == 32  # 40 draws from 100 rows, some of them twice
    now, refusals = Curious(tmp_path, data).one_by_one(40)
    assert now == []
    assert refusals == {"its owner's policy refuses it: it asks for batches of 1 (min-batch = 5)"}


def test_the_least_batch_alone_is_not_enough_but_a_secret_order_is(tmp_path: Path) -> None:
    """A server that knows which samples are in a batch solves for all of them."""
    data = patients(ROWS)
    known = Curious(tmp_path, data, 'order = "server"\nrounds-per-day = 0')
    assert matched(known.by_equations(90, batch=8), data["x"]) == 0
    assert matched(known.by_equations(110, batch=8), data["x"]) == ROWS
    (tmp_path / "default").mkdir()
    unknown = Curious(tmp_path / "default", data, "rounds-per-day = 0")
    assert matched(unknown.by_equations(110, batch=8), data["x"], tolerance=0.1) == 0


def test_all_but_one_and_then_all_of_them_show_nobody(tmp_path: Path) -> None:
    """A rest of one sample goes into the batch before it, so there is no difference to take."""
    server = Curious(tmp_path, patients(ROWS), policy="")
    assert matched(server.by_differences(10), server.data["x"], tolerance=0.01) == 0
    (tmp_path / "known").mkdir()
    known = Curious(tmp_path / "known", server.data, 'order = "server"')
    assert matched(known.by_differences(10), server.data["x"]) == 10
    nearly, _ = server.train(steps=1, batch_size=ROWS - 1)
    everyone, _ = server.train(batch_size=None)
    for key, value in everyone.total["delta"].items():
        torch.testing.assert_close(nearly.total["delta"][key], value, rtol=1e-12, atol=1e-15)


# ---- rules


@pytest.mark.parametrize(
    ("local", "reason"),
    [
        ({"steps": 10**9, "batch_size": 8}, "it asks for 1000000000 local steps (max-steps = 50)"),
        ({"epochs": 5, "batch_size": 8}, "it asks for 65 local steps (max-steps = 50)"),
        ({"steps": 51}, "it asks for 51 local steps (max-steps = 50)"),
        ({"steps": 1, "batch_size": 16}, "it asks for 1 local steps (min-steps = 2)"),
        ({"batch_size": None}, "it asks for 1 local steps (min-steps = 2)"),
        ({"steps": 2, "batch_size": 4}, "it asks for batches of 4 (min-batch = 5)"),
        ({"epochs": 3, "batch_size": 8}, ""),
        ({"steps": 50, "batch_size": 8}, ""),
        ({"epochs": 2}, ""),
    ],
)
def test_steps_and_batches_have_limits(local: dict[str, Any], reason: str, tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS), "min-steps = 2\nmax-steps = 50")
    _, fault = server.train(**local)
    assert fault == (f"its owner's policy refuses it: {reason}" if reason else "")


@pytest.mark.parametrize("work", ["one step on all data", "an epoch of batches", "local steps"])
def test_ordinary_work_is_answered_by_default(work: str, tmp_path: Path) -> None:
    local: dict[str, Any] = {
        "one step on all data": {"steps": 1},
        "an epoch of batches": {"epochs": 1, "batch_size": 32},
        "local steps": {"steps": 5, "batch_size": 10},
    }[work]
    assert Curious(tmp_path, patients(30)).train(**local)[1] == ""


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("max-parameters = 13", "the model has 14 parameters (max-parameters = 13)"),
        ("max-groups = 1", "the run has 2 groups (max-groups = 1)"),
        ('losses = ["mse", "brier"]', "the loss is 'cross_entropy' (losses = mse, brier)"),
        ('methods = ["afl", "term"]', "the method is 'fedavg' (methods = afl, term)"),
        ("train = []", "train asks for the train data (train = nothing)"),
    ],
)
def test_models_groups_losses_methods_and_parts_can_be_limited(
    policy: str, message: str, tmp_path: Path
) -> None:
    _, fault = Curious(tmp_path, patients(ROWS), policy).train()
    assert fault == f"its owner's policy refuses it: {message}"


def test_test_data_are_not_for_training(tmp_path: Path) -> None:
    data = {**patients(ROWS), "test": patients(50, seed=1)}
    server = Curious(tmp_path, data)
    work = Train(eh.FedAvg(), eh.LocalSGD(lr=1.0), part="test")
    assert server.ask(work)[1] == (
        "its owner's policy refuses it: train asks for the test data (train = train)"
    )
    assert server.evaluate("test")[1] == ""
    assert server.evaluate("val")[1] == "evaluate asks for val data, but the node has none"
    hidden = Curious(tmp_path, data, 'evaluate = ["test"]\nsurvey = []')
    assert "evaluate asks for the train data (evaluate = test)" in hidden.evaluate("train")[1]
    with pytest.raises(Refused, match=r"survey asks for the train data \(survey = nothing\)"):
        Policy(survey=()).permits(Ask(eh.AFL(order="before")), one(data), 14, "cross_entropy")


def test_a_number_of_groups_from_the_server_is_no_reason_to_fill_the_memory(
    tmp_path: Path,
) -> None:
    _, fault = Curious(tmp_path, patients(ROWS)).evaluate("train", groups=1 << 31)
    assert fault == "its owner's policy refuses it: the run has 2147483648 groups (max-groups = 50)"


def test_methods_are_allowed_with_all_that_is_inside_them() -> None:
    assert method_names(eh.FedProx(mu=0.1, inner=eh.QFFL(q=2.0))) == ["fedprox", "qffl"]
    assert method_names(eh.Algorithm()) == []
    work = Train(eh.FedProx(mu=0.1, inner=eh.QFFL(q=2.0)), eh.LocalSGD(lr=1.0))
    data = one(patients(ROWS))
    Policy(methods=("qffl", "fedprox")).permits(work, data, 14, "cross_entropy")
    with pytest.raises(Refused, match=r"the method is 'qffl' \(methods = fedprox\)"):
        Policy(methods=("fedprox",)).permits(work, data, 14, "cross_entropy")


def test_so_many_rounds_a_day_and_in_all(tmp_path: Path) -> None:
    policy = Policy(rounds_per_day=2, rounds_in_total=3)
    for day in ("2026-01-01", "2026-01-01", "2026-01-02"):
        count_answer(policy, tmp_path, "train", day)
    with pytest.raises(Refused, match=r"that many train tasks .*\(rounds-in-total = 3\)"):
        count_answer(policy, tmp_path, "train", "2026-01-03")
    count_answer(policy, tmp_path, "evaluate", "2026-01-01")  # counted by kind
    with pytest.raises(Refused, match=r"\(rounds-per-day = 2\)"):
        count_answer(policy, tmp_path, "train", "2026-01-01")
    # what was refused does not count
    count_answer(Policy(rounds_per_day=2, rounds_in_total=4), tmp_path, "train", "2026-01-02")
    (tmp_path / COUNTS).write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"answered\.sqlite, is damaged"):
        count_answer(policy, tmp_path, "train")


def test_the_server_meets_the_daily_limit(tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS), "rounds-per-day = 3")
    faults = [server.train(round)[1] for round in range(4)]
    assert faults[:3] == ["", "", ""]
    assert faults[3] == (
        "its owner's policy refuses it: it has answered that many train tasks (rounds-per-day = 3)"
    )


# ---- the file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min-bach = 4", "unknown key 'min-bach'; did you mean 'min-batch'?"),
        ("min-batch = 0", "min-batch must be a whole number >= 1, got 0"),
        ('max-steps = "many"', "max-steps must be a whole number >= 1, got 'many'"),
        ("methods = 3", 'methods must be a list of names, such as ["train"], got 3'),
        ('train = ["training"]', 'part in train must be "train", "val" or "test"'),
        ('share = "all"', 'share must be "masked", "sums", "method" or "client", got \'all\''),
        ('order = "mine"', 'order must be "node" or "server", got \'mine\''),
        ("codebook = 1", "codebook must be true or false, got 1"),
        ("audit = 1", "audit must be the path of a file, got 1"),
        ("min-batch = ", "Invalid value"),
    ],
)
def test_a_policy_that_makes_no_sense_closes_the_node(
    text: str, message: str, tmp_path: Path
) -> None:
    server = Curious(tmp_path, patients(ROWS), text)
    for fault in (server.train()[1], records.fault_in(server.census())):
        assert fault.startswith("the policy in its node config cannot be used: ")
        assert message in fault


def test_a_policy_that_is_not_there_closes_the_node(tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS), policy=None, policy_path="")
    server.grid.contexts[1].node_config["policy"] = str(tmp_path / "none.toml")
    assert server.train()[1] == (
        "the policy in its node config cannot be used: No such file or directory"
    )
    with pytest.raises(SpecError):
        Policy.of_node({"policy": str(tmp_path)})


def test_a_node_without_a_policy_says_so_in_its_log_and_its_audit_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "with").mkdir()
    guarded, bare = (
        Curious(tmp_path / "with", patients(ROWS), ""),
        Curious(tmp_path, patients(ROWS)),
    )
    for server in (guarded, bare):
        server.census()
        server.train()
    assert caplog.messages == [NO_POLICY]  # once, not at every task
    assert "a malicious server can reconstruct rows" in NO_POLICY
    assert [line["policy"] for line in lines(tmp_path / "state" / FILE)] == ["none", "none"]
    assert not any("policy" in line for line in lines(tmp_path / "with" / "state" / FILE))


@pytest.mark.parametrize("key", ["polcy", "Policy", "policies", "policy_file"])
def test_a_misspelt_policy_closes_the_node(key: str, tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS), **{key: "policy.toml"})
    for fault in (server.train()[1], records.fault_in(server.census())):
        assert fault == f"unknown key {key!r} in its node config; write 'policy'"
    right = Curious(tmp_path, patients(ROWS), "", **{key: "policy.toml"})
    assert right.train()[1] == ""  # the app may have a use for it


def test_a_key_near_a_known_one_is_named_and_any_other_key_is_the_apps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"shar": "sums", "state_dir": "elsewhere", "ward": 3, "table": "a.csv"}
    server = Curious(tmp_path, patients(ROWS), "", **settings)
    assert records.fault_in(server.census()) == ""
    # state-dir is there, so state_dir belongs to the app
    assert caplog.messages == ["unknown key 'shar' in the node config; did you mean 'share'?"]
    assert misspelt({"state_dir": "elsewhere"}) == {"state_dir": "state-dir"}


@pytest.mark.parametrize(
    ("policy", "config", "shared"),
    [
        ("", None, "sums"),
        ('share = "method"', None, "method"),
        ('share = "sums"', "client", "sums"),
        ('share = "client"', "method", "method"),
    ],
)
def test_the_lesser_of_the_owners_words_on_sharing_counts(
    policy: str, config: str | None, shared: str, tmp_path: Path
) -> None:
    settings = {} if config is None else {"share": config}
    content = Curious(tmp_path, patients(ROWS), policy, **settings).census()
    assert read_report(*records.read_reply(content)).share == shared


# ---- small groups


def one(data: dict[str, Any]) -> eh.Federation:
    train = {key: value for key, value in data.items() if key != "test"}
    test = data.get("test")
    return eh.Federation.from_arrays([train], test=None if test is None else [test])


def grouped(train: str, test: str) -> dict[str, Any]:
    def part(groups: str) -> dict[str, Any]:
        count = len(groups)
        x = np.arange(6.0 * count).reshape(count, 6)
        return {"x": x, "y": np.arange(count) % 2, "group": list(groups)}

    return {**part(train), "test": part(test)}


def test_a_group_of_one_is_not_told_of(tmp_path: Path) -> None:
    data = grouped("fffffmmmmmd", "fffffmmd")
    (tmp_path / "open").mkdir()
    told = read_report(*records.read_reply(Curious(tmp_path / "open", data, OPEN).census()))
    assert (told.groups, told.counts["train"].tolist()) == (("d", "f", "m"), [1, 5, 5])
    told = read_report(*records.read_reply(Curious(tmp_path, data).census()))
    assert told.groups == ("f", "m")
    assert {part: counts.tolist() for part, counts in told.counts.items()} == {
        "train": [5, 5],
        "val": [0, 0],
        "test": [5, 0],
    }


def test_left_out_are_the_samples_of_small_groups_and_nobody_else() -> None:
    data = one(grouped("dfffffmmmmmd", "mmfffff"))
    found, left_out = without_small_cells(data, 5)
    assert left_out == {"train": 2, "test": 2}
    assert found.group_names == ("f", "m")
    assert found.train.x[:][:, 0].tolist() == [6.0 * row for row in range(1, 11)]
    assert found.train.y.tolist() == [row % 2 for row in range(1, 11)]
    assert found.train.group.tolist() == [0] * 5 + [1] * 5
    assert found.test.x[:][:, 0].tolist() == [12.0, 18.0, 24.0, 30.0, 36.0]
    assert without_small_cells(data, 1) == (data, {})
    assert without_small_cells(found, 5) == (found, {})


def test_without_groups_a_part_is_one_cell() -> None:
    data = {key: value for key, value in grouped("f" * 9, "ffff").items() if key != "group"}
    del data["test"]["group"]
    found, left_out = without_small_cells(one(data), 5)
    assert (left_out, found.test, len(found.train.x)) == ({"test": 4}, None, 9)


def test_the_owner_is_told_how_many_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evenhand"):
        Curious(tmp_path, grouped("fffffmmmmmdd", "fffff"), policy="").census()
    assert caplog.messages == [
        "train data: excluded 2 samples of groups with fewer than 5 here (min-cell in the policy);"
        " merge groups in the table to use them"
    ]


def test_a_node_with_too_few_samples_does_not_take_part(tmp_path: Path) -> None:
    assert records.fault_in(
        Curious(tmp_path, grouped("fffffff", "fffff"), "min-batch = 8").census()
    ) == (
        "its owner's policy refuses it: the node has fewer samples than a batch must have"
        " (min-batch = 8)"
    )


def test_a_method_over_groups_learns_what_the_simulator_does_without_small_groups(
    tmp_path: Path,
) -> None:
    """FedMinMax over real messages, with the default limits but for the order of batches."""
    rng = np.random.default_rng(0)
    groups = ["f" * 20 + "m" * 20 + "d", "m" * 30 + "ff", "f" * 12 + "d" * 9]
    held = [
        {"x": rng.normal(size=(len(g), 6)), "y": rng.integers(0, 2, len(g)), "group": list(g)}
        for g in groups
    ]
    (tmp_path / "policy.toml").write_text('order = "server"')
    configs = [
        {
            "partition-id": i,
            "state-dir": str(tmp_path / f"{i}"),
            "policy": f"{tmp_path}/policy.toml",
        }
        for i in range(3)
    ]
    app = client_app(model, lambda config: held[int(config["partition-id"])])
    found: list[eh.Result] = []
    settings: dict[str, Any] = {
        "rounds": 3, "local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=16), "seed": 1,
    }  # fmt: skip
    method = eh.FedMinMax(lr_mu=0.1)
    server = server_app(
        method, model, clients=3, out=tmp_path / "run", finished=found.append, **settings
    )
    grid = InProcessGrid(app, configs)
    server(grid, grid.contexts[1])
    allowed = ("fm", "m", "fd")
    kept = [
        {
            key: np.asarray(value)[[name in names for name in data["group"]]]
            for key, value in data.items()
        }
        for data, names in zip(held, allowed, strict=True)
    ]
    reference = eh.fit(model(), eh.Federation.from_arrays(kept), method, engine="loop", **settings)
    for key, value in reference.params.items():
        assert torch.equal(found[0].params[key], value), key


# ---- the order of batches


def test_secret_batches_visit_every_sample_once_an_epoch_and_are_never_small() -> None:
    sizes = torch.tensor([33])
    local = SecretOrder.of(eh.LocalSGD(lr=1.0, epochs=2, batch_size=16), key=7, least=8)
    schedule = local.batches(torch.tensor([0]), sizes, 33, 0, 0)
    assert schedule.steps.tolist() == [4]
    assert schedule.valid.sum(-1).tolist() == [[16, 17, 16, 17]]  # one was left over
    for epoch in (0, 2):
        two = slice(epoch, epoch + 2)
        visited = schedule.positions[0, two][schedule.valid[0, two]]
        assert sorted(visited.tolist()) == list(range(33))
    again = local.batches(torch.tensor([5]), sizes, 33, 3, 9)  # nothing of the server's matters
    assert torch.equal(again.positions, schedule.positions)
    other = SecretOrder.of(local, key=8, least=8).batches(torch.tensor([0]), sizes, 33, 0, 0)
    assert not torch.equal(other.positions, schedule.positions)
    rest = SecretOrder.of(eh.LocalSGD(lr=1.0, batch_size=12), key=7, least=8)
    assert rest.batches(torch.tensor([0]), sizes, 33, 0, 0).valid.sum(-1).tolist() == [[12, 12, 9]]
    steps = SecretOrder.of(eh.LocalSGD(lr=1.0, steps=3, batch_size=20), key=7, least=8)
    assert steps.batches(torch.tensor([0]), sizes, 33, 0, 0).valid.sum(-1).tolist() == [
        [20, 13, 20]
    ]


def test_the_same_task_gets_the_same_batches_and_any_other_task_others(tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS), policy="")
    local: dict[str, Any] = {"steps": 2, "batch_size": 8}
    first, again, other = (server.train(round, **local)[0].total["delta"] for round in (0, 0, 1))
    more = server.train(0, steps=2, batch_size=9)[0].total["delta"]
    key = next(iter(first))
    assert torch.equal(first[key], again[key])
    assert not torch.equal(first[key], other[key])
    assert not torch.equal(first[key], more[key])
    (tmp_path / "elsewhere").mkdir()
    node = Curious(
        tmp_path / "elsewhere", patients(ROWS), policy=""
    )  # the same data, another secret
    assert not torch.equal(node.train(0, **local)[0].total["delta"][key], first[key])
    secret = tmp_path / "state" / "order-key"
    assert (len(secret.read_bytes()), secret.stat().st_mode & 0o77) == (32, 0)


# ---- what is written down


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_owner_can_read_what_was_asked(tmp_path: Path) -> None:
    server = Curious(tmp_path, patients(ROWS))
    server.census()
    server.train(steps=3, batch_size=16)
    server.train(round=4, seed=9, steps=1, batch_size=1)
    server.evaluate("val")
    found = lines(tmp_path / "state" / FILE)
    assert [(line["kind"], line["outcome"]) for line in found] == [
        ("census", "answered"),
        ("task", "answered"),
        ("task", "refused"),
        ("task", "failed"),
    ]
    assert found[2]["reason"].endswith("it asks for batches of 1 (min-batch = 5)")
    assert (found[2]["round"], found[2]["seed"], found[2]["loss"]) == (4, 9, "cross_entropy")
    assert found[1]["work"]["local"]["batch_size"] == 16
    assert found[1]["work"]["method"] == {"name": "fedavg"}
    assert all(line["time"].endswith("+00:00") and line["flower_run"] == "1" for line in found)


def test_no_audit_no_answer(tmp_path: Path) -> None:
    place = tmp_path / "log" / "audit.jsonl"
    server = Curious(tmp_path, patients(ROWS), f'audit = "{place}"')
    assert server.train()[1] == ""
    assert len(lines(place)) == 1
    place.unlink()
    place.mkdir()
    assert server.train()[1] == (
        "its audit file cannot be written (Is a directory), so it answers nothing"
    )


def test_the_server_logs_the_rule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = client_app(model, lambda config: patients(ROWS, int(config["partition-id"])))
    configs = [{"partition-id": i, "state-dir": str(tmp_path / f"{i}")} for i in range(2)]
    server = server_app(
        eh.FedAvg(), model, clients=2, rounds=1, out=tmp_path / "run",
        local=eh.LocalSGD(lr=0.1, steps=1, batch_size=4),
    )  # fmt: skip
    grid = InProcessGrid(app, configs)
    with pytest.raises(RunError, match="no client answered in any round"):
        server(grid, grid.contexts[1])
    assert (
        "client 0 is skipped: its owner's policy refuses it: it asks for batches of 4 (min-batch ="
        " 5)" in caplog.text
    )
