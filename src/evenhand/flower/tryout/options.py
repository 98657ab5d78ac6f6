"""Command lines and configuration of Flower's processes, as plain functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from evenhand.flower.tryout.certificates import Certificates, NodeKey
from evenhand.flower.tryout.ports import HOST

CONNECTION = "loopback"  # the SuperLink's name in Flower's configuration

Value = str | int | float | bool


def link_command(port: int, database: Path, certificates: Certificates | None) -> list[str]:
    """The command that starts the SuperLink; without certificates it admits anything that reaches
    the port."""
    command = ["flower-superlink", "--host", HOST, "--port", f"{port}", "--database", f"{database}"]
    if certificates is None:
        return [*command, "--insecure"]
    authority, server, key = map(str, certificates)
    tls = ["--ssl-ca-certfile", authority, "--ssl-certfile", server, "--ssl-keyfile", key]
    return [*command, *tls, "--enable-supernode-auth"]


def node_command(
    address: str, port: int, config: Mapping[str, Value], trust: Path | None, key: NodeKey | None
) -> list[str]:
    """The command that starts a SuperNode on ``port``; ``trust`` is the certificate of the
    SuperLink's authority."""
    command = ["flower-supernode", "--superlink", address, "--host", HOST, "--port", f"{port}"]
    if trust is None or key is None:
        command += ["--insecure"]
    else:
        command += ["--root-certificates", f"{trust}", "--auth-supernode-private-key"]
        command += [f"{key.private}"]
    return [*command, "--node-config", key_values(config)]


def connection(address: str, certificates: Certificates | None) -> str:
    """The configuration with which ``flwr`` commands find the SuperLink."""
    trust = (
        "insecure = true"
        if certificates is None
        else f"root-certificates = {json.dumps(str(certificates.authority))}"
    )
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    )


def key_values(settings: Mapping[str, Value]) -> str:
    """Settings in the form of Flower's key=value lists."""
    return " ".join(f"{key}={_value(value)}" for key, value in settings.items())


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if '"' in value or "\\" in value or "\n" in value:
        raise ValueError(
            f"{value!r} has a quotation mark, backslash or line break, which Flower's configuration"
            " cannot carry; rename it"
        )
    return f'"{value}"'
