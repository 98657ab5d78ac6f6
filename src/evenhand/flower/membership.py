"""Which clients take part: the node of each, and nodes that join during the run.

A node is recognised by what it reports: a name and counts. A client keeps its number for the whole
run, also when the server is started again, because the roster is kept beside the checkpoint.
Clients that join later get the next numbers.
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
from evenhand.flower.link import Link
from evenhand.flower.ordering import natural_order
from evenhand.flower.registration import Registration, read_report
from evenhand.flower.roster import Roster

log = logging.getLogger(__name__)

REPORT = "query.census"  # the type of the message that asks nodes for their reports
FILE = "roster.json"

Accepts = Callable[[Roster], object]  # raises a ValueError where the run cannot have these clients


class ClientsJoined(Exception):
    """Clients have joined; the round that was about to begin begins with them."""


class Membership:
    """The clients and the node of each.

    Args:
        nodes: the node of each client that has one.
        accepts: whether the run can have more clients.
        path: where the roster is kept; None keeps it nowhere.
        session: grows with each start of the server.
    """

    def __init__(
        self,
        link: Link,
        roster: Roster,
        nodes: Mapping[int, int],
        accepts: Accepts = bool,
        path: Path | None = None,
        session: int = 1,
    ) -> None:
        self.roster, self.session = roster, session
        self.unresponsive: set[int] = set()  # clients that did not answer their last task
        self._link, self._node_of, self._accepts, self._path = link, dict(nodes), accepts, path
        self._unassigned: dict[int, Registration] = {}  # reports of nodes that have no client
        self._unanswered: set[int] = set()  # nodes that were asked for a report and sent none
        self._refused: set[int] = set()  # nodes whose reason for not joining has been logged

    @property
    def present(self) -> int:
        """How many clients have a node."""
        return len(self._node_of)

    def nodes_of(self, clients: list[int], admit_new: bool = False) -> dict[int, int]:
        """The nodes that are connected now, and the client of each.

        A node that restarts without a key comes back under another number. So where a client's node
        is gone, or did not answer its last task (Flower takes a minute to notice that a node is
        gone), nodes without a client are asked for their reports. With ``admit_new`` all new nodes
        are asked, and :class:`ClientsJoined` is raised if there are new clients among them.
        """
        present = set(self._link.grid.get_node_ids())
        lost = [
            client
            for client in clients
            if client in self.unresponsive or self._node_of.get(client) not in present
        ]
        self._unanswered &= present  # one that comes back is asked again
        fresh = present - {*self._node_of.values(), *self._unassigned}
        if lost or admit_new:
            self._ask(fresh if lost else fresh - self._unanswered)
        for client in lost:
            known = self.roster.clients[client]
            found = [
                node
                for node, report in self._unassigned.items()
                if node in present and report.is_same_client(known)
            ]
            if found:
                log.warning("%s has a new node", label(client, self.roster.population.name))
                self._node_of[client] = found[-1]
                del self._unassigned[found[-1]]
        if admit_new and self._admit(present):
            self.save()
            raise ClientsJoined
        return {
            self._node_of[client]: client
            for client in clients
            if self._node_of.get(client) in present
        }

    def wait_for_someone(self, round: int) -> None:
        """Return when a client has a node, so that no round passes without anyone to train."""
        patience, clients = self._link.limits.patience, list(range(len(self.roster.clients)))
        end = time.monotonic() + patience
        warned = False
        while not set(self._node_of.values()) & set(
            self._link.grid.get_node_ids()
        ) and not self.nodes_of(clients):
            if not warned:
                log.warning(
                    "no client has a node any more; round %d waits for one, for %g s at most",
                    round + 1,
                    patience,
                )
                warned = True
            if time.monotonic() > end:
                raise RunError(
                    f"no client has come back within {patience:g} s; start the run again, it goes"
                    " on from its last round"
                )
            time.sleep(self._link.limits.poll)

    def assign(self, reports: Mapping[int, Registration]) -> None:
        """When the server starts again: give nodes to the clients it knows, and admit new ones."""
        for node, report in reports.items():
            number = self.roster.number(report.name)
            if number is None or number in self._node_of:
                self._unassigned[node] = report
            elif report.is_same_client(self.roster.clients[number]):
                self._node_of[number] = node
                self.roster = self.roster.with_share(number, report.share)
            else:
                raise RunError(
                    f"{report.name} has other data than when this run began; give it those back, or"
                    " the run another directory"
                )
        self._admit(set(reports))

    def _admit(self, present: set[int]) -> bool:
        """Give the next numbers to new clients that fit the run; whether there is one."""
        before = len(self.roster.clients)
        node_of = {
            report.name: node
            for node, report in self._unassigned.items()
            if node in present - self._refused
        }
        for name in natural_order(list(node_of)):
            node, number = node_of[name], self.roster.number(name)
            report = self._unassigned[node]
            if number is None:
                reason = self._reason_against(report)
            else:
                reason = (
                    ""
                    if report.is_same_client(self.roster.clients[number])
                    else f"client {number} has this name, and other data"
                )
            if reason:
                self._refused.add(node)
                log.warning("node %s (%s) cannot join: %s", node, name, reason)
            elif number is None:
                self._node_of[len(self.roster.clients)] = node
                self.roster = self.roster.with_clients([report])
                del self._unassigned[node]
        return len(self.roster.clients) > before

    def _reason_against(self, report: Registration) -> str:
        try:
            self._accepts(self.roster.with_clients([report]))
        except ValueError as error:
            return first_line(error)
        return ""

    def save(self) -> None:
        """Keep the roster for the next start of the server."""
        if self._path is not None:
            write_json(self._path, {"session": self.session, **self.roster.to_plain()})

    def _ask(self, nodes: set[int]) -> None:
        reports = request_reports(self._link, sorted(nodes))
        self._unanswered |= nodes - reports.keys()
        self._unassigned |= reports


def wait_for_clients(link: Link, clients: int, out: Path, accepts: Accepts) -> Membership:
    """The clients of the run in ``out``, once ``clients`` of their nodes are connected."""
    path = out / FILE
    kept = _read(path) if path.exists() else None
    membership = None
    if kept is not None:
        membership = Membership(link, kept[0], {}, accepts, path, next_session(kept[1]))
    known: dict[int, Registration] = {}
    end, refused = time.monotonic() + link.limits.patience, dict[int, str]()
    while True:
        fresh = [node for node in link.grid.get_node_ids() if node not in known]
        reports = request_reports(link, fresh, refused)
        known |= reports
        if membership is not None:
            membership.assign(reports)
        present = len(known) if membership is None else membership.present
        if present >= clients:
            break
        if time.monotonic() > end:
            others = f"{len(refused)} cannot take part, see above and their logs; "
            raise TimeoutError(
                f"only {present} of {clients} nodes have registered within"
                f" {link.limits.patience:g} s; {others if refused else ''}start the others, or wait"
                " for fewer"
            )
        time.sleep(link.limits.poll)
    if membership is None:
        membership = _first(link, known, accepts, path)
    membership.save()
    return membership


def next_session(last: int) -> int:
    """A number for the next start of a server: later than any before, also where the roster is an
    old copy that knows nothing of the last starts."""
    return max(last + 1, time.time_ns() // 1_000_000)


def _first(
    link: Link, known: Mapping[int, Registration], accepts: Accepts, path: Path
) -> Membership:
    names = [report.name for report in known.values()]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(
            f"two nodes are called {doubled}; give each its own name in its node config"
        )
    order = {name: number for number, name in enumerate(natural_order(names))}
    roster = Roster.of(sorted(known.values(), key=lambda report: order[report.name]))
    return Membership(
        link, roster, {order[report.name]: node for node, report in known.items()}, accepts, path
    )


def _read(path: Path) -> tuple[Roster, int]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Roster.from_plain(kept), int(kept["session"])
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise RunError(
            f"{path} is damaged: {first_line(error)}; put a copy of it back, or give the run"
            " another directory"
        ) from error


def request_reports(
    link: Link, nodes: list[int], refused: dict[int, str] | None = None
) -> dict[int, Registration]:
    """The reports of those nodes that send a valid one.

    ``refused``: why others cannot take part, so that it is logged once for a node that is asked
    again and again.
    """
    found: dict[int, Registration] = {}
    refused = {} if refused is None else refused
    if not nodes:
        return found
    question = RecordDict({"about": ConfigRecord({"format": records.FORMAT})})
    for node, reply in link.ask(dict.fromkeys(nodes, question), REPORT, "census"):
        try:
            if reply.has_error():
                raise ValueError(f"Flower's error {reply.error.code}")
            if fault := records.fault_in(reply.content):
                raise ValueError(fault)
            found[node] = read_report(*records.read_reply(reply.content, link.limits.message))
            refused.pop(node, None)
        except ValueError as error:
            if refused.get(node) != str(error):
                log.warning("node %s cannot take part: %s", node, error)
            refused[node] = str(error)
    return found
