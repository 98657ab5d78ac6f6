"""One run on several processes, each with a GPU or a few cores, on one machine or on several.

Every process runs the same program on the same federation and holds the same state. The clients of
an exchange are divided among them. Sums are added over all processes in float64 and rows of single
clients are gathered, so that every process gets the same replies and takes the same next step.
``torchrun`` starts the processes and :func:`join` connects them; without it, nothing here has any
effect.

A cohort is divided by size, so that each process gets about the same number of clients and samples.
Clients with memories stay with one process.

Totals are added in another order than with one process: each process adds its own clients, then
these sums are added. Both are sums in float64. With float64 models they differ by about 1e-16 of
their size in each round; with float32 models they rarely differ, since the addends leave bits to
spare. Rows of single clients have the same bits, except in evaluation, where other clients' samples
in a block may change the last one. With dropout the vmap engine draws
other random numbers. Two runs with the same number of processes on the same machines are equal to
the bit.
"""

from evenhand.engines.processes.divided import Split, deal, split
from evenhand.engines.processes.group import (
    from_first,
    is_first,
    join,
    launched,
    on_first,
    several,
    together,
)
from evenhand.engines.processes.meeting import ProcessError

__all__ = [
    "ProcessError",
    "Split",
    "deal",
    "from_first",
    "is_first",
    "join",
    "launched",
    "on_first",
    "several",
    "split",
    "together",
]
