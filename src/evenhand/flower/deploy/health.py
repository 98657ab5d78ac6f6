"""Whether a process of a container listens: ``python -m evenhand.flower.deploy.health HOST:PORT``.

With ``--root-certificates ca.crt`` the TLS certificate must be valid too, so an expired one makes a
SuperLink unhealthy. Uses the standard library only, because an engine calls it every few seconds.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
from pathlib import Path


def check(address: str, authority: Path | None = None, timeout: float = 5.0) -> str:
    """What is wrong with the process at HOST:PORT; empty if it answers."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout) as connection:
            if authority is not None:
                trust = ssl.create_default_context(cafile=str(authority))
                trust.wrap_socket(connection, server_hostname=host).close()
    except (OSError, ValueError) as error:
        return f"{address} is not healthy: {error}"
    return ""


def main() -> None:
    """Exit with 0 if the process answers, with 1 and the reason if not."""
    parser = argparse.ArgumentParser(prog="python -m evenhand.flower.deploy.health")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--root-certificates", metavar="FILE", type=Path)
    given = parser.parse_args()
    sys.exit(check(given.address, given.root_certificates) or 0)


if __name__ == "__main__":
    main()
