"""Damaged run directories: noticed or made good, never silently taken for what was written."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

import evenhand as eh
from benchmarks.torture import damage
from benchmarks.torture.damage import command as invoke
from evenhand.data.earlier import earlier_fingerprint
from evenhand.studies.specs.spec import Spec
from evenhand.training.manifest import MANIFEST, Manifest, Owner, seal
from tests.support.commands import results


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a run, a comparison, a run of Python's, and an interrupted run."""
    made, before = tmp_path_factory.mktemp("runs"), Path.cwd()
    os.chdir(made)
    try:
        yield made
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def runs(place: Path) -> list[damage.Made]:
    return damage.made()


@pytest.fixture
def run(runs: list[damage.Made]) -> Path:
    """A fresh copy of the finished run."""
    return fresh("run")


def fresh(name: str) -> Path:
    shutil.rmtree(name)
    shutil.copytree(f"{name}.whole", name)
    return Path(name)


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])


@pytest.mark.parametrize(
    ("actions", "count"),
    [(("verify", "load"), 45), (("resume", "report"), 15)],
    ids=["read", "run"],
)
def test_random_damage_is_noticed_or_made_good(
    actions: tuple[str, ...], count: int, runs: list[damage.Made]
) -> None:
    chosen = [made for made in runs if set(made.actions) & {*actions}]
    found = list(islice(damage.outcomes(chosen, actions, seed=3), count))
    missed = [what for outcome, what in found if outcome not in damage.HELD]
    assert not missed
    assert Counter(outcome for outcome, _ in found)["detected"] > count / 4


def test_random_damage_of_a_checkpoint_is_noticed(place: Path) -> None:
    checkpoint = damage.made_checkpoint()
    found = list(islice(damage.outcomes([checkpoint], ("fit",), seed=4), 25))
    assert not [what for outcome, what in found if outcome not in damage.HELD]


def test_verify_counts_files_and_methods(run: Path) -> None:
    assert invoke("verify", "run") == (
        0,
        "all 32 files of 3 methods are intact\n",
        "",
    )
    assert invoke("verify", "run", "-q") == (0, "", "")
    fresh("comparison")
    code, printed, _ = invoke("verify", "comparison")
    assert code == 0
    assert printed.endswith(" files of 6 methods are intact\n")
    fresh("python")
    assert eh.verify("python").methods == 1


def test_verify_has_a_line_for_every_damaged_file(run: Path) -> None:
    flip(run / "qffl" / "scores.csv")
    (run / "ditto" / "model.safetensors").unlink()
    (run / "about.json").write_text("{}")
    flip(run / "comparison.csv")
    again = "make it again with: evenhand resume run"
    assert invoke("verify", "run") == (
        1,
        "",
        "run/about.json is damaged: it has 2 bytes instead of 786; put a copy of it back\n".replace(
            "786", str(Path("run.whole/about.json").stat().st_size)
        )
        + f"run/comparison.csv is damaged: its content has changed; {again}\n"
        f"run/ditto/model.safetensors is damaged: it is missing; {again}\n"
        f"run/qffl/scores.csv is damaged: its content has changed; {again}\n",
    )


def test_verify_says_what_is_not_finished(runs: list[damage.Made]) -> None:
    fresh("interrupted")
    code, printed, said = invoke("verify", "interrupted")
    assert (code, said) == (0, "")
    assert printed.startswith(
        "interrupted/ditto is not finished\ninterrupted/qffl is not finished\n"
    )
    flip(Path("interrupted/ditto/checkpoint.safetensors"))
    assert invoke("verify", "interrupted")[::2] == (
        1,
        "interrupted/ditto/checkpoint.safetensors is damaged: its contents do not match their"
        " checksum; restore a copy, or delete it to train from the first round\n",
    )


def test_verify_of_something_else_says_so(place: Path) -> None:
    Path("empty").mkdir(exist_ok=True)
    assert invoke("verify", "empty")[0] == 1
    with pytest.raises(
        eh.RunError, match="nowhere is not a directory; give the directory of a run"
    ):
        eh.verify("nowhere")


def test_a_damaged_method_is_trained_again_and_that_is_said(run: Path) -> None:
    before = results(Path("run.whole"))
    flip(run / "qffl" / "scores.csv")
    assert invoke("report", "run")[::2] == (
        1,
        "evenhand: run/qffl/scores.csv is damaged: its content has changed; train it again with:"
        " evenhand resume run\n",
    )
    code, _, said = invoke("resume", "run")
    assert (code, said) == (
        0,
        "run/qffl/scores.csv is damaged: its content has changed; qffl is trained again\n",
    )
    assert results(run) == before


def test_methods_that_changed_places_are_trained_again(run: Path) -> None:
    (run / "qffl").rename(run / "aside")
    (run / "fedavg").rename(run / "qffl")
    (run / "aside").rename(run / "fedavg")
    assert invoke("report", "run")[2].startswith(
        "evenhand: run/fedavg/manifest.json is damaged: it belongs to qffl; train it again with"
    )
    assert invoke("resume", "run")[::2] == (
        0,
        "run/fedavg/manifest.json is damaged: it belongs to qffl; fedavg is trained again\n"
        "run/qffl/manifest.json is damaged: it belongs to fedavg; qffl is trained again\n",
    )
    assert results(run) == results(Path("run.whole"))


def test_a_run_without_its_notes_keeps_to_the_settings_and_data_of_its_manifest(run: Path) -> None:
    (run / "about.json").unlink()
    spec = (run / "spec.toml").read_text()
    (run / "spec.toml").write_text(spec.replace("rounds = 3", "rounds = 2"))
    code, _, said = invoke("resume", "run")
    assert code == 1
    assert "run/about.json is missing; it is rewritten with today's versions\n" in said
    assert "run was begun with other settings; run the changed spec.toml" in said
    (run / "spec.toml").write_text(spec)
    assert invoke("resume", "run")[0] == 0
    assert invoke("verify", "run")[0] == 0


def test_a_deleted_spec_is_named_also_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    fed, module = eh.datasets.digits(clients=4), eh.models.Linear(64, 10)
    eh.fit(module, fed, eh.FedAvg(), rounds=1, out=tmp_path, checkpoint_every=1)
    assert (tmp_path / "checkpoint.safetensors").exists()
    (tmp_path / "spec.toml").unlink()
    with pytest.raises(eh.RunError, match=r"spec\.toml is damaged: it is missing"):
        eh.load(tmp_path)


def test_a_method_without_a_manifest_is_not_finished(run: Path) -> None:
    (run / "qffl" / MANIFEST).unlink()
    assert invoke("report", "run")[::2] == (
        1,
        "evenhand: run is not finished: qffl (it has no manifest.json); continue it with: evenhand"
        " resume run\n",
    )
    assert "run/qffl/manifest.json is damaged: it is missing" in invoke("verify", "run")[2]


def test_the_folder_of_a_method_is_no_run(run: Path) -> None:
    assert invoke("report", "run/qffl")[::2] == (
        1,
        "evenhand: run/qffl holds one method of a run; give the directory of the run, run, and the"
        " method qffl\n",
    )


def test_a_methods_manifest_in_place_of_the_runs_is_noticed_and_written_anew(run: Path) -> None:
    shutil.copy(run / "fedavg" / MANIFEST, run)
    assert "run/manifest.json is damaged: it does not list spec.toml" in invoke("report", "run")[2]
    assert invoke("verify", "run")[::2] == (
        1,
        "run/manifest.json is damaged: it does not list spec.toml; make it again with: evenhand"
        " resume run\n",
    )
    assert invoke("resume", "run")[::2] == (
        0,
        "run/manifest.json is missing or damaged; it is rewritten\n",
    )
    assert invoke("verify", "run")[0] == 0


def test_seeds_that_changed_places_are_noticed(runs: list[damage.Made]) -> None:
    comparison = fresh("comparison")
    (comparison / "seed-0").rename(comparison / "aside")
    (comparison / "seed-1").rename(comparison / "seed-0")
    (comparison / "aside").rename(comparison / "seed-1")
    told = (
        "comparison/seed-0/spec.toml is damaged: it belongs to seed 1; rename the directories back"
    )
    assert told in invoke("report", "comparison")[2]
    assert told in invoke("verify", "comparison")[2]
    assert "seed-0 was begun with other settings" in invoke("resume", "comparison")[2]


def test_samples_and_encoding_are_written_again(run: Path) -> None:
    flip(run / "samples.safetensors")
    (run / "encoding.json").unlink()
    code, _, said = invoke("resume", "run")
    assert (code, said.count("it is rewritten")) == (0, 2)
    assert results(run) == results(Path("run.whole"))


def test_seeds_can_still_be_added_to_a_comparison_and_the_change_is_said(
    runs: list[damage.Made],
) -> None:
    comparison = fresh("comparison")
    path = comparison / "spec.toml"
    path.write_text(path.read_text().replace("    1,\n]", "    1,\n    2,\n]"))
    told = invoke("report", "comparison")[2]
    assert told.startswith("evenhand: comparison/spec.toml is damaged: it has ")
    assert " bytes instead of " in told
    assert told.endswith("; put a copy of it back, or: evenhand resume comparison\n")
    code, _, said = invoke("resume", "comparison")
    assert (code, said) == (
        0,
        "comparison/spec.toml has changed since it was written; its present content is used\n",
    )
    assert (comparison / "seed-2" / "qffl" / MANIFEST).exists()
    assert invoke("report", "comparison", "-q")[0] == 0
    assert invoke("verify", "comparison", "-q")[0] == 0


def test_runs_of_earlier_versions_are_read_and_get_manifests_when_they_go_on(run: Path) -> None:
    for path in run.rglob(MANIFEST):
        path.unlink()
    about = json.loads((run / "about.json").read_text())
    del about["sealed"]
    about["data"] = earlier_fingerprint(Spec.load(run / "spec.toml").build_data())
    (run / "about.json").write_text(json.dumps(about))
    assert invoke("report", "run", "-q")[::2] == (0, "")
    assert invoke("verify", "run") == (
        0,
        "".join(
            f"run/{name} has no manifest.json, so its files cannot be verified\n"
            for name in ("fedavg", "ditto", "qffl")
        ),
        "",
    )
    code, _, said = invoke("resume", "run")
    assert (code, said) == (
        0,
        "run was started by an earlier version, whose weaker data check misses swapped columns;"
        " make sure that the data are the same\n",
    )
    assert results(run) == results(Path("run.whole"))
    assert invoke("verify", "run")[0] == 0
    assert json.loads((run / "about.json").read_text())["data"].startswith("sha256:")


def test_a_manifest_names_its_owner_and_its_own_damage(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    owner = Owner("spec", "data", "qffl")
    seal(tmp_path, ["a.csv", "missing.csv"], owner)
    found = Manifest.read(tmp_path)
    assert found is not None
    assert list(found.entries) == ["a.csv"]
    assert [*found.faults()] == []
    assert found.misplaced(owner) == ""
    assert found.misplaced(owner._replace(run="x")) == "it belongs to a run with other settings"
    assert found.misplaced(owner._replace(data="x")) == "it belongs to a run with other data"
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.csv").mkdir()
    assert [*found.faults()] == [("a.csv", "it is a directory")]
    path = tmp_path / MANIFEST
    whole = path.read_text()
    path.write_text(whole.replace('"size": 4', '"size": 5'))
    with pytest.raises(eh.RunError, match=r"manifest.json is damaged: its content has changed"):
        Manifest.read(tmp_path)
    assert Manifest.read(tmp_path / "elsewhere") is None


# ---- checkpoints of earlier versions: made before checkpoints knew the data by their bytes

CHECKPOINT = Path(__file__).parent.parent / "support" / "earlier" / "checkpoint.safetensors"


def go_on(out: Path, x: torch.Tensor) -> eh.Result:
    offsets = torch.tensor([0, 4, 8, 12])
    federation = eh.Federation(eh.Part(x, torch.arange(12) % 2, offsets), names=("a", "b", "c"))
    module = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return eh.fit(
        module,
        federation,
        eh.QFFL(q=1.0),
        rounds=4,
        engine="loop",
        local=eh.LocalSGD(lr=0.125, epochs=1, batch_size=2),
        out=out,
        resume=True,
        checkpoint_every=2,
    )


def test_a_checkpoint_of_an_earlier_version_goes_on_and_its_weaker_check_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.arange(24.0).reshape(12, 2) / 8
    shutil.copy(CHECKPOINT, tmp_path)
    gone_on = go_on(tmp_path, x)
    assert "was started by an earlier version, whose weaker data check" in caplog.text
    anew = go_on(tmp_path / "anew", x)
    assert len(gone_on.history_rows) == 4
    for name, expected in anew.params.items():  # the checkpoint is from another processor
        torch.testing.assert_close(gone_on.params[name], expected, rtol=1e-6, atol=1e-6)


def test_a_checkpoint_of_an_earlier_version_refuses_other_data(tmp_path: Path) -> None:
    shutil.copy(CHECKPOINT, tmp_path)
    with pytest.raises(eh.RunError, match="a checkpoint of a run with other settings or data"):
        go_on(tmp_path, torch.arange(24.0).reshape(12, 2) / 4)
