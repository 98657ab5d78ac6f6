"""What a private method takes for public, which inner methods it refuses, and what it caps."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import MOMENTS, Algorithm, Memory, visible
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number
from evenhand.model import Model
from evenhand.privacy.accounting import EVERYONE, Scheme
from evenhand.privacy.bounds import Limits
from evenhand.tree import Tree


def refuse(inner: Algorithm, census: Census, limits: Limits) -> None:
    """Raise unless a method can be private."""
    name = type(inner).__name__
    seen = ", ".join(visible(inner, census)).removeprefix("its ")
    require(not seen, "{} cannot be private: its server sees each client's {}", name, seen)
    require(
        inner.weighting() is None,
        "{} cannot be private: what it learns about some clients sets the weights of others",
        name,
    )
    found = inner.contribution(limits)
    require(
        found is not None,
        "{} cannot be private: it does not say how large one client's part of its sums can be"
        " (Algorithm.contribution)",
        name,
    )
    assert found is not None
    asks = any(inner.question(moment) is not None for moment in MOMENTS)
    require(
        not asks or found.unasked,
        "{} cannot be private with these settings: it asks clients a question, whose answers would"
        " be exact",
        name,
    )


def public(census: Census, group_shares: Sequence[float] | None) -> Census:
    """Return what is public about the clients: their number, teams and names, and the shares of
    groups that the user states; equal ones by default."""
    counts = census.group_counts
    if counts is not None:
        groups = counts.shape[1]
        shares = group_shares or (1 / groups,) * groups
        require(
            len(shares) == groups,
            "group_shares needs a share for each of {} groups, got {}",
            groups,
            len(shares),
        )
        counts = torch.tensor(shares, dtype=torch.float64).expand(census.clients, groups)
    return census._replace(
        sizes=torch.ones_like(census.sizes),
        weight=torch.full_like(census.weight, 1 / census.clients),
        group_counts=counts,
        group_share=None,
    )


def assumptions(scheme: Scheme, noise_by: str) -> tuple[str, ...]:
    """Return what must hold for epsilon to be true, in words."""
    hidden = (
        "nobody learns who took part in a round; logs of the server that name clients stay with it"
    )
    by = {
        "server": "the server is trusted with the sums, to which it adds the noise",
        "clients": "at least as many clients as the threshold answer and add their part of the"
        " noise, and at most `colluding` of them tell theirs",
    }
    kept = ("the secret is kept: whoever has it can remove the noise",)
    return (
        scheme.in_words,
        *(() if scheme.kind == EVERYONE or not scheme.secret else (hidden,)),
        by[noise_by],
        "the number of clients, their teams and the initial model are public",
        "settings were not chosen by results on these clients' data; each run that was compared,"
        " and each that is published, adds its own epsilon",
        "whether a client answers in time does not depend on its data",
        *(kept if noise_by == "server" else ()),
    )


def checked_shares(given: object) -> tuple[float, ...]:
    """Return the shares of groups; raise unless they are positive and sum to one."""
    require(
        isinstance(given, Sequence) and not isinstance(given, str),
        "group_shares must be a list of shares, such as [0.7, 0.3], got {!r}",
        given,
    )
    assert isinstance(given, Sequence)
    for share in given:
        require_number("each of group_shares", share, "(0, 1]")
    total = float(sum(given))
    require(abs(total - 1) < 1e-6, "group_shares must sum to 1, got {:g}", total)
    return tuple(float(share) for share in given)


def capped(model: Model, cap: float | None) -> Model:
    """Return the model with losses of at most ``cap``, for replies; training uses the true ones."""
    if cap is None:
        return model

    def losses(params: Tree, batch: Batch) -> Tensor:
        return model.losses(params, batch).clamp(-cap, cap)

    twin = copy.copy(model)
    twin.losses = losses  # type: ignore[method-assign]
    return twin


def finite_or(kept: Memory, before: Memory) -> Memory:
    """Return what a client remembers: what it knew before, if the new values are not finite."""
    leaves = tree.leaves(kept)
    if not leaves:
        return kept
    fine = torch.stack([leaf.isfinite().all() for leaf in leaves]).all()
    return tree.where(fine, kept, before)
