"""CoordinateMedian, TrimmedMean and GeometricMedian: centres instead of means, for any method
that takes mean steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Certificate, Info, Memory, State, as_rows, visible
from evenhand.algorithms.centres import coordinate_median, geometric_median, trimmed_mean
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number, require_whole
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

# sums of steps that a server divides by the sum "weight"; DRFA also sends its model at a moment
STEPS = ("delta", "snapshot")


class RobustCentre(Wrapper):
    """Lets clients send their steps one by one, and puts a centre of them where the inner method
    expects their mean.

    A client's share of the sums is v_i u_i and v_i; it sends the step u_i and the weight v_i. The
    inner method gets the sums V c and V, where c is the centre of the u_i with votes v_i, at most
    ``cap`` times their median, and V is the sum of the v_i.
    """

    cap: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("cap", self.cap, "[1, inf)", "1e9 keeps the inner method's weights")

    @abstractmethod
    def centre(self, steps: Tensor, votes: Tensor) -> Tensor:
        """Return (P,) the centre of ``steps`` (K, P) with weights ``votes`` (K,)."""

    def init(self, params: Tree, census: Census) -> State:
        require(
            "its update" not in visible(self.inner, census),
            "{} combines the clients' updates itself, so there is no mean step that {} could"
            " replace; use a method with sums, such as FedAvg, QFFL or FAFL",
            type(self.inner).__name__,
            type(self).__name__,
        )
        return self.inner.init(params, census)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        reply, memory = self.inner.reply(model, start, end, data, task, memory)
        sums = dict(reply.total)
        models = {name for name, value in sums.items() if isinstance(value, dict)}
        require(
            "weight" in sums and "delta" in models and models <= set(STEPS),
            "{} does not take the mean of the clients' steps, so there is nothing that {} could"
            " replace; use another inner method",
            type(self.inner).__name__,
            type(self).__name__,
        )
        weight = sums.pop("weight")
        # a client without weight has no step
        factor = torch.where(weight > 0, 1 / torch.where(weight > 0, weight, 1.0), 0.0)
        steps = {name: tree.scale(sums.pop(name), factor) for name in STEPS if name in models}
        return Reply(sums, {**reply.each, **steps, "weight": weight}), memory

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        each = dict(replies.each)
        votes = each.pop("weight").double()
        sums = {name: self._summed(each.pop(name), votes) for name in STEPS if name in each}
        total = {**replies.total, **sums, "weight": votes.sum()}
        return self.inner.server(state, Replies(replies.ids, total, each))

    def _summed(self, steps: Tree, votes: Tensor) -> Tree:
        """Return the sum that has the centre of stacked steps as its mean."""
        rows = as_rows(steps)
        centre = self.centre(rows, self._capped(votes).to(rows.device))
        centre = centre * votes.sum().to(rows.device)
        leaves = tree.leaves(steps)
        sizes = [leaf.shape[1:].numel() for leaf in leaves]
        pieces = iter(torch.split(centre, sizes))
        return tree.map(lambda leaf: next(pieces).reshape(leaf.shape[1:]), steps)

    def _capped(self, votes: Tensor) -> Tensor:
        """Return votes of at most ``cap`` times the median of those that are not zero."""
        if not len(votes):
            return votes
        usual = torch.where(votes > 0, votes, torch.nan).nanquantile(0.5)
        return torch.minimum(votes, torch.nan_to_num(self.cap * usual))

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its weight in the mean", *visible(self.inner, census))

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return None  # the weights of the inner method's objective are not those of its steps

    def entries(self, asked: Asked) -> Entries:
        found = self.inner.entries(asked)
        share = asked.task.own["share"]
        return {
            name: _per_weight(entry, share) if name in STEPS else entry
            for name, entry in found.items()
        }


def _per_weight(entry: Entry, share: Tensor) -> Entry:
    """Return the declaration of a step that is divided by its weight, about ``share``."""
    if entry.per == "weight":
        return replace(entry, per=1.0)
    least = torch.where(share > 0, entry.least / torch.where(share > 0, share, 1.0), 0.0)

    def per(reply: Tree) -> Tensor:
        if isinstance(entry.per, str):
            whole = reply[entry.per]
        else:
            whole = entry.per(reply) if callable(entry.per) else torch.as_tensor(entry.per)
        weight = reply["weight"].double()
        return torch.where(weight > 0, whole / torch.where(weight > 0, weight, 1.0), 0.0)

    return replace(entry, per=per, least=least)


@dataclass(frozen=True)
class CoordinateMedian(RobustCentre):
    """Take the median of the clients' steps, parameter by parameter, instead of their mean.

        theta_j <- theta_j - median_i u_ij with weights v_i    (Yin et al., ICML 2018, Option I)

    u_i is a client's step and v_i its weight in the inner method's mean, at most ``cap`` times the
    median. As long as bad clients hold less than half of the weight, every parameter moves within
    the range of the others' steps. The paper weighs clients alike. The server sees every
    participant's update.

    Args:
        inner: the method whose mean step is replaced.
        cap: how many times the median weight a client's may count, so that none gains votes by
            what it reports; 1 lets no client count for more than the median, large values keep the
            inner method's weights.
    """

    inner: Algorithm = FedAvg()
    cap: float = 3.0

    def centre(self, steps: Tensor, votes: Tensor) -> Tensor:
        return coordinate_median(steps, votes)


@dataclass(frozen=True)
class TrimmedMean(RobustCentre):
    """Drop the lowest and the highest steps, parameter by parameter, before the mean is taken.

        theta_j <- theta_j - mean of u_ij without the share trim of the weight at either end
        (Yin et al., ICML 2018, Option II)

    As long as bad clients hold at most the share trim of the weight, every parameter moves within
    the range of the others' steps. The paper weighs clients alike. The server sees every
    participant's update.

    Args:
        inner: the method whose mean step is replaced.
        trim: share of the weight to drop at either end; 0 gives the mean, towards 1/2 it becomes
            the median.
        cap: how many times the median weight a client's may count, so that none gains votes by
            what it reports; 1 lets no client count for more than the median, large values keep the
            inner method's weights.
    """

    inner: Algorithm = FedAvg()
    trim: float = 0.1
    cap: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(
            "trim", self.trim, "[0, 0.49]", "it is dropped at both ends; for 0.5 use the median"
        )

    def centre(self, steps: Tensor, votes: Tensor) -> Tensor:
        return trimmed_mean(steps, votes, self.trim)


@dataclass(frozen=True)
class GeometricMedian(RobustCentre):
    """Take the point with the least sum of distances to the clients' steps instead of their mean.

        theta <- theta - argmin_z sum_i v_i |z - u_i|    (RFA: Pillutla, Kakade, Harchaoui, 2022)

    Bad clients need half of the weight to take the point arbitrarily far away; with less they can
    move it beyond the others' steps, but not far. Unlike medians of parameters, it does not depend
    on the choice of coordinates. The server sees every participant's update.

    It is found by the smoothed Weiszfeld iterations of RFA, which stop when the weighted directions
    to the steps cancel up to ``tolerance``. RFA does a few iterations under masked sums, at one
    exchange each; here the server has the steps, so it goes to the end. A hundred iterations bring
    the sum of distances within 1e-4 of the least one, usually within 1e-9.

    Args:
        inner: the method whose mean step is replaced.
        smoothing: a distance below this, relative to the median distance of the steps, counts as
            its square.
        tolerance: length of the sum of weighted directions, relative to the sum of weights, at
            which the iterations stop.
        iterations: at most so many.
        cap: how many times the median weight a client's may count, so that none gains votes by
            what it reports; 1 lets no client count for more than the median, large values keep the
            inner method's weights.
    """

    inner: Algorithm = FedAvg()
    smoothing: float = 1e-6
    tolerance: float = 1e-6
    iterations: int = 100
    cap: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("smoothing", self.smoothing, "(0, 1]", "1e-6 is RFA's")
        require_number("tolerance", self.tolerance, "(0, 1]", "1e-6 is usual")
        require_whole("iterations", self.iterations, 1)

    def centre(self, steps: Tensor, votes: Tensor) -> Tensor:
        return geometric_median(steps, votes, self.smoothing, self.tolerance, self.iterations)
