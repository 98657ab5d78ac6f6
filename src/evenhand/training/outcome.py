"""The outcome of a run: models, a row per round, a row per client and group."""

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
from evenhand.metrics.scores import Columns, Row, rows_of, summary_of
from evenhand.metrics.tallies import Tally
from evenhand.metrics.thresholds import Thresholds
from evenhand.privacy.record import Privacy
from evenhand.targets import Target
from evenhand.training.deciding import Deciding
from evenhand.training.ending import Stopped

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome(Deciding):
    """The outcome of a run: models, a row per round, a row per client and group."""

    algorithm: Algorithm
    # the trained model, with the keys of module.state_dict(), on the CPU
    params: dict[str, Tensor] = field(repr=False)
    # each client's own model, for methods that have them
    personal: list[dict[str, Tensor]] | None = field(repr=False)
    state: State = field(repr=False)  # the server's last state: model and dual variables
    history_rows: list[Row] = field(repr=False)
    # a row per client, then one per group and one per team
    score_columns: Columns = field(repr=False)
    # counts and sums behind the scores: (n, A, ...) by name, see evenhand.metrics.tallies
    tally: Tally = field(repr=False)
    # (N,) of each evaluated sample, by name: see evenhand.metrics.outcomes
    outcomes: Outcomes = field(repr=False)
    # the tally's confusion counts, with names
    counts: Counts | None = field(default=None, repr=False)
    # as score_columns, on the validation data if there are any
    validation: Columns | None = field(default=None, repr=False)
    # the objective at the end, effective weights, and the duality gap
    certificate: Certificate | None = field(default=None, repr=False)
    # the summary and the number of clients, if the server only saw sums
    over_clients: dict[str, float] | None = field(default=None, repr=False)
    weight_columns: Columns = field(default_factory=dict, repr=False)  # a row per client
    # (T,) the rounds after which weights were tracked
    weight_rounds: list[int] = field(default_factory=list, repr=False)
    # (T, n) each client's effective weight then; rows sum to one
    weight_history: Floats | None = field(default=None, repr=False)
    judged_on: str = "test"  # the data of scores and tally: "test", or "training" without test data
    # with two classes, the score histograms (n, A, 2, BINS) that thresholds are found on, by the
    # data they are of: "validation", or "training" without validation data
    scored: dict[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    # why training ended before the last round; None if it did not
    stopped: Stopped | None = None
    # the round whose model this is, if it is not the last one
    restored: int | None = None
    # the thresholds of its predictions; None for 0.5
    decision: Thresholds | None = None
    target: Target | None = None  # what the model predicts
    privacy: Privacy | None = None  # what a private run may claim: epsilon, or why there is none

    @property
    def values(self) -> Floats:
        """(N,) of each evaluated sample: 1 or 0 for right or wrong, the share of its labels that
        are right, or for a regression its squared error (its loss, if the loss is your own)."""
        return self.outcomes["value"]

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        import pandas as pd

        return pd.DataFrame(self.history_rows)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per client, then per group and team, on the test data (or training data if
        there are none)."""
        import pandas as pd

        return pd.DataFrame(self.score_columns)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """One row per client: its training loss, base weight and effective weight at the end.

        Empty if the method has no effective weights.
        """
        import pandas as pd

        return pd.DataFrame(self.weight_columns)

    @property
    def summary(self) -> dict[str, float]:
        """Mean, worst and best 10 %, worst client and standard deviation of the clients' accuracy.

        Without a classifier they are those of the first of the run's metrics, or of the loss if
        there is none. "worst" is then the largest value if lower values are better.
        """
        return summary_of(self.score_columns, self.tally, self.over_clients)

    @cached_property
    def score_rows(self) -> list[Row]:
        """The scores as one mapping per row."""
        return rows_of(self.score_columns)

    @cached_property
    def weight_rows(self) -> list[Row]:
        """The weights as one mapping per client."""
        return rows_of(self.weight_columns)
