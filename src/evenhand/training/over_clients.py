"""Numbers over clients, from what they reply to an evaluation."""

from __future__ import annotations

import numpy as np
import torch

from evenhand.messages import Replies
from evenhand.metrics import spread
from evenhand.metrics.client_sums import CLIENT_METRIC, NAMES, from_client_sums
from evenhand.metrics.measuring import metric_keys, ratios
from evenhand.metrics.metric import WORST
from evenhand.metrics.round_gaps import round_gaps
from evenhand.metrics.scores import summaries
from evenhand.metrics.tallies import Tally, accuracy_of
from evenhand.training.outcome import Floats
from evenhand.tree import Tree


def gaps(replies: Replies) -> dict[str, float]:
    """Return the gaps between groups that are known."""
    found = round_gaps(replies)
    return {name: float(gap) for name, gap in found.items() if not np.isnan(gap)}


def split_off(tally: Tally) -> dict[str, float]:
    """Take the sums over clients out of a tally, and return the metrics computed from them."""
    names = [name for name in tally if name in NAMES or name.startswith(CLIENT_METRIC)]
    sums = {name: torch.as_tensor(tally.pop(name)[0]) for name in names}
    found = {"clients": float(sums["clients"]), **from_client_sums(sums)} if sums else {}
    return {name: value for name, value in found.items() if name != "loss"}


def over_clients(each: Tree) -> dict[str, Floats]:
    """Return the loss, each metric's mean over clients and over the worst 10 % of them and, where
    there is one, accuracy over clients and of the worst group.

    ``each`` has the clients' tallies (..., K, A); the metrics are (...), one per run.
    """
    plain = ("count", "loss", "correct", "share_correct")
    sums = {key: each[key].sum(-1).cpu().numpy() for key in plain if key in each}
    found: dict[str, Floats] = {"loss": (sums["loss"] / sums["count"]).mean(-1)}
    for name, (key, better) in metric_keys(each).items():
        values = ratios(each[key].sum(-3).cpu().numpy())  # (..., K)
        found[name] = spread.mean(values)
        found[name + WORST] = spread.worst(values) if better == "higher" else spread.best(values)
    right_of = accuracy_of(each)
    if not right_of:
        return found
    found |= summaries(sums[right_of] / sums["count"])
    right, count = (each[key].sum(-2).cpu().numpy() for key in (right_of, "count"))  # (..., A)
    if count.shape[-1] > 1:
        served = np.divide(right, count, out=np.ones(count.shape), where=count > 0)
        found["worst_group"] = served.min(-1)
    return found
