"""How a run is trained, as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

import torch

from evenhand.algorithm import Algorithm
from evenhand.calls import OutputFunction
from evenhand.cohort import Cohort, Full
from evenhand.engines import Engine
from evenhand.engines.auto import ENGINES
from evenhand.errors import require_choice, require_kind, require_whole, unknown
from evenhand.local import LocalSGD, LocalSolver
from evenhand.losses import LossFunction, resolve
from evenhand.metrics.metric import Metric, MetricFunction, named_metrics
from evenhand.model import PRECISIONS
from evenhand.norms import NORMALISATIONS

WEIGHTS = ("data", "uniform")
EVALUATE = ("after training", "with training")

Entry = TypeVar("Entry", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The fields of ``Settings``, as keyword arguments of a function."""

    loss: str | LossFunction
    rounds: int
    local: LocalSolver | None
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
    output: OutputFunction | None
    normalisation: str | None
    metrics: Mapping[str, Metric | MetricFunction] | None
    keep_predictions: bool


@dataclass(frozen=True)
class Settings:
    """How a run is trained, whatever the method, the module and the data.

    Args:
        loss: a name from ``evenhand.losses.LOSSES``, such as "cross_entropy", "bce", "dice" or
            "mse", or a function ``(output, target) -> (B,)`` that returns one loss per sample.
        rounds: number of communication rounds.
        local: the local solver: ``LocalSGD``, ``LocalAdam`` or ``LocalAdamW``; by default SGD with
            lr 0.1, one epoch, batches of 32.
        cohort: how the clients of a round are chosen; by default all of them.
        seed: of cohorts, batch orders and dropout.
        engine: "auto", "loop" (one client at a time), "vmap" (clients side by side), or an engine
            object.
        weights: base weights of the clients: "data" (their share of the samples) or "uniform".
        device: where to train, such as "cuda"; by default where the module is.
        eval_every: rounds between evaluations in the history; by default rounds / 20. The last
            round is always evaluated.
        checkpoint_every: rounds between checkpoints, which need ``out``; by default rounds / 10, or
            once a minute if several runs train together.
        track_weights: record each client's effective weight after every evaluated round, for
            methods that have one. This evaluates all training data each time.
        precision: of matrix products: "fp32", or "tf32" and "bf16", which are faster on GPUs that
            support them. Parameters and sums keep the module's own precision.
        evaluate: "after training": all clients evaluate the model of a round. "with training": the
            cohort evaluates the model it starts from, which saves messages in a real federation;
            ``scores_after`` in the history then says after how many rounds. The final scores are
            always those of the last model.
        output: a function from what the module returns to the output that the loss gets, such as
            ``lambda o: o["out"]``. By default that is the tensor itself, a tuple's first entry, or
            ``logits``.
        normalisation: what happens to BatchNorm layers. "frozen" keeps their running statistics as
            they are. "local" keeps their parameters and statistics on each client, which never
            sends them (FedBN). None refuses layers in training mode, and keeps the statistics of
            those in evaluation mode.
        metrics: what else to evaluate, by name: functions ``(output, y) -> (B,)`` of which the mean
            is reported, or ``evenhand.Metric`` objects.
        keep_predictions: whether the run directory gets predictions.csv, a row per test sample
            with its label and prediction, by name.
    """

    loss: str | LossFunction = "cross_entropy"
    rounds: int = 100
    local: LocalSolver = LocalSGD(lr=0.1, epochs=1, batch_size=32)
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
    output: OutputFunction | None = None
    normalisation: str | None = None
    metrics: Mapping[str, Metric | MetricFunction] | None = field(default=None, hash=False)
    keep_predictions: bool = False

    def __post_init__(self) -> None:
        for name in ("local", "cohort"):  # None takes the default
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(Settings, name))
        resolve(self.loss)
        require_whole("rounds", self.rounds, 1)
        require_kind("local", self.local, LocalSolver, "LocalSGD(lr=0.1)")
        self.local.require_rates(self.rounds)
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
        if self.normalisation is not None:
            require_choice("normalisation", self.normalisation, NORMALISATIONS)
        object.__setattr__(self, "metrics", named_metrics(self.metrics))
        require_kind("keep_predictions", self.keep_predictions, bool, "True")

    @classmethod
    def of(cls, settings: Settings | None, options: Mapping[str, Any]) -> Settings:
        """Return ``settings``, or the defaults, with some fields replaced."""
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
        """Return what must be the same to resume from a checkpoint, besides model and data."""
        return (
            algorithm,
            self.rounds,
            self.local.identity(self.rounds),
            self.cohort,
            self.seed,
            self.weights,
            self.eval_every,
            self.track_weights,
            self.precision,
            self.evaluate,
            # earlier checkpoints do not say None
            *(() if self.normalisation is None else (("normalisation", self.normalisation),)),
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
