"""One method of a run: its name and hyper-parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenhand.algorithm import Algorithm
from evenhand.algorithms import ALGORITHMS, Averaged
from evenhand.algorithms.naming import RESERVED, Table, imported, label_of
from evenhand.errors import SpecError
from evenhand.studies.specs.building import built, check_name

# methods with a former hyper-parameter that Averaged(inner) replaces, and its values
WITH_OUTPUT, OUTPUTS = ("afl", "fafl", "fedminmax"), ("last", "average")


@dataclass(frozen=True)
class Method:
    """One method of a run: its name, a unique label, hyper-parameters, and changes to the local
    solver."""

    name: str
    label: str
    parameters: Table = field(default_factory=dict)
    local: Table = field(default_factory=dict)
    # the configured method itself, if it was passed in Python
    given: Algorithm | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_table(cls, entry: Mapping[str, Any]) -> Method:
        """The method of a [[methods]] entry."""
        local = entry.get("local", {})
        if not isinstance(local, dict):
            raise SpecError(
                f"local of {entry['name']} must be a table such as {{ lr = 0.1 }}, got {local!r}"
            )
        name = entry["name"]
        rest = {key: value for key, value in entry.items() if key not in RESERVED}
        return cls(name, str(entry.get("label", label_of(name))), rest, dict(local))

    def algorithm(self) -> Algorithm:
        """The configured method; raises a SpecError for an unknown name or keyword and for a bad
        value."""
        if self.given is not None:
            return self.given
        return build_algorithm({"name": self.name, **self.parameters}, own=True)

    def table(self) -> Table:
        """The [[methods]] entry of a spec."""
        label = {"label": self.label} if self.label != label_of(self.name) else {}
        return {
            "name": self.name,
            **label,
            **self.parameters,
            **({"local": self.local} if self.local else {}),
        }


def flat_settings(method: Method) -> Table:
    """Hyper-parameters by their keys in a grid: q, local.lr, inner.q."""

    def flat(table: Mapping[str, Any], prefix: str) -> Table:
        found: Table = {}
        for key, value in table.items():
            found |= (
                flat(value, f"{prefix}{key}.")
                if isinstance(value, Mapping)
                else {f"{prefix}{key}": value}
            )
        return found

    return flat(method.parameters, "") | flat(method.local, "local.")


def build_algorithm(table: Any, own: bool = False) -> Algorithm:
    """A method from a table with its name and hyper-parameters; ``inner``, a name or such a table,
    is the method it wraps.

    ``own``: also import a user's own method, ``mypackage:MyMethod``. Never allow that for a table
    received in a message.
    """
    parameters = (
        {"name": table}
        if isinstance(table, str)
        else dict(table)
        if isinstance(table, Mapping)
        else {}
    )
    name = parameters.pop("name", None)
    if name is None:
        way_out = (
            'inner=qffl,inner.q=2 on the command line, inner = { name = "qffl", q = 2 } in a spec'
        )
        raise SpecError(f"inner needs the name of a method: {way_out}; got {table!r}")
    if own and isinstance(name, str) and ":" in name:
        kind = imported(name)
    else:
        check_name("method", name, ALGORITHMS)
        kind = ALGORITHMS[name]
    if "inner" in parameters:
        check_name(f"keyword of method {name}:", "inner", inspect.signature(kind).parameters)
        parameters["inner"] = build_algorithm(parameters["inner"], own)
    output = parameters.pop("output", "last") if name in WITH_OUTPUT else "last"
    if output not in OUTPUTS:
        raise SpecError(f'method {name}: output must be "last" or "average", got {output!r}')
    algorithm: Algorithm = built(f"method {name}", kind, parameters)
    return Averaged(algorithm) if output == "average" else algorithm
