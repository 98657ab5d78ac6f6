"""Fair federated learning: compare fair training methods, and see which clients and groups gain or
lose.

>>> import evenhand as eh
>>> fed = eh.datasets.digits(clients=6, seed=0)
>>> fed.clients
6
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# On some processors (AMD's) the rounding of MKL's matrix products depends on memory alignment, so a
# client's result would depend on its place in a chunk. This setting, made before MKL's first
# product, prevents that.
os.environ.setdefault("MKL_CBWR", "AUTO")
# By default, a thread without work waits in a loop for milliseconds, which is a third of the CPU
# time of small models. Now it sleeps after some ten microseconds. OpenMP reads this when torch is
# imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from evenhand.version import __version__

if TYPE_CHECKING:
    from evenhand import (
        algorithms,
        datasets,
        engines,
        losses,
        metrics,
        models,
        privacy,
        schedules,
        simplex,
        sklearn,
        testing,
        theory,
        track,
        tree,
    )
    from evenhand.algorithm import Algorithm, Certificate, LocalWork, Question, Reporting, Weighting
    from evenhand.algorithms import (
        AFL,
        ALGORITHMS,
        DRFA,
        EAGLE,
        FAFL,
        FCFL,
        GIFAIR,
        QFFL,
        TERM,
        AAggFF,
        AdaFed,
        AgnosticFedAvg,
        Averaged,
        Clipped,
        CoordinateMedian,
        DeltaFL,
        Ditto,
        FairFed,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedCE,
        FedFB,
        FedFV,
        FedGini,
        FedHEAL,
        FedLF,
        FedMDFG,
        FedMGDA,
        FedMinMax,
        FedProx,
        FineTuned,
        GeometricMedian,
        GroupConstraint,
        LocalOnly,
        LossGuard,
        MFairFL,
        Private,
        PropFair,
        Reweighed,
        TrimmedMean,
    )
    from evenhand.algorithms.wrapper import Wrapper
    from evenhand.benchmarking.entry import Benchmark, benchmark
    from evenhand.benchmarking.page import benchmark_page
    from evenhand.cohort import Cohort, Full, Poisson, Proportional, Uniform
    from evenhand.data import partitions, plots, shifts
    from evenhand.data.deal import deal
    from evenhand.data.federation import Federation
    from evenhand.data.nested import Nested
    from evenhand.data.pool import Deal, Pool
    from evenhand.data.population import Census, Population
    from evenhand.data.samples import Batch, Part
    from evenhand.data.tables.encoding import Encoding
    from evenhand.data.tables.files import read_table
    from evenhand.data.views import View
    from evenhand.engines import Engine, Loop, Masked, Vmap
    from evenhand.errors import (
        CallbackError,
        ClientError,
        DataError,
        EvenhandError,
        RunError,
        SpecError,
    )
    from evenhand.local import LocalAdam, LocalAdamW, LocalSGD, LocalSolver, SampleDP
    from evenhand.messages import Replies, Reply, Survey, Task
    from evenhand.metrics.metric import Metric
    from evenhand.metrics.thresholds import Thresholds
    from evenhand.model import Model
    from evenhand.page import figures
    from evenhand.page.audit import audit_page
    from evenhand.page.card.writing import card
    from evenhand.page.report import report
    from evenhand.papers.reproduction import Reproduction, reproduce
    from evenhand.secure.settings import SecureSums
    from evenhand.studies.audits.auditing import audit
    from evenhand.studies.entry import compare, load, sweep
    from evenhand.studies.exporting import export
    from evenhand.studies.findings import Findings, analyse
    from evenhand.studies.runs.study import Study
    from evenhand.studies.runs.trained import TrainedModel
    from evenhand.studies.runs.verifying import verify
    from evenhand.studies.specs.spec import Spec
    from evenhand.targets import Target
    from evenhand.training.callbacks import Callback, Moment, RunInfo
    from evenhand.training.ending import Stopped
    from evenhand.training.fit import fit
    from evenhand.training.result import Result
    from evenhand.training.settings import Settings
    from evenhand.training.stacks.fit_many import fit_many
    from evenhand.training.stacks.plan import Run
    from evenhand.training.stopping import EarlyStopping

# Names are imported on first use, so that `evenhand --help` does not wait for torch. Those that are
# listed nowhere here are methods.
_HOME = {
    "algorithm": [
        "Algorithm",
        "Certificate",
        "LocalWork",
        "Question",
        "Reporting",
        "Survey",
        "Weighting",
    ],
    "algorithms.wrapper": ["Wrapper"],
    "benchmarking.entry": ["Benchmark", "benchmark"],
    "benchmarking.page": ["benchmark_page"],
    "cohort": ["Cohort", "Full", "Poisson", "Proportional", "Uniform"],
    "data.deal": ["deal"],
    "data.federation": ["Federation"],
    "data.pool": ["Deal", "Pool"],
    "data.population": ["Census", "Population"],
    "data.nested": ["Nested"],
    "data.samples": ["Batch", "Part"],
    "data.views": ["View"],
    "data.tables.encoding": ["Encoding"],
    "data.tables.files": ["read_table"],
    "engines": ["Engine", "Loop", "Masked", "Vmap"],
    "errors": [
        "CallbackError",
        "ClientError",
        "DataError",
        "EvenhandError",
        "RunError",
        "SpecError",
    ],
    "secure.settings": ["SecureSums"],
    "training.stacks.fit_many": ["fit_many"],
    "training.stacks.plan": ["Run"],
    "local": ["LocalAdam", "LocalAdamW", "LocalSGD", "LocalSolver", "SampleDP"],
    "messages": ["Replies", "Reply", "Task"],
    "metrics.metric": ["Metric"],
    "metrics.thresholds": ["Thresholds"],
    "model": ["Model"],
    "page.audit": ["audit_page"],
    "page.card.writing": ["card"],
    "page.report": ["report"],
    "papers.reproduction": ["Reproduction", "reproduce"],
    "studies.audits.auditing": ["audit"],
    "studies.entry": ["compare", "load", "sweep"],
    "studies.exporting": ["export"],
    "studies.findings": ["Findings", "analyse"],
    "studies.specs.spec": ["Spec"],
    "studies.runs.study": ["Study"],
    "studies.runs.trained": ["TrainedModel"],
    "studies.runs.verifying": ["verify"],
    "training.callbacks": ["Callback", "Moment", "RunInfo"],
    "training.ending": ["Stopped"],
    "targets": ["Target"],
    "training.result": ["Result"],
    "training.fit": ["fit"],
    "training.settings": ["Settings"],
    "training.stopping": ["EarlyStopping"],
}
_SUBMODULES = {
    **{
        name: name
        for name in (
            "algorithms",
            "datasets",
            "engines",
            "losses",
            "metrics",
            "models",
            "privacy",
            "schedules",
            "simplex",
            "sklearn",
            "testing",
            "theory",
            "track",
            "tree",
        )
    },
    **{name: f"data.{name}" for name in ("partitions", "plots", "shifts")},
    "figures": "page.figures",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

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
    "Algorithm",
    "Averaged",
    "Batch",
    "Benchmark",
    "Callback",
    "CallbackError",
    "Census",
    "Certificate",
    "ClientError",
    "Clipped",
    "Cohort",
    "CoordinateMedian",
    "DataError",
    "Deal",
    "DeltaFL",
    "Ditto",
    "EarlyStopping",
    "Encoding",
    "Engine",
    "EvenhandError",
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
    "Federation",
    "Findings",
    "FineTuned",
    "Full",
    "GeometricMedian",
    "GroupConstraint",
    "LocalAdam",
    "LocalAdamW",
    "LocalOnly",
    "LocalSGD",
    "LocalSolver",
    "LocalWork",
    "Loop",
    "LossGuard",
    "MFairFL",
    "Masked",
    "Metric",
    "Model",
    "Moment",
    "Nested",
    "Part",
    "Poisson",
    "Pool",
    "Population",
    "Private",
    "PropFair",
    "Proportional",
    "Question",
    "Replies",
    "Reply",
    "Reporting",
    "Reproduction",
    "Result",
    "Reweighed",
    "Run",
    "RunError",
    "RunInfo",
    "SampleDP",
    "SecureSums",
    "Settings",
    "Spec",
    "SpecError",
    "Stopped",
    "Study",
    "Survey",
    "Target",
    "Task",
    "Thresholds",
    "TrainedModel",
    "TrimmedMean",
    "Uniform",
    "View",
    "Vmap",
    "Weighting",
    "Wrapper",
    "__version__",
    "algorithms",
    "analyse",
    "audit",
    "audit_page",
    "benchmark",
    "benchmark_page",
    "card",
    "compare",
    "datasets",
    "deal",
    "engines",
    "export",
    "figures",
    "fit",
    "fit_many",
    "load",
    "losses",
    "metrics",
    "models",
    "partitions",
    "plots",
    "privacy",
    "read_table",
    "report",
    "reproduce",
    "schedules",
    "shifts",
    "simplex",
    "sklearn",
    "sweep",
    "testing",
    "theory",
    "track",
    "tree",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"evenhand.{_SUBMODULES[name]}")
    if name not in __all__:
        raise AttributeError(f"module 'evenhand' has no attribute {name!r}")
    module = _MODULE_OF.get(name, "algorithms")
    value = getattr(importlib.import_module(f"evenhand.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
