"""evenhand's FedAvg with masked sums on the same problem."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.federation.problem import BATCH, LR, Watch, network
from evenhand.flower import SecureSums, server_app

NEVER = 1 << 30

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
        secure=SecureSums(mode=str(config["secure"])),
        out=out / "run",
        finished=lambda result: torch.save(result.params, out / "model.pt"),
    )
    run(grid, context)
