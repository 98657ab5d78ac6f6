"""What a benchmark finds: figures with the bar that they should reach, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import machine


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    device: torch.device
    quick: bool = False
    precisions: tuple[str, ...] = ("fp32",)
    engine: str = "auto"
    compiled: bool = True  # on CUDA
    peers: bool = True

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Args:
        shape: what was measured.
        ours, theirs: evenhand's figure and the peer's, in ``unit``; less is better. None where the
            peer is not there.
        least: how many times faster than the peer it should be.
        most: how many times the peer's cost it may have; in place of ``least`` where the peer is
            evenhand itself.
        limit: the most that ``ours`` should be, in ``unit``.
        floor: what the machine needs at least, in ``unit``; see :mod:`benchmarks.speed.floors`.
        memory: peak, GB. warm_up: seconds of tracing, compiling and capturing, not part of
            ``ours``.
    """

    shape: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    least: float | None = None
    most: float | None = None
    limit: float | None = None
    floor: float | None = None
    memory: float | None = None
    warm_up: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Times faster than the peer; where ``most`` is meant, times its cost."""
        if self.theirs is None:
            return None
        return self.ours / self.theirs if self.costs else self.theirs / self.ours

    @property
    def costs(self) -> bool:
        return self.most is not None

    @property
    def bar(self) -> str:
        bars = [f"≥ {self.least:g}x"] if self.least is not None else []
        bars += [f"≤ {self.most:g}x"] if self.most not in (None, float("inf")) else []
        bars += [f"≤ {self.limit:g} {self.unit.split()[0]}"] if self.limit is not None else []
        return ", ".join(bars)

    @property
    def missed(self) -> bool:
        """Whether it is below its bar; a peer that is not there has none."""
        too_slow = self.least is not None and self.ratio is not None and self.ratio < self.least
        too_dear = self.most is not None and self.ratio is not None and self.ratio > self.most
        return too_slow or too_dear or (self.limit is not None and self.ours > self.limit)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "missed": self.missed}


HEADER = (
    "| shape | peer | peer's figure | evenhand | ratio | bar | share of the floor | peak memory, GB"
    " | warm-up, s |\n|---|---|---|---|---|---|---|---|---|"
)


def line(figure: Figure) -> str:
    """A row of the table."""
    ratio = (
        ""
        if figure.ratio is None
        else f"{figure.ratio:.2f}x"
        if figure.costs or figure.ratio < 10
        else f"{figure.ratio:.0f}x"
    )
    cells = [
        figure.shape + (f" ({figure.note})" if figure.note else ""),
        figure.peer,
        (
            ("" if not figure.peer else "not measured")
            if figure.theirs is None
            else f"{_number(figure.theirs)} {figure.unit}"
        ),
        f"{_number(figure.ours)} {figure.unit}",
        ratio + (" **missed**" if figure.missed else ""),
        figure.bar,
        "" if figure.floor is None else f"{100 * figure.floor / figure.ours:.0f} %",
        "" if figure.memory is None else f"{figure.memory:.2f}",
        "" if figure.warm_up is None else f"{figure.warm_up:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def machine_limits(options: Options) -> str:
    """What floors are counted with."""
    rates = [
        f"{machine.throughput(options.device, p) / 1e12:.3g} TFLOP/s {p}"
        for p in options.precisions
    ]
    return (
        f"copies {machine.bandwidth(options.device) / 1e9:,.0f} GB/s (read + written), multiplies"
        f" matrices at {', '.join(rates)}"
    )
