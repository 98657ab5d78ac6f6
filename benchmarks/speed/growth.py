"""How the time of a round grows with clients, width of the model and local steps.

    python -m benchmarks.speed.growth measure FILE.json [--device cuda] [--quick]
    python -m benchmarks.speed.growth plot FILE.json ... --out docs/results/speed.svg

A convolutional network with two 5x5 convolutions on 28 x 28 images, batches of 32; 10 clients, 32
and 64 channels and 10 local steps where they do not vary, on a CPU 8 and 16 channels and 5 steps.
Medians of rounds. The dotted line is the least time that the machine needs, see
benchmarks/speed/floors.py. On CUDA steps are captured, but not compiled, unless --compile is given.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import evenhand as eh
from benchmarks.machine import describe
from benchmarks.speed import floors
from benchmarks.speed.figures import Options
from benchmarks.speed.ours import federation_of, images, run_rounds
from evenhand.models import CNN

BATCH, SAMPLES = 32, 64
PANELS = ("clients", "channels", "local steps")
GROWING = {
    "cuda": {
        "clients": [1, 2, 5, 10, 20, 50, 100, 200],
        "channels": [4, 8, 16, 32, 64, 128],
        "local steps": [1, 2, 5, 10, 20, 50, 100],
    },
    "cpu": {
        "clients": [1, 2, 5, 10, 20, 50],
        "channels": [2, 4, 8, 16, 32],
        "local steps": [1, 2, 5, 10, 20],
    },
}
FIXED = {
    "cuda": {"clients": 10, "channels": 32, "local steps": 10},
    "cpu": {"clients": 10, "channels": 8, "local steps": 5},
}


def measure(options: Options) -> list[dict[str, Any]]:
    """Seconds a round at every point, one thing growing at a time."""
    points = []
    for what, values in GROWING[options.device.type].items():
        for value in values[:: 2 if options.quick else 1]:
            setting = FIXED[options.device.type] | {what: value}
            clients, channels, steps = (setting[name] for name in PANELS)
            fed = federation_of(*images(clients * SAMPLES, (1, 28, 28), 62), clients)
            torch.manual_seed(0)
            module = CNN(channels=(channels, 2 * channels))
            rounds = run_rounds(
                module,
                fed,
                eh.FedAvg(),
                options,
                warm_up=6 if options.cuda else 2,
                measured=10 if options.cuda else 5,
                local=eh.LocalSGD(lr=0.01, steps=steps, batch_size=BATCH),
            )
            floor = floors.of_round(module, fed.train.x[:BATCH], clients, steps, options.device)
            point = {
                "grows": what,
                "value": value,
                **setting,
                "seconds": rounds.median,
                "floor": floor,
                "memory": rounds.memory,
            }
            print(
                f"{what} {value}: {1e3 * rounds.median:.2f} ms, floor {1e3 * floor:.2f} ms,"
                f" {rounds.memory:.2f} GB",
                flush=True,
            )
            points.append(point)
    return points


def plot(measured: list[dict[str, Any]], out: Path) -> None:
    """Three panels, a curve for each machine."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "evenhand", "font.size": 9})
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
    for colour, run in zip(("#1f5fa8", "#c1571a", "#3b7d3b"), measured, strict=False):
        for panel, what in zip(panels, PANELS, strict=True):
            points = [point for point in run["points"] if point["grows"] == what]
            values, times = [p["value"] for p in points], [1e3 * p["seconds"] for p in points]
            panel.plot(values, times, "o-", color=colour, markersize=3.5, label=run["label"])
            panel.plot(
                values,
                [1e3 * p["floor"] for p in points],
                ":",
                color=colour,
                linewidth=1,
                label=f"its floor, {run['label']}",
            )
            panel.set(
                xscale="log",
                yscale="log",
                xlabel={"channels": "channels of the first convolution"}.get(what, what),
            )
            panel.grid(alpha=0.3, which="major")
    for panel, what in zip(panels, PANELS, strict=True):
        ticks = sorted(
            {
                point["value"]
                for run in measured
                for point in run["points"]
                if point["grows"] == what
            }
        )
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.minorticks_off()
    panels[0].set_ylabel("milliseconds a round")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("measure", "plot"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="every second point")
    parser.add_argument(
        "--compile",
        dest="compiled",
        action="store_true",
        help="with torch.compile, which takes a while for each point",
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/speed.svg"))
    arguments = parser.parse_args()
    if arguments.action == "plot":
        plot(
            [json.loads(file.read_text(encoding="utf-8")) for file in arguments.files],
            arguments.out,
        )
        return
    options = Options(
        device=torch.device(arguments.device), quick=arguments.quick, compiled=arguments.compiled
    )
    machine = describe(options.device)
    label = (
        torch.cuda.get_device_name(options.device)
        if options.cuda
        else f"{torch.get_num_threads()} CPU cores"
    )
    print(machine)
    found = {"machine": machine, "label": label, "points": measure(options)}
    arguments.files[0].write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
