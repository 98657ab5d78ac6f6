"""Checks that any federated method can be put through, as scikit-learn's ``check_estimator`` does
with estimators.

    from evenhand.testing import check_algorithm

    check_algorithm(MyMethod())                                  # raises at the first check that
    fails, and says what differed

    for outcome in check_algorithm(MyMethod(), collect=True):    # or look at all of them
        print(outcome.name, outcome.passed, outcome.message)

Every check is a fact that holds for the methods of this library, and has it for a name; ``CHECKS``
has them all. They run on a federation of six small clients with groups and teams, or on one that is
given, in a few seconds and without pytest.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.errors import EvenhandError, first_line, require_kind
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

Check = Callable[[Subject], None]  # raises where the fact does not hold

SUBJECTS = (settings, states, messages, reports, repetition, symmetry, extremes)
CHECKS: Mapping[str, Check] = {
    check.__name__: check for subject in SUBJECTS for check in subject.CHECKS
}


class ConformanceError(EvenhandError, AssertionError):
    """A method fails a check. The message names method and check, and says what differed."""


class Outcome(NamedTuple):
    """What came of one check."""

    name: str
    passed: bool  # true as well where it was skipped
    skipped: bool
    message: str  # what differed, or why it was skipped


def check_algorithm(
    algorithm: Algorithm,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    loss: str | LossFunction = "cross_entropy",
    only: Iterable[str] | None = None,
    collect: bool = False,
) -> list[Outcome]:
    """Put a method through every check.

    Args:
        federation, module, loss: what to try it on, if not the small ones of this module; small and
            without dropout. The module is used in float64 and in float32.
        only: names of the checks to run, of those in ``CHECKS``.
        collect: go on after a failure. Otherwise the first one raises a ConformanceError.

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
    """Pairs of a check's name and a function without arguments that runs it, for
    ``pytest.mark.parametrize``.

    The function raises a ConformanceError where the check fails, and unittest.SkipTest where it
    does not apply.

    >>> from evenhand import FedAvg
    >>> name, check = algorithm_checks(FedAvg())[0]
    >>> name
    'it_is_a_frozen_dataclass'
    >>> check()
    """
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    names = list(CHECKS) if only is None else [only] if isinstance(only, str) else list(only)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(
            f"there is no check called {unknown[0]!r}; evenhand.testing.CHECKS has their names"
        )
    subject = Subject(algorithm, federation, module, loss)
    return [(name, partial(_run, name, subject)) for name in names]


def _run(name: str, subject: Subject) -> None:
    """One check; whatever goes wrong in it becomes a ConformanceError."""
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
