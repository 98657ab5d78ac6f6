"""The methods, by name."""

from __future__ import annotations

from evenhand.algorithm import Algorithm
from evenhand.algorithms.afl import AFL
from evenhand.algorithms.ditto import Ditto
from evenhand.algorithms.fafl import FAFL
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.fedminmax import FedMinMax
from evenhand.algorithms.gifair import GIFAIR
from evenhand.algorithms.propfair import PropFair
from evenhand.algorithms.qffl import QFFL

__all__ = ["AFL", "ALGORITHMS", "FAFL", "GIFAIR", "QFFL", "Ditto", "FedAvg", "FedMinMax", "PropFair"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "afl": AFL,
    "qffl": QFFL,
    "fafl": FAFL,
    "gifair": GIFAIR,
    "fedminmax": FedMinMax,
    "propfair": PropFair,
    "ditto": Ditto,
}
