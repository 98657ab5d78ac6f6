"""Vehicle: kinds of vehicles from sensors along a road (Duarte and Hu, 2004)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.leaf import read_leaf
from evenhand.data.pool import Partition, Pool
from evenhand.data.samples import Part
from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.errors import DataError, first_line, require, require_choice, require_whole

HOME = "https://raw.githubusercontent.com/litian96/ditto/602f571de561f7796104860108dfa91182bfbcd8/data/vehicle/data/train/mytrain.json"
CHECKSUM = "sha256:a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc"
WHOLE = File("vehicle.mat")  # of the code of MOCHA and q-FFL: all samples, raw
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
    """Load 100 acoustic and seismic features of two kinds of vehicles; each of 23 sensors is a
    client.

    If ``vehicle.mat`` of MOCHA's and q-FFL's code is in the folder (cells X and Y, one entry per
    sensor), all 43,695 samples are used; otherwise the 1,860 samples of a training split made by
    Ditto's rule, 7 to 534 per sensor.

    Args:
        standardise: "given" uses features standardised per sensor over all of its samples,
            including later test samples, as in the papers. "train" standardises each client by its
            own training samples, with the same result as from raw features; a constant feature is
            only centred.
        least: skip sensors with fewer samples.
    """
    require_choice("standardise", standardise, ("given", "train"))
    federation = deal(read(root, least), partition, split, seed, clients)
    return federation if standardise == "given" else standardised(federation)


def read(root: Path | str | None = None, least: int = 1) -> Pool:
    """Read all samples; labels -1 and 1 become 0 and 1."""
    whole = find(WHOLE, [folder_of("vehicle", root)])
    if whole is not None:
        return parse_cells(whole, read_file(whole, WHOLE), least)
    (path,) = locate("vehicle", FILES, root)
    return read_leaf(path, "numbers", least=least, file=FILES[0])


def parse_cells(path: Path, content: bytes, least: int = 1) -> Pool:
    """Parse a MATLAB file with cells X, (n, features) per sensor, and Y, n labels -1 or 1.

    Features are standardised per sensor.
    """
    from scipy.io import loadmat

    require_whole("least", least, 1)
    try:
        table = loadmat(io.BytesIO(content))
        features = [np.asarray(one, dtype=np.float64) for one in table["X"].ravel()]
        labels = [np.asarray(one, dtype=np.float64).ravel() for one in table["Y"].ravel()]
    except Exception as error:  # SciPy raises many kinds of errors on damaged files
        problem = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise DataError(f"{path} is not the file of MOCHA's code: {problem}") from error
    if len(features) != len(labels):
        raise DataError(f"{path}: X has {len(features)} sensors, but Y has {len(labels)}")
    kept = [sensor for sensor, one in enumerate(labels) if len(one) >= least]
    require(bool(kept), "no sensor has {} samples; lower least", least)
    for sensor in kept:
        x, y = features[sensor], labels[sensor]
        if x.ndim != 2 or len(x) != len(y) or x.shape[1] != features[kept[0]].shape[1]:
            raise DataError(
                f"{path}, sensor {sensor}: X has shape {x.shape} and Y {len(y)} labels; they must"
                f" have the same number of rows and {features[kept[0]].shape[1]} features"
            )
        if not np.isfinite(x).all() or not np.isin(y, (-1, 1)).all():
            raise DataError(f"{path}, sensor {sensor}: X must be finite, Y -1 or 1")
    sizes = [len(labels[sensor]) for sensor in kept]
    return Pool(
        x=torch.from_numpy(np.concatenate([_scaled(features[sensor]) for sensor in kept])).float(),
        y=torch.from_numpy(np.concatenate([labels[sensor] > 0 for sensor in kept])).long(),
        label_names=("-1", "1"),
        client=torch.repeat_interleave(torch.arange(len(kept)), torch.tensor(sizes)),
        client_names=tuple(f"f_{sensor:05}" for sensor in kept),
    )


def _scaled(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale every column to mean 0 and variance 1; a constant column is only centred."""
    centre, spread = x.mean(axis=0), x.std(axis=0)
    constant = spread <= 1e-9 * np.maximum(np.abs(centre), 1)
    scaled: NDArray[np.float64] = (x - centre) / np.where(constant, 1.0, spread)
    return scaled


def standardised(federation: Federation) -> Federation:
    """Scale every client's features to mean 0 and variance 1 on its own training samples."""
    owners, x, clients = federation.train.owners, _values(federation.train), federation.clients
    sizes = federation.train.sizes[:, None]

    def mean(values: Tensor) -> Tensor:  # (n, features), of each client
        return (
            torch.zeros(clients, values.shape[1], dtype=torch.float64).index_add_(0, owners, values)
            / sizes
        )

    centre = mean(x)
    spread = mean((x - centre[owners]) ** 2).sqrt()
    spread[spread <= 1e-9 * centre.abs().clamp(min=1)] = 1  # constant up to rounding

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
    values: Tensor = part.x[:]
    return values.double()
