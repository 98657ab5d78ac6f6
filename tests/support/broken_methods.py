"""Methods that are broken in one place, for tests of evenhand.testing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.algorithm import as_rows, descend, step, weighted


@dataclass(frozen=True)
class Sound(eh.Algorithm):
    """Federated averaging, which the broken methods below spoil in one place."""


def spoilt(settings: dict[str, Any] | None = None, **attributes: Any) -> eh.Algorithm:
    """Federated averaging with some hooks replaced and some fields added."""
    body: dict[str, Any] = {
        "__doc__": "Averages, but for what is spoilt.",
        "__annotations__": dict.fromkeys(settings or {}, "Any"),
        **(settings or {}),
    }
    interfaces = [
        kind
        for kind in (eh.Question, eh.Weighting, eh.Reporting)
        if any(name in vars(kind) for name in attributes)
    ]
    kind: Any = type("Spoilt", (Sound, *interfaces), {**body, **attributes})
    made: eh.Algorithm = dataclass(frozen=True)(kind)()
    return made


def counted(owner: Any) -> int:
    """How often it was called for this owner: what a method must not keep."""
    object.__setattr__(owner, "calls", getattr(owner, "calls", 0) + 1)
    return int(owner.calls)


def model_of(state: tree.Tree, change: Callable[[Tensor], Tensor]) -> tree.Tree:
    return {**state, "model": tree.map(change, state["model"])}


def averaged(state: tree.Tree, replies: eh.Replies) -> tree.Tree:
    return {**state, "model": step(state["model"], replies)}


def update(start: tree.Tree, end: tree.Tree) -> tree.Tree:
    return tree.sub(start["model"], end["model"])


def server_with(change: Callable[[tree.Tree], tree.Tree], **info: Any) -> Any:
    return lambda self, state, replies: (change(averaged(state, replies)), info)


def init_with(**extra: Any) -> Any:
    return lambda self, params, census: {"model": params, **extra}


# ---- as a value


@dataclass
class Loose(eh.Algorithm):
    """Can be changed after it was made."""


@dataclass(frozen=True)
class Demanding(eh.Algorithm):
    """Has a setting without a default."""

    rate: float


@dataclass(frozen=True)
class Unchecked(eh.Algorithm):
    """Takes any number, and keeps one of them from its repr."""

    rate: float = field(default=1.0, repr=False)


@dataclass(frozen=True)
class Elaborate(eh.Algorithm):
    """Has a setting that can be neither hashed nor saved."""

    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Unique(eh.Algorithm):
    """Is equal to itself alone."""


@dataclass(frozen=True)
class Undocumented(eh.Algorithm):
    pass


@dataclass(frozen=True)
class Drifting(eh.Algorithm):
    """Becomes another one each time it is made."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", self.rate / 2)


# ---- on the server


def noisy(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    return model_of(averaged(state, replies), lambda leaf: leaf + 1e-3 * torch.rand_like(leaf)), {}


def in_place(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    for leaf in tree.leaves(state["model"]):
        leaf.mul_(0.9)
    return averaged(state, replies), {}


def forgetful(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    fewer = 1 / counted(self)
    return model_of(averaged(state, replies), lambda leaf: leaf * (1 - 0.01 * fewer)), {}


def growing(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    return {**averaged(state, replies), "rounds": torch.ones(len(state.get("rounds", [])) + 1)}, {}


def diverging(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    power = state["power"] * 1e12
    return {**model_of(averaged(state, replies), lambda leaf: leaf * power), "power": power}, {}


def ascending(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    return {
        **state,
        "model": tree.map(
            lambda old, new: 2 * old - new, state["model"], averaged(state, replies)["model"]
        ),
    }, {}


def sent_each(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return (
        eh.Reply(each={"delta": update(start, end), "loss": model.loss(start["model"], data)}),
        memory,
    )


def standardised(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    """Divides by a standard deviation over clients, which one client does not have."""
    rows, loss = as_rows(replies.each["delta"]), replies.each["loss"]
    return {"model": descend(state["model"], rows.mean(0) / (1 + loss.std()))}, {}


def expecting_everyone(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    return {
        **state,
        "model": descend(state["model"], state["base"] @ as_rows(replies.each["delta"])),
    }, {}


def favouring_the_first(self: Any, state: tree.Tree, replies: eh.Replies) -> Any:
    return {**state, "model": descend(state["model"], as_rows(replies.each["delta"])[0])}, {}


def favouring_odd_numbers(self: Any, state: tree.Tree, ids: Tensor) -> eh.Task:
    return eh.Task({"model": state["model"]}, {"scale": 1.0 + ids % 2})


def scaled_objective(self: Any, model: eh.Model, variables: Any, batch: Any, task: Any) -> Tensor:
    scale: Tensor = task.own["scale"]
    return scale * model.loss(variables["model"], batch)


def scale_by_team(self: Any, params: tree.Tree, census: eh.Census) -> tree.Tree:
    return {
        "model": params,
        "scale": (
            1.0 + (torch.zeros(census.clients) if census.teams is None else census.teams.double())
        ),
    }


def scale_of(self: Any, state: tree.Tree, ids: Tensor) -> eh.Task:
    return eh.Task({"model": state["model"]}, {"scale": state["scale"][ids]})


def scale_of_all(self: Any, state: tree.Tree, ids: Tensor) -> eh.Task:
    return eh.Task({"model": state["model"]}, {"scale": state["scale"]})


def scale_by_place(self: Any, state: tree.Tree, ids: Tensor) -> eh.Task:
    return eh.Task({"model": state["model"]}, {"scale": 1.0 + torch.arange(len(ids))})


def share_of_others(self: Any, params: tree.Tree, census: eh.Census) -> tree.Tree:
    # one client alone: 1 / 0
    return {"model": params, "scale": census.weight / (1 - census.weight)}


def weight_by_place(self: Any, state: tree.Tree, draw: Any) -> Any:
    return draw._replace(weight=draw.weight * torch.arange(1, len(draw.ids) + 1))


def learn_in_place(self: Any, state: tree.Tree, replies: eh.Replies) -> tree.Tree:
    state["last"].copy_(replies.each["loss"].mean())
    return state


def learn_from_somebody(self: Any, state: tree.Tree, replies: eh.Replies) -> tree.Tree:
    return {**state, "last": replies.each["loss"].double().mean()}


def asks(**survey: Any) -> Any:
    return lambda self, state: eh.Survey({"model": state["model"]}, **survey)


# ---- on the client


def padded_mean(self: Any, model: eh.Model, variables: Any, batch: Any, task: Any) -> Tensor:
    return (model.losses(variables["model"], batch) * batch.weight).mean()


def first_sample(self: Any, model: eh.Model, variables: Any, batch: Any, task: Any) -> Tensor:
    return model.losses(variables["model"], batch)[0]


def unweighted(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return (
        eh.Reply(
            total={"delta": update(start, end), "weight": torch.ones_like(task.own["weight"])}
        ),
        memory,
    )


def random_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    factor = 1 + 0.1 * torch.rand(())
    return eh.Reply(weighted(tree.scale(update(start, end), factor), task)), memory


def counting_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return eh.Reply(weighted(tree.scale(update(start, end), 1 / counted(self)), task)), memory


def tampering_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    for leaf in tree.leaves(end["model"]):
        leaf.mul_(0.5)
    return eh.Reply(weighted(update(start, end), task)), memory


def telling_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return (
        eh.Reply(weighted(update(start, end), task), {"loss": model.loss(start["model"], data)}),
        memory,
    )


def wordy_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return (
        eh.Reply(
            weighted(update(start, end), task), {"losses": model.losses(start["model"], data)}
        ),
        memory,
    )


def hoarding_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return eh.Reply(weighted(update(start, end), task)), {
        "model": tree.to(end["model"], torch.float64)
    }


def remembering_reply(
    self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
) -> Any:
    return eh.Reply(weighted(update(start, end), task)), {"model": end["model"]}


def tilted(change: Callable[[Tensor], Tensor]) -> Any:
    def reply(
        self: Any, model: Any, start: Any, end: Any, data: Any, task: Any, memory: Any
    ) -> Any:
        tilt = change(model.loss(start["model"], data)) * task.own["weight"]
        return eh.Reply({"delta": tree.scale(update(start, end), tilt), "weight": tilt}), memory

    return reply


def nowhere(self: Any, params: tree.Tree) -> tree.Tree:
    return {"model": tree.map(lambda leaf: leaf * torch.nan, params)}


def from_memory(self: Any, shared: tree.Tree, memory: tree.Tree) -> tree.Tree:
    model: tree.Tree = memory.get("model", shared["model"])
    return model


def wearing_out(self: Any, state: tree.Tree) -> tree.Tree:
    return tree.scale(state["model"], 1 + 1e-3 * counted(self))


def doubling_losses(self: Any, state: tree.Tree, losses: Tensor, census: eh.Census) -> None:
    losses.mul_(2)


def negative_weights(
    self: Any, state: tree.Tree, losses: Tensor, census: eh.Census
) -> eh.Certificate:
    return eh.Certificate(losses.mean(), -torch.ones_like(losses), torch.zeros(()))
