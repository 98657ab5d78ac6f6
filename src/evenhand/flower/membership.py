"""Which clients take part: the node of each, and nodes that join during the run.

A node is recognised by the name and counts it reports. A client keeps its number for the whole run,
even across restarts of the server, because the roster is saved beside the checkpoint. Clients that
join later get the next numbers.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from evenhand.errors import RunError, first_line
from evenhand.files import write_json
from evenhand.flower.backoff import BackOff
from evenhand.flower.checks import label
from evenhand.flower.enquiry import Enquiry
from evenhand.flower.link import Link
from evenhand.flower.ordering import natural_order
from evenhand.flower.registration import Registration
from evenhand.flower.roster import Roster

log = logging.getLogger(__name__)

FILE = "roster.json"

Accepts = Callable[[Roster], object]  # raises a ValueError if the run cannot have these clients


class ClientsJoined(Exception):
    """Clients have joined; the next round starts with them."""


class Membership:
    """The clients and the node of each.

    Args:
        nodes: the node of each client that has one.
        accepts: whether the run can have more clients.
        path: where the roster is saved; None saves it nowhere.
        session: grows with each start of the server.
        enquiry: asks nodes for their reports, and knows whom it has asked.
    """

    def __init__(
        self,
        link: Link,
        roster: Roster,
        nodes: Mapping[int, int],
        accepts: Accepts = bool,
        path: Path | None = None,
        session: int = 1,
        enquiry: Enquiry | None = None,
    ) -> None:
        self.roster, self.session = roster, session
        self.unresponsive: set[int] = set()  # clients that did not answer their last task
        self.exchanges = itertools.count()  # of this session, for masked sums
        self.backoff = BackOff()
        self.enquiry = enquiry or Enquiry(link, roster.admission)
        self._link, self._node_of, self._accepts, self._path = link, dict(nodes), accepts, path
        self._unassigned: dict[int, Registration] = {}  # reports of nodes that have no client
        self._refused: set[int] = set()  # nodes whose reason has been logged

    @property
    def present(self) -> int:
        """How many clients have a node."""
        return len(self._node_of)

    @property
    def names_present(self) -> list[str]:
        """Names of the clients that have a node."""
        return [self.roster.clients[client].name for client in sorted(self._node_of)]

    def nodes_of(self, clients: list[int], admit_new: bool = False) -> dict[int, int]:
        """The nodes that are connected now, and the client of each.

        A node that restarts without a key comes back under another id. So if a client's node is
        gone, or did not answer its last task (Flower takes a minute to notice), nodes without a
        client are asked for their reports, with a short wait. With ``admit_new`` all new nodes are
        asked, and :class:`ClientsJoined` is raised if new clients have answered; others join once
        they answer.
        """
        present = set(self._link.grid.get_node_ids())
        lost = [
            client
            for client in clients
            if client in self.unresponsive or self._node_of.get(client) not in present
        ]
        self.enquiry.keep_present(present)
        for client in lost:
            if self._node_of.get(client) not in present:  # when it is back it is asked at once
                self.backoff.forget(client)
        if lost or admit_new:
            self.enquiry.ask(present - {*self._node_of.values(), *self._unassigned})
            self._unassigned |= self.enquiry.wait() if lost else self.enquiry.collect()
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
                self.roster = self.roster.with_report(client, self._unassigned[found[-1]])
                self.backoff.forget(client)
                del self._unassigned[found[-1]]
        if admit_new and self._admit(present):
            self.save()
            raise ClientsJoined
        return {
            self._node_of[client]: client
            for client in clients
            if self._node_of.get(client) in present
        }

    def ask_again(self, client: int) -> None:
        """Ask a client's node for its report before its next task: its keys have changed."""
        self._node_of.pop(client, None)

    def wait_for_someone(self, round: int) -> None:
        """Wait until a client has a node, so that no round passes without training."""
        patience, clients = self._link.limits.patience, list(range(len(self.roster.clients)))
        end = time.monotonic() + patience
        warned = False
        while not set(self._node_of.values()) & set(
            self._link.grid.get_node_ids()
        ) and not self.nodes_of(clients):
            if not warned:
                log.warning(
                    "no client has a node any more; round %d waits up to %g s for one",
                    round + 1,
                    patience,
                )
                warned = True
            if time.monotonic() > end:
                raise RunError(
                    f"no client came back within {patience:g} s; start the run again, it resumes"
                    " after its last round"
                )
            time.sleep(self._link.limits.poll)

    def wait_for(self, clients: list[int], least: int, round: int) -> None:
        """Wait until ``least`` of these clients have a node: fewer cannot be summed, and a round
        would pass without training."""
        patience = self._link.limits.patience
        end, warned = time.monotonic() + patience, False
        while len(self.nodes_of(clients)) < least:
            if not warned:
                text = "fewer than %d clients have a node; round %d waits up to %g s for them"
                log.warning(text, least, round + 1, patience)
                warned = True
            if time.monotonic() > end:
                raise RunError(
                    f"fewer than {least} clients came back within {patience:g} s; start the run"
                    " again, it resumes after its last round"
                )
            time.sleep(self._link.limits.poll)

    def turn_away(self, reports: Mapping[int, Registration]) -> None:
        """Record nodes that do not fit and have been logged."""
        self._unassigned |= reports
        self._refused |= reports.keys()

    def assign(self, reports: Mapping[int, Registration]) -> None:
        """After a restart of the server: match nodes to known clients, and admit new ones."""
        for node, report in reports.items():
            number = self.roster.number(report.name)
            if number is None or number in self._node_of:
                self._unassigned[node] = report
            elif report.is_same_client(self.roster.clients[number]):
                self._node_of[number] = node
                self.roster = self.roster.with_report(number, report)
            else:
                self.enquiry.refuse(
                    node,
                    "its data have changed since this run started; restore them, or use another"
                    " directory",
                    report.name,
                )
        self._admit(set(reports))

    def _admit(self, present: set[int]) -> bool:
        """Give the next numbers to new clients that fit the run; returns whether there are any."""
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
                    else f"client {number} has this name but other data"
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
        admission = self.roster.admission
        invented = [name for name in report.groups if name not in self.roster.groups]
        if self.roster.groups and invented and admission.groups is None:
            return (
                f"its group {invented[0]} is new since the run started; approve it with"
                " Admission(groups=...)"
            )
        if len(self.roster.groups) + len(invented) > admission.most_groups:
            return f"its groups would make more than {admission.most_groups} in total"
        try:
            self._accepts(self.roster.with_clients([report]))
        except ValueError as error:
            return first_line(error)
        return ""

    def save(self) -> None:
        """Save the roster for the next start of the server."""
        if self._path is not None:
            self.check_newest()
            capped = self.roster.population.capped()
            plain = {"session": self.session, "capped": capped, **self.roster.to_plain()}
            write_json(self._path, plain)

    def check_newest(self) -> None:
        """Raise if the server was started again, because another process now owns the run."""
        if self._path is None or not self._path.exists():
            return
        try:
            newest = int(json.loads(self._path.read_text(encoding="utf-8"))["session"])
        except (OSError, ValueError, TypeError, KeyError):
            return  # the next start reports the damage
        if newest > self.session:
            raise RunError(
                f"another server has taken over the run in {self._path.parent} (its start {newest},"
                f" this one's {self.session}); this one stops and writes nothing more"
            )
