"""A user's code during training: when it is called, what it sees, how it stops a run, and what
remains of a run if it fails."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import evenhand as eh
from evenhand.data.population import Extent
from evenhand.errors import is_expected
from tests.support.federations import METHODS, network, ragged

SETTINGS: dict[str, Any] = {
    "local": eh.LocalSGD(lr=0.1, steps=2, batch_size=16),
    "cohort": eh.Uniform(4),
    "seed": 3,
    "eval_every": 2,
    "engine": "loop",
}


def train(method: str = "fedavg", **changes: Any) -> eh.Result:
    return eh.fit(network(), ragged(), METHODS[method], **{**SETTINGS, **changes})


def same(a: eh.Result, b: eh.Result, history: bool = True) -> None:
    """Two results agree in every bit."""
    for mine, yours in ((a.params, b.params), (a.state, b.state)):
        mine, yours = eh.tree.flatten(mine), eh.tree.flatten(yours)
        assert mine.keys() == yours.keys()
        assert all(torch.equal(mine[key], yours[key]) for key in mine)
    assert (a.personal is None) == (b.personal is None)
    for own, other in zip(a.personal or [], b.personal or [], strict=True):
        assert all(torch.equal(own[key], other[key]) for key in own)
    assert repr(a.score_rows) == repr(b.score_rows)
    if history:
        assert repr(a.history_rows) == repr(b.history_rows)


class Stop(eh.Callback):
    """Stops after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round_end(self, moment: eh.Moment) -> None:
        if moment.round == self.after:
            moment.stop("we have\nseen enough")


class Seen(eh.Callback):
    """Remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_run_start(self, run: eh.RunInfo) -> None:
        self.calls.append(run)

    def on_round_end(self, moment: eh.Moment) -> None:
        self.calls.append((moment.round, moment.rounds, moment.evaluated, moment.row))

    def on_run_end(self, result: eh.Result) -> None:
        self.calls.append(result)


class Fails(eh.Callback):
    """Fails in one of its hooks, after some round."""

    def __init__(self, hook: str = "on_round_end", after: int = 3) -> None:
        self.hook, self.after = hook, after

    def on_round_end(self, moment: eh.Moment) -> None:
        if self.hook == "on_round_end" and moment.round == self.after:
            raise KeyError("accuracy")

    def on_run_end(self, result: eh.Result) -> None:
        if self.hook == "on_run_end":
            raise ValueError("no disk")


# ---- what a callback sees


def test_callbacks_are_called_at_the_start_after_every_round_and_at_the_end() -> None:
    seen = Seen()
    result = train(rounds=5, callbacks=[seen])
    run, *rounds, last = seen.calls
    assert (run.label, run.seed, run.folder, run.history) == ("fedavg", 3, "", [])
    assert run.settings.rounds == 5
    assert run.federation.clients == 10
    assert run.classifies
    assert [one[:3] for one in rounds] == [
        (1, 5, False), (2, 5, True), (3, 5, False), (4, 5, True), (5, 5, True),
    ]  # fmt: skip
    assert [one[3] for one in rounds] == result.history_rows
    assert last.params.keys() == result.params.keys()


@pytest.mark.parametrize("method", ["fedavg", "ditto", "drfa", "fafl_local"])
def test_watching_changes_nothing(method: str) -> None:
    class Looks(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            for value in moment.params().values():
                value.zero_()  # a copy
            moment.row.clear()
            moment.history.clear()
            moment.scores("train"), moment.scores()

    same(train(method, rounds=3, callbacks=[Looks()]), train(method, rounds=3))


def test_a_moment_has_the_models_and_scores_of_its_round() -> None:
    found: dict[int, Any] = {}

    class Looks(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            found[moment.round] = moment.params(), moment.scores("test"), moment.scores("train")

    train(rounds=4, callbacks=[Looks()])
    for round in (1, 4):
        alone = train(rounds=round)
        params, test, part = found[round]
        assert all(torch.equal(params[key], alone.params[key]) for key in params)
        assert {name: alone.history_rows[-1][name] for name in test} == test
        assert part["mean"] != test["mean"]


def test_a_part_without_samples_cannot_be_evaluated() -> None:
    class Looks(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            moment.scores("val")

    with pytest.raises(eh.CallbackError, match="no client has val data to evaluate on"):
        train(rounds=1, callbacks=[Looks()])


def test_recorded_numbers_become_columns_of_the_history() -> None:
    class Records(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            moment.record(square=moment.round**2)

    assert train(rounds=3, callbacks=[Records()]).history["square"].tolist() == [1, 4, 9]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"loss": 0.0}, "the history has a column 'loss' already; use another name"),
        ({"note": "good"}, "note must be a number, got str"),
    ],
)
def test_records_that_are_refused(columns: dict[str, Any], text: str) -> None:
    class Records(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            moment.record(**columns)

    with pytest.raises(eh.CallbackError, match=text):
        train(rounds=2, eval_every=1, callbacks=[Records()])


@pytest.mark.parametrize(
    ("callbacks", "text"),
    [
        (eh.EarlyStopping(), r"callbacks must be a list, such as \[EarlyStopping\(\)\]"),
        ([print], "each of callbacks must be a Callback object"),
        ([eh.EarlyStopping], r"did you mean EarlyStopping\(\)\?"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused(callbacks: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        train(rounds=1, callbacks=callbacks)


# ---- stopping


@pytest.mark.parametrize(
    "method", ["fedavg", "ditto", "finetuned", "groupconstraint", "fedavgm", "gifair_per"]
)
def test_a_stopped_run_is_the_run_of_that_many_rounds(method: str) -> None:
    stopped = train(method, rounds=9, callbacks=[Stop(3)])
    assert stopped.stopped == eh.Stopped(3, 9, "we have seen enough")
    assert str(stopped.stopped) == "stopped after 3 of 9 rounds: we have seen enough"
    assert stopped.restored is None
    whole = train(method, rounds=3)
    assert whole.stopped is None
    same(stopped, whole)  # the last row is evaluated, and has the answers to the last question


def test_the_first_reason_counts() -> None:
    class Other(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            moment.stop("late")

    result = train(rounds=4, callbacks=[Stop(1), Other()])
    assert result.stopped == eh.Stopped(1, 4, "we have seen enough")


def test_a_reason_is_required() -> None:
    class Silent(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            moment.stop(None)  # type: ignore[arg-type]

    with pytest.raises(eh.CallbackError, match="reason must be a str object"):
        train(rounds=4, callbacks=[Silent()])


def test_weights_are_tracked_when_a_run_stops() -> None:
    result = train("afl", rounds=9, eval_every=5, track_weights=True, callbacks=[Stop(3)])
    assert result.weight_rounds == [3]


def test_a_saved_run_says_why_it_stopped(tmp_path: Path) -> None:
    result = train(rounds=9, callbacks=[Stop(3)], out=tmp_path / "run")
    trial = eh.load(tmp_path / "run").trial("fedavg", 3)
    assert trial.stopped == result.stopped
    assert trial.restored is None
    assert eh.verify(tmp_path / "run").damages == []


def test_a_stopped_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    stopped = train(rounds=9, callbacks=[Stop(3)], out=tmp_path)
    seen = Seen()
    again = train(rounds=9, callbacks=[seen], out=tmp_path, resume=True)
    assert again.stopped == stopped.stopped
    same(again, stopped)
    assert len(seen.calls) == 2  # no round, but a start and an end
    assert len(seen.calls[0].history) == 3
    same(train(rounds=9, out=tmp_path, resume=True), stopped)


def test_a_stopped_run_may_be_given_more_rounds(tmp_path: Path) -> None:
    train(rounds=4, callbacks=[Stop(3)], out=tmp_path)
    longer = train(rounds=6, out=tmp_path, resume=True)
    assert longer.stopped is None
    whole = train(rounds=6)
    same(longer, whole, history=False)
    assert [row["round"] for row in longer.history_rows] == [1, 2, 3, 4, 5, 6]
    assert eh.load(tmp_path).trial("fedavg", 3).stopped is None
    with pytest.raises(eh.RunError, match=r"another run|other settings"):
        train(rounds=5, out=tmp_path, resume=True)


def test_a_run_can_return_the_model_of_an_earlier_round(tmp_path: Path) -> None:
    class Keeps(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            if moment.round in (1, 2):
                moment.keep()

    kept = train("ditto", rounds=5, callbacks=[Keeps()], out=tmp_path)
    assert kept.stopped is None
    assert kept.restored == 2
    assert len(kept.history_rows) == 5
    same(kept, train("ditto", rounds=2), history=False)
    assert eh.load(tmp_path).trial("ditto", 3).restored == 2
    # callbacks are no part of a finished run, and more rounds without them return the last model
    same(train("ditto", rounds=5, out=tmp_path, resume=True), kept)
    longer = train("ditto", rounds=6, out=tmp_path, resume=True)
    assert longer.restored is None
    same(longer, train("ditto", rounds=6), history=False)
    assert eh.load(tmp_path).trial("ditto", 3).restored is None


def test_joining_clients_extend_the_kept_state(tmp_path: Path) -> None:
    class Keeps(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            if moment.round == 1:
                moment.keep()

    many = ragged()
    few = many.first(Extent(8, many.groups, len(many.team_names)))
    eh.fit(network(), few, eh.AFL(), out=tmp_path, rounds=2, callbacks=[Keeps()], **SETTINGS)
    joined = eh.fit(
        network(), many, eh.AFL(), out=tmp_path, rounds=3, resume=True, callbacks=[Keeps()],
        **SETTINGS,
    )  # fmt: skip
    assert joined.restored == 1
    assert len(joined.state["lam"]) == 10


# ---- several runs


def test_each_of_several_runs_has_callbacks_of_its_own() -> None:
    seen: list[tuple[str, int, int]] = []

    class Counts(eh.Callback):
        calls = 0

        def on_run_start(self, run: eh.RunInfo) -> None:
            self.folder = run.folder

        def on_round_end(self, moment: eh.Moment) -> None:
            self.calls += 1
            seen.append((self.folder, moment.run.seed, self.calls))
            if self.calls == moment.run.seed:
                moment.stop("its time has come")

    runs = [eh.Run(eh.FedAvg(), seed=seed) for seed in (1, 2)]
    options = {key: value for key, value in SETTINGS.items() if key not in ("seed", "engine")}
    found = eh.fit_many(
        network(), ragged(), runs, rounds=4, engine="vmap", callbacks=[Counts()], **options
    )
    assert seen == [("run-0", 1, 1), ("run-1", 2, 1), ("run-1", 2, 2)]
    for seed, result in zip((1, 2), found, strict=True):
        same(result, train(rounds=seed, seed=seed, engine="vmap"))


def test_what_cannot_be_copied_is_refused() -> None:
    class Locks(eh.Callback):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match=r"Locks cannot be copied for each run .* on_run_start"):
        eh.fit_many(network(), ragged(), [eh.Run(eh.FedAvg())], rounds=1, callbacks=[Locks()])


# ---- callbacks that fail


def test_the_result_of_a_run_whose_callback_fails_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(eh.CallbackError) as caught:
        train(rounds=9, callbacks=[Fails()])
    assert str(caught.value) == (
        "Fails failed in on_round_end after round 3: KeyError: 'accuracy'; the error's result has"
        " the rounds done"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert is_expected(caught.value)
    result = caught.value.result
    assert result is not None
    assert result.stopped is not None
    assert result.stopped.reason.startswith("Fails failed in on_round_end")
    same(result, train(rounds=3))
    result.save(tmp_path / "run")
    assert eh.load(tmp_path / "run").trial("fedavg", 3).stopped == result.stopped


def test_a_run_whose_callback_fails_can_be_resumed(tmp_path: Path) -> None:
    fed = ragged().with_validation(0.3)
    whole = eh.fit(
        network(), fed, eh.FedAvg(), rounds=6, callbacks=[eh.EarlyStopping(patience=9)], **SETTINGS
    )
    arguments = (network(), fed, eh.FedAvg())
    with pytest.raises(eh.CallbackError, match=r"saved: resume them with resume=True$") as caught:
        eh.fit(
            *arguments, rounds=6, out=tmp_path, **SETTINGS,
            callbacks=[Fails(after=2), eh.EarlyStopping(patience=9)],
        )  # fmt: skip
    assert caught.value.result is None
    # those after the one that failed were called, so nothing is missing
    resumed = eh.fit(
        *arguments, rounds=6, out=tmp_path, resume=True, **SETTINGS,
        callbacks=[eh.EarlyStopping(patience=9)],
    )  # fmt: skip
    same(resumed, whole)


def test_nothing_is_lost_if_a_callback_fails_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(eh.CallbackError, match="on_run_end after the last round: ValueError") as at:
        train(rounds=2, callbacks=[Fails("on_run_end")])
    assert at.value.result is not None
    same(at.value.result, train(rounds=2))
    with pytest.raises(eh.CallbackError):
        train(rounds=2, callbacks=[Fails("on_run_end")], out=tmp_path)
    assert eh.load(tmp_path).trial("fedavg", 3).stopped is None  # the run is finished


def test_ctrl_c_in_a_callback_ends_the_run_at_once() -> None:
    class Interrupts(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(rounds=2, callbacks=[Interrupts()])


def test_results_of_earlier_runs_survive_a_failure() -> None:
    class Second(eh.Callback):
        def on_round_end(self, moment: eh.Moment) -> None:
            if moment.run.seed == 4 and moment.round == 2:
                raise KeyError("accuracy")

    # runs of one method are trained together, so the failing one is not the second of the list
    methods = [eh.FedAvg(), eh.AFL(), eh.FedAvg()]
    runs = [eh.Run(method, seed=seed) for method, seed in zip(methods, (3, 5, 4), strict=True)]
    options = {key: value for key, value in SETTINGS.items() if key != "seed"}
    with pytest.raises(eh.CallbackError, match="Second failed in on_round_end") as caught:
        eh.fit_many(network(), ragged(), runs, rounds=3, callbacks=[Second()], **options)
    assert caught.value.number == 2
    assert caught.value.earlier.keys() == {0}
    same(caught.value.earlier[0], train(rounds=3))
    same(caught.value.result, train(rounds=2, seed=4))
    assert caught.value.result.module() is not None


def test_a_comparison_without_a_directory_keeps_what_is_done_when_a_callback_fails() -> None:
    class Second(eh.Callback):
        def __init__(self, hook: str) -> None:
            self.hook = hook

        def on_run_start(self, run: eh.RunInfo) -> None:
            self.fails = run.label == "afl"
            if self.fails and self.hook == "on_run_start":
                raise KeyError("accuracy")

        def on_round_end(self, moment: eh.Moment) -> None:
            if self.fails and self.hook == "on_round_end":
                raise KeyError("accuracy")

        def on_run_end(self, result: eh.Result) -> None:
            if self.fails and self.hook == "on_run_end":
                raise KeyError("accuracy")

    options: dict[str, Any] = {"rounds": 2, "seeds": 1, "references": ["fedavg"]}
    asked = network(), ragged(), ["fedavg", "afl"]
    whole = eh.compare(*asked, **options)
    for hook in ("on_run_start", "on_round_end", "on_run_end"):
        with pytest.raises(eh.CallbackError) as caught:
            eh.compare(*asked, callbacks=[Second(hook)], **options)
        said = re.search(r"saved: resume them with resume=True and out='(.+)'$", str(caught.value))
        assert said, str(caught.value)
        found = eh.compare(*asked, out=said[1], resume=True, **options)
        assert str(found) == str(whole)
        shutil.rmtree(Path(said[1]).parent)


class Unreachable(eh.Callback):
    """A service that answers only at the start of the first run."""

    def on_run_start(self, run: eh.RunInfo) -> None:
        if run.seed > 0:
            raise OSError("no answer")


def test_a_callback_that_cannot_start_costs_no_earlier_run() -> None:
    runs = [eh.Run(eh.FedAvg(), seed=seed) for seed in (0, 1)]
    options = {key: value for key, value in SETTINGS.items() if key != "seed"}
    with pytest.raises(eh.CallbackError) as caught:
        eh.fit_many(network(), ragged(), runs, rounds=2, callbacks=[Unreachable()], **options)
    assert str(caught.value) == "Unreachable failed in on_run_start: OSError: no answer"
    assert caught.value.number == 1
    same(caught.value.earlier[0], train(rounds=2, seed=0))


def test_a_comparison_that_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(eh.CallbackError, match=r"no answer$"):
        eh.compare(network(), ragged(), ["fedavg"], rounds=2, seeds=[1], callbacks=[Unreachable()])
    assert not list(tmp_path.iterdir())


def test_a_callback_refuses_any_of_several_runs_before_the_first_is_trained() -> None:
    done: list[int] = []

    class Refuses(eh.Callback):
        def check(self, run: eh.RunInfo) -> None:
            if run.seed == 1:
                raise ValueError("seed 1 is taken")

        def on_run_end(self, result: eh.Result) -> None:
            done.append(1)

    runs = [eh.Run(eh.FedAvg(), seed=seed) for seed in (0, 1)]
    with pytest.raises(ValueError, match="seed 1 is taken"):
        eh.fit_many(network(), ragged(), runs, rounds=1, callbacks=[Refuses()])
    assert not done
