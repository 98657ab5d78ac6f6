"""How to reproduce a report: commands, specs, versions and machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenhand.page.markup import table, text
from evenhand.studies.runs.folds import unfolded
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import Spec
from evenhand.training.about import PYTHON


class Recipe(NamedTuple):
    """How to repeat training runs that share a spec."""

    how: str  # a sentence
    command: str  # "" if there is none
    file: str  # the name of the spec's file
    spec: str  # TOML


def recipes(study: Study) -> list[Recipe]:
    """How to repeat the runs of a study, a recipe for each spec."""
    federation = any("federation" in run for run in study.about)
    groups: dict[str, tuple[Spec, list[int]]] = {}
    for spec in study.specs:
        spec = unfolded(spec)
        known = dataclasses.replace(
            spec,
            seed=0,
            data={
                key: value for key, value in spec.data.items() if key != "seed" or study.same_data
            },
        )
        groups.setdefault(known.to_toml(), (spec, []))[1].append(spec.seed)
    found = []
    for number, (spec, seeds) in enumerate(groups.values(), start=1):
        several = len(seeds) > 1
        whole = (
            dataclasses.replace(
                spec, seeds=tuple(seeds), resplit=not study.same_data, folds=study.folds
            )
            if several
            else spec
        )
        name = "spec.toml" if len(groups) == 1 else f"spec-{number}.toml"
        line = f"evenhand compare {name} --no-reference" if several else f"evenhand run {name}"
        how = f"Save the spec below as {name} and run"
        if spec.data.get("name") == PYTHON:
            how, line = (
                "A Python program trained its own model on its own data with these settings; run"
                " it again.",
                "",
            )
        if federation:
            how, line = (
                "A Flower app ran with these settings on nodes that keep their data; start it"
                " again with a new directory.",
                "",
            )
        found.append(Recipe(how, line, name, whole.to_toml()))
    return found


def reproduce(study: Study, command: str) -> str:
    """Commands, specs, versions and machine."""
    parts = []
    for how, line, name, spec in recipes(study):
        told = text(how).replace(name, f"<code>{name}</code>")
        ran = f"<pre><code>{text(line)}</code></pre>" if line else ""
        parts.append(
            f"<p>{told}</p>{ran}<details><summary>{name}</summary><pre><code>{text(spec)}</code></pre></details>"
        )
    if command:
        parts.append(f"<p>This report was made with</p><pre><code>{text(command)}</code></pre>")
    rows = [
        ["seeds", ", ".join(map(str, study.seeds))],
        [
            "data",
            "the same for all seeds" if study.same_data else "split differently with each seed",
        ],
    ]
    about: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "data fingerprint": lambda run: str(run.get("data", "")),
        "machine": lambda run: str(run.get("machine", "")),
        "device": lambda run: str(run.get("device", "")),
        "versions": lambda run: ", ".join(
            f"{name} {version}" for name, version in run.get("versions", {}).items()
        ),
    }
    for name, read in about.items():
        values = list(dict.fromkeys(value for value in map(read, study.about) if value))
        if values:
            rows.append(
                [
                    name,
                    "; ".join(values[:5])
                    + (f" and {len(values) - 5} more" if len(values) > 5 else ""),
                ]
            )
    rows.append(
        [
            "directories",
            ", ".join(map(str, study.directories[:10]))
            + (" and others" if len(study.directories) > 10 else ""),
        ]
    )
    numbers = table(["what", "value"], rows, "Where the results come from")
    return f'{"".join(parts)}<div class="words-table">{numbers}</div>'
