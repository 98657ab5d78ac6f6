"""What a run leaves: models, a row per round, a row per client and group."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, State
from evenhand.metrics.counts import Counts
from evenhand.metrics.outcomes import Outcomes
from evenhand.metrics.scores import Columns, Row, rows_of, summary
from evenhand.metrics.tallies import Tally

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: models, a row per round, a row per client and group."""

    algorithm: Algorithm
    # the model handed out, with the keys of module.state_dict(), on the CPU
    params: dict[str, Tensor] = field(repr=False)
    # each client's own model, for methods that have them
    personal: list[dict[str, Tensor]] | None = field(repr=False)
    state: State = field(repr=False)  # the server's last state: model and dual variables
    history_rows: list[Row] = field(repr=False)
    # a row per client, then one per group and one per team
    score_columns: Columns = field(repr=False)
    # what the scores are made of: (n, A, ...) by name, see evenhand.metrics.tallies
    tally: Tally = field(repr=False)
    # (N,) of each sample that scores are about, by name: see evenhand.metrics.outcomes
    outcomes: Outcomes = field(repr=False)
    # the tally's confusion counts, with names
    counts: Counts | None = field(default=None, repr=False)
    # as score_columns, on the validation data where there are any
    validation: Columns | None = field(default=None, repr=False)
    # the objective at the end, and how well weights explain it
    certificate: Certificate | None = field(default=None, repr=False)
    # the summary and how many it is of, where sums are all
    over_clients: dict[str, float] | None = field(default=None, repr=False)
    weight_columns: Columns = field(default_factory=dict, repr=False)  # a row per client
    # (T,) after which rounds weights were tracked
    weight_rounds: list[int] = field(default_factory=list, repr=False)
    # (T, n) each client's effective weight then; rows sum to one
    weight_history: Floats | None = field(default=None, repr=False)

    @property
    def values(self) -> Floats:
        """(N,) of each sample that scores are about: 1 or 0 for right or wrong, else its loss."""
        return self.outcomes["value"]

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        import pandas as pd

        return pd.DataFrame(self.history_rows)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per client, then one per group and team, on the test data (training data where
        there are none)."""
        import pandas as pd

        return pd.DataFrame(self.score_columns)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """One row per client: its training loss, base weight and effective weight at the end; empty
        where a method has none."""
        import pandas as pd

        return pd.DataFrame(self.weight_columns)

    @property
    def summary(self) -> dict[str, float]:
        """Mean, worst and best 10 %, worst client and standard deviation of the clients' accuracy
        (NaN for regression)."""
        if self.over_clients is not None:
            return {name: value for name, value in self.over_clients.items() if name != "clients"}
        return summary(self.score_columns["accuracy"][: self.score_columns["by"].count("client")])

    @cached_property
    def score_rows(self) -> list[Row]:
        """The scores as one mapping per row."""
        return rows_of(self.score_columns)

    @cached_property
    def weight_rows(self) -> list[Row]:
        """The weights as one mapping per client."""
        return rows_of(self.weight_columns)
