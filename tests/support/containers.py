"""Reads container files: Compose services with their anchors merged, Kubernetes documents and the
command lines in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml


def services(text: str) -> dict[str, dict[str, Any]]:
    """The services of a Compose file."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def documents(text: str) -> Iterator[dict[str, Any]]:
    """The documents of a manifest."""
    yield from yaml.safe_load_all(text)


def nginx_config(text: str) -> str:
    """nginx's configuration in a ConfigMap."""
    return str(next(documents(text))["data"]["nginx.conf"])


def command_lines(files: Mapping[str, str]) -> list[list[str]]:
    """What services and pods start, by the order of the files' names."""
    found = []
    for name in sorted(files):
        if name.startswith("compose"):
            found += [spec.get("command") or [] for spec in services(files[name]).values()]
        elif name.startswith("kubernetes/"):
            for document in documents(files[name]):
                if document["kind"] == "StatefulSet":
                    pod = document["spec"]["template"]["spec"]
                    found += [one.get("args") or [] for one in pod["containers"]]
    return [line for line in found if line]
