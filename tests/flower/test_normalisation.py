"""Networks with BatchNorm in a real federation: the normalisation of FedBN stays on the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Message

import evenhand as eh
from evenhand.errors import SpecError
from evenhand.files import read_tensors
from evenhand.flower import client_app, server_app
from evenhand.flower.wire import read_normalisation
from tests.support.batchnorm import FED, SIZES, arrays, mlp, norm_keys
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import trusting

OPTIONS: dict[str, Any] = {"local": eh.LocalSGD(0.05, batch_size=5, momentum=0.5), "seed": 3}


def federated(method: eh.Algorithm, out: Path, **options: Any) -> tuple[eh.Result, list[Message]]:
    module = mlp(torch.float32)
    held = [
        eh.Federation.from_arrays([own], test=[judged])
        for own, judged in zip(arrays(SIZES), arrays((4, 4, 4), 1), strict=True)
    ]
    app = client_app(module, lambda config: held[int(config["partition-id"])])
    configs: list[dict[str, Any]] = [
        {
            "partition-id": client,
            "state-dir": str(out / f"state-{client}"),
            "policy": trusting(out),
            "share": "client",
        }
        for client in range(FED.clients)
    ]
    replies, found = list[Message](), list[eh.Result]()

    def listen(node: int, reply: Message) -> list[Message]:
        replies.append(reply)
        return [reply]

    grid = InProcessGrid(app, configs, listen)
    server_app(
        method, module, clients=FED.clients, out=out / "run", finished=found.append, bound=None,
        by_client=True, **OPTIONS, **options,
    )(grid, grid.contexts[1])  # fmt: skip
    return found[0], [*grid.sent, *replies]


@pytest.mark.parametrize(
    "method",
    [eh.FedAvg(), eh.Ditto(), eh.QFFL(q=1.0), eh.FineTuned()],
    ids=lambda m: type(m).__name__,
)
def test_nodes_keep_their_normalisation_as_in_the_simulator(
    method: eh.Algorithm, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"rounds": 2, "normalisation": "local"}
    found, seen = federated(method, tmp_path, **options)
    wanted = eh.fit(mlp(torch.float32), FED, method, engine="loop", **OPTIONS, **options)
    for key, value in wanted.params.items():
        assert torch.equal(found.params[key], value), key
    assert found.scores["loss"].tolist() == pytest.approx(wanted.scores["loss"].tolist(), abs=1e-9)
    own = norm_keys(mlp())
    messages = b"".join(
        array.data
        for message in seen
        for record in message.content.array_records.values()
        for array in record.values()
    )
    assert b'"1.weight"' in messages
    assert not [key for key in own if f'"{key}"'.encode() in messages]


def test_a_nodes_memory_has_the_normalisation_of_the_simulator(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 2, "normalisation": "local"}
    federated(eh.FedAvg(), tmp_path, **options)
    wanted = eh.fit(mlp(torch.float32), FED, eh.FedAvg(), engine="loop", **OPTIONS, **options)
    for client, own in enumerate(wanted.personal or []):
        (path,) = (tmp_path / f"state-{client}").rglob("after-1.safetensors")
        kept = read_tensors(path)[0]
        for key in norm_keys(mlp()):
            value = kept[f"normalisation/{key}"]
            assert torch.equal(value.to(own[key].dtype), own[key]), key


def test_frozen_statistics_are_frozen_on_nodes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 1, "normalisation": "frozen"}
    found, _ = federated(eh.FedAvg(), tmp_path, **options)
    wanted = eh.fit(mlp(torch.float32), FED, eh.FedAvg(), engine="loop", **OPTIONS, **options)
    assert all(torch.equal(found.params[key], value) for key, value in wanted.params.items())
    assert 'normalisation = "frozen"' in (tmp_path / "run" / "spec.toml").read_text()


def test_a_node_refuses_an_unknown_normalisation() -> None:
    assert read_normalisation(None) is None
    for asked in ("global", 3, ["local"]):
        with pytest.raises(SpecError, match="unknown normalisation; install the same version"):
            read_normalisation(asked)
