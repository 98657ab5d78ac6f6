"""A whole exchange: every pattern of drop-outs, late replies, forged shares, a restarted server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from evenhand.secure import Collection, NotCancelled, Overflow, SecureSums, Void
from evenhand.secure.node import OWN, PAIR, committed
from evenhand.secure.primitives import SEED, add_mask, combined
from tests.support.masked import Party, context_of, party


def subsets(of: Iterable[int]) -> list[tuple[int, ...]]:
    """All subsets."""
    items = tuple(of)
    return [some for size in range(len(items) + 1) for some in combinations(items, size)]


def exact(team: Party, clients: Iterable[int]) -> np.ndarray:
    """The sum of quantised models, by rational numbers."""
    unit = Fraction(2) ** team.format.scale(team.format.leaves[0])
    rounded = [
        [round(Fraction(float(x)) * unit) for x in team.totals[client]["delta"]["w"].ravel()]
        for client in clients
    ]
    sums = [Fraction(sum(column)) / unit for column in zip(*rounded, strict=True)]
    return np.array([float(entry) for entry in sums]).reshape(3, 2)


def check(team: Party, chosen: Iterable[int], total: dict[str, Any]) -> None:
    """The total is the sum over the clients, to the last bit."""
    chosen = list(chosen)
    assert (total["delta"]["w"] == exact(team, chosen)).all()
    weights = sum(Fraction(float(team.totals[client]["weight"])) for client in chosen)
    assert total["weight"] == float(weights)


@pytest.mark.parametrize("before", subsets(range(5)))
def test_every_pattern_of_drop_outs_gives_the_sum_or_none(before: tuple[int, ...]) -> None:
    """Clients ``before`` drop out before their reply; then every set of holders opens."""
    team = party(5)
    sending = [client for client in range(5) if client not in before]
    server = team.collection()
    for client in sending:
        server.keep(client, team.mask(client))
    if len(sending) < 4:  # floor(2/3 * 5) + 1
        with pytest.raises(Void, match="4 must"):
            server.choose()
        with pytest.raises(Void):
            server.result()
        return
    chosen = server.choose()
    assert chosen == tuple(sending)
    requests, saved = server.requests(), server.save()
    opened = {holder: team.open(holder, chosen, requests[holder]) for holder in range(5)}
    for holders in subsets(range(5)):  # those that dropped out after their reply are missing
        again = Collection.load(saved)
        for holder in holders:
            again.learn(holder, opened[holder])
        assert again.enough() == (len(holders) >= 4)
        if len(holders) < 4:
            with pytest.raises(Void, match=f"{len(holders)} holders"):
                again.result()
        else:
            check(team, sending, again.result().total)


@pytest.mark.parametrize("before", subsets(range(5)))
def test_strict_mode_needs_everybody(before: tuple[int, ...]) -> None:
    team = party(5, SecureSums(mode="strict"))
    server = team.collection()
    for client in range(5):
        if client not in before:
            masked = team.mask(client)
            assert (masked.boxes, masked.commitments) == ({}, b"")
            server.keep(client, masked)
    assert server.enough()
    if before:
        with pytest.raises(Void, match="5 must"):
            server.result()
    else:
        assert server.requests() == {}
        check(team, range(5), server.result().total)


def looks_uniform(vector: np.ndarray) -> float:
    """The p-value of the bytes' frequencies."""
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_a_late_reply_stays_unreadable() -> None:
    """With everything the server has; it becomes readable with the seed of the client's mask."""
    totals = [{"model": {"w": np.full(20_000, 1.0 + client)}} for client in range(5)]
    team = party(5, totals=totals)
    server, late = team.collection(), team.mask(4)
    for client in range(4):
        server.keep(client, team.mask(client))
    chosen = server.choose()
    requests = server.requests()
    for holder in range(5):  # all holders, the late client too
        server.learn(holder, team.open(holder, chosen, requests[holder]))
    server.result()
    with pytest.raises(ValueError, match="too late"):
        server.keep(4, late)
    # the masks that client 4 has with the others are known now
    c, rest = team.context.digest(), late.vector.copy()
    for other in chosen:
        shares = [(holder, server._opened[holder][other][SEED : 2 * SEED]) for holder in range(4)]
        seed = combined(shares)
        assert committed(seed, PAIR, c, other, 4) in server._commitments[other]
        add_mask(rest, seed, PAIR, c, minus=False)  # client 4 has subtracted all its pair masks
    assert looks_uniform(rest) > 1e-6
    answer = team.nodes[4].ledger.answer(team.context, "clinic-4", given_of(team, 4), lambda: None)
    add_mask(rest, answer.mask, OWN, c, minus=True)
    assert looks_uniform(rest) < 1e-12
    assert (rest == team.format.encode(totals[4])[0]).all()


def given_of(team: Party, client: int) -> bytes:
    """The digest under which a node has its answer."""
    return hashlib.sha256(team.format.encode(team.totals[client])[0].data).digest()


def test_fewer_holders_than_the_threshold_learn_nothing() -> None:
    """Three shares fit every secret equally: with any fourth share they give another one."""
    team = party(5)
    server = team.collection()
    for client in range(5):
        server.keep(client, team.mask(client))
    requests = server.requests()
    shares = [(holder, team.open(holder, range(5), requests[holder])[2]) for holder in range(5)]
    right = combined(shares[:4])
    for four in combinations(shares, 4):
        assert combined(four) == right
    for three in combinations(shares, 3):
        assert combined(three) != right
    made_up = {combined([*shares[:3], (3, bytes([byte]) * SEED)]) for byte in range(256)}
    assert len(made_up) == 256


@pytest.mark.parametrize("forged", range(5))
def test_a_forged_share_is_found_by_the_commitment(forged: int) -> None:
    team = party(5)
    server = team.collection()
    for client in range(4):
        server.keep(client, team.mask(client))
    chosen, requests = server.choose(), server.requests()
    for holder in (it for it in range(5) if it != 4 or forged == 4):
        opened = team.open(holder, chosen, requests[holder])
        if holder == forged:
            opened[1] = bytes(32)
        server.learn(holder, opened)
    if forged != 4:  # only three are right
        with pytest.raises(Void, match="no 4 of their shares fit"):
            server.result()
        server.learn(4, team.open(4, chosen, requests[4]))
    check(team, range(4), server.result().total)


def test_a_box_from_somebody_else_stays_closed() -> None:
    team = party(5)
    server = team.collection()
    for client in range(5):
        server.keep(client, team.mask(client))
    chosen, boxes = server.choose(), dict(server.requests()[0])
    boxes[1], boxes[2] = boxes[2], boxes[1][:-1] + b"?"
    assert set(team.open(0, chosen, boxes)) == {0, 3, 4}
    theirs = server.requests()[3]  # boxes for another holder
    assert set(team.open(0, chosen, theirs)) == set()
    server.learn(0, team.open(0, chosen, boxes))
    for holder in range(1, 5):
        server.learn(holder, team.open(holder, chosen, server.requests()[holder]))
    check(team, range(5), server.result().total)


@pytest.mark.parametrize("stage", ["collecting", "chosen", "opening"])
def test_a_server_goes_on_from_its_file(stage: str) -> None:
    team = party(5)
    server = team.collection()
    for client in range(3):
        server.keep(client, team.mask(client))
    if stage == "collecting":
        server = Collection.load(server.save())
    server.keep(4, team.mask(4))
    server.choose()
    if stage == "chosen":
        server = Collection.load(server.save())
    requests = server.requests()
    for holder in range(2):
        server.learn(holder, team.open(holder, server.answered, requests[holder]))
    if stage == "opening":
        server = Collection.load(server.save())
    assert set(server.requests()) == {2, 3, 4}
    for holder in (2, 4):
        server.learn(holder, team.open(holder, server.answered, server.requests()[holder]))
    check(team, (0, 1, 2, 4), server.result().total)


def test_a_restarted_server_asks_again_and_learns_nothing_more() -> None:
    """Killed before the set was written: the next session has new masks."""
    team = party(5)
    first = [team.mask(client).vector for client in range(5)]
    again = team.again(session=2)
    second = [again.mask(client).vector for client in range(5)]
    assert all((one != other).mean() > 0.99 for one, other in zip(first, second, strict=True))
    check(again, range(5), again.run(range(5), range(5)).total)


def test_an_overflow_is_asked_again_of_the_same_clients() -> None:
    totals = [{"model": {"w": np.array([x])}} for x in (1.0, 1e30, 2.0, 3.0, 4.0)]
    team = party(5, totals=totals)
    with pytest.raises(Overflow) as caught:
        team.run((0, 1, 2, 3), range(5))
    assert caught.value.clients == 1
    same = team.cohort.only((0, 1, 2, 3))
    wide = team.format
    while 2.0 ** wide.leaves[0].exponent < 1e30:
        wide = wide.wider()
    retry = Party(
        team.nodes,
        team.settings,
        same,
        wide,
        context_of(same, wide, team.settings, exchange=2),
        totals,
    )
    assert retry.run((0, 1, 2, 3), range(4)).total["model"]["w"][0] == pytest.approx(1e30)
    # fewer of them would be another sum of the same model
    fewer = Party(team.nodes, team.settings, same, wide, retry.context, totals).again(exchange=3)
    server = fewer.collection()
    for client in (0, 1, 2):
        server.keep(client, fewer.mask(client))
    with pytest.raises(Exception, match="rule: one set"):
        fewer.open(0, server.choose(), server.requests()[0])


def test_one_changed_byte_of_what_is_sent_leaves_noise() -> None:
    team = party(5)
    server = team.collection()
    for client in range(5):
        other = team.again(shared=bytes(32)) if client == 3 else team
        server.keep(client, team.mask(client, context=other.context))
    chosen, requests = server.choose(), server.requests()
    for holder in (0, 1, 2, 4):  # they cannot open the boxes of client 3
        opened = team.open(holder, chosen, requests[holder])
        assert set(opened) == {0, 1, 2, 4}
        server.learn(holder, opened)
    with pytest.raises(Void, match="client 3"):
        server.result()
    strict = party(5, SecureSums(mode="strict"))
    server = strict.collection()
    for client in range(5):
        other = strict.again(shared=bytes(32)) if client == 3 else strict
        server.keep(client, strict.mask(client, context=other.context))
    with pytest.raises(NotCancelled, match="told different things"):
        server.result()


def test_replies_of_a_wrong_form_do_not_count() -> None:
    team = party(5)
    server, masked = team.collection(), team.mask(0)
    wrong = [
        masked._replace(vector=masked.vector[:-1]),
        masked._replace(vector=masked.vector.view(np.int64)),
        masked._replace(boxes={}),
        masked._replace(boxes={**masked.boxes, 4: b"short"}),
        masked._replace(commitments=masked.commitments[:-1]),
    ]
    for one in wrong:
        with pytest.raises(ValueError, match="client 0 must send"):
            server.keep(0, one)
    server.keep(0, masked)
    for client in (0, 7):
        with pytest.raises(ValueError, match="was not asked, or has answered"):
            server.keep(client, masked)
    assert server.answered == (0,)
    for client in range(1, 5):
        server.keep(client, team.mask(client))
    server.choose()
    for opened in ({0: b""}, {9: bytes(16)}):
        with pytest.raises(ValueError, match="other boxes"):
            server.learn(0, opened)
    with pytest.raises(ValueError, match="not a holder"):
        server.learn(9, {})
