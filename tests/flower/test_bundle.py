"""Evaluation in company with training: one message in place of two, and the simulator's numbers of
the model that a round starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.flower import bundle, records
from evenhand.messages import Reply, Task
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import SETTINGS, SIZES, Setting, flat

NUMBERS = ("loss", "mean", "worst10", "best10", "worst", "std")
ROUNDS = 3
EVERY_ROUND: dict[str, Any] = {**SETTINGS, "eval_every": 1}
FOLDED: dict[str, Any] = {"eval_every": 1, "evaluate": "with training"}


def assert_same_numbers(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Of evaluation. The simulator judges samples of all clients together, and a product with more
    rows may round differently."""
    for one, other in zip(found, expected, strict=True):
        assert [one[name] for name in NUMBERS] == pytest.approx(
            [other[name] for name in NUMBERS], rel=1e-12
        )


def fitted(method: str, **settings: Any) -> eh.Result:
    return eh.fit(
        network(),
        ragged(SIZES),
        METHODS[method],
        rounds=ROUNDS,
        engine="loop",
        **{**EVERY_ROUND, **settings},
    )


def kinds(setting: Setting) -> list[str]:
    """Of the messages to the first node, in their order."""
    return [
        message.metadata.message_type
        for message in setting.grid.sent
        if message.metadata.dst_node_id == 1
    ]


# with a model that is not the one that is sent (an average), with models of clients' own, with a
# question before training
@pytest.mark.parametrize(
    "method",
    ["fedavg", "afl", "afl_average", "ditto", "gifair_per", "fafl_local", "finetuned", "drfa"],
)
def test_the_numbers_are_the_simulators_of_the_model_that_a_round_starts_from(
    method: str, tmp_path: Path
) -> None:
    plain = fitted(method)
    setting = Setting(tmp_path, ragged(SIZES), network())
    result = setting.run(METHODS[method], ROUNDS, **FOLDED)
    rows = result.history_rows
    assert [row["scores_after"] for row in rows] == [0, 1, 2]
    assert_same_numbers(rows[1:], plain.history_rows[:-1])
    assert_same_numbers(rows, fitted(method, evaluate="with training").history_rows)
    for key, value in flat(plain).items():
        assert torch.equal(flat(result)[key], value), key
    assert result.score_columns["accuracy"].tolist() == pytest.approx(
        plain.score_columns["accuracy"].tolist(), nan_ok=True
    )


def test_the_first_numbers_are_those_of_the_untrained_model(tmp_path: Path) -> None:
    federation, module = ragged(SIZES), network()
    row = Setting(tmp_path, federation, module).run(METHODS["fedavg"], 1, **FOLDED).history_rows[0]
    assert federation.test is not None
    right = []
    for client in range(federation.clients):
        x, y, _ = federation.test.client(client)
        right.append(float((module(x).argmax(1) == y).double().mean()))
    assert row["scores_after"] == 0
    assert row["mean"] == pytest.approx(np.mean(right))
    assert row["worst"] == pytest.approx(min(right))


@pytest.mark.parametrize("by_client", [True, False])
def test_only_the_cohort_looks_and_the_server_sees_no_more_than_before(
    by_client: bool, tmp_path: Path
) -> None:
    cohort = eh.Uniform(3)
    setting = Setting(tmp_path, ragged(SIZES), network())
    arrived: list[Reply] = []
    setting.grid.spoil = lambda node, reply: (
        arrived.append(records.read_reply(reply.content)[0]) or [reply]
    )
    result = setting.run(METHODS["fedavg"], ROUNDS, cohort=cohort, by_client=by_client, **FOLDED)
    expected = fitted("fedavg", cohort=cohort, evaluate="with training")
    for mine, theirs in zip(result.history_rows, expected.history_rows, strict=True):
        exact = ("loss", "mean", "std")  # others come from a histogram where only sums are seen
        assert {name: mine[name] for name in exact} == pytest.approx(
            {name: theirs[name] for name in exact}, rel=1e-12
        )
    replies = [reply for reply in arrived if bundle.EVALUATION in reply.total]
    assert len(replies) == 3 * ROUNDS
    assert all(bool(reply.each[bundle.EVALUATION]) == by_client for reply in replies)
    assert all(reply.total[bundle.EVALUATION]["clients"] == 1 for reply in replies if not by_client)


def test_a_round_with_evaluation_is_one_exchange(tmp_path: Path) -> None:
    folded, apart = (
        Setting(tmp_path / name, ragged(SIZES), network()) for name in ("folded", "apart")
    )
    folded.run(METHODS["fedavg"], ROUNDS, by_client=False, **FOLDED)
    apart.run(METHODS["fedavg"], ROUNDS, by_client=False, eval_every=1)
    assert kinds(folded) == ["query.census", *["train"] * ROUNDS, "evaluate"]
    assert kinds(apart) == ["query.census", *["train", "evaluate"] * ROUNDS]


@pytest.mark.parametrize(("method", "models"), [("fedavg", 1), ("afl_average", 2)])
def test_a_second_model_travels_only_where_it_is_another(
    method: str, models: int, tmp_path: Path
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.run(METHODS[method], ROUNDS, **FOLDED)
    task, about = records.read_task(
        [message for message in setting.grid.sent if message.metadata.message_type == "train"][
            -1
        ].content
    )
    assert "look" in about
    assert ("model" in task.shared) + (bundle.EVALUATED_MODEL in task.shared) == models


def test_clients_without_test_data_train_and_have_no_say_in_the_numbers(tmp_path: Path) -> None:
    whole = ragged(SIZES)
    assert whole.test is not None
    nobody = whole.test.sizes.clone()
    nobody[1] = 0
    rows = torch.cat(
        [
            torch.arange(int(start), int(start + size))
            for start, size in zip(whole.test.offsets, nobody, strict=False)
        ]
    )
    assert whole.test.group is not None
    test = eh.Part(
        whole.test.x[rows],
        whole.test.y[rows],
        torch.cat([torch.zeros(1, dtype=torch.int64), nobody.cumsum(0)]),
        whole.test.group[rows],
    )
    federation = eh.Federation(
        whole.train,
        test,
        teams=whole.teams,
        team_names=whole.team_names,
        group_names=whole.group_names,
    )
    result = Setting(tmp_path, federation, network()).run(METHODS["fedavg"], ROUNDS, **FOLDED)
    expected = eh.fit(
        network(),
        federation,
        METHODS["fedavg"],
        rounds=ROUNDS,
        engine="loop",
        **{**EVERY_ROUND, "evaluate": "with training"},
    )
    assert [row["answered"] for row in result.history_rows] == [len(SIZES)] * ROUNDS
    assert_same_numbers(result.history_rows, expected.history_rows)
    for key, value in flat(expected).items():
        assert torch.equal(flat(result)[key], value), key


def without_the_look(reply: Reply) -> Reply:
    return Reply(reply.total[bundle.WORK], reply.each[bundle.WORK])


def with_one_more(reply: Reply) -> Reply:
    reply.each[bundle.EVALUATION]["count"][0] += 1
    return reply


def with_a_negative_count(reply: Reply) -> Reply:
    reply.each[bundle.EVALUATION]["correct"][0] = -1
    return reply


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_the_look, "client 1 is skipped: its reply lacks the work or the evaluation"),
        (with_one_more, "client 1: not what the node reported at the start: each/count; skipped"),
        (with_a_negative_count, "client 1: negative: each/correct; skipped"),
    ],
)
def test_a_reply_with_a_bad_look_is_left_out_as_a_whole(
    spoil: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def change(node: int, reply: Any) -> list[Any]:
        if node == 2 and reply.content["about"].get("work") == "train":
            found, about = records.read_reply(reply.content)
            reply.content = records.reply_content(spoil(found), about)
        return [reply]

    setting.grid.spoil = change
    rows = setting.run(METHODS["fedavg"], 1, **FOLDED).history_rows
    assert rows[0]["left_out"] == "1"
    assert reason in caplog.text


def test_nothing_is_folded_between_evaluations(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    rows = setting.run(
        METHODS["fedavg"], ROUNDS, eval_every=2, evaluate="with training"
    ).history_rows
    assert [row.get("scores_after") for row in rows] == [None, 1, 2]
    assert [row.get("loss") is None for row in rows] == [True, False, False]


def test_a_model_is_sent_once_where_it_is_the_same() -> None:
    model = {"w": torch.ones(2)}
    assert bundle.add_model(
        {"model": model, "level": torch.ones(())}, {"w": torch.ones(2)}
    ).keys() == {"model", "level"}
    other = {"w": torch.tensor([1.0, 2.0])}
    shared = bundle.add_model({"model": model}, other)
    work, look = bundle.split_task(Task(shared, {"weight": torch.ones(1)}))
    assert work.shared == {"model": model}
    assert work.own.keys() == {"weight"}
    assert look == Task({"model": other})


def test_an_unknown_way_to_evaluate_is_an_error() -> None:
    with pytest.raises(ValueError, match="evaluate must be"):
        eh.fit(network(), ragged(SIZES), METHODS["fedavg"], rounds=1, evaluate="sometimes")
