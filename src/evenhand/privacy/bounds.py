"""How large one client's part of each sum can be, and how that becomes one vector of length 1.

A method says so in ``Algorithm.contribution``. ``Private`` divides every entry by its bound, scales
what belongs together down by one factor, and gives each block its share of the budget:

    u_i = ( sqrt(rho_1) clip_1(entries / bounds), sqrt(rho_2) clip_1(...), ... ),   sum rho = 1

so that |u_i| <= 1 whatever a client computes. A bound that is too small costs utility, never
privacy. Noise of standard deviation z on the sum of the u_i is noise z bound / sqrt(rho) on an
entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import require
from evenhand.privacy.noise import released
from evenhand.tree import Tree

# what a client leaves of its bound, for rounding: of its entries to float32, and of the sum to the
# grid of the noise
ROOM = 1e-6


@dataclass(frozen=True)
class Limits:
    """What is public about one client's contribution.

    Attributes:
        weight: the coefficient a_i, the same for all clients: one over the expected cohort.
        clip: the largest length of a client's step that counts in full.
        loss_cap: the largest loss, if the user gave one.
        local_steps: the number of local steps, if it is the same for all clients.
    """

    weight: Tensor | float
    clip: Tensor | float
    loss_cap: float | None = None
    local_steps: Tensor | float | None = None

    @property
    def loss(self) -> float:
        """The largest loss; raises if nobody set one."""
        require(
            self.loss_cap is not None,
            "clients send losses, and losses have no bound of their own; set loss_cap, such as 5.0",
        )
        assert self.loss_cap is not None
        return self.loss_cap

    @property
    def steps(self) -> Tensor | float:
        """The number of local steps; raises if it depends on a client's data."""
        require(
            self.local_steps is not None,
            "the bound of a client's part depends on its number of local steps; use"
            " LocalSGD(steps=...), the same for all clients",
        )
        assert self.local_steps is not None
        return self.local_steps


class Block(NamedTuple):
    """Entries of a total that are scaled down by one factor, such as a ratio's two parts.

    Attributes:
        bounds: the largest length of each entry over all its tensors, by name.
        share: the block's part of the budget; more is less noise on this block.
    """

    bounds: Mapping[str, Tensor | float]
    share: float = 1.0


def _as_it_is(total: Tree) -> Tree:
    return total


@dataclass(frozen=True)
class Contribution:
    """How large a client's part of each sum can be.

    Args:
        blocks: the entries that are sent; their shares sum to one.
        fixed: the other entries of the total, and the value that the server uses for their sum: a
            normaliser that is known beforehand, or a counter that nothing needs.
        mend: returns noisy sums as values that sums can have.
        unasked: the method also works if its question is never asked.
    """

    blocks: tuple[Block, ...]
    fixed: Mapping[str, float]
    mend: Callable[[Tree], Tree] = _as_it_is
    unasked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The entries that are sent."""
        return tuple(name for block in self.blocks for name in block.bounds)

    def clipped(self, total: Tree) -> tuple[Tree, Tensor]:
        """Return a client's total as a vector of length at most 1, and the length of its first
        block before it was clipped."""
        sent: Tree = {}
        lengths = []
        fine = torch.stack([_finite(total[name]) for name in self.names]).all()
        for block in self.blocks:
            entries = {name: _times(total[name], 1 / _known(b)) for name, b in block.bounds.items()}
            length = tree.sqnorm(tree.to(entries, torch.float64)).sqrt()
            lengths.append(length)
            factor = block.share**0.5 * (1 - ROOM) / length.clamp(min=1 - ROOM)
            for name, value in entries.items():
                sent[name] = _zero_unless(fine & length.isfinite(), _times(value, factor))
        return sent, lengths[0]

    def sums(self, sent: Tree) -> Tree:
        """Return the sums of totals, given the sums of what clients sent."""
        found: Tree = {
            name: _times(sent[name], bound / block.share**0.5)
            for block in self.blocks
            for name, bound in block.bounds.items()
        }
        like = tree.leaves(found)[0]
        known = {name: like.new_tensor(value) for name, value in self.fixed.items()}
        return self.mend({**found, **known})


def of_a_step(limits: Limits) -> Contribution:
    """Return the bound of what ``evenhand.algorithm.weighted`` returns: a step, and a normaliser
    that is one on average."""
    return Contribution((Block({"delta": limits.weight * limits.clip}),), {"weight": 1.0})


def with_noise(sums: Tree, std: float, secret: bytes, label: str) -> Tree:
    """Return sums with noise on every entry; another label gives other noise."""
    return tree.unflatten(
        {
            path: _noisy(leaf, std, secret, f"{label}: {path}")
            for path, leaf in tree.flatten(sums).items()
        }
    )


def _noisy(leaf: Tensor, std: float, secret: bytes, label: str) -> Tensor:
    values = leaf.detach().cpu().double().numpy()
    return torch.as_tensor(released(values, std, secret, label), device=leaf.device)


def at_least(name: str, low: float) -> Callable[[Tree], Tree]:
    """Return a function that keeps a noisy normaliser away from zero."""
    return lambda total: {**total, name: total[name].clamp(min=low)}


def _known(bound: Tensor | float) -> Tensor | float:
    # a stand-in for an empty cohort has weight 0; it sends zeros whatever the bound
    return bound.clamp(min=1e-30) if isinstance(bound, Tensor) else max(bound, 1e-30)


def _times(value: Tree | Tensor, factor: Tensor | float) -> Tree | Tensor:
    """Return the product in the value's own type; factors are more precise."""
    if isinstance(value, dict):
        return tree.map(lambda leaf: _product(leaf, factor), value)
    return _product(value, factor)


def _product(leaf: Tensor, factor: Tensor | float) -> Tensor:
    return (leaf.double() * factor).to(leaf.dtype)


def _finite(value: Tree | Tensor) -> Tensor:
    leaves = tree.leaves(value) if isinstance(value, dict) else [value]
    return torch.stack([leaf.isfinite().all() for leaf in leaves]).all()


def _zero_unless(fine: Tensor, value: Tree | Tensor) -> Tree | Tensor:
    if isinstance(value, dict):
        return tree.map(lambda leaf: torch.where(fine, leaf, 0), value)
    return torch.where(fine, value, 0)
