"""A run whose clients hide single samples: which methods fit, its secret, and its epsilon."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evenhand import tree
from evenhand.algorithm import MOMENTS, Algorithm, State
from evenhand.algorithms.by_sample import objective_kind
from evenhand.cohort import Full, Proportional, Uniform
from evenhand.data.population import Census, Population
from evenhand.engines import processes
from evenhand.errors import RunError
from evenhand.local import LocalSolver, SampleDP
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.privacy.sampled import SamplePrivacy
from evenhand.training.settings import Settings

KEY = "sample-dp.key"  # of a run that is not finished; for nobody else
FITTING = "FedAvg, FedProx, Ditto, FedMGDA, FedAvgM and FedAdam do"
KNOWN_DRAWS = (Full, Uniform, Proportional)


def require_hiding(
    algorithm: Algorithm, model: Model, population: Population, state: State, settings: Settings
) -> None:
    """Raise a ValueError if a run with ``SampleDP`` would show more of a sample than its steps."""
    if settings.local.dp is None:
        return
    reason, remedy = _shown_otherwise(algorithm, model, population, settings)
    if reason:
        raise ValueError(f"SampleDP does not hide what {reason}; {remedy}")
    name = type(algorithm).__name__
    if why := unfit(algorithm, model, population.census(settings.weights), state):
        raise ValueError(f"{name} does not fit SampleDP: {why}; {FITTING}, or leave out dp")


def _shown_otherwise(
    algorithm: Algorithm, model: Model, population: Population, settings: Settings
) -> tuple[str, str]:
    """Say what else of a run would show its training samples, and what to do about it."""
    if model.normalisation == "local":
        return (
            "BatchNorm mixes: the samples of a batch, also into its running statistics",
            'use normalisation="frozen", or GroupNorm',
        )
    if model.summed:
        return (
            "a sum over a client's samples has no fixed scale for",
            'use loss="hinge", the mean',
        )
    if population.judged_part == "train":
        return (
            "scores show: without test samples they are of training samples",
            "give the clients a test split",
        )
    local, work = settings.local, algorithm.local_work()
    for each in (work.solver(local, 0), work.solver(local, 1)):
        if each.dp != local.dp or each.batch_size != local.batch_size:
            return ("the method's own local solver does", "let it keep dp and batch_size")
    return "", ""


def unfit(algorithm: Algorithm, model: Model, census: Census, state: State) -> str:
    """Say why clipped gradients of single samples do not bound what a method's clients send."""
    for method in (algorithm, algorithm.local_work().last):
        if method is not None and objective_kind(method) == "other":
            return (
                "its local objective is not a mean over samples (plus terms without samples), so a"
                " sample has no gradient of its own"
            )
    if algorithm.local_work().whole_data:
        return "every local step reads all of the client's data"
    for moment in MOMENTS:
        question = algorithm.question(moment)
        if question is not None and question.ask(state) is not None:
            return "it asks clients about their samples, and the answers have no noise"
    if _reply_reads_data(algorithm, model, census, state):
        return "its reply has more than the step: numbers of the client's samples without noise"
    return ""


def _reply_reads_data(algorithm: Algorithm, model: Model, census: Census, state: State) -> bool:
    """Whether a client that has not moved looks at its data for the reply."""
    ids, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    sent = algorithm.task(state, ids)
    extra = {"lr": torch.tensor(0.1, dtype=torch.float64), "moment": torch.tensor(0.5)}
    shared, own = (
        tree.floating(values, model.dtype, model.device)
        for values in ({**sent.shared, **extra}, {**sent.own, "weight": one, "share": one})
    )
    task, data = Task(shared, tree.row(own, 0)), Untouchable()
    memory = tree.to(algorithm.memory(model.init()), model.device)
    with torch.no_grad():
        start = algorithm.start(task, memory)
        end = {**start, "snapshot": start} if algorithm.local_work().snapshot else start
        try:
            algorithm.reply(model, start, end, data, task, memory)  # type: ignore[arg-type]
        except Touched:
            return True
    return False


class Touched(Exception):
    """Something read data that it must not read."""


class Untouchable:
    """Stands for a client's data where nothing may read them."""

    def __getattr__(self, name: str) -> Any:
        raise Touched(name)


# ---- the secret


def with_secret(local: LocalSolver, folder: Path | None, identity: str) -> LocalSolver:
    """Return a solver that hides samples with the run's secret; other solvers as they are.

    With a folder, the secret lasts until the run is finished: a round that is done again after an
    interruption draws the same noise, so that nothing is released twice. It also depends on the
    run's identity: two runs never share noise.
    """
    dp = local.dp
    if dp is None or dp.seed is not None:
        return local
    secret = processes.from_first(
        lambda: secrets.token_bytes(32) if folder is None else _kept(folder / KEY)
    )
    return replace(local, dp=dp.keyed(hashlib.sha256(secret + identity.encode()).digest()))


def _kept(path: Path) -> bytes:
    """Return the secret in a file that only its owner can read; make it if there is none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) != 32:
            raise RunError(
                f"{path} is damaged; delete it, and count the rounds since the last checkpoint as"
                " a release of their own"
            ) from None
        return found
    secret = secrets.token_bytes(32)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    return secret


def forget_secret(folder: Path | None) -> None:
    """Delete the secret of a finished run: nobody can then take its noise away."""
    if folder is not None:
        (folder / KEY).unlink(missing_ok=True)


# ---- the account


def account(
    algorithm: Algorithm, settings: Settings, population: Population, rounds: int
) -> SamplePrivacy | None:
    """Return what ``rounds`` rounds tell about single samples; None if nothing hides them.

    Clients count with the rounds for which they were drawn, or with all of them if that cannot be
    known.
    """
    dp = settings.local.dp
    if dp is None:
        return None
    sizes: list[int] = population.sizes("train").tolist()
    census, work = population.census(settings.weights), algorithm.local_work()
    total = [0] * len(sizes)
    known = type(settings.cohort) in KNOWN_DRAWS and algorithm.weighting() is None
    for round in range(rounds):
        local = work.solver(settings.local, round)
        drawn: list[int] = (
            settings.cohort.draw(census, settings.seed, round).ids.tolist()
            if known
            else list(range(len(sizes)))
        )
        for client in drawn:
            total[client] += steps_in_a_round(local, sizes[client])
    if work.last is not None:  # by everyone, after the last round
        local = work.last.local_work().solver(settings.local, rounds)
        total = [
            steps + steps_in_a_round(local, size) for steps, size in zip(total, sizes, strict=True)
        ]
    batch = settings.local.batch_size
    return SamplePrivacy(
        clip=dp.clip,
        noise=dp.noise,
        delta=dp.delta,
        clients=tuple(population.name(client) for client in range(len(sizes))),
        rates=tuple(rate_of(batch, size) for size in sizes),
        steps=tuple(total),
        seeded=_is_seeded(dp),
    )


def rate_of(batch_size: int | None, samples: int) -> float:
    """Return the probability of a sample to be in a batch."""
    return 1.0 if batch_size is None else min(1.0, batch_size / max(1, samples))


def steps_in_a_round(local: LocalSolver, samples: int) -> int:
    """Return the local steps of a client with so many samples."""
    each = 1 if local.batch_size is None else math.ceil(samples / local.batch_size)
    return local.steps or each * (local.epochs or 1)


def _is_seeded(dp: SampleDP) -> bool:
    return dp.seed is not None
