"""Masked sums in the simulator: the same bits as rounding alone, for every method that can."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import evenhand as eh
from evenhand import tree
from evenhand.algorithm import LocalWork, visible
from evenhand.algorithms.sums_only import VARIANTS, require_sums_only
from evenhand.engines import DropOut, Loop, Masked
from evenhand.engines.masked import MaskedExchange
from evenhand.engines.work import Train
from evenhand.errors import RunError
from evenhand.metrics.client_sums import COARSE
from evenhand.model import Model
from evenhand.secure import Refused
from evenhand.training.server import with_round
from tests.support.federations import METHODS, network, ragged

SIZES = (1, 30, 7, 20)
LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=16, momentum=0.5)
FEDERATION = ragged(SIZES)
CENSUS = FEDERATION.census("uniform")
MORE = {
    "fafl_mean": eh.FAFL(alpha=0.5, mu=0.1, eta0="mean", lr_eta=0.05),
    "term_exact": eh.TERM(t=2.0, exact=True),
    "term_large": eh.TERM(t=30.0),
}
ALL = METHODS | MORE
SUMS_ONLY = [name for name, method in ALL.items() if not visible(method, CENSUS)]
OTHERS = [name for name in ALL if name not in SUMS_ONLY]


def train(method: str | eh.Algorithm, engine: Any, **settings: Any) -> eh.Result:
    chosen: dict[str, Any] = {
        "rounds": 3,
        "local": LOCAL,
        "eval_every": 3,
        "seed": 3,
        "weights": "uniform",
    }
    method = ALL[method] if isinstance(method, str) else method
    federation = settings.pop("federation", FEDERATION)
    return eh.fit(
        network(torch.float32), federation, method, engine=engine, **{**chosen, **settings}
    )


def masked(masks: bool = True, **settings: Any) -> Masked:
    return Masked(engine="loop", masks=masks, **settings)


def everything(result: eh.Result) -> dict[str, torch.Tensor]:
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    return tree.flatten({"params": result.params, "state": result.state, "personal": personal})


def assert_same_bits(a: eh.Result, b: eh.Result) -> None:
    left, right = everything(a), everything(b)
    assert left.keys() == right.keys()
    assert [key for key in left if not torch.equal(left[key], right[key])] == []
    assert str(a.history_rows) == str(b.history_rows)  # NaN equals NaN
    assert a.over_clients == b.over_clients


def attached(engine: eh.engines.Engine, dtype: torch.dtype = torch.float32) -> Any:
    return engine.attach(Model(network(dtype), "cross_entropy"), FEDERATION, 3)


def test_most_methods_need_only_sums() -> None:
    assert len(SUMS_ONLY) > 25
    assert {"fedavg", "qffl", "term", "fafl", "fedminmax", "ditto", "fairfed_sums"} <= {*SUMS_ONLY}


@pytest.mark.parametrize("method", SUMS_ONLY)
def test_masked_sums_equal_rounded_ones(method: str) -> None:
    # GIFAIR scales one team up and the other down, by which four clients count as too few
    federation = ragged((5, 9, 7, 20, 11, 3)) if "gifair" in method else FEDERATION
    exact, rounded, loop = (
        train(method, engine, federation=federation) for engine in (masked(), masked(False), Loop())
    )
    assert_same_bits(exact, rounded)
    plain = everything(loop)
    for key, value in everything(rounded).items():
        if value.is_floating_point():
            torch.testing.assert_close(value, plain[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", SUMS_ONLY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sum_is_within_the_bound(method: str, dtype: torch.dtype) -> None:
    """Against the sum in float64: n 2^-(s+1) in fixed point, correctly rounded otherwise."""
    algorithm, everyone = ALL[method], eh.Full().draw(CENSUS, 3, 0)
    model = Model(network(dtype), "cross_entropy")
    state = algorithm.init(model.init(), CENSUS)
    task = with_round(algorithm.task(state, everyone.ids), everyone, 0.05)
    if algorithm.local_work().snapshot:
        task.shared["moment"] = torch.tensor(0.5)
    work = Train(algorithm, LOCAL)
    sums = [
        attached(engine, dtype).exchange(work, task, everyone.ids, 0)
        for engine in (Loop(), masked(masks=False))
    ]
    assert sums[0].ids.tolist() == sums[1].ids.tolist() == [0, 1, 2, 3]
    plain, rounded = (dict(tree.items(replies.total)) for replies in sums)
    assert plain.keys() == rounded.keys()
    for path, value in plain.items():
        assert rounded[path].dtype == torch.float64
        assert rounded[path].shape == value.shape
        bound = 4 * 2.0 ** -(62 - 2 - 20 + 1) if len(path) > 1 else 0.0
        # float64 sums of four numbers have three roundings
        scale = float(value.abs().max()) if value.numel() else 0.0
        assert bool(((rounded[path] - value).abs() <= bound + 4 * 2.0**-53 * scale).all()), path


def test_partial_cohorts_and_strict_mode() -> None:
    federation = ragged((5, 9, 7, 20, 11, 3))
    for secure in (eh.SecureSums(), eh.SecureSums(mode="strict")):
        results = [
            train("fafl", masked(masks, secure=secure), federation=federation, cohort=eh.Uniform(4))
            for masks in (True, False)
        ]
        assert_same_bits(*results)


# ---- what is refused


@pytest.mark.parametrize("method", OTHERS)
def test_methods_that_read_single_clients_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match=r"hide single clients, but .* needs of each"):
        train(method, masked(masks=False))


def test_a_refusal_names_the_way_out() -> None:
    alone = ragged(SIZES, teams=False).census("uniform")
    ways: dict[str, tuple[eh.Algorithm, eh.Algorithm]] = {
        "TERM": (eh.TERM(t=30.0), eh.TERM(t=20.0)),
        "GIFAIR": (eh.GIFAIR(), eh.GIFAIR()),
        "FAFL": (eh.FAFL(eta0="quantile"), eh.FAFL(eta0="mean")),
        "FairFed": (eh.FairFed(), eh.FairFed(sums_only=True)),
        "FedFB": (eh.FedFB("client_parity"), eh.FedFB("demographic_parity")),
    }
    assert ways.keys() == VARIANTS.keys()
    for name, (refused, instead) in ways.items():
        for method in (refused, eh.Clipped(norm=1.0, inner=refused)):
            with pytest.raises(ValueError, match="needs of each client: its") as caught:
                require_sums_only(method, alone)
            assert str(caught.value).endswith(VARIANTS[name])
        require_sums_only(instead, CENSUS if name == "GIFAIR" else alone)
    with pytest.raises(ValueError, match="AFL needs of each client: its loss; use a method that"):
        require_sums_only(eh.AFL(), alone)


class Undeclared(eh.FedAvg):
    """Sends something of its own, and does not say so."""

    def reply(self, *arguments: Any) -> Any:
        reply, memory = super().reply(*arguments)
        return reply._replace(each={"mine": torch.ones(())}), memory


def test_a_method_that_does_not_say_so_is_refused_when_it_does_it() -> None:
    with pytest.raises(ValueError, match="Undeclared needs of each client: mine"):
        train(Undeclared(), masked(masks=False))


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 clients in a cohort, got 4"):
        train("fedavg", masked(secure=eh.SecureSums(least=5)))
    with pytest.raises(ValueError, match="at least 3 clients in a cohort, got 2"):
        train("fedavg", masked(), cohort=eh.Uniform(2))


def test_nodes_refuse_weights_that_make_one_client_the_sum() -> None:
    with pytest.raises(Refused, match=r"sum that of 1\.25 clients, at least 3"):
        train("fedavg", masked(), federation=ragged((1000, 40, 40, 40)), weights="data")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"secure": 3}, "secure must be a SecureSums object"),
        ({"engine": "fast"}, "unknown engine 'fast'"),
        ({"masks": 1}, "masks must be"),
        ({"drops": 0.1}, "drops must be a function"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        Masked(**wrong)
    with pytest.raises(ValueError, match="before must be in"):
        DropOut(before=2.0)


# ---- drop-outs


def test_drop_outs_change_who_is_in_a_sum(caplog: pytest.LogCaptureFixture) -> None:
    drops = DropOut(before=0.3, after=0.1, seed=1)
    settings: dict[str, Any] = {"federation": ragged((5, 9, 7, 20, 11, 3)), "rounds": 8}
    secure = eh.SecureSums(threshold=4)
    with caplog.at_level(logging.WARNING):
        exact, rounded = (
            train("ditto", masked(masks, drops=drops, secure=secure), eval_every=8, **settings)
            for masks in (True, False)
        )
    assert_same_bits(exact, rounded)
    out = [len(row["left_out"].split()) for row in exact.history_rows]
    assert {1, 2, 6} <= {*out}
    assert [row["void"] for row in exact.history_rows] == [count == 6 for count in out]
    assert "and 4 must" in caplog.text


def gone(stage: str, who: set[int]) -> Callable[[str, int, int], bool]:
    """These clients drop out at a stage of the second exchange."""
    return lambda now, exchange, client: now == stage and exchange == 2 and client in who


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_void_round_changes_nothing(stage: str, masks: bool) -> None:
    """Neither the model nor what clients remember."""
    once = train("ditto", masked(masks), rounds=1)
    void = train("ditto", masked(masks, drops=gone(stage, {0, 3})), rounds=2, eval_every=2)
    assert [row["void"] for row in void.history_rows] == [False, True]
    assert void.history_rows[1]["left_out"] == "0, 1, 2, 3"
    left, right = everything(once), everything(void)
    assert [key for key in left if not torch.equal(left[key], right[key])] == []


@pytest.mark.parametrize("masks", [True, False])
def test_a_client_that_is_gone_is_not_in_the_sum(masks: bool) -> None:
    one = train("fedavg", masked(masks, drops=gone("before", {1})), rounds=2, eval_every=2)
    assert [row["left_out"] for row in one.history_rows] == ["", "1"]
    held = train("fedavg", masked(masks, drops=gone("after", {1})), rounds=2, eval_every=2)
    assert [row["left_out"] for row in held.history_rows] == ["", ""]


# ---- numbers


@pytest.mark.parametrize("masks", [True, False])
def test_after_an_overflow_the_same_clients_are_asked_again(
    masks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    local = eh.LocalSGD(lr=3e8, steps=1)
    with caplog.at_level(logging.WARNING):
        found = train("fedavg", masked(masks), local=local, rounds=1)
    assert "round 1: the values of 4 clients are beyond the range" in caplog.text
    plain = train("fedavg", Loop(), local=local, rounds=1)
    for key, value in plain.params.items():
        torch.testing.assert_close(found.params[key], value, rtol=1e-5, atol=1.0)


def test_a_run_that_diverges_stops_with_a_sentence() -> None:
    with pytest.raises(RunError, match=r"in round 1, totals are beyond .* after 3 tries"):
        train("fedavg", masked(masks=False), local=eh.LocalSGD(lr=1e30, steps=1), rounds=1)


def test_a_client_that_drops_out_of_a_second_try_makes_the_round_void() -> None:
    def drops(stage: str, exchange: int, client: int) -> bool:
        return stage == "before" and exchange == 2 and client == 1

    local = eh.LocalSGD(lr=3e8, steps=1)
    exchange = attached(masked(masks=False, drops=drops))
    everyone = eh.Full().draw(CENSUS, 3, 0)
    task = with_round(
        eh.FedAvg().task({"model": exchange.model.init()}, everyone.ids), everyone, 3e8
    )
    replies = exchange.exchange(Train(eh.FedAvg(), local), task, everyone.ids, 0)
    assert (len(replies.ids), replies.total) == (0, {})


def test_ranges_follow_the_sums() -> None:
    exchange = attached(masked(masks=False))
    assert isinstance(exchange, MaskedExchange)
    everyone = eh.Full().draw(CENSUS, 3, 0)
    task = with_round(
        eh.FedAvg().task({"model": exchange.model.init()}, everyone.ids), everyone, 0.05
    )
    sums = exchange.exchange(Train(eh.FedAvg(), LOCAL), task, everyone.ids, 0).total["delta"]
    known = exchange.memories[-1]["train/train"]["delta/0.weight"]
    assert int(known) == math.frexp(float(sums["0.weight"].abs().max()))[1] + 20
    other = attached(masked(masks=False))
    other.memories = exchange.memories
    assert other._exponents == exchange._exponents


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    """It knows the ranges, as well as clients' memories."""
    for method in ("qffl", "ditto"):
        whole = train(method, masked(masks=False), rounds=4, eval_every=2)
        out = tmp_path / method
        train(method, masked(masks=False), rounds=2, eval_every=2, out=out, checkpoint_every=1)
        resumed = train(
            method,
            masked(masks=False),
            rounds=4,
            eval_every=2,
            out=out,
            checkpoint_every=1,
            resume=True,
        )
        assert_same_bits(whole, resumed)


class Diverging(eh.FedAvg):
    """The client with one sample sends NaN."""

    def reply(self, model: Any, start: Any, end: Any, data: Any, *rest: Any) -> Any:
        reply, memory = super().reply(model, start, end, data, *rest)
        factor = torch.where(data.weight.sum() == 1, torch.nan, 1.0)
        return eh.Reply({**reply.total, "delta": tree.scale(reply.total["delta"], factor)}), memory


def test_a_client_whose_values_are_not_finite_sends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for engine in (masked(), masked(masks=False), Loop()):
        found = train(Diverging(), engine, rounds=1)
        assert found.history_rows[0]["left_out"] == "0"
        assert all(value.isfinite().all() for value in found.params.values())
    assert caplog.text.count("client 0 sends nothing, because its values are not finite") == 2
    assert "1 of 1 rounds clients were skipped for the reasons logged above" in caplog.text


def test_evaluation_goes_by_coarse_sums() -> None:
    result = train("fedavg", masked(masks=False))
    assert result.over_clients is not None
    assert result.over_clients["clients"] == 4
    assert result.scores is not None
    assert [
        row for row in result.score_rows if "client" in row and row["client"] is not None
    ] == [] or (len(result.score_rows) < 4)
    assert len(result.outcomes["value"]) == 0  # not even of single samples
    exact = train("fedavg", Loop())
    assert result.over_clients["mean"] == pytest.approx(exact.summary["mean"], abs=1e-12)
    assert result.over_clients["worst"] == pytest.approx(exact.summary["worst"], abs=0.5 / COARSE)


def test_one_client_in_disguise_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """With an honest server, too: a large tilt gives the worst client nearly all weight."""
    with caplog.at_level(logging.WARNING):
        train(eh.TERM(t=20.0), masked(masks=False))
    assert caplog.text.count("by the weights that clients give themselves") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        train("fedavg", masked(masks=False))
    assert "give themselves" not in caplog.text


# ---- noise


@dataclass(frozen=True)
class NoisyWork(LocalWork):
    """Local work whose sums must carry noise."""

    noise: Any = None


class Noisy(eh.FedAvg):
    """FedAvg with noise on the step."""

    def local_work(self) -> LocalWork:
        def deviations(total: dict[str, Any]) -> dict[str, Any]:
            return {
                "delta": tree.map(lambda leaf: torch.tensor(0.5), total["delta"]),
                "weight": torch.zeros(()),
            }

        return NoisyWork(noise=deviations)


@pytest.mark.parametrize("masks", [True, False])
def test_clients_add_noise_in_shares(masks: bool) -> None:
    everyone = eh.Full().draw(CENSUS, 3, 0)
    draws = []
    exchange, plain = attached(masked(masks)), attached(Loop())
    task = with_round(
        eh.FedAvg().task({"model": exchange.model.init()}, everyone.ids), everyone, 0.05
    )
    exact = plain.exchange(Train(eh.FedAvg(), LOCAL), task, everyone.ids, 0)
    for _ in range(25):
        noisy = exchange.exchange(Train(Noisy(), LOCAL), task, everyone.ids, 0)
        assert noisy.total["weight"] == exact.total["weight"]
        difference = tree.sub(noisy.total["delta"], exact.total["delta"])
        draws.append(torch.cat([leaf.flatten() for leaf in tree.leaves(difference)]))
    values = torch.cat(draws)  # 25 draws of 75 numbers; four answer where three are enough
    assert len(values.unique()) == len(values)
    assert abs(float(values.mean())) < 5 * 0.58 / math.sqrt(len(values))
    assert float(values.std()) == pytest.approx(0.5 * math.sqrt(4 / 3), rel=0.1)
