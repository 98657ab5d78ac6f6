"""evenhand's FedAvg on the same problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.federation.problem import BATCH, LR, Watch, network, read_data
from evenhand.flower import client_app, server_app

NEVER = 1 << 30


def load(config: Mapping[str, Any]) -> dict[str, Any]:
    train, test = (
        dict(zip("xy", read_data(config["data"], part), strict=True)) for part in ("train", "test")
    )
    return {**train, "test": test}


client = client_app(network, load)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    import torch

    import evenhand as eh

    config = context.run_config
    Watch(grid, Path(str(config["stamps"])))
    out = Path(str(config["out"]))
    run = server_app(
        eh.FedAvg(),
        network,
        clients=int(config["clients"]),
        rounds=int(config["rounds"]),
        local=eh.LocalSGD(lr=LR, epochs=1, batch_size=BATCH),
        eval_every=1 if config["evaluate"] else NEVER,
        out=out / "run",
        finished=lambda result: torch.save(result.params, out / "model.pt"),
    )
    run(grid, context)
