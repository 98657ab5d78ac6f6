"""Local solvers by name: their tables in specs and messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from evenhand.errors import require_known
from evenhand.local.adam import LocalAdam, LocalAdamW
from evenhand.local.sample_dp import SampleDP, built_dp, dp_table
from evenhand.local.sgd import LocalSGD
from evenhand.local.solver import LATER, LocalSolver
from evenhand.schedules import Schedule, as_schedule, built_schedule, schedule_table

SOLVERS: dict[str, type[LocalSolver]] = {"sgd": LocalSGD, "adam": LocalAdam, "adamw": LocalAdamW}
DEFAULT = "sgd"  # a table without a name means this solver
SCHEDULED = ("schedule", "step_schedule")


def solver_name(local: LocalSolver) -> str:
    """Return the name of a solver: "sgd", "adam" or "adamw"."""
    name = next((name for name, kind in SOLVERS.items() if kind is type(local)), None)
    if name is None:
        known = ", ".join(kind.__name__ for kind in SOLVERS.values())
        raise ValueError(f"a spec or message cannot hold a {type(local).__name__}; use {known}")
    return name


def solver_table(local: LocalSolver) -> dict[str, Any]:
    """Return the table from which :func:`built_solver` rebuilds a solver.

    >>> solver_table(LocalSGD(lr=0.1, clip=1.0))["clip"]
    1.0
    """
    name = solver_name(local)
    table: dict[str, Any] = {} if name == DEFAULT else {"solver": name}
    for field in dataclasses.fields(local):
        value = getattr(local, field.name)
        if field.name in LATER and value == field.default:
            continue  # so that earlier versions can read the table
        if isinstance(value, Schedule):
            value = schedule_table(field.name, value)
        if isinstance(value, SampleDP):
            value = dp_table(value)
        table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def given_table(local: LocalSolver) -> dict[str, Any]:
    """Return the settings of a solver as they are, with its name, for changes in this process."""
    fields = dataclasses.fields(local)
    return {"solver": solver_name(local), **{f.name: getattr(local, f.name) for f in fields}}


def described_solver(local: LocalSolver) -> dict[str, Any]:
    """Return the table of a solver as far as a spec can hold it: a function only by its name."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(local):
        value = getattr(local, field.name)
        if isinstance(value, Schedule):
            try:
                table[field.name] = schedule_table(field.name, value)
            except ValueError:
                table[field.name] = repr(value)
        elif isinstance(value, SampleDP):
            table[field.name] = dp_table(value)
        elif value is not None and (field.name not in LATER or value != field.default):
            table[field.name] = list(value) if isinstance(value, tuple) else value
    kind = next((name for name, known in SOLVERS.items() if known is type(local)), None)
    return table if kind == DEFAULT else {"solver": kind or type(local).__name__, **table}


def plain_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes to a solver's table with schedules and ``dp`` as tables; a function is
    refused."""
    found = dict(changes)
    if isinstance(found.get("dp"), SampleDP):
        found["dp"] = dp_table(found["dp"])
    for key in SCHEDULED:
        value = found.get(key)
        if value is not None and not isinstance(value, Mapping):
            schedule = as_schedule(key, value)
            assert schedule is not None
            found[key] = schedule_table(key, schedule)
    return found


def solver_of(table: Mapping[str, Any]) -> tuple[type[LocalSolver], dict[str, Any]]:
    """Return the class of the solver in a table, and its settings with their schedules built."""
    name = table.get("solver", DEFAULT)
    require_known("local solver", name, SOLVERS)
    settings = {key: value for key, value in table.items() if key != "solver"}
    for key in SCHEDULED:
        if settings.get(key) is not None and not isinstance(settings[key], Schedule):
            settings[key] = built_schedule(key, settings[key])
    if settings.get("dp") is not None:
        settings["dp"] = built_dp(settings["dp"])
    return SOLVERS[name], settings


def built_solver(table: Mapping[str, Any]) -> LocalSolver:
    """Return the solver of a table of :func:`solver_table`."""
    kind, settings = solver_of(table)
    return kind(**settings)


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a solver's table with changes; another solver keeps the settings that it knows too.

    >>> merged({"lr": 0.1, "momentum": 0.9}, {"solver": "adam", "lr": 0.01})
    {'lr': 0.01, 'solver': 'adam'}
    """
    then = table.get("solver", DEFAULT)
    now = changes.get("solver", then)
    kept = dict(table)
    if now != then and now in SOLVERS:
        known = {field.name for field in dataclasses.fields(SOLVERS[now])}
        kept = {key: value for key, value in table.items() if key in known}
    return {**kept, **changes}
