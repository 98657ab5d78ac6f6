"""scikit-learn's own checks of estimators."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import evenhand as eh

# the default estimators, with what is skipped without an environment variable that counts at import
ALL = """
import evenhand as eh
from sklearn.utils.estimator_checks import check_estimator
for estimator in (eh.sklearn.FairClassifier(), eh.sklearn.FairRegressor()):
    print(*(check["check_name"] for check in check_estimator(estimator, on_fail=None)
        if check["status"] != "passed"))
"""


@parametrize_with_checks(
    [eh.sklearn.FairClassifier(rounds=10), eh.sklearn.FairRegressor(rounds=10)]
)
def test_scikit_learn_accepts(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
def test_scikit_learn_accepts_the_defaults_and_skips_nothing() -> None:
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALL], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_scikit_learn_is_imported_with_the_estimators_only() -> None:
    code = "import sys, evenhand as eh; eh.fit; print('sklearn' in sys.modules, bool(eh.sklearn))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
