"""evenhand thresholds: what it prints, what it saves, and what later predictions do with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.cli.thresholds import NOTIONS
from evenhand.metrics import threshold_search
from evenhand.training.directory import MODEL, SCORED, THRESHOLDS
from evenhand.training.manifest import MANIFEST
from tests.support.commands import invoke

ROOT = Path(__file__).parent.parent.parent
DATA = ("--data", str(ROOT / "examples" / "patients.csv"), "--client", "hospital")
ROLES = ("--label", "complication", "--group", "sex", "--split", "val=0.3,test=0.3")
QUICK = ("--rounds", "3", "--no-report", "-q")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "one"
    given = ("--algorithm", "fedavg", *QUICK, "--out", str(directory))
    assert invoke("run", *DATA, *ROLES, *given)[0] == 0
    return directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "one"))


def test_the_choices_are_the_librarys_notions() -> None:
    chosen = {threshold_search.notion_of(name) for name in NOTIONS}
    assert chosen == set(threshold_search.NOTIONS)


def test_found_printed_saved_and_verified(run: Path) -> None:
    code, out, err = invoke("thresholds", str(run), "--notion", "equal-opportunity")
    assert (code, err) == (0, "")
    first, gap, *rest = out.splitlines()
    plain = " ".join(out.split())
    assert first == (
        "Thresholds by group for equal opportunity, found on validation data, judged on test data."
    )
    assert gap.startswith("The gap goes from ")
    assert any(line.startswith("Accuracy over all samples changes by ") for line in rest)
    assert "not allowed everywhere" in plain
    assert f"Thresholds: {run / 'fedavg' / THRESHOLDS}" in out
    found = eh.load(run).trial("fedavg").decision
    assert found is not None
    assert str(found) in out
    assert found == eh.load(run).trial("fedavg").thresholds("equal opportunity")
    assert eh.verify(run).whole


def test_predictions_of_a_run_on_disk_use_what_was_saved(run: Path) -> None:
    assert invoke("thresholds", str(run), "--notion", "accuracy", "-q") == (0, "", "")
    study = eh.load(run)
    trial = study.trial("fedavg")
    assert trial.decision is not None
    federation = study.specs[0].build_data()
    part = federation.test
    module = study.specs[0].build_model(federation)
    group = np.array(federation.group_names)[part.group]
    chosen = trial.predict(part.x, group=group, module=module)
    chance = trial.outcomes["score"]
    limit = {
        name: steps[0][1]
        for name, steps in zip(trial.decision.names, trial.decision.rules, strict=True)
    }
    expected = chance >= np.array([limit[name] for name in group])
    assert chosen.tolist() == expected.astype(int).tolist()
    with pytest.raises(ValueError, match="give module="):
        trial.predict(part.x, group=group)


def test_a_common_threshold_has_no_legal_note_and_nothing_is_saved_if_not_wanted(
    run: Path,
) -> None:
    code, out, _ = invoke("thresholds", str(run), "--common", "--bound", "0.3", "--no-save")
    assert code == 0
    assert out.startswith("One common threshold for equalised odds within 0.3, found on")
    assert "not allowed" not in out
    assert not (run / "fedavg" / THRESHOLDS).exists()


def test_several_methods_and_seeds_have_a_row_each(tmp_path: Path) -> None:
    given = ("--algorithm", "qffl", "--seeds", "2", *QUICK, "--out", str(tmp_path / "many"))
    assert invoke("compare", *DATA, *ROLES, *given)[0] == 0
    code, out, err = invoke("thresholds", str(tmp_path / "many"), "--bound", "0.05")
    assert (code, err) == (0, "")
    study = eh.load(tmp_path / "many")
    table = [line.split()[:2] for line in out.splitlines()[3 : 3 + len(study.trials)]]
    assert sorted(table) == sorted([label, str(seed)] for label, seed in study.trials)
    assert len({trial.decision for trial in study.trials.values()}) == len(study.trials) > 2
    assert " ".join(out.split()).count("not allowed everywhere") == 1
    assert eh.verify(tmp_path / "many").whole
    code, out, _ = invoke("thresholds", str(tmp_path / "many"), "--method", "qffl", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(one["method"], one["seed"]) for one in found] == [("qffl", 0), ("qffl", 1)]
    assert found[0]["thresholds"]["notion"] == "equalised odds"


def test_training_again_forgets_thresholds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"x": rng.normal(size=(60, 2)), "y": rng.integers(0, 2, 60), "group": ["a", "b"] * 30}
        for _ in range(2)
    ]
    federation, module = eh.Federation.from_arrays(rows, rows), torch.nn.Linear(2, 2).double()
    result = eh.fit(module, federation, eh.FedAvg(), rounds=1, out=tmp_path / "one")
    found = result.thresholds("demographic parity")
    result.using(found).save(tmp_path / "one")
    assert eh.load(tmp_path / "one").trial().decision == found
    assert eh.verify(tmp_path / "one").whole
    eh.fit(module, federation, eh.FedAvg(), rounds=2, out=tmp_path / "one", resume=True)
    assert eh.load(tmp_path / "one").trial().decision is None
    assert eh.verify(tmp_path / "one").whole
    assert invoke("thresholds", str(tmp_path / "one"), "-q") == (
        0,
        "",
        "",
    )  # found on training data
    assert eh.load(tmp_path / "one").trial().decision is not None


def test_a_deleted_file_is_as_if_there_were_none_and_verify_says_so(run: Path) -> None:
    assert invoke("thresholds", str(run), "-q")[0] == 0
    path = run / "fedavg" / THRESHOLDS
    path.unlink()
    assert eh.load(run).trial("fedavg").decision is None
    assert invoke("verify", str(run)) == (
        1,
        "",
        f"{path} is damaged: it is missing, so predictions compare with 0.5; find them again with:"
        f" evenhand thresholds {run}, or remove them with --remove\n",
    )
    assert invoke("report", str(run), "-q", "--out", str(run.parent / "report.html")) == (0, "", "")
    assert invoke("thresholds", str(run), "-q") == (0, "", "")
    assert path.exists()
    assert eh.verify(run).whole


@pytest.mark.parametrize("content", [b"{}", b"\xff", b""])
def test_a_damaged_file_matters_only_to_those_who_need_it(
    run: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert invoke("thresholds", str(run), "-q")[0] == 0
    path, model = run / "fedavg" / THRESHOLDS, run / "fedavg" / MODEL
    path.write_bytes(content)
    again = f"find them again with: evenhand thresholds {run}"
    trial = eh.load(run).trial("fedavg")
    for need in (lambda: trial.decision, lambda: trial.using(trial.decision)):
        with pytest.raises(eh.RunError, match=r"thresholds\.json is damaged: it has ") as error:
            need()
        assert str(error.value).endswith(f"; {again}")
        assert len(str(error.value).splitlines()) == 1
    assert trial.thresholds("accuracy").notion == "accuracy"
    code, _, err = invoke("verify", str(run))
    assert (code, again in err) == (1, True)
    assert invoke("report", str(run), "-q", "--out", str(run.parent / "report.html")) == (0, "", "")
    written = model.stat().st_mtime_ns
    code, _, _ = invoke("resume", str(run))
    assert (code, model.stat().st_mtime_ns) == (0, written)  # the model is not trained again
    assert f"{path} is damaged: it has " in caplog.text
    assert invoke("thresholds", str(run), "-q") == (0, "", "")
    assert eh.verify(run).whole
    assert eh.load(run).trial("fedavg").decision is not None


def test_a_damaged_file_of_an_earlier_format_is_named(run: Path) -> None:
    (run / "fedavg" / THRESHOLDS).write_text("{}")
    for path in (run / "fedavg" / MANIFEST, run / MANIFEST):
        path.unlink()
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps({**about, "sealed": False}))
    with pytest.raises(eh.RunError, match=r"damaged: this is not the JSON of .*; find them again"):
        _ = eh.load(run).trial("fedavg").decision


def test_thresholds_are_removed_with_their_entry(run: Path) -> None:
    none = "There are no thresholds to remove; predictions compare with 0.5 already.\n"
    assert invoke("thresholds", str(run), "--remove") == (0, none, "")
    path = run / "fedavg" / THRESHOLDS
    for damaged in (False, True):
        assert invoke("thresholds", str(run), "-q")[0] == 0
        if damaged:
            path.write_text("{")
        assert invoke("thresholds", str(run), "--remove") == (
            0,
            f"Predictions compare with 0.5 again. Removed:\n  {path}\n",
            "",
        )
        assert not path.exists()
        assert eh.verify(run).whole
        assert eh.load(run).trial("fedavg").decision is None
    assert invoke("thresholds", str(run), "--remove", "-q") == (0, "", "")
    code, _, err = invoke("thresholds", str(run), "--remove", "--notion", "accuracy")
    assert (code, "--remove only deletes; drop --notion" in err) == (2, True)


@pytest.mark.parametrize("name", ["equalized-odds", "Equalised_Odds", "equalised odds"])
def test_a_notion_in_any_spelling(run: Path, name: str) -> None:
    code, out, _ = invoke("thresholds", str(run), "--notion", name, "--no-save")
    assert code == 0
    assert out.startswith("Thresholds by group for equalised odds,")


def test_the_most_accurate_common_threshold_of_a_run_without_groups(tmp_path: Path) -> None:
    roles, run = ROLES[:2] + ROLES[4:], str(tmp_path / "plain")
    given = ("--algorithm", "fedavg", *QUICK, "--out", run)
    assert invoke("run", *DATA, *roles, *given)[0] == 0
    code, out, err = invoke("thresholds", run, "--common", "--notion", "accuracy")
    assert (code, err) == (0, "")
    assert out.startswith("One common threshold for accuracy, found on validation data")
    assert eh.load(run).trial("fedavg").decision is not None
    code, _, err = invoke("thresholds", run, "--common")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "name their column with --group, or use by='client' (--by client)" in err


def test_a_method_for_groups_names_the_option_that_is_missing(tmp_path: Path) -> None:
    roles = ROLES[:2] + ROLES[4:]
    for method in ("groupconstraint", "fedminmax"):
        given = ("--algorithm", method, *QUICK, "--out", str(tmp_path / method))
        code, _, err = invoke("run", *DATA, *roles, *given)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "name a column with --group on the command line" in err


# ---- refusals


def test_unknown_notions_are_refused_with_the_choices(run: Path) -> None:
    code, _, err = invoke("thresholds", str(run), "--notion", "equal-odds")
    assert (code, "unknown notion 'equal-odds'; did you mean 'equalised-odds'?" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "qffl"), "unknown method 'qffl'; choose from fedavg"),
        (("--by", "client", "--least", "1000"), "fedavg: equalised odds needs at least 2 clients"),
    ],
)
def test_one_line_says_what_is_wrong(run: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = invoke("thresholds", str(run), *arguments)
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_more_than_two_classes_are_refused(tmp_path: Path) -> None:
    eh.fit(
        torch.nn.Linear(64, 10),
        eh.datasets.digits(clients=2),
        eh.FedAvg(),
        rounds=1,
        out=tmp_path / "ten",
    )
    code, _, err = invoke("thresholds", str(tmp_path / "ten"))
    assert (code, err) == (
        1,
        "evenhand: fedavg: thresholds are for two classes; this run has 10\n",
    )


def test_a_run_of_an_earlier_version_has_no_histograms(run: Path) -> None:
    for path in (run / "fedavg" / SCORED, run / "fedavg" / "manifest.json"):
        path.unlink()
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps({**about, "sealed": False}))
    (run / "manifest.json").unlink()
    code, _, err = invoke("thresholds", str(run))
    assert code == 1
    assert "kept no score histograms to find thresholds on" in err
