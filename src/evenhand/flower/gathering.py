"""The start of a run: waits for nodes and decides which of them are its clients."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from evenhand.errors import RunError, first_line
from evenhand.flower.admission import ANYONE, LEAST, Admission
from evenhand.flower.enquiry import Enquiry
from evenhand.flower.fitting import Suits, fitting
from evenhand.flower.link import Link
from evenhand.flower.membership import FILE, Accepts, Membership
from evenhand.flower.ordering import natural_order
from evenhand.flower.registration import Registration
from evenhand.flower.roster import Roster
from evenhand.reading import damaged

# the second is shown from the level INFO on
log, flowers_log = logging.getLogger(__name__), logging.getLogger("flwr")

SPEAK_EVERY = 30.0  # seconds between log lines about missing nodes


@dataclass(frozen=True)
class Gathering:
    """How the clients of a run are found.

    Args:
        clients: nodes to wait for. Nodes that do not fit, or are not approved, get the grace period
            of ``link`` to be fixed; then the run starts without them, if most clients fit.
        accepts: raises a ValueError if the run cannot have these clients.
        suits: raises a ValueError if the model cannot take a client's samples.
        masked: the name of a run with masked sums, for which nodes are asked for keys.
        hidden: whether nodes hide their counts.
    """

    link: Link
    clients: int
    out: Path
    accepts: Accepts
    suits: Suits = bool
    admission: Admission = ANYONE
    masked: str = ""
    hidden: bool = False

    def wait(self) -> Membership:
        """Wait for the nodes; returns the clients of the run in ``out``."""
        path = self.out / FILE
        found = self._again(path) if path.exists() else self._first(path)
        found.save()
        for name, most in found.roster.population.capped().items():
            log.warning(
                "%s counts as %d samples instead of the %d that it reports; approve more with"
                " Admission(samples={%r: ...}) or cap=None",
                name,
                most,
                int(found.roster.clients[found.roster.number(name) or 0].counts["train"].sum()),
                name,
            )
        _name_lonely_groups(found.roster)
        return found

    def _first(self, path: Path) -> Membership:
        enquiry = Enquiry(self.link, self.admission, self.masked, self.hidden)
        known: dict[int, Registration] = {}
        clock = _Clock(self)
        while True:
            present = set(self.link.grid.get_node_ids())
            enquiry.keep_present(present)
            enquiry.ask(present - known.keys())
            known |= dict(sorted(enquiry.wait().items()))
            kept: dict[int, Registration] = {}
            if known:
                kept, refused = fitting(known, self.suits, self.admission.most_groups)
                for node, reason in refused.items():
                    enquiry.refuse(node, reason, known[node].name)
            if len(kept) >= self.clients or clock.begins_without(len(kept), enquiry.refused):
                break
            clock.tick([report.name for report in kept.values()], enquiry.refused)
        names = natural_order([report.name for report in kept.values()])
        order = {name: number for number, name in enumerate(names)}
        clients = sorted(kept.values(), key=lambda report: order[report.name])
        roster = Roster.of(clients, self.admission)
        nodes = {order[report.name]: node for node, report in kept.items()}
        found = Membership(self.link, roster, nodes, self.accepts, path, enquiry=enquiry)
        found.turn_away({node: report for node, report in known.items() if node not in kept})
        return found

    def _again(self, path: Path) -> Membership:
        roster, session = self._read(path)
        session = next_session(session)
        enquiry = Enquiry(self.link, self.admission, self.masked, self.hidden)
        membership = Membership(self.link, roster, {}, self.accepts, path, session, enquiry)
        known, clock = set[int](), _Clock(self)
        while True:
            present = set(self.link.grid.get_node_ids())
            membership.enquiry.keep_present(present)
            membership.enquiry.ask(present - known)
            reports = dict(sorted(membership.enquiry.wait().items()))
            known |= reports.keys()
            membership.assign(reports)
            # a run that started without misfits continues without them
            if membership.present >= min(self.clients, len(membership.roster.clients)):
                return membership
            clock.tick(membership.names_present, membership.enquiry.refused)

    def _read(self, path: Path) -> tuple[Roster, int]:
        """The roster of an earlier start, and its session number."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            roster, capped = Roster.from_plain(kept, self.admission), kept.get("capped")
            session, now = int(kept["session"]), roster.population.capped()
        except (
            *(OSError, ValueError, TypeError, KeyError, AttributeError),
            *(IndexError, OverflowError, RecursionError),
        ) as error:
            way_out = "restore it from a copy, or use another directory"
            raise damaged(path, first_line(error), way_out) from error
        if capped is None and now:  # written by a version without caps
            log.warning("%s was started without a cap and continues without one", self.out)
            free = replace(self.admission, cap=None, samples=None)
            return replace(roster, admission=free), session
        if capped is not None and now != capped:
            raise RunError(
                f"{self.out} was started with other caps or approved samples (then:"
                f" {_listed(capped)}; now: {_listed(now)}); restore the old values, or use another"
                " directory"
            )
        return roster, session


def next_session(last: int) -> int:
    """A number for the next start of the server, larger than any before, even if the roster is an
    old copy."""
    return max(last + 1, time.time_ns() // 1_000_000)


class _Clock:
    """Logs who is missing, and ends the wait."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering, self._end = gathering, _now() + gathering.link.limits.patience
        self._speak, self._told = _now() + SPEAK_EVERY, math.inf  # when all had answered
        text = "waiting for %d nodes to register, for %g s at most"
        flowers_log.info(text, gathering.clients, gathering.link.limits.patience)

    def begins_without(self, fit: int, refused: dict[int, str]) -> bool:
        """Whether all have answered, most fit, and the others had time to be fixed."""
        clients, limits = self._gathering.clients, self._gathering.link.limits
        if fit + len(refused) < clients or 2 * fit <= clients:
            self._told = math.inf
            return False
        self._told = min(self._told, _now())
        if _now() < self._told + limits.grace:
            return False
        text = "the run starts with %d of %d clients; the others cannot take part, see above"
        log.warning(text, fit, clients)
        return True

    def tick(self, names: list[str], refused: dict[int, str]) -> None:
        """Wait a moment; raises a TimeoutError when patience runs out."""
        clients, limits = self._gathering.clients, self._gathering.link.limits
        there = f": {', '.join(natural_order(names))} have registered" if names else ""
        if len(names) == 1:
            there = f": {names[0]} has registered"
        if _now() > self._end:
            others = f"{len(refused)} cannot take part, see above and their logs; "
            raise TimeoutError(
                f"only {len(names)} of {clients} nodes registered within"
                f" {limits.patience:g} s; {others if refused else ''}start the others, or wait for"
                " fewer"
            )
        if _now() >= self._speak:
            flowers_log.info("waiting for %d of %d nodes%s", clients - len(names), clients, there)
            self._speak = _now() + SPEAK_EVERY
        time.sleep(limits.poll)


def _now() -> float:
    return time.monotonic()


def _listed(capped: dict[str, int]) -> str:
    return ", ".join(f"{name} as {most}" for name, most in capped.items()) or "nobody capped"


def _name_lonely_groups(roster: Roster) -> None:
    """Warn about clients with groups that no other client has: they may be invented."""
    if len(roster.clients) < LEAST or roster.admission.groups is not None:
        return
    uses = Counter(group for client in roster.clients for group in client.groups)
    for client in roster.clients:
        alone = [group for group in client.groups if uses[group] == 1]
        if alone:
            log.warning(
                "only %s has samples of %s; if that is right, approve it with"
                " Admission(groups=...)",
                client.name,
                ", ".join(alone),
            )
