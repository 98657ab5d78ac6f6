"""The effective weights of clients at the end of training."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from evenhand.theory.aggregates import Aggregate


class Certificate(NamedTuple):
    """The effective weight of each client at the end of training, and how far from optimal it is.

    Attributes:
        value: the objective at the clients' losses.
        weights: (n,) derivative of the objective by each client's loss; need not sum to one.
        gap: the part of the objective these weights do not explain (the duality gap), >= 0.
    """

    value: Tensor
    weights: Tensor
    gap: Tensor

    @classmethod
    def of(cls, aggregate: Aggregate, losses: Tensor, base: Tensor) -> Certificate:
        """Return the certificate of a method whose weights are the gradient of its objective."""
        weights = aggregate.weights(losses, base)
        return cls(aggregate.value(losses, base), weights, aggregate.gap(losses, base, weights))
