"""The figures of a study, each a plotly Figure: in a notebook,
``eh.figures.sorted_clients(eh.load("runs/digits")).show()``.

Every method looks the same in all of them; what belongs to a method says so in its ``meta``, which
is what the page goes by when methods are hidden.
"""

from __future__ import annotations

from evenhand.page.figures.clients import distribution, sorted_clients
from evenhand.page.figures.groups import gaps, members
from evenhand.page.figures.methods import front, verdicts
from evenhand.page.figures.rounds import client_weights, learning_curves

__all__ = [
    "client_weights",
    "distribution",
    "front",
    "gaps",
    "learning_curves",
    "members",
    "sorted_clients",
    "verdicts",
]
