"""Where a run was started, and with what: machine, versions, device and engine.

``about.json`` keeps what was true at the first start. If a run is resumed elsewhere, that is added
to its list ``resumed``.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evenhand import files
from evenhand.engines import processes
from evenhand.reading import read_json
from evenhand.training.manifest import Sealed, renew
from evenhand.version import __version__

ABOUT = "about.json"
PACKAGES = ("evenhand", "torch", "numpy", "scikit-learn")
PLACE = ("device", "engine", "machine", "versions")
RESUMED = "resumed"


class ElsewhereWarning(UserWarning):
    """A run is resumed with another machine, version, device or engine."""


def place_of(device: str, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Describe this machine in the form of about.json."""
    return {
        "device": device,
        "machine": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version_of(name) for name in packages},
        },
    }


def _version_of(package: str) -> str:
    # evenhand itself may run from a clone that is not installed
    return __version__ if package == "evenhand" else metadata.version(package)


def begun_at(directory: Path) -> dict[str, Any]:
    """Return where a run was started and resumed, from about.json; empty if there is none."""
    about = _about(directory)
    return {key: about[key] for key in (*PLACE, RESUMED) if key in about}


def _about(directory: Path) -> dict[str, Any]:
    """Return the content of about.json, which must be unchanged; empty if the run is just
    starting."""
    path, sealed = directory / ABOUT, Sealed(directory)
    if not path.exists():
        return {}
    return read_json(sealed.path(ABOUT) if sealed.has(ABOUT) else path)


@processes.on_first
def begun_engine(directory: Path) -> str | None:
    """Return the engine that a run was started with, if its directory says so."""
    engine: str | None = begun_at(directory).get("engine")
    return engine


@processes.on_first
def note_place(directory: Path, now: Mapping[str, Any]) -> None:
    """Record where a run starts or, if that differs, where it resumes."""
    path, about = directory / ABOUT, _about(directory)
    here = {key: now[key] for key in PLACE if key in now}
    if not about:
        files.write_json(path, here)
        renew(directory, [ABOUT])
        return
    before = {**about, **(about.get(RESUMED) or [{}])[-1]}
    changed = [change for key in here if key in before for change in _changes(key, before, here)]
    if changed:
        warnings.warn(
            f"{directory} is resumed with {', '.join(changed)}; its last digits may differ from"
            " those of an uninterrupted run",
            ElsewhereWarning,
            stacklevel=2,
        )
        files.write_json(path, {**about, RESUMED: [*about.get(RESUMED, []), here]})
        renew(directory, [ABOUT])


def _changes(key: str, before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Describe what differs: "torch 2.7.0 (before: 2.6.0)"."""
    then, now = before[key], here[key]
    if key != "versions":
        return [] if then == now else [f"{key} {now} (before: {then})"]
    return [
        f"{name} {now[name]} (before: {then[name]})"
        for name in now
        if name in then and then[name] != now[name]
    ]
