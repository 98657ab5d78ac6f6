"""Thresholds by group, found after training on the scores of validation data.

A model gives a score, the probability of the positive label. Instead of accepting scores from 0.5
on, each group gets its own threshold, or two between which chance decides, so that rates of the
groups are alike. Score histograms are enough to find them, and histograms add over clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import RunError, require, require_choice
from evenhand.metrics.calibration import BINS, EDGES
from evenhand.metrics.cut_rules import client_rules, group_rules, notion_of, objective_of
from evenhand.metrics.cuts import Floats, Rule, chances
from evenhand.metrics.threshold_effect import Row, effect_rows, local_rows
from evenhand.metrics.threshold_words import sentences, table_lines, thresholds_of

if TYPE_CHECKING:
    import pandas as pd

Steps = tuple[tuple[float, float], ...]  # (probability, threshold); 0: everybody, inf: nobody

FORMAT = 1
BY = ("group", "client")
ON = ("validation", "test")
LEAST = 10  # samples for a rate with which a client gets thresholds of its own
WAY_OUT = (
    'keep some for validation, with split={"val": 0.1, "test": 0.2} or --split val=0.1,test=0.2,'
    ' or pass on="test" (--on test), which makes the numbers optimistic'
)
OPTIMISTIC = (
    "the thresholds were found on the same test data that they are judged on, so the numbers are"
    " optimistic"
)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds for each group, and what they change on test data.

    Attributes:
        notion: what is alike over groups, such as "equalised odds".
        bound: how far rates of groups may be apart on the data the thresholds were found on.
        objective: what is as large as possible within the bound.
        by: "group", or "client" if clients have thresholds of their own.
        common: whether all groups have the same threshold.
        on: the data that the thresholds were found on, "validation" or "test".
        groups: names of the groups.
        clients: names of the clients; () if thresholds do not depend on them.
        rules: for each group (probability, threshold) pairs. A score is accepted from the threshold
            on; 0 accepts everybody, infinity nobody.
        own: the rules of clients that have their own, by the client's name.
        gap: the gap on the data that the thresholds were found on.
        reached: whether this gap is within the bound.
        notes: what to know about groups and clients with few data.
    """

    notion: str
    bound: float
    objective: str
    by: str
    common: bool
    on: str
    groups: tuple[str, ...]
    clients: tuple[str, ...]
    rules: tuple[Steps, ...]
    own: Mapping[str, tuple[Steps, ...]]
    gap: float
    reached: bool
    notes: tuple[str, ...] = ()
    positive: str = "1"  # the name of the positive label
    judged_on: str = "test"  # the data of the effect, "test" or "training"
    effect_rows: tuple[Row, ...] = field(default=(), repr=False)

    @cached_property
    def effect(self) -> pd.DataFrame:
        """Rates, gaps and accuracy before (threshold 0.5) and after, with 95 % intervals."""
        import pandas as pd

        return pd.DataFrame(list(self.effect_rows))

    def table(self) -> pd.DataFrame:
        """One row per threshold: client ("" for all), group, probability, threshold."""
        import pandas as pd

        rules = [("", self.rules), *self.own.items()]
        return pd.DataFrame(
            [
                {"client": client, "group": group, "probability": chance, "threshold": threshold}
                for client, of_groups in rules
                for group, steps in zip(self.groups, of_groups, strict=True)
                for chance, threshold in steps
            ]
        )

    def probabilities(
        self, scores: ArrayLike, group: ArrayLike | None = None, client: ArrayLike | None = None
    ) -> Floats:
        """(N,) the chance of a positive decision for each sample.

        Args:
            scores: (N,) probabilities of the positive label. A NaN is never accepted.
            group: (N,) names or codes of groups; not needed with a common threshold.
            client: (N,) names or codes of clients, if thresholds depend on them. Clients without
                thresholds of their own get those of everybody.
        """
        given = np.atleast_1d(np.asarray(scores, np.float64))
        require(
            not np.any((given < 0) | (given > 1)),
            "scores must be probabilities between 0 and 1; apply a sigmoid to logits first",
        )
        if group is None:
            require(
                self.common or len(self.groups) == 1,
                "these thresholds differ by group: pass group, names or codes of {}",
                ", ".join(self.groups),
            )
            group = np.zeros(len(given), np.int64)
        codes = _codes("group", group, self.groups, len(given))
        found = np.zeros(len(given))
        if client is None:
            require(not self.own, "these thresholds differ by client: pass client")
            owners = np.full(len(given), -1)
        else:
            owners = _codes("client", client, self.clients, len(given), self.by == "client")
        for owner in np.unique(owners).tolist():
            name = self.clients[owner] if owner >= 0 else ""
            for code, steps in enumerate(self.own.get(name, self.rules)):
                member = (codes == code) & (owners == owner)
                for chance, threshold in steps:
                    found[member] += chance * (given[member] >= threshold)
        return np.minimum(found, 1.0)

    def predict(
        self,
        scores: ArrayLike,
        group: ArrayLike | None = None,
        client: ArrayLike | None = None,
        seed: int | None = None,
    ) -> NDArray[np.int64]:
        """(N,) decisions, 0 or 1, drawn where the rule is randomised; the same for the same seed.

        See :meth:`probabilities` for the arguments.
        """
        chance = self.probabilities(scores, group, client)
        return (np.random.default_rng(seed).random(len(chance)) < chance).astype(np.int64)

    def __str__(self) -> str:
        lines = [" ".join(sentences(self)), "", *table_lines(self)]
        return "\n".join([*lines, *([""] if self.notes else []), *map(_sentence, self.notes)])

    def to_json(self) -> str:
        """Return the thresholds as JSON text."""
        content = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "rules": [_written(steps) for steps in self.rules],
            "own": {name: [_written(one) for one in rules] for name, rules in self.own.items()},
            "effect": [
                {k: None if v != v else v for k, v in row.items()} for row in self.effect_rows
            ],
        }
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Thresholds:
        """Read what :meth:`to_json` returned."""
        try:
            found = json.loads(text)
            if found["format"] > FORMAT:
                raise RunError("these thresholds were written by a later version; update evenhand")
            plain = {
                name: tuple(found[name]) if isinstance(found[name], list) else found[name]
                for name in _PLAIN
            }
            return cls(
                **plain,
                rules=tuple(_read(steps) for steps in found["rules"]),
                own={name: tuple(map(_read, rules)) for name, rules in found["own"].items()},
                effect_rows=tuple(
                    {k: math.nan if v is None else v for k, v in row.items()}
                    for row in found["effect"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"not the JSON of thresholds ({error})") from error


_PLAIN = (
    *("notion", "bound", "objective", "by", "common", "on", "groups", "clients", "gap"),
    *("reached", "notes", "positive", "judged_on"),
)


def find_thresholds(
    chosen_on: NDArray[np.generic],
    test: NDArray[np.generic],
    groups: Sequence[str],
    clients: Sequence[str] = (),
    *,
    notion: str = "equalised odds",
    bound: float = 0.0,
    by: str = "group",
    common: bool = False,
    on: str = "validation",
    objective: str = "accuracy",
    positive: str = "1",
    judged_on: str = "test",
) -> Thresholds:
    """Find thresholds on one set of histograms (n, A, 2, BINS) and judge them on another."""
    notion, objective = notion_of(notion), objective_of(objective)
    require_choice("by", by, BY)
    require_choice("on", on, ON)
    known = [np.asarray(one) for one in (chosen_on, test)]
    for one in known:
        shape = (len(groups), 2, BINS)
        require(one.shape[1:] == shape, "histograms must be (n, *{}), got {}", shape, one.shape)
    total = group_rules(known[0].sum(0), groups, notion, bound, objective, common)
    notes, own, chance = list(total.notes), {}, np.stack([chances(one) for one in total.rules])
    if by == "client":
        require(
            all(len(one) == len(clients) for one in known),
            'by="client" needs histograms of single clients, but only their sums are known; use'
            ' by="group"',
        )
        own, more = client_rules(known[0], clients, groups, notion, bound, objective, common, LEAST)
        own = {
            client: [rule or other for rule, other in zip(rules, total.rules, strict=True)]
            for client, rules in own.items()
        }
        notes += more
        chance = np.stack(
            [[chances(rule) for rule in own.get(c, total.rules)] for c in range(len(clients))]
        )
    if on == "test":
        notes.append(OPTIMISTIC)
    empty = [group for group, size in zip(groups, known[1].sum((0, 2, 3)), strict=True) if not size]
    notes += [f"group {group} has no {judged_on} samples to judge the effect on" for group in empty]
    rows = effect_rows(known[1], chance, groups)
    if by == "client":
        rows += local_rows(known[1], chance, clients, notion)
    return Thresholds(
        notion,
        float(bound),
        objective,
        by,
        bool(common),
        on,
        tuple(groups),
        tuple(clients) if by == "client" else (),
        tuple(_steps(rule) for rule in total.rules),
        {clients[client]: tuple(map(_steps, rules)) for client, rules in own.items()},
        total.gap,
        total.reached,
        tuple(notes),
        positive,
        judged_on,
        tuple(rows),
    )


def from_tallies(
    tally: Mapping[str, Any],
    validation: Mapping[str, Any] | None,
    scores: Mapping[str, Any],
    labels: Sequence[str] = ("0", "1"),
    *,
    on: str = "validation",
    **options: Any,
) -> Thresholds:
    """Find thresholds with the tallies of a run, or say why there can be none.

    ``scores`` are the columns of scores.csv, which have the names of groups and clients.
    """
    require_choice("on", on, ON)
    require("scored" in tally, "thresholds need a classifier; this run is a regression")
    classes = tally["confusion"].shape[2] if "confusion" in tally else None
    require(
        classes == 2,
        "thresholds need two classes; this run has {}",
        "very many" if classes is None else classes,
    )
    names = {
        by: [name for name, kind in zip(scores["name"], scores["by"], strict=True) if kind == by]
        for by in ("group", "client")
    }
    require(
        len(names["group"]) > 0,
        "thresholds by group need groups, and the data have none; name the column with --group",
    )
    chosen_on = tally if on == "test" else validation
    if not chosen_on or not chosen_on["count"].sum():
        raise RunError(f"there are no validation data to find thresholds on: {WAY_OUT}")
    return find_thresholds(
        chosen_on["scored"],
        tally["scored"],
        names["group"],
        names["client"],
        on=on,
        positive=labels[1],
        **options,
    )


def _steps(rule: Rule) -> Steps:
    ends = (0.0, *EDGES, math.inf)
    return tuple((chance, ends[cut]) for chance, cut in rule)


def _written(steps: Steps) -> list[list[Any]]:
    return [[chance, thresholds_of(threshold, None)] for chance, threshold in steps]


def _read(steps: Sequence[Sequence[Any]]) -> Steps:
    names = {"everybody": 0.0, "nobody": math.inf}
    return tuple(
        (float(chance), float(names.get(threshold, threshold))) for chance, threshold in steps
    )


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _codes(
    what: str, given: ArrayLike, names: Sequence[str], length: int, needed: bool = True
) -> NDArray[np.int64]:
    """(N,) the code of each name or code."""
    values = np.atleast_1d(np.asarray(given))
    require(
        values.shape == (length,),
        "{} must have one entry for each of {} scores, got {}",
        what,
        length,
        values.shape,
    )
    if not needed:
        return np.full(length, -1)
    if values.dtype.kind in "iu":
        require(
            length == 0 or (values.min() >= 0 and values.max() < len(names)),
            "{} codes must be from 0 to {}",
            what,
            len(names) - 1,
        )
        return values.astype(np.int64)
    place = {name: code for code, name in enumerate(names)}
    wrong = sorted({str(one) for one in values.tolist()} - place.keys())
    require(not wrong, "unknown {} {}; there are {}", what, ", ".join(wrong), ", ".join(names))
    return np.array([place[str(one)] for one in values.tolist()], np.int64)
