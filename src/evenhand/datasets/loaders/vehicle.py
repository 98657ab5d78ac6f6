"""Vehicle: kinds of vehicles from the sensors along a road (Duarte and Hu, 2004)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.leaf import read_leaf
from evenhand.data.pool import Partition, Pool
from evenhand.data.samples import Part, View
from evenhand.data.storage.file import File
from evenhand.data.storage.locate import locate
from evenhand.errors import require_choice

HOME = "https://raw.githubusercontent.com/litian96/ditto/602f571de561f7796104860108dfa91182bfbcd8/data/vehicle/data/train/mytrain.json"
CHECKSUM = "sha256:a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc"
FILES = (File("vehicle_ditto_train.json", url=HOME, checksum=CHECKSUM, content=CHECKSUM),)


def vehicle(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    standardise: str = "given",
    least: int = 1,
) -> Federation:
    """100 acoustic and seismic features of vehicles of two kinds; a client is one of 23 sensors,
    with 7 to 534 samples.

    These are the 1,860 samples of a training split made by Ditto's rule, of 43,695 in all.

    Args:
        standardise: "given" leaves features as they are in the file, standardised for each sensor
            over all of its samples, later test samples included, as in the papers; "train"
            standardises each client by its own training samples, which gives what the raw features
            would have given. A feature that is constant there is only centred.
        least: leave out sensors with fewer samples.
    """
    require_choice("standardise", standardise, ("given", "train"))
    federation = deal(read(root, least), partition, split, seed, clients)
    return federation if standardise == "given" else standardised(federation)


def read(root: Path | str | None = None, least: int = 1) -> Pool:
    """All samples; labels -1 and 1 become 0 and 1."""
    (path,) = locate("vehicle", FILES, root)
    return read_leaf(path, "numbers", least=least, file=FILES[0])


def standardised(federation: Federation) -> Federation:
    """The federation with every client's features scaled to mean 0 and variance 1 on its own
    training samples."""
    owners, x, clients = federation.train.owners, _values(federation.train), federation.clients
    sizes = federation.train.sizes[:, None]

    def mean(values: Tensor) -> Tensor:  # (n, features), of each client
        return (
            torch.zeros(clients, values.shape[1], dtype=torch.float64).index_add_(0, owners, values)
            / sizes
        )

    centre = mean(x)
    spread = mean((x - centre[owners]) ** 2).sqrt()
    spread[spread <= 1e-9 * centre.abs().clamp(min=1)] = 1  # constant but for rounding

    def scaled(part: Part | None) -> Part | None:
        return (
            None
            if part is None
            else replace(
                part, x=((_values(part) - centre[part.owners]) / spread[part.owners]).float()
            )
        )

    train = scaled(federation.train)
    assert train is not None
    return replace(
        federation, train=train, val=scaled(federation.val), test=scaled(federation.test)
    )


def _values(part: Part) -> Tensor:
    return (part.x[:] if isinstance(part.x, View) else part.x).double()
