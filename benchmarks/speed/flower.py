"""Flower's simulation of the logistic row, in a process of its own: prints the seconds of each
round but the first as JSON.

    python -m benchmarks.speed.flower CLIENTS COHORT ROUNDS

Virtual nodes on the Ray backend with one core each, Flower's FedAvg without evaluation, and local
training as in the logistic row's plain loop.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, FEATURES, CLASSES, BATCH, LR = 50, 784, 10, 10, 0.1

client_app = ClientApp()


@cache
def loader(client: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """A client's data; they are made where they are needed, so that nothing is read."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch from the model received."""
    torch.set_num_threads(1)
    module = torch.nn.Linear(FEATURES, CLASSES)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    for x, y in loader(int(context.node_config["partition-id"])):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": SAMPLES}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class Checked(FedAvg):
    """Federated averaging that does not pass over clients that failed: a round without work would
    be fast."""

    expected = 0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [message.error.reason for message in replies if message.has_error()]
        # in the first round nodes are still registering
        if failed or (server_round > 1 and len(replies) != self.expected):
            raise RuntimeError(
                f"{len(failed)} of {len(replies)} clients failed, {self.expected} are expected:"
                f" {failed[:1]}"
            )
        return super().aggregate_train(server_round, replies)


def main() -> None:
    clients, cohort, rounds = map(int, sys.argv[1:])
    stamps: list[float] = []
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Checked(
            fraction_train=cohort / clients, fraction_evaluate=0.0, min_available_nodes=clients
        )
        strategy.expected = cohort
        arrays = ArrayRecord(torch.nn.Linear(FEATURES, CLASSES).state_dict())
        strategy.start(
            grid,
            arrays,
            num_rounds=rounds + 1,
            evaluate_fn=lambda *_: stamps.append(time.perf_counter()),
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1}},
    )
    if len(stamps) != rounds + 2:
        sys.exit(f"Flower finished {len(stamps) - 1} of {rounds + 1} rounds")
    # the first round starts the actors
    print(json.dumps([after - before for before, after in itertools.pairwise(stamps[1:])]))


if __name__ == "__main__":
    from benchmarks.speed import flower  # under this name the actors find it, too

    flower.main()
