"""Runs that hide single samples: which methods fit, the secret, epsilon, files, and a canary."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import evenhand as eh
from evenhand.local import built_solver, solver_table
from evenhand.local.naming import described_solver
from evenhand.privacy.sampled import CLASSES, SamplePrivacy, merged, sampled_epsilon
from evenhand.training.hiding import KEY, account, rate_of, steps_in_a_round
from tests.support.federations import METHODS, network, ragged

SMALL = (20, 33, 8)
HIDDEN = eh.LocalSGD(lr=0.1, batch_size=16, dp=eh.SampleDP(clip=0.5, noise=0.7))


def fit(method: eh.Algorithm | None = None, **options: Any) -> eh.Result:
    chosen = {"local": HIDDEN, "rounds": 2, **options}
    return eh.fit(network(torch.float64), ragged(SMALL), method or eh.FedAvg(), **chosen)


# ---- epsilon


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "epsilon"),
    [
        (0.1, 1.0, 100, 1e-5, 7.0466),
        (0.01, 1.0, 1000, 1e-5, 1.8282),
        (0.1, 2.0, 100, 1e-3, 1.5439),
        (0.5, 2.0, 100, 1e-3, 10.8914),
        (1.0, 5.0, 100, 1e-5, 9.9973),  # everyone: the closed form of a Gaussian
    ],
)
def test_epsilon_is_that_of_dp_accounting(
    rate: float, noise: float, steps: int, delta: float, epsilon: float
) -> None:
    assert sampled_epsilon(rate, noise, steps, delta) == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [(0.1, 1.0, 100, 1e-5), (0.01, 1.0, 1000, 1e-5), (0.1, 2.0, 100, 1e-3), (0.5, 2.0, 100, 1e-3)],
)
@pytest.mark.filterwarnings("ignore")
def test_epsilon_is_that_of_opacus_within_its_error(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    from opacus.accountants import PRVAccountant

    oracle = PRVAccountant()
    oracle.history = [(noise, rate, steps)]
    # Opacus adds its own error of 0.01, so that its epsilon is an upper bound
    found = sampled_epsilon(rate, noise, steps, delta)
    assert 0 <= oracle.get_epsilon(delta) - found <= 0.0115


def test_epsilon_of_everyone_is_the_closed_form() -> None:
    from scipy import optimize, stats

    def delta_of(epsilon: float, mu: float) -> float:
        upper = stats.norm.cdf(-epsilon / mu + mu / 2)
        return float(upper - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2))

    for noise, steps, delta in ((5.0, 100, 1e-5), (10.0, 100, 1e-5), (4.0, 20, 1e-3)):
        mu = math.sqrt(steps) / noise
        wanted = optimize.brentq(lambda e, mu=mu, d=delta: delta_of(e, mu) - d, 0, 100)
        assert sampled_epsilon(1.0, noise, steps, delta) == pytest.approx(wanted, abs=1e-3)


def test_no_step_costs_nothing_and_no_noise_everything() -> None:
    assert sampled_epsilon(0.1, 1.0, 0, 1e-5) == 0
    assert sampled_epsilon(0.1, 0.0, 1, 1e-5) == math.inf


def test_many_kinds_of_clients_are_bounded_from_above() -> None:
    pairs = [(1 / n, n) for n in range(2, 60)]
    found = merged(pairs)
    assert found.keys() == set(pairs)
    assert len(set(found.values())) <= CLASSES
    assert all(pair[0] <= most[0] and pair[1] <= most[1] for pair, most in found.items())
    assert found[(0.5, 2)] == (0.5, 2)  # the highest rate, usually the worst


def test_small_clients_have_the_largest_epsilon() -> None:
    found = fit(rounds=3).sample_privacy
    assert found is not None
    # 16 of 20, 16 of 33, and all 8; two, three and one step in each of three rounds
    assert found.rates == (16 / 20, 16 / 33, 1.0)
    assert found.steps == (6, 9, 3)
    wanted = [
        sampled_epsilon(q, 0.7, t, 1e-5) for q, t in zip(found.rates, found.steps, strict=True)
    ]
    assert list(found.epsilon) == wanted
    assert found.worst == max(wanted)
    assert f"{min(wanted):.3g} to {max(wanted):.3g}" in str(found)
    assert "delta 1e-05" in str(found)


def test_clients_are_charged_for_the_rounds_they_are_drawn_for() -> None:
    settings = eh.Settings(local=HIDDEN, cohort=eh.Uniform(1), seed=4, rounds=9)
    fed = ragged(SMALL)
    found = account(eh.FedAvg(), settings, fed, 9)
    assert found is not None
    census = fed.census("data")
    times = [0, 0, 0]
    for round in range(9):
        times[int(settings.cohort.draw(census, 4, round).ids)] += 1
    assert sum(times) == 9
    assert found.steps == tuple(n * t for n, t in zip((2, 3, 1), times, strict=True))
    # training after the last round is by everyone
    tuned = account(eh.FineTuned(epochs=2), settings, fed, 9)
    assert tuned is not None
    assert [t - f for t, f in zip(tuned.steps, found.steps, strict=True)] == [4, 6, 2]


@pytest.mark.parametrize("batch_size", [None, 1, 7, 16, 100])
@pytest.mark.parametrize("length", [{}, {"epochs": 3}, {"steps": 5}])
def test_rates_and_steps_are_those_of_the_batches(
    batch_size: int | None, length: dict[str, int]
) -> None:
    local = eh.LocalSGD(lr=0.1, batch_size=batch_size, dp=eh.SampleDP(seed=0), **length)
    for size in (1, 16, 33):
        drawn = local.batches(torch.tensor([0]), torch.tensor([size]), size, 0, 0)
        assert int(drawn.steps) == steps_in_a_round(local, size)
        everyone = bool((drawn.valid.sum(2) == size).all())
        assert everyone or rate_of(batch_size, size) < 1


def test_words_say_when_nothing_is_hidden() -> None:
    bare = eh.LocalSGD(lr=0.1, dp=eh.SampleDP(noise=0.0))
    found = fit(local=bare).sample_privacy
    assert found is not None
    assert str(found) == "Samples are not hidden: noise is 0, so no epsilon holds."
    seeded = eh.LocalSGD(lr=0.1, dp=eh.SampleDP(noise=3.0, seed=1))
    found = fit(local=seeded).sample_privacy
    assert found is not None
    assert "only while nobody knows it" in str(found)
    assert fit(local=eh.LocalSGD(lr=0.1)).sample_privacy is None


# ---- which methods fit

FITS = {"fedavg", "fedmgda", "ditto", "localonly", "fedadam", "clipped", "fedheal"}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")  # about levels that are too low for so few clients
def test_methods_fit_if_their_clients_send_nothing_but_steps(name: str) -> None:
    local = eh.LocalSGD(lr=0.1, batch_size=64, steps=1, dp=eh.SampleDP())
    if name in FITS:
        fit(METHODS[name], local=local, rounds=1)
        return
    with pytest.raises(ValueError, match=r"does not fit SampleDP: .*; FedAvg, FedProx"):
        fit(METHODS[name], local=local, rounds=1)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (eh.QFFL(), "its reply has more than the step"),
        (eh.AFL(), "its reply has more than the step"),
        (eh.FAFL(alpha=0.6), "its local objective is not a mean over samples"),
        (eh.PropFair(M=3.0), "its local objective is not a mean over samples"),
        (eh.TERM(), "its local objective is not a mean over samples"),
        (eh.DRFA(sample=2), "it asks clients about their samples"),
        (eh.FedProx(inner=eh.QFFL()), "its reply has more than the step"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_refusals_say_why(method: eh.Algorithm, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fit(method)


class Peeking(eh.FedAvg):
    """Sends the number of its samples of class 0."""

    def reply(self, model, start, end, data, task, memory):  # type: ignore[no-untyped-def]
        reply, memory = super().reply(model, start, end, data, task, memory)
        return eh.Reply({**reply.total, "zeros": (data.y == 0).sum()}), memory


class Squared(eh.FedAvg):
    """Squares the mean loss, and does not say that it is no mean."""

    def objective(self, model, variables, batch, task):  # type: ignore[no-untyped-def]
        return model.loss(variables["model"], batch) ** 2


def test_methods_of_ones_own_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match="Peeking does not fit SampleDP: its reply has more"):
        fit(Peeking())
    with pytest.raises(ValueError, match="Squared does not fit SampleDP: its local objective"):
        fit(Squared())


def test_fit_many_refuses_the_same() -> None:
    runs = [eh.Run(eh.FedAvg()), eh.Run(eh.QFFL())]
    with pytest.raises(ValueError, match="QFFL does not fit SampleDP"):
        eh.fit_many(network(torch.float64), ragged(SMALL), runs, rounds=1, local=HIDDEN)


def test_other_views_of_training_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="hinge"):
        fit(loss="hinge_sum")
    x, y = np.zeros((4, 5)), np.array([0, 1, 2, 0])
    untested = eh.Federation.from_arrays([{"x": x, "y": y}])
    with pytest.raises(ValueError, match="give the clients a test split"):
        eh.fit(network(torch.float64), untested, eh.FedAvg(), rounds=1, local=HIDDEN)


def test_batch_normalisation_is_refused() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    run = {"rounds": 1, "local": HIDDEN}
    with pytest.raises(ValueError, match="BatchNorm mixes"):
        eh.fit(net, ragged(SMALL), eh.FedAvg(), normalisation="local", **run)
    eh.fit(net, ragged(SMALL), eh.FedAvg(), normalisation="frozen", **run)


def test_nothing_is_evaluated_on_training_samples() -> None:
    assert fit(local=eh.LocalSGD(lr=0.1)).certificate is not None
    hidden = fit(track_weights=True)
    assert hidden.certificate is None
    assert hidden.weight_history is None
    assert not hidden.weight_columns
    assert not hidden.scored


# ---- the secret


def test_every_run_has_a_secret_of_its_own() -> None:
    first, second = fit(), fit()
    assert not torch.equal(first.params["0.weight"], second.params["0.weight"])
    seeded = eh.LocalSGD(lr=0.1, batch_size=16, dp=eh.SampleDP(clip=0.5, noise=0.7, seed=3))
    first, second = fit(local=seeded), fit(local=seeded)
    assert torch.equal(first.params["0.weight"], second.params["0.weight"])


def test_runs_of_fit_many_do_not_share_noise() -> None:
    alike = [eh.Run(eh.FedAvg()), eh.Run(eh.FedAvg())]
    first, second = eh.fit_many(
        network(torch.float64), ragged(SMALL), alike, rounds=1, local=HIDDEN
    )
    assert not torch.equal(first.params["0.weight"], second.params["0.weight"])
    assert first.sample_privacy is not None


def test_a_round_done_again_draws_the_same_noise(tmp_path: Path, monkeypatch: Any) -> None:
    from evenhand.training.server import SingleServer

    models: list[tuple[int, torch.Tensor]] = []
    step = SingleServer.step

    def watched(self: SingleServer, rows: Any, answers: Any) -> Any:
        found = step(self, rows, answers)
        models.append((len(models), self.state["model"]["0.weight"].clone()))
        if len(models) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(SingleServer, "step", watched)
    local = eh.LocalSGD(lr=0.1, steps=1, dp=eh.SampleDP(clip=0.5, noise=8.0))
    run = {"rounds": 4, "checkpoint_every": 1, "out": tmp_path / "run", "local": local}
    with pytest.raises(KeyboardInterrupt):
        fit(**run)
    key = tmp_path / "run" / KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_bytes()
    fit(**run, resume=True)
    # the third round was interrupted before its checkpoint, and was done again
    assert len(models) == 5
    assert torch.equal(models[2][1], models[3][1])
    assert not key.exists()  # the finished run has forgotten it
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()


def test_a_damaged_secret_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / KEY).write_bytes(b"short")
    with pytest.raises(eh.RunError, match="is damaged; delete it"):
        fit(out=tmp_path / "run")


# ---- tables, specs and files


def test_tables_have_no_key() -> None:
    keyed = eh.SampleDP(clip=2.0, noise=1.5).keyed(b"secret")
    local = eh.LocalSGD(lr=0.1, dp=keyed)
    for table in (solver_table(local), described_solver(local)):
        assert table["dp"] == {"clip": 2.0, "noise": 1.5}
    assert "secret" not in repr(local)
    again = built_solver(solver_table(eh.LocalAdam(lr=0.1, dp=eh.SampleDP(delta=1e-6, seed=2))))
    assert again == eh.LocalAdam(lr=0.1, dp=eh.SampleDP(delta=1e-6, seed=2))
    assert "dp" not in solver_table(eh.LocalSGD(lr=0.1))  # earlier versions can read it


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (1.0, "dp must be a table such as"),
        ({"clop": 1.0}, "unknown keyword of dp: 'clop'"),
        ({"key": "00"}, "unknown keyword of dp: 'key'"),
    ],
)
def test_tables_that_are_none_are_refused(table: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        built_solver({"lr": 0.1, "dp": table})


SPEC = """
name = "hidden"
rounds = 2
methods = [{ name = "fedavg" }, { name = "ditto", local = { dp = { noise = 8.0 } } }]

[data]
name = "digits"
clients = 3

[model]
name = "linear"

[local]
lr = 0.5
batch_size = 64
dp = { clip = 1.0, noise = 4.0 }
"""


def test_a_spec_hides_samples_and_its_runs_say_so(tmp_path: Path) -> None:
    spec = eh.Spec.from_toml(SPEC, "test")
    findings = eh.compare(spec, references=(), out=tmp_path / "hidden")
    study = eh.load(tmp_path / "hidden")
    first, second = (study.trial(name).sample_privacy for name in ("fedavg", "ditto"))
    assert first is not None
    assert second is not None
    assert (first.noise, second.noise) == (4.0, 8.0)
    saved = json.loads((study.trial("fedavg").folder / "sample-privacy.json").read_text())
    assert saved["epsilon"] == list(first.epsilon)
    assert saved["words"] == list(first.lines)
    assert first.__dict__["epsilon"] == tuple(saved["epsilon"])  # read, not computed again
    assert any(first.lines[0] in line for line in findings.sentences)
    eh.card(tmp_path / "hidden", tmp_path / "card", method="ditto")
    assert second.lines[0] in (tmp_path / "card" / "README.md").read_text()


def test_json_keeps_everything() -> None:
    found = SamplePrivacy(math.inf, 0.0, 1e-5, ("a",), (0.5,), (3,))
    assert SamplePrivacy.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert SamplePrivacy.from_json(None) is None


# ---- a record in the data, or not


def canary_scores(dp: eh.SampleDP | None, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """How far one step moves towards a strange sample, with it and without it in the data."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)), rng.integers(0, 2, 20)
    canary = np.array([[0, 0, 0, 0, 0, 50.0]])
    test = [{"x": x[:2], "y": y[:2]}]
    net = nn.Linear(6, 2).double()
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)

    def score(with_it: bool, seed: int) -> float:
        mine = (np.vstack([x, canary]), np.append(y, 1)) if with_it else (x, y)
        fed = eh.Federation.from_arrays([{"x": mine[0], "y": mine[1]}], test=test)
        own = None if dp is None else eh.SampleDP(clip=dp.clip, noise=dp.noise, seed=seed)
        local = eh.LocalSGD(lr=1.0, steps=1, dp=own)
        found = eh.fit(net, fed, eh.FedAvg(), rounds=1, local=local, eval_every=1, engine="loop")
        return float((found.params["weight"][1, 5] - found.params["weight"][0, 5]) * len(mine[0]))

    seeds = range(repeats)
    return (
        np.array([score(True, seed) for seed in seeds]),
        np.array([score(False, 10_000 + seed) for seed in seeds]),
    )


def test_a_canary_is_found_without_noise_and_not_at_epsilon_1() -> None:
    clip = 1.0
    with_it, without = canary_scores(eh.SampleDP(clip=clip, noise=0.0), 1)
    # its gradient, of norm clip, points at its own column: 1 / sqrt(2) for each of two classes
    assert float(with_it[0] - without[0]) == pytest.approx(math.sqrt(2) * clip, rel=0.02)
    # one step on all data: noise for epsilon 1 at delta 1e-5
    noise = 3.73
    assert sampled_epsilon(1.0, noise, 1, 1e-5) == pytest.approx(1.0, abs=0.01)
    with_it, without = canary_scores(eh.SampleDP(clip=clip, noise=noise), 150)
    middle = math.sqrt(2) * clip / 2
    right = (with_it > middle).mean() / 2 + (without <= middle).mean() / 2
    # the best test is right with probability Phi(1 / (2 * 3.73)) = 0.553
    assert right < 0.553 + 4 * math.sqrt(0.25 / 300)
    # and the law of the scores is the one that epsilon is computed for
    both = np.concatenate([with_it - math.sqrt(2) * clip, without])
    spread = noise * clip * math.sqrt(2)
    assert both.std() == pytest.approx(spread, rel=0.15)


def test_the_command_line_prints_epsilon(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from evenhand.cli import main

    (tmp_path / "spec.toml").write_text(SPEC)
    where = ["--out", str(tmp_path / "run"), "--no-report"]
    found = CliRunner().invoke(main, ["run", str(tmp_path / "spec.toml"), *where])
    words = " ".join(found.output.split())
    assert words.count("Each sample is hidden from everyone, including the server, with") == 2
