"""How long a user waits before anything happens: importing evenhand beyond torch, and `evenhand
--help`.

python -m benchmarks.startup [--check]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.machine import describe

# all names but eh.sklearn, which brings scikit-learn along
IMPORT_ALL = (
    "import evenhand as eh; [getattr(eh, name) for name in eh.__all__ if name != 'sklearn']"
)
BARS = {"import evenhand and all its names, beyond torch": 0.3, "evenhand --help": 0.5}


def seconds(*command: str) -> float:
    """Median of seven runs."""
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail where a time is above its bar")
    arguments = parser.parse_args()
    torch_alone = seconds("-c", "import torch")
    found = dict(
        zip(
            BARS,
            (seconds("-c", IMPORT_ALL) - torch_alone, seconds("-m", "evenhand", "--help")),
            strict=True,
        )
    )
    print(f"{describe()}\nimport torch: {torch_alone:.2f} s")
    for name, value in found.items():
        print(f"{name}: {value:.2f} s (bar {BARS[name]} s)")
    sys.exit(
        "a time is above its bar"
        if arguments.check and any(found[name] > bar for name, bar in BARS.items())
        else 0
    )


if __name__ == "__main__":
    main()
