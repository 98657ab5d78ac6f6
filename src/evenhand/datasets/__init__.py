"""Data sets as federations, such as ``evenhand.datasets.adult()``.

Most loaders take these arguments:

- ``partition``: how samples are distributed over clients: a name from
  ``evenhand.partitions.PARTITIONS``, or a mapping with its "name" and settings. By default, the
  data's own clients if they have any.
- ``split``: how each client's samples are split, such as "official" or
  ``{"val": 0.1, "test": 0.2}``; by default the official test set, or a fifth for testing.
- ``seed``: of partition and split.
- ``clients``: the number of clients.
- ``root``: the folder of all data sets; by default $EVENHAND_DATA or the user's cache directory.

``evenhand data list`` shows all data sets with their size, source and licence.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenhand.data.federation import Federation
    from evenhand.datasets.loaders.acs_income import acs_income
    from evenhand.datasets.loaders.adult import adult
    from evenhand.datasets.loaders.airline_sentiment import airline_sentiment
    from evenhand.datasets.loaders.cifar import cifar10, cifar100
    from evenhand.datasets.loaders.cinic10 import cinic10
    from evenhand.datasets.loaders.compas import compas
    from evenhand.datasets.loaders.digits import digits
    from evenhand.datasets.loaders.emnist import emnist
    from evenhand.datasets.loaders.fashion_mnist import fashion_mnist
    from evenhand.datasets.loaders.femnist import femnist
    from evenhand.datasets.loaders.heart_disease import heart_disease
    from evenhand.datasets.loaders.landmine import landmine
    from evenhand.datasets.loaders.leaf import leaf
    from evenhand.datasets.loaders.leaf_shakespeare import leaf_shakespeare
    from evenhand.datasets.loaders.mnist import mnist, mnist_writers
    from evenhand.datasets.loaders.population import population
    from evenhand.datasets.loaders.sent140 import sent140
    from evenhand.datasets.loaders.shakespeare import shakespeare
    from evenhand.datasets.loaders.stackoverflow import stackoverflow
    from evenhand.datasets.loaders.synthetic import synthetic
    from evenhand.datasets.loaders.synthetic_minimax import synthetic_minimax
    from evenhand.datasets.loaders.table import table
    from evenhand.datasets.loaders.vehicle import vehicle

# if its name differs from the function's. Loaders are imported on first use: some need pandas.
_MODULE_OF = {"cifar10": "cifar", "cifar100": "cifar", "mnist_writers": "mnist"}

DATASETS = (
    "acs_income",
    "adult",
    "airline_sentiment",
    "cifar10",
    "cifar100",
    "cinic10",
    "compas",
    "digits",
    "emnist",
    "fashion_mnist",
    "femnist",
    "heart_disease",
    "landmine",
    "leaf_shakespeare",
    "mnist",
    "mnist_writers",
    "population",
    "sent140",
    "shakespeare",
    "stackoverflow",
    "synthetic",
    "synthetic_minimax",
    "vehicle",
)
FORMATS = ("leaf", "table")  # loaders of users' own files

__all__ = [
    "DATASETS",
    "FORMATS",
    "acs_income",
    "adult",
    "airline_sentiment",
    "cifar10",
    "cifar100",
    "cinic10",
    "compas",
    "digits",
    "emnist",
    "fashion_mnist",
    "femnist",
    "heart_disease",
    "landmine",
    "leaf",
    "leaf_shakespeare",
    "loader",
    "mnist",
    "mnist_writers",
    "population",
    "sent140",
    "shakespeare",
    "stackoverflow",
    "synthetic",
    "synthetic_minimax",
    "table",
    "vehicle",
]


def loader(name: str) -> Callable[..., Federation]:
    """Return the function that loads a data set or format, by name."""
    function: Callable[..., Federation] = __getattr__(name)
    return function


def __getattr__(name: str) -> Any:
    if name not in DATASETS and name not in FORMATS:
        raise AttributeError(f"module 'evenhand.datasets' has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"evenhand.datasets.loaders.{_MODULE_OF.get(name, name)}"), name
    )


def __dir__() -> list[str]:
    return sorted(__all__)
