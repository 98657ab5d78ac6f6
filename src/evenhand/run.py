"""The round loop, and what it gives back."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from evenhand import files, tree
from evenhand.algorithm import Algorithm, Certificate, State, normalised
from evenhand.cohort import Cohort, Draw, Full, Uniform
from evenhand.data import Batch, Census, Federation, Part, Samples
from evenhand.engines import Engine, Exchange, choose, processes
from evenhand.engines.base import Look, exchange_with
from evenhand.engines.threads import one_thread
from evenhand.engines.work import Ask, Evaluate, Train, Work
from evenhand.errors import RunError, require_choice, require_kind, require_whole
from evenhand.growth import Extent, first_clients
from evenhand.local import LocalSGD
from evenhand.losses import LossFunction
from evenhand.messages import Replies, Task
from evenhand.metrics.client_sums import NAMES, from_client_sums
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns, Row, counts_of, rows_of, score_columns, summaries, summary
from evenhand.metrics.tally import Tally, dense, sample_values
from evenhand.model import Model
from evenhand.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.safetensors"
HISTORY = "history.csv"
EVALUATE = ("after training", "with training")
SURVEY_STREAM = 1 << 62  # keeps the draw of clients to ask apart from the draw of clients to train

Floats = NDArray[np.float64]
Progress = Callable[[int, Row], None]  # called after every round with the rounds done and the history row


@dataclass(frozen=True)
class Result:
    """What a run leaves: models, a row per round, a row per client and group."""

    algorithm: Algorithm
    params: dict[str, Tensor] = field(repr=False)  # the model handed out, with the keys of module.state_dict(), on the CPU
    personal: list[dict[str, Tensor]] | None = field(repr=False)  # each client's own model, for methods that have them
    state: State = field(repr=False)  # the server's last state: model and dual variables
    history_rows: list[Row] = field(repr=False)
    score_columns: Columns = field(repr=False)  # a row per client, then one per group and one per team
    tally: Tally = field(repr=False)  # what the scores are made of: (n, A, ...) by name, see evenhand.metrics.tally
    values: Floats = field(repr=False)  # (N,) of each sample that scores are about: 1 or 0 for right or wrong, else its loss
    counts: Counts | None = field(default=None, repr=False)  # the tally's confusion counts, with names
    validation: Columns | None = field(default=None, repr=False)  # as score_columns, on the validation data where there are any
    certificate: Certificate | None = field(default=None, repr=False)  # the objective at the end, and how well weights explain it
    over_clients: dict[str, float] | None = field(default=None, repr=False)  # the summary and how many it is of, where sums are all
    weight_columns: Columns = field(default_factory=dict, repr=False)  # a row per client
    weight_rounds: list[int] = field(default_factory=list, repr=False)  # (T,) after which rounds weights were tracked
    weight_history: Floats | None = field(default=None, repr=False)  # (T, n) each client's effective weight then; rows sum to one

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        import pandas as pd

        return pd.DataFrame(self.history_rows)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per client, then one per group and team, on the test data (training data where there are none)."""
        import pandas as pd

        return pd.DataFrame(self.score_columns)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """One row per client: its training loss, base weight and effective weight at the end; empty where a method has none."""
        import pandas as pd

        return pd.DataFrame(self.weight_columns)

    @property
    def summary(self) -> dict[str, float]:
        """Mean, worst and best 10 %, worst client and standard deviation of the clients' accuracy (NaN for regression)."""
        if self.over_clients is not None:
            return {name: value for name, value in self.over_clients.items() if name != "clients"}
        return summary(self.score_columns["accuracy"][: self.score_columns["by"].count("client")])

    @cached_property
    def score_rows(self) -> list[Row]:
        """The scores as one mapping per row."""
        return rows_of(self.score_columns)

    @cached_property
    def weight_rows(self) -> list[Row]:
        """The weights as one mapping per client."""
        return rows_of(self.weight_columns)


@processes.together
def fit(
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
    """Train ``module`` on ``federation`` with ``algorithm``.

    Training starts from the module's own parameters and leaves the module unchanged. Same arguments, same result, byte for
    byte, on one engine and device.

    Args:
        loss: "cross_entropy", "brier", "hinge", "hinge_sum", "mse", or a function (output, target) -> one loss per sample.
        rounds: communication rounds.
        local: the local solver; default LocalSGD(lr=0.1, epochs=1, batch_size=32).
        cohort: who takes part; default Full().
        seed: of cohorts and batch orders (and dropout).
        engine: "auto", "loop", "vmap" or an engine object.
        weights: what a client counts for: "data" (its share of the samples) or "uniform".
        device: where to compute; default where the module is.
        eval_every: rounds between evaluations in the history; default rounds / 20. The last round is always evaluated.
        out: a directory for checkpoints and the history; None keeps nothing on disk.
        checkpoint_every: rounds between checkpoints; default rounds / 10. Needs ``out``.
        resume: go on from the checkpoint in ``out`` if there is one; all other arguments must be those of the first call. But the
            federation may have more clients, with the next numbers: they join the run (:meth:`evenhand.Algorithm.join`).
        progress: called after every round with the number of rounds done and the history row; of several processes, by the first.
        track_weights: keep the weight that each client effectively has after every evaluated round, for methods that can tell it; this
            takes a look at all training data each time.
        precision: of products: "fp32"; "tf32" or "bf16", faster on GPUs that have units for it, see docs/speed.md. Parameters and sums are
            the module's own numbers in any case.
        evaluate: "after training", everyone evaluates the model of a round; or "with training", the round's cohort evaluates the model it
            starts from, which in a real federation takes no messages of its own. The history then says in ``scores_after`` after how
            many rounds the model was that its numbers are about; those at the end are about the last model in any case.
    """
    require_choice("evaluate", evaluate, EVALUATE)
    local = local or LocalSGD(lr=0.1, epochs=1, batch_size=32)
    cohort = cohort or Full()
    check_arguments(rounds, seed, eval_every, checkpoint_every, progress)
    if out is None and (resume or checkpoint_every):
        raise ValueError("resume and checkpoint_every need out, the directory for checkpoints")
    model, census, state = prepare(module, federation, algorithm, loss, local, cohort, weights, device, precision)
    chosen = choose(engine, model, federation)
    if isinstance(engine, str):  # by a measurement, perhaps: all processes take what the first has found
        chosen = processes.from_first(lambda: chosen)
    exchange = processes.split(chosen.attach(model, federation, seed), model, federation)

    store = None
    history: list[Row] = []
    tracked: dict[int, Tensor] = {}
    if out is not None:
        settings = (algorithm, rounds, local, cohort, seed, weights, eval_every, track_weights, precision, evaluate)
        identity = identify(model, federation, federation.fingerprint(), *settings)
        store = Checkpoints(Path(out), identity, checkpoint_every or max(1, rounds // 10), Extent.of(federation))
        if store.has_one_to_resume(resume):
            earlier = first_clients(federation, store.extent_then())
            was = identity if earlier is federation else identify(model, earlier, earlier.fingerprint(), *settings)
            first = state
            state, exchange.memories, history, tracked = store.load(was)
            state = to_server(state, model.device)
            if earlier is not federation:
                names = ", ".join(federation.name(client) for client in range(earlier.clients, federation.clients))
                log.warning("clients that join after round %d: %s", len(history), names)
                state = algorithm.join(state, algorithm.init(model.init(), earlier.census(weights)), first)
                tracked = {round: F.pad(weight, (0, federation.clients - len(weight))) for round, weight in tracked.items()}

    exchanges = _Exchanges(algorithm, local, cohort, census, exchange, seed)
    judge = Judge(algorithm, model, federation, census, exchange)
    eval_every = eval_every or max(1, rounds // 20)
    unwritten: Callable[[], None] | None = None  # writes down the round before, where it was not known yet who had answered

    def write_down(t: int, draw: Draw, silent: set[int], replies: Replies, info: Row, numbers: Row) -> None:
        missing = silent | (set(draw.ids.tolist()) - set(replies.ids.tolist()))
        row: Row = {"round": t + 1, "lr": local.rate(t), "asked": len(draw.ids), "answered": len(replies.ids)}
        row |= {"left_out": ", ".join(federation.name(i) for i in sorted(missing)), "void": not len(replies.ids)}
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
            numbers = judge.numbers(state, t) if evaluate == "after training" else {"scores_after": t, **judge.read(seen)}
            if track_weights and (certificate := judge.certificate(state, t)) is not None:
                tracked[t + 1] = normalised(certificate.weights)
        unwritten = partial(write_down, t, draw, silent, replies, info, numbers)
        if numbers or not replies.underway or (store and (t + 1) % store.every == 0):
            unwritten()
            unwritten = None

    tell_of_left_out(history, exchange.here)
    exchanges.finish(state, rounds)
    return judge.result(state, rounds, history, tracked)


def after_replies(algorithm: Algorithm, state: State, replies: Replies) -> tuple[State, Row]:
    """The next state and what the method tells of the round; the same state where nobody has answered."""
    if not replies.underway and not len(replies.ids):
        return state, {}
    after, info = algorithm.server(state, replies)
    return replies.unless_void(state, after), {key: value.item() if isinstance(value, Tensor) else value for key, value in info.items()}


class _Exchanges:
    """The exchanges of a round: a question where the method has one, then training."""

    def __init__(self, algorithm: Algorithm, local: LocalSGD, cohort: Cohort, census: Census, exchange: Exchange, seed: int) -> None:
        self.algorithm, self.local, self.cohort, self.census, self.exchange, self.seed = algorithm, local, cohort, census, exchange, seed
        self._ask = Ask(algorithm)
        self._work: dict[LocalSGD, Train] = {}  # engines prepare a kind of work once
        self._foreseen: tuple[int, Draw] | None = None

    def gather(self, state: State, t: int) -> tuple[Draw, State, set[int]]:
        """Who trains in round ``t``, the state after the method's question, and who gave no answer to it that is finite."""
        silent: set[int] = set()
        survey = self.algorithm.survey(state)
        if survey is not None and survey.needed:
            asked = self._asked(survey.who, state, t)
            task = Task(survey.shared, tree.map(lambda leaf: leaf[asked.ids], survey.own))
            replies = self.exchange.exchange(self._ask, with_round(task, asked, self.local.rate(t)), asked.ids, t)
            silent = set(asked.ids.tolist()) - set(replies.ids.tolist())
            state = self.algorithm.learn(state, replies)
        return self.algorithm.reweigh(state, self._draw(state, t)), state, silent

    def train(self, state: State, draw: Draw, t: int, look: Look | None = None) -> tuple[Replies, Replies]:
        """What the cohort sees of the models before its local work, if it is asked to look, and what it replies after it."""
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

    def finish(self, state: State, t: int) -> None:
        """Everyone's last local work, where the method has one."""
        last = self.algorithm.finish()
        if last is not None:
            everyone = Full().draw(self.census, self.seed, t)
            task = with_round(Task({"model": self.algorithm.result(state)}), everyone, self.local.rate(t))
            self.exchange.exchange(Train(last, last.local_solver(self.local, t)), task, everyone.ids, t)

    def _draw(self, state: State, t: int) -> Draw:
        if self._foreseen is not None and self._foreseen[0] == t:
            return self._foreseen[1]
        chances = self.algorithm.chances(state)
        census = self.census if chances is None else self.census._replace(weight=chances)
        return self.cohort.draw(census, self.seed, t).ascending()

    def _asked(self, who: str | int, state: State, t: int) -> Draw:
        # draws depend on (seed, round): the cohort that is asked is the one that will train
        return self._draw(state, t) if who == "cohort" else asked_apart(who, self.census, self.seed, t)


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
    """Check that these fit together, and make what training starts from; raises a one-line error where they do not."""
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
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises an AssertionError where it was built without CUDA
        known = "cpu" if not torch.cuda.is_available() else f"cpu, cuda (0 to {torch.cuda.device_count() - 1})"
        raise ValueError(f"device {str(device)!r} cannot be used here; there is {known}") from error
    return chosen


def check_arguments(rounds: Any, seed: Any, eval_every: Any, checkpoint_every: Any, progress: Any = None) -> None:
    """Raise where a number is not what it must be."""
    require_whole("rounds", rounds, 1)
    require_whole("seed", seed, 0)
    require_whole("eval_every", eval_every, 1, optional=True)
    require_whole("checkpoint_every", checkpoint_every, 1, optional=True)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function (rounds done, history row), got {progress!r}")


def tell_of_left_out(history: list[Row], here: bool = True) -> None:
    """Warn of rounds that some clients were left out of. ``here``: the only reason can be that they diverged."""
    rounds = [row for row in history if row["left_out"]]
    if rounds:
        void = sum(row["void"] for row in rounds)
        why = "because their updates were not finite" if here else "for the reasons that are logged above"
        text = "in %d of %d rounds clients were left out %s; %d rounds are void.%s"
        log.warning(text, len(rounds), len(history), why, void, " Is lr too large?" if here else "")


def with_round(task: Task, draw: Draw, lr: float | Tensor) -> Task:
    """A method's task with what every method needs: the round's step size and the cohort's coefficients."""
    shared = {**task.shared, "lr": torch.as_tensor(lr, dtype=torch.float64)}
    return Task(shared, {**task.own, "weight": draw.weight, "share": draw.share})


def to_server(state: State, device: torch.device) -> State:
    """A state where servers keep it: trees shaped like the model on its device, numbers on the CPU."""
    return {name: tree.to(value, device) if isinstance(value, dict) else value for name, value in state.items()}


def identify(model: Model, federation: Federation, data: str, *settings: object) -> str:
    """A text that changes when the settings of a run, its initial model, the loss or the ``data``, by their fingerprint, do."""
    parameters = [(name, tuple(leaf.shape), float(leaf.double().sum())) for name, leaf in model.init().items()]
    first = first_samples(model, federation, 8)
    few = torch.arange(len(first.y), device=model.device)
    loss = float(model.loss(model.init(), Batch(first, few, torch.ones(len(few), device=model.device, dtype=model.dtype))))
    return repr((settings, (loss, parameters, data)))


def first_samples(model: Model, federation: Federation, count: int) -> Samples:
    """The first training samples, as the model takes them."""
    part = federation.train
    x, y, group = part.x[:count], part.y[:count], None if part.group is None else part.group[:count]
    return Part(x, y, torch.tensor([0, len(y)]), group).samples(model.dtype, model.device)


class Judge:
    """Evaluates the models that clients would use, by exchanges."""

    def __init__(self, algorithm: Algorithm, model: Model, federation: Federation, census: Census, exchange: Exchange) -> None:
        self.algorithm, self.model, self.federation, self.census, self.exchange = algorithm, model, federation, census, exchange
        self.part = "train" if federation.judged is federation.train else "test"
        self.work = Evaluate(algorithm, federation.groups, self.part, by_client=exchange.by_client)
        self._training_work = Evaluate(Algorithm(), federation.groups, "train")  # one of each kind: engines prepare a kind of work once
        self._losses: tuple[State, Tensor] | None = None  # the last training losses, and the state they are of

    def result(self, state: State, rounds: int, history: list[Row], tracked: dict[int, Tensor]) -> Result:
        """What a run of so many rounds that ends with ``state`` leaves."""
        federation, certificate = self.federation, self.certificate(state, rounds)
        params, personal = self.model.state_dict(self.algorithm.result(state)), self.personal(state)
        tally = self.tally(state, rounds)
        over_clients = None if self.exchange.by_client else _split_off(tally)
        validated = self.tally(state, rounds, "val") if federation.val is not None and len(federation.val.x) else None
        return Result(
            algorithm=self.algorithm,
            params=params,
            personal=personal,
            state=tree.to(state, "cpu"),
            history_rows=history,
            score_columns=score_columns(tally, federation) | self.shared_columns(state, rounds),
            tally=tally,
            values=self.values(params, personal),
            counts=counts_of(tally, federation),
            validation=None if validated is None else score_columns(validated, federation),
            certificate=certificate,
            over_clients=over_clients,
            weight_columns={} if certificate is None else self.weight_columns(certificate, state, rounds),
            weight_rounds=list(tracked),
            weight_history=torch.stack(list(tracked.values())).numpy() if tracked else None,
        )

    def numbers(self, state: State, round: int) -> Row:
        """Loss and accuracy over clients, for the history."""
        return self.read(self._judged(self.work, state, round))

    def look(self, state: State, ids: Tensor) -> Look | None:
        """The same question to those of clients ``ids`` that have something to judge on, in company with other work."""
        ids = ids[getattr(self.federation, self.part).sizes[ids] > 0]
        return Look(self.work, self._task(state), ids) if len(ids) else None

    def read(self, replies: Replies) -> Row:
        """Numbers over the clients that have evaluated."""
        if not len(replies.ids):  # of a real federation, where all can be away
            return {"loss": math.nan}
        if not self.work.by_client:
            return dict(from_client_sums(replies.total))
        return {name: float(value) for name, value in over_clients(replies.each, self.model.classifies).items()}

    def tally(self, state: State, round: int, part: str | None = None) -> Tally:
        """Full tallies of all clients on a part of their data, by default the one that the history is about."""
        clients = self.federation.clients
        work = Evaluate(self.algorithm, self.federation.groups, part or self.part, True, clients, self.exchange.by_client)
        replies = self._judged(work, state, round)
        if not len(replies.ids):
            raise RunError("no client has answered the last evaluation; start the run again, it goes on from its last round")
        return dense(replies, clients)

    def shared_columns(self, state: State, round: int) -> Columns:
        """Accuracy and loss of the shared model, where clients use models of their own and there is a trained one beside them."""
        shared = self.algorithm.result(state)
        if (
            not self.algorithm.personal
            or not self.exchange.by_client
            or all(map(torch.equal, tree.leaves(shared), tree.leaves(self.model.init())))
        ):
            return {}
        clients = self.federation.clients
        work = Evaluate(Algorithm(), self.federation.groups, self.part, full=True, clients=clients)
        columns = score_columns(dense(self._judged(work, state, round), clients), self.federation)
        return {f"shared_{name}": columns[name] for name in ("accuracy", "loss")}

    def values(self, params: Tree, personal: list[dict[str, Tensor]] | None) -> Floats:
        """(N,) how each sample of the judged part is served, where samples are here; as evaluation, with one thread for each operation."""
        if not self.exchange.here:
            return np.zeros(0)
        with one_thread():
            return sample_values(self.model, self.federation.judged, params, personal)

    def _judged(self, work: Evaluate, state: State, round: int) -> Replies:
        ids = getattr(self.federation, work.part).sizes.nonzero().flatten()  # clients with something to judge on
        return self.exchange.exchange(work, self._task(state), ids, round)

    def _task(self, state: State) -> Task:
        return Task(shared={"model": self.algorithm.result(state)})

    def certificate(self, state: State, round: int) -> Certificate | None:
        """Which weight each client has at its training loss; None where the method cannot tell."""
        if type(self.algorithm).certificate is Algorithm.certificate or not self.exchange.by_client:
            return None  # that takes no look at the training data
        losses = self.training_losses(state, round)
        return None if bool(losses.isnan().all()) else self.algorithm.certificate(state, losses, self.census)

    def weight_columns(self, certificate: Certificate, state: State, round: int) -> Columns:
        """A row per client: its training loss, base weight and effective weight."""
        names = [self.federation.name(client) for client in range(self.federation.clients)]
        columns = {"loss": self.training_losses(state, round), "base": self.census.weight, "weight": certificate.weights}
        return {"name": names, **{key: values.numpy() for key, values in columns.items()}}

    def training_losses(self, state: State, round: int) -> Tensor:
        """(n,) each client's loss on its training data, of the model handed out: what methods compare, a sum for "hinge_sum".

        All are NaN where one has not answered: weights are about everyone's losses.
        """
        if self._losses is None or self._losses[0] is not state:
            everyone = torch.arange(self.federation.clients)
            replies = self.exchange.exchange(self._training_work, self._task(state), everyone, round)
            if len(replies.ids) < len(everyone):
                self._losses = (state, torch.full((len(everyone),), math.nan, dtype=torch.float64))
                return self._losses[1]
            total: Tensor = replies.each["loss"].sum(1)
            self._losses = (state, total if self.model.summed else total / replies.each["count"].sum(1))
        return self._losses[1]

    def personal(self, state: State) -> list[dict[str, Tensor]] | None:
        """Each client's own model, where the method gives it one."""
        if not self.algorithm.personal or not self.exchange.here:
            return None
        shared, first = {"model": self.algorithm.result(state)}, self.algorithm.memory(self.model.init())
        memories = self.exchange.memories
        return [
            self.model.state_dict(self.algorithm.deployed(shared, memories.get(client, first))) for client in range(self.federation.clients)
        ]


def _split_off(tally: Tally) -> dict[str, float]:
    """Take the sums over clients out of a tally, and tell what they tell."""
    sums = {name: torch.as_tensor(tally.pop(name)[0]) for name in NAMES if name in tally}
    found = {"clients": float(sums["clients"]), **from_client_sums(sums)} if sums else {}
    return {name: value for name, value in found.items() if name != "loss"}


def over_clients(each: Tree, classifies: bool) -> dict[str, Floats]:
    """Loss and accuracy over clients, from their plain tallies (..., K, A): (...) by name, a number for every run in front."""
    sums = {key: values.sum(-1).cpu().numpy() for key, values in each.items()}
    found: dict[str, Floats] = {"loss": (sums["loss"] / sums["count"]).mean(-1)}
    return found | (summaries(sums["correct"] / sums["count"]) if classifies else {})


class Checkpoints:
    """State, client memories, history and tracked weights of a run, in a directory; enough to go on as if nothing had happened."""

    def __init__(self, directory: Path, settings: str, every: int, extent: Extent) -> None:
        self.directory, self.every, self.extent = directory, every, extent
        self.settings = _hashed(settings)
        self._open()

    @processes.on_first
    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)  # a directory that cannot be written to shows now, not after hours
        files.clear_partial(self.directory, (CHECKPOINT, HISTORY))

    @processes.on_first
    def has_one_to_resume(self, resume: bool) -> bool:
        """Whether there is a checkpoint; raises where there is one that nobody asked to resume."""
        found = (self.directory / CHECKPOINT).exists()
        if found and not resume:
            raise RunError(
                f"{self.directory} holds the checkpoint of an earlier run; continue it with resume=True, or use another directory"
            )
        return found

    @processes.on_first
    def save(self, state: State, memories: dict[int, Tree], history: list[Row], tracked: dict[int, Tensor]) -> None:
        files.write_rows(self.directory / HISTORY, history)  # to look at; resuming reads the checkpoint alone
        kept = {"state": tree.to(state, "cpu"), "memory": {str(i): memories[i] for i in sorted(memories)}}
        kept["weights"] = {str(round): weights for round, weights in tracked.items()}
        about = {"rounds": len(history), "settings": self.settings, "extent": self.extent, "history": history}
        files.write_tensors(self.directory / CHECKPOINT, kept, about)

    @processes.on_first
    def extent_then(self) -> Extent:
        """How many clients, groups and teams there were when the checkpoint was written, as far as it tells."""
        _, about = files.read_tensors(self.directory / CHECKPOINT)
        return Extent(*about.get("extent", self.extent))

    @processes.on_first
    def load(self, settings: str | None = None) -> tuple[State, dict[int, Tree], list[Row], dict[int, Tensor]]:
        """What the checkpoint holds, which must be of a run with ``settings``, by default the present ones."""
        flat, about = files.read_tensors(self.directory / CHECKPOINT)
        if about.get("settings") != (self.settings if settings is None else _hashed(settings)):
            raise RunError(f"{self.directory} holds a checkpoint of a run with other settings or data; use another directory")
        kept = tree.unflatten(flat)
        memories, tracked = ({int(i): saved for i, saved in kept.get(name, {}).items()} for name in ("memory", "weights"))
        if "state" not in kept or not isinstance(about.get("history"), list):
            raise RunError(f"{self.directory / CHECKPOINT} is damaged: it lacks its state or history")
        return kept["state"], memories, about["history"], tracked


def _hashed(settings: str) -> str:
    return hashlib.sha256(settings.encode()).hexdigest()
