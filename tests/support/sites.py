"""Patients of three sites, where the rule that holds at two sites is wrong at the third."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class Patients(NamedTuple):
    """Samples with the client and the group of each."""

    X: NDArray[np.float64]
    y: NDArray[np.str_]
    site: NDArray[np.str_]
    sex: NDArray[np.str_]

    def table(self) -> pd.DataFrame:
        """The same as a table, with columns for site and sex."""
        columns = {f"x{column}": values for column, values in enumerate(self.X.T)}
        return pd.DataFrame({**columns, "site": self.site, "sex": self.sex})


def patients(count: int = 180, seed: int = 0) -> Patients:
    """Draw patients; the rows of the sites are mixed, and the third site is small."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["north", "south", "west"], count, p=[0.45, 0.4, 0.15])
    X = rng.normal(size=(count, 4)) * [1, 5, 0.1, 1] + [0, 100, 3, 0]
    sign = np.where(site == "west", -1, 1)
    score = X[:, 0] + sign * (X[:, 1] - 100) / 5 + 0.3 * rng.normal(size=count)
    y = np.where(score > 0, "ill", "well")
    return Patients(X, y, site, rng.choice(["f", "m"], count))
