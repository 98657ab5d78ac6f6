"""Replies that must not count, and servers that stop: a fault costs its client one round, an
interruption nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

import evenhand as eh
from evenhand.errors import RunError
from evenhand.flower import client_app, packing, records, server_app
from evenhand.messages import Reply
from evenhand.tree import Tree
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_faults import Dying, Killed, Unheard, during
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import FAST, Setting, flat, one_client

SIZES = (2, 12, 7)
FAULTY, ROUND, ROUNDS = 1, 1, 3  # who is skipped, and in which round: the middle one
CANARY = 31337.125  # a value of a client's data: no log of the server may show it
PATH = "/home/clinic/patients.csv"


# ---- the reference: the simulator, with clients that are not heard


@cache
def reference(method: eh.Algorithm, *lost: tuple[str, int, int]) -> eh.Result:
    return eh.fit(network(), ragged(SIZES), method, rounds=ROUNDS, engine=Unheard(lost), **FAST)


def assert_same(found: eh.Result, expected: eh.Result) -> None:
    assert flat(found).keys() == flat(expected).keys()
    for key, value in flat(expected).items():
        assert torch.equal(flat(found)[key], value), key
    for name in ("asked", "answered", "left_out", "void"):
        assert [row[name] for row in found.history_rows] == [
            row[name] for row in expected.history_rows
        ], name


# ---- what can be wrong with a reply


def asked(setting: Setting, reply: Message) -> Message:
    """The task that a reply answers."""
    return setting.grid.sent[int(reply.metadata.reply_to_message_id)]


class Spoilt(Setting):
    """A federation in which one reply is changed on its way: that of client FAULTY to the training
    of round ROUND."""

    def __init__(
        self, directory: Path, change: Callable[[Spoilt, Message], list[Message]], **options: Any
    ) -> None:
        super().__init__(directory, ragged(SIZES), network(), spoil=self._spoil, **options)
        self.change, self.changed, self.earlier = change, 0, list[Message]()

    def _spoil(self, node: int, reply: Message) -> list[Message]:
        about = asked(self, reply).content.get("about", {})
        if node != FAULTY + 1 or about.get("work") != "train":
            return [reply]
        if about["round"] != ROUND:
            self.earlier.append(reply)
            return [reply]
        self.changed += 1
        return self.change(self, reply)


def rewritten(
    edit: Callable[[Reply, dict[str, Any]], Reply | None],
) -> Callable[[Spoilt, Message], list[Message]]:
    """Change a reply's trees and what goes with it, and pack it again."""

    def change(setting: Spoilt, message: Message) -> list[Message]:
        reply, about = records.read_reply(message.content)
        reply = edit(reply, about) or reply
        return [Message(records.reply_content(reply, about), reply_to=asked(setting, message))]

    return change


def put(
    part: str, *path: str, to: Callable[[Tensor], Tensor]
) -> Callable[[Spoilt, Message], list[Message]]:
    def edit(reply: Reply, about: dict[str, Any]) -> None:
        branch: Tree = getattr(reply, part)
        for key in path[:-1]:
            branch = branch[key]
        branch[path[-1]] = to(branch[path[-1]])

    return rewritten(edit)


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def change(leaf: Tensor) -> Tensor:
        leaf.view(-1)[-1] = value
        return leaf

    return change


def told(**changes: Any) -> Callable[[Spoilt, Message], list[Message]]:
    return rewritten(lambda reply, about: about.update(changes))


def content(made: Callable[[], RecordDict]) -> Callable[[Spoilt, Message], list[Message]]:
    return lambda setting, message: [Message(made(), reply_to=asked(setting, message))]


def garbage() -> RecordDict:
    noise = np.random.default_rng(0).bytes(300)
    array = Array(dtype="uint8", shape=(len(noise),), stype=packing.STYPE, data=noise)
    return RecordDict(
        {
            "trees": ArrayRecord({"total": array, "each": array}),
            "about": ConfigRecord({"format": records.FORMAT}),
        }
    )


def an_earlier_reply(setting: Spoilt, message: Message) -> list[Message]:
    """What the client has answered in the round before, as if it were for this one."""
    return [Message(setting.earlier[-1].content, reply_to=asked(setting, message))]


def an_error(setting: Spoilt, message: Message) -> list[Message]:
    return [Message(Error(8, f"ClientApp stopped at {PATH}"), reply_to=asked(setting, message))]


BIAS = ("total", "delta", "2.bias")
WEIGHT = ("total", "delta", "0.weight")
FAULTS: dict[str, tuple[Callable[[Spoilt, Message], list[Message]], str]] = {
    "wrong shape": (
        put(*WEIGHT, to=lambda leaf: leaf.T.contiguous()),
        "shape (5, 8), expected shape (8, 5)",
    ),
    "a shape that would broadcast": (
        put(*BIAS, to=lambda leaf: leaf[:1]),
        "shape (1,), expected shape (3,)",
    ),
    "no dimension": (put(*BIAS, to=lambda leaf: leaf[0]), "shape (), expected shape (3,)"),
    "wrong type": (put(*BIAS, to=Tensor.float), "type float32, expected type float64"),
    "a missing entry": (
        rewritten(lambda reply, about: reply.total.pop("weight") and None),
        "missing: total/weight",
    ),
    "an entry too many": (
        rewritten(lambda reply, about: reply.each.update(secret=torch.tensor(CANARY))),
        "1 unexpected entry",
    ),
    "another order": (
        rewritten(lambda reply, about: Reply(dict(reversed(reply.total.items())), reply.each)),
        "entries in an unexpected order",
    ),
    "each in place of total": (
        rewritten(lambda reply, about: Reply({}, {**reply.total, **reply.each})),
        "missing: total/delta",
    ),
    "NaN": (put(*BIAS, to=with_value(float("nan"))), "not finite: total/delta/2.bias"),
    "infinity": (put(*WEIGHT, to=with_value(float("-inf"))), "not finite: total/delta/0.weight"),
    "NaN as a loss": (
        put("each", "loss_at_start", to=with_value(float("nan"))),
        "not finite: each/loss_at_start",
    ),
    "1e38": (put(*BIAS, to=with_value(1e38)), "values beyond 1e+30: total/delta/2.bias"),
    "a negative weight": (
        put("total", "weight", to=with_value(-CANARY)),
        "not what the server sent: total/weight",
    ),
    "another client's number": (told(client=FAULTY + 1), "another client's number"),
    "a number that is none": (told(client=float(FAULTY + 0.5)), "another client's number"),
    "another round": (told(round=ROUND - 1), f"another round than {ROUND + 1}; the reply is late"),
    "a late reply": (an_earlier_reply, f"another round than {ROUND + 1}; the reply is late"),
    "other work": (told(work="evaluate"), "a task other than train"),
    "garbage": (content(garbage), "header"),
    "nothing": (content(RecordDict), "is not from evenhand"),
    "no trees": (
        content(lambda: RecordDict({"about": ConfigRecord({"format": records.FORMAT})})),
        "must hold the trees total and each",
    ),
    "another format": (
        content(lambda: RecordDict({"about": ConfigRecord({"format": 999})})),
        "format 999",
    ),
    "an error of Flower's": (an_error, "Flower's error 8"),
}


def heard_by_server(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the server's log; nodes, which are in this process too, have logs of their own."""
    records = [
        record
        for record in caplog.records
        if record.name.startswith("evenhand") and record.name != "evenhand.flower.answering"
    ]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


def assert_told(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    lines = heard_by_server(caplog)
    about_client = [line for line in lines if f"client {FAULTY}" in line]
    assert any(reason in line for line in about_client), lines
    assert len(about_client) <= 2, lines  # a line for each kind of fault
    assert not any(
        f"client {other}" in line
        for line in lines
        for other in range(len(SIZES))
        if other != FAULTY
    )
    for line in lines:
        assert "\n" not in line
        assert "31337" not in line
        assert "clinic" not in line
        assert "patient" not in line


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_reply_costs_its_client_the_round(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = FAULTS[fault]
    setting = Spoilt(tmp_path, change)
    result = setting.run(METHODS["afl"], rounds=ROUNDS, **FAST)
    assert setting.changed == 1
    assert [row["left_out"] for row in result.history_rows] == ["", str(FAULTY), ""]
    assert_same(result, reference(METHODS["afl"], ("train", ROUND, FAULTY)))
    assert_told(caplog, reason)


@pytest.mark.parametrize(
    ("method", "change", "reason"),
    [
        ("ditto", FAULTS["NaN"][0], "not finite: total/delta/2.bias"),
        (
            "gifair_per",
            put("total", "team_heard", to=with_value(-1.0)),
            "negative: total/team_heard",
        ),
        (
            "fedminmax",
            put("total", "group_share", to=with_value(-1e-9)),
            "not what the server sent: total/group_share",
        ),
        ("fedmgda", FAULTS["another round"][0], "the reply is late"),
    ],
)
def test_a_refused_reply_leaves_no_trace_in_what_a_client_remembers(
    method: str, change: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its node has written down what it learned in the round; in the next it must start from what
    counts."""
    result = Spoilt(tmp_path, change).run(METHODS[method], rounds=ROUNDS, **FAST)
    expected = reference(METHODS[method], ("train", ROUND, FAULTY))
    assert_same(result, expected)
    for name in ("accuracy", "loss"):  # of personal models, which only scores show
        assert result.score_columns[name].tolist() == pytest.approx(
            expected.score_columns[name].tolist(), rel=1e-12, nan_ok=True
        ), name
    assert_told(caplog, reason)


def test_a_reply_of_ten_times_the_limit_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 20_000
    large = rewritten(
        lambda reply, about: reply.total.update(
            more=torch.zeros(10 * limit // 8, dtype=torch.float64)
        )
    )
    result = Spoilt(tmp_path, large).run(METHODS["afl"], rounds=ROUNDS, limit=limit, **FAST)
    assert_same(result, reference(METHODS["afl"], ("train", ROUND, FAULTY)))
    assert_told(caplog, f"the limit is {limit} bytes")


def test_a_node_does_not_send_more_than_its_limit(tmp_path: Path) -> None:
    federation = ragged(SIZES)
    app = client_app(network(), lambda config: one_client(federation, 0), limit=1000)
    setting = Setting(tmp_path, federation, network())
    setting.run(METHODS["fedavg"], rounds=1, **FAST)
    task = next(
        message for message in setting.grid.sent if message.metadata.message_type == "train"
    )
    size = records.size_of(task.content)
    assert size > 1000
    reply = app(task, setting.grid.contexts[1])
    told = (
        f"a message has {size} bytes, the limit is 1000 bytes; make the model smaller or raise the"
        " limit"
    )
    assert dict(reply.content["fault"]) == {"reason": told}


def test_a_second_reply_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def twice(setting: Spoilt, message: Message) -> list[Message]:
        return [message, Message(message.content, reply_to=asked(setting, message))]

    setting = Spoilt(tmp_path, twice)
    assert_same(setting.run(METHODS["afl"], rounds=ROUNDS, **FAST), reference(METHODS["afl"]))
    assert setting.changed == 1
    assert heard_by_server(caplog) == [
        f"node {FAULTY + 1} has replied already; its second reply is ignored"
    ]


def test_a_reply_to_an_earlier_message_is_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes beside the one that was asked for, as it would from a node that was slow."""

    def with_an_old_one(setting: Spoilt, message: Message) -> list[Message]:
        return [setting.earlier[-1], message]

    assert_same(
        Spoilt(tmp_path, with_an_old_one).run(METHODS["afl"], rounds=ROUNDS, **FAST),
        reference(METHODS["afl"]),
    )
    told = f"node {FAULTY + 1} replies to an earlier message; the reply is late and is ignored"
    assert heard_by_server(caplog) == [told]


def test_a_round_without_any_reply_that_counts_is_void_and_training_goes_on(tmp_path: Path) -> None:
    def spoil(node: int, reply: Message) -> list[Message]:
        about = asked(setting, reply).content.get("about", {})
        return (
            [Message(RecordDict(), reply_to=asked(setting, reply))]
            if (about.get("work"), about.get("round")) == ("train", 1)
            else [reply]
        )

    setting = Setting(tmp_path, ragged(SIZES), network(), spoil=spoil)
    result = setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)
    assert [row["void"] for row in result.history_rows] == [False, True, False]
    assert result.history_rows[1]["left_out"] == "0, 1, 2"
    assert_same(result, reference(METHODS["ditto"], *(("train", 1, client) for client in range(3))))


# ---- what can go wrong on a node


def node_app(load_data: Callable[[int], eh.Federation], **options: Any) -> Any:
    return client_app(
        options.pop("module", network()),
        lambda config: load_data(int(config["partition-id"])),
        share="client",
        **options,
    )


class FileGone(OSError):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileGone(f"{PATH}: no such file"), "load_data failed on the node; see its log"),
        (
            eh.errors.DataError(f"{PATH}, row 7: {CANARY}"),
            "load_data failed on the node; see its log",
        ),
        (RunError(f"{PATH} holds {CANARY}"), "load_data failed on the node; see its log"),
    ],
)
def test_what_a_nodes_loader_says_stays_on_the_node(
    error: Exception, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def load(client: int) -> eh.Federation:
        if client == FAULTY and during(setting.grid, ROUND):
            raise error
        return one_client(setting.federation, client)

    setting.grid.app = node_app(load)
    result = setting.run(METHODS["afl"], rounds=ROUNDS, **FAST)
    assert_same(result, reference(METHODS["afl"], ("train", ROUND, FAULTY)))
    assert_told(caplog, reason)


def test_what_fails_inside_training_stays_on_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def fails(output: Tensor, target: Tensor) -> Tensor:
        raise ValueError(f"patient 31337 in {PATH} has no label")

    def app(message: Message, context: Any) -> Message:
        broken = int(context.node_config["partition-id"]) == FAULTY and during(setting.grid, ROUND)
        return node_app(
            lambda client: one_client(setting.federation, client), loss=fails if broken else None
        )(message, context)

    setting.grid.app = app  # type: ignore[assignment]
    result = setting.run(METHODS["afl"], rounds=ROUNDS, **FAST)
    assert_same(result, reference(METHODS["afl"], ("train", ROUND, FAULTY)))
    assert_told(caplog, "on the node; see its log")


def test_a_client_that_diverges_sends_nothing_but_a_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its features are so large that its loss is not finite: what the simulator leaves out too."""
    federation, method = ragged(SIZES), METHODS["afl"]
    start = int(federation.train.offsets[FAULTY])
    federation.train.x[start] = 1e308
    module = nn.Linear(5, 3).double()
    with torch.no_grad():
        module.weight.fill_(1.0), module.bias.zero_()
    expected = eh.fit(module, federation, method, rounds=ROUNDS, engine="loop", **FAST)
    # so it does diverge
    assert [row["left_out"] for row in expected.history_rows] == [str(FAULTY)] * ROUNDS
    sent: list[tuple[int, RecordDict]] = []

    def spoil(node: int, reply: Message) -> list[Message]:
        if reply.metadata.message_type == "train":
            sent.append((node, reply.content))
        return [reply]

    result = Setting(tmp_path, federation, module, spoil=spoil).run(method, rounds=ROUNDS, **FAST)
    assert_same(result, expected)
    refusals = [content for node, content in sent if node == FAULTY + 1]
    assert len(refusals) == ROUNDS
    for refusal in refusals:
        assert list(refusal) == ["fault"]
        assert list(refusal["fault"]) == ["reason"]
        assert str(refusal["fault"]["reason"]).startswith(
            "nothing is sent, because it is not finite"
        )
    named = [
        line
        for line in heard_by_server(caplog)
        if f"client {FAULTY} is skipped: nothing is sent" in line
    ]
    assert len(named) == ROUNDS


class Absent(InProcessGrid):
    """A node that does not answer to some work."""

    away: tuple[str, int] = ("train", ROUND)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = super().push_messages(messages)
        self.down = {FAULTY + 1} if during(self, self.away[1], self.away[0]) else set()
        return ids


@pytest.mark.parametrize("method", ["afl", "ditto"])
def test_a_node_that_is_away_for_a_round_is_back_in_the_next(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = Absent
    result = setting.run(METHODS[method], rounds=ROUNDS, deadline=1.0, **FAST)
    assert_same(result, reference(METHODS[method], ("train", ROUND, FAULTY)))
    assert_told(caplog, f"has not answered within 1 s and is skipped in round {ROUND + 1}")
    assert all(message.metadata.ttl == 1.0 for message in setting.grid.sent)


def test_a_question_without_an_answer_counts_as_in_the_simulator(tmp_path: Path) -> None:
    """DRFA asks for losses in a round of its own: clients that do not answer are skipped there."""
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = type("AwayWhenAsked", (Absent,), {"away": ("survey", ROUND)})
    method = eh.DRFA(lr_lambda=0.05, sample=3)
    result = setting.run(method, rounds=ROUNDS, deadline=1.0, **FAST)
    assert "survey" in {message.content["about"].get("work") for message in setting.grid.sent}
    assert_same(result, reference(method, ("survey", ROUND, FAULTY)))


# ---- a server that stops


MOMENTS = {
    "before the first round": ("push", "train", 0),
    "in the first round": ("pull", "train", 0),
    "between training and its checkpoint": ("push", "evaluate", 1),
    "during evaluation": ("pull", "evaluate", 1),
    "after a checkpoint": ("push", "train", 2),
    "in the last round": ("pull", "train", ROUNDS - 1),
    "after the last round": ("push", "evaluate", ROUNDS),
}
# of FineTuned
AT_THE_END = {
    "before the last work": ("push", "train", ROUNDS),
    "in the last work": ("pull", "train", ROUNDS),
}


# methods without client memories and with: what is lost differs in these two moments
FEW = ("in the first round", "between training and its checkpoint")
CASES = [
    *((method, name) for method in ("fedavg", "afl", "gifair_per") for name in FEW),
    *(("ditto", name) for name in MOMENTS),
    *(("finetuned", name) for name in MOMENTS | AT_THE_END),
]


_whole: dict[str, eh.Result] = {}


def undisturbed(method: str, directory: Path) -> eh.Result:
    if method not in _whole:
        _whole[method] = Setting(directory, ragged(SIZES), network()).run(
            METHODS[method], rounds=ROUNDS, **FAST
        )
    return _whole[method]


def assert_equal_results(found: eh.Result, expected: eh.Result) -> None:
    assert_same(found, expected)
    assert found.history_rows == expected.history_rows
    assert found.score_columns.keys() == expected.score_columns.keys()
    for name, column in expected.score_columns.items():
        np.testing.assert_array_equal(found.score_columns[name], column, err_msg=name)


@pytest.mark.parametrize(("method", "moment"), CASES)
def test_a_server_that_was_ended_goes_on_as_if_nothing_had_happened(
    method: str, moment: str, tmp_path: Path
) -> None:
    expected = undisturbed(method, tmp_path / "undisturbed")
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = Dying
    setting.grid.moment = (MOMENTS | AT_THE_END)[moment]  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run(METHODS[method], rounds=ROUNDS, **FAST)
    name = (tmp_path / "run" / "run-name").read_text()
    assert_equal_results(setting.run(METHODS[method], rounds=ROUNDS, **FAST), expected)
    assert (tmp_path / "run" / "run-name").read_text() == name  # nodes keep memories under it
    assert setting.grid.moment is None  # type: ignore[attr-defined]


def test_a_run_that_was_done_gives_its_result_again(tmp_path: Path) -> None:
    """Ended when all was done but the result had not been used yet."""
    expected = undisturbed("finetuned", tmp_path / "undisturbed")
    setting = Setting(tmp_path, ragged(SIZES), network())

    def ends(result: eh.Result) -> None:
        raise Killed

    app = server_app(
        METHODS["finetuned"],
        network(),
        clients=3,
        out=tmp_path / "run",
        rounds=ROUNDS,
        finished=ends,
        by_client=True,
        **FAST,
    )
    with pytest.raises(Killed):
        app(setting.grid, setting.grid.contexts[1])
    trained = [
        message.content["about"]["round"]
        for message in setting.grid.sent
        if message.metadata.message_type == "train"
    ]
    before = len(setting.grid.sent)
    assert_equal_results(setting.run(METHODS["finetuned"], rounds=ROUNDS, **FAST), expected)
    assert set(trained) == {0, 1, 2, 3}
    again = setting.grid.sent[before:]
    assert {
        message.content["about"]["round"]
        for message in again
        if message.metadata.message_type == "train"
    } == {ROUNDS}


def test_rounds_that_are_in_the_checkpoint_are_not_repeated(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = Dying
    setting.grid.moment = MOMENTS["after a checkpoint"]  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)
    before = len(setting.grid.sent)
    setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)
    tasks = [
        message.content["about"]
        for message in setting.grid.sent[before:]
        if message.metadata.message_type == "train"
    ]
    assert [(task["client"], task["round"], task["counted"]) for task in tasks] == [
        (0, 2, 1),
        (1, 2, 1),
        (2, 2, 1),
    ]


def test_another_setting_with_the_same_directory_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.run(METHODS["fedavg"], rounds=1, **FAST)
    sent = len(setting.grid.sent)
    with pytest.raises(
        RunError, match=r"was started with other settings \(local\); use another directory"
    ) as caught:
        setting.run(
            METHODS["fedavg"],
            rounds=1,
            **FAST | {"local": eh.LocalSGD(lr=0.06, batch_size=8, momentum=0.5)},
        )
    assert "\n" not in str(caught.value)
    # nothing was trained
    assert all(
        message.metadata.message_type == "query.census" for message in setting.grid.sent[sent:]
    )


def test_a_node_with_other_data_than_at_first_costs_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Setting(tmp_path, ragged(SIZES), network()).run(METHODS["fedavg"], rounds=1, **FAST)
    data = [one_client(ragged(SIZES), client) for client in (0, 1, 1)]  # the third has another's
    changed = Setting(tmp_path, ragged(SIZES), network(), data)
    with pytest.raises(TimeoutError, match=r"only 2 of 3 nodes registered within 0\.3 s; 1 can"):
        changed.run(METHODS["fedavg"], rounds=1, patience=0.3, **FAST)
    assert (
        "node 3 (2) cannot take part: its data have changed since this run started; restore"
        " them, or use another directory"
    ) in caplog.text
    changed.run(METHODS["fedavg"], rounds=1, clients=2, **FAST)


def test_a_run_of_another_directory_has_memories_of_its_own(tmp_path: Path) -> None:
    """The same nodes in a second run start from nothing."""
    setting = Setting(tmp_path, ragged(SIZES), network())
    first = setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)
    second = setting.run(METHODS["ditto"], rounds=ROUNDS, out=tmp_path / "second", **FAST)
    assert_equal_results(second, first)
