"""The run directory of a real federation: the simulator's, but for what stays with the nodes.

There are no samples, no values of single samples and no personal models in it. The checkpoint stays
when the run is done: an app that is started again with the same directory trains nothing, evaluates
once more and gives the same result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenhand import files
from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort
from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS, Part
from evenhand.errors import RunError, SpecError
from evenhand.local import LocalSGD
from evenhand.studies import directories
from evenhand.studies.spec import NODES, RESERVED, Spec, algorithm_table, plain_name
from evenhand.training import directory as saved
from evenhand.training.result import Result


@dataclasses.dataclass(frozen=True)
class Directory:
    """A directory for the one run of ``spec`` with ``algorithm`` and ``module``."""

    path: Path
    spec: Spec
    algorithm: Algorithm
    module: nn.Module

    @property
    def folder(self) -> Path:
        """Where the method's checkpoint, history, model and scores are."""
        return self.path / self.spec.methods[0].label

    def check(self) -> None:
        """Refuse a directory that was begun with other settings, before anything is written into
        it."""
        if not (self.path / "spec.toml").exists():
            return
        then, now = (
            dataclasses.asdict(spec) for spec in (directories.load_spec(self.path), self.spec)
        )
        # the directory may have been moved
        other = [name for name in now if name != "name" and then[name] != now[name]]
        if other:
            raise RunError(
                f"{self.path} was begun with other settings ({', '.join(other)}); use another"
                " directory"
            )

    def begin(self, federation: Federation, by_client: bool) -> None:
        """Write what the run is about; a directory of a run that goes on stays as it is."""
        files.clear_partial(self.path, RESERVED)
        if (self.path / "spec.toml").exists():
            return
        self._describe(federation, by_client)
        files.write_atomic(self.path / "spec.toml", self.spec.to_toml().encode())

    def finish(self, result: Result, federation: Federation, by_client: bool) -> None:
        """Write what came of it."""
        self._describe(federation, by_client)
        saved.write_method(result, self.folder, keep_checkpoint=True)

    def _describe(self, federation: Federation, by_client: bool) -> None:
        methods = {self.spec.methods[0].label: self.algorithm}
        packages = (*saved.PACKAGES, "flwr")
        spec, text = self.spec, self.spec.to_toml()
        about = saved.about_run(
            text, federation, methods, self.module, spec.weights, spec.seed, "cpu", packages
        )
        about["federation"] = {
            "by_client": by_client,
            "clients": [_told(federation, client) for client in range(federation.clients)],
        }
        files.write_json(self.path / saved.ABOUT, about)


def run_spec(
    path: Path,
    algorithm: Algorithm,
    module: nn.Module,
    *,
    local: LocalSGD | None,
    cohort: Cohort | None,
    **settings: Any,
) -> Spec:
    """What a server app was asked for, in the form of a spec; its data are with the nodes."""
    chosen = {key: value for key, value in settings.items() if value is not None}
    if local is not None:
        chosen["local"] = _given(local)
    if cohort is not None:
        chosen["cohort"] = {"name": type(cohort).__name__.lower(), **_given(cohort)}
    spec = Spec(
        name=plain_name(path.resolve().name),
        engine="flower",
        device="cpu",
        checkpoint_every=1,
        data={"name": NODES},
        model={
            "name": type(module).__name__,
            "parameters": sum(leaf.numel() for leaf in module.parameters()),
        },
        **chosen,
    )
    return spec.with_methods([_method(algorithm)])


def _method(algorithm: Algorithm) -> Mapping[str, Any]:
    try:
        return algorithm_table(algorithm)
    except SpecError:  # of the user's own, which no spec can make again
        return {"name": type(algorithm).__name__, **_given(algorithm)}


def _given(settings: Any) -> dict[str, Any]:
    """The plain values among the settings of a dataclass, and none that was not given."""
    if not dataclasses.is_dataclass(settings):
        return {}
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        name: value for name, value in found.items() if isinstance(value, bool | int | float | str)
    }


def _told(federation: Federation, client: int) -> dict[str, Any]:
    """What a client told at the start."""
    team = "" if federation.teams is None else federation.team_names[int(federation.teams[client])]
    parts = {kind: part for kind in PARTS if (part := getattr(federation, kind)) is not None}
    samples = {kind: _counts(part, client, federation.group_names) for kind, part in parts.items()}
    return {"name": federation.name(client), "team": team, "samples": samples}


def _counts(part: Part, client: int, groups: tuple[str, ...]) -> dict[str, int]:
    rows = slice(int(part.offsets[client]), int(part.offsets[client + 1]))
    if part.group is None:
        return {"": rows.stop - rows.start}
    return dict(
        zip(groups, torch.bincount(part.group[rows], minlength=len(groups)).tolist(), strict=True)
    )
