"""Conformance checks for federated methods, like scikit-learn's ``check_estimator``.

    from evenhand.testing import check_algorithm

    check_algorithm(MyMethod())  # raises at the first failure and says what differed

    for outcome in check_algorithm(MyMethod(), collect=True):  # or look at all outcomes
        print(outcome.name, outcome.passed, outcome.message)

Each check is named after a fact that holds for all methods of this library; ``CHECKS`` lists them.
They run on a federation of six small clients with groups and teams, or on your own, in a few
seconds and without pytest.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.errors import EvenhandError, first_line, require, require_kind
from evenhand.losses import LossFunction
from evenhand.testing import (
    extremes,
    messages,
    repetition,
    reports,
    settings,
    states,
    symmetry,
)
from evenhand.testing.compare import quiet
from evenhand.testing.subject import Subject

__all__ = [
    "CHECKS",
    "ConformanceError",
    "Outcome",
    "Subject",
    "algorithm_checks",
    "check_algorithm",
]

Check = Callable[[Subject], None]  # raises if the fact does not hold

SUBJECTS = (settings, states, messages, reports, repetition, symmetry, extremes)
CHECKS: Mapping[str, Check] = {
    check.__name__: check for subject in SUBJECTS for check in subject.CHECKS
}


class ConformanceError(EvenhandError, AssertionError):
    """A method fails a check; the message names method and check, and says what differed."""


class Outcome(NamedTuple):
    """The outcome of one check.

    Attributes:
        name: of the check.
        passed: also True if the check was skipped.
        skipped: whether the check does not apply to the method.
        message: what differed, or why the check was skipped.
    """

    name: str
    passed: bool
    skipped: bool
    message: str


def check_algorithm(
    algorithm: Algorithm,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    loss: str | LossFunction = "cross_entropy",
    only: Iterable[str] | None = None,
    collect: bool = False,
) -> list[Outcome]:
    """Run a method through all conformance checks.

    Args:
        algorithm: the method, such as ``MyMethod(rate=0.1)``.
        federation: the data to test on, if not the default; keep it small.
        module: the network to test with, in float64 and in float32; keep it small and without
            dropout.
        loss: a name from ``evenhand.losses.LOSSES``, or a function with one loss per sample.
        only: names of checks in ``CHECKS``; by default all are run.
        collect: continue after a failure instead of raising a ``ConformanceError`` at the first
            one.

    Returns:
        One outcome per check.

    >>> from evenhand import FedAvg
    >>> [outcome.passed for outcome in check_algorithm(FedAvg(), only=["training_changes_a_model"])]
    [True]
    """
    outcomes = []
    for name, check in algorithm_checks(
        algorithm, federation=federation, module=module, loss=loss, only=only
    ):
        try:
            check()
        except unittest.SkipTest as reason:
            outcomes.append(Outcome(name, True, True, str(reason)))
        except ConformanceError as failure:
            if not collect:
                raise
            outcomes.append(Outcome(name, False, False, str(failure)))
        else:
            outcomes.append(Outcome(name, True, False, ""))
    return outcomes


def algorithm_checks(
    algorithm: Algorithm,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    loss: str | LossFunction = "cross_entropy",
    only: Iterable[str] | None = None,
) -> list[tuple[str, Callable[[], None]]]:
    """Return pairs of a check's name and a function that runs it, for ``pytest.mark.parametrize``.

    The function raises a ``ConformanceError`` if the check fails, and ``unittest.SkipTest`` if it
    does not apply. The arguments are those of ``check_algorithm``.

    >>> from evenhand import FedAvg
    >>> name, check = algorithm_checks(FedAvg())[0]
    >>> name
    'it_is_a_frozen_dataclass'
    >>> check()
    """
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require(
        algorithm.protection() is None,
        "the checks repeat runs and look at messages, which a private method does not allow; check"
        " the method inside {}",
        type(algorithm).__name__,
    )
    names = list(CHECKS) if only is None else [only] if isinstance(only, str) else list(only)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(
            f"there is no check called {unknown[0]!r}; evenhand.testing.CHECKS lists all names"
        )
    subject = Subject(algorithm, federation, module, loss)
    return [(name, partial(_run, name, subject)) for name in names]


def _run(name: str, subject: Subject) -> None:
    """Run one check, and turn any error into a ConformanceError."""
    try:
        with quiet():
            CHECKS[name](subject)
    except unittest.SkipTest:
        raise
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise ConformanceError(
            f"{subject.algorithm!r} fails {name}: {kind}{first_line(error)}"
        ) from error
