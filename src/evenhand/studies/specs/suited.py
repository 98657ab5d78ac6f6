"""Default models and methods for given data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenhand.algorithms.naming import Table

if TYPE_CHECKING:
    from evenhand.data.federation import Federation


def suitable_model(federation: Federation) -> str:
    """The name of a first model: by the kind of samples, and for tables by the number of training
    samples."""
    x = federation.train.x
    if not x.is_floating_point():
        return "char_lstm" if x.dtype.itemsize == 1 else "text_lstm"
    return "linear" if len(x.shape) == 2 and len(x) < 5000 else "mlp"


def suitable_methods(federation: Federation) -> dict[str, Table]:
    """First methods to compare: the two references, then one for each kind of fairness that applies
    to these data."""
    methods: dict[str, Table] = {
        "fedavg": {},
        "localonly": {},
        "qffl": {"q": 1.0},
        "afl": {"lr_lambda": 0.1},
    }
    if federation.groups:
        methods["fedminmax"] = {"lr_mu": 0.05}
    if federation.teams is not None:
        methods["gifair"] = {"strength": 0.9}
    return methods | {"ditto": {"lam": 0.1}}
