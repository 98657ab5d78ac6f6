"""A grid of hyper-parameters, chosen from by validation data: evenhand sweep as a user meets it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

import evenhand as eh
from evenhand.studies.analysis.sweeping import Sweep
from evenhand.studies.runs.study import Study, Trial
from evenhand.studies.specs.measure import ACCURACY
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.selection import Choice
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke, results

Call = Callable[..., tuple[int, str, str]]
SHORT = ("--rounds", "2", "--clients", "4", "--model", "linear", "--engine", "loop", "--seeds", "2")
SWEEP = (
    "sweep",
    *SHORT,
    "--method",
    "qffl:local.epochs=1",
    "--grid",
    "q=0.1,5",
    "--grid",
    "local.lr=0.2,0.5",
    "--rule",
    "worst10",
)
LABELS = [
    "fedavg",
    "localonly",
    *(f"qffl q={q} local.lr={lr}" for q in ("0.1", "5") for lr in ("0.2", "0.5")),
]


Done = tuple[Path, str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A small sweep: its directory, and what it printed."""
    directory = tmp_path_factory.mktemp("sweep") / "first"
    code, out, err = invoke(*SWEEP, "-v", "--out", str(directory))
    assert code == 0, err
    return directory, out


def by_hand(directory: Path, file: str) -> dict[str, dict[str, float]]:
    """Numbers over clients, means over seeds, straight from the tables of the runs."""
    found = {}
    for label in LABELS:
        rows = [pd.read_csv(directory / f"seed-{seed}" / label / file) for seed in (0, 1)]
        accuracies = [
            np.sort(table[table["by"] == "client"]["accuracy"].to_numpy()) for table in rows
        ]
        found[label] = {
            "mean": np.mean([values.sum() / len(values) for values in accuracies]),
            "worst10": np.mean([values[0] for values in accuracies]),  # of four clients, one
            "min": np.mean([values[0] for values in accuracies]),
            "std": np.mean(
                [np.sqrt(((values - values.mean()) ** 2).mean()) for values in accuracies]
            ),
            "variance": np.mean([((values - values.mean()) ** 2).mean() for values in accuracies]),
        }
    return found


def test_a_sweep_trains_every_point_and_the_references_with_every_seed(done: Done) -> None:
    directory, _ = done
    spec = Spec.load(directory / "spec.toml")
    assert [method.label for method in spec.methods] == LABELS
    assert (spec.seeds, spec.select, spec.validation) == ((0, 1), {"rule": "worst10"}, 0.2)
    assert spec.methods[2] == Method("qffl", LABELS[2], {"q": 0.1}, {"epochs": 1, "lr": 0.2})
    for seed in (0, 1):
        assert all((directory / f"seed-{seed}" / label / "scores.csv").exists() for label in LABELS)


def test_the_table_has_every_point_on_validation_and_on_test_data(done: Done) -> None:
    directory, _ = done
    table = pd.read_csv(directory / "sweep.csv")
    assert table["label"].tolist() == LABELS
    assert table["q"].tolist()[2:] == [0.1, 0.1, 5, 5]
    assert table["local.lr"].tolist()[2:] == [0.2, 0.5, 0.2, 0.5]
    for part, file in (("validation", "validation.csv"), ("test", "scores.csv")):
        for label, numbers in by_hand(directory, file).items():
            row = table[table["label"] == label].iloc[0]
            assert {name: row[f"{part}_{name}"] for name in numbers} == pytest.approx(
                numbers, abs=1e-12
            )


def test_the_chosen_point_is_the_best_on_validation_data_and_only_validation_data(
    done: Done,
) -> None:
    directory, out = done
    points = by_hand(directory, "validation.csv")
    best = max(
        (label for label in LABELS if label != "localonly"),
        key=lambda label: (points[label]["worst10"], points[label]["mean"]),
    )
    table = pd.read_csv(directory / "sweep.csv")
    assert table[table["chosen"]]["label"].tolist() == [best]
    assert re.search(rf"^ *{re.escape(best)} .*chosen", out, re.MULTILINE)
    assert (
        f"{best} is chosen: of 4 points, it has the best mean accuracy of the worst 10 % of clients"
        in " ".join(out.split())
    )


def test_a_choice_at_the_edge_of_three_or_more_numbers_is_a_warning() -> None:
    grid = {"q": [0.1, 1, 5], "local.lr": [0.1, 0.2]}
    found = eh.sweep(
        torch.nn.Linear(64, 10),
        eh.datasets.digits(clients=3, seed=0),
        eh.QFFL(),
        grid,
        rounds=1,
        seeds=1,
    )
    sweep = found.sweep
    assert sweep is not None

    def lines(label: str) -> list[str]:
        return dataclasses.replace(sweep, choice=Choice(label, ())).at_edge

    smallest = "warning: q=0.1 is the smallest value tried; try smaller ones: --grid q=..."
    largest = "warning: q=5 is the largest value tried; try larger ones: --grid q=..."
    assert lines("qffl q=0.1 local.lr=0.2") == [smallest]
    assert lines("qffl q=5 local.lr=0.1") == [largest]
    assert lines("qffl q=1 local.lr=0.1") == lines("fedavg") == []
    warned = dataclasses.replace(
        found, sweep=dataclasses.replace(sweep, choice=Choice("qffl q=5 local.lr=0.1", ()))
    )
    for verbose in (False, True):
        text = io.StringIO()
        warned.show(verbose=verbose, console=Console(file=text, width=200))
        assert largest in text.getvalue()


def test_dominated_points_are_marked_and_training_alone_neither_dominates_nor_is_chosen(
    done: Done,
) -> None:
    directory, _ = done
    points = {
        label: point
        for label, point in by_hand(directory, "validation.csv").items()
        if label != "localonly"
    }
    table = pd.read_csv(directory / "sweep.csv").set_index("label")
    for label, point in points.items():
        beaten = any(
            other["mean"] >= point["mean"] - 1e-12
            and other["worst10"] >= point["worst10"] - 1e-12
            and (
                other["mean"] > point["mean"] + 1e-12 or other["worst10"] > point["worst10"] + 1e-12
            )
            for other in points.values()
        )
        assert table.loc[label, "dominated"] == beaten
    assert not table.loc["localonly", "dominated"]
    assert not table.loc["localonly", "chosen"]


def test_what_is_printed_is_the_choice_and_then_the_chosen_point_on_test_data(done: Done) -> None:
    _, out = done
    assert out.startswith(
        "The data have no validation split, so 20% of each client's training samples are used for"
        " validation."
    )
    validation = out.index("Validation accuracy across clients")
    test = out.index("Test accuracy across clients")
    assert validation < out.index("Rule worst10: the best worst 10 % of clients.") < test
    assert all(
        re.search(rf"^ *{re.escape(label)} ", out[validation:test], re.MULTILINE)
        for label in LABELS
    )
    tested = [
        label
        for label in LABELS
        if re.search(rf"^ *{re.escape(label)} +\d", out[test:], re.MULTILINE)
    ]
    assert len(tested) == (2 if "fedavg is chosen" in out else 3)
    assert "\x1b" not in out


def test_the_short_form_is_the_choice_and_one_table(
    done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, out = done
    monkeypatch.setenv("COLUMNS", "80")
    code, short, _ = invoke("resume", str(directory))
    assert code == 0
    reason = out[out.index("Rule worst10") :].splitlines()[1]
    assert short.startswith("Chosen on validation data: ")
    assert " ".join(reason.split())[:60] in " ".join(short.split())
    assert "Validation accuracy across clients" not in short
    assert short.endswith(f"\nReport: {directory}/report.html\nTables: {directory}/\n")
    lines = short[: short.index("\nReport: ")].splitlines()
    assert max(map(len, lines)) <= 80


def test_repeating_the_spec_of_a_sweep_gives_the_same_files(done: Done, call: Call) -> None:
    directory, _ = done
    assert call("sweep", str(directory / "spec.toml"), "--out", "again", "-q") == (0, "", "")
    assert results(Path("again")) == results(directory)


def test_after_an_interruption_resuming_gives_the_same_files_and_the_same_choice(
    done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def bars(
        spec: Spec, quiet: bool
    ) -> Iterator[Callable[[int, Method], Callable[[int, Any], None]]]:
        def watch(seed: int, method: Method) -> Callable[[int, Any], None]:
            def after_round(done: int, row: Any) -> None:
                if (seed, method.label, done) == (1, LABELS[3], 1):
                    raise KeyboardInterrupt

            return after_round

        yield watch

    with monkeypatch.context() as patched:
        patched.setattr("evenhand.cli.view.bars", bars)
        code, _, err = call(*SWEEP, "--out", "stopped")
    assert (code, err) == (130, "stopped; continue with: evenhand resume stopped\n")
    code, out, err = call("resume", "stopped", "-v")
    assert code == 0, err
    assert results(Path("stopped")) == results(done[0])
    assert done[1].replace(str(done[0]), "stopped").endswith(out)  # the first line was said before


def test_another_rule_can_be_tried_without_training_again(
    done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done[0], "copy")
    path = Path("copy/spec.toml")
    path.write_text(dataclasses.replace(Spec.load(path), select={"rule": "mean"}).to_toml())
    monkeypatch.setattr(
        "evenhand.studies.runs.executing.train", lambda *_, **__: pytest.fail("trains again")
    )
    code, out, err = call("resume", "copy", "--json")
    assert code == 0, err
    found = json.loads(out)
    points = by_hand(done[0], "validation.csv")
    assert found["rule"] == "mean"
    assert points[found["chosen"]]["mean"] == pytest.approx(
        max(point["mean"] for label, point in points.items() if label != "localonly")
    )
    assert len(found["sweep"]) == len(LABELS)
    assert found["sweep"][0]["q"] is None
    assert {row["method"] for row in found["comparison"]} == {
        "fedavg",
        "localonly",
        found["chosen"],
    }
    done_so = "kept: no point has" if found["chosen"] == "fedavg" else "chosen: of 4 points"
    assert found["reason"].startswith(f"{found['chosen']} is {done_so}")


def test_data_with_a_validation_part_keep_it_and_quiet_prints_nothing(call: Call) -> None:
    arguments = (
        "sweep",
        "--data",
        "synthetic:clients=4",
        "--split",
        "val=0.2,test=0.2",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--no-reference",
    )
    assert call(*arguments, "--method", "afl", "--grid", "lr_lambda=0.1,1", "-q", "--out", "a") == (
        0,
        "",
        "",
    )
    spec = Spec.load(Path("a/spec.toml"))
    assert spec.validation == 0
    assert [method.label for method in spec.methods] == [
        "fedavg",
        "afl lr_lambda=0.1",
        "afl lr_lambda=1",
    ]
    assert spec.select == {"rule": "qffl"}


def test_several_methods_a_wrapper_and_a_parquet_table_with_mixed_values(call: Call) -> None:
    code, out, err = call(
        *(
            "sweep",
            "--rounds",
            "1",
            "--clients",
            "3",
            "--model",
            "linear",
            "--seeds",
            "1",
            "--validation",
            "0.3",
            "--tolerance",
            "2",
        ),
        *(
            "--method",
            "fedprox:mu=0.1,inner=qffl",
            "--method",
            "fafl",
            "--method",
            "fedavg:local.lr=0.4,label=fast",
            "--rule",
            "std",
        ),
        *(
            "--grid",
            "fedprox.inner.q=1,2",
            "--grid",
            "fafl.alpha=[0.9,0.9,0.9],0.8",
            "--format",
            "parquet",
            "--json",
            "--out",
            "a",
        ),
    )
    assert code == 0, err
    found = json.loads(out)
    labels = [row["label"] for row in found["sweep"]]
    assert labels == [
        "fedavg",
        "localonly",
        *(f"fedprox inner.q={q}" for q in (1, 2)),
        "fafl alpha=0.9-0.9-0.9",
        "fafl alpha=0.8",
        "fast",
    ]
    table = pd.read_parquet("a/sweep.parquet")
    assert table["label"].tolist() == labels
    assert table["alpha"].dropna().tolist() == ["[0.9, 0.9, 0.9]", "0.8"]
    spec = Spec.load(Path("a/spec.toml"))
    assert (spec.validation, spec.select) == (0.3, {"rule": "std", "tolerance": 2.0})


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (
            ["--method", "qffl"],
            (
                r"a sweep needs values to try; give --grid KEY=VALUE,VALUE, such as --method qffl --grid"
                r" q=0\.1,1,5"
            ),
        ),
        (["--method", "qffl", "--grid", "q"], r"cannot read the grid 'q'; write KEY=VALUE,VALUE"),
        (["--method", "qffl", "--grid", "q=1,-1"], r"method qffl: q must be .*>= 0, got -1"),
        (["--method", "qffl", "--grid", "p=1,2"], r"unknown keyword of method qffl: 'p'"),
        (["--method", "qffl:q=1", "--grid", "q=1,2"], r"'q' is given twice in 'q=1,2'"),
        (
            ["--method", "qffl", "--grid", "local.rate=1,2"],
            r"unknown keyword of local solver: 'rate'",
        ),
        (
            ["--method", "qffl", "--grid", "afl.lr_lambda=1"],
            r"begins with 'afl'; it may begin with local, inner or a method of the sweep",
        ),
        (
            ["--method", "qffl", "--grid", "q=1,2", "--rule", "mean", "--tolerance", "1"],
            r'the rule "mean" takes the largest mean',
        ),
        (["--method", "qffl", "--grid", "q=1,2", "--seeds", "x"], r"cannot read --seeds 'x'"),
        (
            ["--data", "synthetic", "--grid", "q=1,2"],
            r"a grid needs a method; give it with --method NAME",
        ),
        (
            ["--method", "qffl", "--grid", "q=1,2", "--validation", "0.001"],
            r"no client has enough training samples to set a share of 0\.001 aside",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_and_leaves_no_directory(
    arguments: list[str], pattern: str, call: Call
) -> None:
    code, out, err = call("sweep", "--rounds", "1", "--clients", "4", *arguments)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"evenhand: .*{pattern}.*\n", err), err
    assert not list(Path().iterdir())


def test_wrong_usage_ends_with_2_and_help_explains_rules(call: Call) -> None:
    for wrong in (["--rule", "best"], ["--tolerance", "-1"]):
        assert call("sweep", *wrong)[0] == 2
    code, out, _ = call("sweep", "--help")
    assert code == 0
    for word in (
        "--grid",
        "--method",
        "--rule",
        "--tolerance",
        "--seeds",
        "validation",
        "log:0.01:1:5",
        "FedAvg",
    ):
        assert word in out


# ---- without training


def trial(label: str, seed: int, validation: list[float], test: list[float]) -> Trial:
    def columns(values: list[float]) -> dict[str, Any]:
        n = len(values)
        return {
            "by": ["client"] * n,
            "name": [str(i) for i in range(n)],
            "team": [""] * n,
            "count": np.full(n, 50),
            "accuracy": np.array(values),
        }

    return Trial(
        Method(label.split()[0], label), seed, Path(), columns(test), {}, columns(validation)
    )


def test_test_data_have_no_say_in_the_choice() -> None:
    tested = {
        "fedavg": [0.5, 0.5],
        "localonly": [0.9, 0.9],
        "qffl q=1": [0.1, 0.2],
        "qffl q=2": [0.9, 0.9],
    }
    validated = {
        "fedavg": [0.4, 0.8],
        "localonly": [0.9, 0.9],
        "qffl q=1": [0.6, 0.7],
        "qffl q=2": [0.3, 0.9],
    }
    trials = {(label, 0): trial(label, 0, validated[label], tested[label]) for label in tested}
    study = Study("s", ACCURACY, trials, (), (), (), True)
    sweep = Sweep.of(study, Spec(seeds=(0,), select={"rule": "qffl"}))
    assert sweep.choice.label == "qffl q=1"
    assert sweep.dominated == {"fedavg", "qffl q=2"}
    assert sweep.final.labels == ("fedavg", "localonly", "qffl q=1")
    assert sweep.test["qffl q=1"]["mean"] == pytest.approx(0.15)
    assert (
        sweep.reason
        == "qffl q=1 is chosen: of 1 point whose mean accuracy is not below FedAvg's (60.0 %) and"
        " whose variance is below FedAvg's, it has the smallest variance over clients, 25.0"
        " (FedAvg: 400.0)."
    )
    without = Study(
        "s",
        ACCURACY,
        {key: one for key, one in trials.items() if key[0] != "fedavg"},
        (),
        (),
        (),
        True,
    )
    with pytest.raises(ValueError, match="a sweep needs FedAvg to compare with"):
        Sweep.of(without, Spec(seeds=(0,), select={"rule": "qffl"}))


def test_training_alone_is_never_chosen_whatever_it_is_called() -> None:
    validated = {"fedavg": [0.4, 0.8], "localonly by itself": [0.9, 0.9], "qffl q=1": [0.6, 0.7]}
    trials = {(label, 0): trial(label, 0, values, values) for label, values in validated.items()}
    sweep = Sweep.of(
        Study("s", ACCURACY, trials, (), (), (), True), Spec(seeds=(0,), select={"rule": "worst10"})
    )
    assert sweep.choice.label == "qffl q=1"
    assert "qffl q=1" not in sweep.dominated
    assert sweep.final.labels == tuple(validated)
