"""What the library documents about each method: one line, a page, and what the server learns about
single clients."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from evenhand.errors import SpecError
from evenhand.studies.specs.building import check_name

if TYPE_CHECKING:
    from evenhand.algorithm import Algorithm
    from evenhand.data.population import Census

NOTHING = "nothing: sums only"
INNER = "what the inner method shows"
# hyper-parameters that change what the server sees: in words, and an example
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "term": {
        '`t` from -20 to 20, or `level="team"`': {},
        "other `t`, or `exact=true`": {"t": 21.0},
    },
    "fafl": {"": {}, '`eta0="quantile"`': {"eta0": "quantile"}},
    "fairfed": {"": {}, "`sums_only=true`": {"sums_only": True}},
    "fedfb": {"": {}, '`notion="client_parity"`': {"notion": "client_parity"}},
}


def one_line() -> dict[str, str]:
    """Name and first sentence of every method."""
    from evenhand.algorithms import ALGORITHMS

    return {
        name: " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        for name, kind in ALGORITHMS.items()
    }


def page(name: str) -> str:
    """The page of a method, as Markdown; for a user's own, ``module:Class``, its docstring and
    hyper-parameters."""
    from evenhand.algorithms import ALGORITHMS

    if ":" in name:
        return _own_page(name)
    check_name("method", name.lower(), ALGORITHMS)
    file = resources.files("evenhand.algorithms") / "pages" / f"{name.lower()}.md"
    if not file.is_file():
        raise SpecError(f"there is no page for {name}")
    return file.read_text(encoding="utf-8")


def _own_page(name: str) -> str:
    from evenhand.algorithms.naming import imported

    kind = imported(name)
    about = inspect.getdoc(kind) if kind.__doc__ else "It has no docstring."
    fields: tuple[dataclasses.Field[Any], ...] = (
        dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    )
    lines = [
        f"* `{one.name}`"
        + (f", by default {one.default!r}" if one.default is not dataclasses.MISSING else "")
        for one in fields
    ]
    heading = "Hyper-parameters:" if lines else "It has no hyper-parameters."
    return "\n\n".join([f"# {name}", str(about), heading, *filter(None, ["\n".join(lines)])])


class Learned(NamedTuple):
    """What the server learns about single clients with a method, beyond sums over clients."""

    method: str
    when: str  # Markdown: with which settings, in which federations; "" in all
    seen: str
    secure: str  # whether it is fit for masked sums: "yes", "no", or as the inner method


def learned() -> list[Learned]:
    """A row per method and case, from what methods declare about their messages."""
    from evenhand.algorithm import visible
    from evenhand.algorithms import ALGORITHMS
    from evenhand.algorithms.wrapper import Wrapper

    rows = []
    for name, kind in ALGORITHMS.items():
        if issubclass(kind, Wrapper):
            wrapper, census = kind(), _census(True)
            inner = visible(wrapper.inner, census)
            own = [what for what in visible(wrapper, census) if what not in inner]
            secure = "no" if own else "as the inner method"
            rows.append(Learned(name, "", ", ".join([*own, INNER]), secure))
            continue
        for setting, values in SETTINGS.get(name, {"": {}}).items():
            method = kind(**values)
            with_teams, without = (visible(method, _census(teams)) for teams in (True, False))
            cases = (
                {"": without}
                if with_teams == without
                else {"with teams": with_teams, "without teams": without}
            )
            for federation, seen in cases.items():
                when = ", ".join(filter(None, (setting, federation)))
                rows.append(
                    Learned(name, when, ", ".join(seen) or NOTHING, "no" if seen else "yes")
                )
    return rows


def always_seen(method: Algorithm) -> tuple[str, ...]:
    """What a method's server reads client by client in every federation; empty if it needs only
    sums in some."""
    from evenhand.algorithm import visible

    with_teams, without = (visible(method, _census(teams)) for teams in (True, False))
    return with_teams if without else ()


def kinds() -> dict[str, str]:
    """What the server sees with each method: "sums", "single" clients, or "either", depending on
    hyper-parameters or the inner method."""
    found: dict[str, set[str]] = {}
    for row in learned():
        found.setdefault(row.method, set()).add(
            {"yes": "sums", "no": "single"}.get(row.secure, "either")
        )
    return {name: kinds.pop() if len(kinds) == 1 else "either" for name, kinds in found.items()}


def learned_table() -> str:
    """:func:`learned` as the Markdown table of docs/explanation/what-the-server-sees.md."""
    lines = [
        "| method | when | evenhand's server uses of one client | fit for masked sums |",
        "|---|---|---|---|",
    ]
    return (
        "\n".join(
            [
                *lines,
                *(
                    f"| [{row.method}][] | {row.when} | {row.seen} | {row.secure} |"
                    for row in learned()
                ),
            ]
        )
        + "\n"
    )


def _census(teams: bool) -> Census:
    """Two clients to ask methods about."""
    import torch

    from evenhand.data.population import Census

    codes = torch.arange(2)
    return Census(
        torch.ones(2, dtype=torch.int64), torch.full((2,), 0.5), None, codes if teams else None
    )
