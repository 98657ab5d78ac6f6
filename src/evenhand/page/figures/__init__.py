"""The figures of a study, each a plotly Figure: in a notebook,
``eh.figures.sorted_clients(eh.load("runs/digits")).show()``.

Every method looks the same in all of them; what belongs to a method says so in its ``meta``, which
is what the page goes by when methods are hidden. The page draws them with its own script, which
knows scatter, bar and heatmap on linear axes: what else a figure needs, ``draw.js`` must learn.
"""

from __future__ import annotations

from evenhand.page.figures.clients import distribution, gains, sorted_clients
from evenhand.page.figures.groups import gaps, members
from evenhand.page.figures.methods import front, overview, verdicts
from evenhand.page.figures.rounds import client_weights, group_weights, learning_curves
from evenhand.page.figures.sweeps import sensitivity

__all__ = [
    "client_weights",
    "distribution",
    "front",
    "gains",
    "gaps",
    "group_weights",
    "learning_curves",
    "members",
    "overview",
    "sensitivity",
    "sorted_clients",
    "verdicts",
]
