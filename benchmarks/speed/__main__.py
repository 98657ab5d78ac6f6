"""Speed: figures beside peers and bars.

    python -m benchmarks.speed ROW ... [--device cuda] [--quick] [--check] [--json FILE]

Rows (several, or "cpu" or "cuda" for those that have bars there):

    cifar      pfl's CIFAR-10 benchmark, 1500 rounds end to end, beside pfl
    femnist    a local step of the FEMNIST CNN, 10 and 100 clients, beside a plain loop
    resnet     a local step of ResNet-18 with either stem, 10 clients, beside a plain loop
    charlstm   a local step of CharLSTM, 31 clients x 10 and 20 x 64 (10 x 10 on a CPU), beside a
               plain loop with nn.LSTM
    logistic   a round of logistic regression, beside a plain loop, pfl and Flower's simulation
    cnn        a local step of a small and a larger CNN, 10 clients, beside a plain loop and pfl
    sweep      20 values x 5 seeds trained together, beside one run
    adapters   a round of LoRA on frozen transformers, 10 and 50 clients, beside a plain loop
    methods    a round of every method, beside FedAvg on the same engine

python -m benchmarks.population has the row about a million clients, python -m
benchmarks.speed.growth how time grows with clients, width and local steps, python -m
benchmarks.speed.profile where the time of the first row goes.

Peers are installed by benchmarks/requirements-peers.txt; one that is missing is left out. --check
fails where a figure is below its bar. The share of the floor is the least time that the machine
needs (see benchmarks/speed/floors.py) over evenhand's. Warm-up (tracing, compiling, capturing) is
not part of the figures. Memory: CUDA, the most that tensors take at once; CPU, the most that the
process has had.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.machine import describe
from benchmarks.speed.adapters import adapters
from benchmarks.speed.cifar import cifar
from benchmarks.speed.figures import HEADER, Figure, Options, line, machine_limits
from benchmarks.speed.logistic import logistic
from benchmarks.speed.methods import methods
from benchmarks.speed.steps import charlstm, cnn, femnist, resnet
from benchmarks.speed.sweep import sweep

ROWS: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "cifar": cifar,
    "femnist": femnist,
    "resnet": resnet,
    "charlstm": charlstm,
    "logistic": logistic,
    "cnn": cnn,
    "sweep": sweep,
    "methods": methods,
    "adapters": adapters,
}
SETS = {
    "cuda": ("cifar", "femnist", "resnet", "charlstm", "sweep", "methods"),
    "cpu": ("logistic", "cnn", "charlstm"),
}
PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32",)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="+", choices=[*ROWS, *SETS], metavar="ROW")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=PRECISIONS["cuda"],
        help="default: fp32; on CUDA all three, where they have a bar",
    )
    parser.add_argument(
        "--engine", default="auto", help="default: auto on a CPU, the stacking engine on CUDA"
    )
    parser.add_argument(
        "--no-compile",
        dest="compiled",
        action="store_false",
        help="CUDA graphs alone, without torch.compile",
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--check", action="store_true", help="fail where a figure is below its bar")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    options = Options(
        device=device,
        quick=arguments.quick,
        precisions=tuple(arguments.precision or PRECISIONS[device.type]),
        engine=arguments.engine,
        compiled=arguments.compiled,
        peers=arguments.peers,
    )
    rows = list(dict.fromkeys(row for name in arguments.rows for row in SETS.get(name, (name,))))
    command = f"python -m benchmarks.speed {' '.join(sys.argv[1:])}"
    machine = f"{describe(device)}; {machine_limits(options)}"
    print(f"`{command}`\n{machine}\n\n{HEADER}", flush=True)
    found: list[dict[str, object]] = []
    failed = []
    for row in rows:
        begin = time.perf_counter()
        try:
            for figure in ROWS[row](options):
                print(line(figure), flush=True)
                found.append({"row": row, **figure.as_json()})
        except Exception:  # the other rows are measured all the same
            traceback.print_exc()
            failed.append(row)
        print(f"{row}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(
                json.dumps({"command": command, "machine": machine, "figures": found}, indent=1)
            )
    missed = [
        f"{figure['shape']} ({figure['peer'] or figure['unit']})"
        for figure in found
        if figure["missed"]
    ]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if arguments.check and missed:
        sys.exit(f"below the bar: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
