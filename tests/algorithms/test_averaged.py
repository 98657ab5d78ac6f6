"""Averaged: the mean of the models after each round, whatever the method, and old ways to ask for
it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand.algorithms.naming import algorithm_table
from evenhand.studies.specs.method import build_algorithm
from evenhand.studies.specs.parsing import parse_method
from tests.support import limits
from tests.support.federations import METHODS, network, ragged, with_output

FEDERATION = ragged((5, 30, 7, 12, 9))


def train(method: eh.Algorithm, rounds: int = 3, **options: Any) -> eh.Result:
    options = {"local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=8), "engine": "vmap", **options}
    module = network(options.pop("dtype", torch.float64))
    return eh.fit(module, FEDERATION, method, rounds=rounds, **options)


def mean_of(models: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The running mean, as it is computed."""
    mean = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in models[0].items()}
    for count, model in enumerate(models, start=1):
        mean = {name: old + (model[name].double() - old) / count for name, old in mean.items()}
    return {name: leaf.to(models[0][name].dtype) for name, leaf in mean.items()}


def assert_identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "afl", "aaggff_ftrl", "fedfv", "fedmgda", "gifair"])
def test_it_hands_out_the_mean_of_the_inner_methods_models(name: str, dtype: torch.dtype) -> None:
    last = [dict(train(METHODS[name], rounds, dtype=dtype).params) for rounds in (1, 2, 3)]
    found = train(eh.Averaged(METHODS[name]), dtype=dtype)
    assert_identical(dict(found.params), mean_of(last))
    assert_identical(dict(found.state["model"]), last[-1])


def test_before_the_first_round_it_hands_out_the_initial_model() -> None:
    method, params = eh.Averaged(), dict(network(torch.float32).state_dict())
    assert_identical(method.result(method.init(params, FEDERATION.census())), params)


def test_void_rounds_do_not_count() -> None:
    def poisoned(output: Tensor, target: Tensor) -> Tensor:
        return torch.nan * output.sum(1)

    found = train(eh.Averaged(), loss=poisoned)
    assert_identical(dict(found.params), dict(network().state_dict()))
    assert found.state["average_rounds"] == 0


def test_around_itself_it_is_itself() -> None:
    once, twice = (train(method) for method in (eh.Averaged(), eh.Averaged(eh.Averaged())))
    assert_identical(dict(once.params), dict(twice.params))


@pytest.mark.parametrize(
    "optimizer", [eh.FedAvgM(lr=0.7, momentum=0.5), eh.FedAdam(lr=0.1)], ids=repr
)
def test_in_and_around_a_server_optimiser_it_averages_what_that_went_through(
    optimizer: eh.FedAvgM | eh.FedAdam,
) -> None:
    last = [dict(train(optimizer, rounds).params) for rounds in (1, 2, 3)]
    settings = {name: value for name, value in vars(optimizer).items() if name != "personal"}
    inside = type(optimizer)(**{**settings, "inner": eh.Averaged()})
    assert_identical(dict(train(inside).params), mean_of(last))
    assert_identical(dict(train(eh.Averaged(optimizer)).params), mean_of(last))


@pytest.mark.parametrize("order", ["after", "before"])
def test_its_certificate_is_about_the_mean_of_the_dual_weights(order: str) -> None:
    inner = eh.AFL(lr_lambda=0.5, order=order)
    duals = [train(inner, rounds).state["lam"] for rounds in (1, 2, 3)]
    found = train(eh.Averaged(inner)).certificate
    assert found is not None
    assert found.weights.tolist() == pytest.approx((sum(duals) / 3).tolist(), rel=1e-12)
    assert found.weights.tolist() != pytest.approx(duals[-1].tolist(), rel=1e-3)


def test_without_dual_weights_the_certificate_is_the_inner_methods() -> None:
    inner = eh.TERM(t=2.0)
    averaged = train(eh.Averaged(inner))
    losses = torch.tensor([row["loss"] for row in averaged.weight_rows], dtype=torch.float64)
    reference = inner.certificate(averaged.state, losses, FEDERATION.census())
    assert averaged.certificate is not None
    assert reference is not None
    assert torch.equal(averaged.certificate.weights, reference.weights)


# ---- as it was asked for before


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ("afl:output=average", eh.Averaged(eh.AFL())),
        ("afl:output=last,lr_lambda=0.2", eh.AFL(lr_lambda=0.2)),
        ("fafl:alpha=0.5,output=average", eh.Averaged(eh.FAFL(alpha=0.5))),
        ("fedminmax:output=average,floor=0.1", eh.Averaged(eh.FedMinMax(floor=0.1))),
        ("fedavgm:inner=afl,inner.output=average", eh.FedAvgM(inner=eh.Averaged(eh.AFL()))),
        ("averaged:inner=afl", eh.Averaged(eh.AFL())),
    ],
)
def test_an_output_of_old_still_makes_the_same_method(given: str, method: eh.Algorithm) -> None:
    assert build_algorithm(parse_method(given)) == method
    assert build_algorithm(algorithm_table(method)) == method


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("afl:output=mean", 'method afl: output must be "last" or "average", got \'mean\''),
        ("qffl:output=average", "unknown keyword of method qffl: 'output'"),
    ],
)
def test_an_output_that_never_was_is_refused(given: str, message: str) -> None:
    with pytest.raises(eh.SpecError) as caught:
        build_algorithm(parse_method(given))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("kind", [eh.AFL, eh.FAFL, eh.FedMinMax])
def test_in_python_the_error_names_the_new_way(kind: type[eh.Algorithm]) -> None:
    name = kind.__name__
    with pytest.raises(TypeError) as caught:
        kind(output="average")
    assert str(caught.value).endswith(f"use Averaged({name}(...))")


# ---- inside server optimisers


def test_momentum_of_averaged_afl_hands_out_the_mean_of_the_models_it_went_through(
    engine: str,
) -> None:
    averaged = limits.train(
        eh.FedAvgM(lr=0.7, momentum=0.5, inner=eh.Averaged(eh.AFL(lr_lambda=0.3))),
        engine,
        rounds=3,
    ).params
    last = [
        limits.train(
            eh.FedAvgM(lr=0.7, momentum=0.5, inner=eh.AFL(lr_lambda=0.3)), engine, rounds=rounds
        ).params
        for rounds in (1, 2, 3)
    ]
    limits.assert_same(
        averaged, {name: sum(params[name] for params in last) / 3 for name in averaged}
    )


def test_adam_of_averaged_fafl_hands_out_the_mean_of_the_models_it_went_through(
    engine: str,
) -> None:
    def run(output: str, rounds: int) -> dict[str, Tensor]:
        return limits.train(
            eh.FedAdam(lr=0.1, inner=with_output(eh.FAFL(alpha=0.5, mu=0.1), output)),
            engine,
            rounds=rounds,
        ).params

    last = [run("last", rounds) for rounds in (1, 2, 3)]
    limits.assert_same(
        run("average", 3), {name: sum(params[name] for params in last) / 3 for name in last[0]}
    )
