"""The result of a run, which can be saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from evenhand.errors import RunError
from evenhand.training.directory import Origin, write_run
from evenhand.training.outcome import Outcome
from evenhand.training.places import alone


@dataclass(frozen=True)
class Result(Outcome):
    """The result of a run: models, a row per round, a row per client and group.

    Attributes:
        algorithm: the method.
        params: the trained model, with the keys of ``module.state_dict()``, on the CPU.
        personal: each client's own model, for methods that have them.
        state: the server's last state: model and dual variables.
        history: one row per round, as a pandas table.
        scores: one row per client, then per group and team, as a pandas table.
        summary: mean, worst and best 10 %, worst client and standard deviation of the clients'
            accuracy; without a classifier, of the first metric, or of the loss.
        weights: one row per client with its effective weight at the end, for methods that have one.
        certificate: the objective at the end, effective weights, and the duality gap.
        decision: the thresholds that predictions use, see ``using``; None for 0.5.
    """

    # what the run was made of, for save()
    origin: Origin | None = field(default=None, repr=False, compare=False)

    @property
    def network(self) -> nn.Module | None:
        """The network as it was before training."""
        return None if self.origin is None else self.origin.module

    def save(self, directory: str | Path) -> Path:
        """Write a run directory that ``evenhand.load`` and ``evenhand.report`` can read.

        Not needed after ``fit(..., out=directory)``. A directory with another run is refused.
        """
        if self.origin is None:
            raise RunError("only a result of fit or fit_many can be saved; this one is neither")
        with alone(directory):
            write_run(self, self.origin, Path(directory))
        return Path(directory)

    def recorded(self, origin: Origin, out: str | Path | None) -> Result:
        """Return the result with its origin, saved in ``out`` (already locked) if there is one."""
        whole = replace(self, origin=origin)
        if out is not None:
            write_run(whole, origin, Path(out))
        return whole
