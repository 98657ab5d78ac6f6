"""The round loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand import tree
from evenhand.algorithm import Algorithm, State, normalised
from evenhand.cohort import Cohort, Draw, Full, Uniform
from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.engines import Engine, Exchange, choose, processes
from evenhand.engines.base import Look, exchange_with
from evenhand.engines.work import Ask, Train, Work
from evenhand.errors import require_choice, require_kind, require_whole
from evenhand.growth import Extent, first_clients
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Replies, Task
from evenhand.metrics.scores import Row
from evenhand.model import Model
from evenhand.training.checkpoints import Checkpoints, identify
from evenhand.training.evaluation import Judge
from evenhand.training.result import Origin, Result
from evenhand.training.settings import Options, Settings, takes_settings

log = logging.getLogger(__name__)

EVALUATE = ("after training", "with training")
SURVEY_STREAM = 1 << 62  # keeps the draw of clients to ask apart from the draw of clients to train

# called after every round with the rounds done and the history row
Progress = Callable[[int, Row], None]


@processes.together
def _fit(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    *,
    loss: str | LossFunction = "cross_entropy",
    rounds: int = 100,
    local: LocalSGD | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    engine: str | Engine = "auto",
    weights: str = "data",
    device: str | torch.device | None = None,
    eval_every: int | None = None,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    track_weights: bool = False,
    precision: str = "fp32",
    evaluate: str = "after training",
) -> Result:
    require_choice("evaluate", evaluate, EVALUATE)
    local = local or LocalSGD(lr=0.1, epochs=1, batch_size=32)
    cohort = cohort or Full()
    check_arguments(rounds, seed, eval_every, checkpoint_every, progress)
    if out is None and (resume or checkpoint_every):
        raise ValueError("resume and checkpoint_every need out, the directory for checkpoints")
    model, census, state = prepare(
        module, federation, algorithm, loss, local, cohort, weights, device, precision
    )
    chosen = choose(engine, model, federation)
    # by a measurement, perhaps: all processes take what the first has found
    if isinstance(engine, str):
        chosen = processes.from_first(lambda: chosen)
    exchange = processes.split(chosen.attach(model, federation, seed), model, federation)

    store = None
    history: list[Row] = []
    tracked: dict[int, Tensor] = {}
    if out is not None:
        settings = (
            algorithm,
            rounds,
            local,
            cohort,
            seed,
            weights,
            eval_every,
            track_weights,
            precision,
            evaluate,
        )
        identity = identify(model, federation, federation.fingerprint(), *settings)
        store = Checkpoints(
            Path(out), identity, checkpoint_every or max(1, rounds // 10), Extent.of(federation)
        )
        if store.has_one_to_resume(resume):
            earlier = first_clients(federation, store.extent_then())
            was = (
                identity
                if earlier is federation
                else identify(model, earlier, earlier.fingerprint(), *settings)
            )
            first = state
            state, exchange.memories, history, tracked = store.load(was)
            state = to_server(state, model.device)
            if earlier is not federation:
                names = ", ".join(
                    federation.name(client) for client in range(earlier.clients, federation.clients)
                )
                log.warning("clients that join after round %d: %s", len(history), names)
                state = algorithm.join(
                    state, algorithm.init(model.init(), earlier.census(weights)), first
                )
                tracked = {
                    round: F.pad(weight, (0, federation.clients - len(weight)))
                    for round, weight in tracked.items()
                }

    exchanges = _Exchanges(algorithm, local, cohort, census, exchange, seed)
    judge = Judge(algorithm, model, federation, census, exchange)
    eval_every = eval_every or max(1, rounds // 20)
    # writes down the round before, where it was not known yet who had answered
    unwritten: Callable[[], None] | None = None

    def write_down(
        t: int, draw: Draw, silent: set[int], replies: Replies, info: Row, numbers: Row
    ) -> None:
        missing = silent | (set(draw.ids.tolist()) - set(replies.ids.tolist()))
        row: Row = {
            "round": t + 1,
            "lr": local.rate(t),
            "asked": len(draw.ids),
            "answered": len(replies.ids),
        }
        row |= {
            "left_out": ", ".join(federation.name(i) for i in sorted(missing)),
            "void": not len(replies.ids),
        }
        row |= (info if len(replies.ids) else {}) | numbers
        history.append(row)
        if store and ((t + 1) % store.every == 0 or t + 1 == rounds):
            store.save(state, exchange.memories, history, tracked)
        if progress and processes.is_first():
            progress(t + 1, row)

    for t in range(len(history), rounds):
        draw, state, silent = exchanges.gather(state, t)
        due = (t + 1) % eval_every == 0 or t + 1 == rounds
        look = judge.look(state, draw.ids) if due and evaluate == "with training" else None
        seen, replies = exchanges.train(state, draw, t, look)
        if unwritten is not None:
            unwritten()
        state, info = after_replies(algorithm, state, replies)
        numbers: Row = {}
        if due:
            last = t + 1 == rounds and not exchanges.has_more_to_do
            numbers = (
                judge.numbers(state, t, last)
                if evaluate == "after training"
                else {"scores_after": t, **judge.read(seen)}
            )
            if track_weights and (certificate := judge.certificate(state, t)) is not None:
                tracked[t + 1] = normalised(certificate.weights)
        unwritten = partial(write_down, t, draw, silent, replies, info, numbers)
        if numbers or not replies.underway or (store and (t + 1) % store.every == 0):
            unwritten()
            unwritten = None

    tell_of_left_out(history, exchange.here)
    exchanges.finish(state, rounds)
    return judge.result(state, rounds, history, tracked)


def train(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    settings: Settings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """:func:`fit` without the run directory: ``out`` gets the checkpoint and the history alone."""
    chosen = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return _fit(module, federation, algorithm, out=out, resume=resume, progress=progress, **chosen)


@takes_settings()
def fit(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    *,
    settings: Settings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Result:
    """Train ``module`` on ``federation`` with ``algorithm``.

    Training starts from the module's own parameters and leaves the module unchanged. Same
    arguments, same result, byte for byte, on one engine and device.

    Args:
        loss: "cross_entropy", "brier", "hinge", "hinge_sum", "mse", or a function (output, target)
            -> one loss per sample.
        rounds: communication rounds.
        local: the local solver; default LocalSGD(lr=0.1, epochs=1, batch_size=32).
        cohort: who takes part; default Full().
        seed: of cohorts and batch orders (and dropout).
        engine: "auto", "loop", "vmap" or an engine object.
        weights: what a client counts for: "data" (its share of the samples) or "uniform".
        device: where to compute; default where the module is.
        eval_every: rounds between evaluations in the history; default rounds / 20. The last round
            is always evaluated.
        out: a run directory, which :func:`evenhand.load` and :func:`evenhand.report` read when the
            run is done, and with checkpoints until then; None keeps nothing on disk.
        checkpoint_every: rounds between checkpoints; default rounds / 10. Needs ``out``.
        resume: go on from the checkpoint in ``out`` if there is one; all other arguments must be
            those of the first call. But the federation may have more clients, with the next
            numbers: they join the run (:meth:`evenhand.Algorithm.join`).
        progress: called after every round with the number of rounds done and the history row; of
            several processes, by the first.
        track_weights: keep the weight that each client effectively has after every evaluated round,
            for methods that can tell it; this takes a look at all training data each time.
        precision: of products: "fp32"; "tf32" or "bf16", faster on GPUs that have units for it, see
            docs/speed.md. Parameters and sums are the module's own numbers in any case.
        evaluate: "after training", everyone evaluates the model of a round; or "with training", the
            round's cohort evaluates the model it starts from, which in a real federation takes no
            messages of its own. The history then says in ``scores_after`` after how many rounds the
            model was that its numbers are about; those at the end are about the last model in any
            case.
    """
    chosen = Settings.of(settings, options)
    result = train(module, federation, algorithm, chosen, out=out, resume=resume, progress=progress)
    return result.recorded(Origin(module, federation, chosen), out)


def after_replies(algorithm: Algorithm, state: State, replies: Replies) -> tuple[State, Row]:
    """The next state and what the method tells of the round; the same state where nobody has
    answered."""
    if not replies.underway and not len(replies.ids):
        return state, {}
    after, info = algorithm.server(state, replies)
    return replies.unless_void(state, after), {
        key: value.item() if isinstance(value, Tensor) else value for key, value in info.items()
    }


class _Exchanges:
    """The exchanges of a round: a question where the method has one, then training."""

    def __init__(
        self,
        algorithm: Algorithm,
        local: LocalSGD,
        cohort: Cohort,
        census: Census,
        exchange: Exchange,
        seed: int,
    ) -> None:
        self.algorithm, self.local, self.cohort, self.census = algorithm, local, cohort, census
        self.exchange, self.seed = exchange, seed
        self._ask = Ask(algorithm)
        self._work: dict[LocalSGD, Train] = {}  # engines prepare a kind of work once
        self._foreseen: tuple[int, Draw] | None = None

    def gather(self, state: State, t: int) -> tuple[Draw, State, set[int]]:
        """Who trains in round ``t``, the state after the method's question, and who gave no answer
        to it that is finite."""
        silent: set[int] = set()
        survey = self.algorithm.survey(state)
        if survey is not None and survey.needed:
            asked = self._asked(survey.who, state, t)
            task = Task(survey.shared, tree.map(lambda leaf: leaf[asked.ids], survey.own))
            replies = self.exchange.exchange(
                self._ask, with_round(task, asked, self.local.rate(t)), asked.ids, t
            )
            silent = set(asked.ids.tolist()) - set(replies.ids.tolist())
            state = self.algorithm.learn(state, replies)
        return self.algorithm.reweigh(state, self._draw(state, t)), state, silent

    def train(
        self, state: State, draw: Draw, t: int, look: Look | None = None
    ) -> tuple[Replies, Replies]:
        """What the cohort sees of the models before its local work, if it is asked to look, and
        what it replies after it."""
        nothing = Replies(draw.ids[:0], {}, {})
        if not len(draw.ids):
            return nothing, nothing
        task = with_round(self.algorithm.task(state, draw.ids), draw, self.local.rate(t))
        if self.algorithm.snapshot:
            task.shared["moment"] = torch.tensor(moment(self.seed, t), dtype=torch.float64)
        self.exchange.meanwhile = partial(self._foresee, t + 1)
        if look is None:
            return nothing, self.exchange.exchange(self._train(t), task, draw.ids, t)
        return exchange_with(self.exchange, look, self._train(t), task, draw.ids, t)

    def _train(self, t: int) -> Train:
        local = self.algorithm.local_solver(self.local, t)
        return self._work.setdefault(local, Train(self.algorithm, local))

    def _foresee(self, t: int) -> tuple[Work, Tensor, int] | None:
        """The training of round ``t``, where it does not depend on what comes before it."""
        kind = type(self.algorithm)
        if kind.chances is not Algorithm.chances or kind.reweigh is not Algorithm.reweigh:
            return None
        self._foreseen = (t, self.cohort.draw(self.census, self.seed, t).ascending())
        return self._train(t), self._foreseen[1].ids, t

    @property
    def has_more_to_do(self) -> bool:
        """Whether clients' models are not yet those they will use when the last round is over."""
        return self.algorithm.finish() is not None

    def finish(self, state: State, t: int) -> None:
        """Everyone's last local work, where the method has one."""
        last = self.algorithm.finish()
        if last is not None:
            everyone = Full().draw(self.census, self.seed, t)
            task = with_round(
                Task({"model": self.algorithm.result(state)}), everyone, self.local.rate(t)
            )
            self.exchange.exchange(
                Train(last, last.local_solver(self.local, t)), task, everyone.ids, t
            )

    def _draw(self, state: State, t: int) -> Draw:
        if self._foreseen is not None and self._foreseen[0] == t:
            return self._foreseen[1]
        chances = self.algorithm.chances(state)
        census = self.census if chances is None else self.census._replace(weight=chances)
        return self.cohort.draw(census, self.seed, t).ascending()

    def _asked(self, who: str | int, state: State, t: int) -> Draw:
        # draws depend on (seed, round): the cohort that is asked is the one that will train
        return (
            self._draw(state, t) if who == "cohort" else asked_apart(who, self.census, self.seed, t)
        )


def asked_apart(who: str | int, census: Census, seed: int, round: int) -> Draw:
    """Whom a survey is for that does not ask the cohort: everyone, or so many."""
    if who == "everyone":
        return Full().draw(census, seed, round)
    return Uniform(int(who)).draw(census, seed + SURVEY_STREAM, round).ascending()


def moment(seed: int, round: int) -> float:
    """The moment of local work, as a share of it, that methods with a snapshot look at."""
    return float(np.random.default_rng([seed, round, 1]).random())


class Prepared(NamedTuple):
    """What training starts from, after everything that can be checked beforehand has been."""

    model: Model
    census: Census
    state: State


def prepare(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    loss: str | LossFunction,
    local: LocalSGD,
    cohort: Cohort,
    weights: str = "data",
    device: str | torch.device | None = None,
    precision: str = "fp32",
) -> Prepared:
    """Check that these fit together, and make what training starts from; raises a one-line error
    where they do not."""
    require_kind("federation", federation, Federation, "Federation.from_arrays(...)")
    require_kind("algorithm", algorithm, Algorithm, "FedAvg()")
    require_kind("local", local, LocalSGD, "LocalSGD(lr=0.1)")
    require_kind("cohort", cohort, Cohort, "Uniform(10)")
    model = Model(module, loss).with_precision(precision)
    if device is not None:
        model = model.to(_device(device))
    model.check(federation)
    census = federation.census(weights)
    cohort.check(census)
    return Prepared(model, census, algorithm.init(model.init(), census))


def _device(device: str | torch.device) -> torch.device:
    """The device, if it is there, with its number: which one "cuda" is depends on the thread."""
    try:
        chosen = torch.empty(0, device=torch.device(device)).device
    # torch raises an AssertionError where it was built without CUDA
    except (RuntimeError, AssertionError, TypeError) as error:
        known = (
            "cpu"
            if not torch.cuda.is_available()
            else f"cpu, cuda (0 to {torch.cuda.device_count() - 1})"
        )
        raise ValueError(f"device {str(device)!r} cannot be used here; there is {known}") from error
    return chosen


def check_arguments(
    rounds: Any, seed: Any, eval_every: Any, checkpoint_every: Any, progress: Any = None
) -> None:
    """Raise where a number is not what it must be."""
    require_whole("rounds", rounds, 1)
    require_whole("seed", seed, 0)
    require_whole("eval_every", eval_every, 1, optional=True)
    require_whole("checkpoint_every", checkpoint_every, 1, optional=True)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (rounds done, history row), got {progress!r}")


def tell_of_left_out(history: list[Row], here: bool = True) -> None:
    """Warn of rounds that some clients were left out of. ``here``: the only reason can be that they
    diverged."""
    rounds = [row for row in history if row["left_out"]]
    if rounds:
        void = sum(row["void"] for row in rounds)
        why = (
            "because their updates were not finite"
            if here
            else "for the reasons that are logged above"
        )
        text = "in %d of %d rounds clients were left out %s; %d rounds are void.%s"
        log.warning(text, len(rounds), len(history), why, void, " Is lr too large?" if here else "")


def with_round(task: Task, draw: Draw, lr: float | Tensor) -> Task:
    """A method's task with what every method needs: the round's step size and the cohort's
    coefficients."""
    shared = {**task.shared, "lr": torch.as_tensor(lr, dtype=torch.float64)}
    return Task(shared, {**task.own, "weight": draw.weight, "share": draw.share})


def to_server(state: State, device: torch.device) -> State:
    """A state where servers keep it: trees shaped like the model on its device, numbers on the
    CPU."""
    return {
        name: tree.to(value, device) if isinstance(value, dict) else value
        for name, value in state.items()
    }
