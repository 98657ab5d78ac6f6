"""Every method gives the same result on every engine, and the same bits whatever the chunks,
threads and order of clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evenhand as eh
from evenhand import tree
from evenhand.cohort import Draw
from tests.support.federations import FEWER, METHODS, SIZES, network, ragged

LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=32, momentum=0.5, weight_decay=0.01, decay=0.98)
COHORTS = {
    "full": eh.Full(),
    "partial": eh.Uniform(4),
    "replaced": eh.Proportional(5),
    "unbiased": eh.Uniform(4, unbiased=True),
}


# the methods of the five papers; what holds for these and is said once more for every method is in
# test_conformance.py
CORE = (
    "fedavg",
    "propfair",
    "qffl",
    "term",
    "afl",
    "afl_average",
    "fafl",
    "fedminmax",
    "gifair",
    "gifair_per",
    "fedmgda",
    "ditto",
)
# enough for memories, duals and the replay of traced steps; fewer for variants and further
# methods: their rounds are made of the same parts
ROUNDS, SHORT_ROUNDS = 6, 3


def train(method: str, **settings: Any) -> eh.Result:
    dtype = settings.pop("dtype", torch.float64)
    federation = settings.pop("federation", None) or ragged(FEWER)
    rounds = ROUNDS if method in CORE else SHORT_ROUNDS
    chosen: dict[str, Any] = {
        "rounds": rounds,
        "local": LOCAL,
        "cohort": eh.Full(),
        "eval_every": ROUNDS,
        "seed": 3,
    }
    return eh.fit(network(dtype), federation, METHODS[method], **{**chosen, **settings})


def everything(result: eh.Result) -> dict[str, torch.Tensor]:
    """Parameters, duals and personal models of a run, flat."""
    personal = {str(i): params for i, params in enumerate(result.personal or [])}
    return tree.flatten({"params": result.params, "state": result.state, "personal": personal})


def assert_close(a: eh.Result, b: eh.Result, tolerance: float) -> None:
    left, right = everything(a), everything(b)
    assert left.keys() == right.keys()
    for key, value in left.items():
        scale = max(1e-3, float(value.abs().max()))
        torch.testing.assert_close(
            right[key],
            value,
            rtol=tolerance,
            atol=tolerance * scale,
            msg=lambda text, key=key: f"{key}: {text}",
        )


def assert_same_bits(a: eh.Result, b: eh.Result) -> None:
    left, right = everything(a), everything(b)
    assert left.keys() == right.keys()
    different = [key for key in left if not torch.equal(left[key], right[key])]
    assert not different
    assert a.history_rows == b.history_rows
    assert a.score_rows == b.score_rows


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cohort", ["full", "partial"])
def test_loop_vmap_and_chunked_vmap_agree_in_float64(method: str, cohort: str) -> None:
    # each with one cohort: that chunks change no bit is another test
    engine = eh.Vmap() if cohort == "full" else eh.Vmap(chunk=2)
    loop, vmap = (train(method, cohort=COHORTS[cohort], engine=one) for one in ("loop", engine))
    assert_close(loop, vmap, 1e-12)


@pytest.mark.parametrize("method", CORE)
@pytest.mark.parametrize("cohort", ["full", "partial"])
def test_loop_and_vmap_agree_in_float32(method: str, cohort: str) -> None:
    loop, vmap = (
        train(method, cohort=COHORTS[cohort], engine=engine, dtype=torch.float32)
        for engine in ("loop", "vmap")
    )
    assert_close(loop, vmap, 1e-5)


@pytest.mark.parametrize("cohort", ["replaced", "unbiased"])
def test_engines_agree_for_other_cohorts(cohort: str) -> None:
    for method in ("fedavg", "afl", "gifair"):
        assert_close(
            *(
                train(method, cohort=COHORTS[cohort], engine=engine, rounds=8)
                for engine in ("loop", "vmap")
            ),
            1e-12,
        )


@pytest.mark.parametrize("method", CORE)
def test_without_teams_engines_agree(method: str) -> None:
    federation = ragged(teams=False)
    results = [
        train(method, federation=federation, engine=engine, rounds=5, cohort=eh.Uniform(6))
        for engine in ("loop", "vmap")
    ]
    assert_close(*results, 1e-12)


@pytest.mark.parametrize("method", CORE)
@pytest.mark.parametrize(
    "local",
    [eh.LocalSGD(lr=0.1, steps=7, batch_size=16), eh.LocalSGD(lr=0.1, epochs=2)],
    ids=["steps", "full"],
)
def test_engines_agree_for_steps_and_for_whole_batches(method: str, local: eh.LocalSGD) -> None:
    assert_close(
        *(train(method, local=local, engine=engine, rounds=4) for engine in ("loop", "vmap")), 1e-12
    )


@pytest.mark.parametrize("method", CORE)
def test_chunk_size_changes_no_bit(method: str) -> None:
    whole = train(
        method, cohort=eh.Uniform(7), rounds=4, engine=eh.Vmap(chunk=100), dtype=torch.float32
    )
    for chunk in (1, 3):
        assert_same_bits(
            whole,
            train(
                method,
                cohort=eh.Uniform(7),
                rounds=4,
                engine=eh.Vmap(chunk=chunk),
                dtype=torch.float32,
            ),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_products_place_in_memory_changes_no_bit(dtype: torch.dtype) -> None:
    # rows of these lengths begin at odd places; see MKL_CBWR in evenhand/__init__.py
    for rows, inner, columns in ((3, 100, 5), (8, 32, 10), (2, 64, 5), (33, 13, 7)):
        a = torch.randn(12, rows, inner, dtype=dtype)
        b = torch.randn(12, inner, columns, dtype=dtype)
        for first in range(1, 11):
            assert torch.equal(torch.bmm(a, b)[first:], torch.bmm(a[first:], b[first:]))


@pytest.mark.parametrize(
    "engine", [eh.Vmap(), eh.Vmap(chunk=2), eh.Loop(workers=3)], ids=["vmap", "chunked", "loop"]
)
def test_number_of_threads_changes_no_bit(engine: eh.Engine) -> None:
    # wide enough that a threaded matrix product would split its sums
    federation = eh.Federation.from_arrays(
        [{"x": torch.randn(64, 784), "y": torch.arange(64) % 10} for _ in range(3)]
    )
    module = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        try:
            results.append(
                eh.fit(
                    module,
                    federation,
                    eh.FedAvg(),
                    rounds=3,
                    local=eh.LocalSGD(lr=0.1, epochs=2, batch_size=32),
                    engine=engine,
                )
            )
            assert torch.get_num_threads() == threads  # the caller's setting is given back
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        assert_same_bits(results[0], other)


def test_chunk_size_changes_no_bit_with_convolutions() -> None:
    torch.manual_seed(0)
    images = [
        {"x": torch.randn(12 + 5 * i, 1, 8, 8), "y": torch.arange(12 + 5 * i) % 3} for i in range(5)
    ]
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )
    runs = [
        eh.fit(
            module,
            eh.Federation.from_arrays(images),
            eh.FedAvg(),
            rounds=3,
            local=eh.LocalSGD(lr=0.1, epochs=1, batch_size=8),
            engine=engine,
        )
        for engine in (eh.Vmap(chunk=5), eh.Vmap(chunk=1), eh.Vmap(chunk=2), eh.Loop())
    ]
    assert_same_bits(runs[0], runs[1])
    assert_same_bits(runs[0], runs[2])
    assert_close(runs[0], runs[3], 1e-5)


def test_replayed_operations_give_the_same_bits() -> None:
    # 65 steps a round: in the third the engine replays what it has traced
    local = eh.LocalSGD(lr=0.05, steps=65, batch_size=8)
    for method in ("fafl", "ditto"):
        traced, plain = (
            train(method, local=local, rounds=3, engine=eh.Vmap(trace=trace), dtype=torch.float32)
            for trace in (True, False)
        )
        assert_same_bits(traced, plain)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_same_seed_same_bits_and_another_seed_other_bits(engine: str) -> None:
    first, second, other = (
        train("gifair", cohort=eh.Uniform(4), rounds=5, engine=engine, seed=seed)
        for seed in (1, 1, 2)
    )
    assert_same_bits(first, second)
    assert not torch.equal(first.params["0.weight"], other.params["0.weight"])


class Backwards(eh.Cohort):
    """Everyone, last client first."""

    def draw(self, census: eh.Census, seed: int, round: int) -> Draw:
        ids = torch.arange(census.clients).flip(0)
        return Draw(ids, census.weight[ids], census.weight[ids])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("method", CORE)
def test_order_in_which_a_cohort_is_listed_changes_no_bit(method: str, engine: str) -> None:
    assert_same_bits(
        train(method, cohort=eh.Full(), rounds=3, engine=engine),
        train(method, cohort=Backwards(), rounds=3, engine=engine),
    )


@pytest.mark.parametrize("method", CORE)
def test_renumbering_clients_renumbers_the_answer(method: str) -> None:
    federation = ragged()
    order = [4, 0, 9, 2, 7, 5, 1, 8, 3, 6]
    parts = []
    for part in (federation.train, federation.test):
        assert part is not None
        assert part.group is not None
        rows = torch.cat(
            [torch.arange(int(part.offsets[i]), int(part.offsets[i + 1])) for i in order]
        )
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), part.sizes[order].cumsum(0)])
        parts.append(eh.Part(part.x[rows], part.y[rows], offsets, part.group[rows]))
    assert federation.teams is not None
    shuffled = eh.Federation(
        *parts,
        teams=federation.teams[order],
        team_names=federation.team_names,
        group_names=federation.group_names,
    )
    # whole batches: the order of batches belongs to a client's number
    local = eh.LocalSGD(lr=0.1, steps=3)
    a = train(method, federation=federation, local=local, rounds=4)
    b = train(method, federation=shuffled, local=local, rounds=4)
    torch.testing.assert_close(b.params, a.params, rtol=1e-12, atol=1e-12)
    for new, old in enumerate(order):
        torch.testing.assert_close(
            b.score_rows[new]["loss"], a.score_rows[old]["loss"], rtol=1e-10, atol=1e-12
        )
        if a.personal is not None and b.personal is not None:
            torch.testing.assert_close(b.personal[new], a.personal[old], rtol=1e-12, atol=1e-12)


def test_dropout_trains_reproducibly_and_leaves_the_callers_generator_alone() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(5, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3)
    ).double()
    before = torch.get_rng_state()
    for engine in ("loop", "vmap"):
        runs = [
            eh.fit(module, ragged(), eh.FedAvg(), rounds=3, local=LOCAL, engine=engine, seed=seed)
            for seed in (0, 0, 1)
        ]
        assert_same_bits(runs[0], runs[1])
        assert not torch.equal(runs[0].params["0.weight"], runs[2].params["0.weight"])
    assert torch.equal(before, torch.get_rng_state())


def test_auto_stacks_dense_models_and_measures_convolutions_on_a_cpu() -> None:
    from evenhand.engines import choose

    federation = ragged()
    dense = eh.Model(network())
    assert isinstance(choose("auto", dense, federation), eh.Vmap)
    images = eh.Federation.from_arrays([{"x": torch.randn(3, 1, 8, 8), "y": [0, 1, 2]}])
    convolution = eh.Model(
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 3))
    )
    assert choose("auto", convolution, images) == choose("auto", convolution, images)


class Branching(torch.nn.Module):
    """Decides on a value of a tensor, which cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else self.layer(-x)


def test_auto_falls_back_to_the_loop_with_one_warning_where_a_module_cannot_be_stacked() -> None:
    with pytest.warns(UserWarning, match="cannot be stacked over clients"):
        auto = eh.fit(Branching(), ragged(), eh.FedAvg(), rounds=2, local=LOCAL)
    assert auto.history_rows[-1]["answered"] == len(SIZES)
    with pytest.raises(eh.ClientError, match=r"client .*, round 1, train"):
        eh.fit(Branching(), ragged(), eh.FedAvg(), rounds=2, local=LOCAL, engine="vmap")


def test_training_leaves_the_module_as_it_was_and_starts_from_its_parameters() -> None:
    module = network()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    module.train()
    result = eh.fit(module, ragged(), eh.FedAvg(), rounds=1, local=eh.LocalSGD(lr=1e-300, steps=1))
    assert module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
        assert torch.equal(result.params[key], before[key])
    assert list(result.params) == list(before)
