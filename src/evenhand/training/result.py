"""The result of a run, which can be saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from evenhand.calls import OutputFunction
from evenhand.data.federation import Federation
from evenhand.errors import RunError
from evenhand.training.directory import Origin, write_run
from evenhand.training.outcome import Outcome
from evenhand.training.places import alone

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding
    from evenhand.training.exporting import Exported

EXAMPLES = 3  # samples to trace a network with


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
        stopped: why and after which round a callback ended the run; None if it did not.
        restored: the round whose model this is, if a callback chose an earlier one.
        privacy: epsilon of a private run, what it covers and what must hold; None for others.
        decision: the thresholds that predictions use, see ``using``; None for 0.5.
    """

    # what the run was made of, for save()
    origin: Origin | None = field(default=None, repr=False, compare=False)

    @property
    def network(self) -> nn.Module | None:
        """The network as it was before training."""
        return None if self.origin is None else self.origin.module

    @property
    def output(self) -> OutputFunction | None:
        """What takes the output out of what the network returns, if it was given."""
        return None if self.origin is None else self.origin.settings.output

    @property
    def encoding(self) -> Encoding | None:
        """How a table's columns became numbers, if the data came as a table."""
        data = None if self.origin is None else self.origin.federation
        return data.encoding if isinstance(data, Federation) else None

    def export(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        client: str | int | None = None,
        example: Any = None,
    ) -> Exported:
        """Write the trained network to a file that runs without evenhand, and check the file: it is
        loaded, and its outputs are compared with the network's.

        Args:
            path: the file: .pt2 for ``torch.export``, .onnx for ONNX.
            format: "torch" or "onnx", if the suffix does not say it.
            client: name or number of the client whose own model is meant, as in :meth:`module`.
            example: samples as the network takes them: a tensor (N, ...), or a dict or tuple of
                such tensors. By default some of the run's own. The number of samples stays free in
                the file, other sizes do not.
        """
        from evenhand.training.exporting import described, export

        network, origin = self.module(client), self._known()
        return export(
            network,
            path,
            origin.federation.probe(EXAMPLES).x if example is None else example,
            format=format,
            output=origin.settings.output,
            about=described(self, repr(self.algorithm), client, origin.federation.label_names),
        )

    def save_adapter(self, directory: str | Path, *, client: str | int | None = None) -> Path:
        """Write the trained adapter of a PEFT model in PEFT's own form, which
        ``PeftModel.from_pretrained(base, directory)`` loads.

        Args:
            client: name or number of the client whose own adapter is meant, as in :meth:`module`.
        """
        from evenhand.training.adapters import save_adapter

        return save_adapter(self.module(client), Path(directory))

    def _known(self) -> Origin:
        if self.origin is None:
            raise RunError("only a result of fit or fit_many can be saved; this one is neither")
        return self.origin

    def save(self, directory: str | Path) -> Path:
        """Write a run directory that ``evenhand.load`` and ``evenhand.report`` can read.

        Not needed after ``fit(..., out=directory)``. A directory with another run is refused.
        """
        origin = self._known()
        with alone(directory):
            write_run(self, origin, Path(directory))
        return Path(directory)

    def recorded(self, origin: Origin, out: str | Path | None) -> Result:
        """Return the result with its origin, saved in ``out`` (already locked) if there is one."""
        whole = replace(self, origin=origin)
        if out is not None:
            write_run(whole, origin, Path(out))
        return whole
