"""Ports of this machine's loopback."""

from __future__ import annotations

import random
import socket

from evenhand.flower.tryout.errors import FederationError

HOST = "127.0.0.1"
# below the range for outgoing connections, which could take a port between choice and use
PORTS = range(20000, 32000)


def free_ports(first: int, count: int) -> list[int]:
    """Find ``count`` free ports; the first is ``first`` unless that is 0."""
    if first and not _is_free(first):
        raise FederationError(
            f"port {first} of {HOST} is taken; choose another with --port, or leave it out to get a"
            " free one"
        )
    ports = [first] if first else []
    # not the program's generator, whose seed would give everyone the same ports
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        if port != first and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        # as servers do: connections that linger do not matter
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex((HOST, port)) == 0
