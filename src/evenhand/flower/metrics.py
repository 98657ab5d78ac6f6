"""Serves health and metrics of a running server on a local port, in Prometheus' text format.

``/healthz`` answers 200 while the run advances, and 503 if nothing has moved for longer than an
exchange and the wait for nodes may take.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from evenhand.flower.watch import Now, Watch
from evenhand.version import __version__

log = logging.getLogger(__name__)

VARIABLE = "EVENHAND_METRICS"  # a port, or an address with a port
HOST = "127.0.0.1"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
SLACK = 30.0  # seconds beyond deadline and patience, for the server's own work


@contextmanager
def served(watch: Watch, address: str) -> Iterator[int | None]:
    """Serve until the context ends; yields the port, or None if it cannot serve. The run continues
    without it."""
    try:
        host, port = read_address(address)
        server = ThreadingHTTPServer((host, port), _handler(watch)) if address else None
    except (OSError, ValueError, OverflowError) as error:
        log.warning(
            "cannot serve metrics on %s: %s; choose a free port; training continues without",
            address,
            error,
        )
        server = None
    if server is None:
        yield None
        return
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def address_in(run_config: Mapping[str, object]) -> str:
    """Where to serve: "metrics" in the run config, or the SuperLink's environment; empty for
    nowhere."""
    return str(run_config.get("metrics") or os.environ.get(VARIABLE, ""))


def read_address(address: str) -> tuple[str, int]:
    """Host and port of "9464" or "0.0.0.0:9464"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") or HOST, int(port or 0)


def health(now: Now, patience: float, deadline: float, at: float) -> tuple[bool, str]:
    """Whether the run advances, and a line that says so; ``at`` is monotonic time."""
    quiet, most = at - now.moved, deadline + patience + SLACK
    where = f"round {now.done} of {now.rounds} done" if now.begun else "waiting for nodes"
    if now.finished:
        return True, "finished"
    if quiet <= most:
        return True, f"{where}, last activity {quiet:.0f} s ago"
    return False, (
        f"{where}, and nothing has moved for {quiet:.0f} s, longer than deadline and patience"
        f" allow ({most:.0f} s); check the server's log, and start the run again with the same"
        " out"
    )


def metrics(now: Now, left_out: Mapping[str, int], at: float) -> str:
    """All metrics as text."""
    gauges: list[tuple[str, str, float | None]] = [
        ("rounds_done", "Rounds done and saved.", now.done),
        ("rounds", "Rounds of the run.", now.rounds),
        ("finished", "1 when model and scores are written.", now.finished),
        ("clients_registered", "Clients of the run.", now.registered),
        (
            "clients_present",
            "Clients with a node in the last round.",
            max(0, now.registered - now.gone),
        ),
        ("clients_asked", "Clients asked to train in the last round.", now.asked),
        ("clients_answered", "Clients whose replies counted in the last round.", now.answered),
        ("round_seconds", "Duration of the last round in seconds.", now.seconds),
        ("quiet_seconds", "Seconds since something last moved.", at - now.moved),
    ]
    lines = [
        "# HELP evenhand_build_info Versions in use; always 1.\n# TYPE evenhand_build_info gauge\n"
        f'evenhand_build_info{{version="{__version__}",flwr="{version("flwr")}"}} 1'
    ]
    for name, words, value in gauges:
        if value is not None:
            lines.append(_head(name, words, "gauge") + f"evenhand_{name} {float(value)!r}")
    lines.append(
        _head("left_out_total", "Times a client was skipped or bounded.", "counter")
        + "\n".join(
            f'evenhand_left_out_total{{reason="{reason}"}} {float(count)!r}'
            for reason, count in sorted({"late": 0, "gone": 0, **left_out}.items())
        )
    )
    if now.scores:
        lines.append(
            _head("score", "Of the last evaluation, as in history.csv.", "gauge")
            + "\n".join(
                f'evenhand_score{{measure="{name}"}} {_number(value)}'
                for name, value in now.scores.items()
            )
        )
    return "\n".join(lines) + "\n"


def _head(name: str, words: str, kind: str) -> str:
    return f"# HELP evenhand_{name} {words}\n# TYPE evenhand_{name} {kind}\n"


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))


def _handler(watch: Watch) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at, path = time.monotonic(), self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, metrics(watch.now, watch.left_out(), at), TEXT)
            elif path == "/healthz":
                limits = watch.limits
                well, line = health(watch.now, limits.patience, limits.deadline, at)
                self._answer(200 if well else 503, f"{line}\n")
            else:
                self._answer(404, "try /metrics or /healthz\n")

        def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            content = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: a scrape every few seconds is not news."""

    return Handler
