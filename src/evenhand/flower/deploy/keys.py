"""Makes certificates and node keys where they are used, so that no private key has to travel.

    python -m evenhand.flower.deploy.keys certificates DIR link.example.org > ca.crt
    python -m evenhand.flower.deploy.keys node DIR > north.pub

Both print the public half. Existing files are kept unless ``--replace`` is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evenhand.flower.tryout.certificates import Certificates, write_certificates, write_node_key

LOCAL = ("localhost", "127.0.0.1")  # nginx and the SuperLink's own processes use these names
KEY = "node-key"


def certificates(directory: Path, names: tuple[str, ...], days: int, replace: bool) -> str:
    """Make an authority and a server certificate for these names; returns ca.crt."""
    files = Certificates(*(directory / name for name in ("ca.crt", "server.pem", "server.key")))
    if replace or not _kept(files):
        files = write_certificates(directory, (*names, *LOCAL), days)
    return files.authority.read_text(encoding="utf-8")


def node(directory: Path, replace: bool) -> str:
    """Make a node's key pair; returns the public key."""
    public = directory / f"{KEY}.pub"
    if replace or not _kept((directory / KEY, public)):
        public = write_node_key(directory, KEY).public
    return public.read_text(encoding="utf-8")


def _kept(files: tuple[Path, ...]) -> bool:
    there = [path for path in files if path.exists()]
    if there and len(there) < len(files):
        lost = ", ".join(path.name for path in files if path not in there)
        sys.exit(f"{files[0].parent} has no {lost}; add it, or make all anew with --replace")
    if there:
        print(f"kept the files in {files[0].parent}; --replace makes new ones", file=sys.stderr)
    return bool(there)


def main() -> None:
    """Make what the command line asks for and print the public half."""
    parser = argparse.ArgumentParser(prog="python -m evenhand.flower.deploy.keys")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("certificates", help="for the SuperLink")
    server.add_argument("directory", type=Path)
    server.add_argument("names", nargs="+", metavar="NAME", help="how nodes reach the SuperLink")
    server.add_argument("--days", type=int, default=365)
    client = commands.add_parser("node", help="for one SuperNode")
    client.add_argument("directory", type=Path)
    for command in (server, client):
        command.add_argument("--replace", action="store_true", help="replace existing files")
    given = parser.parse_args()
    if given.command == "node":
        print(node(given.directory, given.replace), end="")
    else:
        names = tuple(given.names)
        print(certificates(given.directory, names, given.days, given.replace), end="")


if __name__ == "__main__":
    main()
