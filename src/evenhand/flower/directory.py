"""The run directory of a real federation: like the simulator's, without what stays with the nodes.

It has no samples, no per-sample values and no personal models. A finished run keeps its checkpoint:
an app started again with the same directory trains nothing, evaluates once more and gives the same
result.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from evenhand import files
from evenhand.algorithm import Algorithm
from evenhand.algorithms.naming import algorithm_table
from evenhand.data.population import Population
from evenhand.data.samples import PARTS
from evenhand.errors import RunError, SpecError
from evenhand.flower.masked.described import check_same
from evenhand.flower.masked.totals import HiddenPopulation
from evenhand.flower.roster import Roster
from evenhand.local import LocalSGD, described_solver
from evenhand.secure.settings import SecureSums
from evenhand.studies.runs import directories
from evenhand.studies.runs.sealing import renew_run
from evenhand.studies.specs.spec import NODES, Spec, plain_name
from evenhand.training import directory as saved
from evenhand.training.about import about_run
from evenhand.training.checkpoints import CHECKPOINT
from evenhand.training.ending import read_ending
from evenhand.training.provenance import PACKAGES, begun_at
from evenhand.training.result import Result
from evenhand.training.settings import Settings

# settings that a spec takes unchanged
PLAIN = (
    *("rounds", "seed", "loss", "weights", "eval_every", "track_weights", "evaluate"),
    "normalisation",
)


@dataclasses.dataclass(frozen=True)
class Directory:
    """A directory for the one run of ``spec`` with ``algorithm`` and ``module``, and with masked
    sums if it has ``secure``."""

    path: Path
    spec: Spec
    algorithm: Algorithm
    module: nn.Module
    secure: SecureSums | None = None

    @property
    def folder(self) -> Path:
        """Where the method's checkpoint, history, model and scores are."""
        return self.path / self.spec.methods[0].label

    def check(self) -> None:
        """Refuse a directory that was started with other settings, before writing anything."""
        if not (self.path / "spec.toml").exists():
            return
        check_same(self.path, self.secure)
        then, now = map(_compared, (directories.load_spec(self.path), self.spec))
        if then["evaluate"] == Spec.evaluate:
            del now[
                "evaluate"
            ]  # earlier versions did not write it; the checkpoint compares it, too
        if then["rounds"] < now["rounds"] and self._rounds_done() == then["rounds"]:
            del now["rounds"]  # a finished run may be extended
        other = [name for name in now if then[name] != now[name]]
        if other:
            raise RunError(
                f"{self.path} was started with other settings ({', '.join(other)}); use another"
                " directory"
            )

    def _rounds_done(self) -> int:
        """The rounds done; of a run that was stopped, those asked for."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return 0
        about = files.read_tensors(path)[1]
        stopped, _ = read_ending(about)
        return int(about.get("rounds", 0)) if stopped is None else stopped.rounds

    def begin(self, roster: Roster, by_client: bool) -> None:
        """Describe the run; the directory of a resumed run stays as it is."""
        files.clear_partial(self.path)
        path = self.path / "spec.toml"
        if path.exists() and directories.load_spec(self.path).rounds >= self.spec.rounds:
            return
        self._describe(roster, by_client)
        files.write_atomic(path, self.spec.to_toml().encode())
        renew_run(self.path)

    def finish(self, result: Result, roster: Roster, by_client: bool) -> None:
        """Write the results."""
        self._describe(roster, by_client)
        renew_run(self.path)
        saved.write_method(result, self.folder, keep_checkpoint=True, module=self.module)

    def _describe(self, roster: Roster, by_client: bool) -> None:
        population = roster.population
        methods = {self.spec.methods[0].label: self.algorithm}
        packages = (*PACKAGES, "flwr")
        spec, text = self.spec, self.spec.to_toml()
        about = about_run(
            text,
            population,
            methods,
            self.module,
            spec.weights,
            spec.seed,
            "cpu",
            packages,
            normalisation=spec.normalisation,
        )
        about["federation"] = {
            "by_client": by_client,
            "clients": [_about_client(population, client) for client in range(population.clients)],
        }
        if roster.counted:
            about["federation"]["counted"] = [one.to_plain() for one in roster.counted]
        if self.secure is not None:
            about["federation"]["masked"] = dataclasses.asdict(self.secure)
        if capped := population.capped():
            about["federation"]["capped"] = capped
        files.write_json(self.path / saved.ABOUT, {**about, **begun_at(self.path)})


def run_spec(path: Path, algorithm: Algorithm, module: nn.Module, settings: Settings) -> Spec:
    """The settings of a server app as a spec; the data are with the nodes."""
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
        local=Spec().local
        if settings.local == Settings.local
        else described_solver(settings.local),
        cohort={"name": type(settings.cohort).__name__.lower(), **_given(settings.cohort)},
        **{name: getattr(settings, name) for name in PLAIN},
    )
    return spec.with_methods([_method(algorithm)])


def _compared(spec: Spec) -> dict[str, Any]:
    """The settings that must match to resume a run; the directory may have moved."""
    found = dataclasses.asdict(spec)
    del found["name"]
    defaults = {field.name: field.default for field in dataclasses.fields(LocalSGD)}
    return found | {"local": defaults | found["local"]}


def _method(algorithm: Algorithm) -> Mapping[str, Any]:
    try:
        return algorithm_table(algorithm)
    except SpecError:  # the user's own method, which a spec cannot build
        return {"name": type(algorithm).__name__, **_given(algorithm)}


def _given(settings: Any) -> dict[str, Any]:
    """The plain values among the fields of a dataclass."""
    if not dataclasses.is_dataclass(settings):
        return {}
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        name: value for name, value in found.items() if isinstance(value, bool | int | float | str)
    }


def _about_client(population: Population, client: int) -> dict[str, Any]:
    """What a client's node reported."""
    team = "" if population.teams is None else population.team_names[int(population.teams[client])]
    names = population.group_names or ("",)
    shown = () if isinstance(population, HiddenPopulation) else PARTS
    samples = {
        part: dict(zip(names, population.counts(part)[client].tolist(), strict=True))
        for part in shown
        if population.has(part)
    }
    return {"name": population.name(client), "team": team, "samples": samples}


def run_name(out: Path) -> str:
    """The name of the run in ``out``, made once and kept when the run is resumed."""
    path = out / "run-name"
    if not path.exists():
        files.write_atomic(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="utf-8")
