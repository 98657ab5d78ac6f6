"""Whether a method suits the local solver of a run."""

from __future__ import annotations

from evenhand.algorithm import Algorithm
from evenhand.local import LocalSolver


def unsuited(method: Algorithm, local: LocalSolver) -> str:
    """Say what a method assumes about local steps that the solver does not keep, or "".

    >>> from evenhand import QFFL, LocalSGD
    >>> unsuited(QFFL(), LocalSGD(lr=0.1))
    ''
    >>> unsuited(QFFL(), LocalSGD(lr=0.1, momentum=0.9)).split(";")[0]
    'assumes plain SGD: it takes (received model - local model) / lr for the gradient'
    """
    work = method.local_work()
    if work.assumes_sgd and local.beyond_sgd:
        what, why, found = "plain SGD", work.assumes_sgd, local.beyond_sgd
    elif work.assumes_scale and local.rescaling:
        what, why, found = (
            "steps in proportion to the gradient",
            work.assumes_scale,
            local.rescaling,
        )
    else:
        return ""
    return (
        f"assumes {what}: it {why}; with {_listed(found)} its weights are not those of its"
        " objective, so compare its results with plain SGD's"
    )


def _listed(words: tuple[str, ...]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
