"""Which engine is faster for which model: milliseconds for one local step of all clients of a cohort.

    python -m benchmarks.engines [--device cuda]

Ten clients with 32 samples each, one step on all of them (batch 32) by everyone, FedAvg. Rounds of the engines alternate, so
that a busy machine slows all of them alike; the median round is shown. "auto" names the engine that engine="auto" takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch
from torch import nn

import evenhand as eh
from benchmarks.machine import describe
from evenhand.engines import choose
from evenhand.engines.work import Train
from evenhand.run import with_round

CLIENTS, BATCH, WARM_UP, MEASURED = 10, 32, 125, 25


class CharLSTM(nn.Module):
    """Characters to next character: embedding 8, LSTM layers, a dense layer on the last state."""

    def __init__(self, layers: int, units: int) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(80, 8), nn.Linear(units, 80)
        self.lstm = nn.LSTM(8, units, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(self.embedding(x))[0][:, -1])


def cnn() -> nn.Module:
    layers = (nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 62))


def small_cnn() -> nn.Module:
    layers = (nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 9, 62))


MODELS = {
    "logistic 784-10": (lambda: nn.Linear(784, 10), (784,), 10),
    "MLP 784-200-10": (lambda: nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), (784,), 10),
    "small CNN, 3 k parameters": (small_cnn, (1, 28, 28), 62),
    "FEMNIST CNN, 460 k parameters": (cnn, (1, 28, 28), 62),
    "LSTM 64, 20 characters": (lambda: CharLSTM(1, 64), (20,), 80),
    "LSTM 2 x 256, 80 characters": (lambda: CharLSTM(2, 256), (80,), 80),
}


def measure(name: str, device: torch.device) -> tuple[dict[str, float], str]:
    """Median milliseconds a round on each engine, and the engine that "auto" takes."""
    build, shape, classes = MODELS[name]
    torch.manual_seed(0)
    count = CLIENTS * BATCH
    x = torch.randint(0, 80, (count, *shape)) if "LSTM" in name else torch.randn(count, *shape)
    fed = eh.Federation(eh.Part(x, torch.randint(0, classes, (count,)), torch.arange(CLIENTS + 1) * BATCH))
    model = eh.Model(build()).to(device)
    census, algorithm, local = fed.census(), eh.FedAvg(), eh.LocalSGD(lr=0.01, steps=1, batch_size=BATCH)
    draw = eh.Full().draw(census, 0, 0)
    state = algorithm.init({key: value.cpu() for key, value in model.init().items()}, census)
    task, work = with_round(algorithm.task(state, draw.ids), draw, 0.01), Train(algorithm, local)
    attached = {"loop": eh.Loop().attach(model, fed, 0), "vmap": eh.Vmap().attach(model, fed, 0)}
    try:
        attached["vmap"].exchange(work, task, draw.ids, 0)
    except eh.ClientError:
        del attached["vmap"]  # cuDNN's recurrent layers cannot be stacked
    times: dict[str, list[float]] = {key: [] for key in attached}
    slow = device.type == "cpu" and (len(shape) == 3 or shape == (80,))  # nothing to trace for: a step is long
    for round in range(3 + 12 if slow else WARM_UP + MEASURED):
        for key, exchange in attached.items():
            begin = time.perf_counter()
            exchange.exchange(work, task, draw.ids, round)
            times[key].append(time.perf_counter() - begin)
    medians = {key: 1e3 * statistics.median(values[3 if slow else WARM_UP :]) for key, values in times.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that auto falls back is what the table shows
        return medians, type(choose("auto", model, fed)).__name__.lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    print(describe(), "" if device.type == "cpu" else torch.cuda.get_device_name(device))
    print("| model | loop, ms | vmap, ms | loop / vmap | auto |\n|---|---|---|---|---|")
    for name in MODELS:
        medians, auto = measure(name, device)
        stacked = f"{medians['vmap']:.1f} | {medians['loop'] / medians['vmap']:.2f}" if "vmap" in medians else "cannot | -"
        print(f"| {name} | {medians['loop']:.1f} | {stacked} | {auto} |", flush=True)


if __name__ == "__main__":
    main()
