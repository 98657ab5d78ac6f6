"""Rounds of evenhand, timed one by one, and what the other rows share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import evenhand as eh
from benchmarks.machine import peak_memory, synchronise, typical
from benchmarks.speed.figures import Options


class Rounds(NamedTuple):
    """What running some rounds took."""

    seconds: list[float]  # of each measured round
    # seconds before the first of them, beyond what so many rounds take later: tracing, compiling,
    # capturing
    warm_up: float
    memory: float  # GB, the most until then; on CUDA beyond what was there before
    result: eh.Result
    device: torch.device

    @property
    def median(self) -> float:
        return typical(self.seconds, self.device)


def engine(options: Options) -> str | eh.Engine:
    """The engine to measure: on CUDA the stacking one, which compiles at once unless told not
    to."""
    if not options.cuda or options.engine != "auto":
        return options.engine
    return eh.Vmap(compile=options.compiled)


def run_rounds(
    module: nn.Module,
    federation: eh.Federation,
    algorithm: eh.Algorithm,
    options: Options,
    *,
    warm_up: int,
    measured: int,
    between: Sequence[Callable[[], object]] = (),
    **settings: Any,
) -> Rounds:
    """Train for ``warm_up`` and ``measured`` rounds; after each measured one, ``between`` are
    called with the clock stopped."""
    device = options.device
    before, times, memory = 0.0, [], [0.0]
    if options.cuda:
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / 1e9
    begin = time.perf_counter()
    clock = [begin, begin]  # when the round began, when warming up ended

    def after_round(done: int, row: dict[str, Any]) -> None:
        synchronise(device)
        now = time.perf_counter()
        if done == warm_up:
            clock[1] = now
        elif warm_up < done <= warm_up + measured:
            if not times:
                memory[0] = peak_memory(device) - before
            times.append(now - clock[0])
            for peer in between:
                peer()
            synchronise(device)
        clock[0] = time.perf_counter()

    rounds = warm_up + measured + 1  # the last one also evaluates
    settings = {"engine": engine(options), "device": device, "eval_every": rounds, **settings}
    result = eh.fit(module, federation, algorithm, rounds=rounds, progress=after_round, **settings)
    beyond = clock[1] - begin - warm_up * statistics.median(times)
    return Rounds(times, max(0.0, beyond), memory[0], result, device)


def federation_of(
    x: Tensor,
    y: Tensor,
    clients: int,
    test: tuple[Tensor, Tensor] | None = None,
    groups: int = 0,
    teams: int = 0,
) -> eh.Federation:
    """Samples dealt to so many clients of equal size, in order; groups of samples and teams of
    clients go round."""

    def part(x: Tensor, y: Tensor) -> eh.Part:
        group = torch.arange(len(x)) % groups if groups else None
        return eh.Part(x, y, torch.linspace(0, len(x), clients + 1).long(), group)

    names = {"group_names": tuple(f"group {i}" for i in range(groups))} if groups else {}
    if teams:
        names |= {
            "teams": torch.arange(clients) % teams,
            "team_names": tuple(f"team {i}" for i in range(teams)),
        }
    return eh.Federation(part(x, y), test=None if test is None else part(*test), **names)


def images(
    count: int, shape: tuple[int, ...], classes: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Noisy patterns, one for each class, at 256 levels of grey, standardised: something that can
    be learnt."""
    patterns = torch.randn(classes, *shape, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (count,), generator=generator)
    x = 0.1 * patterns[y] + torch.randn(count, *shape, generator=generator)
    x = (x.clamp(-3, 3) + 3).mul_(255 / 6).round_()
    return (x - 127.5) / 42.5, y
