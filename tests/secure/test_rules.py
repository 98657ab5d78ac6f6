"""What a node refuses, by the name of the rule; and its file."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.errors import EvenhandError
from evenhand.secure import (
    Cohort,
    Context,
    Identity,
    Ledger,
    Member,
    Node,
    Refused,
    SecureSums,
    Trust,
    digest,
    effective,
    ledger,
)
from evenhand.secure.refusals import RULES
from tests.support.masked import Party, context_of, party


def refused(rule: str, call: Callable[[], Any], match: str | None = None) -> None:
    """A call is refused by this rule."""
    with pytest.raises(Refused, match=match) as caught:
        call()
    assert caught.value.rule == rule, caught.value
    assert f"(rule: {rule})" in str(caught.value)


def listed(team: Party, *members: Member, **changes: Any) -> dict[str, Any]:
    """Arguments for another list, with a context that fits it."""
    cohort = Cohort(members)
    settings = changes.pop("settings", team.settings)
    return {
        "cohort": cohort,
        "settings": settings,
        "context": context_of(cohort, team.format, settings, **changes),
    }


# ---- one context, one input


def test_the_same_input_again_gives_the_same_bytes() -> None:
    team = party(5)
    first, second = team.mask(0), team.mask(0)
    assert (first.vector == second.vector).all()
    assert (first.boxes, first.commitments) == (second.boxes, second.commitments)


def test_another_input_in_the_same_context_is_refused() -> None:
    team = party(5)
    team.mask(0)
    other = team.format.encode(team.totals[1])[0]
    refused("one input", lambda: team.mask(0, vector=other))
    for change in ({"how": "other"}, {"shared": digest("other")}, {"round": 3}):
        refused("one input", lambda change=change: team.again(**change).mask(0))
    assert team.mask(0) is not None  # the first is answered still


def test_an_older_exchange_is_refused() -> None:
    team = party(5).again(session=3, exchange=5)
    team.mask(0)
    for older in ({"session": 3, "exchange": 4}, {"session": 2, "exchange": 9}):
        refused("newer exchanges only", lambda older=older: team.again(**older).mask(0))
    team.again(session=4, exchange=0).mask(0)
    refused("newer exchanges only", lambda: team.mask(0))  # its own last one, now over


# ---- one set


def opening(team: Party) -> Callable[..., dict[int, bytes]]:
    """Ask holder 0 to open the boxes of a set of clients."""
    sent = {client: team.mask(client) for client in range(5)}

    def ask(answered: tuple[int, ...], boxes: tuple[int, ...] | None = None, **changes: Any) -> Any:
        senders = answered if boxes is None else boxes
        return team.open(
            0, answered, {it: sent[it].boxes[0] for it in senders if it in sent}, **changes
        )

    return ask


def test_a_second_set_is_refused() -> None:
    team = party(5)
    ask = opening(team)
    first = ask((0, 1, 2, 3))
    assert ask((0, 1, 2, 3)) == first
    refused("one set", lambda: ask((0, 1, 2, 3, 4)))
    refused("one set", lambda: ask((1, 2, 3, 4)))
    again = team.again(session=2)  # the same question in another session
    refused("one set", lambda: opening(again)((0, 1, 2, 3, 4)))
    other = team.again(session=3, round=1)  # another round is another question
    assert set(opening(other)((0, 1, 2, 3, 4))) == {0, 1, 2, 3, 4}


def test_a_sum_of_too_few_is_refused() -> None:
    ask = opening(party(5))
    refused("threshold", lambda: ask((0, 1, 2)), "3 clients, at least 4")
    refused("in the list", lambda: ask((0, 1, 2, 2)))
    refused("in the list", lambda: ask((0, 1, 2, 7)))


def test_boxes_of_others_stay_closed() -> None:
    """The box of a late reply has the share of its own mask."""
    ask = opening(party(5))
    refused("one set", lambda: ask((0, 1, 2, 3), boxes=(0, 1, 2, 3, 4)), "stay closed")


def test_strict_mode_sums_a_question_over_one_list() -> None:
    """Without a second message, the list is the set."""
    team = party(5, SecureSums(mode="strict"))
    team.mask(0)
    four = listed(team, *team.cohort.members[:4], exchange=2)
    refused("one set", lambda: team.mask(0, **four))
    team.mask(0, **listed(team, *team.cohort.members, exchange=3))
    refused("known mode", lambda: team.open(0, range(5), {}))


def test_sets_that_are_forgotten_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    team = party(5)
    book, rounds = team.nodes[0].ledger, [replace(team.context, round=it) for it in range(6)]
    for context in rounds:
        book.allow(context, "clinic-0", b"set")
    book.allow(rounds[5], "clinic-0", b"set")
    refused("one set", lambda: book.allow(rounds[4], "clinic-0", b"other"))
    refused("newer exchanges only", lambda: book.allow(rounds[1], "clinic-0", b"other"))


# ---- keys


def test_a_swapped_key_is_refused() -> None:
    """The server puts a key of its own in the place of a client's."""
    team = party(5)
    server = Node(Ledger(), "clinic-2", "run", Trust())
    one = team.cohort.members[2]
    stolen = replace(one.announced, key=server.announced().key)  # with the client's signature
    swapped = [replace(it, announced=stolen) if it is one else it for it in team.cohort.members]
    refused("signed keys", lambda: team.mask(0, **listed(team, *swapped)))


def identities(count: int) -> tuple[list[Identity], str]:
    """Owners' keys, and the list of their public keys."""
    owners = [Identity.new() for _ in range(count)]
    return owners, "# owners\n\n" + "\n".join(
        f"{it.public} owner@{i}" for i, it in enumerate(owners)
    )


def trusting(count: int = 5) -> Party:
    """Nodes that trust a list of owners."""
    owners, text = identities(count)
    team = party(count)
    nodes = [
        replace(node, trust=Trust(text), identity=it)
        for node, it in zip(team.nodes, owners, strict=True)
    ]
    cohort = Cohort(tuple(Member(i, node.announced(), 1.0) for i, node in enumerate(nodes)))
    context = context_of(cohort, team.format, team.settings)
    return replace(team, nodes=nodes, cohort=cohort, context=context)


def test_only_trusted_owners_are_in_a_sum() -> None:
    team = trusting()
    found = team.run(range(5), range(5)).total
    assert found["delta"]["w"].shape == (3, 2)
    fake = Node(Ledger(), "clinic-2", "run", Trust(), Identity.new())
    members = list(team.cohort.members)
    members[2] = replace(members[2], announced=fake.announced())
    other = team.again(exchange=2)
    refused("trusted keys", lambda: other.mask(0, **listed(team, *members, exchange=2)), "SHA256:")


def test_an_owner_cannot_be_replaced() -> None:
    """Without a list of trusted keys the first ones count."""
    team = party(5)
    team.mask(0)
    fake = Node(Ledger(), "clinic-2", "run", Trust(), Identity.new())
    members = list(team.cohort.members)
    members[2] = replace(members[2], announced=fake.announced())
    refused("pinned keys", lambda: team.mask(0, **listed(team, *members, exchange=2)), "'clinic-2'")


def test_a_node_that_lost_its_file_comes_back_with_a_later_key() -> None:
    identity = Identity.new()
    team = party(5)
    before = replace(team.nodes[2], identity=identity)
    old = replace(before.key(), epoch=1_000).announced(identity)
    new = replace(before, ledger=Ledger()).announced()
    assert new.key != old.key
    assert new.epoch > old.epoch
    members = list(team.cohort.members)
    asked = []
    for exchange, announced in enumerate((old, new, old)):
        members[2] = replace(members[2], announced=announced)
        asked.append(listed(team, *members, exchange=exchange))
    team.mask(0, **asked[0])
    team.mask(0, **asked[1])
    refused("pinned keys", lambda: team.mask(0, **asked[2]), "latest")
    changed = replace(before.key(), epoch=new.epoch).announced(identity)
    members[2] = replace(members[2], announced=changed)
    refused("pinned keys", lambda: team.mask(0, **listed(team, *members, exchange=9)))


def test_a_key_of_another_run_is_refused() -> None:
    team = party(5)
    members = list(team.cohort.members)
    members[2] = replace(members[2], announced=replace(team.nodes[2], run="other").announced())
    refused("signed keys", lambda: team.mask(0, **listed(team, *members)), "another run")


# ---- enough others, in the list


def weighing(*coefficients: float) -> Party:
    """Clients with these coefficients."""
    return party(
        len(coefficients), change=lambda it: replace(it, coefficient=coefficients[it.number])
    )


@pytest.mark.parametrize(
    "coefficients",
    [(1, 0, 0, 0, 0), (0, 1, 1, 0, 0), (1e9, 1, 1, 1, 1), (0,) * 5, (np.nan, 1, 1, 1, 1)],
)
def test_weights_that_make_one_client_the_sum_are_refused(coefficients: tuple[float, ...]) -> None:
    team = weighing(*coefficients)
    refused("enough others", lambda: team.mask(1), "at least 3")


def test_weights_that_leave_enough_others_are_fine() -> None:
    weighing(1, 1, 1, 0, 0).mask(0)
    weighing(1 / 3, 1 / 3, 1 / 3, 1e-9, 0).mask(0)
    weighing(1e200, 1e200, 1e200, 1e200, 1e200).mask(0)
    assert effective([1, 2, 3]) == pytest.approx(36 / 14)


def test_other_scales_are_weights_too() -> None:
    scales = (1e6, 1.0, 1.0, 1.0, 1.0)
    team = party(5, change=lambda it: replace(it, scales=(1.0, scales[it.number])))
    refused("enough others", lambda: team.mask(0))
    uneven = party(5, change=lambda it: replace(it, scales=(1.0,) * (1 + it.number % 2)))
    refused("enough others", lambda: uneven.mask(0))


def test_a_small_list_is_refused() -> None:
    team = party(5)
    refused("enough others", lambda: team.mask(0, **listed(team, *team.cohort.members[:2])))
    careful = replace(team.nodes[0], least=6)
    team.nodes[0] = careful
    refused("known mode", lambda: team.mask(0), "at least 6 clients, the server 3")
    six = SecureSums(least=6)
    refused(
        "enough others", lambda: team.mask(0, **listed(team, *team.cohort.members, settings=six))
    )


def test_many_nodes_of_one_owner_count_once() -> None:
    owner = Identity.new()
    team = party(5)
    team.nodes[:] = [replace(node, identity=owner) for node in team.nodes]
    members = [Member(i, node.announced(), 0.2) for i, node in enumerate(team.nodes)]
    refused("enough others", lambda: team.mask(0, **listed(team, *members)), "1 owners")


def test_half_of_the_clients_are_not_enough_to_open() -> None:
    team = party(5)
    low = SecureSums(threshold=2)
    refused("threshold", lambda: team.mask(0, **listed(team, *team.cohort.members, settings=low)))
    high = SecureSums(threshold=6)
    refused("threshold", lambda: team.mask(0, **listed(team, *team.cohort.members, settings=high)))


def test_a_list_has_the_node_itself_and_each_client_once() -> None:
    team = party(5)
    first, *rest = team.cohort.members
    wrong = {
        "not in the list": rest,
        "same name": [first, *rest, replace(first, number=9)],
        "ascending": [*rest, first],
        "each once": [first, *rest, rest[-1]],
        "out of range": [replace(first, number=-1), first, *rest],
    }
    for match, members in wrong.items():
        refused(
            "in the list", lambda members=members: team.mask(0, **listed(team, *members)), match
        )
    renamed = replace(team.nodes[0], name="somebody").announced()
    moved = [replace(first, announced=renamed), *rest]
    refused("in the list", lambda: team.mask(0, **listed(team, *moved)), "another key")
    refused("in the list", lambda: team.mask(0, cohort=team.cohort.only([0, 1, 2])), "another run")


def test_a_node_compares_what_it_alone_was_told() -> None:
    team = party(5, change=lambda it: replace(it, own=digest("own", it.number)))
    refused("same task", lambda: team.mask(0, own=digest("own", 1)))
    team.mask(0, own=digest("own", 0))


def test_the_owner_sets_the_mode() -> None:
    team = party(5, SecureSums(mode="strict"))
    team.nodes[0] = replace(team.nodes[0], modes=("recover",))
    refused("known mode", lambda: team.mask(0))
    recover = SecureSums()
    refused("known mode", lambda: team.mask(1, settings=recover), "other settings")


def test_every_rule_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [rule for rule in RULES if f'refused("{rule}"' not in text] == []


# ---- the file


def kept(path: Path) -> Node:
    """A node with a file."""
    return Node(Ledger(path), "clinic-0", "run", Trust())


def test_a_restarted_node_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.json"
    team = party(5)
    team.nodes[0] = kept(path)
    members = [replace(team.cohort.members[0], announced=kept(path).announced())]
    asked = listed(team, *members, *team.cohort.members[1:])
    first = team.mask(0, **asked)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    team.nodes[0] = kept(path)
    second = team.mask(0, **asked)
    assert (first.vector == second.vector).all()
    assert first.boxes == second.boxes
    other = team.format.encode(team.totals[1])[0]
    refused("one input", lambda: team.mask(0, **asked, vector=other))
    path.unlink()  # the key is lost with it
    team.nodes[0] = kept(path)
    refused("in the list", lambda: team.mask(0, **asked), "another key")


def test_nothing_is_sent_that_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.json"
    team = party(5)
    team.nodes[0] = kept(path)
    members = [replace(team.cohort.members[0], announced=kept(path).announced())]
    asked = listed(team, *members, *team.cohort.members[1:])
    team.mask(0, **asked)
    before, replaced = path.read_text(), os.replace

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    later = listed(team, *members, *team.cohort.members[1:], exchange=2)
    with pytest.raises(OSError, match="disk full"):
        team.mask(0, **later)
    assert path.read_text() == before
    monkeypatch.setattr(os, "replace", replaced)
    team.mask(0, **later)  # what was left behind does no harm


def test_two_processes_cannot_answer_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    context = party(3).context
    kept(path).key()
    gate, outcomes = threading.Barrier(8), []

    def work(given: bytes) -> None:
        gate.wait()
        try:
            drawn = ledger.Answer(given * 16, b"", {}, b"")
            found = Ledger(path).answer(context, "clinic-0", given, lambda: drawn)
            outcomes.append((given, found.mask == given * 16))
        except Refused:
            outcomes.append((b"", True))

    threads = [threading.Thread(target=work, args=(bytes([it]),)) for it in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([1 for given, _ in outcomes if given]) == 1
    assert all(right for _, right in outcomes)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text("{")
    with pytest.raises(EvenhandError, match=r"ledger\.json is damaged; remove it"):
        kept(path).key()


def test_keys_of_a_run_that_has_ended_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    node = kept(path)
    before, identity = node.key(), node.ledger.identity().public
    node.ledger.forget("run")
    assert "private" not in path.read_text()
    assert node.key().private != before.private
    assert node.ledger.identity().public == identity


def test_a_context_differs_in_every_part() -> None:
    context = party(3).context
    changes: list[dict[str, Any]] = [
        {name: value + 1 if isinstance(value, int) else value + type(value)().join([value[:1]])}
        for name, value in vars(context).items()
    ]
    assert len(changes) == 10
    found = {replace(context, **change).digest() for change in changes}
    assert len({context.digest(), *found}) == 11
    assert isinstance(context, Context)
