"""Private: one bound for a client's whole contribution, whatever the method and the client."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand as eh
from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.algorithms.privately import assumptions
from evenhand.data.samples import Batch
from evenhand.messages import Replies, Reply, Task
from evenhand.privacy.accounting import Scheme
from evenhand.privacy.protection import Facts
from evenhand.training.steps import with_round
from tests.support.by_hand import clients_of, move, run, value
from tests.support.federations import network, ragged

CAP = 2.0
STEPS = eh.LocalSGD(lr=0.1, steps=3, batch_size=8)
# every method that says how large one client's part of its sums can be
METHODS: dict[str, Algorithm] = {
    "fedavg": eh.FedAvg(),
    "fedprox": eh.FedProx(mu=0.1),
    "propfair": eh.PropFair(M=3.0),
    "ditto": eh.Ditto(lam=0.5),
    "averaged": eh.Averaged(eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05)),
    "fedadam": eh.FedAdam(lr=0.05),
    "clipped": eh.Clipped(norm=0.1),
    "finetuned": eh.FineTuned(epochs=1),
    "reweighed": eh.Reweighed(inner=eh.FedAvg()),
    "fafl": eh.FAFL(alpha=0.3, mu=0.1, lr_eta=0.05),
    "fafl_table": eh.FAFL(alpha={"random": 1, "low": 0.2, "1": 0.1}, mu=0.1, lr_eta=0.05),
    "fedminmax": eh.FedMinMax(lr_mu=0.1),
    "agnosticfedavg": eh.AgnosticFedAvg(lr_lambda=0.2),
    "qffl": eh.QFFL(q=1.0, lipschitz=10.0),
    "qffl_2": eh.QFFL(q=2.0, lipschitz=10.0),
    "qffl_sgd": eh.QFFL(q=1.0, solver="fedsgd", lipschitz=10.0),
    "term": eh.TERM(t=1.0),
    "term_large": eh.TERM(t=10.0),
    "gifair": eh.GIFAIR(strength=0.8),
}
TWO_CLASSES = ("reweighed",)


def private(inner: Algorithm, **options: Any) -> eh.Private:
    usual = {"clip": 0.5, "noise": 0.0, "delta": 1e-3, "loss_cap": CAP, "secret": 1}
    return eh.Private(inner, **{**usual, **options})


def fit(method: Algorithm, federation: eh.Federation | None = None, **options: Any) -> eh.Result:
    usual: dict[str, Any] = {"rounds": 3, "weights": "uniform", "local": STEPS}
    return eh.fit(network(), federation or ragged(), method, **{**usual, **options})


def bound_to_run(method: eh.Private, clients: int = 10) -> eh.Private:
    return method.for_run(Facts(Scheme("poisson", clients, clients / 2), 5, "uniform", 3.0))


# ---- the bound


class Adversary:
    """A client of a federation that replies with any step and any losses."""

    def __init__(self, name: str, adaptive: float | None) -> None:
        self.federation, self.module = ragged(), network()
        self.method = bound_to_run(private(METHODS[name], adaptive=adaptive, noise=1.0))
        self.model = eh.Model(self.module, "cross_entropy")
        census = self.federation.census("uniform")
        self.state = self.method.init(self.model.init(), census)
        draw = eh.Full().draw(census, 0, 0)
        self.task = with_round(self.method.task(self.state, draw.ids), draw, 0.1)
        self.samples = self.federation.probe(len(self.federation.train.y)).to(
            torch.float64, torch.device("cpu")
        )

    def reply(self, client: int, size: float, losses: float, seed: int) -> tuple[Reply, tree.Tree]:
        generator = torch.Generator().manual_seed(seed)

        def loud(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return losses * torch.nn.functional.cross_entropy(output, y, reduction="none")

        def far(leaf: torch.Tensor) -> torch.Tensor:
            return leaf + size * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)

        task = Task(self.task.shared, tree.row(self.task.own, client))
        first, last = self.federation.train.offsets[client : client + 2].tolist()
        ones = torch.ones(last - first, dtype=torch.float64)
        data = Batch(self.samples, torch.arange(first, last), ones)
        memory = self.method.memory(self.model.init())
        start = self.method.start(task, memory)
        model = eh.Model(self.module, loud)
        return self.method.reply(model, start, tree.map(far, start), data, task, memory)


@pytest.mark.parametrize("adaptive", [None, 0.5], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in TWO_CLASSES])
def test_no_client_exceeds_its_bound(name: str, adaptive: float | None) -> None:
    """The whole vector has length 1 at most, and every block its part of the budget, whatever the
    client's steps and losses."""
    adversary = Adversary(name, adaptive)
    bound, bit = adversary.method._bounds(adversary.state["private"])
    blocks = (*bound.blocks, *(() if bit is None else bit.blocks))
    assert sum(float(block.share) for block in blocks) == pytest.approx(1, abs=1e-12)

    @settings(max_examples=25, deadline=None)
    @given(
        client=st.integers(0, 9),
        size=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30, 1e200, math.inf, math.nan]),
        losses=st.sampled_from([1e-3, 1.0, 1e6, math.inf, math.nan]),
        seed=st.integers(0, 99),
    )
    def holds(client: int, size: float, losses: float, seed: int) -> None:
        reply, kept = adversary.reply(client, size, losses, seed)
        assert not reply.each
        assert set(reply.total) == {entry for block in blocks for entry in block.bounds}
        for block in blocks:
            sent = {entry: reply.total[entry] for entry in block.bounds}
            assert float(tree.sqnorm(tree.to(sent, torch.float64))) <= float(block.share)
        assert float(tree.sqnorm(tree.to(reply.total, torch.float64))) <= 1
        assert all(bool(leaf.isfinite().all()) for leaf in tree.leaves(kept))

    holds()


def test_the_bound_is_reached_so_that_a_smaller_one_would_fail() -> None:
    reply, _ = Adversary("fedavg", None).reply(3, 1e3, 1.0, 0)
    assert float(tree.sqnorm(reply.total).sqrt()) == pytest.approx(1, abs=2e-6)


@pytest.mark.parametrize("name", ["qffl", "term", "agnosticfedavg"])
def test_a_step_and_its_weight_shrink_together(name: str) -> None:
    """A client that is clipped keeps the direction and length of the step that it votes for."""
    adversary = Adversary(name, None)
    bound, _ = adversary.method._bounds(adversary.state["private"])
    first = bound.blocks[0].bounds
    step, weight = adversary.model.init(), 7 * float(first["weight"])
    total = {
        "delta": tree.scale(step, 5 * float(first["delta"])),
        "weight": torch.tensor(weight).double(),
        "group_loss": torch.ones(3).double(),
        "group_share": torch.ones(3).double() / 3,
    }
    sent, length = bound.clipped({entry: total[entry] for entry in bound.names})
    assert float(length) > 7
    assert float(tree.sqnorm({entry: sent[entry] for entry in first})) <= bound.blocks[0].share
    voted = tree.scale(
        sent["delta"], float(first["delta"]) / float(sent["weight"] * first["weight"])
    )
    for key, leaf in total["delta"].items():
        assert torch.allclose(voted[key], leaf / weight, rtol=1e-9)


# ---- by hand


def test_updates_are_clipped_and_divided_by_the_expected_number(engine: str) -> None:
    # (3, 4) has length 5, and half of it is left; (0, -.5) stays
    method = eh.Private(clip=2.5, noise=0.0, delta=1e-3, secret=0)
    found = move(method, engine, clients_of((3, 4), (0, -0.5)), weights="uniform")
    assert found == pytest.approx([-1.5 / 2, -(2 - 0.5) / 2], rel=1e-5)


def test_without_noise_and_clipping_it_is_the_inner_method(engine: str) -> None:
    for inner in (eh.FedAvg(), eh.PropFair(M=3.0), eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05)):
        method = private(inner, clip=1e6, loss_cap=None)
        options: dict[str, Any] = {"local": eh.LocalSGD(lr=0.1, steps=2), "engine": engine}
        found, plain = fit(method, **options), fit(inner, **options)
        for name, leaf in plain.params.items():
            assert torch.allclose(found.params[name], leaf, rtol=1e-9, atol=1e-11)


def test_the_noise_on_the_mean_step_is_clip_times_noise_over_the_cohort() -> None:
    wide = torch.nn.Sequential(torch.nn.Linear(5, 2000), torch.nn.Linear(2000, 3)).double()
    still = eh.LocalSGD(lr=1e-12, steps=1)
    options: dict[str, Any] = {"rounds": 1, "weights": "uniform", "local": still}
    method = private(eh.FedAvg(), clip=0.5, noise=2.0)
    found = eh.fit(wide, ragged(), method, cohort=eh.Poisson(0.4), **options)
    before = dict(wide.named_parameters())
    moved = torch.cat([(found.params[k] - before[k]).flatten().detach() for k in before])
    assert float(moved.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.02)
    assert abs(float(moved.mean())) < 0.01 * 2.0 * 0.5 / 4
    assert found.privacy is not None
    assert found.privacy.ratio == pytest.approx(2.0 * len(moved) ** 0.5 / 4)


def test_adaptive_clipping_follows_the_quantile_and_stops_at_its_floor() -> None:
    # all updates are far shorter than the clip: each round, C falls by e^(-0.2 (1 - 0.5))
    method = private(eh.FedAvg(), clip=100.0, adaptive=0.5, floor=80.0)
    found = fit(method, rounds=4)
    expected = [100 * math.exp(-0.1 * k) for k in (1, 2)]
    assert found.history["clip"].tolist()[:2] == pytest.approx(expected, rel=1e-5)
    assert found.history["clip"].tolist()[2:] == [80.0, 80.0]
    # all are longer: it grows by e^(0.2 0.5)
    longer = fit(private(eh.FedAvg(), clip=1e-6, adaptive=0.5), rounds=1)
    assert longer.history["clip"][0] == pytest.approx(1e-6 * math.exp(0.1), rel=1e-5)


@pytest.mark.parametrize("expected", [20.0, 200.0, 2000.0])
def test_the_share_of_the_adaptive_bit_is_that_of_the_paper(expected: float) -> None:
    facts = Facts(Scheme("poisson", 10_000, expected), 5, "uniform", None)
    method = private(eh.FedAvg(), noise=1.0, adaptive=0.5, delta=1e-5).for_run(facts)
    bound, bit = method._bounds(method._first(10_000))
    assert bit is not None
    on_count = 0.5 / float(bit.blocks[0].share) ** 0.5
    on_step = 1 / float(bound.blocks[0].share) ** 0.5
    assert on_step == pytest.approx((1 - (2 * on_count) ** -2) ** -0.5, rel=1e-12)
    # a twentieth of the cohort, or what costs the step 2 %
    assert on_count == pytest.approx(max(expected / 20, 2.5))


# ---- clients and cohorts


def test_a_client_that_is_not_finite_sends_zeros_and_is_not_named() -> None:
    honest = ragged((30, 30, 30, 30), teams=False)
    x = honest.train.x.clone()
    x[:30] = 1e200
    arrays = [
        {"x": x[a : a + 30].numpy(), "y": honest.train.y[a : a + 30].numpy()}
        for a in range(0, 120, 30)
    ]
    others = eh.Federation.from_arrays(arrays)
    method = private(eh.FedAvg(), clip=1e3, loss_cap=None, delta=1e-2)
    found = fit(method, others, rounds=1)
    assert found.history["left_out"].tolist() == [""]
    assert found.history["answered"].tolist() == [4]
    assert all(leaf.isfinite().all() for leaf in found.params.values())
    # the other three are still divided by four
    plain = eh.fit(
        network(), eh.Federation.from_arrays(arrays[1:]), eh.FedAvg(), rounds=1, local=STEPS,
        weights="uniform",
    )  # fmt: skip
    before = network().state_dict()
    moved = found.params["2.bias"] - before["2.bias"]
    alone = plain.params["2.bias"] - before["2.bias"]
    assert float(moved.norm()) < float(alone.norm()) * 1.2


def test_an_empty_cohort_releases_noise_alone() -> None:
    method = private(eh.FedAvg(), clip=1.0, noise=0.7)
    found = fit(method, cohort=eh.Poisson(1e-9), rounds=2)
    assert found.history["void"].tolist() == [False, False]
    before = network().state_dict()
    assert all(not torch.equal(found.params[name], before[name]) for name in before)
    # the sum is zero: the same noise whatever the stand-in would have sent
    other = fit(method, ragged(seed=5), cohort=eh.Poisson(1e-9), rounds=2)
    assert all(torch.equal(found.params[name], other.params[name]) for name in before)


def test_the_history_does_not_tell_who_took_part() -> None:
    found = fit(private(eh.FedAvg(), noise=1.0), cohort=eh.Poisson(0.3), rounds=6)
    assert found.history["asked"].tolist() == [3.0] * 6
    assert found.history["answered"].tolist() == [3.0] * 6
    assert set(found.history["left_out"]) == {""}


def test_cohorts_come_from_the_secret_not_from_the_seed() -> None:
    options: dict[str, Any] = {"cohort": eh.Poisson(0.5), "rounds": 1}
    method = private(eh.FedAvg())
    one, same, other = (
        fit(method, **options),
        fit(method, seed=0, **options),
        fit(replace(method, secret=2), **options),
    )
    assert torch.equal(one.params["2.bias"], same.params["2.bias"])
    assert not torch.equal(one.params["2.bias"], other.params["2.bias"])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in TWO_CLASSES])
def test_engines_and_stacks_agree(name: str) -> None:
    method = private(METHODS[name], noise=0.5, clip=1.0)
    options: dict[str, Any] = {"rounds": 2, "weights": "uniform", "local": STEPS}
    options |= {"cohort": eh.Poisson(0.6)}
    loop, vmap = (
        eh.fit(network(), ragged(), method, engine=engine, **options) for engine in ("loop", "vmap")
    )
    for key, leaf in loop.params.items():
        assert torch.allclose(vmap.params[key], leaf, rtol=1e-7, atol=1e-9)
        assert bool(leaf.isfinite().all())
    runs = [eh.Run(method), eh.Run(replace(method, clip=0.7))]
    many = eh.fit_many(network(), ragged(), runs, engine="vmap", **options)
    assert all(torch.equal(many[0].params[key], leaf) for key, leaf in vmap.params.items())
    assert not torch.equal(many[1].params["2.bias"], vmap.params["2.bias"])
    assert all(one.privacy is not None and one.privacy.simulated for one in many)


def test_groups_count_as_the_user_states_not_as_in_the_data() -> None:
    census = ragged().census("uniform")
    for shares, expected in ((None, [1 / 3] * 3), ([0.6, 0.3, 0.1], [0.6, 0.3, 0.1])):
        method = bound_to_run(private(eh.FedMinMax(), group_shares=shares))
        state = method.init(eh.Model(network(), "cross_entropy").init(), census)
        assert state["rho"].tolist() == pytest.approx(expected)


# ---- refusals


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (eh.AFL(), "AFL cannot be private: its server sees each client's loss"),
        (eh.FedMGDA(), "FedMGDA cannot be private: its server sees each client's"),
        (eh.LossGuard(), "LossGuard cannot be private: its server sees"),
        (eh.TERM(t=1.0, exact=True), "TERM cannot be private: its server sees each client's loss"),
        (eh.TERM(level="team"), "sets the weights of others"),
        (eh.GIFAIR(exact_losses=True), "GIFAIR cannot be private"),
        (eh.FAFL(eta0="mean", lr_eta=0.1), "it asks clients a question"),
        (eh.FAFL(), "a private FAFL needs lr_eta"),
        (eh.FedFB(), "FedFB cannot be private"),
        (eh.EAGLE(), "EAGLE cannot be private: it does not say how large"),
        (eh.FedHEAL(), "FedHEAL cannot be private"),
        (eh.GroupConstraint(smallest=0), "GroupConstraint cannot be private"),
        (eh.LocalOnly(), "LocalOnly cannot be private: it does not say how large"),
        (eh.QFFL(q=0.5, lipschitz=1.0), "a private QFFL needs q = 0 or q >= 1, got 0.5"),
        (eh.QFFL(q=1.0), "a private QFFL needs lipschitz"),
        (eh.DRFA(), "DRFA cannot be private"),
    ],
)
def test_methods_that_cannot_be_private_are_refused_by_name(inner: Algorithm, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(private(inner))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "data"}, 'Private needs weights="uniform"'),
        ({"cohort": eh.Proportional(3)}, "no theorem says how private Proportional cohorts are"),
    ],
)
def test_runs_that_cannot_be_private_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(private(eh.FedAvg()), **options)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (private(eh.FedAvg(), delta=0.1), "delta must be below one over the number of clients"),
        (eh.Averaged(private(eh.FedAvg())), "Private must be the outermost method"),
        (eh.Clipped(inner=private(eh.FedAvg())), "Private must be the outermost method"),
        (private(eh.FedAvg(), noise_by="clients"), 'noise_by="clients" needs masked sums'),
        (private(eh.FedMinMax(), loss_cap=None), "set loss_cap"),
        (private(eh.FedMinMax(), group_shares=[0.5, 0.5]), "a share for each of 3 groups, got 2"),
    ],
)
def test_settings_that_would_not_protect_are_refused(method: Algorithm, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(method)


def test_a_bound_by_local_steps_needs_the_same_number_for_all() -> None:
    with pytest.raises(ValueError, match=r"use LocalSGD\(steps=...\), the same for all clients"):
        fit(private(METHODS["fafl"]), local=eh.LocalSGD(lr=0.1, epochs=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1.0, "epsilon": 1.0}, "pass noise or epsilon, not both"),
        ({"clip": 0.0}, "clip must be"),
        ({"noise": -1.0}, "noise must be"),
        ({"adaptive": 1.0}, "adaptive must be"),
        ({"noise_by": "me"}, 'noise_by must be "server" or "clients"'),
        ({"group_shares": [0.5, 0.6]}, "group_shares must sum to 1, got 1.1"),
        ({"secret": -1}, "secret must be a whole number >= 0"),
        ({"inner": eh.Private()}, "made private once"),
    ],
)
def test_hyperparameters_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.Private(**options)


def test_clients_can_add_the_noise_where_sums_are_masked() -> None:
    method = private(METHODS["fafl"], noise=1.5, noise_by="clients")
    noise = method.local_work().noise
    assert noise is not None
    form = {"delta": {"w": torch.ones(2, 3)}, "eta": torch.tensor(1.0)}
    assert {float(x) for leaf in tree.leaves(noise(form)) for x in leaf.flatten()} == {1.5}
    assert private(METHODS["fafl"]).local_work().noise is None
    # the server then adds none
    state = bound_to_run(method).init(network().state_dict(), ragged().census("uniform"))
    zeros = {"delta": tree.zeros_like(state["model"]), "eta": torch.zeros(()).double()}
    after, _ = bound_to_run(method).server(state, Replies(torch.arange(3), zeros, {}))
    assert all(torch.equal(after["model"][k], leaf) for k, leaf in state["model"].items())


def test_a_private_method_without_a_run_has_no_secret() -> None:
    method = eh.Private()
    state = method.init(network().state_dict(), ragged().census("uniform"))
    zeros = {"delta": tree.zeros_like(state["model"])}
    with pytest.raises(ValueError, match="Private has no secret before a run begins"):
        method.server(state, Replies(torch.arange(3), zeros, {}))


def test_one_step_by_hand(engine: str) -> None:
    # updates -.2 and -1.6 (see by_hand); equal weights, the second cut to -1
    found = run(eh.Private(clip=1.0, noise=0.0, delta=1e-3), engine, lr=0.1, weights="uniform")
    assert value(found.params) == pytest.approx(1 + (0.2 + 1) / 2, rel=1e-6)
    assert found.privacy is not None
    assert found.privacy.sentence == "No epsilon: noise is 0, which protects nobody."


def test_only_noise_of_the_server_hangs_on_its_secret() -> None:
    everyone = Scheme("everyone", 10, 10)
    of_server, of_clients = (" ".join(assumptions(everyone, who)) for who in ("server", "clients"))
    assert "the secret is kept" in of_server
    assert "the server is trusted with the sums" in of_server
    assert "secret" not in of_clients
    assert "at most `colluding` of them tell theirs" in of_clients
