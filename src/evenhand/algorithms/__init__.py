"""The methods, by name."""

from __future__ import annotations

from evenhand.algorithm import Algorithm
from evenhand.algorithms.aaggff import AAggFF
from evenhand.algorithms.adafed import AdaFed
from evenhand.algorithms.afl import AFL
from evenhand.algorithms.agnosticfedavg import AgnosticFedAvg
from evenhand.algorithms.averaged import Averaged
from evenhand.algorithms.clipped import Clipped
from evenhand.algorithms.deltafl import DeltaFL
from evenhand.algorithms.ditto import Ditto
from evenhand.algorithms.drfa import DRFA
from evenhand.algorithms.eagle import EAGLE
from evenhand.algorithms.fafl import FAFL
from evenhand.algorithms.fairfed import FairFed
from evenhand.algorithms.fcfl import FCFL
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.fedce import FedCE
from evenhand.algorithms.fedfb import FedFB
from evenhand.algorithms.fedfv import FedFV
from evenhand.algorithms.fedgini import FedGini
from evenhand.algorithms.fedheal import FedHEAL
from evenhand.algorithms.fedlf import FedLF
from evenhand.algorithms.fedmdfg import FedMDFG
from evenhand.algorithms.fedmgda import FedMGDA
from evenhand.algorithms.fedminmax import FedMinMax
from evenhand.algorithms.fedprox import FedProx
from evenhand.algorithms.finetuned import FineTuned
from evenhand.algorithms.gifair import GIFAIR
from evenhand.algorithms.groupconstraint import GroupConstraint
from evenhand.algorithms.levels import random_levels
from evenhand.algorithms.localonly import LocalOnly
from evenhand.algorithms.lossguard import LossGuard
from evenhand.algorithms.mfairfl import MFairFL
from evenhand.algorithms.private import Private
from evenhand.algorithms.propfair import PropFair
from evenhand.algorithms.qffl import QFFL
from evenhand.algorithms.reweighed import Reweighed
from evenhand.algorithms.robust import CoordinateMedian, GeometricMedian, TrimmedMean
from evenhand.algorithms.serveroptimizers import FedAdam, FedAvgM
from evenhand.algorithms.term import TERM

__all__ = [
    "AFL",
    "ALGORITHMS",
    "DRFA",
    "EAGLE",
    "FAFL",
    "FCFL",
    "GIFAIR",
    "QFFL",
    "TERM",
    "AAggFF",
    "AdaFed",
    "AgnosticFedAvg",
    "Averaged",
    "Clipped",
    "CoordinateMedian",
    "DeltaFL",
    "Ditto",
    "FairFed",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCE",
    "FedFB",
    "FedFV",
    "FedGini",
    "FedHEAL",
    "FedLF",
    "FedMDFG",
    "FedMGDA",
    "FedMinMax",
    "FedProx",
    "FineTuned",
    "GeometricMedian",
    "GroupConstraint",
    "LocalOnly",
    "LossGuard",
    "MFairFL",
    "Private",
    "PropFair",
    "Reweighed",
    "TrimmedMean",
    "random_levels",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "afl": AFL,
    "qffl": QFFL,
    "term": TERM,
    "fafl": FAFL,
    "gifair": GIFAIR,
    "fedminmax": FedMinMax,
    "propfair": PropFair,
    "fedmgda": FedMGDA,
    "ditto": Ditto,
    "deltafl": DeltaFL,
    "drfa": DRFA,
    "agnosticfedavg": AgnosticFedAvg,
    "fedfv": FedFV,
    "aaggff": AAggFF,
    "adafed": AdaFed,
    "groupconstraint": GroupConstraint,
    "fedlf": FedLF,
    "localonly": LocalOnly,
    "fedfb": FedFB,
    "fairfed": FairFed,
    "mfairfl": MFairFL,
    "fedmdfg": FedMDFG,
    "eagle": EAGLE,
    "fedheal": FedHEAL,
    "fedce": FedCE,
    "fedgini": FedGini,
    "reweighed": Reweighed,
    "fcfl": FCFL,
    "finetuned": FineTuned,
    "averaged": Averaged,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "clipped": Clipped,
    "lossguard": LossGuard,
    "coordinatemedian": CoordinateMedian,
    "trimmedmean": TrimmedMean,
    "geometricmedian": GeometricMedian,
    "private": Private,
}
