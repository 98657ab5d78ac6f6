"""Starting a run: check everything, then begin at the first round or at the last checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from evenhand import tree
from evenhand.algorithm import Algorithm, State
from evenhand.algorithms.local_norms import LocalNorms
from evenhand.data.earlier import WEAKER
from evenhand.data.federation import Federation
from evenhand.data.population import Census, Population
from evenhand.errors import require, require_kind
from evenhand.losses import single_output
from evenhand.metrics.metric import named_metrics
from evenhand.metrics.trying import measured
from evenhand.model import Model
from evenhand.training.checkpoints import Checkpoints, Start, identify, identify_as_before
from evenhand.training.protecting import protected
from evenhand.training.settings import Settings

log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """What training starts from, after everything has been checked."""

    model: Model
    census: Census
    state: State
    algorithm: Algorithm  # the method as clients run it


def prepare(
    module: nn.Module, population: Population, algorithm: Algorithm, settings: Settings
) -> Prepared:
    """Check that these fit together; raise a one-line error if they do not."""
    simulated = not isinstance(population, Population) or isinstance(settings.engine, str)
    if simulated:  # other engines need no samples here
        require_kind("federation", population, Federation, "Federation.from_arrays(...)")
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    algorithm = protected(algorithm, settings, population.clients)
    model = Model(module, settings.loss, settings.output, settings.normalisation)
    model = model.with_precision(settings.precision)
    if settings.device is not None:
        model = model.to(_device(settings.device))
    model.check(population)
    model.metrics = measured(model, population, named_metrics(settings.metrics))
    algorithm.check(model)
    check_kept(model, population, settings)
    if algorithm.local_work().last is not None:
        why = ", in which all clients train once more after the last one"
        settings.local.require_rates(settings.rounds + 1, why)
    census = population.census(settings.weights)
    settings.cohort.check(census)
    if settings.normalisation == "local":
        algorithm = LocalNorms(algorithm, model)
    return Prepared(model, census, algorithm.init(model.init(), census), algorithm)


def check_kept(model: Model, population: Population, settings: Settings) -> None:
    """Raise if predictions are to be kept and cannot be; ``model`` has been checked."""
    if not settings.keep_predictions:
        return
    require(
        isinstance(population, Federation),
        "keep_predictions needs the samples, and in a real federation they stay with the nodes;"
        " leave it out",
    )
    shape = list(population.form.y_shape)
    require(not shape, "keep_predictions is for one label per sample; here it has shape {}", shape)
    if model.target.kind == "number":
        few = next(iter(population.examples())).first(1).to(model.dtype, model.device)
        with torch.no_grad():
            output = model.output(model.init(), few.x[:])
        require(
            single_output(output),
            "keep_predictions is for one prediction per sample; the module returns {} numbers",
            output[0].numel(),
        )


def require_out(out: str | Path | None, resume: bool, settings: Settings) -> None:
    """Raise if checkpoints are requested without a directory."""
    if out is None and (resume or settings.checkpoint_every):
        raise ValueError(
            "resume and checkpoint_every need a directory for checkpoints; pass out for every run"
        )


def open_store(
    out: str | Path,
    prepared: Prepared,
    population: Population,
    algorithm: Algorithm,
    settings: Settings,
    resume: bool,
    data: str | None = None,
) -> tuple[Checkpoints, Start]:
    """Return the checkpoints of a run, and where it starts: at the last one if it is resumed.

    ``data`` is the population's fingerprint, if it is known. A finished run may be resumed with
    more rounds, because no round depends on how many follow. A run that was stopped is finished.
    """
    model, first = prepared.model, prepared.state
    data = data or population.fingerprint()
    identity = identify(model, population, algorithm, settings, data)
    store = Checkpoints(Path(out), identity, population.extent)
    if not store.has_one_to_resume(resume):
        return store, Start(first, {}, [], {})
    extent, exact = store.then()
    earlier = population.first(extent)
    finished = replace(settings, rounds=max(1, min(store.rounds_then(), settings.rounds)))
    if exact:
        data = data if earlier is population else earlier.fingerprint()
        known = [identify(model, earlier, algorithm, it, data) for it in (settings, finished)]
    else:
        log.warning("%s %s", out, WEAKER)
        known = [identify_as_before(model, earlier, algorithm, it) for it in (settings, finished)]
    start = store.load(*known)
    device = tree.leaves(first["model"])[0].device
    if earlier is population:
        return store, start._replace(state=to_server(start.state, device))
    joining = range(earlier.clients, population.clients)
    names = ", ".join(population.name(client) for client in joining)
    log.warning("clients join after round %d: %s", len(start.history), names)
    before = algorithm.init(tree.to(model.init(), device), earlier.census(settings.weights))
    state = algorithm.join(to_server(start.state, device), before, first)
    tracked = {round: F.pad(weight, (0, len(joining))) for round, weight in start.tracked.items()}
    ending = start.ending
    if ending.kept is not None:
        kept = algorithm.join(to_server(ending.kept.state, device), before, first)
        ending = ending._replace(kept=ending.kept._replace(state=kept))
    return store, start._replace(state=state, tracked=tracked, ending=ending)


def to_server(state: State, device: torch.device) -> State:
    """Place a state as servers keep it: models on their device, numbers on the CPU."""
    return {
        name: tree.to(value, device) if isinstance(value, dict) else value
        for name, value in state.items()
    }


def _device(device: str | torch.device) -> torch.device:
    """Return the device with its number, because which one "cuda" means depends on the thread."""
    try:
        chosen = torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        # torch raises an AssertionError if it was built without CUDA
        known = "cpu"
        if torch.cuda.is_available():
            known += f", cuda (0 to {torch.cuda.device_count() - 1})"
        raise ValueError(f"device {str(device)!r} is not available; use {known}") from error
    return chosen
