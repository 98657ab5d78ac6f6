"""Settings that are chosen on validation data before methods are compared on test data."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.algorithms import ALGORITHMS
from evenhand.errors import RunError, SpecError
from evenhand.studies.runs.tuning import read_tuned
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec
from evenhand.studies.specs.tuning import FACTORS, KNOBS, Tuning, tuning_points
from evenhand.studies.tables.tuning import edge_warnings, tuning_lines
from tests.support.commands import invoke, reseal, results
from tests.support.own_method import PowerLoss, TwoLayers, clinics

Call = Callable[..., tuple[int, str, str]]
SHORT = ("--rounds", "2", "--clients", "3", "--model", "linear", "--seeds", "2")
TUNE = ("compare", *SHORT, "-a", "qffl:q=2,local.epochs=1", "--tune")
Done = tuple[Path, str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A small comparison with tuned methods: its directory, and what it printed."""
    directory = tmp_path_factory.mktemp("tune") / "first"
    code, out, err = invoke(*TUNE, "-v", "--out", str(directory))
    assert (code, err) == (0, "")
    return directory, out


def points_of(spec: Spec, **changes: Any) -> dict[str, list[Method]]:
    return tuning_points(spec, Tuning(**changes))


# ---- what is tried


def test_every_method_is_tried_with_the_same_number_of_settings() -> None:
    entries = [{"name": name} for name in ("fedavg", "localonly", "qffl", "afl", "aaggff")]
    found = points_of(Spec(local={"lr": 0.2}).with_methods(entries))
    assert {label: len(points) for label, points in found.items()} == dict.fromkeys(found, 15)
    rates = [point.local["lr"] for point in found["fedavg"]]
    assert (rates[0], rates[7], rates[-1]) == (0.02, 0.2, 2.0)
    np.testing.assert_allclose(np.diff(np.log(rates)), np.log(100) / 14, atol=0.03)
    pairs = {(point.parameters["q"], point.local["lr"]) for point in found["qffl"]}
    assert pairs == {(q, lr) for q in (0.1, 1.0, 5.0) for lr in (0.02, 0.06, 0.2, 0.6, 2.0)}


def test_without_a_method_that_has_more_to_choose_step_sizes_are_five() -> None:
    found = points_of(Spec(local={"lr": 0.1}).with_methods([{"name": "fedavg"}]))
    assert [point.local["lr"] for point in found["fedavg"]] == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert len(FACTORS) == 5


def test_values_of_a_method_give_way_to_those_tried_and_its_other_settings_stay() -> None:
    spec = Spec(local={"lr": 0.1}).with_methods(
        [{"name": "qffl", "q": 2, "lipschitz": 3.0, "local": {"lr": 1.0, "epochs": 2}}]
    )
    point = points_of(spec)["qffl"][0]
    assert point.parameters == {"lipschitz": 3.0, "q": 0.1}
    assert point.local == {"epochs": 2, "lr": 0.1}  # a tenth of the method's own step size
    assert point.label == "qffl q=0.1 local.lr=0.1"


def test_of_a_method_that_changes_another_the_inner_one_is_tuned() -> None:
    spec = Spec().with_methods(
        [{"name": "fedprox", "mu": 0.1, "inner": {"name": "qffl", "q": 2}}, {"name": "averaged"}]
    )
    found = points_of(spec)
    assert {point.parameters["inner"]["q"] for point in found["fedprox"]} == {0.1, 1.0, 5.0}
    assert {point.parameters["mu"] for point in found["fedprox"]} == {0.1}
    assert len({point.local["lr"] for point in found["averaged"]}) == 15


def test_other_values_can_be_tried() -> None:
    spec = Spec(local={"lr": 0.1}).with_methods([{"name": "fedavg"}, {"name": "qffl"}])
    found = points_of(spec, grid={"qffl.q": [3, 4], "local.epochs": [1, 2]})
    assert {(one.parameters["q"], one.local["epochs"]) for one in found["qffl"]} == {
        (3, 1), (3, 2), (4, 1), (4, 2),
    }  # fmt: skip
    assert {len(points) for points in found.values()} == {20}
    fixed = points_of(spec, grid={"local.lr": [0.5, 1]})
    assert [point.local["lr"] for point in fixed["fedavg"]] == [0.5, 1]
    assert len(fixed["qffl"]) == 6
    with pytest.raises(SpecError, match=r"'afl.q' of the grid must begin with one of fedavg\., "):
        points_of(spec, grid={"afl.q": [1]})
    with pytest.raises(ValueError, match=r"local.lr or qffl.q to lists of values, got 'q' with"):
        Tuning(grid={"q": [1]})
    with pytest.raises(ValueError, match='rule must be "mean"'):
        Tuning("std")


def test_all_values_that_are_tried_are_possible() -> None:
    for name in KNOBS:
        for points in points_of(Spec().with_methods([{"name": name}])).values():
            assert len(points) == 15
            for point in points:
                assert isinstance(point.algorithm(), ALGORITHMS[name])


# ---- what is chosen


def test_the_comparison_has_the_settings_that_were_best_on_validation_data(done: Done) -> None:
    directory, out = done
    spec = Spec.load(directory / "spec.toml")
    tried = Spec.load(directory / "tuning" / "spec.toml")
    assert (spec.tune, spec.validation, spec.seeds) == ({}, 0, (0, 1))
    assert (tried.validation, tried.seeds, tried.select) == (0.2, (0,), {"rule": "mean"})
    assert [method.label for method in spec.methods] == ["fedavg", "localonly", "qffl"]
    table = pd.read_csv(directory / "tuning.csv").set_index("method")
    for method in spec.methods:
        best: tuple[float, float] = (-1.0, 0.0)
        for point in tried.methods:
            if point.label.startswith(f"{method.label} "):
                folder = directory / "tuning" / "seed-0" / point.label
                scores = pd.read_csv(folder / "validation.csv").query("by == 'client'")
                if scores["accuracy"].notna().all():
                    found = round(scores["accuracy"].mean(), 12), -scores["loss"].mean()
                    if found > best:
                        best, chosen = found, point
        assert method == Method(method.name, method.label, chosen.parameters, chosen.local)
        assert table["validation"][method.label] == pytest.approx(best[0])
        assert table["tried"][method.label] == 15
        assert table["local.lr"][method.label] == method.local["lr"]
    assert "Settings chosen on validation data, accuracy, %" in out
    assert "Tuning 3 methods on validation data: 45 settings in total." in out
    assert (
        "Each method uses the settings with the best mean over clients on validation data, with"
        " seed 0. Test data played no part in the choice." in " ".join(out.split())
    )
    assert out.index("Settings chosen") < out.index("Test accuracy across clients, %, 2 seeds")


def with_scores(directory: Path, point: str, file: str, accuracy: float) -> None:
    path = directory / "tuning" / "seed-0" / point / file
    pd.read_csv(path, dtype={"name": str}).assign(accuracy=accuracy).to_csv(path, index=False)
    reseal(path.parent)


def test_validation_data_choose_where_test_data_would_choose_otherwise(
    done: Done, tmp_path: Path
) -> None:
    shutil.copytree(done[0], tmp_path / "copy")
    labels = [m.label for m in Spec.load(done[0] / "tuning" / "spec.toml").methods]
    first, second = [label for label in labels if label.startswith("qffl ")][:2]
    with_scores(tmp_path / "copy", first, "validation.csv", 0.999)
    with_scores(tmp_path / "copy", first, "scores.csv", 0.0)
    with_scores(tmp_path / "copy", second, "scores.csv", 1.0)
    tuned = read_tuned(tmp_path / "copy")
    assert tuned is not None
    one = tuned.methods[-1]
    assert (one.label, one.point, one.number) == ("qffl", first, pytest.approx(0.999))
    assert one.settings == {"q": 0.1, "local.lr": 0.1}
    assert (one.smallest, one.largest) == (("q", "local.lr"), ())


def test_a_setting_that_diverged_is_never_chosen_and_all_diverged_is_an_error(
    done: Done, tmp_path: Path
) -> None:
    shutil.copytree(done[0], tmp_path / "copy")
    labels = [m.label for m in Spec.load(done[0] / "tuning" / "spec.toml").methods]
    mine = [label for label in labels if label.startswith("qffl ")]
    for label in mine[:-1]:
        with_scores(tmp_path / "copy", label, "validation.csv", float("nan"))
    tuned = read_tuned(tmp_path / "copy")
    assert tuned is not None
    assert tuned.methods[-1].point == mine[-1]
    with_scores(tmp_path / "copy", mine[-1], "validation.csv", float("nan"))
    with pytest.raises(RunError, match=r"no setting of qffl has finite scores on validation data"):
        read_tuned(tmp_path / "copy")


def test_equal_points_are_told_apart_by_the_loss(done: Done, tmp_path: Path) -> None:
    shutil.copytree(done[0], tmp_path / "copy")
    labels = [m.label for m in Spec.load(done[0] / "tuning" / "spec.toml").methods]
    mine = [label for label in labels if label.startswith("fedavg ")]
    losses = {}
    for label in mine:
        with_scores(tmp_path / "copy", label, "validation.csv", 0.5)
        folder = tmp_path / "copy" / "tuning" / "seed-0" / label
        losses[label] = (
            pd.read_csv(folder / "validation.csv").query("by == 'client'")["loss"].mean()
        )
    tuned = read_tuned(tmp_path / "copy")
    assert tuned is not None
    assert tuned.methods[0].point == min(losses, key=lambda label: losses[label])


def test_warnings_name_what_lies_at_the_edge(done: Done, tmp_path: Path) -> None:
    shutil.copytree(done[0], tmp_path / "copy")
    labels = [m.label for m in Spec.load(done[0] / "tuning" / "spec.toml").methods]
    points = {
        name: [label for label in labels if label.startswith(f"{name} ")]
        for name in ("fedavg", "localonly", "qffl")
    }
    chosen = {"fedavg": points["fedavg"][-1], "localonly": points["localonly"][0]}
    for label in (*chosen.values(), points["qffl"][-3]):
        with_scores(tmp_path / "copy", label, "validation.csv", 0.999)
    tuned = read_tuned(tmp_path / "copy")
    assert tuned is not None
    assert tuning_lines(tuned)[1:] == [
        "warning: the best step size of fedavg, 10.0, is the largest one tried; try larger"
        " ones: --tune --grid local.lr=...",
        "warning: the best step size of localonly, 0.1, is the smallest one tried; try"
        " smaller ones: --tune --grid local.lr=...",
        "At the edge of the grid: q of qffl (5.0, the largest). To try other values: --tune"
        " --grid qffl.q=..., or choose by the worst clients: --rule worst10.",
    ]
    # step sizes at the edge are warned of in the short form, too
    assert edge_warnings(tuned) == tuning_lines(tuned)[1:3]


def test_the_rule_can_be_the_worst_clients(call: Call) -> None:
    code, out, err = call(
        "compare", *SHORT, "-a", "qffl", "--tune", "--rule", "worst10", "--out", "a",
        "--grid", "local.lr=0.1,0.5", "--grid", "qffl.q=1,2", "-v",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "the best worst 10 % of clients on validation data" in " ".join(out.split())
    table = pd.read_csv("a/tuning.csv").set_index("method")
    assert table["tried"].to_dict() == {"fedavg": 2, "localonly": 2, "qffl": 4}
    assert set(table["rule"]) == {"worst10"}
    found = {}
    for q in (1, 2):
        for lr in (0.1, 0.5):
            path = f"a/tuning/seed-0/qffl q={q} local.lr={lr}/validation.csv"
            scores = pd.read_csv(path).query("by == 'client'")["accuracy"]
            found[q, lr] = (scores.min(), scores.mean())
    chosen = (table["q"]["qffl"], table["local.lr"]["qffl"])
    assert found[chosen] == max(found.values())


# ---- the spec


def test_a_spec_can_ask_for_tuning(call: Call) -> None:
    text = (
        "rounds = 1\nseeds = [4, 5]\ndata = { name = 'synthetic', clients = 3 }\n"
        "model = { name = 'linear' }\nmethods = [{ name = 'fedavg' }]\n"
        "[tune]\nrule = 'min'\n[tune.grid]\n'local.lr' = [0.1, 0.2]\n"
    )
    spec = Spec.from_toml(text, "spec.toml")
    assert Spec.from_toml(spec.to_toml(), "again") == spec
    assert spec.for_seed(4).tune == {}
    assert "tune" not in Spec.default().to_toml()
    Path("spec.toml").write_text(text)
    assert call("compare", "spec.toml", "--no-reference", "-q", "--out", "a") == (0, "", "")
    assert Spec.load(Path("a/tuning/spec.toml")).seeds == (4,)
    assert Spec.load(Path("a/spec.toml")).methods[0].local["lr"] in (0.1, 0.2)
    found = eh.compare("spec.toml", references=(), out="b")
    assert found.tuned is not None
    assert results(Path("a")) == results(Path("b"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--folds", "3", "--data", "synthetic"),
            "so that no test sample is tuned on; leave out tune",
        ),
        (("--resplit",), "tune needs one split for all seeds"),
        (("--grid", "fedavg.q=1"), "q"),
        (("--grid", "q=1"), "grid must map keys such as local.lr or qffl.q to lists of values"),
        (("--grid", "afl.lr_lambda=1"), "must begin with one of"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_written(
    arguments: tuple[str, ...], words: str, call: Call
) -> None:
    code, out, err = call("compare", "--rounds", "1", "-a", "qffl", "--tune", *arguments)
    assert (code, out) == (1, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(Path().iterdir())


def test_a_rule_or_a_grid_without_tune_is_refused(call: Call) -> None:
    for option in (("--rule", "min"), ("--grid", "local.lr=1")):
        code, _, err = call("compare", *option)
        assert (code, err) == (
            1,
            f"evenhand: {' '.join(option)} needs --tune; add it\n",
        )


# ---- going on


def interrupting(tuning: bool) -> Callable[..., Any]:
    """Progress that is interrupted as by Ctrl-C after two rounds of tuning, or of what follows."""
    rounds = 0

    @contextlib.contextmanager
    def bars(spec: Spec, quiet: bool) -> Iterator[Callable[..., Callable[[int, Any], None]]]:
        def after_round(done: int, row: Any) -> None:
            nonlocal rounds
            rounds += bool(spec.select) == tuning
            if rounds == 2:
                raise KeyboardInterrupt

        yield lambda *_, **__: after_round

    return bars


@pytest.mark.parametrize("tuning", [True, False])
def test_after_an_interruption_resuming_gives_the_same(
    tuning: bool, done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("evenhand.cli.view.bars", interrupting(tuning))
        code, _, err = call(*TUNE, "--out", "cut")
    assert (code, err) == (130, "stopped; continue with: evenhand resume cut\n")
    assert bool(Spec.load(Path("cut/spec.toml")).tune) == tuning
    code, out, err = call("resume", "cut", "-v")
    assert code == 0, err
    assert results(Path("cut")) == results(done[0])
    assert (
        out.split("Settings chosen")[1].replace("cut", str(done[0]))
        == done[1].split("Settings chosen")[1]
    )


def test_the_spec_that_is_left_gives_the_comparison_without_tuning(done: Done, call: Call) -> None:
    spec = done[0] / "spec.toml"
    assert call("compare", str(spec), "--no-reference", "-q", "--out", "again") == (0, "", "")
    for seed in (0, 1):
        assert results(Path(f"again/seed-{seed}")) == results(done[0] / f"seed-{seed}")
    assert not Path("again/tuning").exists()


# ---- in Python


def test_methods_of_ones_own_are_tuned_and_resumed_in_python(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "rounds": 2,
        "seeds": 2,
        "tune": {"grid": {"PowerLoss.power": [1.0, 2.0], "local.lr": [0.1, 0.3]}},
        "out": tmp_path / "mine",
    }
    methods = {"FedAvg": eh.FedAvg(), "mine": PowerLoss(1.5)}
    seen: list[tuple[int, int]] = []
    found = eh.compare(
        TwoLayers, clinics(), methods, progress=lambda *at: seen.append(at), **arguments
    )
    assert found.tuned is not None
    tried = {one.label: one.tried for one in found.tuned.methods}
    assert tried == {"FedAvg": 2, "mine": 4, "localonly": 2}
    table = found.table("tuning").set_index("method")
    power = table["power"]["mine"]
    assert power in (1.0, 2.0)
    trained = found.study.trial("mine", 1)
    assert trained.method.local["lr"] == table["local.lr"]["mine"]
    local = dataclasses.replace(eh.Settings().local, lr=table["local.lr"]["mine"])
    alone = eh.fit(_made(1), clinics(), PowerLoss(power), rounds=2, seed=1, local=local)
    assert trained.summary == pytest.approx(alone.summary)
    before = results(tmp_path / "mine")
    again = eh.compare(TwoLayers, clinics(), methods, resume=True, **arguments)
    assert results(tmp_path / "mine") == before
    assert repr(again) == repr(found)
    changed = {**arguments, "rounds": 3}
    with pytest.raises(RunError, match="begun with other settings"):
        eh.compare(TwoLayers, clinics(), methods, resume=True, **changed)


def _made(seed: int) -> Any:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TwoLayers()


def test_true_and_a_name_say_the_rule() -> None:
    for tune, rule in ((True, "mean"), ("min", "min")):
        found = eh.compare(
            "linear", clinics(), ["fedavg"], references=(), rounds=1, seeds=1, tune=tune
        )
        assert found.tuned is not None
        assert found.tuned.rule.rule == rule
        assert found.tuned.methods[0].tried == 5
    assert eh.compare("linear", clinics(), ["fedavg"], rounds=1, seeds=1).tuned is None
