"""Several seeds: the spec of a comparison, its directory, and evenhand compare as a user meets
it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
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

import evenhand as eh
from evenhand.data.federation import Federation
from evenhand.data.views import View
from evenhand.errors import SpecError
from evenhand.metrics import summary
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke, results

Call = Callable[..., tuple[int, str, str]]
SHORT = ("--rounds", "2", "--clients", "3", "--model", "linear", "--engine", "loop")
COMPARE = ("compare", *SHORT, "-a", "qffl:q=2", "--seeds", "2")


def interrupting(after: int) -> Callable[..., Any]:
    """Progress that is interrupted as by Ctrl-C after so many rounds."""

    @contextlib.contextmanager
    def bars(
        spec: Spec, quiet: bool
    ) -> Iterator[Callable[[int, Method], Callable[[int, Any], None]]]:
        rounds = 0

        def after_round(done: int, row: Any) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == after:
                raise KeyboardInterrupt

        yield lambda seed, method: after_round

    return bars


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A small comparison: its directory, and what it printed."""
    directory = tmp_path_factory.mktemp("compare") / "first"
    code, out, err = invoke(*COMPARE, "--out", str(directory))
    assert code == 0, err
    return directory, out, err


Done = tuple[Path, str, str]


# ---- the spec


def test_a_spec_with_seeds_and_selection_parses_back_and_defaults_are_left_out() -> None:
    spec = dataclasses.replace(
        Spec.default(),
        seeds=(3, 0),
        resplit=True,
        validation=0.25,
        track_weights=False,
        select={"rule": "worst10", "tolerance": 1.5},
    )
    again = Spec.from_toml(spec.to_toml(), "again")
    assert again == spec
    assert again.to_toml() == spec.to_toml()
    new = {"seeds", "resplit", "validation", "track_weights", "select"}
    assert not new & set(re.findall(r"^\[?(\w+)", Spec.default().to_toml(), re.MULTILINE))
    assert new <= set(re.findall(r"^\[?(\w+)", spec.to_toml(), re.MULTILINE))


def test_the_run_of_a_seed_has_the_data_of_the_first_one() -> None:
    spec = Spec(
        seeds=(4, 5),
        data={"name": "digits", "clients": 3, "shift": {"noise": 0.1}},
        select={"rule": "mean"},
        validation=0.3,
    )
    one, two = (spec.for_seed(seed) for seed in (4, 5))
    assert (two.seed, two.seeds, two.select, two.resplit) == (5, (), {}, False)
    assert (
        one.data
        == two.data
        == {
            "name": "digits",
            "clients": 3,
            "seed": 4,
            "shift": {"seed": 4, "noise": 0.1},
        }
    )
    assert one.build_data().fingerprint() == two.build_data().fingerprint()
    assert spec.data == {"name": "digits", "clients": 3, "shift": {"noise": 0.1}}
    plain = dataclasses.replace(spec, seeds=(), seed=4, select={})
    assert plain.build_data().fingerprint() == one.build_data().fingerprint()


def test_a_seed_that_the_data_name_themselves_stays() -> None:
    spec = Spec(
        seeds=(4, 5),
        data={"name": "digits", "clients": 3, "seed": 9, "shift": {"noise": 0.1, "seed": 8}},
        validation=0.2,
    )
    assert spec.for_seed(5).data == spec.data
    one, two = (spec.for_seed(seed).build_data().fingerprint() for seed in (4, 5))
    assert one == two


def test_dealing_anew_takes_each_seed_for_the_data_too() -> None:
    spec = Spec(seeds=(4, 5), resplit=True, data={"name": "digits", "clients": 3}, validation=0.2)
    one, two = (spec.for_seed(seed) for seed in (4, 5))
    assert one.data == two.data == spec.data
    assert one.build_data().fingerprint() != two.build_data().fingerprint()
    assert (
        two.build_data().fingerprint()
        == Spec(seed=5, data=spec.data, validation=0.2).build_data().fingerprint()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = 3", r"seeds must be a list of whole numbers, got 3"),
        ("seeds = [0, 0]", r"seeds must be different whole numbers >= 0, got \[0, 0\]"),
        ("seeds = [-1]", r"seeds must be different whole numbers >= 0, got \[-1\]"),
        ("seeds = [0.5]", r"seeds must be different whole numbers"),
        ("seeds = [true]", r"seeds must be different whole numbers"),
        ("resplit = 1", r"resplit must be true or false, got 1"),
        (
            "resplit = true\ndata = { name = 'digits', seed = 3 }",
            r"resplit splits the data differently with each seed; leave out seed = 3",
        ),
        ("track_weights = 'no'", r"track_weights must be true or false, got 'no'"),
        ("validation = 1.0", r"validation must be in \[0, 1\), got 1\.0"),
        ("validation = -0.1", r"validation must be in \[0, 1\)"),
        ("validation = true", r"validation must be a number, got True"),
        ("select = 'qffl'", r"select must be a table, got 'qffl'"),
        ("select = { rule = 'best' }", r"select: rule must be \"qffl\""),
        (
            "select = { rules = 'mean' }",
            r"unknown keyword of select: 'rules'; did you mean 'rule'\?",
        ),
    ],
)
def test_a_wrong_key_of_a_comparison_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        Spec.from_toml(text, "spec.toml")
    assert "\n" not in str(error.value)


def test_two_methods_cannot_have_one_label() -> None:
    with pytest.raises(SpecError, match=r"labels must differ; 'fedavg' is used 2 times"):
        Spec().with_methods([{"name": "qffl", "label": "fedavg"}]).with_reference("fedavg")


# ---- validation samples


def whole(part: eh.data.Part) -> list[tuple[int, float, int]]:
    """Owner, first feature and label of every sample."""
    return list(zip(part.owners.tolist(), part.x[:][:, 0].tolist(), part.y.tolist(), strict=True))


def numbered(sizes: tuple[int, ...], seed: int = 0) -> Federation:
    """Clients whose samples are numbered through, with groups."""
    starts = np.cumsum((0, *sizes))
    clients = [
        {
            "x": np.arange(a, b, dtype=np.float32)[:, None],
            "y": np.arange(a, b) % 2,
            "group": [f"g{i % 3}" for i in range(a, b)],
        }
        for a, b in itertools.pairwise(starts)
    ]
    return Federation.from_arrays(clients, test=clients)


def test_a_share_of_each_clients_training_samples_rounded_down_is_set_aside_and_never_all() -> None:
    federation = numbered((10, 100, 1, 4, 3))
    held = federation.with_validation(0.29)
    assert held.val is not None
    assert held.val.sizes.tolist() == [2, 29, 0, 1, 0]
    assert held.train.sizes.tolist() == [8, 71, 1, 3, 3]
    assert sorted(whole(held.train) + whole(held.val)) == whole(federation.train)
    assert held.test is federation.test
    names = federation.group_names
    for part in (held.train, held.val):
        assert part.group is not None
        assert [names[code] for code in part.group.tolist()] == [
            f"g{int(x) % 3}" for x in part.x[:].flatten().tolist()
        ]


def test_which_samples_are_set_aside_depends_on_the_seed_and_every_sample_has_its_chance() -> None:
    federation = numbered((12, 7))

    def drawn(seed: int) -> list[float]:
        val = federation.with_validation(0.5, seed).val
        assert val is not None
        return [float(x) for x in val.x[:].flatten()]

    assert drawn(3) == drawn(3)
    counts = np.zeros(19)
    for seed in range(400):
        counts[np.array(drawn(seed), int)] += 1
    assert abs(counts[:12] / 400 - 6 / 12).max() < 0.1  # 4 standard errors
    assert abs(counts[12:] / 400 - 3 / 7).max() < 0.1


def test_no_feature_is_copied_and_data_with_a_validation_part_stay_as_they_are() -> None:
    federation = numbered((10, 20))
    held = federation.with_validation(0.2)
    assert held.val is not None
    for part in (held.train, held.val):
        assert isinstance(part.x, View)
        assert part.x.source.data_ptr() == federation.train.x.data_ptr()  # type: ignore[union-attr]
    view = dataclasses.replace(held, val=None)
    twice = view.with_validation(0.5)
    assert isinstance(twice.train.x, View)
    assert twice.train.x.source is held.train.x.source  # type: ignore[union-attr]
    assert held.with_validation(0.5) is held
    assert federation.with_validation(0) is federation
    assert numbered((2, 3)).with_validation(0.3).val is None  # nobody has enough
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\), got 1"):
        federation.with_validation(1)


def test_training_on_views_is_training_on_copies() -> None:
    held = numbered((9, 14)).with_validation(0.3)
    copied = dataclasses.replace(
        held, train=dataclasses.replace(held.train, x=held.train.x[:]), val=None
    )
    module = torch.nn.Linear(1, 2)
    one, two = (
        eh.fit(module, federation, eh.FedAvg(), rounds=2, engine="loop")
        for federation in (held, copied)
    )
    assert all(torch.equal(one.params[key], two.params[key]) for key in one.params)


# ---- the directory


def test_a_comparison_holds_a_run_for_each_seed_and_tables_of_all_of_them(done: Done) -> None:
    directory, out, _ = done
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "spec.toml",
        "manifest.json",
        "report.html",
        "seed-0",
        "seed-1",
        *(f"{name}.csv" for name in ("comparison", "differences", "ledger", "clients")),
        *("gaps.csv", "local_gaps.csv"),
    }
    spec = Spec.load(directory / "spec.toml")
    assert spec.seeds == (0, 1)
    assert [method.label for method in spec.methods] == ["fedavg", "localonly", "qffl"]
    for seed in spec.seeds:
        assert Spec.load(directory / f"seed-{seed}" / "spec.toml") == spec.for_seed(seed)
    assert not list(directory.rglob(".*"))
    places = f"\n\nReport: {directory}/report.html\nTables: {directory}/\n"
    assert out.endswith(f"{places}Next:   evenhand compare {directory}/spec.toml --tune\n")
    assert "\x1b" not in out
    for label in ("fedavg", "localonly", "qffl"):
        assert re.search(rf"^ *{label} +\d+\.\d", out, re.MULTILINE)


def test_the_run_of_a_seed_is_the_one_that_evenhand_run_makes_of_its_spec(
    done: Done, call: Call
) -> None:
    directory, _, _ = done
    assert call("run", str(directory / "seed-1" / "spec.toml"), "--out", "alone", "-q") == (
        0,
        "",
        "",
    )
    assert results(Path("alone"), tables=False) == results(directory / "seed-1")
    assert call("run", str(directory / "spec.toml"), "--seed", "1", "--out", "too", "-q") == (
        0,
        "",
        "",
    )
    assert results(Path("too"), tables=False) == results(directory / "seed-1")
    code, out, err = call("run", str(directory / "spec.toml"))
    assert (code, out) == (1, "")
    assert (
        err
        == "evenhand: the spec lists seeds [0, 1]; train all of them with evenhand compare, or one"
        " of them with --seed\n"
    )


def test_seeds_share_clients_and_samples_and_differ_in_training(done: Done) -> None:
    directory, _, _ = done
    about = [json.loads((directory / f"seed-{seed}" / "about.json").read_text()) for seed in (0, 1)]
    assert about[0]["data"] == about[1]["data"]
    models = [
        (directory / f"seed-{seed}" / "fedavg" / "model.safetensors").read_bytes()
        for seed in (0, 1)
    ]
    assert models[0] != models[1]


def test_the_table_has_means_over_seeds_of_what_the_runs_say(done: Done) -> None:
    directory, _, _ = done
    found = pd.read_csv(directory / "comparison.csv").set_index(["method", "statistic"])["value"]
    for label in ("fedavg", "localonly", "qffl"):
        scores = [pd.read_csv(directory / f"seed-{seed}" / label / "scores.csv") for seed in (0, 1)]
        numbers = [summary(table["accuracy"][table["by"] == "client"]) for table in scores]
        for name in ("mean", "worst10", "std"):
            assert found[label, name] == pytest.approx(
                np.mean([one[name] for one in numbers]), abs=1e-12
            )


def test_data_are_read_once_where_seeds_share_them_and_for_each_seed_where_not(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    build = Spec.build_data
    monkeypatch.setattr(Spec, "build_data", lambda self: reads.append(self.seed) or build(self))
    assert call(*COMPARE, "--no-reference", "--rounds", "1", "-q", "--out", "a") == (0, "", "")
    assert reads == [0]
    reads.clear()
    assert call(*COMPARE, "--no-reference", "--rounds", "1", "-q", "--out", "b", "--resplit") == (
        0,
        "",
        "",
    )
    assert reads == [0, 1]
    about = [json.loads(Path(f"b/seed-{seed}/about.json").read_text()) for seed in (0, 1)]
    assert about[0]["data"] != about[1]["data"]
    assert Spec.load(Path("b/spec.toml")).resplit


# ---- interruption


# in the second method of the first seed, in the first and third of the second
@pytest.mark.parametrize("rounds", [3, 7, 11])
def test_after_an_interruption_resuming_gives_the_same_files_byte_for_byte(
    rounds: int, done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("evenhand.cli.view.bars", interrupting(rounds))
        code, out, err = call(*COMPARE, "--out", "my comparison")
    assert (code, out) == (130, "")
    assert err == "stopped; continue with: evenhand resume 'my comparison'\n"
    assert not Path("my comparison/comparison.csv").exists()
    code, out, err = call("resume", "my comparison")
    assert code == 0, err
    assert results(Path("my comparison")) == results(done[0])
    named = out.replace("'my comparison/spec.toml'", "my comparison/spec.toml")
    assert named.replace("my comparison", str(done[0])) == done[1]


def test_resuming_what_is_finished_trains_nothing_and_prints_the_same(
    done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, printed, _ = done
    before = results(directory)
    monkeypatch.setattr(
        "evenhand.studies.runs.executing.train", lambda *_, **__: pytest.fail("trains again")
    )
    code, out, err = call("resume", str(directory))
    assert code == 0, err
    assert out == printed
    assert results(directory) == before


def test_json_of_a_single_run_has_the_same_tables(done: Done, call: Call) -> None:
    shutil.copytree(done[0] / "seed-0", "one")
    code, out, err = call("resume", "one", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["seeds"], found["intervals"]["over"]) == ([0], "samples")
    assert {"comparison", "differences", "ledger"} <= found.keys()


def test_seeds_can_be_added_to_the_spec_but_settings_cannot_be_changed(
    done: Done, call: Call
) -> None:
    shutil.copytree(done[0], "more")
    path = Path("more/spec.toml")
    spec = Spec.load(path)
    path.write_text(dataclasses.replace(spec, seeds=(0, 1, 5)).to_toml())
    before = results(Path("more/seed-1"))
    assert call("resume", "more", "-q") == (0, "", "")
    assert results(Path("more/seed-1")) == before
    assert json.loads(Path("more/seed-5/about.json").read_text())["seed"] == 5
    assert set(pd.read_csv("more/clients.csv")["seed"]) == {0, 1, 5}
    path.write_text(dataclasses.replace(spec, rounds=3).to_toml())
    code, out, err = call("resume", "more")
    assert (code, out) == (1, "")
    assert re.search(r"^evenhand: more/seed-0 was begun with other settings", err, re.MULTILINE)


# ---- for programs


def test_json_is_all_that_json_prints_and_holds_the_numbers_of_the_tables(
    done: Done, call: Call
) -> None:
    directory, _, _ = done
    code, out, err = call("resume", str(directory), "--json")
    assert code == 0
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["seeds"] == [0, 1]
    assert found["methods"] == ["fedavg", "qffl", "localonly"]
    assert found["intervals"] == {"over": "seeds+samples", "level": 0.95}
    table = pd.read_csv(directory / "comparison.csv")
    assert [row["value"] for row in found["comparison"]] == pytest.approx(
        table["value"].tolist(), nan_ok=True
    )
    assert {"differences", "ledger", "clients", "directory", "measure"} <= found.keys()
    assert err == ""


def test_progress_counts_the_rounds_of_all_methods_and_seeds_on_standard_error(
    done: Done, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, out, err = done
    assert "\n\nTest accuracy across clients" in out  # the answer comes first
    assert err == ""  # which is no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, _, err = call("resume", str(directory), "--json")
    assert re.search(r"3 methods x 2 seeds, rounds .*12/12", err)


def test_other_formats_hold_the_same_rows(done: Done, call: Call) -> None:
    directory, _, _ = done
    shutil.copytree(directory, "copy")
    assert call("resume", "copy", "-q", "--format", "parquet", "--format", "json") == (0, "", "")
    for name in ("comparison", "clients", "ledger"):
        table = pd.read_csv(f"copy/{name}.csv", dtype={"client": str, "name": str}).fillna(
            {"team": ""}
        )
        pd.testing.assert_frame_equal(
            pd.read_parquet(f"copy/{name}.parquet"), table, check_dtype=False
        )
        rows = json.loads(Path(f"copy/{name}.json").read_text())
        assert len(rows) == len(table)
        assert list(rows[0]) == list(table.columns)


def test_quiet_prints_nothing_and_quiet_json_nothing_but_json(call: Call) -> None:
    arguments = (
        "compare",
        *SHORT,
        "--rounds",
        "1",
        "-a",
        "qffl",
        "--no-reference",
        "--seeds",
        "1",
        "-q",
    )
    assert call(*arguments, "--out", "a") == (0, "", "")
    code, out, err = call(*arguments, "--json", "--out", "b")
    assert (code, err) == (0, "")
    assert json.loads(out)["directory"] == "b"


@pytest.mark.parametrize("over", ["samples", "clients"])
def test_intervals_can_be_over_something_else_than_seeds(over: str, done: Done, call: Call) -> None:
    shutil.copytree(done[0], "copy")
    code, out, _ = call("resume", "copy", "--over", over, "--level", "0.9", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["intervals"] == {"over": over, "level": 0.9}
    before = (
        pd.read_csv(done[0] / "comparison.csv")
        .set_index(["method", "statistic"])
        .loc[("fedavg", "mean")]
    )
    row = next(
        row
        for row in found["comparison"]
        if (row["method"], row["statistic"]) == ("fedavg", "mean")
    )
    assert row["value"] == pytest.approx(before["value"])
    assert row["low"] < row["value"] < row["high"]
    assert row["low"] != pytest.approx(before["low"])


# ---- options


def test_references_are_added_unless_they_are_there_or_not_wanted(call: Call) -> None:
    short = ("compare", *SHORT, "--rounds", "1", "--seeds", "3,", "-q", "--out")
    for arguments in ((*short, "a", "-a", "qffl", "--no-reference"), ("resume", "a", "-q")):
        assert call(*arguments) == (0, "", "")
        assert [method.label for method in Spec.load(Path("a/spec.toml")).methods] == ["qffl"]
    assert call(*short, "b", "-a", "afl", "-a", "localonly:label=alone") == (0, "", "")
    spec = Spec.load(Path("b/spec.toml"))
    assert [method.label for method in spec.methods] == ["fedavg", "afl", "alone"]
    assert spec.seeds == (3,)


def test_seeds_come_from_the_option_the_spec_or_are_three_from_the_first(call: Call) -> None:
    from evenhand.cli.view import parse_seeds, with_seeds

    spec = Spec(seed=4)
    assert with_seeds(spec, None, None, None).seeds == (4, 5, 6)
    assert with_seeds(spec, "2", None, None).seeds == (4, 5)
    assert with_seeds(spec, "0,3,7", None, None).seeds == (0, 3, 7)
    assert with_seeds(Spec(seeds=(8, 9)), None, None, None).seeds == (8, 9)
    assert with_seeds(Spec(seeds=(8, 9), resplit=True), "1", None, 0.1) == Spec(
        seeds=(0,), resplit=True, validation=0.1
    )
    for text in ("", "0", "-1", "two", "1.5", "1,x", ","):
        with pytest.raises(
            SpecError, match=r"cannot read --seeds .*; give a number \(5\) or a list \(0,3,7\)"
        ):
            parse_seeds(text, 0)


def test_a_table_with_numbers_to_predict_is_compared_by_its_error(call: Call) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["A", "B", "C"], 30), "age": rng.normal(size=90)})
    frame["dose"] = 10 + 3 * frame["age"] + rng.normal(size=90)
    frame.to_csv("doses.csv", index=False)
    code, out, err = call(
        "compare",
        "--data",
        "doses.csv",
        "--client",
        "site",
        "--label",
        "dose",
        "-a",
        "qffl",
        "--rounds",
        "2",
        "--seeds",
        "2",
        "--out",
        "a",
    )
    assert code == 0, err
    assert re.search(r"error \(RMSE\) across clients, 2 seeds|error \(RMSE\) across clients", out)
    assert (Path("a") / "seed-0" / "encoding.json").exists()
    clients = pd.read_csv("a/comparison.csv")
    assert (clients[clients["statistic"] == "mean"]["value"] < 0).all()  # merits: minus errors


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--seeds", "none"], r"cannot read --seeds 'none'"),
        (["--seeds", "1,1"], r"seeds must be different whole numbers >= 0, got \[1, 1\]"),
        (["-a", "qfl"], r"unknown method 'qfl'; did you mean 'qffl'\?"),
        (["-a", "qffl:q=-1"], r"q must be .*>= 0, got -1"),
        (
            ["--data", "digits:seed=3", "--resplit"],
            r"resplit splits the data differently with each seed; leave out seed = 3",
        ),
        (["--model", "vit"], r"unknown model 'vit'"),
        (["nowhere.toml"], r"cannot read nowhere\.toml: No such file"),
        (["-a", "qffl:label=localonly"], r"labels must differ; 'localonly' is used 2 times"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_and_leaves_no_directory(
    arguments: list[str], pattern: str, call: Call
) -> None:
    code, out, err = call("compare", "--rounds", "1", "--clients", "3", *arguments)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"evenhand: .*{pattern}.*\n", err), err
    assert not list(Path().iterdir())


def test_a_directory_that_holds_something_is_refused(done: Done, call: Call) -> None:
    code, out, err = call(*COMPARE, "--out", str(done[0]))
    assert (code, out) == (1, "")
    assert re.fullmatch(
        r"evenhand: .* is not empty; give another --out, or continue it with: evenhand resume .*\n",
        err,
    )


def test_a_missing_pyarrow_is_said_before_anything_is_trained(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenhand.files.find_spec", lambda name: None)
    code, out, err = call(*COMPARE, "--format", "parquet")
    assert (code, out) == (1, "")
    assert (
        err
        == "evenhand: Parquet files need pyarrow: pip install pyarrow (extra: evenhand[parquet])\n"
    )
    assert not list(Path().iterdir())


def test_wrong_usage_ends_with_2(call: Call) -> None:
    for arguments in (
        ["--over", "rounds"],
        ["--level", "1"],
        ["--format", "xlsx"],
        ["--least", "-1"],
        ["--validation", "1"],
    ):
        code, out, err = call("compare", *arguments)
        assert (code, out) == (2, ""), arguments
        assert "Try 'evenhand compare -" in err  # -h or --help, by the version of click


def test_help_says_what_seeds_and_intervals_are(call: Call) -> None:
    code, out, _ = call("compare", "--help")
    assert code == 0
    for word in (
        "--seeds",
        "--resplit",
        "--over",
        "--level",
        "--least",
        "--format",
        "--json",
        "--quiet",
        "SPEC",
        "local-only",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("compare", "--clients", "4", "--resplit", "--over", "samples"),
            "use --over seeds instead of samples",
        ),
        (
            ("compare", "--clients", "4", "--seeds", "7,", "--over", "seeds"),
            "intervals over seeds need at least two seeds",
        ),
        (
            ("run", "--clients", "4", "--over", "seeds"),
            "intervals over seeds need at least two seeds",
        ),
        (("run", "mine.csv"), "mine.csv is a table, not a spec; give it with --data mine.csv"),
        (
            ("run", "--client", "hospital"),
            "client needs data; give a table with --data FILE",
        ),
        (
            ("sweep", "--clients", "4", "--method", "qffl", "--grid", "q=1", "--validation", "0"),
            "give --validation a share above 0",
        ),
    ],
)
def test_what_cannot_be_shown_is_said_before_anything_is_trained(
    arguments: tuple[str, ...], words: str, call: Call
) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (1, "")
    assert words in err
    assert not Path("runs").exists()


def test_a_label_that_is_not_there_is_said_before_training(call: Call) -> None:
    pd.DataFrame(
        {"c": list("ab") * 100, "x": np.arange(200.0), "y": ["no", "yes", "yes", "no"] * 50}
    ).to_csv("t.csv", index=False)
    arguments = (
        "run",
        "--data",
        "t.csv",
        "--client",
        "c",
        "--label",
        "y",
        "--group",
        "c",
        "--rounds",
        "1",
        "-a",
        "fedavg",
    )
    code, _, err = call(*arguments, "--positive", "maybe")
    assert (code, err) == (1, "evenhand: unknown label 'maybe'; choose from no, yes\n")
    code, out, _ = call(*arguments, "--positive", "no", "-v")
    assert code == 0
    assert "rates of label no" in out


def test_dealt_data_are_counted_seed_by_seed(call: Call) -> None:
    assert call(*COMPARE, "--resplit", "--rounds", "1", "-q", "--out", "dealt") == (0, "", "")
    clients = pd.read_csv("dealt/clients.csv", dtype={"client": str})
    for seed in (0, 1):
        scores = pd.read_csv(f"dealt/seed-{seed}/fedavg/scores.csv", dtype={"name": str}).query(
            "by == 'client'"
        )
        mine = clients[(clients["seed"] == seed) & (clients["method"] == "fedavg")]
        assert mine["samples"].tolist() == scores["count"].tolist()
