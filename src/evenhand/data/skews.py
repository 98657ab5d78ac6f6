"""Random partitions: skewed classes and groups, and unequal client sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np
import torch

from evenhand.data.cells import (
    Floats,
    classes_of,
    count_of,
    deal_counts,
    generator,
    groups_of,
    hand_out,
    log_gamma,
    one_cell,
    rounded,
    shuffled,
)
from evenhand.data.pool import Deal, Rows
from evenhand.errors import require, require_number, require_whole

SHORT = "{} clients with at least {} samples need {}, but there are only {}; lower clients or least"


def dirichlet(
    pool: Rows, *, seed: int, clients: int, alpha: float = 0.5, least: int = 1, redraws: int = 100
) -> Deal:
    """Label skew: distribute each class over the clients by one Dirichlet(alpha, ..., alpha) draw.

    Args:
        alpha: with small values, few clients hold most of a class; large values approach equal
            shares, and inf gives them exactly.
        least: repeat the draw until every client has this many samples, not counting an official
            test set.
        redraws: the maximum number of repeats.
    """
    return _tilted(pool, seed, clients, {"label": alpha}, least, redraws)


def dirichlet_groups(
    pool: Rows, *, seed: int, clients: int, alpha: float = 0.5, least: int = 1, redraws: int = 100
) -> Deal:
    """Group skew: like ``dirichlet``, with demographic groups in place of classes."""
    return _tilted(pool, seed, clients, {"group": alpha}, least, redraws)


def skew(
    pool: Rows,
    *,
    seed: int,
    clients: int,
    labels: float = 0.5,
    groups: float = 0.5,
    sizes: float = inf,
    least: int = 1,
    redraws: int = 100,
) -> Deal:
    """Skew labels, groups and sizes at once.

    Client k gets this share of the samples with label c and group a:

        S(k) U_c(k) V_a(k) / sum_j S(j) U_c(j) V_a(j)

    S, every U_c and every V_a are Dirichlet draws over the clients, with concentrations ``sizes``,
    ``labels`` and ``groups``. A concentration of inf means no skew of that kind: ``groups=inf``
    gives ``dirichlet``, ``labels=inf`` gives ``dirichlet_groups``.
    """
    return _tilted(
        pool, seed, clients, {"label": labels, "group": groups, "size": sizes}, least, redraws
    )


def power_law(
    pool: Rows, *, seed: int, clients: int, exponent: float = 1.0, least: int = 1
) -> Deal:
    """Sizes by a power law, samples at random: the r-th largest client's share is ~ r^-exponent.

    Args:
        exponent: 0 gives equal sizes.
        least: every client gets this many samples first; the power law distributes the rest.
    """
    require_number("exponent", exponent, "[0, inf)", "0 gives equal sizes")
    rank = 1 + generator(seed, 1).permutation(count_of(clients, pool))
    return _by_size(pool, seed, np.power(1.0 * rank, -exponent), least)


def log_normal(pool: Rows, *, seed: int, clients: int, sigma: float = 1.0, least: int = 1) -> Deal:
    """Log-normal sizes, samples at random: client k's share is ~ exp(sigma z_k), z_k standard
    normal.

    The mean of the logarithm has no effect, because all samples are distributed. q-FFL's synthetic
    data have sigma = 2 and least = 50.

    Args:
        sigma: 0 gives equal sizes.
        least: every client gets this many samples first; the rest follows the law.
    """
    require_number("sigma", sigma, "[0, inf)", "0 gives equal sizes")
    return _by_size(
        pool,
        seed,
        np.exp(sigma * generator(seed, 1).standard_normal(count_of(clients, pool))),
        least,
    )


def _tilted(
    pool: Rows, seed: int, clients: int, alphas: Mapping[str, float], least: int, redraws: int
) -> Deal:
    """Distribute each cell by products of Dirichlet draws; repeat until every client has
    ``least``."""
    count_of(clients, pool)
    for name, alpha in alphas.items():
        require_number(
            "alpha" if len(alphas) == 1 else f"{name}s", alpha, "(0, inf]", "inf is no skew"
        )
    require_whole("least", least, 0)
    require_whole("redraws", redraws, 0)
    training = np.ones(len(pool), dtype=bool) if pool.held_out is None else ~pool.held_out.numpy()
    require(
        clients * least <= training.sum(), SHORT, clients, least, clients * least, training.sum()
    )
    label, label_names = classes_of(pool) if "label" in alphas else (one_cell(pool), ("",))
    group, group_names = groups_of(pool) if "group" in alphas else (one_cell(pool), ("",))
    rng, cell = generator(seed, 1), label * len(group_names) + group
    sizes = np.bincount(cell, minlength=len(label_names) * len(group_names))
    order = shuffled(pool, cell, generator(seed))
    best = -1
    for _ in range(1 + redraws):
        tilt = log_gamma(rng, alphas.get("label", inf), (clients, len(label_names)))[:, :, None]
        tilt = (
            tilt + log_gamma(rng, alphas.get("group", inf), (clients, len(group_names)))[:, None, :]
        )
        tilt = (tilt + log_gamma(rng, alphas.get("size", inf), (clients, 1))[:, :, None]).reshape(
            clients, -1
        )
        share = np.exp(tilt - tilt.max(0))
        counts = rounded(share / share.sum(0), sizes, rng)
        smallest = int(counts.sum(1).min())
        if smallest >= least:
            owner = hand_out(order, counts)
            smallest = int(np.bincount(owner[training], minlength=clients).min())
            if smallest >= least:
                return Deal(torch.from_numpy(owner))
        best = max(best, smallest)
    raise ValueError(
        f"none of {1 + redraws} draws gave every one of {clients} clients at least {least} samples"
        f" (the best gave {best}); lower least or clients, or raise redraws or the concentration"
    )


def _by_size(pool: Rows, seed: int, weight: Floats, least: int) -> Deal:
    """Distribute samples at random: ``least`` each, the rest in proportion to ``weight``
    (clients,)."""
    require_whole("least", least, 0)
    clients, rest = len(weight), len(pool) - len(weight) * least
    require(rest >= 0, SHORT, clients, least, clients * least, len(pool))
    counts = least + rounded((weight / weight.sum())[:, None], np.array([rest]), generator(seed, 2))
    return deal_counts(pool, one_cell(pool), counts, seed)
