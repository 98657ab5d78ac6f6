"""Describes a client's work as text, from which the node rebuilds the same work.

A method travels as its name and settings, never as code: a node runs only evenhand's own methods
and those that its owner gave to :func:`evenhand.flower.client_app`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenhand.algorithm import MOMENTS, Algorithm
from evenhand.algorithms.local_norms import LocalNorms, is_of_shared_model, unwrapped
from evenhand.algorithms.naming import algorithm_table
from evenhand.data.samples import PARTS
from evenhand.engines.work import Ask, Evaluate, Train, Work
from evenhand.errors import SpecError
from evenhand.local import LocalSolver, built_solver, solver_table
from evenhand.metrics.client_sums import CELLS
from evenhand.metrics.measuring import Measured
from evenhand.model import Model
from evenhand.norms import NORMALISATIONS
from evenhand.studies.specs.method import build_algorithm

OWN = "node's own"  # stands for a method that is not evenhand's
MOST = 1 << 31  # clients, and groups
SAME = "install the same version of evenhand everywhere"


def describe_work(work: Work, method: Algorithm) -> str:
    """``work`` of a run of ``method`` as text."""
    if isinstance(work, Train):
        found: dict[str, Any] = {"kind": work.name, "local": solver_table(work.local)}
    elif isinstance(work, Evaluate):
        found = {
            "kind": work.name,
            "groups": work.groups,
            "full": work.full,
            "clients": work.clients,
            "by_client": work.by_client,
            "by_label": work.by_label,
            "metrics": [metric.key for metric in work.metrics],
            "cells": work.cells,
        }
    elif isinstance(work, Ask):
        found = {"kind": work.name, "moment": work.moment}
    else:
        raise TypeError(f"{type(work).__name__} cannot be sent to nodes")
    return json.dumps(found | {"part": work.part, **_method(work.algorithm, method)})


def _method(algorithm: Algorithm, method: Algorithm) -> dict[str, Any]:
    """The method whose functions the work uses: the run's own, the one after its last round, or
    none."""
    if type(algorithm) is Algorithm or is_of_shared_model(algorithm):
        return {"plain": True}
    algorithm = unwrapped(algorithm)
    last = algorithm != method and algorithm == method.local_work().last
    try:
        table: Any = algorithm_table(method if last else algorithm)
    except SpecError:
        table = OWN
    return {"method": table, "last": last}


def read_work(text: str, own: Algorithm | None = None) -> Work:
    """Read a text of :func:`describe_work`; raises a one-line SpecError if a node should not do it.

    ``own``: the method that the node's owner gave.
    """
    asked = _parsed(text)
    algorithm, part, kind = _algorithm(asked, own), asked.get("part"), asked.get("kind")
    if part not in PARTS:
        raise SpecError(f"the server asks for an unknown part of the data; {SAME}")
    if kind == Train.name:
        return Train(algorithm, _local(asked.get("local")), part)
    if kind == Evaluate.name:
        full, by_client = asked.get("full"), asked.get("by_client")
        by_label = asked.get("by_label", False)  # an older server does not ask for it
        if type(full) is not bool or type(by_client) is not bool or type(by_label) is not bool:
            raise SpecError(f"full, by_client and by_label must be true or false; {SAME}")
        return Evaluate(
            algorithm,
            _number(asked, "groups", 0),
            part,
            full,
            _number(asked, "clients", 1),
            by_client,
            by_label,
            # an older server does not send it
            cells=_number({"cells": CELLS} | dict(asked), "cells", 1, CELLS),
        )
    if kind == Ask.name:
        moment = asked.get("moment", "before")
        if moment not in MOMENTS:
            raise SpecError(f"the server asks at an unknown moment of the round; {SAME}")
        return Ask(algorithm, part, moment)
    raise SpecError(f"the server asks for an unknown kind of work; {SAME}")


def read_normalisation(asked: object) -> str | None:
    """Read the run's ``Settings.normalisation``; an older server does not send one."""
    if asked is None or asked in NORMALISATIONS:
        return asked
    raise SpecError(f"the server asks for an unknown normalisation; {SAME}")


def with_own_norms(work: Work, model: Model) -> Work:
    """The same work with local normalisation, if the model has it."""
    if model.normalisation != "local" or not isinstance(work, Train | Evaluate | Ask):
        return work
    return replace(work, algorithm=LocalNorms(work.algorithm, model))


def with_metrics(work: Work, text: str, own: Callable[[], Sequence[Measured]]) -> Work:
    """Return the work of a text with the metrics it asks for, which the node must have.

    ``own`` returns those that the node has.
    """
    if not isinstance(work, Evaluate):
        return work
    keys = _parsed(text).get("metrics", [])  # an older server does not ask for any
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise SpecError(f"metrics must be a list of texts; {SAME}")
    known = {metric.key: metric for metric in own()} if keys else {}
    lacking = [key.partition(":")[2] for key in keys if key not in known]
    if lacking:
        raise SpecError(
            f"the run evaluates metrics that this node does not have: {', '.join(lacking)}; give"
            " them to client_app(metrics=...) on every node, with the same better"
        )
    return replace(work, metrics=tuple(known[key] for key in keys))


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # including a number with thousands of digits
        raise SpecError(f"the server's request cannot be read; {SAME}") from error
    if not isinstance(found, dict):
        raise SpecError(f"the server's request cannot be read; {SAME}")
    return found


def _local(settings: Any) -> LocalSolver:
    try:
        return built_solver(settings)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"the server sent invalid settings for the local solver; {SAME}") from error


def _built(table: Any) -> Algorithm:
    try:
        return build_algorithm(table)
    except (OverflowError, RecursionError) as error:
        raise SpecError(f"the server sent invalid settings for the method; {SAME}") from error


def _number(asked: Mapping[str, Any], name: str, least: int, most: int = MOST) -> int:
    value = asked.get(name)
    if type(value) is not int or not least <= value <= most:
        raise SpecError(f"{name} must be a whole number from {least} to {most}; {SAME}")
    return value


def _algorithm(asked: Mapping[str, Any], own: Algorithm | None) -> Algorithm:
    if asked.get("plain") is True:
        return Algorithm()
    method, after_last = asked.get("method"), asked.get("last")
    if type(after_last) is not bool:
        raise SpecError(f"last must be true or false; {SAME}")
    if method == OWN:
        if own is None:
            raise SpecError(
                "the run's method is not one of evenhand's; give it to client_app(algorithm=...) on"
                " every node"
            )
        algorithm = own
    else:
        algorithm = _built(method)
    if not after_last:
        return algorithm
    last = algorithm.local_work().last
    if last is None:
        raise SpecError(f"{type(algorithm).__name__} has no work after the last round")
    return last
