"""Counts of samples as masked sums: the server of a run knows totals, and nobody's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto

import evenhand as eh
from evenhand.algorithm import visible
from evenhand.flower import records
from evenhand.flower.masked import told
from evenhand.flower.masked.totals import Counted, HiddenPopulation, parts_of, unequal
from evenhand.flower.registration import report_data
from evenhand.secure import Cohort, Member
from tests.support.federations import METHODS, ragged
from tests.support.flower_faults import Dying, Killed
from tests.support.flower_masks import SIZES, Masked, about
from tests.support.flower_nodes import flat, one_client

VISIBLE = eh.flower.SecureSums(counts="visible")
SUMS_ONLY = [name for name in METHODS if not visible(METHODS[name], ragged(SIZES).census())]
QUICK = {"qffl", "fafl", "term_team", "fedheal", "fedminmax", "gifair", "fairfed_sums"}
# with weights="data", what these do depends on whose samples they are
OWN_SIZES = {"fairfed_sums", "reweighed", "gifair", "gifair_per", "gifair_exact", "finetuned"}


def roster_of(setting: Masked) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((setting.directory / "run" / "roster.json").read_text())
    return found


def counted(setting: Masked) -> list[list[int]]:
    """The clients of each sum of counts."""
    return [one["clients"] for one in roster_of(setting).get("counted", [])]


def asked_to_count(setting: Masked) -> list[int]:
    """The nodes that were asked for counts."""
    return [
        it.metadata.dst_node_id
        for it in setting.grid.sent
        if it.metadata.message_type == "query.count"
    ]


# ---- what the server gets


def test_the_server_gets_totals_and_no_count_of_one_client(tmp_path: Path) -> None:
    replies: list[Message] = []
    sizes = (101, 103, 107, 109, 113)
    setting = Masked(tmp_path, sizes)
    setting.grid.spoil = lambda node, reply: replies.append(reply) or [reply]
    setting.run(rounds=1)
    federation, roster = setting.federation, roster_of(setting)
    (found,) = roster["counted"]
    assert found["clients"] == [0, 1, 2, 3, 4]
    names = federation.group_names
    for part in ("train", "val", "test"):
        by_group = federation.counts(part).sum(0).tolist()
        assert found["samples"][part] == dict(zip(names, by_group, strict=True))
    assert found["squares"] == sum(size**2 for size in sizes)
    for client in roster["clients"]:
        assert not {"train", "val", "test"} & client.keys()
        assert client["splits"] == ["train", "test"]
    reports = [it for it in replies if "x_shape" in about(it)]
    assert len(reports) == 5
    for report in reports:
        assert not records.read_reply(report.content)[0].each
    plain = json.loads((tmp_path / "run" / "about.json").read_text())["federation"]
    assert [client["samples"] for client in plain["clients"]] == [{}] * 5
    assert plain["counted"] == [found]
    text = "".join(
        path.read_text(errors="ignore") for path in (tmp_path / "run").glob("*.json")
    ) + "".join(str(about(it)) for it in reports)
    assert not any(f" {size}," in text or f": {size}" in text for size in sizes)


def test_a_seal_changes_with_counts_and_tells_nothing_without_the_nodes_secret(
    tmp_path: Path,
) -> None:
    """The same data under two names: whoever tries counts on a seal finds none."""
    same = one_client(ragged(SIZES), 0)
    setting = Masked(
        tmp_path, data=[same, same, *(one_client(ragged(SIZES), it) for it in (2, 3, 4))]
    )
    setting.run(rounds=1)
    first, second = (client["sealed"] for client in roster_of(setting)["clients"][:2])
    assert first != second
    seals = [
        report_data(data, "a", "sums", None, secret)[1]["sealed"]
        for data in (same, one_client(ragged(SIZES), 1))
        for secret in (b"secret", b"secret", b"other")
    ]
    assert seals[0] == seals[1]
    assert len(set(seals)) == 4


def test_a_node_tells_its_counts_where_the_server_asks_for_visible_ones(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1, secure=VISIBLE)
    assert [sum(it["train"]) for it in roster_of(setting)["clients"]] == list(SIZES)
    assert not asked_to_count(setting)


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SUMS_ONLY],
)
def test_clients_count_by_their_own_sizes_as_if_the_server_knew_them(
    method: str, tmp_path: Path
) -> None:
    setting = Masked(tmp_path)
    if method in OWN_SIZES:
        with pytest.raises(eh.RunError, match="needs each client's number of samples"):
            setting.run(METHODS[method], rounds=2)
        return
    result = setting.run(METHODS[method], rounds=2)
    reference = setting.plain_sums(METHODS[method], rounds=2)
    for key, value in flat(reference).items():
        torch.testing.assert_close(flat(result)[key], value, rtol=1e-9, atol=1e-12, msg=key)
    losses = [it.history_rows[-1]["loss"] for it in (result, reference)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-8)


@pytest.mark.parametrize("method", ["fedminmax", "groupconstraint"])
def test_with_equal_weights_methods_for_groups_get_the_groups_shares(
    method: str, tmp_path: Path
) -> None:
    """The mean of the clients' shares, which does not follow from totals."""
    setting = Masked(tmp_path)
    result = setting.run(METHODS[method], rounds=2, weights="uniform")
    reference = setting.plain_sums(METHODS[method], rounds=2, weights="uniform")
    for key, value in flat(reference).items():
        torch.testing.assert_close(flat(result)[key], value, rtol=1e-9, atol=1e-12, msg=key)


def test_an_average_is_the_simulators_to_the_bit_and_a_cohorts_nearly(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    result, reference = setting.run(), setting.plain_sums()
    assert all(torch.equal(flat(result)[key], value) for key, value in flat(reference).items())
    other = Masked(tmp_path / "cohort")
    some = {"cohort": eh.Uniform(4), "evaluate": "after training"}
    result, reference = other.run(**some), other.plain_sums(**some)
    for key, value in flat(reference).items():
        torch.testing.assert_close(flat(result)[key], value, rtol=0, atol=1e-9)


# ---- what a run cannot have then


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cohort": eh.Poisson(0.9)}, r"Poisson\(rate=0.9\) with weights=\"data\" needs each"),
        ({"cohort": eh.Proportional(4)}, "Proportional.* needs each client's number of samples"),
        ({"cohort": eh.Uniform(4, unbiased=True)}, 'use weights="uniform", Full.*"visible"'),
        ({"admission": eh.flower.Admission(cap=2.0)}, "compares single clients' numbers"),
        ({"admission": eh.flower.Admission(samples=10)}, "compares single clients' numbers"),
        (
            {"local": eh.LocalSGD(lr=0.1, batch_size=4, dp=eh.SampleDP(1.0, 1.0, 1e-5))},
            "SampleDP needs each client's number of samples for its epsilon",
        ),
    ],
)
def test_what_needs_single_sizes_is_refused_with_the_way_out(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        Masked(tmp_path).run(rounds=1, **settings)


def test_sizes_that_make_one_client_the_sum_do_not_start(tmp_path: Path) -> None:
    with pytest.raises(eh.RunError, match=r"the 3 clients count as 1\.14, and masked sums need"):
        Masked(tmp_path, (10, 10, 300)).run(rounds=1)
    result = Masked(tmp_path / "uniform", (10, 10, 300)).run(rounds=1, weights="uniform")
    assert [row["answered"] for row in result.history_rows] == [3]


# ---- what a node refuses


def of_kind(setting: Masked, kind: str, work: str | None = None) -> Message:
    """A copy of the first message of a kind."""
    found = next(
        it
        for it in setting.grid.sent
        if it.metadata.message_type == kind and work in (None, about(it).get("work"))
    )
    return message_from_proto(message_to_proto(found))


def sent_again(setting: Masked, message: Message) -> str:
    reply = setting.grid.app(message, setting.grid.contexts[message.metadata.dst_node_id])
    return records.fault_in(reply.content)


def test_a_node_is_in_one_sum_of_counts(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    opened = of_kind(setting, "query.unmask")
    assert json.loads(opened.content["about"]["context"])["work"] == "count"
    assert not sent_again(setting, opened)
    for name in (told.ANSWERED, told.SENDERS, told.BOXES):
        opened.content["about"][name] = opened.content["about"][name][:-1]
    assert "was summed over other clients before (rule: one set)" in sent_again(setting, opened)


@pytest.mark.parametrize("lie", ["round", "shared"])
def test_counts_are_no_part_of_another_question(lie: str, tmp_path: Path) -> None:
    """As another question they could be summed again, over one client less."""
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    asked = of_kind(setting, "query.count")
    if lie == "round":
        asked.content["about"]["round"] = 1
    else:
        task, known = records.read_task(asked.content)
        task.shared["x"] = torch.zeros(1)
        asked.content = records.task_content(
            task, {k: v for k, v in known.items() if k != "format"}
        )
    found = sent_again(setting, asked)
    assert "counts are asked about nothing else, and in no round (rule: one set)" in found


def test_a_node_refuses_to_be_most_of_the_sum_by_its_size(tmp_path: Path) -> None:
    """A server that tells all of them the same wrong total; list and task fit together."""
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    asked = of_kind(setting, "train")
    task, known = records.read_task(asked.content)
    task.own["samples"] /= 10
    found = records.task_content(task, {k: v for k, v in known.items() if k != "format"})
    own = told.digest_of(found.array_records["trees"]["own"].data)
    total = sum(SIZES) / 10
    members = []
    for it in Cohort.unpacked(known[told.COHORT]).members:
        assert it.scales == (1.0, 10 * total, 1 / (10 * total))
        digest = own if it.number == known["client"] else it.own
        scales = (1.0, total, 1 / total)
        members.append(Member(it.number, it.announced, it.coefficient, scales, digest))
    found["about"][told.COHORT] = Cohort(tuple(members)).packed()
    asked.content = found
    assert "too many of all samples for a sum that hides 3 (rule: enough others)" in (
        sent_again(setting, asked)
    )


def test_another_total_for_one_client_is_seen(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    asked = of_kind(setting, "train")
    task, known = records.read_task(asked.content)
    task.own["samples"] /= 2
    asked.content = records.task_content(task, {k: v for k, v in known.items() if k != "format"})
    assert "(rule: same task)" in sent_again(setting, asked)


# ---- who is counted when


class Slowly(Dying):
    """Nodes that are there from a round on."""

    arrives: dict[int, int]

    def get_node_ids(self) -> list[int]:
        begun = max(
            (about(it)["round"] for it in self.sent if about(it).get("work") == "train"), default=-1
        )
        return [it for it in super().get_node_ids() if begun >= self.arrives.get(it, -1)]


def slowly(directory: Path, arrives: dict[int, int], sizes: tuple[int, ...] = SIZES) -> Masked:
    setting = Masked(directory, sizes)
    setting.grid.__class__ = Slowly
    setting.grid.arrives = arrives  # type: ignore[attr-defined]
    return setting


def test_a_client_that_joins_alone_is_not_counted_as_a_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = slowly(tmp_path, {5: 0})
    result = setting.run(rounds=4, clients=4)
    assert [row["answered"] for row in result.history_rows] == [4, 5, 5, 5]
    assert counted(setting) == [[0, 1, 2, 3]]
    assert sorted(asked_to_count(setting)) == [1, 2, 3, 4]
    assert "the samples of 4 are not counted: that takes a sum of at least 3 new" in caplog.text


@pytest.mark.parametrize(
    ("arrives", "answered"), [((0, 1, 1), [4, 5, 7, 7]), ((0, 0, 0), [4, 7, 7, 7])]
)
def test_clients_that_join_are_counted_once_there_are_enough_of_them(
    arrives: tuple[int, ...], answered: list[int], tmp_path: Path
) -> None:
    sizes = (20, 30, 27, 40, 12, 25, 31)
    setting = slowly(tmp_path, dict(zip((5, 6, 7), arrives, strict=True)), sizes)
    result = setting.run(rounds=4, clients=4)
    assert [row["answered"] for row in result.history_rows] == answered
    assert counted(setting) == [[0, 1, 2, 3], [4, 5, 6]]
    assert Counter(asked_to_count(setting)) == dict.fromkeys(range(1, 8), 1)
    again = setting.run(rounds=5, clients=4)
    assert [row["answered"] for row in again.history_rows] == [*answered, 7]
    assert len(asked_to_count(setting)) == 7


def fails(work: str, nodes: Iterable[int], times: int = 1) -> Any:
    left = dict.fromkeys(nodes, times)

    def spoil(node: int, reply: Message) -> list[Message]:
        if about(reply).get("work") == work and left.get(node, 0):
            left[node] -= 1
            reply.content = records.fault_content("its power went out")
        return [reply]

    return spoil


def test_a_client_that_does_not_count_takes_part_all_the_same(tmp_path: Path) -> None:
    setting = Masked(tmp_path, spoil=fails("count", [2]))
    result = setting.run(rounds=2)
    assert counted(setting) == [[0, 2, 3, 4]]
    assert [row["answered"] for row in result.history_rows] == [5, 5]


def test_a_sum_of_counts_with_too_few_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path, spoil=fails("count", [2, 3]))
    setting.run(rounds=1)
    assert counted(setting) == [[0, 1, 2, 3, 4]]
    assert "round 1, count: 3 of 5 clients have answered, and 4 must" in caplog.text
    never = Masked(tmp_path / "never", spoil=fails("count", [2, 3], 9))
    with pytest.raises(eh.RunError, match="the clients' samples could not be counted as a masked"):
        never.run(rounds=1)


@pytest.mark.parametrize(
    ("mode", "moment"),
    [
        ("recover", ("pull", "count", 0)),
        ("recover", ("push", "unmask", 0)),
        ("recover", ("pull", "unmask", 0)),
        ("strict", ("pull", "count", 0)),
    ],
    ids=str,
)
def test_a_server_killed_while_it_counts_goes_on(
    mode: str, moment: tuple[str, str, int], tmp_path: Path
) -> None:
    setting, secure = Masked(tmp_path), eh.flower.SecureSums(mode=mode)
    setting.grid.__class__ = Dying
    setting.grid.moment = moment  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run(rounds=2, secure=secure)
    result = setting.run(rounds=2, secure=secure)
    assert counted(setting) == [[0, 1, 2, 3, 4]]
    reference = setting.plain_sums(rounds=2)
    assert all(torch.equal(flat(result)[key], value) for key, value in flat(reference).items())


def test_a_node_whose_data_have_changed_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    path = tmp_path / "run" / "roster.json"
    kept = json.loads(path.read_text())
    kept["clients"][3]["sealed"] = "0" * 64
    path.write_text(json.dumps(kept))
    with pytest.raises(TimeoutError):
        setting.run(rounds=2, patience=0.5, deadline=0.5)
    assert "its data have changed since this run started" in caplog.text


# ---- totals as a population


def test_parts_of_totals_have_the_right_sums_and_are_alike() -> None:
    one = Counted(
        (0, 1, 3), {"train": {"a": 10, "b": 1}, "val": {"a": 0, "b": 0}, "test": {"a": 5, "b": 0}}
    )
    splits = [("train", "test"), ("train",), ("train",), ("train", "test")]
    found = parts_of([one], ("a", "b"), splits)
    assert found["train"][[0, 1, 3]].sum(0).tolist() == [10, 1]
    assert sorted(found["train"][[0, 1, 3]].sum(1).tolist()) == [3, 4, 4]
    assert found["test"].sum(1).tolist() == [3, 0, 0, 2]
    # who is not counted yet has as many as others on average
    assert found["train"][2].tolist() == [3, 0]
    assert parts_of([], (), splits)["train"].tolist() == [[1]] * 4


def test_totals_dealt_otherwise_have_the_same_sums_and_other_rows() -> None:
    table = torch.tensor([[4, 3], [3, 4], [3, 3], [0, 0], [4, 3]])
    found = unequal(table)
    assert found.sum(0).tolist() == table.sum(0).tolist()
    assert (found.sum(1) > 0).tolist() == [True, True, True, False, True]
    assert int(found.sum(1).max()) > 7


def test_a_population_of_totals_is_the_same_before_and_after_others_are_counted() -> None:
    sums = {"train": {"": 12}, "val": {"": 0}, "test": {"": 6}}
    more = {"train": {"": 90}, "val": {"": 0}, "test": {"": 9}}
    form, splits = ragged(SIZES).form, [("train", "test")] * 6

    def known(*counted: Counted) -> HiddenPopulation:
        return HiddenPopulation(eh.Population(parts_of(counted, (), splits), form), list(counted))

    first, second = Counted((0, 1, 2), sums), Counted((3, 4, 5), more)
    assert known(first).fingerprint() == known(first, second).fingerprint()
    earlier = known(first, second).first(eh.growth.Extent(3, 0, 0))
    assert earlier.sizes("train").tolist() == [4, 4, 4]
    assert known(first, second).knows("train", range(6))
    assert not known(first, second).knows("train", range(5))
    assert not known(first).knows("train", range(6))
