"""Results of experiments, made by hand: near the published numbers, so that every verdict is
there."""

from __future__ import annotations

import dataclasses
from typing import Any

from evenhand.papers.experiment import Experiment, Part, Row, papers
from evenhand.papers.published import published
from evenhand.papers.results import Result

# how far each of our numbers is from the published one, in turn
OFF = (0.0, 0.4, -2.0, 5.0)
SETTINGS = {"data": {"name": "synthetic_minimax"}}
NAMED = {
    "stated": "ten clients & full participation",
    "unknown": "step sizes",
    "reason": "step sizes are not published",
    "time": "one core: 1 minute",
}


def rows_of(*labels: str, **others: Any) -> tuple[Row, ...]:
    return tuple(Row(label, {"name": "fedavg"}, **others) for label in labels)


def part_of(experiment: str, name: str = "", **changes: Any) -> Part:
    """A part with the rows that are published."""
    settings = {"about": "", "seeds": 3, "spec": SETTINGS, **NAMED, **changes}
    part = Part(experiment, name, rows=settings.pop("rows", ()), **settings)
    labels = dict.fromkeys(number.row for number in published(part))
    return part if part.rows else dataclasses.replace(part, rows=rows_of(*labels))


def experiment_of(*parts: Part, number: str = "Table 1", **figure: Any) -> Experiment:
    name = parts[0].experiment
    about = "Accuracy of each client."
    return Experiment(name, papers()[name.split("-")[0]], number, about, parts, figure)


def result_of(part: Part, seeds: int = 3, **changes: Any) -> Result:
    """Our numbers: of published ones near them, of others on a line over rows."""
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for place, number in enumerate(published(part)):
        unit = 1.0 if number.mean > 1 else 0.01
        off = OFF[place % len(OFF)] * unit
        spread = [0.3 * unit * (seed - (seeds - 1) / 2) for seed in range(seeds)]
        found = values.setdefault(number.row, {})
        found[number.metric] = tuple(number.mean + off + one for one in spread)
    for place, row in enumerate(part.rows):
        found = values.setdefault(row.label, {})
        for metric, base in (("mean", 70.0), ("worst10", 40.0), ("team:male", 88.0)):
            found.setdefault(metric, tuple(base + place + 0.5 * seed for seed in range(seeds)))
    for row in changes.get("diverged", ()):
        del values[row]
    settings = {
        "budget": part.budget,
        "note": part.note,
        "chosen": {},
        "edges": {},
        "diverged": (),
        **changes,
    }
    about = {
        "date": "2024-05-06",
        "command": f"evenhand reproduce {part.title}",
        "device": "cpu",
        "engine": "vmap",
        "processor": "a processor",
        "system": "Linux",
        "versions": {"python": "3.11.0", "torch": "2.6.0"},
    }
    return Result(
        part.home,
        identity="0123456789abcdef",
        seeds=tuple(range(seeds)),
        values=settings.pop("values", values),
        clients=10,
        samples=12345,
        rounds=500,
        seconds=75.0,
        about=about,
        **settings,
    )


Told = list[tuple[Experiment, Part, Result | None]]


def usual() -> Told:
    """Every kind of figure, a smaller budget, substitute data, settings at an edge, and what was
    not run."""
    clothes = part_of("fafl-table1", smaller={"about": "1 seed, 20 rounds"})
    grid = {"local.lr": [0.1, 0.5], "q": [1.0, 5.0]}
    rows = (*clothes.rows[:-1], dataclasses.replace(clothes.rows[-1], grid=grid, rule="min"))
    clothes = dataclasses.replace(clothes, rows=rows)
    last = rows[-1].label
    told: Told = [
        (
            experiment_of(clothes),
            clothes,
            result_of(clothes, chosen={last: {"local.lr": 0.5, "q": 1.0}}, edges={last: ("q",)}),
        )
    ]
    vehicle = part_of(
        "fafl-table2", "vehicle", about="23 sensors", smaller={"about": "2 seeds, 50 rounds"}
    )
    tweets = part_of("fafl-table2", "sent140", other={"about": "sentences of another corpus"})
    quick = vehicle.quick()
    table = experiment_of(vehicle, tweets, number="Table 2")
    told += [
        (table, quick, result_of(quick, seeds=2, diverged=(quick.rows[0].label,))),
        (table, tweets.substituted(), result_of(tweets.substituted(), seeds=1)),
    ]
    bars = part_of("rcfl-figure1", same_as="fafl-table1")
    told.append((experiment_of(bars, number="Figure 1", kind="bars"), bars, result_of(clothes)))
    missing = part_of("gifair-table1", spec={"data": {"name": "femnist"}})
    told.append((experiment_of(missing), missing, None))
    strengths = tuple(
        Row(f"GIFAIR lambda={x:g}", {"name": "gifair"}, series="GIFAIR", x=x)
        for x in (0.0, 0.1, 1.0)
    )
    roles = part_of("gifair-figure4", rows=(*strengths, *rows_of("FedAvg")))
    figure = experiment_of(
        roles, number="Figure 4", kind="against", x="strength", metrics=["team:male", "mean"]
    )
    told.append((figure, roles, result_of(roles)))
    images = [part_of("propfair-table6", name) for name in ("cifar10", "shakespeare")]
    told += [(experiment_of(*images, number="Table 6"), one, result_of(one)) for one in images]
    planes = [
        part_of("propfair-figure2", one.name, same_as=one.title, rows=one.rows) for one in images
    ]
    plane = experiment_of(*planes, number="Figure 2", kind="plane", metrics=["mean", "worst10"])
    told += [(plane, one, result_of(one)) for one in planes]
    sizes = [part_of("propfair-table8", str(size)) for size in (32, 64, 128, 256)]
    over = experiment_of(
        *sizes, number="Table 8", kind="against", x="batch size", metrics=["mean", "worst10"]
    )
    told += [(over, one, result_of(one)) for one in sizes]
    return told
