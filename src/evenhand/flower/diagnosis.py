"""Explains Flower's logs in one line that says what to do, and compares a machine's clock with the
SuperLink's."""

from __future__ import annotations

import re
import ssl
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path

COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of Flower's logs

# seconds by which the clock of a node with a key may differ from the SuperLink's
AHEAD, BEHIND = 5.0, 305.0

_PLAINTEXT = (
    "it uses plaintext and the SuperLink TLS; remove --insecure and give it the SuperLink's"
    " ca.crt with --root-certificates"
)
REASONS = {  # by what Flower logs
    "CERTIFICATE_VERIFY_FAILED": (
        "it does not trust the SuperLink's certificate; give it this SuperLink's ca.crt with"
        " --root-certificates"
    ),
    "[code: 2001]": (
        "it has no key; give it one with --auth-supernode-private-key, registered with flwr"
        " supernode register"
    ),
    "[code: 2004]": (
        "its key is not registered (flwr supernode register KEY.pub), or in use by another node;"
        " the key of a killed node is free again after about a minute"
    ),
    "disconnected without sending": _PLAINTEXT,
    # the same, where the SuperLink closes before it has read all
    "Connection reset by peer": _PLAINTEXT,
    "address already in use": "its port is taken; choose another with --port",
}
CLOCK = (
    f"its clock may be off: the SuperLink refuses a node that is {AHEAD:g} s ahead or {BEHIND:g} s"
    " behind (401), and the node exits without a message; set the clock (timedatectl set-ntp true,"
    " chronyc makestep) and restart it; evenhand flower check --superlink measures the difference"
)
DEAF = (
    "its client app got SIGTERM in the middle of a task, and the SuperNode waits for the reply for"
    " ever; restart the node"
)
HALTED = (
    "the server app was silent for longer than Flower waits (60 s): its machine slept, swapped or"
    " halted it; start the run again with the same out, it resumes after its last round"
)
FULL = (
    "the disk is full; free some space, then start the run again with the same out, it resumes"
    " after its last round"
)
LOST = (
    "the server app was killed while it sent a message; this process waits for the rest of it, for"
    " 83 min at most, and is ended by the node's next task; no action needed"
)


def reason(log: str) -> str:
    """Why a node was refused and what to do, from its log; empty if unknown."""
    found = next((words for sign, words in REASONS.items() if sign in log), "")
    ended = "SuperNode terminated gracefully" in log
    return found or (CLOCK if ended and "SuperNode ID:" not in log else "")


def explain(log: str) -> list[str]:
    """What went wrong according to the log of a SuperLink, a SuperNode or a server app, one line
    each."""
    log = COLOURS.sub("", log)
    if "Starting Flower SuperNode" in log:  # since it was last started
        log = log[log.rindex("Starting Flower SuperNode") :]
    found = [reason(log)]
    _, received, since = log.rpartition("Receiving: ")
    if received and "Sending: " not in since:
        if "Task stopped." in since:
            found.append(DEAF)
        elif "is not in `RUNNING` status. Ignoring message" in since:
            found.append(LOST)
    if re.search(r'"POST /v1/fleet/\S+ HTTP/1.1" 401', log):
        found.append(f"a node was refused: {CLOCK}")
    if "No heartbeat received" in log:
        found.append(HALTED)
    if "No space left on device" in log:
        found.append(FULL)
    return [words for words in dict.fromkeys(found) if words]


def clock_ahead(superlink: str, authority: Path | None, timeout: float = 10.0) -> float:
    """By how many seconds this machine's clock is ahead of the SuperLink's, whose answers carry the
    time in whole seconds. Raises an OSError if it cannot be reached."""
    trust = None if authority is None else ssl.create_default_context(cafile=str(authority))
    address = f"http{'' if trust is None else 's'}://{superlink}/v1/fleet/"
    before = time.time()
    try:
        with urllib.request.urlopen(address, timeout=timeout, context=trust) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:  # even "not found" is an answer
        date = error.headers["Date"]
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error
    if not date:
        raise OSError("its answer has no date; is it a SuperLink?")
    # the date lacks half a second on average
    return (before + time.time()) / 2 - (parsedate_to_datetime(date).timestamp() + 0.5)


def clock_words(ahead: float) -> tuple[bool, str]:
    """Whether a node with a key is admitted with this clock, and a line that says so."""
    where = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the SuperLink's"
    if -(BEHIND - 1) < ahead < AHEAD - 1:
        return True, (
            f"the clock is {where}: close enough"
            if abs(ahead) >= 1
            else "the clock agrees with the SuperLink's"
        )
    return False, f"the clock is {where}: {CLOCK}"
