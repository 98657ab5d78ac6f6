"""A federation of Flower nodes in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import evenhand as eh
from evenhand import tree
from evenhand.flower import client_app, server_app
from tests.support.flower_grid import InProcessGrid

SIZES = (1, 30, 7, 40, 12)
SETTINGS: dict[str, Any] = {
    "local": eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5),
    "seed": 3,
    "eval_every": 2,
}
# for runs of three rounds with few clients
FAST: dict[str, Any] = {
    "local": eh.LocalSGD(lr=0.05, batch_size=8, momentum=0.5),
    "seed": 3,
    "eval_every": 2,
}


def one_client(federation: eh.Federation, client: int) -> eh.Federation:
    """The data of one client by itself, with only the groups that it has, and its team where there
    are teams."""

    def arrays(part: Any) -> dict[str, Any]:
        x, y, group = part.client(client)
        return {"x": x, "y": y, "group": [federation.group_names[code] for code in group.tolist()]}

    team = (
        {}
        if federation.teams is None
        else {"team": federation.team_names[int(federation.teams[client])]}
    )
    return eh.Federation.from_arrays(
        [arrays(federation.train) | team], test=[arrays(federation.test)]
    )


def trusting(directory: Path) -> str:
    """The policy of an owner who trusts the server: for tests of a few samples that compare with
    the simulator."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "policy.toml"
    path.write_text('min-batch = 1\nmin-cell = 1\nrounds-per-day = 0\norder = "server"\n')
    return str(path)


class Setting:
    """A federation of nodes in this process."""

    def __init__(
        self,
        directory: Path,
        federation: eh.Federation,
        module: nn.Module,
        data: list[eh.Federation] | None = None,
        algorithm: eh.Algorithm | None = None,
        **changes: Any,
    ) -> None:
        self.directory, self.module, self.federation = directory, module, federation
        held = data or [one_client(federation, client) for client in range(federation.clients)]
        app = client_app(
            module,
            lambda config: held[int(config["partition-id"])],
            algorithm=algorithm,
            share="client",
        )
        policy = trusting(directory)
        configs = [
            {"partition-id": i, "state-dir": str(directory / f"state{i}"), "policy": policy}
            for i in range(federation.clients)
        ]
        self.grid = InProcessGrid(app, configs, **changes)

    def run(self, method: eh.Algorithm, rounds: int = 5, **settings: Any) -> eh.Result:
        found: list[eh.Result] = []
        options = {
            **SETTINGS,
            "clients": self.federation.clients,
            "out": self.directory / "run",
            "rounds": rounds,
            "by_client": True,
            **settings,
        }
        app = server_app(method, self.module, finished=found.append, **options)
        app(self.grid, self.grid.contexts[1])
        return found[0]


def flat(result: eh.Result) -> dict[str, torch.Tensor]:
    return tree.flatten({"params": result.params, "state": result.state})
