"""Private runs: the secret, resuming, and every way in which a printed epsilon would be false."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evenhand as eh
from evenhand.cli import main
from evenhand.errors import RunError
from evenhand.privacy.accounting import Scheme, epsilon_of, noise_for
from evenhand.privacy.noise import derived
from evenhand.privacy.record import Privacy
from evenhand.privacy.secret import FILE, Secret
from evenhand.studies.analysis.privacy_in_words import about_privacy
from evenhand.training.directory import PRIVACY
from tests.support.federations import network, ragged

METHOD = eh.Private(eh.FedAvg(), clip=0.5, noise=1.0, delta=1e-3)
OPTIONS: dict[str, Any] = {
    "rounds": 4,
    "weights": "uniform",
    "cohort": eh.Poisson(0.5),
    "local": eh.LocalSGD(lr=0.1, steps=2, batch_size=8),
    "checkpoint_every": 1,
}


class Killed(Exception):
    """Ends a run like a killed process."""


def killed_after(rounds: int) -> Any:
    def progress(done: int, row: object) -> None:
        if done == rounds:
            raise Killed

    return progress


def fit(out: Path | None, method: eh.Algorithm = METHOD, **options: Any) -> eh.Result:
    given = {**OPTIONS, **options}
    if out is None:
        given.pop("checkpoint_every")
    return eh.fit(network(), ragged(), method, out=out, **given)


def same(one: eh.Result, other: eh.Result) -> bool:
    return all(torch.equal(leaf, other.params[name]) for name, leaf in one.params.items())


# ---- the secret


def test_the_secret_is_in_its_own_file_and_nowhere_else(tmp_path: Path) -> None:
    found = fit(tmp_path / "run")
    path = tmp_path / "run" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = bytes.fromhex(path.read_text())
    cohorts = derived(key, "cohorts")
    traces = [key, cohorts, *(one.hex().encode() for one in (key, cohorts))]
    traces.append(str(int.from_bytes(cohorts, "big")).encode())
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file() and file != path]
    assert len(files) > 8
    for file in files:
        content = file.read_bytes()
        assert not any(trace in content for trace in traces), file
    eh.report(tmp_path / "run", tmp_path / "page.html")
    assert not any(trace in (tmp_path / "page.html").read_bytes() for trace in traces)
    assert key.hex() not in repr(found)
    assert found.algorithm == METHOD
    assert "_secret" not in vars(found.algorithm)
    assert "cohorts" not in repr(found.state)


def test_two_runs_have_two_secrets(tmp_path: Path) -> None:
    assert not same(fit(None), fit(None))
    assert same(*(fit(None, eh.Private(clip=0.5, delta=1e-3, secret=3)) for _ in range(2)))


def test_a_secret_does_not_print_and_cannot_be_pickled() -> None:
    secret = Secret.new()
    assert secret.key.hex() not in repr(secret)
    with pytest.raises(TypeError, match="written to its own file only"):
        secret.__reduce__()
    assert Secret.of(1).key != Secret.of(2).key
    assert secret.cohorts != int.from_bytes(secret.key, "big")


def test_a_resumed_run_repeats_its_noise_and_its_cohorts(tmp_path: Path) -> None:
    for place in ("early", "late"):
        with pytest.raises(Killed):
            fit(tmp_path / "first", progress=killed_after(2)) if place == "early" else fit(
                tmp_path / "first", progress=killed_after(3), resume=True
            )
        shutil.copytree(tmp_path / "first", tmp_path / place)
    # from round 2 and from round 3: the noise of round 3 is the same both times
    early, late = (fit(tmp_path / place, resume=True) for place in ("early", "late"))
    assert same(early, late)
    assert early.privacy == late.privacy
    assert early.privacy is not None
    assert early.privacy.releases == 4


def test_a_run_without_its_secret_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(tmp_path, progress=killed_after(2))
    (tmp_path / FILE).write_text("00ff")
    with pytest.raises(RunError, match=r"secret\.key is damaged"):
        fit(tmp_path, resume=True)
    (tmp_path / FILE).unlink()
    with pytest.raises(RunError, match="is gone, and with it the noise of this private run"):
        fit(tmp_path, resume=True)


def test_more_rounds_need_the_noise_that_the_first_ones_had(tmp_path: Path) -> None:
    method = eh.Private(clip=0.5, delta=1e-3, epsilon=4.0)
    fixed = eh.Uniform(5)  # whose accounting is fast
    first = fit(tmp_path / "a", method, rounds=2, cohort=fixed)
    assert first.privacy is not None
    assert 3.99 < (first.privacy.epsilon or 0) <= 4
    with pytest.raises(RunError, match="this run was started with noise"):
        fit(tmp_path / "a", method, rounds=3, resume=True, cohort=fixed)
    # with the noise given, all rounds count
    fit(tmp_path / "b", rounds=2)
    longer = fit(tmp_path / "b", rounds=3, resume=True)
    assert longer.privacy is not None
    assert longer.privacy.releases == 3


def test_clients_cannot_join(tmp_path: Path) -> None:
    fit(tmp_path, rounds=2)
    larger = ragged((1, 300, 7, 40, 33, 2, 120, 64, 15, 90, 20))
    with pytest.raises((ValueError, RunError)):
        eh.fit(network(), larger, METHOD, out=tmp_path, resume=True, **{**OPTIONS, "rounds": 3})


# ---- what is recorded


def test_epsilon_is_in_the_result_the_history_and_the_directory(tmp_path: Path) -> None:
    found = fit(tmp_path)
    expected = epsilon_of(Scheme("poisson", 10, 5.0), 1.0, 4, 1e-3)
    privacy = found.privacy
    assert privacy is not None
    assert privacy.epsilon == expected
    assert found.history["epsilon"].iloc[-1] == expected
    assert Privacy.from_json(json.loads((tmp_path / PRIVACY).read_text())) == privacy
    study = eh.load(tmp_path)
    assert study.trials["private", 0].privacy == privacy
    text = " ".join(str(privacy).split())
    for words in (
        "when one client is added or removed",
        "each of 10 clients takes part in a round with probability 0.5, drawn in secret",
        "Not covered: the evaluation",
        "the server is trusted with the sums",
        "settings were not chosen by results on these clients' data",
        "4 noisy sums",
    ):
        assert words in text, words
    assert privacy.sentence[:9] in " ".join(eh.analyse(study).sentences)
    page = tmp_path / "page.html"
    eh.report(tmp_path, page)
    assert "Differential privacy" in page.read_text()
    assert privacy.sentence.split(",")[0] in page.read_text()
    eh.card(tmp_path, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert "Not covered: the evaluation" in card
    assert "evenhand added no differential privacy" not in card


def test_noise_by_clients_counts_on_no_secret_cohort() -> None:
    """The server, from whom epsilon is to protect, knows who takes part."""
    method = eh.Private(clip=0.5, noise=2.0, delta=1e-3, noise_by="clients")
    given = {"rounds": 3, "weights": "uniform", "cohort": eh.Poisson(0.8)}
    masked = eh.Masked(eh.SecureSums(), masks=False)
    found = eh.fit(network(), ragged(), method, engine=masked, **given).privacy
    assert found is not None
    assert found.epsilon == epsilon_of(Scheme("everyone", 10, 10.0), 2.0, 3, 1e-3)
    assert "which the server knows" in " ".join(found.assumptions)
    assert "nobody learns who took part" not in str(found)


def test_masked_sums_show_the_cohort_that_epsilon_counts_on() -> None:
    given = {"rounds": 1, "weights": "uniform", "engine": eh.Masked(eh.SecureSums(), masks=False)}
    with pytest.raises(ValueError, match="every client gets the list of those who take part"):
        eh.fit(network(), ragged(), METHOD, cohort=eh.Poisson(0.8), **given)
    assert eh.fit(network(), ragged(), METHOD, **given).privacy.epsilon is not None


def test_a_fixed_number_of_known_clients_is_twice_the_change_in_every_round() -> None:
    known = Scheme("without replacement", 10, 5.0, secret=False)
    everyone = Scheme("everyone", 10, 10.0)
    assert epsilon_of(known, 4.0, 7, 1e-3) == pytest.approx(
        epsilon_of(everyone, 2.0, 7, 1e-3), rel=0.15
    )
    assert epsilon_of(known, 4.0, 7, 1e-3) >= epsilon_of(everyone, 2.0, 7, 1e-3)
    fewer = Scheme("without replacement", 10, 2.0, secret=False)
    assert epsilon_of(fewer, 4.0, 7, 1e-3) == epsilon_of(known, 4.0, 7, 1e-3)


def test_a_sweep_has_no_epsilon(tmp_path: Path) -> None:
    grid = {"clip": [0.5, 1.0]}
    options = {"weights": "uniform", "rounds": 1, "seeds": 1, "validation": 0.3}
    eh.sweep(network(), ragged(), [METHOD], grid, out=tmp_path / "swept", **options)
    study = eh.load(tmp_path / "swept")
    said = [about_privacy(study, label) for label in study.trained if "clip" in label]
    assert len(said) == 2
    for line in said:
        assert "no epsilon, because settings were chosen by results on these clients' data" in line


@pytest.mark.parametrize("epsilon", [3.0, 49.0, 80.0, 120.0])
def test_what_is_printed_is_never_above_what_was_asked_for(epsilon: float) -> None:
    scheme = Scheme("everyone", 60, 60.0)
    noise = noise_for(scheme, epsilon, 10, 1e-5)
    assert 0.8 * epsilon < epsilon_of(scheme, noise, 10, 1e-5) <= epsilon


def test_other_runs_claim_nothing(tmp_path: Path) -> None:
    found = fit(tmp_path, eh.FedAvg())
    assert found.privacy is None
    assert "epsilon" not in found.history
    assert not (tmp_path / PRIVACY).exists()
    assert not (tmp_path / FILE).exists()


def test_a_simulation_says_that_its_noise_can_be_recomputed() -> None:
    found = fit(None, eh.Private(clip=0.5, delta=1e-3, secret=3)).privacy
    assert found is not None
    assert found.sentence.endswith("(simulation: the noise can be recomputed).")


class Watching(eh.Callback):
    """A callback of the user's own."""


class Only(Watching):
    """One that declares that it decides nothing."""

    only_watches = True


@pytest.mark.parametrize(
    ("callback", "claims"),
    [(Watching(), False), (Only(), True), (eh.EarlyStopping("loss", part="test"), False)]
    if "part" in eh.EarlyStopping.__dataclass_fields__
    else [(Watching(), False), (Only(), True)],
)
def test_a_callback_that_may_decide_by_exact_scores_takes_epsilon_away(
    callback: eh.Callback, claims: bool
) -> None:
    found = fit(None, callbacks=[callback])
    assert found.privacy is not None
    assert (found.privacy.epsilon is not None) == claims
    assert ("epsilon" in found.history) == claims
    if not claims:
        assert found.privacy.sentence == (
            "No epsilon: a callback may stop the run or choose its model by exact scores."
        )


def test_trackers_only_watch() -> None:
    assert eh.track.Tracker.only_watches
    assert not eh.EarlyStopping.only_watches


def test_epsilon_counts_everyone_where_everyone_takes_part() -> None:
    full, fixed = (fit(None, cohort=cohort).privacy for cohort in (eh.Full(), eh.Uniform(5)))
    assert full is not None
    assert fixed is not None
    assert full.scheme.kind == "everyone"
    assert full.epsilon == epsilon_of(Scheme("everyone", 10, 10), 1.0, 4, 1e-3)
    assert "drawn in secret" not in str(full)
    assert fixed.epsilon == epsilon_of(Scheme("without replacement", 10, 5), 1.0, 4, 1e-3)
    assert "(RDP), when one client's data are replaced by any other data" in fixed.sentence


# ---- the command line


def test_a_private_method_runs_from_the_command_line(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        """
name = "private"
rounds = 2
weights = "uniform"
[data]
name = "digits"
clients = 5
[cohort]
name = "poisson"
rate = 0.6
[local]
lr = 0.1
steps = 2
[[methods]]
name = "private"
label = "fair-and-private"
noise = 2.0
delta = 0.001
loss_cap = 5.0
[methods.inner]
name = "fafl"
alpha = 0.5
lr_eta = 0.1
"""
    )
    planned = CliRunner().invoke(main, ["privacy", str(spec)])
    assert planned.exit_code == 0, planned.output
    done = CliRunner().invoke(main, ["run", str(spec), "--out", str(tmp_path / "run"), "-q"])
    assert done.exit_code == 0, done.output
    study = eh.load(tmp_path / "run")
    privacy = study.trials["fair-and-private", 0].privacy
    assert privacy is not None
    line = f"epsilon = {privacy.sentence.split()[2]} at delta = 0.001 after 2 rounds"
    assert line in planned.output
    # finished: neither the checkpoint nor the secret is needed any more
    assert not list((tmp_path / "run").rglob(FILE))


def test_the_plan_on_the_command_line() -> None:
    words = "privacy --clients 1000 --per-round 100 --rounds 200 --noise 1.0 --parameters 10000"
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 0
    assert (
        done.output.splitlines()
        == eh.privacy.plan(1000, 200, per_round=100, noise=1.0, parameters=10_000).lines
    )
    wrong = CliRunner().invoke(main, ["privacy", "--clients", "10"])
    assert wrong.exit_code != 0
    assert "give --clients and --rounds, or a spec" in wrong.output
