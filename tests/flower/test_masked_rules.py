"""What a node refuses under masked sums, whatever the server asks, and what a server app refuses
before it asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto

import evenhand as eh
from evenhand.algorithms.sums_only import way_out
from evenhand.flower import client_app, records
from evenhand.flower.masked import told
from evenhand.flower.registration import report_data
from evenhand.flower.tryout.certificates import write_node_key
from evenhand.secure import Cohort
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_masks import SIZES, Masked, about, vector
from tests.support.flower_nodes import flat, one_client

Change = Callable[[Message], None]


class Lying(InProcessGrid):
    """Changes messages on their way to nodes: (node, kind of work, round) -> what to do."""

    lies: dict[tuple[int, str, int], Change]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        told_to = []
        for message in messages:
            known = about(message)
            key = (message.metadata.dst_node_id, known.get("work", ""), known.get("round", -1))
            if key in self.lies:
                message = message_from_proto(message_to_proto(message))
                self.lies[key](message)
            told_to.append(message)
        return super().push_messages(told_to)


def lying(directory: Path, lies: dict[tuple[int, str, int], Change], **changes: Any) -> Masked:
    setting = Masked(directory, **changes)
    setting.grid.__class__ = Lying
    setting.grid.lies = lies  # type: ignore[attr-defined]
    return setting


def with_cohort(change: Callable[[Cohort], Cohort]) -> Change:
    def lie(message: Message) -> None:
        record = message.content["about"]
        record[told.COHORT] = change(Cohort.unpacked(record[told.COHORT])).packed()

    return lie


def other_key(cohort: Cohort) -> Cohort:
    """Another client's key is one that the server knows the secret of."""
    first, second, *rest = cohort.members
    swapped = replace(second.announced, key=bytes(31) + b"\x09")
    return Cohort((first, replace(second, announced=swapped), *rest))


def other_signer(cohort: Cohort) -> Cohort:
    """The same with a signature of the server's own."""
    from evenhand.secure import Identity, NodeKey

    first, second, *rest = cohort.members
    known = second.announced
    forged = NodeKey(known.run, known.name, known.epoch + 1, b"\x05" * 32).announced(Identity.new())
    return Cohort((first, replace(second, announced=forged), *rest))


def alone(cohort: Cohort) -> Cohort:
    """One client counts, and the others hardly."""
    first, *rest = cohort.members
    return Cohort((replace(first, coefficient=1e6), *rest))


def nobody_else(message: Message) -> None:
    """The task itself has a weight that the list does not have."""
    task, known = records.read_task(message.content)
    task.own["weight"] *= 1e6
    changed = records.task_content(task, {k: v for k, v in known.items() if k != "format"})
    message.content["trees"] = changed["trees"]


def nobody_else_in_secret(message: Message) -> None:
    """The same, and the list says so, but hides it behind another coefficient."""
    nobody_else(message)
    record, client = message.content["about"], about(message)["client"]
    cohort = Cohort.unpacked(record[told.COHORT])
    own = told.digest_of(message.content["trees"]["own"].data)
    members = [replace(it, own=own) if it.number == client else it for it in cohort.members]
    record[told.COHORT] = Cohort(tuple(members)).packed()


def another_set(message: Message) -> None:
    """A second sum about the same model, without one client."""
    record = message.content["about"]
    record[told.ANSWERED] = record[told.ANSWERED][:-1]
    record[told.SENDERS] = record[told.SENDERS][:-1]
    record[told.BOXES] = record[told.BOXES][:-1]


def too_few(message: Message) -> None:
    record = message.content["about"]
    for name in (told.ANSWERED, told.SENDERS, told.BOXES):
        record[name] = record[name][:3]


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        (with_cohort(other_key), "signed keys"),
        (with_cohort(alone), "enough others"),
        (with_cohort(lambda cohort: Cohort(cohort.members[1:])), "in the list"),
        (with_cohort(lambda cohort: Cohort(cohort.members[:2])), "enough others"),
        (nobody_else, "same task"),
        (nobody_else_in_secret, "same task"),
    ],
)
def test_a_node_names_the_rule_that_a_list_breaks(
    lie: Change, rule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = lying(tmp_path, {(1, "train", 1): lie})
    result = setting.run()
    assert f"(rule: {rule})" in caplog.text
    assert "client 0 is skipped: it refuses this masked sum: " in caplog.text
    assert [row["answered"] for row in result.history_rows] == [5, 4, 5]
    lines = (tmp_path / "state0" / "audit.jsonl").read_text().splitlines()
    refused = [row for row in map(json.loads, lines) if row["outcome"] == "refused"]
    assert [rule in row["reason"] for row in refused] == [True]


def test_keys_that_a_server_signs_itself_are_refused_once_the_first_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lie = with_cohort(other_signer)
    setting = lying(tmp_path, {(1, "train", 1): lie, (3, "train", 1): lie})
    result = setting.run()
    assert "client 0 is skipped: it refuses this masked sum: the owner of '1' has changed" in (
        caplog.text
    )
    assert "(rule: pinned keys)" in caplog.text
    assert [row["void"] for row in result.history_rows] == [False, True, False]


@pytest.mark.parametrize(("lie", "rule"), [(another_set, "one set"), (too_few, "threshold")])
def test_a_holder_opens_one_set_of_clients_that_is_large_enough(
    lie: Change, rule: str, tmp_path: Path
) -> None:
    """Asked again by somebody who has read the server's messages."""
    setting = Masked(tmp_path)
    setting.run(rounds=2)
    message = next(it for it in setting.grid.sent if about(it).get("work") == "unmask")
    node = message.metadata.dst_node_id
    again = message_from_proto(message_to_proto(message))
    lie(again)
    reply = setting.grid.app(again, setting.grid.contexts[node])
    fault = records.fault_in(reply.content)
    assert "it refuses to open masks: " in fault
    # four of five are another set; three are too few
    assert f"(rule: {rule})" in fault
    whole = setting.grid.app(message, setting.grid.contexts[node])
    assert about(whole)[told.OPENED]


def test_the_same_task_again_gives_the_same_bytes_and_an_older_one_nothing(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    replies: list[Message] = []
    setting.grid.spoil = lambda node, reply: replies.append(reply) or [reply]
    setting.run(rounds=2)
    last = next(it for it in setting.grid.sent if about(it).get("work") == "evaluate")
    node = last.metadata.dst_node_id
    sent = next(
        it
        for it in replies
        if about(it).get("work") == "evaluate" and about(it)["client"] == node - 1
    )
    again = setting.grid.app(last, setting.grid.contexts[node])
    assert (vector(again) == vector(sent)).all()
    assert about(again) == about(sent)
    # an older exchange is over
    first = next(it for it in setting.grid.sent if about(it).get("work") == "train")
    reply = setting.grid.app(first, setting.grid.contexts[first.metadata.dst_node_id])
    assert "(rule: newer exchanges only)" in records.fault_in(reply.content)


def test_another_input_in_the_same_context_is_refused(tmp_path: Path) -> None:
    """The difference of two replies would be free of masks: the node's data have changed."""
    federation = ragged(SIZES)
    held = [one_client(federation, client) for client in range(5)]
    setting = Masked(tmp_path, federation=federation, data=held)
    setting.run(rounds=1)
    last = next(it for it in setting.grid.sent if about(it).get("work") == "evaluate")
    node = last.metadata.dst_node_id
    held[node - 1].test.y.copy_(torch.roll(held[node - 1].test.y, 1))
    held[node - 1].test.x.add_(1.0)
    reply = setting.grid.app(last, setting.grid.contexts[node])
    assert "has another input (rule: one input)" in records.fault_in(reply.content)


def test_a_different_model_for_one_client_gives_noise_and_a_void_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lie(message: Message) -> None:
        task, known = records.read_task(message.content)
        task.shared["model"]["0.bias"][0] += 1.0
        changed = records.task_content(task, {k: v for k, v in known.items() if k != "format"})
        message.content["trees"] = changed["trees"]

    setting = lying(tmp_path, {(2, "train", 1): lie})
    result = setting.run()
    assert [row["void"] for row in result.history_rows] == [False, True, False]
    told_of = [it.message for it in caplog.records if "round 2" in it.message]
    # every share of that client's boxes is sealed for another context
    assert any("fit; the round has no sum" in line or "noise" in line for line in told_of)


@pytest.mark.parametrize("name", ["seed", "loss", "groups", "how"])
def test_whatever_else_one_client_is_told_differently_gives_no_sum(
    name: str, tmp_path: Path
) -> None:
    def lie(message: Message) -> None:
        record = message.content["about"]
        changed: Any = {
            "seed": 4,
            "loss": "mse",
            "groups": ["c", "b", "a"],
            "how": str(record["how"]).replace('"batch_size": 8', '"batch_size": 9'),
        }[name]
        assert record[name] != changed
        record[name] = changed

    setting = lying(tmp_path, {(2, "train", 1): lie})
    result = setting.run()
    answered = [row["answered"] for row in result.history_rows]
    # a node that cannot do what it is told drops out by itself
    assert answered in ([5, 0, 5], [5, 4, 5] if name == "loss" else [5, 0, 5])


# ---- owners


@pytest.mark.parametrize("where", ["config", "policy"])
def test_a_node_that_shares_only_masked_sums_refuses_all_else(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path)
    if where == "config":
        setting.grid.contexts[2].node_config["share"] = "masked"
    else:
        path = tmp_path / "strict.toml"
        path.write_text('share = "masked"\nmin-batch = 1\nmin-cell = 1\norder = "server"\n')
        setting.grid.contexts[2].node_config["policy"] = str(path)
    for secure in (None, eh.flower.SecureSums(counts="visible")):
        result = setting.run(rounds=1, secure=secure, grace=0.1, out=tmp_path / f"{secure}")
        assert "node 2 cannot take part: its owner shares only masked sums" in caplog.text
        assert "and the run asks for its counts; use secure=SecureSums()" in caplog.text
        assert [row["answered"] for row in result.history_rows] == [4]
        caplog.clear()
    # and whatever a server asks that does without the counts
    message = next(it for it in setting.grid.sent if about(it).get("work") == "train")
    assert told.MASKS not in about(message)
    message.content["about"]["client"] = 1
    reply = setting.grid.app(message, setting.grid.contexts[2])
    assert 'its owner shares only masked sums (share="masked")' in records.fault_in(reply.content)
    masked = setting.run(rounds=1, out=tmp_path / "masked")
    assert [row["answered"] for row in masked.history_rows] == [5]


def test_a_run_without_masks_does_not_start_where_all_share_only_masked_sums(
    tmp_path: Path,
) -> None:
    setting = Masked(tmp_path)
    for context in setting.grid.contexts.values():
        context.node_config["share"] = "masked"
    with pytest.raises(TimeoutError, match="5 cannot take part"):
        setting.run(rounds=1, secure=None, patience=0.5, deadline=0.5)


def test_an_owner_asks_for_more_clients_than_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path)
    setting.grid.contexts[1].node_config["least"] = 4
    result = setting.run(rounds=1, weights="uniform")
    assert "the owner wants at least 4 clients, the server 3 (rule: known mode)" in caplog.text
    assert [row["answered"] for row in result.history_rows] == [4]
    more = setting.run(
        rounds=1,
        weights="uniform",
        out=tmp_path / "more",
        secure=eh.flower.SecureSums(least=4),
    )
    assert [row["answered"] for row in more.history_rows] == [5]


def test_keys_that_are_not_in_an_owners_list_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An invented node: whoever runs the SuperLink can register one."""
    setting = Masked(tmp_path)
    keys = [write_node_key(tmp_path / "keys", f"node-{i}") for i in range(5)]
    lines = [key.public.read_text() for key in keys[:4]]
    (tmp_path / "trusted").write_text("# four hospitals\n" + "".join(lines))
    for node, key in enumerate(keys, 1):
        setting.grid.contexts[node].node_config["identity-key"] = str(key.private)
        if node < 5:
            setting.grid.contexts[node].node_config["trusted-keys"] = str(tmp_path / "trusted")
    with pytest.raises(eh.RunError, match="the clients' samples could not be counted"):
        setting.run(rounds=1)
    assert "the owner of '4' (SHA256:" in caplog.text
    assert "is not in the list of trusted keys (rule: trusted keys)" in caplog.text
    (tmp_path / "trusted").write_text("".join([*lines, keys[4].public.read_text()]))
    result = setting.run(rounds=1, out=tmp_path / "second")
    assert [row["answered"] for row in result.history_rows] == [5]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("identity-key", "missing", "its identity-key cannot be used: No such file or directory"),
        ("trusted-keys", "missing", "its trusted-keys cannot be used: No such file or directory"),
        ("least", 2, "least in its node config must be a whole number of 3 or more"),
    ],
)
def test_settings_of_an_owner_that_cannot_be_used_are_named(
    key: str, value: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path)
    setting.grid.contexts[2].node_config[key] = value
    with pytest.raises(TimeoutError):
        setting.run(rounds=1, patience=0.5, deadline=0.5)
    assert reason in caplog.text
    assert str(tmp_path) not in caplog.text.replace(str(tmp_path / "run"), "")


def test_a_nodes_fingerprint_is_printed_as_ssh_keygen_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if "fingerprint" in line]
    assert len(set(lines)) == 5
    assert all("SHA256:" in line and "without trusted-keys" in line for line in lines)


# ---- what a client checks itself


def test_a_client_that_is_not_finite_sends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = ragged(SIZES)
    held = [one_client(federation, client) for client in range(5)]
    held[3].train.x.fill_(torch.inf)
    setting = Masked(tmp_path, federation=federation, data=held)
    result = setting.run(rounds=1)
    assert "client 3 is skipped: nothing is sent, because it is not finite" in caplog.text
    assert [row["answered"] for row in result.history_rows] == [4]


def test_an_evaluation_that_shows_accuracies_too_finely_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lie(message: Message) -> None:
        record = message.content["about"]
        record["look"] = str(record["look"]).replace('"cells": 20', '"cells": 1000')

    setting = lying(tmp_path, {(node, "train", 0): lie for node in range(1, 6)})
    with pytest.raises(eh.RunError, match="no client answered in any round"):
        setting.run(rounds=1, eval_every=1)
    assert "a histogram of 1000 cells shows single clients; masked sums allow 20" in caplog.text


def test_a_sum_that_cannot_be_right_is_void_and_blames_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lies about its weight, and does not check itself."""
    monkeypatch.setattr("evenhand.flower.node.require_sound", lambda *known: None)
    ordinary = eh.FedAvg.reply

    def reply(
        self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
    ) -> Any:
        found, after = ordinary(self, model, start, end, data, task, memory)
        if float(task.own["weight"]) < 0.1:  # one of the five
            found.total["weight"] = found.total["weight"] + 1.0
        return found, after

    monkeypatch.setattr(eh.FedAvg, "reply", reply)
    result_of = Masked(tmp_path)
    with pytest.raises(eh.RunError, match="no client answered in any round"):
        result_of.run(rounds=1)
    assert "the sum of train cannot be right: weight is not what the server sent" in caplog.text
    named = [it.message for it in caplog.records if "cannot be right" in it.message]
    assert not any("client" in line for line in named)


# ---- what a server app refuses before it asks


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"by_client": True}, "by_client=True shows single clients, which secure=... hides"),
        ({"track_weights": True, "by_client": True}, "by_client=True shows single clients"),
        ({"bound": 5.0}, r"bound compares single replies, which secure=\.\.\. hides; Clipped"),
        ({"columns": object()}, r"columns=\.\.\. asks each node for the names in its table"),
    ],
)
def test_settings_that_show_single_clients_are_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        Masked(tmp_path).run(rounds=1, **settings)


@pytest.mark.parametrize(
    ("method", "out"),
    [
        ("afl", "use a method that needs only sums, such as FAFL, QFFL or TERM"),
        ("fafl_local", 'use FAFL(eta0="mean"), or a number'),
        ("fairfed", "use FairFed(sums_only=True)"),
        ("lossguard", "use a method that needs only sums"),
        ("fedfb_client", "use a notion between groups"),
    ],
)
def test_a_method_that_reads_clients_is_refused_by_name_with_the_way_out(
    method: str, out: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="masked sums hide single clients, but") as error:
        Masked(tmp_path).run(METHODS[method], rounds=1)
    assert out in str(error.value)
    assert type(METHODS[method]).__name__ in str(error.value)


def test_term_beyond_20_and_gifair_without_teams_are_refused_with_their_way_out(
    tmp_path: Path,
) -> None:
    assert way_out(eh.TERM(t=30.0)).startswith("use TERM(t=...) with t from -20 to 20")
    with pytest.raises(ValueError, match="use TERM"):
        Masked(tmp_path).run(eh.TERM(t=30.0), rounds=1)
    federation = ragged(SIZES, teams=False)
    with pytest.raises(
        eh.RunError, match="GIFAIR needs of each client: its loss; give the clients"
    ):
        Masked(tmp_path, federation=federation).run(eh.GIFAIR(strength=0.8), rounds=1)


@pytest.mark.parametrize(
    ("sizes", "settings", "reason"),
    [
        ((10, 10), {}, "masked sums need at least 3 clients in a cohort, got 2"),
        ((10, 10, 300), {"admission": eh.flower.Admission(cap=None)}, 'use weights="uniform"'),
        ((10, 10, 10, 10), {"cohort": eh.Uniform(2)}, "a cohort of 2 clients is too small"),
        (
            (10, 10, 10, 10),
            {"secure": eh.flower.SecureSums(threshold=5)},
            "threshold must be at most the cohort's 4 clients, got 5",
        ),
    ],
)
def test_a_federation_in_which_a_sum_would_be_one_client_does_not_start(
    sizes: tuple[int, ...], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(eh.RunError, match=reason):
        Masked(tmp_path, sizes).run(rounds=1, **settings)


def test_a_node_without_keys_is_not_admitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(data: eh.Federation, name: str, share: str, *masks: Any) -> Any:
        return report_data(data, name, share)

    monkeypatch.setattr("evenhand.flower.node.report_data", without)
    with pytest.raises(TimeoutError):
        Masked(tmp_path).run(rounds=1, patience=0.5, deadline=0.5)
    assert "node sent no key for masked sums in this run" in caplog.text


def test_an_exchange_that_would_see_single_clients_ends_the_run_whatever_the_method_says(
    tmp_path: Path,
) -> None:
    """A user's method whose ``visible`` does not tell."""

    @dataclass(frozen=True)
    class Telling(eh.Algorithm):
        def reply(self, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any) -> Any:
            return eh.Reply({}, {"loss": model.loss(end["model"], data)}), memory

    setting = Masked(tmp_path, algorithm=Telling())
    with pytest.raises(eh.RunError, match="but train needs of each client: loss"):
        setting.run(Telling(), rounds=1)


def test_a_method_whose_clients_add_noise_needs_masked_sums(tmp_path: Path) -> None:
    class Work:
        noise = staticmethod(lambda total: {})

    @dataclass(frozen=True)
    class Noisy(eh.Algorithm):
        def local_work(self) -> Any:
            return Work()

    with pytest.raises(ValueError, match="Noisy lets clients add noise in shares, which needs"):
        Masked(tmp_path).run(Noisy(), rounds=1, secure=None)


def test_client_app_takes_the_strictest_share() -> None:
    assert client_app(network, dict, share="masked") is not None
    with pytest.raises(ValueError, match='share must be "masked", "sums"'):
        client_app(network, dict, share="secret")


def test_evaluation_goes_with_training_unless_it_is_chosen(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    result = setting.run(rounds=2, eval_every=1)
    assert "scores_after" in result.history_rows[0]
    other = Masked(tmp_path / "other")
    chosen = other.run(rounds=2, eval_every=1, evaluate="after training")
    assert "scores_after" not in chosen.history_rows[0]
    reference = other.plain_sums(rounds=2, eval_every=1, evaluate="after training")
    assert all(torch.equal(flat(chosen)[key], value) for key, value in flat(reference).items())
    for mine, theirs in zip(chosen.history_rows, reference.history_rows, strict=True):
        assert mine["loss"] == theirs["loss"]
