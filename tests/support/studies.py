"""Studies that nobody trained: outcomes drawn at random, in the form that run directories are
loaded into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import summary
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.measure import measure_of
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec

# how good a method is on the whole, and how much of the difference between clients it takes away
METHODS: Mapping[str, tuple[float, float]] = {
    "fedavg": (0.80, 0.0),
    "qffl": (0.79, 0.5),
    "afl": (0.77, 0.7),
}
FIVE = {
    "fedavg": (0.80, 0.0),
    "qffl": (0.79, 0.5),
    "afl": (0.77, 0.7),
    "ditto": (0.82, 0.4),
    "localonly": (0.7, 0.2),
}
# names that would do harm where they were taken for HTML, markup or a template
NASTY = (
    "<script>alert(1)</script>",
    "</script><!--",
    "[bold]a & b[/bold]",
    "\"quoted\" 'name'",
    "%{x} $y$ {{title}}",
    "n" * 200,
)
VERSIONS = {"python": "3.11.0", "evenhand": "0.1.0", "torch": "2.6.0"}


def make_study(
    methods: Mapping[str, tuple[float, float]] = METHODS,
    seeds: int = 3,
    clients: int = 12,
    samples: int = 40,
    rounds: int = 40,
    evaluations: int = 20,
    groups: Sequence[str] = ("north", "south"),
    teams: Sequence[str] = (),
    names: Sequence[str] | None = None,
    empty: Sequence[int] = (),
    regression: bool = False,
    same_data: bool = True,
    labels: Mapping[str, str] | None = None,
    draw: int = 0,
) -> Study:
    """A study in which some clients are harder than others.

    Args:
        methods: by name, (mean accuracy, share of the clients' differences that it takes away).
        samples: test samples of each client.
        evaluations: rounds of the history that were evaluated.
        empty: clients without test samples.
        labels: of methods, by name, where they differ from it; those of the study alone, as two
            runs of one method get them.
        draw: seed of what is drawn here.
    """
    rng = np.random.default_rng(draw)
    known = tuple(names or (f"client {i}" for i in range(clients)))
    hardness = np.linspace(-0.25, 0.15, clients)  # added to a client's chance of being served right
    sizes = np.full(clients, samples)
    sizes[list(empty)] = 0
    owner = np.repeat(np.arange(clients), sizes)
    group = np.arange(len(owner)) % max(1, len(groups))
    truth = rng.integers(0, 2, len(owner))
    team = [teams[i % len(teams)] if teams else "" for i in range(clients)]
    chosen = [Method(name, (labels or {}).get(name, name)) for name in methods]
    spec = Spec(
        name="made up",
        rounds=rounds,
        loss="mse" if regression else "cross_entropy",
        methods=tuple(Method(name, name) for name in methods),
    )
    trials = {}
    for method in chosen:
        level, evens = methods[method.name]
        for seed in range(seeds):
            chance = np.clip(level + (1 - evens) * hardness + rng.normal(0, 0.01), 0.02, 0.98)
            right = rng.random(len(owner)) < chance[owner] - 0.06 * group
            values = rng.exponential(1 - chance[owner]) if regression else right.astype(np.float64)
            predicted = np.where(right, truth, 1 - truth)
            counts = (
                None
                if regression
                else Counts.of(
                    owner, group, truth, predicted, known, tuple(groups) or ("",), ("no", "yes")
                )
            )
            scores = _scores(values, owner, group, known, team, groups, regression)
            history = _history(scores, clients, rounds, evaluations, regression, rng)
            at = np.unique(np.linspace(1, rounds, evaluations).round().astype(np.int64))
            weights = np.exp(-4 * evens * hardness * at[:, None] / rounds)
            trials[method.label, seed] = Trial(
                method,
                seed,
                Path("runs/made-up") / f"seed-{seed}" / method.label,
                scores,
                history,
                counts=counts,
                values=values,
                sample_client=owner,
                sample_group=group if groups else None,
                outcomes={}
                if regression
                else {"label": truth, "prediction": predicted, "score": 0.2 + 0.6 * predicted},
                weight_rounds=at,
                weights=weights / weights.sum(1, keepdims=True),
            )
    about = [
        {
            "seed": seed,
            "data": "0f" * 32,
            "machine": "Linux",
            "device": "cpu",
            "versions": VERSIONS,
            "spec": "ab" * 32,
        }
        for seed in range(seeds)
    ]
    specs = tuple(replace(spec, seed=seed) for seed in range(seeds))
    measure = measure_of(spec.loss, 10.0, tested=True)
    paths = tuple(Path("runs/made-up") / f"seed-{seed}" for seed in range(seeds))
    return Study("made up", measure, trials, specs, tuple(about), paths, same_data)


def study_of(
    predictions: Mapping[str, Sequence[Any]],
    label: Any,
    client: Any,
    group: Any = None,
    groups: Sequence[str] = (),
    labels: Sequence[str] = ("no", "yes"),
    history: Mapping[str, Mapping[str, Any]] | None = None,
    guess: tuple[float, float] | None = None,
    score: Any = None,
) -> Study:
    """A study of one seed or several with exactly these outcomes.

    Args:
        predictions: by method, one array for each seed.
        label, client, group: (N,) codes.
        history: columns of a method's history, by method.
    """
    label, client = np.asarray(label), np.asarray(client)
    names = tuple(f"client {i}" for i in range(int(client.max()) + 1))
    part = np.zeros(len(label), np.int64) if group is None else np.asarray(group)
    trials = {}
    for name, by_seed in predictions.items():
        for seed, found in enumerate(by_seed):
            predicted = np.asarray(found)
            right = (predicted == label).astype(np.float64)
            trials[name, seed] = Trial(
                Method(name, name),
                seed,
                Path("runs/exact") / name,
                _scores(right, client, part, names, [""] * len(names), groups, False),
                dict((history or {}).get(name, {})),
                counts=Counts.of(
                    client, part, label, predicted, names, tuple(groups) or ("",), tuple(labels)
                ),
                values=right,
                sample_client=client,
                sample_group=part,
                outcomes={
                    "label": label,
                    "prediction": predicted,
                    "score": predicted.astype(np.float64) if score is None else score[name],
                    "loss": 1.2 * (1 - right),
                },
                guess=guess,
            )
    seeds = max(map(len, predictions.values()))
    methods = tuple(Method(name, name) for name in predictions)
    specs = tuple(
        Spec(name="exact", rounds=90, seed=seed, methods=methods) for seed in range(seeds)
    )
    measure = measure_of("cross_entropy", 1.0, tested=True)
    inner = [Path("runs/exact") / f"seed-{s}" for s in range(seeds)]
    paths = tuple(inner) if seeds > 1 else (Path("runs/exact"),)
    return Study("exact", measure, trials, specs, ({"data": ""},) * seeds, paths, True)


def _scores(
    values: Any,
    owner: Any,
    group: Any,
    names: Sequence[str],
    team: Sequence[str],
    groups: Sequence[str],
    regression: bool,
) -> Any:
    """Rows of clients and groups; NaN without samples."""
    kinds = [("client", owner, names), *([("group", group, groups)] if groups else [])]
    count = np.concatenate([np.bincount(code, minlength=len(found)) for _, code, found in kinds])
    total = np.concatenate(
        [np.bincount(code, values, minlength=len(found)) for _, code, found in kinds]
    )
    merit = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return {
        "by": [by for by, _, found in kinds for _ in found],
        "name": [name for _, _, found in kinds for name in found],
        "team": [*team, *("" for _ in groups)],
        "train_count": 4 * count,
        "count": count,
        "accuracy": np.full(len(count), np.nan) if regression else merit,
        "loss": merit if regression else 1.2 * (1 - merit),
    }


def _history(
    scores: dict[str, Any],
    clients: int,
    rounds: int,
    evaluations: int,
    regression: bool,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Numbers that come near those at the end, at every so many rounds."""
    every = np.arange(1, rounds + 1)
    evaluated = np.isin(every, np.linspace(1, rounds, evaluations).round())
    path = 1 - np.exp(-6 * every / rounds) + rng.normal(0, 0.004, rounds)
    at_end = {"loss": float(np.nanmean(scores["loss"][:clients]))}
    if not regression:
        at_end |= summary(scores["accuracy"][:clients])
    columns = {
        name: np.where(evaluated, value * (path if name != "loss" else 2 - path), np.nan)
        for name, value in at_end.items()
    }
    return {"round": every, "lr": np.full(rounds, 0.1), **columns}
