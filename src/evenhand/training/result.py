"""What a run gives back: its outcome, which can be saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from evenhand.errors import RunError
from evenhand.training.directory import Origin, write_run
from evenhand.training.outcome import Outcome
from evenhand.training.places import alone


@dataclass(frozen=True)
class Result(Outcome):
    """What a run leaves: models, a row per round, a row per client and group."""

    # what the run was made of, for save()
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def save(self, directory: str | Path) -> Path:
        """Write a run directory that ``evenhand.load`` and ``evenhand.report`` read.

        ``fit(..., out=directory)`` has done so already. A directory that holds another run is
        refused.
        """
        if self.origin is None:
            raise RunError("only a result of fit or fit_many can be saved; this one is neither")
        with alone(directory):
            write_run(self, self.origin, Path(directory))
        return Path(directory)

    def recorded(self, origin: Origin, out: str | Path | None) -> Result:
        """The same result with what the run was made of, saved in ``out`` if there is one, which is
        held."""
        whole = replace(self, origin=origin)
        if out is not None:
            write_run(whole, origin, Path(out))
        return whole
