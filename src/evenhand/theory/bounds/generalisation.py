"""FAFL on unseen data: a bound from the training loss and Rademacher complexities."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from evenhand.errors import require, require_number
from evenhand.theory.inputs import Vector, counts_and_caps, read_vector


class Generalisation(NamedTuple):
    """A bound on the exact FAFL objective on the population, and what contributes."""

    total: float
    empirical: float  # from the loss on the training data
    complexity: float  # from the richness of the model class
    confidence: float  # from the probability of an unlucky sample


def fafl_generalisation(
    empirical: float,
    sizes: Vector,
    base: Vector | None,
    alpha: float | Vector,
    bound: float,
    delta: float,
    rademacher: float | Vector,
    theorem: int = 3,
    measured: bool = False,
) -> Generalisation:
    """Bound the FAFL objective on unseen data, with probability 1 - delta.

        3:  tau f^ + 2 R + B sqrt(sum_i (w_i/alpha_i)^2 log(1/delta) / (2 m_i))
        4:  f^ + 2 sum_i (w_i/alpha_i) R_i + B sum_i (w_i/alpha_i) sqrt(log(2n/delta) / (2 m_i))
                                                   (FAFL, Theorem 3; RC-FL, Theorem 4, and FAFL,
                                                   G.1)

    It holds for all models of the class at once. tau = sum_i w_i / alpha_i. Theorem 3 has the
    factor tau on the training loss, Theorem 4 has larger other terms: few large clients favour 4,
    many small ones 3. Losses lie in [0, B]; the samples of client i are drawn independently from
    its own distribution; weights and levels are fixed beforehand.

    Both complexities belong to the class of *losses* (model and loss composed) and are expectations
    over samples and signs:

        R    E sup sum_i sum_j w_i / (alpha_i m_i) sign_ij loss(z_ij)   one number, scale tau
        R_i  E sup (1 / m_i) sum_j sign_j loss(z_ij)                    one number per client

    In practice only the complexity given *one* sample can be computed. ``measured`` accounts for
    that: the complexity changes by at most B w_i/(alpha_i m_i) with one sample point, so applying
    McDiarmid's inequality again gives 3 times the last term, with delta/2 for delta (3) or 3n/delta
    for 2n/delta (4). The papers do not discuss this.

    Args:
        empirical: f^, the exact FAFL objective (HCVaR of the client losses) on the training data.
        sizes: m_i, training samples of each client.
        base: w_i, summing to 1; None for the clients' data shares.
        alpha: levels in (0, 1], one number or one per client.
        bound: B.
        delta: probability that the bound fails.
        rademacher: R for theorem 3, all R_i for theorem 4.
        theorem: 3 or 4.
        measured: whether ``rademacher`` was computed from the training data (``rademacher_linear``
            on them, Monte Carlo), instead of holding for every sample (``rademacher_vc``).
    """
    counts, caps = counts_and_caps(sizes, base, alpha)
    require_number(
        "empirical", empirical, "[0, inf)", "the theorems need losses that are not negative"
    )
    require_number("bound", bound, "(0, inf)")
    require_number("delta", delta, "(0, 1)", "it is the chance that the bound fails")
    require(
        theorem in (3, 4),
        "theorem must be 3 (one weighted complexity) or 4 (one per client), got {!r}",
        theorem,
    )
    n = len(counts)
    if theorem == 3:
        complexity = read_vector(
            "rademacher (one number for theorem 3)", rademacher, "[0, inf)", length=1
        )
        first, events, weight = empirical * float(caps.sum()), 1 + measured, torch.ones(1)
        variance = (caps**2 / counts).sum(0, keepdim=True)  # (1,)
    else:
        complexity = read_vector(
            "rademacher (one number per client for theorem 4)", rademacher, "[0, inf)", length=n
        )
        first, events, weight = float(empirical), n * (2 + measured), caps
        variance = 1 / counts  # (n,)
    deviation = bound * (variance * math.log(events / delta) / 2).sqrt()
    richness = 2 * float((weight * complexity).sum())
    confidence = (3 if measured else 1) * float((weight * deviation).sum())
    terms = [float(term) for term in (first, richness, confidence)]
    return Generalisation(sum(terms), *terms)
