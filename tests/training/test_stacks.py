"""Several runs at once: the same numbers as one after another, whatever is stacked and whatever is
not."""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand import files, tree
from evenhand.studies.runs import comparing, executing
from evenhand.studies.specs.spec import Spec
from evenhand.testing.compare import difference
from evenhand.training.evaluation import Judge
from evenhand.training.stacks.fit_many import fit_each
from evenhand.training.stacks.hyperparameters import form_of, numbers_of, with_numbers
from tests.support import joining
from tests.support.federations import METHODS, network, ragged

SIZES = (1, 9, 7, 12, 8)
LOCAL = eh.LocalSGD(lr=0.05, epochs=1, batch_size=8, momentum=0.5, weight_decay=0.01, decay=0.9)
CLOSE = 1e-9


class Stop(Exception):
    """What interrupts runs here."""


def varied(algorithm: eh.Algorithm, path: str, factor: float) -> eh.Algorithm:
    """The method with one number changed."""
    name, _, rest = path.partition(".")
    value = getattr(algorithm, name)
    return dataclasses.replace(
        algorithm,
        **{name: varied(value, rest, factor) if rest else value * factor or 0.05 * factor},
    )


def front(algorithm: eh.Algorithm, seeds: Sequence[int] = (0, 5)) -> list[eh.Run]:
    """Each number of the method with another value, and step sizes that differ by seed."""
    methods = [algorithm, *(varied(algorithm, path, 0.8) for path in numbers_of(algorithm))]
    return [
        eh.Run(method, seed, dataclasses.replace(LOCAL, lr=LOCAL.lr + seed / 100))
        for method in methods
        for seed in seeds
    ]


def apart(
    federation: eh.Federation,
    runs: Sequence[eh.Run],
    module: torch.nn.Module | None = None,
    **settings: Any,
) -> list[eh.Result]:
    """The same runs one after another, on the reference engine."""
    return [
        eh.fit(
            run.module or module or network(),
            federation,
            run.algorithm,
            seed=run.seed,
            local=run.local,
            out=run.out,
            **settings,
        )
        for run in runs
    ]


def alike(found: eh.Result, wanted: eh.Result, tolerance: float = CLOSE) -> str:
    """Where two results differ, in words."""
    return difference(everything(found), everything(wanted), tolerance)


def everything(result: eh.Result) -> dict[str, Any]:
    """All that a result holds, as tensors where it is numbers."""
    certificate = [] if result.certificate is None else list(result.certificate)
    validation = {} if result.validation is None else result.validation
    return {
        "history": [
            {name: _number(value) for name, value in row.items()} for row in result.history_rows
        ],
        "params": result.params,
        "state": result.state,
        "personal": result.personal or [],
        "tally": {name: torch.from_numpy(sums) for name, sums in result.tally.items()},
        "values": torch.from_numpy(result.values),
        "scores": {name: _number(values) for name, values in result.score_columns.items()},
        "validation": {name: _number(values) for name, values in validation.items()},
        "certificate": certificate,
        "weights": {name: _number(values) for name, values in result.weight_columns.items()},
        "tracked": (
            result.weight_rounds,
            (
                torch.zeros(0)
                if result.weight_history is None
                else torch.from_numpy(result.weight_history)
            ),
        ),
    }


def _number(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def federation() -> eh.Federation:
    return ragged(SIZES)


def check(
    federation: eh.Federation, runs: list[eh.Run], tolerance: float = CLOSE, **settings: Any
) -> list[eh.Result]:
    """Train together and apart; they must agree."""
    chosen: dict[str, Any] = {
        "module": network(),
        "rounds": 2,
        "eval_every": 2,
        "track_weights": True,
        **settings,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd settings are meant
        found = eh.fit_many(chosen.pop("module"), federation, runs, engine="vmap", **chosen)
        wanted = apart(federation, runs, settings.get("module"), engine="loop", **{**chosen})
    assert len(found) == len(wanted)
    for run, one, other in zip(runs, found, wanted, strict=True):
        assert one.algorithm == run.algorithm
        assert not alike(one, other, tolerance), run
    return found


# ---- the same numbers


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_what_separate_runs_give(name: str, federation: eh.Federation) -> None:
    check(federation, front(METHODS[name]), cohort=eh.Uniform(3))


@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "qffl",
        "afl_average",
        "term_team",
        "fafl_local",
        "fedminmax",
        "gifair",
        "ditto",
        "lossguard",
    ],
)
def test_with_everyone_too(name: str, federation: eh.Federation) -> None:
    check(federation, front(METHODS[name], (1,)), cohort=eh.Full())


@pytest.mark.parametrize(
    "name", ["fedavg", "term", "gifair", "ditto", "deltafl", "drfa", "fedfv", "finetuned"]
)
def test_cohorts_of_different_sizes_are_trained_in_parties(
    name: str, federation: eh.Federation
) -> None:
    cohort = eh.Proportional(3)
    sizes = {len(cohort.draw(federation.census("data"), seed, 0).ids) for seed in (0, 1, 2, 3)}
    assert len(sizes) > 1
    check(federation, front(METHODS[name], (0, 1, 2, 3))[:4], cohort=cohort)


def test_without_teams_with_equal_weights_and_with_validation_data() -> None:
    federation = ragged((8, 12, 9, 20), teams=False).with_validation(0.3, 0)
    for name in ("gifair", "afl", "aaggff_ftrl"):
        check(
            federation, front(METHODS[name]), weights="uniform", cohort=eh.Uniform(3, unbiased=True)
        )


def test_single_precision_agrees_to_single_precision(federation: eh.Federation) -> None:
    for name in ("qffl", "ditto", "clipped"):
        check(federation, front(METHODS[name]), 1e-4, module=network(torch.float32))


@pytest.mark.parametrize("name", ["afl", "term", "fedavgm"])
def test_server_functions_that_are_replayed_give_the_same(
    name: str, federation: eh.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenhand.engines.replay.CALLS_BEFORE_TRACING", 2)
    check(federation, front(METHODS[name])[:4], rounds=5, cohort=eh.Uniform(3))


def test_runs_with_initial_parameters_of_their_own(federation: eh.Federation) -> None:
    for algorithm in (eh.FedAvg(), eh.Ditto(lam=0.5), eh.LocalOnly(), eh.FineTuned(epochs=2)):
        runs = [eh.Run(algorithm, seed, LOCAL, network(seed=seed)) for seed in (0, 1, 2)]
        check(federation, runs, cohort=eh.Uniform(3))


def test_a_regression_is_stacked_too() -> None:
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(size, 3)), "y": rng.normal(size=size)} for size in (5, 9, 4)]
    module = torch.nn.Linear(3, 1, dtype=torch.float64)
    check(eh.Federation.from_arrays(clients), front(eh.QFFL(q=1.0)), module=module, loss="mse")


def test_results_come_in_the_order_of_the_runs_whatever_is_stacked(
    federation: eh.Federation,
) -> None:
    deep = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).double()
    runs = [
        eh.Run(eh.QFFL(q=1.0), 0, LOCAL),
        eh.Run(eh.FedAvg(), 0, LOCAL),
        eh.Run(eh.QFFL(q=2.0), 1, dataclasses.replace(LOCAL, lr=0.1, decay=0.5)),
        eh.Run(eh.QFFL(q=2.0), 1, dataclasses.replace(LOCAL, epochs=2)),
        eh.Run(eh.FedAvg(), 3, LOCAL, deep),
        eh.Run(eh.FedProx(mu=0.1, inner=eh.QFFL(q=0.5)), 0, LOCAL),
        eh.Run(eh.FedAvg(), 1, LOCAL),
        eh.Run(eh.FedProx(mu=0.1, inner=eh.QFFL(q=1.5)), 0, LOCAL),
    ]
    together: set[tuple[int, ...]] = set()
    check(
        federation,
        runs,
        progress=lambda numbers, done: (
            together.add(tuple(numbers)) if isinstance(numbers, list) else None
        ),
    )
    assert together == {(0, 2), (1, 6), (3,), (4,), (5, 7)}


# ---- runs in which something goes wrong


@pytest.mark.parametrize(
    "name", ["fedavg", "afl", "afl_before", "ditto", "deltafl", "gifair", "term", "drfa"]
)
def test_a_run_that_diverges_leaves_out_its_own_clients_alone(
    name: str, federation: eh.Federation
) -> None:
    algorithm = METHODS[name]
    local = dataclasses.replace(LOCAL, decay=1.0, momentum=0.0)
    rates = (0.05, 1e160, 0.1)
    runs = [
        eh.Run(algorithm, seed, dataclasses.replace(local, lr=lr)) for seed, lr in enumerate(rates)
    ]
    found = check(federation, runs, rounds=3)
    left_out = [any(row["left_out"] for row in result.history_rows) for result in found]
    assert left_out == [False, True, False]


def test_a_round_in_which_nobody_answers_is_void_for_that_run_alone() -> None:
    rng = np.random.default_rng(1)
    clients = [{"x": rng.normal(size=(6, 2)), "y": rng.normal(size=6)} for _ in range(3)]
    runs = [
        eh.Run(eh.QFFL(q=q), 0, eh.LocalSGD(lr=lr, steps=3))
        for q, lr in ((1.0, 0.1), (2.0, 1e200), (3.0, 0.2))
    ]
    module = torch.nn.Linear(2, 1, dtype=torch.float64)
    found = check(eh.Federation.from_arrays(clients), runs, module=module, loss="mse")
    assert [all(row["void"] for row in result.history_rows) for result in found] == [
        False,
        True,
        False,
    ]


# ---- what cannot be stacked


@dataclass(frozen=True)
class Looking(eh.Algorithm):
    """A method whose client looks at a setting."""

    q: float = 1.0
    scale: float = 1.0

    def objective(
        self, model: eh.Model, variables: tree.Tree, batch: eh.Batch, task: eh.Task
    ) -> torch.Tensor:
        loss = self.scale * model.loss(variables["model"], batch)
        return loss**2 if self.q > 1 else loss


@dataclass(frozen=True)
class ByNumpy(eh.Algorithm):
    """A method whose server leaves torch."""

    rate: float = 1.0

    def server(self, state: tree.Tree, replies: eh.Replies) -> tuple[tree.Tree, dict[str, Any]]:
        weight = float(replies.total["weight"].numpy())
        model = tree.map(
            lambda p, d: (p.double() - self.rate * d / weight).to(p.dtype),
            state["model"],
            replies.total["delta"],
        )
        return {**state, "model": model}, {"shown": self.rate * weight}


def test_where_a_client_looks_at_a_setting_its_values_are_stacked_apart(
    federation: eh.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [eh.Run(Looking(q, scale), 0, LOCAL) for q in (0.5, 2.0) for scale in (0.5, 1.0, 2.0)]
    together: set[tuple[int, ...]] = set()
    with caplog.at_level(logging.INFO, "evenhand"):
        eh.fit_many(
            network(),
            federation,
            runs,
            rounds=1,
            engine="vmap",
            progress=lambda numbers, _: together.add(tuple(numbers)),
        )
    assert together == {(0, 1, 2), (3, 4, 5)}
    told = [record.message for record in caplog.records if "not stacked" in record.message]
    assert len(told) == 1
    assert told[0].startswith("runs with different q are not stacked")
    check(federation, runs)


def test_where_a_server_cannot_be_batched_it_is_called_run_by_run(
    federation: eh.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "evenhand"):
        found = check(federation, front(ByNumpy(), (0, 1, 2)), cohort=eh.Uniform(3))
    assert any(
        record.message.startswith("ByNumpy.server is called run by run")
        for record in caplog.records
    )
    assert found[-1].history_rows[0]["shown"] == pytest.approx(0.8)


def test_on_the_loop_engine_and_with_dropout_runs_are_those_of_fit_to_the_bit(
    federation: eh.Federation,
) -> None:
    dropping = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    ).double()
    for module, engine in ((network(), "loop"), (dropping, "vmap")):
        runs = [eh.Run(eh.QFFL(q=float(q)), seed, LOCAL) for q in (1, 2) for seed in (0, 1)]
        found = eh.fit_many(module, federation, runs, rounds=2, engine=engine)
        for one, other in zip(
            found, apart(federation, runs, module, rounds=2, engine=engine), strict=True
        ):
            assert not alike(one, other, 0.0)


def test_modules_that_look_alike_and_are_not_are_kept_apart(federation: eh.Federation) -> None:
    class Chosen(torch.nn.Module):
        def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.first = torch.nn.Linear(5, 4, dtype=torch.float64)
            self.last = torch.nn.Linear(4, 3, dtype=torch.float64)
            self.function = function

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.function(self.first(x)))

    modules = [Chosen(function) for function in (torch.tanh, torch.relu, torch.tanh, torch.relu)]
    together: set[tuple[int, ...]] = set()
    runs = [eh.Run(eh.FedAvg(), 0, LOCAL, module) for module in modules]
    check(
        federation,
        runs,
        progress=lambda numbers, _: (
            together.add(tuple(numbers)) if isinstance(numbers, list) else None
        ),
    )
    assert together == {(0, 2), (1, 3)}


# ---- files


def stopping(at: int) -> Callable[[Any, Any], None]:
    def progress(numbers: Any, done: Any) -> None:
        if (done if isinstance(done, int) else numbers) == at:
            raise Stop

    return progress


SETTINGS: dict[str, Any] = {
    "rounds": 6,
    "eval_every": 3,
    "cohort": eh.Uniform(3),
    "engine": "vmap",
    "checkpoint_every": 2,
    "track_weights": True,
}


def with_directories(runs: list[eh.Run], directory: Path) -> list[eh.Run]:
    return [
        dataclasses.replace(run, out=directory / str(number)) for number, run in enumerate(runs)
    ]


@pytest.mark.parametrize("name", ["qffl", "ditto", "fafl", "fedfv"])
def test_a_stack_goes_on_from_its_checkpoints_to_the_same_bits(
    name: str, federation: eh.Federation, tmp_path: Path
) -> None:
    runs = with_directories(front(METHODS[name]), tmp_path)
    whole = eh.fit_many(
        network(), federation, front(METHODS[name]), **{**SETTINGS, "checkpoint_every": None}
    )
    with pytest.raises(Stop):
        eh.fit_many(network(), federation, runs, progress=stopping(5), **SETTINGS)
    resumed = eh.fit_many(network(), federation, runs, resume=True, **SETTINGS)
    for one, other in zip(resumed, whole, strict=True):
        assert not alike(one, other, 0.0)
    with pytest.raises(eh.RunError, match="resume it with resume=True"):
        eh.fit_many(network(), federation, runs, **SETTINGS)


def test_single_runs_and_stacks_go_on_from_each_others_checkpoints(
    federation: eh.Federation, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "resume": True}
    for algorithm in (eh.QFFL(q=1.0), eh.Ditto(lam=0.5)):
        plain = front(algorithm)
        whole = apart(federation, plain, **{**SETTINGS, "checkpoint_every": None})
        first = with_directories(plain, tmp_path / type(algorithm).__name__ / "stack first")
        with pytest.raises(Stop):
            eh.fit_many(network(), federation, first, progress=stopping(3), **settings)
        for one, other in zip(apart(federation, first, **settings), whole, strict=True):
            assert not alike(one, other)
        second = with_directories(plain, tmp_path / type(algorithm).__name__ / "single first")
        # they have then come to different rounds
        for run, at in zip(second[:2], (3, 5), strict=True):
            with pytest.raises(Stop):
                apart(federation, [run], **settings, progress=stopping(at))
        for one, other in zip(
            eh.fit_many(network(), federation, second, **settings), whole, strict=True
        ):
            assert not alike(one, other)


def test_without_checkpoint_every_there_is_one_at_the_end_and_one_a_minute(
    federation: eh.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_directories(front(eh.QFFL()), tmp_path)
    settings = {**SETTINGS, "checkpoint_every": None}
    with pytest.raises(Stop):
        eh.fit_many(network(), federation, runs, progress=stopping(5), **settings)
    assert not list(tmp_path.rglob("checkpoint*"))
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr("evenhand.training.rounds.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(Stop):
        eh.fit_many(network(), federation, runs, progress=stopping(4), **settings)
    assert len(list(tmp_path.rglob("checkpoint*"))) == len(runs)


def test_a_run_of_a_stack_can_be_judged_twice(
    federation: eh.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, tallies = Judge.result, []

    def twice(self: Judge, state: Any, rounds: int, *rest: Any) -> eh.Result:
        tallies.append([self.tally(state, rounds) for _ in range(2)])
        return result(self, state, rounds, *rest)

    monkeypatch.setattr(Judge, "result", twice)
    runs = [eh.Run(eh.FedAvg(), seed, LOCAL) for seed in (0, 1)]
    found = eh.fit_many(network(), federation, runs, rounds=1)
    assert len(tallies) == len(runs)
    for (first, again), one in zip(tallies, found, strict=True):
        for name, table in first.items():
            assert np.array_equal(table, again[name]), name
            assert np.array_equal(table, one.tally[name]), name


def test_a_stack_of_seeds_has_the_bits_of_single_runs(federation: eh.Federation) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "checkpoint_every"}
    for name in ("fedavg", "qffl", "afl", "term", "fedminmax", "gifair", "ditto", "fedadam"):
        runs = [
            eh.Run(METHODS[name], seed, LOCAL, network(torch.float32, seed)) for seed in range(3)
        ]
        found = eh.fit_many(network(torch.float32), federation, runs, **settings)
        for one, other in zip(found, apart(federation, runs, **settings), strict=True):
            assert not alike(one, other, 0.0), name


def test_bits_do_not_depend_on_the_company(federation: eh.Federation) -> None:
    for name in ("qffl", "afl", "ditto", "gifair", "fedminmax"):
        runs = front(METHODS[name], (0, 5, 6))
        whole = eh.fit_many(network(), federation, runs, **{**SETTINGS, "checkpoint_every": None})
        few = [5, 0, 2]
        rest = [run for number, run in enumerate(runs) if number not in few]
        settings = eh.Settings(**{**SETTINGS, "checkpoint_every": None})
        chosen = [runs[number] for number in few]
        for number, result in fit_each(network(), federation, chosen, settings, beside=rest):
            assert not alike(result, whole[few[number]], 0.0), name


SPEC = """
rounds = 3
seeds = [0, 1]
engine = "vmap"
checkpoint_every = 1
data = { name = "synthetic", clients = 4 }
model = { name = "linear" }
local = { lr = 0.1, epochs = 1, batch_size = 8 }
methods = [{ name = "fedavg" }, { name = "ditto" }, { name = "qffl", label = "a", q = 0.5 }, { name = "qffl", label = "b", q = 2.0 }]
"""


def ran(
    directory: Path, watch: Callable[..., Any] = lambda *_, **__: lambda done, row: None
) -> dict[str, bytes]:
    """What a comparison leaves in its directory."""
    comparing.execute_comparison(
        comparing.check_comparison(Spec.from_toml(SPEC, "SPEC")), directory, watch
    )
    files = sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name != "about.json"
    )
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_comparison_trains_runs_together_and_has_the_files_of_separate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[tuple[int, str, int, int]] = []

    def watch(
        seed: int, method: Any, together: int = 1, finished: int | None = None
    ) -> Callable[[int, Any], None]:
        watched.append((seed, method.label, together, -1 if finished is None else finished))
        return lambda done, row: None

    stacked = ran(tmp_path / "stacked", watch)
    assert watched == [(0, "fedavg", 2, 0), (0, "ditto", 2, 2), (0, "a", 4, 4)]
    monkeypatch.setattr(executing, "SMALL", 0)
    separate = ran(tmp_path / "separate")
    assert stacked.keys() == separate.keys()
    for name in stacked:
        paths = [tmp_path / kind / name for kind in ("stacked", "separate")]
        if name.endswith(".csv"):
            one, other = (
                [
                    {key: _number(value) for key, value in row.items()}
                    for row in files.read_rows(path)
                ]
                for path in paths
            )
        elif name.endswith(".safetensors"):
            one, other = (files.read_tensors(path)[0] for path in paths)
        else:
            one, other = (
                (path.read_text() for path in paths if path.name == "spec.toml")
                if name.endswith("spec.toml")
                else ("", "")
            )
        assert not difference(one, other, 1e-4), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a comparison leaves that was never interrupted."""
    return ran(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("label", "at"), [("fedavg", 2), ("a", 1), ("a", 3)])
def test_an_interrupted_comparison_of_stacks_ends_with_the_same_bytes(
    label: str, at: int, whole: dict[str, bytes], tmp_path: Path
) -> None:
    def watch(seed: int, method: Any, **_: int) -> Callable[[int, Any], None]:
        def after_round(done: int, row: Any) -> None:
            if (method.label, done) == (label, at):
                raise Stop

        return after_round

    with pytest.raises(Stop):
        ran(tmp_path / "stopped", watch)
    assert ran(tmp_path / "stopped") == whole


# ---- cost


CHEAP = {
    "fedavg": lambda v: eh.FedAvg(),
    "qffl": lambda v: eh.QFFL(q=v),
    "propfair": lambda v: eh.PropFair(M=2 + v),
    "term": lambda v: eh.TERM(t=v),
    "afl": lambda v: eh.AFL(lr_lambda=v),
    "fafl": lambda v: eh.FAFL(alpha=0.1 + v / 5),
    "fedminmax": lambda v: eh.FedMinMax(lr_mu=v),
    "gifair": lambda v: eh.GIFAIR(strength=v / 10),
    "ditto": lambda v: eh.Ditto(lam=v),
}


@pytest.mark.parametrize("name", CHEAP)
def test_the_number_of_calls_in_a_round_does_not_grow_with_the_runs(name: str) -> None:
    federation = ragged((9, 8, 8, 9), teams=False)

    def calls(count: int, rounds: int) -> int:
        runs = [eh.Run(CHEAP[name](1 + number / 10), number % 2, LOCAL) for number in range(count)]
        seen = 0

        def counting(frame: Any, event: str, argument: Any) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        training = list(fit_each_until_the_last_round(network(), federation, runs, rounds))
        sys.setprofile(counting)
        try:
            for step in training:
                step()
        finally:
            sys.setprofile(None)
        return seen

    few, many = (calls(count, 3) for count in (4, 24))
    assert many - few <= 3 * 20 * 3  # a few for each run and round: its row of the history


def fit_each_until_the_last_round(
    module: torch.nn.Module, federation: eh.Federation, runs: list[eh.Run], rounds: int
) -> list[Callable[[], None]]:
    """Rounds of a stack, ready to be called: what happens before and after them is done once."""
    from evenhand.training.rounds import Rounds
    from evenhand.training.stacks.plan import Plan
    from evenhand.training.stacks.server import StackServer

    settings = eh.Settings(
        rounds=rounds + 2, cohort=eh.Uniform(2), engine=eh.Vmap(trace=False), eval_every=2
    )
    plan = Plan(module, federation, runs, [], settings, resume=False)
    (stack,) = plan.stacks()
    exchange = plan.engine.attach(stack.entries[0].model, federation, 0)
    server = StackServer(stack, federation, plan.census, exchange)
    training = Rounds(server, settings, plan.census, None, federation, lambda done: None)
    step = training.round

    step(0)
    step(1)  # what is imported or prepared at first use is no part of a round
    return [lambda t=t: step(t) for t in range(2, rounds + 2)]  # type: ignore[misc]


# ---- what one run can do, a stack can


@pytest.mark.parametrize("cohort", [eh.Full(), eh.Uniform(2), eh.Proportional(3)])
@pytest.mark.parametrize("name", ["fedavg", "qffl", "deltafl", "gifair_per"])
def test_cohorts_of_a_stack_evaluate_as_they_train(
    federation: eh.Federation, name: str, cohort: eh.Cohort
) -> None:
    settings = {"cohort": cohort, "evaluate": "with training", "rounds": 3, "eval_every": 1}
    for result in check(federation, front(METHODS[name]), **settings):
        assert [row["scores_after"] for row in result.history_rows] == [0, 1, 2]


def test_a_cohort_without_test_samples_has_no_scores() -> None:
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(4, 5)), "y": [0, 1, 2, 0]} for _ in range(4)]
    test = [*clients[:2], None, None]
    federation = eh.Federation.from_arrays(clients, test=test)
    settings = {"cohort": eh.Uniform(1), "evaluate": "with training", "rounds": 6, "eval_every": 1}
    found = check(federation, [eh.Run(eh.FedAvg(), seed, LOCAL) for seed in (0, 1, 2)], **settings)
    without = [np.isnan(row["loss"]) for result in found for row in result.history_rows]
    assert 0 < sum(without) < len(without)


@pytest.mark.parametrize("name", ["fedavg", "afl", "gifair", "ditto", "fedminmax"])
def test_clients_join_a_stack_that_is_resumed(name: str, tmp_path: Path) -> None:
    whole = ragged(joining.SIZES)
    few = whole.first(joining.FEW)
    runs = [
        dataclasses.replace(run, out=tmp_path / str(number), local=joining.SETTINGS["local"])
        for number, run in enumerate(front(METHODS[name], seeds=(3,)))
    ]
    settings = {"rounds": joining.ROUNDS, "checkpoint_every": 1, "eval_every": 2}

    def stop(numbers: Sequence[int], done: int) -> None:
        if done == joining.JOINED:
            raise Stop

    with pytest.raises(Stop):
        eh.fit_many(network(), few, runs, engine="vmap", progress=stop, **settings)
    found = eh.fit_many(network(), whole, runs, engine="vmap", resume=True, **settings)
    for number, (run, result) in enumerate(zip(runs, found, strict=True)):
        wanted = joining.enlarged(run.algorithm, tmp_path / f"alone-{number}", whole)
        assert not alike(result, wanted), run


# ---- small things


def test_numbers_of_a_method_and_of_those_inside_it() -> None:
    algorithm = eh.Clipped(
        norm=2, inner=eh.FedAvgM(lr=0.5, inner=eh.FAFL(alpha=(0.5, 0.6), eta0="mean", lr_eta=None))
    )
    assert numbers_of(algorithm) == {
        "norm": 2.0,
        "inner.lr": 0.5,
        "inner.momentum": 0.9,
        "inner.inner.mu": 0.05,
        "inner.inner.floor": 0.0,
    }
    other = with_numbers(algorithm, {"norm": 3.0, "inner.inner.mu": 0.5})
    assert isinstance(other, eh.Clipped)
    assert numbers_of(other) == {**numbers_of(algorithm), "norm": 3.0, "inner.inner.mu": 0.5}
    assert numbers_of(algorithm)["norm"] == 2.0
    assert form_of(algorithm) == form_of(varied(algorithm, "inner.lr", 0.5))
    assert form_of(algorithm) != form_of(eh.Clipped(norm=2, inner=eh.FedAvgM(lr=0.5)))
    assert form_of(eh.TERM(t=1.0)) != form_of(eh.TERM(t=0.0))
    assert form_of(eh.DRFA(sample=2)) != form_of(eh.DRFA(sample=3))


def test_wrong_arguments_are_refused_before_anything_is_trained(
    federation: eh.Federation, tmp_path: Path
) -> None:
    assert eh.fit_many(network(), federation, []) == []
    with pytest.raises(TypeError, match=r"each of runs must be a Run object"):
        eh.fit_many(network(), federation, [eh.FedAvg()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="algorithm must be an Algorithm object"):
        eh.fit_many(network(), federation, [eh.Run(eh.FedAvg()), eh.Run(eh.FedAvg)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be a whole number"):
        eh.fit_many(network(), federation, [eh.Run(eh.FedAvg(), seed=-1)])
    with pytest.raises(
        ValueError, match="need a directory for checkpoints; pass out for every run"
    ):
        eh.fit_many(
            network(),
            federation,
            [eh.Run(eh.FedAvg(), out=tmp_path), eh.Run(eh.FedAvg())],
            resume=True,
        )
