"""A round of every method beside one of FedAvg, on the same engine.

FEMNIST's network and shape (on a CPU a smaller network), 20 of 100 clients, 160 images each,
batches of 32, five epochs. The bar holds for methods whose server needs sums alone, that ask no
question before training and keep nothing on clients; the others are stated. Some look once more at
all of a client's data (a loss before or after training): with E local epochs that is 1 / 3E of
FedAvg's arithmetic, whatever the engine, so 7 % of five. Runs of FedAvg are spread among the
others, and each method is compared with the mean of its two neighbours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import torch

import evenhand as eh
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import Rounds, federation_of, images, run_rounds
from evenhand.algorithm import visible
from evenhand.algorithms import ALGORITHMS
from evenhand.models import CNN

CLIENTS, COHORT, SAMPLES, BATCH, EPOCHS, GROUPS, TEAMS = 100, 20, 160, 32, 5, 2, 4
BETWEEN = 4  # methods between two runs of FedAvg
MOST = 1.15


def methods(options: Options) -> Iterator[Figure]:
    """All methods with their defaults. On CUDA steps are captured, but not compiled: that would
    take a while for each of them."""
    options = replace(options, compiled=False)
    clients = 20 if options.quick else CLIENTS
    x, y = images(clients * SAMPLES, (1, 28, 28), 62)
    fed = federation_of(x, y, clients, groups=GROUPS)
    in_teams = federation_of(x, y, clients, teams=TEAMS)
    torch.manual_seed(0)
    module = CNN() if options.cuda else CNN(channels=(8, 16), hidden=(64,))
    names = [name for name in ALGORITHMS if name != "fedavg"]

    def run(name: str) -> Rounds:
        warm_up, measured = (8, 6) if options.quick else (12, 15)
        return run_rounds(
            module,
            in_teams if name == "gifair" else fed,
            ALGORITHMS[name](),
            options,
            warm_up=warm_up,
            measured=measured,
            local=eh.LocalSGD(lr=0.01, epochs=EPOCHS, batch_size=BATCH),
            cohort=eh.Uniform(min(COHORT, clients)),
        )

    run("fedavg")  # whatever is done once in a process
    before = run("fedavg")
    for begin in range(0, len(names), BETWEEN):
        found = {name: run(name) for name in names[begin : begin + BETWEEN]}
        after = run("fedavg")
        base = statistics.mean([before.median, after.median])
        for name, rounds in found.items():
            needs = needed(ALGORITHMS[name](), in_teams if name == "gifair" else fed, module)
            yield Figure(
                f"`{name}`" if not needs else f"`{name}`: {', '.join(needs)}",
                "ms a round",
                1e3 * rounds.median,
                peer="FedAvg",
                theirs=1e3 * base,
                most=float("inf") if needs else MOST,
                memory=rounds.memory,
                warm_up=rounds.warm_up,
            )
        before = after


def needed(algorithm: eh.Algorithm, fed: eh.Federation, module: torch.nn.Module) -> list[str]:
    """What a method needs beyond sums over its cohort, in words."""
    census, params = fed.census(), dict(module.named_parameters())
    needs = [f"sees {what}" for what in visible(algorithm, census)]
    question = algorithm.question()
    asks = question is not None and question.ask(algorithm.init(params, census)) is not None
    needs += ["asks before training"] if asks else []
    needs += ["all data in every step"] if algorithm.local_work().whole_data else []
    needs += ["clients remember"] if algorithm.memory(params) else []
    return needs
