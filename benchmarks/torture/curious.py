"""A server that asks too much: how many of a node's rows it can solve for, under the limits that
the node's owner has."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.torture import Figure
from tests.support.curious_server import Curious, matched, patients

ROWS = 100
# as nodes were before they had policies
OPEN = 'min-batch = 1\nmin-cell = 1\nrounds-per-day = 0\norder = "server"\n'
POLICIES = {
    "no limits": OPEN,
    "no policy file": 'order = "server"\nrounds-per-day = 0\n',
    "a policy file": "rounds-per-day = 0\n",
}


def figures(seconds: float, seed: int) -> list[Figure]:
    """Rows that stay with the node in three attacks, under three policies; only the last policy is
    meant to hold."""
    counts = {(attack, policy): [0, 0] for attack in ATTACKS for policy in POLICIES}
    end = time.monotonic() + seconds
    for trial in range(1000):
        data = patients(ROWS, seed + trial)
        for attack, policy in counts:
            with tempfile.TemporaryDirectory() as place:
                server = Curious(Path(place), data, POLICIES[policy])
                counts[attack, policy][0] += ATTACKS[attack](server)
                counts[attack, policy][1] += ROWS
        if time.monotonic() > end:
            break
    return [
        Figure(
            f"{attack}; a policy file",
            counts[attack, "a policy file"][1],
            counts[attack, "a policy file"][1] - counts[attack, "a policy file"][0],
            "rows that the server did not get; it got "
            + ", ".join(
                f"{found} of {tried} with {policy}"
                for (other, policy), (found, tried) in counts.items()
                if other == attack and policy != "a policy file"
            ),
        )
        for attack in ATTACKS
    ]


def _single(server: Curious) -> int:
    return matched(server.one_by_one(40)[0], server.data["x"])


def _equations(server: Curious) -> int:
    return matched(server.by_equations(110, batch=8), server.data["x"], tolerance=0.01)


def _differences(server: Curious) -> int:
    return matched(server.by_differences(40), server.data["x"], tolerance=0.01)


ATTACKS = {
    "40 steps of one sample each": _single,
    "110 steps of eight samples, solved for the rows": _equations,
    "40 differences between all samples and all but one": _differences,
}
