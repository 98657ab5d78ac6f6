"""Which nodes fit together. A misfit loses its own place and does not end the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from evenhand.flower.ordering import natural_order
from evenhand.flower.registration import Registration
from evenhand.flower.roster import check_fits, kind_of

# raises a ValueError if the run's model cannot take this client's samples
Suits = Callable[[Registration], object]


def fitting(
    reports: Mapping[int, Registration], suits: Suits, most_groups: int
) -> tuple[dict[int, Registration], dict[int, str]]:
    """Split nodes into those that fit together, and the reasons why the others do not.

    ``reports`` are in the order of registration: the first node with a name keeps it. The majority
    sets the shape and classes of samples, if the model can take them. If there are more groups than
    allowed, the nodes with the most groups of their own go first.
    """
    refused: dict[int, str] = {}
    kept: dict[int, Registration] = {}
    owner: dict[str, int] = {}
    for node, report in reports.items():
        if report.name in owner:
            refused[node] = (
                f"node {owner[report.name]} has the name {report.name} too; give each its own name"
                " in its node config"
            )
        else:
            owner[report.name], kept[node] = node, report
    model = _most_common(kept, suits)
    for node, report in list(kept.items()):
        try:
            check_fits(model, report)
        except ValueError as error:
            refused[node] = str(error)
            del kept[node]
    return kept, refused | _beyond(kept, most_groups)


def _most_common(reports: Mapping[int, Registration], suits: Suits) -> Registration:
    """A client of the most common kind that suits the model."""
    kinds: dict[object, list[Registration]] = {}
    for report in reports.values():
        kinds.setdefault(kind_of(report), []).append(report)
    ranked = sorted(kinds.values(), key=len, reverse=True)  # of equal ones the first stays first
    for clients in ranked if len(ranked) > 1 else ():
        try:
            suits(clients[0])
        except (ValueError, RuntimeError):
            continue
        return clients[0]
    return ranked[0][0]


def _beyond(kept: dict[int, Registration], most: int) -> dict[int, str]:
    """Remove nodes that would bring more groups than allowed; returns the reasons."""
    refused: dict[int, str] = {}
    uses = Counter(group for report in kept.values() for group in report.groups)
    alone = {
        node: sum(uses[group] == 1 for group in report.groups) for node, report in kept.items()
    }
    place = {name: i for i, name in enumerate(natural_order([it.name for it in kept.values()]))}
    groups: set[str] = set()
    for node in sorted(kept, key=lambda it: (alone[it], place[kept[it].name])):
        larger = groups.union(kept[node].groups)
        if len(larger) > most:
            refused[node] = (
                f"its {len(kept[node].groups)} groups would make {len(larger)} in total, and"
                f" {most} are allowed (Admission(most_groups=...))"
            )
        else:
            groups = larger
    for node in refused:
        del kept[node]
    return refused
