"""Where the time of the CIFAR-10 row goes: kernels, gaps between them, and the host.

    python -m benchmarks.speed.profile [--device cuda] [--precision bf16] [--rounds 20]

After warming up, some rounds run without torch's profiler, then as many with it. Prints the kernels
that take most time, and shares of the time of a round without the profiler: some kernel is running,
none is (the device waits for the host, or between kernels), and how long the host is inside of
torch.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import evenhand as eh
from benchmarks.machine import describe, synchronise
from benchmarks.speed.cifar import COHORT, problem, run_settings
from benchmarks.speed.figures import Options

WARM_UP, TOP, WIDTH = 30, 20, 90


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--trace", help="also write a trace for chrome://tracing to this file")
    arguments = parser.parse_args()
    options = Options(device=torch.device(arguments.device), compiled=arguments.compiled)
    rounds, warm_up = arguments.rounds, arguments.warm_up
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if options.cuda else [])]
    profiler = profile(activities=activities)
    stamps = dict[str, float]()

    def after_round(done: int, row: dict[str, Any]) -> None:
        # plain rounds first, then as many with the profiler
        if done in (warm_up, warm_up + rounds):
            synchronise(options.device)
            stamps["begin" if done == warm_up else "end"] = time.perf_counter()
        if done == warm_up + rounds:
            profiler.start()
        if done == warm_up + 2 * rounds:
            synchronise(options.device)
            profiler.stop()

    fed, module = problem() if options.cuda else problem(clients=COHORT)
    settings = run_settings(options, arguments.precision) | {"eval_every": 10**6}
    eh.fit(
        module, fed, eh.FedAvg(), rounds=warm_up + 2 * rounds + 1, progress=after_round, **settings
    )
    plain = (stamps["end"] - stamps["begin"]) / rounds
    if arguments.trace:
        profiler.export_chrome_trace(arguments.trace)
    report(profiler, rounds, plain, options, arguments.precision)


def report(profiler: Any, rounds: int, plain: float, options: Options, precision: str) -> None:
    """Print kernels and shares."""
    kind = DeviceType.CUDA if options.cuda else DeviceType.CPU
    events = [
        event
        for event in profiler.events()
        if event.device_type == kind and not getattr(event, "is_user_annotation", False)
    ]
    if not options.cuda:
        # an operation's own parts are in it
        events = [event for event in events if event.cpu_parent is None]
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        times[event.name].append(event.time_range.elapsed_us())
    busy = (
        union([(event.time_range.start, event.time_range.end) for event in events]) / rounds / 1e6
    )
    host = (
        union(
            [
                (e.time_range.start, e.time_range.end)
                for e in profiler.events()
                if e.device_type == DeviceType.CPU
            ]
        )
        / rounds
        / 1e6
    )
    print(
        f"{describe(options.device)}, {precision}, a round without the profiler: {1e3 * plain:.2f}"
        " ms\n"
    )
    print("| | ms a round | share |\n|---|---|---|")
    print(
        f"| {'kernels' if options.cuda else 'operations'} running | {1e3 * busy:.2f} |"
        f" {100 * busy / plain:.0f} % |"
    )
    print(
        f"| nothing running | {1e3 * (plain - busy):.2f} | {100 * (plain - busy) / plain:.0f} % |"
    )
    print(
        f"| host in torch, with the profiler's own overhead | {1e3 * host:.2f} |"
        f" {100 * host / plain:.0f} % |\n"
    )
    print(
        f"| {'kernel' if options.cuda else 'operation'} | calls a round | µs each | ms a round |"
        " share |\n|---|---|---|---|---|"
    )
    total = sum(map(sum, times.values()))
    for name, values in sorted(times.items(), key=lambda item: -sum(item[1]))[:TOP]:
        label = name.replace("|", "/")[:WIDTH]
        sums = sum(values)
        cells = (
            f"{len(values) / rounds:.1f} | {sums / len(values):.1f} | {sums / rounds / 1e3:.3f} |"
            f" {100 * sums / total:.0f} %"
        )
        print(f"| `{label}` | {cells} |")


def union(ranges: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    length, end = 0.0, float("-inf")
    for begin, stop in sorted(ranges):
        length += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return length


if __name__ == "__main__":
    main()
