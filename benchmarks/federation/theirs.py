"""Flower's own FedAvg, with a client as Flower's users write it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.federation.problem import BATCH, LR, Watch, network, read_data

client = ClientApp()
server = ServerApp()


def _received(message: Message) -> nn.Module:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def _data(context: Context, part: str) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, read_data(str(context.node_config["data"]), part)))


@client.train()
def train(message: Message, context: Context) -> Message:
    model, data = _received(message), _data(context, "train")
    by_hand = bool(message.content["config"]["by-hand"])
    optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=LR)
    for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        else:  # the same step, without the second or two that torch takes to load its optimizers
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= LR * parameter.grad
    metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(data)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, data = _received(message), _data(context, "test")
    x, y = data.tensors
    with torch.no_grad():
        output = model(x)
    found = {
        "loss": float(F.cross_entropy(output, y)),
        "accuracy": float((output.argmax(1) == y).float().mean()),
    }
    return Message(
        RecordDict({"metrics": MetricRecord({**found, "num-examples": len(data)})}),
        reply_to=message,
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    from flwr.serverapp.strategy import FedAvg

    config = context.run_config
    Watch(grid, Path(str(config["stamps"])))
    strategy = FedAvg(
        fraction_evaluate=1.0 if config["evaluate"] else 0.0,
        min_available_nodes=int(config["clients"]),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord({"by-hand": config["by-hand"]}),
    )
    torch.save(result.arrays.to_torch_state_dict(), Path(str(config["out"])) / "model.pt")
