"""Steps that hide single samples: gradients, clipping, sums, noise and batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import evenhand as eh
from evenhand import tree
from evenhand.data.samples import Batch, Samples
from evenhand.engines.by_sample import clipped_sum, gradients_by_sample, hidden_gradient
from evenhand.engines.loop import OneByOne
from evenhand.local import StepNoise
from evenhand.local.sample_dp import poisson_batches
from evenhand.local.secret import gaussians, uniforms
from evenhand.model import Model
from tests.support.federations import FEWER, network, ragged

SEEDED = eh.SampleDP(clip=0.5, noise=0.7, seed=1)


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def samples(count: int, shape: tuple[int, ...] = (1, 8, 8)) -> Samples:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator)
    return Samples(x, torch.arange(count) % 10, torch.zeros(count, dtype=torch.int64))


def objective_on(model: Model, data: Samples) -> Any:
    def objective(shared: tree.Tree, inputs: tree.Tree) -> Tensor:
        batch = inputs["batch"]
        return model.loss(
            inputs["variables"]["model"], Batch(data, batch["index"], batch["weight"])
        )

    return objective


# ---- gradients of single samples


def test_gradients_of_samples_are_those_of_opacus() -> None:
    from opacus import GradSampleModule

    module, data = small_cnn(), samples(12)
    found = gradients_by_sample(objective_on(Model(module), data))(
        {},
        {
            "variables": {"model": Model(module).init()},
            "batch": {"index": torch.arange(12), "weight": torch.ones(12)},
        },
    )["model"]
    oracle = GradSampleModule(module, loss_reduction="sum")
    nn.functional.cross_entropy(oracle(data.x.requires_grad_()), data.y, reduction="sum").backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad_sample, rtol=1e-5, atol=1e-6)


def test_padding_has_no_gradient_even_if_its_sample_overflows() -> None:
    data = samples(3, (4,))
    data.x[2] = math.inf
    model = Model(nn.Linear(4, 10))
    found = gradients_by_sample(objective_on(model, data))(
        {},
        {
            "variables": {"model": model.init()},
            "batch": {"index": torch.tensor([0, 2]), "weight": torch.tensor([1.0, 0.0])},
        },
    )
    total = clipped_sum(
        tree.map(lambda leaf: leaf[None], found), torch.tensor([[1.0, 0.0]]), SEEDED, 2.0**-30
    )
    alone = clipped_sum(
        tree.map(lambda leaf: leaf[None, :1], found), torch.tensor([[1.0]]), SEEDED, 2.0**-30
    )
    assert all(map(torch.equal, tree.leaves(total), tree.leaves(alone)))


# ---- clipping and sums


def norm(values: tree.Tree) -> float:
    return math.sqrt(sum(float(leaf.double().square().sum()) for leaf in tree.leaves(values)))


wide = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    st.lists(st.lists(wide, min_size=5, max_size=5), min_size=1, max_size=6),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=200)
def test_no_sample_counts_for_more_than_the_bound(rows: list[list[float]], clip: float) -> None:
    dp = eh.SampleDP(clip=clip, noise=0.0)
    unit = dp.grid(5)
    values = torch.tensor(rows, dtype=torch.float32)
    # two leaves, one of them a scalar of each sample; the bound is on both together
    both = {"a": values[None, :, :4], "b": values[None, :, 4]}

    def total(chosen: Tensor) -> tree.Tree:
        return tree.scale(clipped_sum(both, chosen[None], dp, unit), unit)

    everyone = torch.ones(len(rows))
    assert norm(total(torch.zeros(len(rows)))) == 0
    for place in range(len(rows)):
        alone = torch.zeros(len(rows))
        alone[place] = 1
        without = everyone - alone
        assert norm(total(alone)) <= clip
        # the sum is exact: without the sample it differs by what the sample counts for
        assert norm(tree.sub(total(everyone), total(without))) <= clip


def test_short_gradients_keep_their_length_and_long_ones_their_direction() -> None:
    dp = eh.SampleDP(clip=5.0, noise=0.0)
    unit = dp.grid(2)
    found = clipped_sum({"w": torch.tensor([[[3.0, 0.0]]])}, torch.ones(1, 1), dp, unit)
    torch.testing.assert_close(found["w"] * unit, torch.tensor([[3.0, 0.0]]).double())
    found = clipped_sum({"w": torch.tensor([[[30.0, 40.0]]])}, torch.ones(1, 1), dp, unit)
    wanted = torch.tensor([[3.0, 4.0]]).double()
    torch.testing.assert_close(found["w"] * unit, wanted, rtol=1e-5, atol=0)


@given(st.integers(1, 10**7), st.floats(1e-6, 1e6))
def test_rounding_moves_a_gradient_by_less_than_the_room_left_for_it(
    numbers: int, clip: float
) -> None:
    dp = eh.SampleDP(clip=clip, noise=0.0)
    assert dp.bound + dp.grid(numbers) / 2 * math.sqrt(numbers) <= clip
    assert math.log2(dp.grid(numbers)).is_integer()


def test_how_many_gradients_are_held_changes_no_bit() -> None:
    def trained(dp: eh.SampleDP) -> dict[str, Tensor]:
        local = eh.LocalSGD(lr=0.1, batch_size=16, dp=dp)
        net, fed = network(torch.float64), ragged(FEWER)
        return eh.fit(net, fed, eh.FedAvg(), rounds=2, local=local, engine="vmap").params

    usual = trained(SEEDED)
    for held in (1, 3, 100):
        other = trained(eh.SampleDP(clip=0.5, noise=0.7, seed=1, held=held))
        assert all(torch.equal(usual[name], other[name]) for name in usual)


# ---- a step by hand


def line(x: list[float], y: list[float]) -> eh.Federation:
    """One client; its last sample is the test sample."""
    column, values = np.array(x)[:, None], np.array(y)
    return eh.Federation.from_arrays(
        [{"x": column[:-1], "y": values[:-1]}], test=[{"x": column[-1:], "y": values[-1:]}]
    )


def slope() -> nn.Module:
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, 1.0)
    return module


def test_one_step_by_hand() -> None:
    # mse at w = 1: gradients 2 x (x w - y) = 2 * 2 * (2 - 1) = 4 and 2 * 1 * (1 - 1.5) = -1
    # clipped to 2: 2 and -1, so the mean is 0.5; w = 1 - 0.1 * 0.5
    local = eh.LocalSGD(lr=0.1, steps=1, dp=eh.SampleDP(clip=2.0, noise=0.0))
    fed = line([2.0, 1.0, 1.0], [1.0, 1.5, 1.0])
    found = eh.fit(slope(), fed, eh.FedAvg(), rounds=1, local=local, loss="mse")
    assert found.params["weight"].item() == pytest.approx(0.95, abs=1e-6)


def test_terms_without_samples_are_not_clipped() -> None:
    # FedProx's pull mu (w - received) is 0 in the first step. In the second, w = 0.95: gradients
    # 4 * (1.9 - 1) = 3.6 and 2 * (0.95 - 1.5) = -1.1, clipped 2 and -1.1, mean 0.45, and the pull
    # 100 * (0.95 - 1) = -5 is larger than the bound
    local = eh.LocalSGD(lr=0.1, steps=2, dp=eh.SampleDP(clip=2.0, noise=0.0))
    fed = line([2.0, 1.0, 1.0], [1.0, 1.5, 1.0])
    found = eh.fit(slope(), fed, eh.FedProx(mu=100.0), rounds=1, local=local, loss="mse")
    assert found.params["weight"].item() == pytest.approx(0.95 - 0.1 * (0.45 - 5), abs=1e-5)


def test_noise_of_a_step_is_what_was_drawn() -> None:
    dp = eh.SampleDP(clip=2.0, noise=1.5, seed=7)
    local = eh.LocalSGD(lr=0.1, steps=1, dp=dp)
    fed = line([2.0, 1.0, 1.0], [1.0, 1.5, 1.0])
    found = eh.fit(slope(), fed, eh.FedAvg(), rounds=1, local=local, loss="mse")
    drawn = float(gaussians(b"seed 7", "noise 0 0 0 0", 1)[0])
    wanted = 1 - 0.1 * (2 - 1 + 1.5 * 2.0 * drawn) / 2
    assert found.params["weight"].item() == pytest.approx(wanted, abs=1e-6)


def test_the_denominator_is_the_expected_batch_size() -> None:
    # batches of 2 of 8 equal samples with gradient 1: the step is (batch size) / 2 of lr
    fed = line([1.0] * 9, [0.5] * 9)
    dp = eh.SampleDP(clip=10.0, noise=0.0, seed=3)
    for round in range(3):
        local = eh.LocalSGD(lr=0.1, steps=1, batch_size=2, dp=dp, schedule=lambda r: 1.0)
        drawn = local.batches(torch.tensor([0]), torch.tensor([8]), 8, 0, 5 + round)
        size = int(drawn.valid.sum())
        found = eh.fit(slope(), fed, eh.FedAvg(), rounds=1, local=local, loss="mse", seed=5 + round)
        assert found.params["weight"].item() == pytest.approx(1 - 0.1 * size / 2, abs=1e-6)


@pytest.mark.parametrize("batch_size", [None, 1000])
@pytest.mark.parametrize(
    "solver",
    [
        eh.LocalSGD(lr=0.1, epochs=3, momentum=0.5, weight_decay=0.1),
        eh.LocalAdamW(lr=0.01, epochs=3),
    ],
)
def test_without_noise_and_bound_all_data_give_full_batches(
    batch_size: int | None, solver: eh.LocalSolver
) -> None:
    from dataclasses import replace

    plain = replace(solver, batch_size=batch_size)
    hidden = replace(plain, dp=eh.SampleDP(clip=math.inf, noise=0.0))
    found, wanted = (
        eh.fit(network(torch.float64), ragged(), eh.FedAvg(), rounds=3, local=local).params
        for local in (hidden, plain)
    )
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


def test_a_sample_whose_gradient_is_not_finite_counts_as_zero() -> None:
    data = samples(6, (4,)).to(torch.float64, torch.device("cpu"))
    data.x[1] = math.nan
    model = Model(nn.Linear(4, 10).double())
    dp = eh.SampleDP(clip=1.0, noise=0.0)
    step = hidden_gradient(objective_on(model, data), dp, OneByOne(1), additive=False)

    def gradient(index: list[int]) -> tree.Tree:
        some = torch.tensor([index])
        noise = tree.map(lambda leaf: torch.zeros(1, *leaf.shape).double(), model.init())
        inputs = {
            "variables": {"model": tree.map(lambda leaf: leaf[None], model.init())},
            "own": {},
            "batch": {
                "index": some,
                "weight": torch.ones(some.shape),
                "noise": {"model": noise},
                "expected": torch.tensor([2.0]),
            },
        }
        return step({}, inputs)

    with_it, without = gradient([0, 1]), gradient([0])
    assert all(map(torch.equal, tree.leaves(with_it), tree.leaves(without)))
    # and a finite one counts for at most clip / 2
    change = tree.sub(gradient([0, 2]), without)
    assert 0 < norm(change) <= 0.5 * (1 + 1e-6)


# ---- noise


def test_noise_has_the_moments_of_a_normal_distribution() -> None:
    drawn = gaussians(b"key", "place", 1_000_001)
    assert len(drawn) == 1_000_001
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.02
    assert abs((drawn**3).mean()) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.06
    # both halves come from the same pairs: they must not be related
    assert abs(np.corrcoef(drawn[:500_000], drawn[500_001:])[0, 1]) < 0.01
    from scipy import stats

    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_noise_of_a_step_has_the_stated_deviation_on_the_grid() -> None:
    dp = eh.SampleDP(clip=0.3, noise=2.0, seed=5)
    numbers, seeds = torch.tensor([4, 9]), torch.tensor([0, 0])
    noise = StepNoise(dp, numbers, seeds, round=2)
    form = {"w": torch.zeros(2, 300, 500), "b": torch.zeros(2)}
    drawn = noise.of(3, 2, 2, form)
    unit = dp.grid(150_001)
    assert torch.equal(drawn["w"], drawn["w"].round())
    assert drawn["b"].shape == (2,)
    for row in drawn["w"] * unit:
        assert row.std().item() == pytest.approx(0.6, rel=0.01)
    first, second = drawn["w"].flatten(1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    for other in (StepNoise(dp, numbers, seeds, 3), StepNoise(dp, numbers, seeds + 1, 2)):
        assert abs(np.corrcoef(other.of(3, 2, 2, form)["w"][0].flatten(), first)[0, 1]) < 0.02
    assert abs(np.corrcoef(noise.of(4, 2, 2, form)["w"][0].flatten(), first)[0, 1]) < 0.02
    assert float(noise.of(3, 2, 1, form)["w"][1].abs().max()) == 0  # it no longer takes part


def test_uniform_numbers_are_uniform_and_differ_by_key_and_place() -> None:
    from scipy import stats

    drawn = uniforms(b"key", "here", 200_000)
    assert drawn.min() > 0
    assert drawn.max() <= 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    assert not np.array_equal(drawn[:9], uniforms(b"key", "there", 9))
    assert not np.array_equal(drawn[:9], uniforms(b"kez", "here", 9))
    assert not np.array_equal(uniforms(b"ab", "c", 9), uniforms(b"a", "bc", 9))


# ---- Poisson batches


def drawn_batches(size: int, batch: int, steps: int, seed: int = 0) -> list[list[int]]:
    found = poisson_batches(
        eh.SampleDP(seed=seed), torch.tensor([3]), torch.tensor([size]), 0, torch.tensor([0]),
        batch_size=batch, epochs=None, steps=steps,
    )  # fmt: skip
    return [
        row[real].tolist() for row, real in zip(found.positions[0], found.valid[0], strict=True)
    ]


def test_batches_follow_the_poisson_law() -> None:
    from scipy import stats

    size, batch, steps = 40, 8, 20_000
    batches = drawn_batches(size, batch, steps)
    hit = np.zeros((steps, size))
    for step, chosen in enumerate(batches):
        assert len(set(chosen)) == len(chosen)
        hit[step, chosen] = 1
    lengths = np.bincount([len(chosen) for chosen in batches], minlength=size + 1)
    wanted = stats.binom.pmf(np.arange(size + 1), size, batch / size) * steps
    often = wanted > 5
    statistic = ((lengths - wanted)[often] ** 2 / wanted[often]).sum()
    assert stats.chi2.sf(statistic, often.sum()) > 1e-4
    # every sample has the same chance, and samples and steps are independent
    assert np.abs(hit.mean(0) - batch / size).max() < 5 * math.sqrt(0.2 * 0.8 / steps)
    relations = np.corrcoef(hit.T) - np.eye(size)
    assert np.abs(relations).max() < 5 / math.sqrt(steps)
    assert np.abs(np.corrcoef(hit[1:, 0], hit[:-1, 0])[0, 1]) < 5 / math.sqrt(steps)
    assert np.abs(np.corrcoef(hit[1:, 0], hit[:-1, -1])[0, 1]) < 5 / math.sqrt(steps)


def test_a_batch_of_everything_is_everything() -> None:
    assert drawn_batches(5, 8, 3) == [list(range(5))] * 3


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 5), st.integers(0, 100))
def test_batches_are_samples_of_the_client(size: int, batch: int, steps: int, seed: int) -> None:
    found = drawn_batches(size, batch, steps, seed)
    assert len(found) == steps
    assert all(0 <= sample < size for chosen in found for sample in chosen)
    assert all(chosen == sorted(set(chosen)) for chosen in found)


def test_an_epoch_has_as_many_steps_as_without_hiding() -> None:
    sizes = torch.tensor([5, 33, 64])
    ids, seeds = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    for length in ({"epochs": 2, "steps": None}, {"epochs": None, "steps": 7}):
        plain = eh.LocalSGD(lr=0.1, batch_size=32, **length).batches(ids, sizes, 64, 0, 0)
        hidden = poisson_batches(eh.SampleDP(seed=0), ids, sizes, 0, seeds, batch_size=32, **length)
        assert torch.equal(plain.steps, hidden.steps)


def test_batches_and_noise_differ_between_clients_and_rounds() -> None:
    dp, sizes = eh.SampleDP(seed=0), torch.tensor([50, 50])
    same = {"batch_size": 10, "epochs": 1, "steps": None}
    two = poisson_batches(dp, torch.tensor([0, 1]), sizes, 0, torch.tensor([0, 0]), **same)
    assert not torch.equal(two.valid[0].sum(1), two.valid[1].sum(1)) or not torch.equal(
        two.positions[0], two.positions[1]
    )
    later = poisson_batches(dp, torch.tensor([0, 1]), sizes, 1, torch.tensor([0, 0]), **same)
    assert not torch.equal(two.positions[0, :, :3], later.positions[0, :, :3])


# ---- engines


def on_engines(method: eh.Algorithm, local: eh.LocalSolver) -> list[eh.Result]:
    """The results of the loop, of stacked clients and of stacks of two."""
    settings = eh.Settings(rounds=3, local=local, cohort=eh.Uniform(6), eval_every=3)
    net, fed = network(torch.float64), ragged(FEWER)
    return [
        eh.fit(net, fed, method, settings=settings, engine=engine)
        for engine in ("loop", eh.Vmap(), eh.Vmap(chunk=2))
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_clients_take_the_same_steps_on_every_engine_to_the_bit(momentum: float) -> None:
    # whole multiples of a grid: sums of gradients have no rounding that engines could differ in
    local = eh.LocalSGD(lr=0.1, batch_size=16, epochs=2, momentum=momentum, dp=SEEDED)
    one, *others = on_engines(eh.LocalOnly(), local)
    for other in others:
        assert one.personal is not None
        assert other.personal is not None
        for mine, its in zip(one.personal, other.personal, strict=True):
            assert all(torch.equal(mine[name], its[name]) for name in mine)


@pytest.mark.parametrize(
    "method",
    [eh.FedAvg(), eh.FedProx(mu=0.1), eh.Ditto(lam=0.5), eh.FedMGDA(), eh.FedAdam(lr=0.05)],
    ids=lambda method: type(method).__name__,
)
def test_methods_agree_on_every_engine(method: eh.Algorithm) -> None:
    local = eh.LocalSGD(lr=0.1, batch_size=16, epochs=2, momentum=0.5, dp=SEEDED)
    one, *others = on_engines(method, local)
    for other in others:
        for name, value in one.params.items():
            torch.testing.assert_close(other.params[name], value, rtol=1e-12, atol=1e-13)
        assert all(map(torch.equal, *(tree.leaves(r.params) for r in others)))


@pytest.mark.parametrize(
    "local",
    [
        eh.LocalAdam(lr=0.01, batch_size=16, dp=SEEDED, clip=1.0),
        eh.LocalSGD(lr=0.1, steps=3, dp=SEEDED, step_schedule=eh.schedules.Cosine()),
    ],
    ids=["adam", "all data"],
)
def test_engines_agree_for_other_solvers(local: eh.LocalSolver) -> None:
    one, other = (
        eh.fit(network(torch.float64), ragged(), eh.FedAvg(), rounds=3, local=local, engine=engine)
        for engine in ("loop", "vmap")
    )
    for name, value in one.params.items():
        torch.testing.assert_close(other.params[name], value, rtol=1e-12, atol=1e-13)


def test_engines_agree_for_convolutions_in_float32() -> None:
    fed = eh.datasets.digits(clients=4)
    local = eh.LocalSGD(lr=0.1, batch_size=32, steps=3, dp=eh.SampleDP(clip=1.0, noise=1.0, seed=2))
    net = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), small_cnn())
    one, other = (
        eh.fit(net, fed, eh.FedAvg(), rounds=1, local=local, engine=engine)
        for engine in ("loop", "vmap")
    )
    for name, value in one.params.items():
        torch.testing.assert_close(other.params[name], value, rtol=1e-5, atol=1e-6)


# ---- settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clip": 0.0}, "clip of SampleDP must be"),
        ({"clip": math.inf}, "clip = inf bounds nothing"),
        ({"noise": -1.0}, "noise of SampleDP must be"),
        ({"delta": 1.0}, "delta of SampleDP must be"),
        ({"seed": -1}, "seed of SampleDP must be"),
        ({"held": 0}, "held of SampleDP must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eh.SampleDP(**settings)


def test_dp_must_be_a_sample_dp() -> None:
    with pytest.raises(TypeError, match="dp must be a SampleDP object"):
        eh.LocalSGD(lr=0.1, dp=1.0)  # type: ignore[arg-type]


def test_without_a_secret_nothing_is_drawn() -> None:
    drawn = StepNoise(eh.SampleDP(), torch.tensor([0]), torch.tensor([0]), 0)
    with pytest.raises(ValueError, match="no secret"):
        drawn.of(0, 1, 1, {"w": torch.zeros(1, 2)})
