"""Every model: its trained parameters, and milliseconds for one local step of ten clients on either engine.

    python -m benchmarks.models [--device cuda]

Ten clients, one step on a batch of 32 (text: 10) by everyone, FedAvg, and folding their updates; measured as in benchmarks.engines.
"""

from __future__ import annotations

import argparse

import torch

import evenhand as eh
from benchmarks.engines import Case, measure
from benchmarks.machine import describe
from evenhand.models import CNN, MLP, CharLSTM, Linear, ResNet18, TextLSTM
from evenhand.models.cnn import VARIANTS

CASES = {
    "`Linear`, 784 to 10": Case(lambda: Linear(784, 10), (784,), 10),
    "`MLP`, 784 - 200 - 10": Case(lambda: MLP(784, 10, (200,)), (784,), 10),
    '`CNN` "ditto", 28 x 28, 62 classes': Case(lambda: CNN(**VARIANTS["ditto"]), (1, 28, 28), 62),
    '`CNN` "femnist", 28 x 28, 62 classes': Case(CNN, (1, 28, 28), 62),
    '`CNN` "leaf", 28 x 28, 62 classes': Case(lambda: CNN(**VARIANTS["leaf"]), (1, 28, 28), 62),
    '`CNN` "pfl", 3 x 32 x 32, 10 classes': Case(lambda: CNN((3, 32, 32), 10, **VARIANTS["pfl"]), (3, 32, 32), 10),
    "`CharLSTM`, 80 characters": Case(CharLSTM, (80,), 80, tokens=80, batch=10),
    "`TextLSTM`, 25 words of 100": Case(lambda: TextLSTM(torch.randn(1000, 100)), (25,), 2, tokens=1000, batch=10),
    '`ResNet18` "cifar", 3 x 32 x 32': Case(ResNet18, (3, 32, 32), 10),
    '`ResNet18` "imagenet", 3 x 32 x 32': Case(lambda: ResNet18(stem="imagenet"), (3, 32, 32), 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    print(describe(), "" if device.type == "cpu" else torch.cuda.get_device_name(device))
    print("| model | parameters | loop, ms | vmap, ms | auto |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        medians, auto = measure(case, device)
        size = f"{eh.Model(case.build()).size:,}".replace(",", " ")
        print(f"| {name} | {size} | {medians['loop']:.1f} | {medians['vmap']:.1f} | {auto} |", flush=True)


if __name__ == "__main__":
    main()
