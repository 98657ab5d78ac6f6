"""How a run is trained, as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, TypeVar

import torch

from evenhand.algorithm import Algorithm
from evenhand.cohort import Cohort, Full
from evenhand.engines import Engine
from evenhand.engines.auto import ENGINES
from evenhand.errors import require_choice, require_kind, require_whole, unknown
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction, resolve
from evenhand.model import PRECISIONS

WEIGHTS = ("data", "uniform")
EVALUATE = ("after training", "with training")

Entry = TypeVar("Entry", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The fields of ``Settings``, as keywords of a function."""

    loss: str | LossFunction
    rounds: int
    local: LocalSGD | None
    cohort: Cohort | None
    seed: int
    engine: str | Engine
    weights: str
    device: str | torch.device | None
    eval_every: int | None
    checkpoint_every: int | None
    track_weights: bool
    precision: str
    evaluate: str


@dataclass(frozen=True)
class Settings:
    """How a run is trained, whatever the method, the module and the data.

    Args:
        loss: "cross_entropy", "brier", "hinge", "hinge_sum", "mse", or a function
            (output, target) -> one loss per sample.
        rounds: communication rounds.
        local: the local solver.
        cohort: who takes part in a round.
        seed: of cohorts, batch orders and dropout.
        engine: "auto", "loop", "vmap" or an engine object.
        weights: what a client counts for: "data" (its share of the samples) or "uniform".
        device: where to compute; default where the module is.
        eval_every: rounds between evaluations in the history; default rounds / 20. The last round
            is always evaluated.
        checkpoint_every: rounds between checkpoints; default rounds / 10, and once a minute where
            several runs are trained together. Needs ``out``.
        track_weights: keep the weight that each client effectively has after every evaluated
            round, for methods that can tell it; this evaluates all training data each time.
        precision: of products: "fp32"; "tf32" or "bf16", faster on GPUs that have units for it, see
            docs/results/speed.md. Parameters and sums keep the module's own precision in any case.
        evaluate: "after training": everyone evaluates the model of a round. "with training": the
            round's cohort evaluates the model it starts from, which in a real federation takes no
            messages of its own; ``scores_after`` in the history then says how many rounds that
            model had been trained. The scores at the end are of the last model in any case.
    """

    loss: str | LossFunction = "cross_entropy"
    rounds: int = 100
    local: LocalSGD = LocalSGD(lr=0.1, epochs=1, batch_size=32)
    cohort: Cohort = Full()
    seed: int = 0
    engine: str | Engine = "auto"
    weights: str = "data"
    device: str | torch.device | None = None
    eval_every: int | None = None
    checkpoint_every: int | None = None
    track_weights: bool = False
    precision: str = "fp32"
    evaluate: str = "after training"

    def __post_init__(self) -> None:
        for name in ("local", "cohort"):  # None takes the default
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(Settings, name))
        resolve(self.loss)
        require_whole("rounds", self.rounds, 1)
        require_kind("local", self.local, LocalSGD, "LocalSGD(lr=0.1)")
        require_kind("cohort", self.cohort, Cohort, "Uniform(10)")
        require_whole("seed", self.seed, 0)
        if not isinstance(self.engine, Engine) and self.engine not in ENGINES:
            raise ValueError(
                f'unknown engine {self.engine!r}; use "auto", "loop", "vmap" or an engine object'
            )
        require_choice("weights", self.weights, WEIGHTS)
        require_whole("eval_every", self.eval_every, 1, optional=True)
        require_whole("checkpoint_every", self.checkpoint_every, 1, optional=True)
        require_choice("precision", self.precision, PRECISIONS)
        require_choice("evaluate", self.evaluate, EVALUATE)

    @classmethod
    def of(cls, settings: Settings | None, options: Mapping[str, Any]) -> Settings:
        """``settings``, or the defaults, with some fields replaced."""
        for name in options:
            if name not in DEFAULTS:
                raise TypeError(unknown("keyword", name, DEFAULTS))
        return replace(settings or cls(), **options)

    @property
    def evaluation_interval(self) -> int:
        """Rounds between evaluations."""
        return self.eval_every or max(1, self.rounds // 20)

    def is_evaluated(self, round: int) -> bool:
        """Whether the history has scores of this round (the first is 0)."""
        return (round + 1) % self.evaluation_interval == 0 or round + 1 == self.rounds

    def identity(self, algorithm: Algorithm) -> tuple[object, ...]:
        """What must be the same for a run to go on from a checkpoint, besides model and data."""
        return (
            algorithm,
            self.rounds,
            self.local,
            self.cohort,
            self.seed,
            self.weights,
            self.eval_every,
            self.track_weights,
            self.precision,
            self.evaluate,
        )


DEFAULTS = {field.name: field.default for field in fields(Settings)}


def takes_settings(*without: str) -> Callable[[Entry], Entry]:
    """Show the fields of ``Settings`` in the signature of a function with ``**options``."""

    def shown(function: Entry) -> Entry:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        types = inspect.get_annotations(Options)
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name]
            )
            for name, default in DEFAULTS.items()
            if name not in without and name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return shown
