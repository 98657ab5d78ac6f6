"""Rounds and sweeps of this checkout beside those of another one, taking turns in the same run.

    git worktree add ../before v0.1.0
    python -m benchmarks.versus ../before/src            # on a CPU
    python -m benchmarks.versus ../before/src --device cuda

Every turn is a process of its own. A case's figure is the time from its tenth to its last round,
divided by the rounds: on a CPU the process's own time, on one thread. The ratio is that of the
medians over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM = 10  # rounds before the clock starts
CASES = ("logistic", "cnn", "ditto", "afl", "stack", "stack-cnn", "deltafl-stack")


def child(case: str, device: str, rounds: int) -> float:
    """Seconds of a round."""
    import numpy as np
    import torch

    import evenhand as eh
    from evenhand.models import CNN

    rng, name = np.random.default_rng(0), case.removesuffix("-stack")
    image = "cnn" in case
    shape = (1, 28, 28) if image else (60,)

    def samples(count: int) -> dict[str, Any]:
        x = rng.normal(size=(count, *shape)).astype(np.float32)
        return {"x": x, "y": rng.integers(0, 10, count)}

    fed = eh.Federation.from_arrays(
        [samples(60) for _ in range(40)], test=[samples(10) for _ in range(40)]
    )
    torch.manual_seed(0)
    small = CNN(channels=(8, 16), hidden=(64,), outputs=10) if image else torch.nn.Linear(60, 10)
    method = {"ditto": eh.Ditto(), "afl": eh.AFL(), "deltafl": eh.DeltaFL()}.get(name, eh.FedAvg())
    local = eh.LocalSGD(lr=0.05, epochs=1, batch_size=10)
    settings: dict[str, Any] = {
        "rounds": rounds + WARM,
        "cohort": eh.Uniform(10),
        "eval_every": 10,
        "engine": "vmap",
        "device": device,
    }
    clock: dict[int, float] = {}

    def after(_: Any, done: Any) -> None:
        done = done if isinstance(done, int) else _
        if done == WARM or done == rounds + WARM:
            if device != "cpu":
                torch.cuda.synchronize()
            clock[done] = time.process_time() if device == "cpu" else time.perf_counter()

    if "stack" in case:
        runs = [eh.Run(method, seed=seed, local=local) for seed in range(4 if image else 20)]
        eh.fit_many(small, fed, runs, progress=after, **settings)
    else:
        eh.fit(small, fed, method, local=local, progress=after, **settings)
    return (clock[rounds + WARM] - clock[WARM]) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the src folder of another checkout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.device, options.rounds)))
        return
    options.other = options.other.resolve()
    here = Path(__file__).resolve().parents[1] / "src"
    print(f"{'case':>15} {'old':>9} {'new':>9}  ratio (each turn)")
    for case in options.cases:
        times: dict[Path, list[float]] = {options.other: [], here: []}
        for turn in range(options.turns):
            for source in (options.other, here)[:: 1 if turn % 2 else -1]:
                command = [sys.executable, __file__, str(source), "--child", case]
                command += ["--device", options.device, "--rounds", str(options.rounds)]
                path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
                found = subprocess.run(
                    command,
                    env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if found.returncode:
                    sys.exit(found.stderr)
                times[source].append(float(found.stdout.splitlines()[-1]))
        old, new = (statistics.median(times[source]) * 1e3 for source in (options.other, here))
        ratios = [n / o for n, o in zip(times[here], times[options.other], strict=True)]
        listed = " ".join(f"{ratio:.2f}" for ratio in ratios)
        median = new / old
        print(f"{case:>15} {old:6.2f} ms {new:6.2f} ms  {median:.3f}  ({listed})", flush=True)


if __name__ == "__main__":
    main()
