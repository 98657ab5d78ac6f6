"""mFairFL: equal losses of groups, without conflicts among clients."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from evenhand.algorithm import Algorithm, State
from evenhand.algorithms.cells import group_count
from evenhand.algorithms.fedfv import FedFV
from evenhand.algorithms.groupconstraint import GroupConstraint
from evenhand.algorithms.wrapper import Forwarding
from evenhand.data.population import Census
from evenhand.tree import Tree

Method = TypeVar("Method", bound=Algorithm)
PARITY = GroupConstraint(notion="loss_parity", inner=FedFV())


@dataclass(frozen=True)
class MFairFL(Forwarding):
    """Bound the gap between the losses of groups, and remove conflicts among clients' updates.

        client:  min mean of (1 + price_a(z)) loss(z)    GroupConstraint with "loss_parity"
        server:  the mean update without conflicts        FedFV
                                                                (Su et al., AAAI 2024)

    Group fairness comes from the prices: samples of a group whose mean loss is too high count for
    more, those of the others for less, by prices that rise while the gap exceeds its bound.
    Fairness among clients comes from the averaging: an update that points against another loses
    its component along that one, and clients with high losses go last. The server sees every
    participant's update and loss, and groups only in sums.

    The paper has no code; this is its description in terms of the two methods.

    Args:
        bound: the largest allowed gap between the mean losses of two groups; so large that no gap
            exceeds it gives FedFV.
        lr_dual: step of the prices' ascent; 0, with damping = 0, gives FedFV.
        damping: how much the current excess adds to a price; it stops prices from swinging.
        cap: the largest price.
        smallest: groups of fewer training samples are left out.
        smoothing: how much the sums of earlier rounds count, for small cohorts.
        alpha: share of participants with the largest losses whose updates stay unchanged; 1, with
            tau = 0, gives the constraint on the unweighted mean.
        tau: rounds for which updates of absent clients are remembered; 0 forgets them.
    """

    bound: float = 0.05
    lr_dual: float = 2.0
    damping: float = 2.0
    cap: float = 10.0
    smallest: int = 10
    smoothing: float = 0.0
    alpha: float = 0.1
    tau: int = 0

    def __post_init__(self) -> None:
        GroupConstraint(**self._constraint, inner=FedFV(self.alpha, self.tau))

    @property
    def _constraint(self) -> dict[str, Any]:
        names = ("bound", "lr_dual", "damping", "cap", "smallest", "smoothing")
        return {name: getattr(self, name) for name in names}

    @property
    def _method(self) -> GroupConstraint:
        # not checked again: numbers may be tensors by now, see Algorithm
        inner = altered(FedFV(), alpha=self.alpha, tau=self.tau)
        return altered(PARITY, **self._constraint, inner=inner)

    def init(self, params: Tree, census: Census) -> State:
        group_count("MFairFL", census)  # names the method in the error
        return super().init(params, census)


def altered(method: Method, **fields: Any) -> Method:
    """Return a method with other values of some fields, without its checks."""
    twin = copy.copy(method)
    vars(twin).update(fields)
    return twin
