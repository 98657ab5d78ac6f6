"""The figures of a study, each a plotly Figure: in a notebook,
``eh.figures.sorted_clients(eh.load("runs/digits")).show()``.

Every method looks the same in all figures; traces name their method in ``meta``, which the page
uses to hide methods. The page draws figures with its own script, ``draw.js``, which supports only
scatter, bar and heatmap on linear axes.
"""

from __future__ import annotations

from evenhand.page.figures.clients import distribution, gains, sorted_clients
from evenhand.page.figures.groups import gaps, local_gaps, members
from evenhand.page.figures.methods import front, gap_front, overview, verdicts
from evenhand.page.figures.privacy import privacy_costs
from evenhand.page.figures.rounds import client_weights, gap_curves, group_weights, learning_curves
from evenhand.page.figures.sweeps import sensitivity

__all__ = [
    "client_weights",
    "distribution",
    "front",
    "gains",
    "gap_curves",
    "gap_front",
    "gaps",
    "group_weights",
    "learning_curves",
    "local_gaps",
    "members",
    "overview",
    "privacy_costs",
    "sensitivity",
    "sorted_clients",
    "verdicts",
]
