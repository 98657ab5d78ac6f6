"""Seconds from files to a federation: checksums, decompression, parsing, dealing and splitting
included.

    python -m benchmarks.loading [--check]

Each data set whose files are here (EVENHAND_DATA) is loaded three times in one process; the median
is shown, and beside it what the samples take in memory. --check fails where Fashion-MNIST takes
more than 1 s, CIFAR-10 or Shakespeare more than 2 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial

import evenhand as eh
from benchmarks.machine import describe

LOADS = {
    "fashion_mnist": eh.datasets.fashion_mnist,
    "fashion_mnist, AFL's three clients": partial(
        eh.datasets.fashion_mnist,
        partition="by_class",
        classes=[0, 2, 6],
        standardise="pixel",
        flat=True,
    ),
    "mnist_writers": eh.datasets.mnist_writers,
    "emnist": eh.datasets.emnist,
    "cifar10": eh.datasets.cifar10,
    "vehicle": eh.datasets.vehicle,
    "shakespeare, all 1,153 roles": partial(eh.datasets.shakespeare, least=1, gap=False),
    "airline_sentiment": eh.datasets.airline_sentiment,
    "adult": eh.datasets.adult,
    "acs_income": eh.datasets.acs_income,
    "compas": eh.datasets.compas,
    "heart_disease": eh.datasets.heart_disease,
}
MOST = {"fashion_mnist": 1.0, "cifar10": 2.0, "shakespeare, all 1,153 roles": 2.0}


def held(federation: eh.Federation) -> int:
    """Bytes of the arrays that samples are gathered from, each counted once."""
    arrays = {}
    for part in (federation.train, federation.val, federation.test):
        if part is not None:
            source = part.x.source if isinstance(part.x, eh.View) else part.x
            arrays[source.untyped_storage().data_ptr()] = source.untyped_storage().nbytes()
    return sum(arrays.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    print(
        f"{describe()}\n\n| data set | clients | samples | seconds | samples in memory, MB"
        " |\n|---|---|---|---|---|"
    )
    late = []
    for name, load in LOADS.items():
        seconds = []
        try:
            for _ in range(3):
                begin = time.perf_counter()
                federation = load()
                seconds.append(time.perf_counter() - begin)
        except eh.DataError as error:
            print(f"| {name} | | | not here | | ", file=sys.stderr)
            print(error, file=sys.stderr)
            continue
        median = statistics.median(seconds)
        parts = [
            part for part in (federation.train, federation.val, federation.test) if part is not None
        ]
        samples = sum(len(part.x) for part in parts)
        print(
            f"| {name} | {federation.clients:,} | {samples:,} | {median:.2f} |"
            f" {held(federation) / 1e6:.1f} |"
        )
        if median > MOST.get(name, float("inf")):
            late.append(f"{name} takes {median:.2f} s, more than {MOST[name]:g}")
    if check and late:
        sys.exit("; ".join(late))


if __name__ == "__main__":
    main()
