"""Who is there: the clients of a run, the node of each, and nodes that join while it goes on.

Nodes are known by what they tell when they are asked for the census: a name and counts. A client
keeps its number for the whole run, also when the server is started again: the roster is kept beside
the checkpoint. Who comes later has the next number.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from evenhand.errors import RunError, first_line
from evenhand.files import write_json
from evenhand.flower import records
from evenhand.flower.checks import label
from evenhand.flower.exchange import Link, fault_in
from evenhand.flower.roster import Entry, Roster, heard, in_order

log = logging.getLogger(__name__)

CENSUS = "query.census"
FILE = "roster.json"

Suits = Callable[[Roster], object]  # raises a ValueError where the run cannot have these clients


class Joined(Exception):
    """Clients have joined; the round that was about to begin begins with them."""


class Attendance:
    """The roster and the node of each client.

    Args:
        nodes: of clients that are there.
        suits: tells whether the run can have more clients.
        path: where the roster is kept; None keeps it nowhere.
        session: counts how often the server was started.
    """

    def __init__(
        self,
        link: Link,
        roster: Roster,
        nodes: Mapping[int, int],
        suits: Suits = bool,
        path: Path | None = None,
        session: int = 1,
    ) -> None:
        self.roster, self.session = roster, session
        self.silent: set[int] = set()  # clients that did not answer when they were last asked
        self._link, self._node_of, self._suits, self._path = link, dict(nodes), suits, path
        # nodes that are no client's, and what they have told
        self._strangers: dict[int, Entry] = {}
        self._mute: set[int] = set()  # nodes that were asked for it and did not tell
        self._refused: set[int] = set()  # strangers of whom it was said why they cannot join

    @property
    def present(self) -> int:
        """How many clients have a node."""
        return len(self._node_of)

    def find(self, clients: list[int], look_around: bool = False) -> dict[int, int]:
        """Nodes that are there now, and the client of each; clients without a node are missing.

        A node that restarts without a key comes back under another number. Where a client's node is
        gone, or did not answer when it was last asked (Flower takes a minute to notice that a node
        is gone), nodes that are no client's are asked for the census. With ``look_around`` all that
        have come are, and :class:`Joined` is raised where there are clients among them that nobody
        knew.
        """
        present = set(self._link.grid.get_node_ids())
        lost = [
            client
            for client in clients
            if client in self.silent or self._node_of.get(client) not in present
        ]
        self._mute &= present  # one that comes back is asked again
        fresh = present - {*self._node_of.values(), *self._strangers}
        if lost or look_around:
            self._ask(fresh if lost else fresh - self._mute)
        for client in lost:
            known = self.roster.entries[client]
            found = [
                node
                for node, entry in self._strangers.items()
                if node in present and entry.is_again(known)
            ]
            if found:
                log.warning("%s has a new node", label(client, self.roster.federation.name))
                self._node_of[client] = found[-1]
                del self._strangers[found[-1]]
        if look_around and self._admit(present):
            self.save()
            raise Joined
        return {
            self._node_of[client]: client
            for client in clients
            if self._node_of.get(client) in present
        }

    def wait_for_someone(self, round: int) -> None:
        """Return when a client is there: rounds that nobody can take part in would only be used
        up."""
        patience, clients = self._link.limits.patience, list(range(len(self.roster.entries)))
        end = time.monotonic() + patience
        told = False
        while not set(self._node_of.values()) & set(
            self._link.grid.get_node_ids()
        ) and not self.find(clients):
            if not told:
                log.warning(
                    "no client has a node any more; round %d waits for one, for %g s at most",
                    round + 1,
                    patience,
                )
                told = True
            if time.monotonic() > end:
                raise RunError(
                    f"no client has come back within {patience:g} s; start the run again, it goes"
                    " on from its last round"
                )
            time.sleep(self._link.limits.poll)

    def meet(self, told: Mapping[int, Entry]) -> None:
        """At the start of the server: nodes of clients that it knows from the last time, and of new
        ones."""
        for node, entry in told.items():
            number = self.roster.number(entry.name)
            if number is None or number in self._node_of:
                self._strangers[node] = entry
            elif entry.is_again(self.roster.entries[number]):
                self._node_of[number] = node
                self.roster = self.roster.again(number, entry)
            else:
                raise RunError(
                    f"{entry.name} has other data than when this run began; give it those back, or"
                    " the run another directory"
                )
        self._admit(set(told))

    def _admit(self, present: set[int]) -> bool:
        """Give the next numbers to clients that are new, as far as they fit and the method can have
        more; whether there is one."""
        before = len(self.roster.entries)
        node_of = {
            entry.name: node
            for node, entry in self._strangers.items()
            if node in present - self._refused
        }
        for name in in_order(list(node_of)):
            node, number = node_of[name], self.roster.number(name)
            entry = self._strangers[node]
            if number is None:
                reason = self._reason_against(entry)
            else:
                reason = (
                    ""
                    if entry.is_again(self.roster.entries[number])
                    else f"client {number} has this name, and other data"
                )
            if reason:
                self._refused.add(node)
                log.warning("node %s (%s) cannot join: %s", node, name, reason)
            elif number is None:
                self._node_of[len(self.roster.entries)] = node
                self.roster = self.roster.joined([entry])
                del self._strangers[node]
        return len(self.roster.entries) > before

    def _reason_against(self, entry: Entry) -> str:
        try:
            self._suits(self.roster.joined([entry]))
        except ValueError as error:
            return first_line(error)
        return ""

    def save(self) -> None:
        """Keep the roster for the next start of the server."""
        if self._path is not None:
            write_json(self._path, {"session": self.session, **self.roster.to_plain()})

    def _ask(self, nodes: set[int]) -> None:
        told = ask_census(self._link, sorted(nodes))
        self._mute |= nodes - told.keys()
        self._strangers |= told


def gather(link: Link, clients: int, out: Path, suits: Suits) -> Attendance:
    """The clients of the run in ``out``, once ``clients`` of their nodes are there."""
    path = out / FILE
    kept = _read(path) if path.exists() else None
    known: dict[int, Entry] = {}
    attendance = None if kept is None else Attendance(link, kept[0], {}, suits, path, kept[1] + 1)
    end, refused = time.monotonic() + link.limits.patience, dict[int, str]()
    while (there := len(known) if attendance is None else attendance.present) < clients:
        told = ask_census(
            link, [node for node in link.grid.get_node_ids() if node not in known], refused
        )
        known |= told
        if attendance is not None:
            attendance.meet(told)
        if (len(known) if attendance is None else attendance.present) >= clients:
            break
        if time.monotonic() > end:
            others = (
                f"{len(refused)} cannot take part, see above and their logs; " if refused else ""
            )
            raise TimeoutError(
                f"only {there} of {clients} nodes have told of their data within"
                f" {link.limits.patience:g} s; {others}start the others, or wait for fewer"
            )
        time.sleep(link.limits.poll)
    if attendance is None:
        attendance = _first(link, known, suits, path)
    attendance.save()
    return attendance


def _first(link: Link, known: Mapping[int, Entry], suits: Suits, path: Path) -> Attendance:
    names = [entry.name for entry in known.values()]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(
            f"two nodes are called {doubled}; give each its own name in its node config"
        )
    order = {name: number for number, name in enumerate(in_order(names))}
    roster = Roster.of(sorted(known.values(), key=lambda entry: order[entry.name]))
    return Attendance(
        link, roster, {order[entry.name]: node for node, entry in known.items()}, suits, path
    )


def _read(path: Path) -> tuple[Roster, int]:
    try:
        kept = json.loads(path.read_text())
        return Roster.from_plain(kept), int(kept["session"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{path} cannot be read: {first_line(error)}; put a copy of it back, or give the run"
            " another directory"
        ) from error


def ask_census(
    link: Link, nodes: list[int], refused: dict[int, str] | None = None
) -> dict[int, Entry]:
    """What nodes tell of their data; those that do not, or not in a way that can be, are missing.

    ``refused`` keeps why, so that it is said once of a node that is asked again and again.
    """
    found: dict[int, Entry] = {}
    refused = {} if refused is None else refused
    if not nodes:
        return found
    question = RecordDict({"about": ConfigRecord({"format": records.FORMAT})})
    for node, reply in link.ask(dict.fromkeys(nodes, question), CENSUS, "census"):
        try:
            if reply.has_error():
                raise ValueError(f"Flower's error {reply.error.code}")
            if fault := fault_in(reply.content):
                raise ValueError(fault)
            found[node] = heard(*records.read_reply(reply.content, link.limits.message))
            refused.pop(node, None)
        except ValueError as error:
            if refused.get(node) != str(error):
                log.warning("node %s cannot take part: %s", node, error)
            refused[node] = str(error)
    return found
