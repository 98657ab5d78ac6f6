"""Estimators for scikit-learn: fair federated training with ``fit`` and ``predict``.

>>> import numpy as np
>>> import evenhand as eh
>>> X = np.arange(40.0).reshape(20, 2)
>>> y = np.repeat(["no", "yes"], 10)
>>> site = np.tile(["north", "south"], 10)
>>> model = eh.sklearn.FairClassifier(eh.AFL(), rounds=30).fit(X, y, client=site)
>>> print(*model.predict(X[[0, 19]]))
no yes
"""

from evenhand.sklearn.classifier import FairClassifier
from evenhand.sklearn.regressor import FairRegressor
from evenhand.sklearn.scoring import scorer

__all__ = ["FairClassifier", "FairRegressor", "scorer"]
