"""Cross-validation, and natural clients whose samples are split anew: real small runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.errors import SpecError
from evenhand.metrics.together import gains_over_splits
from evenhand.studies.findings import analyse
from evenhand.studies.runs.folds import are_folds, fold_of, rescaled, unfolded
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke
from tests.support.studies import make_study

Call = Callable[..., tuple[int, str, str]]
COLUMNS = ("--data", "ill.csv", "--client", "site", "--label", "ill", "--group", "sex")
SHORT = ("compare", *COLUMNS, "--rounds", "3", "-a", "qffl", "--model", "linear")


def patients(regression: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    site = np.repeat(["north", "south", "west"], (50, 31, 17))
    age = rng.normal(50, 10, len(site))
    sex = rng.choice(["f", "m"], len(site))
    ill = age + rng.normal(0, 8, len(site)) > 50
    frame = pd.DataFrame({"site": site, "age": age, "sex": sex, "ill": np.where(ill, "yes", "no")})
    return frame.assign(ill=30 + 2 * age + rng.normal(size=98)) if regression else frame


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("folds")
    patients().to_csv(place / "ill.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        code, out, err = invoke(*SHORT, "--folds", "4", "--out", "four")
    assert code == 0, err
    return place / "four", out


# ---- the spec


def test_the_run_of_a_fold_tests_on_it_and_all_folds_deal_alike() -> None:
    data = {"name": "heart_disease", "split": {"val": 0.1}}
    spec = Spec(seeds=(3, 4, 5), folds=3, data=data)
    for place, seed in enumerate(spec.seeds):
        one = spec.for_seed(seed)
        assert (one.seed, one.seeds, one.folds) == (seed, (), 0)
        assert one.data == {**data, "seed": 3, "split": {"val": 0.1, "fold": [place + 1, 3]}}
        assert fold_of(one) == (place + 1, 3)
        assert unfolded(one).data == {**data, "seed": 3}
    assert spec.data == data
    assert fold_of(spec) is None
    with pytest.raises(SpecError, match=r"seed 9 is not among the seeds of the folds, \[3, 4, 5\]"):
        spec.for_seed(9)
    again = Spec.from_toml(spec.to_toml(), "again")
    assert (again, again.to_toml()) == (spec, spec.to_toml())
    assert "folds" not in Spec.default().to_toml()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("folds = 1", r"folds must be at least 2, got 1"),
        ("folds = 2.5", r"folds must be a whole number, got 2\.5"),
        ("folds = 3\nseeds = [0, 1]", r"3 folds need one seed each, got 2 seeds"),
        ("folds = 3\nresplit = true", r"folds use one split of the data .*; leave out resplit"),
        ("folds = 3\nselect = { rule = 'mean' }", r"would choose on samples that other folds test"),
        (
            "folds = 3\ndata = { name = 'adult', split = { test = 0.2 } }",
            r"folds decide which samples are tested; leave out split = \{'test': 0\.2\}",
        ),
        ("folds = 3\ndata = { name = 'adult', split = 'official' }", r"split = 'official'"),
    ],
)
def test_folds_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Spec.from_toml(text, "spec.toml")


def test_folds_come_from_the_option_or_the_spec_and_each_has_a_seed() -> None:
    from evenhand.cli.view import with_seeds

    assert with_seeds(Spec(seed=2), None, None, None, 3) == Spec(seed=2, seeds=(2, 3, 4), folds=3)
    assert with_seeds(Spec(folds=2), None, None, None).seeds == (0, 1)
    fixed = Spec(folds=2, seeds=(7, 9))
    assert with_seeds(fixed, None, None, None) == fixed
    with pytest.raises(SpecError, match=r"each of 3 folds .*; leave out --seeds 2"):
        with_seeds(Spec(), "2", None, None, 3)


def test_data_with_a_split_of_their_own_have_no_folds(call: Call) -> None:
    code, out, err = call("compare", "--folds", "3", "--rounds", "1")
    assert (code, out) == (1, "")
    assert err == (
        "evenhand: data set digits has a fixed split and cannot have folds; leave out folds\n"
    )


@pytest.mark.parametrize("over", ["seeds", "seeds+samples"])
def test_folds_have_no_intervals_over_seeds(over: str, call: Call) -> None:
    code, out, err = call("compare", "--folds", "3", "--over", over, "--data", "heart_disease")
    assert (code, out) == (1, "")
    assert err == (f"evenhand: folds count as one run on all samples; leave out --over {over}\n")


# ---- what comes out


def test_every_sample_is_tested_once_and_counted_in_one_study(folded: tuple[Path, str]) -> None:
    directory, _ = folded
    assert Spec.load(directory / "spec.toml").folds == 4
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == [
        f"seed-{k}" for k in range(4)
    ]
    study = Study.load([directory])
    assert (study.folds, study.seeds, study.same_data) == (4, (0,), True)
    assert study.names("client") == ("north", "south", "west")
    assert study.sizes().tolist() == [50, 31, 17]
    trial = study.trials["qffl", 0]
    assert trial.values is not None
    assert trial.sample_client is not None
    assert np.bincount(trial.sample_client).tolist() == [50, 31, 17]
    scores = [pd.read_csv(directory / f"seed-{k}" / "qffl" / "scores.csv") for k in range(4)]
    whole = pd.concat(scores).query("by == 'client'")
    right = (whole["accuracy"] * whole["count"]).groupby(whole["name"]).sum()
    np.testing.assert_allclose(
        study.merits("qffl", 0),
        [
            right[name] / size
            for name, size in zip(study.names("client"), (50, 31, 17), strict=True)
        ],
    )
    np.testing.assert_allclose(
        study.merits("qffl", 0), np.bincount(trial.sample_client, trial.values) / study.sizes()
    )
    assert trial.counts is not None
    assert trial.counts.table.sum() == 98
    assert study.sizes("group").sum() == 98
    by_group = pd.concat(scores).query("by == 'group' and name == 'f'")
    expected = (by_group["accuracy"] * by_group["count"]).sum() / by_group["count"].sum()
    assert study.merits("qffl", 0, "group")[0] == pytest.approx(expected)
    assert "4-fold cross-validation: each sample is tested once" in " ".join(
        analyse(study).sentences
    )


def test_labels_are_spread_evenly_over_folds(folded: tuple[Path, str]) -> None:
    ill = []
    for k in range(4):
        trial = Study.load([folded[0] / f"seed-{k}"]).first
        assert trial.counts is not None
        ill.append(trial.counts.table.sum((1, 3)).tolist())  # clients x labels
    assert (np.ptp(ill, axis=0) <= 1).all()


def test_intervals_of_folds_are_those_of_all_samples(folded: tuple[Path, str]) -> None:
    study = Study.load([folded[0]])
    found = eh.analyse(study)
    assert found.comparison.over == "samples"
    entry = next(e for e in found.entries if e.name == "north" and e.method == "qffl")
    assert entry.samples == 50
    p, n = study.merits("fedavg", 0), study.sizes()
    error = np.sqrt((p * (1 - p) / n).sum()) / 3
    row = found.comparison.rows["fedavg"]["mean"]
    assert (row.high - row.low) / 2 == pytest.approx(1.96 * error, rel=0.15)


def test_histories_and_weights_are_means_over_folds(folded: tuple[Path, str]) -> None:
    study = Study.load([folded[0]])
    each = [pd.read_csv(folded[0] / f"seed-{k}" / "fedavg" / "history.csv") for k in range(4)]
    np.testing.assert_allclose(
        study.first.history_columns["mean"], np.mean([one["mean"] for one in each], axis=0)
    )
    assert study.first.history_columns["round"].tolist() == [1, 2, 3]


def test_a_fold_alone_is_a_run_like_any_other(folded: tuple[Path, str], call: Call) -> None:
    spec = folded[0] / "spec.toml"
    assert call("run", str(spec), "--seed", "2", "--out", "alone", "-q") == (0, "", "")
    about = [
        json.loads((path / "about.json").read_text())
        for path in (Path("alone"), folded[0] / "seed-2")
    ]
    assert about[0]["data"] == about[1]["data"]
    one = Study.load(["alone"])
    assert (one.folds, one.samples) == (0, Study.load([folded[0] / "seed-2"]).samples)


def test_some_folds_are_put_together_and_repeated_ones_are_not(folded: tuple[Path, str]) -> None:
    two = Study.load([folded[0] / "seed-0", folded[0] / "seed-1"])
    assert two.folds == 2
    specs = list(Study.load([folded[0]]).specs)
    assert are_folds(specs)
    assert not are_folds([*specs, dataclasses.replace(specs[0], seed=9)])
    assert not are_folds(specs[:1])
    assert not are_folds([specs[0], dataclasses.replace(specs[1], data={"name": "digits"})])


def test_resuming_folds_gives_the_same(folded: tuple[Path, str], call: Call) -> None:
    code, out, err = call("resume", str(folded[0]))
    assert code == 0, err
    printed = [text.split("\nReport: ")[0] for text in (out, folded[1])]
    assert "Test accuracy across clients" in printed[0]
    assert printed[0] == printed[1]


def test_the_page_of_folds_says_how_to_run_them_again(folded: tuple[Path, str]) -> None:
    from evenhand.page.reproduce import reproduce

    text = reproduce(Study.load([folded[0]]), "")
    assert "folds = 4" in text
    assert "fold = " not in text
    assert text.count("<details>") == 1


def test_errors_of_folds_are_in_one_unit(call: Call) -> None:
    """Each fold has a standard deviation of the label of its own, in which it was trained."""
    patients(regression=True).to_csv("ill.csv", index=False)
    code, _, err = call(*SHORT, "--folds", "3", "--out", "three")
    assert code == 0, err
    study = Study.load(["three"])
    scales = [one["label_scale"] for one in study.about]
    assert len(set(scales)) == 3
    squares, counts = np.zeros(3), np.zeros(3)
    for k, scale in enumerate(scales):
        scores = pd.read_csv(f"three/seed-{k}/fedavg/scores.csv").query("by == 'client'")
        squares += (scores["loss"] * scores["count"]).to_numpy() * scale**2
        counts += scores["count"].to_numpy()
    np.testing.assert_allclose(
        -study.measure.scale * study.merits("fedavg", 0), np.sqrt(squares / counts)
    )
    assert study.first.values is not None
    assert study.first.values.sum() * scales[0] ** 2 == pytest.approx(squares.sum())


# ---- natural clients, split anew


def test_hospitals_are_pooled_over_splits(call: Call) -> None:
    patients().to_csv("ill.csv", index=False)
    code, out, err = call(*SHORT, "--resplit", "--seeds", "3", "--out", "anew", "-v")
    assert code == 0, err
    study = Study.load(["anew"])
    assert (study.same_data, study.same_clients) == (False, True)
    assert study.judged_seeds == study.seeds == (0, 1, 2)
    found = eh.analyse(study)
    assert found.comparison.over == "splits"
    gains = [study.merits("qffl", seed) - study.merits("fedavg", seed) for seed in study.seeds]
    entries = [
        e for e in found.entries if (e.by, e.method, e.against) == ("client", "qffl", "fedavg")
    ]
    np.testing.assert_allclose([e.gain.value for e in entries], np.mean(gains, 0), atol=1e-12)
    pairs = [
        (study.trials["qffl", seed].values, study.trials["fedavg", seed].values)
        for seed in study.seeds
    ]
    cells = [study.trials["qffl", seed].sample_client for seed in study.seeds]
    train = study.column("qffl", 0, "train_count").sum()
    judged = gains_over_splits(
        [new - old for new, old in pairs],  # type: ignore[operator]
        [np.asarray(cell, np.int64) for cell in cells],
        np.full(3, study.samples / train),
    )
    np.testing.assert_allclose([e.gain.low for e in entries], judged.low)
    np.testing.assert_allclose([e.p for e in entries], judged.p)
    assert "over splits of the data (3 were run), corrected for their overlap" in " ".join(
        out.split()
    )
    assert "seed 0" not in out.split("Effective weight")[0]


def test_errors_of_splits_are_in_one_unit(call: Call) -> None:
    patients(regression=True).to_csv("ill.csv", index=False)
    code, _, err = call(*SHORT, "--resplit", "--seeds", "2", "--out", "anew")
    assert code == 0, err
    study = Study.load(["anew"])
    scale = study.about[1]["label_scale"]
    assert scale != study.about[0]["label_scale"]
    scores = pd.read_csv("anew/seed-1/fedavg/scores.csv").query("by == 'client'")
    np.testing.assert_allclose(
        -study.measure.scale * study.merits("fedavg", 1), scale * np.sqrt(scores["loss"])
    )
    entry = next(e for e in eh.analyse(study).entries if e.by == "client")
    assert entry.gain.low < entry.gain.value < entry.gain.high


def test_clients_that_a_partition_made_are_not_taken_for_the_same(call: Call) -> None:
    arguments = ("compare", "--rounds", "1", "--clients", "3", "-a", "qffl", "--model", "linear")
    assert call(*arguments, "--resplit", "--seeds", "2", "-q", "--out", "dealt") == (0, "", "")
    study = Study.load(["dealt"])
    assert (study.same_clients, study.judged_seeds) == (False, (0,))


def test_numbered_sites_of_a_table_are_the_same_with_each_seed(call: Call) -> None:
    codes = {"north": 0, "south": 1, "west": 2}
    patients().assign(site=lambda frame: frame["site"].map(codes)).to_csv("ill.csv", index=False)
    assert call(*SHORT, "--resplit", "--seeds", "2", "-q", "--out", "named") == (0, "", "")
    assert Study.load(["named"]).same_clients


# ---- in Python


def test_folds_in_python_are_a_function_of_the_split() -> None:
    frame = patients()
    asked = []

    def data(split: dict[str, list[int]]) -> eh.Federation:
        asked.append(split)
        return eh.Federation.from_frame(frame, client="site", label="ill", split=split)

    found = eh.compare("linear", data, ["fedavg", "qffl"], folds=3, rounds=1)
    assert found.study.folds == 3
    assert found.study.sizes().tolist() == [50, 31, 17]
    assert asked == [{"fold": [k, 3]} for k in (1, 2, 3)]
    with pytest.raises(
        TypeError, match=r"federation must be a function of the split, such as lambda split"
    ):
        eh.compare("linear", data({"fold": [1, 3]}), folds=3)
    with pytest.raises(ValueError, match=r"each fold has its own seed; leave out seeds"):
        eh.compare("linear", data, folds=3, seeds=2)


def test_the_next_command_after_a_run_on_few_rows_is_cross_validation_and_then_never_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    patients().to_csv("ill.csv", index=False)
    code, out, err = invoke(
        *("run", *COLUMNS, "--model", "linear", "-a", "qffl:local.lr=0.5"),
        *("-a", "fedavg:local.lr=0.5", "--rounds", "150", "--json", "--out", "one"),
    )
    assert code == 0, err
    found = json.loads(out)
    assert "improving" not in " ".join(found["answer"])
    assert found["next"] == "evenhand compare one/spec.toml --folds 5"
    code, out, err = invoke(*found["next"].split()[1:], "--json", "--out", "five")
    assert code == 0, err  # the command that was printed works
    following = json.loads(out)["next"].split()
    assert "--tune" not in following  # it would be refused: folds cannot be tuned
    assert following[1] in ("report", "compare")


def test_folds_that_were_still_improving_are_trained_longer_since_they_cannot_be_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    patients().to_csv("ill.csv", index=False)
    few = ("--rounds", "20", "-a", "qffl", "--model", "linear", "--folds", "3", "--json")
    code, out, err = invoke("compare", *COLUMNS, *few, "--out", "three")
    assert code == 0, err
    found = json.loads(out)
    assert "still improving" in found["answer"][0]
    assert found["next"] == "evenhand compare three/spec.toml --rounds 40"


def test_another_unit_leaves_a_loss_that_is_no_square_as_it_is() -> None:
    trial = make_study(regression=True).first
    columns = {**trial.score_columns, "mse": trial.score_columns["loss"]}
    told = {"loss": np.ones((2, 1)), "squared": np.ones((2, 1)), "absolute": np.ones((2, 1))}
    found = rescaled(dataclasses.replace(trial, score_columns=columns, tally=told), 10.0)
    assert [float(found.tally[name][0, 0]) for name in told] == [1, 100, 10]
    assert np.array_equal(found.score_columns["loss"], columns["loss"])
    assert np.allclose(found.score_columns["mse"], 100 * columns["mse"])
