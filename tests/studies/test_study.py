"""Run directories, read for looking at: real small runs."""

import dataclasses
import shutil

import numpy as np
import pytest

from evenhand.errors import RunError
from evenhand.studies.runs import executing
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import Spec
from evenhand.training import directory
from evenhand.training.manifest import MANIFEST


def run(directory, methods=("fedavg", "qffl"), seed=0, **changes):
    """A run of two rounds on eight clients of digits."""
    entries = [{"name": name} if isinstance(name, str) else name for name in methods]
    small = Spec(
        name="small",
        rounds=2,
        seed=seed,
        data={"name": "digits", "clients": 8, "seed": 0},
        model={"name": "linear"},
    )
    spec = dataclasses.replace(small.with_methods(entries), **changes)
    executing.execute(executing.check(spec), directory, lambda method: lambda done, row: None)
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "small", ("fedavg", "qffl", "ditto"))


def test_trial_holds_what_the_run_wrote(small):
    study = Study.load([small])
    trial = study.trials["qffl", 0]
    assert (study.name, study.labels, study.seeds, study.reference, study.alone) == (
        "small",
        ("fedavg", "qffl", "ditto"),
        (0,),
        "fedavg",
        None,
    )
    assert len(study.names("client")) == 8
    assert set(study.names("team")) == {"upright", "rotated"}
    assert trial.history_columns["round"].tolist() == [1, 2]
    assert trial.weights.shape == (len(trial.weight_rounds), 8)
    np.testing.assert_allclose(trial.weights.sum(1), 1, atol=1e-6)
    assert study.trials["ditto", 0].weights is None


def test_values_of_samples_counts_and_scores_say_the_same(small):
    study = Study.load([small])
    for (label, seed), trial in study.trials.items():
        owner = trial.sample_client
        np.testing.assert_array_equal(np.bincount(owner, minlength=8), study.sizes())
        right = np.bincount(owner, trial.values, minlength=8)
        np.testing.assert_allclose(right / study.sizes(), study.merits(label, seed))
        np.testing.assert_array_equal(np.einsum("nacc->n", trial.counts.table[..., :-1]), right)
        by_group = np.bincount(trial.sample_group, trial.values, minlength=2) / study.sizes("group")
        np.testing.assert_allclose(by_group, study.merits(label, seed, "group"))


def test_merit_of_a_team_pools_the_samples_of_its_clients(small):
    study = Study.load([small])
    accuracy, sizes, teams = study.merits("fedavg", 0), study.sizes(), np.array(study.teams)
    for code, name in enumerate(study.names("team")):
        mine = teams == name
        assert study.merits("fedavg", 0, "team")[code] == pytest.approx(
            (accuracy * sizes)[mine].sum() / sizes[mine].sum()
        )
        assert study.sizes("team")[code] == sizes[mine].sum()


def test_runs_of_several_seeds_are_one_study(small, tmp_path):
    study = Study.load([small, run(tmp_path / "other", ("fedavg", "qffl", "ditto"), seed=3)])
    assert study.seeds == (0, 3)
    assert study.same_data


def test_runs_with_other_methods_join_and_keep_one_fedavg(small, tmp_path):
    study = Study.load([small, run(tmp_path / "more", ("fedavg", "afl"))])
    assert study.labels == ("fedavg", "qffl", "ditto", "afl")


def test_methods_of_one_name_with_other_settings_are_told_apart(small, tmp_path):
    study = Study.load([small, run(tmp_path / "strong", ({"name": "qffl", "q": 5.0},))])
    assert study.labels == ("fedavg", "qffl", "ditto", "qffl (strong)")
    longer = Study.load([small, run(tmp_path / "longer", ("fedavg",), rounds=3)])
    assert longer.labels[-1] == "fedavg (longer)"


def test_only_seeds_of_all_methods_are_compared(small, tmp_path):
    study = Study.load([small, run(tmp_path / "again", ("fedavg",), seed=1)])
    assert study.seeds == (0,)


def test_dealt_data_differ_between_seeds(small, tmp_path):
    other = run(
        tmp_path / "dealt",
        ("fedavg", "qffl", "ditto"),
        seed=1,
        data={"name": "digits", "clients": 8},
    )
    assert not Study.load([small, other]).same_data


def test_runs_on_different_data_are_not_mixed(small, tmp_path):
    other = run(tmp_path / "nine", ("fedavg",), data={"name": "digits", "clients": 9})
    with pytest.raises(RunError, match="different data; analyse them one by one"):
        Study.load([small, other])


def test_unfinished_run_says_how_to_go_on(small, tmp_path):
    shutil.copytree(small, tmp_path / "half")
    for name in (MANIFEST, directory.SCORES):
        (tmp_path / "half" / "qffl" / name).unlink()
    with pytest.raises(RunError, match=r"not finished: qffl; continue it with: evenhand resume"):
        Study.load([tmp_path / "half"])


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        Study.load([tmp_path])
    with pytest.raises(RunError, match="no run to analyse"):
        Study.load([])


def test_missing_validation_data_are_named(small):
    with pytest.raises(RunError, match="no validation scores"):
        Study.load([small]).merits("fedavg", 0, part="validation")


def test_validation_scores_are_read(tmp_path):
    study = Study.load([run(tmp_path / "held", ("fedavg",), validation=0.25)])
    merits = study.merits("fedavg", 0, part="validation")
    assert merits.shape == (8,)
    assert not np.array_equal(merits, study.merits("fedavg", 0))
