"""Trials on a few samples, to find out what can be stacked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from evenhand import tree
from evenhand.algorithm import MOMENTS, Algorithm
from evenhand.cohort import Draw
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import first_line
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.torch_private import grad
from evenhand.training.checkpoints import first_samples
from evenhand.training.stacks.hyperparameters import numbers_of, with_numbers
from evenhand.training.steps import with_round

log = logging.getLogger(__name__)

Failure = Callable[[list[str]], Exception | None]


def unstackable(
    algorithm: Algorithm, model: Model, federation: Federation, census: Census, varying: list[str]
) -> list[str]:
    """Return the varying hyper-parameters that a client's functions need as plain numbers."""

    def failure(names: list[str]) -> Exception | None:
        return _failure(algorithm, model, federation, census, names) if names else None

    error = failure(varying)
    if error is None:
        return []
    apart = [name for name in varying if failure([name]) is not None]
    if failure([name for name in varying if name not in apart]) is not None:
        apart = varying
    text = "runs with different %s are not stacked: %s cannot be batched over it (%s)"
    log.info(text, ", ".join(apart), type(algorithm).__name__, first_line(error))
    return apart


def _failure(
    algorithm: Algorithm, model: Model, federation: Federation, census: Census, names: list[str]
) -> Exception | None:
    """Return the error of a client's functions if these numbers are tensors, or None."""
    samples = first_samples(model, federation, 2)
    few = torch.arange(len(samples.y), device=model.device)
    ones = torch.ones(len(few), dtype=model.dtype, device=model.device)
    whole = Batch(samples, few, ones)
    ids, weight = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)

    def sent(task: Task) -> Task:
        task = with_round(task, Draw(ids, weight, weight), 0.1)
        task.shared["moment"] = torch.tensor(0.5)
        shared, own = (tree.floating(message, model.dtype, model.device) for message in task)
        return Task(shared, tree.row(own, 0))

    def client(numbers: dict[str, Tensor]) -> tuple[Tensor, ...]:
        one = with_numbers(algorithm, numbers)
        memory = tree.to(algorithm.memory(model.init()), model.device)
        start = one.start(task, memory)
        batch = Batch(samples, few, ones, whole)
        slope: Any = {}
        if start:
            slope = grad(lambda variables: one.objective(model, variables, batch, task))(start)
        end = tree.map(lambda value, change: value - change, start, slope)
        seen = {**end, "snapshot": end} if one.local_work().snapshot else end
        reply, kept = one.reply(model, start, seen, whole, task, memory)
        trees = [reply.total, reply.each, kept]
        for moment, asked in surveys.items():
            question = one.question(moment)
            assert question is not None
            trees += question.answer(model, whole, asked, memory)
        found = [*one.rates(task).values(), *(leaf for some in trees for leaf in tree.leaves(some))]
        return (*found, torch.zeros((), device=model.device))

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training repeats them
            state = algorithm.init(tree.to(model.init(), "cpu"), census)
            task, surveys = sent(algorithm.task(state, ids)), {}
            for moment in MOMENTS:
                asks = algorithm.question(moment)
                survey = None if asks is None else asks.ask(state)
                if survey is not None:
                    own = tree.map(lambda leaf: leaf[ids], survey.own)
                    surveys[moment] = sent(Task(survey.shared, own))
            values = numbers_of(algorithm)
            twice = torch.ones(2, dtype=model.dtype, device=model.device)
            vmap(client)({name: values[name] * twice for name in names})
    except Exception as error:
        return error
    return None


def same_function(one: Model, other: Model, federation: Federation) -> bool:
    """Whether two models with the same layers compute the same output."""
    x = first_samples(one, federation, 2).x
    with torch.no_grad():
        return torch.equal(one.output(other.init(), x[:]), other.output(other.init(), x[:]))
