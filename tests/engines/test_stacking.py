"""How clients are stacked: padding, which of them take part in a step, what they remember, and how
their replies are summed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenhand as eh
from evenhand import tree
from evenhand.engines.fold import Fold, finite, summed
from evenhand.engines.memory import Memories
from evenhand.engines.replay import Replayed
from evenhand.engines.tracing import traced
from evenhand.engines.visits import Members, Visits
from evenhand.engines.widths import MOST_PADDING, padded_widths, stacked_clients
from evenhand.engines.work import Evaluate, Train
from evenhand.messages import Task
from evenhand.training.server import with_round
from tests.support.federations import METHODS, network, ragged

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_widths_hold_every_client_with_little_padding(sizes: list[int]) -> None:
    have = torch.tensor(sizes)
    widths = padded_widths(have)
    chosen = widths[torch.searchsorted(widths, have)]
    assert bool((chosen >= have).all())
    assert bool(torch.isin(widths, have).all())
    assert int((chosen - have).sum()) <= MOST_PADDING * int(chosen.sum())


@pytest.mark.parametrize(
    "sizes", [(1, 2, 3, 4, 5), (10, 11, 50, 52, 100), (1, 300, 7, 40, 33, 2, 120)]
)
def test_widths_are_the_fewest_and_pad_the_least_of_all_choices(sizes: tuple[int, ...]) -> None:
    have = torch.tensor(sizes)
    distinct = sorted(set(sizes))

    def padding(widths: list[int]) -> float:
        chosen = [min(width for width in widths if width >= size) for size in sizes]
        return (
            sum(chosen) - sum(sizes)
            if (sum(chosen) - sum(sizes)) <= MOST_PADDING * sum(chosen)
            else float("inf")
        )

    choices = [
        [*(w for bit, w in enumerate(distinct[:-1]) if code >> bit & 1), distinct[-1]]
        for code in range(2 ** (len(distinct) - 1))
    ]
    fewest = min(len(widths) for widths in choices if padding(widths) < float("inf"))
    best = min((padding(widths), widths) for widths in choices if len(widths) == fewest)[0]
    found = padded_widths(have).tolist()
    assert len(found) == fewest
    assert padding(found) == best


def test_padding_is_a_share_of_the_padded_samples() -> None:
    # 28 of 200, though more than 15 % of the 172 that there are
    assert padded_widths(torch.tensor([72, 100])).tolist() == [100]


def test_widths_of_very_many_sizes_still_pad_little() -> None:
    have = torch.randint(1, 100_000, (200_000,), generator=torch.Generator().manual_seed(0))
    widths = padded_widths(have)
    chosen = widths[torch.searchsorted(widths, have)]
    assert bool((chosen >= have).all())
    assert float((chosen - have).sum() / chosen.sum()) < MOST_PADDING + 0.01


@given(st.integers(1, 10_000))
def test_stacks_are_less_than_an_eighth_larger_than_needed(count: int) -> None:
    assert count <= stacked_clients(count) < count * 9 / 8 + 1e-9 or stacked_clients(count) == count
    assert stacked_clients(stacked_clients(count)) == stacked_clients(count)


def members(sizes: list[int]) -> Members:
    ids, zeros = torch.arange(len(sizes)), torch.zeros(len(sizes), dtype=torch.int64)
    return Members(ids, ids, zeros, zeros, zeros + 3, torch.tensor(sizes), torch.tensor(sizes))


def test_every_sample_is_visited_once_an_epoch_and_little_work_is_for_nothing() -> None:
    sizes = [40, 3, 260, 33, 64, 120, 17, 90, 200, 15, 130, 75]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    part = eh.Part(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)), offsets)
    visits = Visits(
        eh.LocalSGD(lr=0.1, epochs=2, batch_size=8), members(sizes), part, 0, CPU, torch.float32
    )
    seen = torch.zeros(sum(sizes))
    work, idle = 0, 0
    for batches, stacked, taking_part in visits.in_turn():
        for batch in tree.rows(batches):
            samples, weight = batch["index"], batch["weight"]
            assert samples.shape == weight.shape == (stacked, 8)
            seen.index_add_(0, samples[weight > 0], torch.ones(int(weight.sum())))
            assert not bool(weight[taking_part:].any())
            work, idle = work + stacked, idle + stacked - taking_part
    assert torch.equal(seen, torch.full((sum(sizes),), 2.0))
    assert idle <= MOST_PADDING * work
    assert visits.order is not None
    assert visits.back is not None
    assert torch.equal(visits.order[visits.back], torch.arange(len(sizes)))


def test_memories_are_kept_by_client_and_first_ones_given_to_the_others() -> None:
    memories = Memories(1000, CPU)
    first = {"v": torch.tensor([7.0, 7.0]), "n": {"m": torch.tensor(0)}}
    assert memories.recall([3, 5], first)["v"].tolist() == [[7.0, 7.0]] * 2
    stacked = {"v": torch.arange(200.0).reshape(100, 2), "n": {"m": torch.arange(100)}}
    good = torch.arange(100) != 4
    memories.remember(list(range(100, 200)), stacked, good)  # more than there is room for at first
    found = memories.recall([199, 104, 100, 2], first)
    assert found["v"].tolist() == [[198.0, 199.0], [7.0, 7.0], [0.0, 1.0], [7.0, 7.0]]
    assert found["n"]["m"].tolist() == [99, 0, 0, 0]
    copy = Memories(1000, CPU)
    copy.load(memories.one_by_one())
    assert (
        copy.recall([150], first)["v"].tolist()
        == memories.recall([150], first)["v"].tolist()
        == [[100.0, 101.0]]
    )
    # a last work that leaves something else
    memories.remember([100], {"other": torch.ones(1, 3)}, torch.tensor([True]))
    assert memories.recall([100], {})["other"].tolist() == [[1.0, 1.0, 1.0]]


def test_folding_sums_the_replies_of_each_run_that_are_finite() -> None:
    generator = torch.Generator().manual_seed(0)
    total = {"d": torch.randn(7, 4, 3, generator=generator)}
    each = {"loss": torch.randn(7, generator=generator)}
    total["d"][5, 0, 0] = float("nan")
    run = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    good = finite({"total": total, "each": each}, 7)
    assert good.tolist() == [True] * 5 + [False, True]
    fold = Fold(3, 7)
    for rows in (torch.arange(0, 4), torch.arange(4, 7)):
        pick = {"d": total["d"][rows]}, {"loss": each["loss"][rows]}
        fold.add(*pick, rows, run[rows], good[rows])
    sums, kept = fold.sums()
    for number in range(3):
        rows = [row for row in range(7) if run[row] == number and good[row]]
        torch.testing.assert_close(sums["d"][number], total["d"][rows].double().sum(0))
    assert torch.equal(kept["loss"], each["loss"])


def test_sums_are_taken_in_float64_whatever_clients_send() -> None:
    fold, everyone = Fold(1, 3), torch.ones(3, dtype=torch.bool)
    total = {"d": torch.tensor([[1e8], [1.0], [-1e8]])}
    fold.add(total, {}, torch.arange(3), torch.zeros(3, dtype=torch.int64), everyone)
    assert fold.sums()[0]["d"].tolist() == [[1.0]]


def test_known_sums_take_the_place_of_adding_up_and_are_over_those_that_are_finite() -> None:
    out = {
        "total": {"d": torch.arange(6.0).reshape(3, 2)},
        "each": {"loss": torch.ones(3)},
        "memory": {},
    }
    sums = summed(out, must_be_finite=True)
    assert sums["good"].tolist() == [True, True, True]
    fold = Fold(1, 3)
    fold.add(
        out["total"],
        out["each"],
        torch.arange(3),
        torch.zeros(3, dtype=torch.int64),
        sums["good"],
        sums["total"],
    )
    assert fold.sums()[0]["d"].tolist() == [[6.0, 9.0]]
    out["each"]["loss"][1] = float("inf")
    sums = summed(out, must_be_finite=True)
    assert sums["good"].tolist() == [True, False, True]
    assert sums["total"]["d"].tolist() == [4.0, 6.0]
    out["total"]["d"][2] = 3e38  # finite, though not its sum in float32
    assert summed(out, must_be_finite=True)["good"].tolist() == [True, False, True]
    assert summed(out, must_be_finite=False)["good"].tolist() == [True, True, True]


def test_simplified_operations_keep_every_bit_and_are_fewer() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (
            torch.nn.functional.cross_entropy(x @ w, torch.zeros(len(x), dtype=torch.int64))
            + (w * 1).square().sum()
        )

    def step(shared: tree.Tree, inputs: tree.Tree) -> tree.Tree:
        room = torch.zeros_like(inputs["w"])
        room.view(-1)[0] += 1  # zeros that are changed must be made anew
        slopes = torch.func.vmap(torch.func.grad(loss))(inputs["w"], inputs["x"])
        inputs["w"].sub_(slopes * shared["lr"])
        return {"room": room * 2, "slopes": slopes.transpose(1, 2).transpose(1, 2)}

    generator = torch.Generator().manual_seed(0)
    shared = {"lr": torch.tensor(0.1)}
    given = [
        {
            "w": torch.randn(3, 4, 2, generator=generator),
            "x": torch.randn(3, 5, 4, generator=generator),
        }
        for _ in range(4)
    ]
    replayed = Replayed(step)
    for inputs in given:
        twin = tree.map(torch.clone, inputs)
        expected, found = step(shared, inputs), replayed(shared, twin)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
        assert torch.equal(twin["w"], inputs["w"])  # changed in place, once
    graph = traced(step, shared, given[0])[0]
    operations = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.ones_like.default not in operations
    assert torch.ops.aten.transpose.int not in operations[-3:]
    # the value of the loss is not asked for
    assert torch.ops.aten.nll_loss_forward.default not in operations


@pytest.mark.parametrize(
    "engine", [eh.Vmap(), eh.Vmap(chunk=3), eh.Loop()], ids=["vmap", "chunked", "loop"]
)
@pytest.mark.parametrize("method", ["fedavg", "afl", "ditto", "drfa", "fafl", "gifair_per"])
def test_runs_exchanged_together_reply_as_they_do_alone(method: str, engine: eh.Engine) -> None:
    algorithm, federation = METHODS[method], ragged((1, 30, 7, 40, 33, 2, 12, 24, 15, 9))
    models = [eh.Model(network(torch.float64)) for _ in range(3)]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        for parameter in model._module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    census, local = federation.census(), eh.LocalSGD(lr=0.1, epochs=2, batch_size=8, momentum=0.3)
    seeds = torch.tensor([4, 0, 9])
    draws = [eh.Uniform(5).draw(census, int(seed), 0).ascending() for seed in seeds]
    tasks = []
    for model, draw in zip(models, draws, strict=True):
        task = with_round(algorithm.task(algorithm.init(model.init(), census), draw.ids), draw, 0.1)
        task.shared.update(
            {"moment": torch.tensor(0.6, dtype=torch.float64)}
            if algorithm.local_work().snapshot
            else {}
        )
        tasks.append(task)
    work = Train(algorithm, local)
    together = engine.attach(models[0], federation, 0)
    stacked = Task(*(tree.stack(list(parts)) for parts in zip(*tasks, strict=True)))
    ids = torch.stack([draw.ids for draw in draws])
    for round in range(2):
        replies, good = together.exchange_runs(work, stacked, ids, round, seeds)  # type: ignore[attr-defined]
        assert bool(good.all())
    for number, (task, draw, seed) in enumerate(zip(tasks, draws, seeds.tolist(), strict=True)):
        alone = engine.attach(models[0], federation, seed)
        for round in range(2):
            expected = alone.exchange(work, task, draw.ids, round)
        torch.testing.assert_close(
            tree.row(replies.total, number), expected.total, rtol=1e-12, atol=1e-13
        )
        torch.testing.assert_close(
            tree.row(replies.each, number), expected.each, rtol=1e-12, atol=1e-13
        )
        found = together.memories_of(number)  # type: ignore[attr-defined]
        assert found.keys() == alone.memories.keys()
        for client, memory in alone.memories.items():
            torch.testing.assert_close(found[client], memory, rtol=1e-12, atol=1e-13)


def test_models_of_several_runs_are_judged_as_they_are_alone() -> None:
    federation, algorithm = ragged(), eh.FedAvg()
    model = eh.Model(network(torch.float64))
    model.check(federation)
    generator = torch.Generator().manual_seed(0)
    params = [
        tree.map(
            lambda leaf: torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype),
            model.init(),
        )
        for _ in range(3)
    ]
    ids = federation.judged.sizes.nonzero().flatten()
    for full in (False, True):
        work = Evaluate(algorithm, federation.groups, "test", full=full, clients=federation.clients)
        exchange = eh.Vmap().attach(model, federation, 0)
        shared = {"model": tree.stack(params)}
        found, good = exchange.exchange_runs(
            work, Task(shared), ids.expand(3, -1), 0, torch.zeros(3, dtype=torch.int64)
        )  # type: ignore[attr-defined]
        assert bool(good.all())
        for number, one in enumerate(params):
            expected = exchange.exchange(work, Task({"model": one}), ids, 0)
            torch.testing.assert_close(
                tree.row(found.each, number), expected.each, rtol=1e-12, atol=1e-12
            )
